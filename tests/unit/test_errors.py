"""The ways in which the guard can fail: their numbers, ids, words and hints."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import re
from pathlib import Path

import pytest

from workspace_guard import errors
from workspace_guard.errors import (
    GuardError,
    InputError,
    Interrupted,
    PathLike,
    StateUnusable,
    TargetPathError,
    Terminated,
    WorkspaceHeld,
    WorkspaceUnusable,
    show_path,
)

CLASSES = tuple(
    each
    for _, each in inspect.getmembers(errors, inspect.isclass)
    if issubclass(each, GuardError)
)
REFUSED_BEFORE_ANYTHING_RAN = range(10, 16)
RECORD_OR_STORE_BROKEN = range(50, 60)
SINGLE = {44, 45, 70, 130, 143}

every_class = pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)


# --- The table ------------------------------------------------------------------------


def test_classes_when_listed_then_are_all_there() -> None:
    """The tests below see every class; one more has to be counted here."""
    assert len(CLASSES) == 23


def test_msgid_when_compared_then_is_each_classes_own() -> None:
    """A script can tell every failure by its id."""
    ids = [kind.msgid for kind in CLASSES]
    assert sorted(set(ids)) == sorted(ids)


@every_class
def test_msgid_when_read_then_is_lower_case_words_with_hyphens(
    kind: type[GuardError],
) -> None:
    """An id can be written anywhere unquoted."""
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", kind.msgid)


@every_class
def test_exit_status_when_read_then_lies_in_its_documented_range(
    kind: type[GuardError],
) -> None:
    """Refused 10 to 15, broken 50 to 59, and the few single numbers of the contract."""
    assert kind.exit_status in {
        *REFUSED_BEFORE_ANYTHING_RAN,
        *RECORD_OR_STORE_BROKEN,
        *SINGLE,
    }


def test_exit_status_when_shared_then_only_among_refusals_of_one_kind() -> None:
    """Above 11 each number is one class."""
    statuses = [kind.exit_status for kind in CLASSES if kind.exit_status > 11]
    assert sorted(set(statuses)) == sorted(statuses)


@every_class
def test_class_when_read_then_says_what_it_is_and_what_to_do_next(
    kind: type[GuardError],
) -> None:
    """The docs are made of the first line; a person is told the next step."""
    assert (kind.__doc__ or "").splitlines()[0].endswith(".")
    assert kind.usual_hint


# --- Words ----------------------------------------------------------------------------


def test_error_when_given_no_hint_then_has_the_usual_one() -> None:
    """A hint of the moment takes the place of the usual one, also an empty one."""
    assert StateUnusable("/s", "is full").hint == (
        "choose another with --state-dir or WORKSPACE_GUARD_STATE_DIR"
    )
    assert StateUnusable("/s", "is full", hint="make room").hint == "make room"
    assert StateUnusable("/s", "is full", hint="").hint == ""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (TargetPathError("a\nb", "is odd"), "target 'a\\\\nb': is odd"),
        (InputError(b"bad\xff", "is missing"), "input bad\\xff: is missing"),
        (WorkspaceUnusable(Path("/w"), "is a link"), "workspace /w: is a link"),
        (StateUnusable("/s\x1b[2J", "x"), "state folder /s\\x1b[2J: x"),
        (
            WorkspaceHeld("/w", pid=4711, run_id="r1"),
            "workspace /w is held by process 4711 (run r1)",
        ),
        (
            WorkspaceHeld("/w", pid=None, run_id=None),
            "workspace /w is held by another process",
        ),
        (Interrupted(2), "stopped by signal 2 before the command ran"),
        (Terminated(15), "stopped by signal 15 before the command ran"),
    ],
)
def test_message_when_built_from_facts_then_is_one_plain_line(
    error: GuardError, message: str
) -> None:
    """Path and fact, with nothing in it that a terminal would obey."""
    assert message == error.message
    assert message == str(error)
    assert message.isprintable()


@pytest.mark.parametrize(
    "error",
    [
        GuardError("plain", hint="next"),
        StateUnusable("/s", "is full", hint="make room"),
        WorkspaceHeld("/w", pid=4711, run_id="r1"),
        Terminated(15),
    ],
)
@pytest.mark.parametrize(
    "send", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))]
)
def test_error_when_sent_to_another_process_then_is_the_same(
    error: GuardError, send: object
) -> None:
    """Class, words, facts and notes come through, though constructors take facts."""
    assert callable(send)
    error.add_note("and more")
    back = send(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


# --- Paths in messages ----------------------------------------------------------------


@pytest.mark.case("S16", "E10", "E11")
@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("plain.md", "plain.md"),
        (b"plain.md", "plain.md"),
        (Path("a") / "b", os.path.join("a", "b")),
        ("会议 纪要.md", "会议 纪要.md"),
        ("a b", "a b"),
        ("tab\there", "tab\\there"),
        ("two\nlines\r", "two\\nlines\\r"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x7f", "\\x7f"),
        ("\N{RIGHT-TO-LEFT OVERRIDE}", "\\u202e"),
        ("\N{LINE SEPARATOR}", "\\u2028"),
        ("\N{ZERO WIDTH SPACE}", "\\u200b"),
        (b"bad\xff\xfe", "bad\\xff\\xfe"),
        ("bad\udcff", "bad\\xff"),
        ("\ud800", "\\ud800"),
        ("", ""),
    ],
)
def test_show_path_when_a_name_is_odd_then_escapes_what_is_not_printable(
    path: PathLike, shown: str
) -> None:
    """A hostile name can neither hide a line nor move the cursor."""
    assert shown == show_path(path)
