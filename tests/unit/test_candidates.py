"""What a command has left, looked at on a real file system, believing nobody."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from capabilities import require
from euid import ordinary_user
from steps import (
    give_to_ordinary,
    make_workspace,
    put,
    staged_with,
    written_while_read,
)

from workspace_guard.step.candidates import look

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from workspace_guard.step.contract import Contract
    from workspace_guard.step.stage import StagedStep

FILES: dict[str | bytes, bytes] = {
    "output.md": b"old\n",
    "secret": b"secret\n",
    "docs/a.md": b"a\n",
}
Row = tuple[str, str, str | None]


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """A small workspace."""
    return make_workspace(tmp_path / "workspace", FILES)


def seen(
    parent: Path, make: Callable[[Path], object] | None = None, **options: object
) -> list[Row]:
    """Build a step, let something be left in it, and say what is seen.

    Returns:
        Path, state and reason of each target.
    """
    staged, contract = staged_with(parent, **options)
    if make is not None:
        make(staged.path)
    return rows(staged, contract)


def rows(staged: StagedStep, contract: Contract) -> list[Row]:
    """Path, state and reason of each target of a step."""
    return [
        (os.fsdecode(bytes(state.path)), state.state, state.reason)
        for state in look(staged, contract)
    ]


def write(path: str | bytes, content: bytes = b"new\n") -> Callable[[Path], object]:
    """Leave a file."""
    return lambda step: put(step, path, content)


def each(*makes: Callable[[Path], object]) -> Callable[[Path], object]:
    """Do several things."""
    return lambda step: [make(step) for make in makes]


def link(path: str, text: str) -> Callable[[Path], object]:
    """Leave a symbolic link; `{parent}` in its text is the workspace."""

    def make(step: Path) -> None:
        where = step / path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.symlink_to(text.format(parent=step.parents[1]))

    return make


def folder(path: str) -> Callable[[Path], object]:
    """Leave an empty folder."""
    return lambda step: (step / path).mkdir(parents=True)


# --- One file -------------------------------------------------------------------------


def test_target_when_it_is_a_good_file_then_its_facts_are_those_on_disk(
    parent: Path,
) -> None:
    """Digest, size and the executable bit are what promotion rests on."""
    staged, contract = staged_with(parent, target="run.sh=bin/run.sh")
    put(staged.path, "run.sh", b"#!/bin/sh\n").chmod(0o755)

    (state,) = look(staged, contract)

    assert (state.state, state.reason, state.executable) == ("valid", None, True)
    assert bytes(state.destination) == b"bin/run.sh"
    assert state.size_bytes == 10
    assert state.sha256 == hashlib.sha256(b"#!/bin/sh\n").hexdigest()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [(0o644, False), (0o744, True), (0o655, False), (0o400, False)],
)
def test_target_when_its_owner_can_execute_it_then_it_is_executable(
    parent: Path, mode: int, *, expected: bool
) -> None:
    """The owner's bit is the one that counts."""
    staged, contract = staged_with(parent)
    put(staged.path, "output.md", b"x").chmod(mode)

    assert expected == look(staged, contract)[0].executable


def _fifo(step: Path) -> None:
    require("fifo")
    os.mkfifo(step / "output.md")


def _socket(step: Path) -> None:
    with contextlib.chdir(step), socket.socket(socket.AF_UNIX) as made:
        made.bind("output.md")


def _hard_link(step: Path) -> None:
    require("hard-links")
    os.link(step.parents[1] / "secret", step / "output.md")


def _two_names(step: Path) -> None:
    require("hard-links")
    os.link(put(step, "draft.md", b"new\n"), step / "output.md")


def _input_linked(step: Path) -> None:
    require("hard-links")
    os.link(step / "inputs" / "output.snapshot.md", step / "output.md")


@pytest.mark.parametrize(
    ("make", "state", "reason"),
    [
        (None, "missing", "is not there"),
        (write("other.md"), "missing", "is not there"),
        (folder("output.md"), "invalid", "is a folder"),
        (write("output.md/a"), "invalid", "is a folder"),
        pytest.param(
            link("output.md", "nowhere"),
            "invalid",
            "is a link",
            marks=pytest.mark.case("E61"),
        ),
        pytest.param(
            link("output.md", "inputs/output.snapshot.md"), "invalid", "is a link"
        ),
        pytest.param(
            link("output.md", "../../secret"),
            "invalid",
            "is a link",
            marks=pytest.mark.case("E4"),
        ),
        pytest.param(link("output.md", "{parent}/output.md"), "invalid", "is a link"),
        pytest.param(link("output.md", "/dev/null"), "invalid", "is a link"),
        (link("output.md", "output.md"), "invalid", "is a link"),
        pytest.param(
            _fifo, "invalid", "is no regular file", marks=pytest.mark.case("E16", "E17")
        ),
        pytest.param(
            _socket, "invalid", "is no regular file", marks=pytest.mark.case("E17")
        ),
        (_hard_link, "invalid", "has 2 hard links; a target must have one"),
        (_two_names, "invalid", "has 2 hard links; a target must have one"),
        (_input_linked, "invalid", "has 2 hard links; a target must have one"),
        (write("output.md", b""), "empty", "is empty"),
        (write("output.md"), "valid", None),
        (write("output.md", b"\0"), "valid", None),
    ],
)
def test_target_when_the_command_left_this_then_it_is_that(
    parent: Path,
    make: Callable[[Path], object] | None,
    state: str,
    reason: str | None,
) -> None:
    """Existence is by lstat, and only a regular file with one name will do.

    The document in the workspace never counts as the target.
    """
    assert seen(parent, make) == [("output.md", state, reason)]


@pytest.mark.parametrize(
    ("make", "state", "reason"),
    [
        (write("a/b.md"), "valid", None),
        (folder("a"), "missing", "is not there"),
        (None, "missing", "is not there"),
        pytest.param(
            each(write("real/b.md"), link("a", "real")),
            "invalid",
            "a part of its path is a link or no folder",
            marks=pytest.mark.case("E4"),
        ),
        pytest.param(
            link("a", "{parent}/docs"),
            "invalid",
            "a part of its path is a link or no folder",
            marks=pytest.mark.case("E4"),
        ),
        (link("a", "nowhere"), "invalid", "a part of its path is a link or no folder"),
        (write("a"), "invalid", "a part of its path is a link or no folder"),
    ],
)
def test_target_when_it_lies_in_a_folder_then_each_part_of_its_path_is_looked_at(
    parent: Path,
    make: Callable[[Path], object] | None,
    state: str,
    reason: str | None,
) -> None:
    """A target is reached through no symlink."""
    put(parent, "docs/b.md", b"outside\n")

    assert seen(parent, make, target="a/b.md") == [("a/b.md", state, reason)]


@pytest.mark.case("E10", "E11")
@pytest.mark.parametrize(
    "name",
    [b"two\nlines.md", "会议 (1) [2].md".encode(), b"-rf", b"bad\xff.md", b"a\x1b"],
)
def test_target_when_its_name_is_unusual_then_is_looked_at_like_any_other(
    parent: Path, name: bytes
) -> None:
    """Names are bytes."""
    if b"\xff" in name:
        require("undecodable-names")
    text = os.fsdecode(name)

    assert seen(parent, write(name), target=text) == [(text, "valid", None)]


def test_target_when_empty_and_that_is_allowed_then_is_valid(parent: Path) -> None:
    """`--allow-empty`."""
    found = seen(parent, write("output.md", b""), allow_empty=True)

    assert found == [("output.md", "valid", None)]


@pytest.mark.parametrize(
    ("content", "options", "state"),
    [
        (b"old\n", {"require_change": True}, "unchanged"),
        (b"old\n", {}, "valid"),
        (b"new\n", {"require_change": True}, "valid"),
        (b"", {"require_change": True}, "empty"),
        (b"old\n", {"require_change": True, "target": "a.md=output.md"}, "unchanged"),
        (b"old\n", {"require_change": True, "target": "a.md"}, "valid"),
        (
            b"old\n",
            {"require_change": True, "no_default_inputs": True},
            "valid",
        ),
    ],
)
def test_target_when_it_equals_its_input_then_counts_as_unchanged_only_if_asked(
    parent: Path, content: bytes, options: dict[str, object], state: str
) -> None:
    """A target is compared with the input that it came from, byte for byte."""
    name = str(options.get("target", "output.md")).partition("=")[0]

    ((path, found, reason),) = seen(parent, write(name, content), **options)

    assert (name, state) == (path, found)
    assert (reason == "is byte for byte the input inputs/output.snapshot.md") == (
        state == "unchanged"
    )


def test_target_when_its_input_was_empty_and_may_be_then_is_unchanged_too(
    tmp_path: Path,
) -> None:
    """An allowed empty file is compared like any other."""
    top = make_workspace(tmp_path / "workspace", {"output.md": b""})

    found = seen(top, write("output.md", b""), allow_empty=True, require_change=True)

    assert [state for _, state, _ in found] == ["unchanged"]


def test_target_when_it_may_not_be_read_then_is_invalid(place: Path) -> None:
    """What cannot be read cannot be promoted."""
    require("ordinary-user")
    top = make_workspace(place / "workspace", FILES)
    staged, contract = staged_with(top)
    put(staged.path, "output.md", b"x")
    give_to_ordinary(place)
    (staged.path / "output.md").chmod(0)

    with ordinary_user():
        found = rows(staged, contract)

    assert found == [("output.md", "invalid", "cannot be read: Permission denied")]


def test_folder_of_a_target_when_it_may_not_be_entered_then_is_invalid(
    place: Path,
) -> None:
    """A closed folder hides nothing: the target in it is no target."""
    require("ordinary-user")
    top = make_workspace(place / "workspace", FILES)
    staged, contract = staged_with(top, target=["a/b.md", "c/"])
    put(staged.path, "a/b.md", b"x")
    put(staged.path, "c/d", b"x")
    put(staged.path, "c/e/f", b"x")
    give_to_ordinary(place)
    (staged.path / "a").chmod(0)
    (staged.path / "c" / "e").chmod(0)

    with ordinary_user():
        found = rows(staged, contract)

    assert ("a/b.md", "invalid", "Permission denied") in found
    assert ("c", "invalid", "Permission denied") in found


def test_target_when_it_is_still_being_written_then_is_invalid(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that would not hold still has no content that could be judged."""
    staged, contract = staged_with(parent)
    growing = put(staged.path, "output.md", b"first line\n")

    with written_while_read(growing, monkeypatch):
        found = rows(staged, contract)

    assert found == [("output.md", "invalid", "is still being written")]


# --- The step's own folder ------------------------------------------------------------


def test_step_when_it_was_removed_then_every_target_is_missing(parent: Path) -> None:
    """A command that removes its own folder has left nothing."""
    staged, contract = staged_with(parent, target=["a.md", "figures/", "glob:*.csv"])
    shutil.move(staged.path, parent.parent / "away")

    reason = "the step's folder is gone: No such file or directory"
    assert rows(staged, contract) == [
        ("a.md", "missing", reason),
        ("figures", "missing", reason),
        ("*.csv", "missing", reason),
    ]


@pytest.mark.case("E4")
def test_step_when_it_was_replaced_by_a_link_then_nothing_behind_that_counts(
    parent: Path, tmp_path: Path
) -> None:
    """A file elsewhere is no target, though a path leads there."""
    staged, contract = staged_with(parent)
    elsewhere = put(tmp_path, "elsewhere/output.md", b"new\n").parent
    shutil.move(staged.path, parent.parent / "away")
    staged.path.symlink_to(elsewhere)

    ((path, state, reason),) = rows(staged, contract)

    assert (path, state) == ("output.md", "missing")
    assert str(reason).startswith("the step's folder is gone")


def test_step_when_it_has_no_target_then_there_is_nothing_to_say(parent: Path) -> None:
    """`--no-target` looks at nothing."""
    assert seen(parent, write("a.md"), no_target=True) == []


# --- Folders --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (None, [("figures", "missing", "is not there")]),
        (folder("figures"), [("figures", "missing", "holds no file")]),
        (folder("figures/a/b"), [("figures", "missing", "holds no file")]),
        (
            write("figures"),
            [("figures", "invalid", "a part of its path is a link or no folder")],
        ),
        (
            each(write("real/a"), link("figures", "real")),
            [("figures", "invalid", "a part of its path is a link or no folder")],
        ),
        (write("figures/a"), [("figures/a", "valid", None)]),
        (write("figures/.a"), [("figures/.a", "valid", None)]),
        (
            each(write("figures/a"), write("figures/b/c"), folder("figures/d")),
            [("figures/a", "valid", None), ("figures/b/c", "valid", None)],
        ),
        (
            each(write("figures/a"), link("figures/b", "a")),
            [("figures/a", "valid", None), ("figures/b", "invalid", "is a link")],
        ),
        (
            each(write("figures/a"), link("figures/b", "../../../docs")),
            [("figures/a", "valid", None), ("figures/b", "invalid", "is a link")],
        ),
        (
            link("figures/b", "nowhere"),
            [("figures/b", "invalid", "is a link")],
        ),
        (
            each(write("figures/a"), write("figures/b", b"")),
            [("figures/a", "valid", None), ("figures/b", "empty", "is empty")],
        ),
    ],
)
def test_folder_when_the_command_left_this_then_its_files_are_those(
    parent: Path, make: Callable[[Path], object] | None, expected: list[Row]
) -> None:
    """A folder target holds at least one file, and regular files only."""
    assert expected == sorted(seen(parent, make, target="figures/"))


def test_folder_when_it_has_a_special_file_then_that_is_invalid(parent: Path) -> None:
    """A FIFO among the files is neither read nor passed over."""
    require("fifo")

    def make(step: Path) -> None:
        put(step, "figures/a", b"x")
        os.mkfifo(step / "figures" / "pipe")

    assert sorted(seen(parent, make, target="figures/")) == [
        ("figures/a", "valid", None),
        ("figures/pipe", "invalid", "is no regular file"),
    ]


# --- Patterns -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "pattern", "expected"),
    [
        (None, "*.csv", [("*.csv", "missing", "matches no file")]),
        (None, "out/*.csv", [("out/*.csv", "missing", "is not there")]),
        (folder("out"), "out/*.csv", [("out/*.csv", "missing", "matches no file")]),
        (
            folder("out/a.csv"),
            "out/*.csv",
            [("out/*.csv", "missing", "matches no file")],
        ),
        (
            write("out"),
            "out/*.csv",
            [("out/*.csv", "invalid", "a part of its path is a link or no folder")],
        ),
        (write("out/a.csv"), "out/*.csv", [("out/a.csv", "valid", None)]),
        (
            each(write("out/a.csv"), write("out/b.txt"), write("out/x/c.csv")),
            "out/*.csv",
            [("out/a.csv", "valid", None)],
        ),
        (
            each(write("out/a.csv"), write("out/x/c.csv"), write("out/.git/d.csv")),
            "out/**/*.csv",
            [("out/a.csv", "valid", None), ("out/x/c.csv", "valid", None)],
        ),
        (
            each(write("a.csv"), link("b.csv", "a.csv")),
            "*.csv",
            [("a.csv", "valid", None), ("b.csv", "invalid", "is a link")],
        ),
        (
            each(write("real/a.csv"), link("out", "real")),
            "out/*.csv",
            [("out/*.csv", "invalid", "a part of its path is a link or no folder")],
        ),
        (
            each(write("real/a.csv"), link("x", "real")),
            "*/*.csv",
            [("real/a.csv", "valid", None)],
        ),
        (None, "*.md", [("*.md", "missing", "matches no file")]),
        (write("a.md"), "*.md", [("a.md", "valid", None)]),
        (write("a.md"), "**", [("a.md", "valid", None)]),
        (write("版.md"), "?.md", [("版.md", "valid", None)]),
    ],
)
def test_pattern_when_the_command_left_this_then_its_files_are_those(
    parent: Path,
    make: Callable[[Path], object] | None,
    pattern: str,
    expected: list[Row],
) -> None:
    """A pattern matches at least one file; TASK.md and inputs are never among them."""
    assert expected == sorted(seen(parent, make, target=f"glob:{pattern}"))


# --- Two files for one place ----------------------------------------------------------


def test_files_when_two_have_one_destination_then_both_are_invalid(
    parent: Path,
) -> None:
    """Which of the two was meant nobody can know."""
    make = each(write("a/x.md"), write("b/x.md"), write("b/y.md"))

    found = seen(parent, make, target=["glob:a/*.md=docs", "glob:b/*.md=docs"])

    assert sorted(found) == [
        ("a/x.md", "invalid", "goes to the same destination as b/x.md"),
        ("b/x.md", "invalid", "goes to the same destination as a/x.md"),
        ("b/y.md", "valid", None),
    ]


def test_file_when_two_patterns_match_it_then_is_named_once(parent: Path) -> None:
    """One file that goes to one place is one target, however often it is asked for."""
    found = seen(parent, write("out/a.md"), target=["glob:out/*.md", "glob:out/a*"])

    assert found == [("out/a.md", "valid", None)]


def test_file_when_it_goes_to_two_places_then_is_a_target_of_both(
    parent: Path,
) -> None:
    """One file may have several destinations."""
    staged, contract = staged_with(parent, target=["a.md", "a.md=docs/b.md"])
    put(staged.path, "a.md", b"x")

    found = [(bytes(s.destination), s.state) for s in look(staged, contract)]

    assert found == [(b"a.md", "valid"), (b"docs/b.md", "valid")]


def test_target_when_missing_then_is_in_no_other_way(parent: Path) -> None:
    """What is not there cannot be in another's way."""
    found = seen(parent, write("b/x.md"), target=["glob:b/*.md=docs", "y=docs/y"])

    assert found == [("b/x.md", "valid", None), ("y", "missing", "is not there")]


def test_states_when_given_then_are_in_the_order_of_the_contract(parent: Path) -> None:
    """A record lists targets as they were asked for."""
    staged, contract = staged_with(parent, target=["c", "a", "b"])

    assert [row[0] for row in rows(staged, contract)] == ["c", "a", "b"]
    other = replace(contract, targets=tuple(reversed(contract.targets)))
    staged = replace(staged, targets=other.targets)
    assert [row[0] for row in rows(staged, other)] == ["b", "a", "c"]
