"""The files room under faults: every call fails in turn, or is the last one made.

After each fault the disk is mended, recovery runs, and what must hold is checked: all
old or all new, nothing of ours left beside, and the first error told. How many calls a
body makes stands here as a number, so that a call that is dropped, a flush above all,
is noticed; whoever changes the calls on purpose changes the number.
"""

from __future__ import annotations

import errno
import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from faults import (
    ERRNOS,
    ONCE_AND_FOR_GOOD,
    Hit,
    fail_nth,
    fresh_folder,
    killed_at,
    needs_fork,
)
from groups import OWNER, staged, staged_path
from oscalls import each_call

from workspace_guard.files.journal import read_sealed, write_sealed
from workspace_guard.files.replace import remove_staged, write_file
from workspace_guard.files.tree import Folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from groups import Staged

by_errno = pytest.mark.parametrize(
    "code", ERRNOS, ids=lambda code: errno.errorcode[code]
)
once_or_for_good = pytest.mark.parametrize("persistent", ONCE_AND_FOR_GOOD)


# --- One file -------------------------------------------------------------------------

OLD, NEW = {"version": "old"}, {"version": "new"}
SEALED = b"file.json"


@dataclass(frozen=True)
class OneFile:
    """A way to write one file, and what it makes of it."""

    write: Callable[[Folder, dict[str, str]], None]
    read: Callable[[Folder], object]
    calls: int


def _write_plain(folder: Folder, content: dict[str, str]) -> None:
    write_file(folder, SEALED, content["version"].encode(), owner=OWNER)


def _read_plain(folder: Folder) -> object:
    return {"version": Path(os.fsdecode(folder.path), "file.json").read_text()}


ONE_FILE = {
    "write_file": OneFile(_write_plain, _read_plain, 6),
    "write_sealed": OneFile(
        lambda folder, document: write_sealed(folder, SEALED, document, owner=OWNER),
        lambda folder: read_sealed(folder, SEALED),
        6,
    ),
}
both_writers = pytest.mark.parametrize("one", ONE_FILE.values(), ids=ONE_FILE)


@pytest.mark.case("S53")
@both_writers
@by_errno
@once_or_for_good
def test_one_file_when_any_call_fails_then_is_old_or_new_and_the_first_error_tells(
    one: OneFile, code: int, persistent: bool
) -> None:
    """Before the rename the file is the old one; a failing flush after it is told."""
    for nth in itertools.count(1):
        with fresh_folder() as name, Folder.open(name) as folder:
            one.write(folder, OLD)
            raised, hit = _attempt(
                nth, code, lambda f=folder: one.write(f, NEW), persistent=persistent
            )
            if hit.victim is None:
                assert raised is None
                assert one.read(folder) == NEW
                break
            assert raised is hit.errors[0]
            renamed = str(hit.victim) == "fsync ?"
            assert one.read(folder) == (NEW if renamed else OLD)
            # Only what could not be removed is left, and then the error says so.
            assert ("could not be removed" in _notes(raised)) == (
                len(folder.names()) > 1
            )
            remove_staged(folder, OWNER)
            assert folder.names() == [SEALED]
    assert one.calls == nth - 1


@needs_fork
@both_writers
def test_one_file_when_killed_at_any_call_then_is_old_or_new(one: OneFile) -> None:
    """What a kill leaves beside bears our name, so that the next run can remove it."""
    states: list[object] = []
    for nth in itertools.count(1):
        with fresh_folder() as name, Folder.open(name) as folder:
            one.write(folder, OLD)
            killed = killed_at(nth, lambda f=folder: one.write(f, NEW))
            states.append(one.read(folder))
            remove_staged(folder, OWNER)
            assert folder.names() == [SEALED]
        if not killed:
            break
    assert states == [OLD] * 5 + [NEW] * 2


@pytest.mark.case("S52")
@both_writers
def test_one_file_when_every_write_is_short_then_is_whole(one: OneFile) -> None:
    """A short write is gone on with."""
    with fresh_folder() as name, Folder.open(name) as folder:
        with each_call(at_most=2):
            one.write(folder, NEW)
        assert one.read(folder) == NEW


# --- Three files ----------------------------------------------------------------------


@dataclass(frozen=True)
class Body:
    """Something that is done to three files, and what may come of it."""

    run: Callable[[Staged], object]
    prepare: Callable[[Staged], object]
    ends_as: str
    """What it comes to where nothing fails."""
    may_end_as: frozenset[str]
    """What it may come to after a fault and recovery."""
    calls: int
    forgiven: frozenset[str]
    """Calls whose failure is passed over on purpose: that of a flush of the journal's
    folder after the work is done, and that of a link where a copy will do."""


def _nothing(_group: Staged) -> None:
    """Staged is all that it has to be."""


def _cut_after_one(group: Staged) -> None:
    """Cut off with the first of three in place."""
    group.cut_after(1)


def _cut_and_torn(group: Staged) -> None:
    """Cut off with two of three in place, and the third lost."""
    group.cut_after(2)
    staged_path(group, 2).unlink()


BODIES = {
    "commit": Body(
        run=lambda group: group.commit(),
        prepare=_nothing,
        ends_as="new",
        may_end_as=frozenset({"old", "new"}),
        calls=41,
        forgiven=frozenset({"fsync JOURNAL"}),
    ),
    "rollback": Body(
        run=lambda group: group.rollback(),
        prepare=lambda group: group.commit(),
        ends_as="old",
        may_end_as=frozenset({"old"}),
        calls=53,
        forgiven=frozenset({"link 0 staged"}),
    ),
    "recover to the new": Body(
        run=lambda group: group.recover(),
        prepare=_cut_after_one,
        ends_as="new",
        may_end_as=frozenset({"new"}),
        calls=58,
        forgiven=frozenset({"fsync JOURNAL"}),
    ),
    "recover to the old": Body(
        run=lambda group: group.recover(),
        prepare=_cut_and_torn,
        ends_as="old",
        may_end_as=frozenset({"old"}),
        calls=82,
        forgiven=frozenset({"fsync JOURNAL", "link 0 staged"}),
    ),
}
every_body = pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)


def _fail_each(body: Body, code: int, *, persistent: bool) -> tuple[int, set[str]]:
    """Let each call fail and check what comes of it.

    Returns:
        How many calls there were, and those whose failure was passed over.
    """
    forgiven: set[str] = set()
    for nth in itertools.count(1):
        with fresh_folder() as root, staged(Path(root)) as group:
            body.prepare(group)
            raised, hit = _attempt(
                nth,
                code,
                lambda g=group: body.run(g),
                persistent=persistent,
                labels=group.labels,
            )
            if hit.victim is None:
                assert group.state() == body.ends_as
                assert group.litter() == []
                return nth - 1, forgiven
            if raised is None:
                forgiven.add(str(hit.victim))
                assert group.state() == body.ends_as
            else:
                assert raised in hit.errors
                if str(hit.victim) not in body.forgiven:
                    assert raised is hit.errors[0], hit.victim
            if body is BODIES["commit"] and raised is not None and not _notes(raised):
                assert group.state() == "old", hit.victim
                assert group.litter() == []
            _settle(group, body)
            assert group.state() in body.may_end_as, hit.victim
            assert group.litter() == []
    raise AssertionError  # pragma: no cover


def _settle(group: Staged, body: Body) -> None:
    """Do with a sound disk what the next command on the workspace does."""
    found = group.recover()
    assert found is None or found.outcome in {"finished", "undone"}
    if found is None and (group.state() != "new" or body.ends_as == "old"):
        group.rollback()
    assert group.recover() is None


def _attempt(
    nth: int,
    code: int,
    run: Callable[[], object],
    *,
    persistent: bool,
    labels: dict[int, str] | None = None,
) -> tuple[OSError | None, Hit]:
    with fail_nth(nth, code, persistent=persistent, descriptors=labels) as hit:
        try:
            run()
        except OSError as error:
            return error, hit
    return None, hit


def _notes(error: OSError) -> str:
    return "; ".join(getattr(error, "__notes__", ()))


@pytest.mark.slow
@pytest.mark.case("S58", "S59", "S53")
@every_body
@by_errno
@once_or_for_good
def test_three_files_when_any_call_fails_then_all_are_old_or_all_new(
    body: Body, code: int, persistent: bool
) -> None:
    """One side or the other, nothing beside, nothing kept too long, no error hidden."""
    visited, forgiven = _fail_each(body, code, persistent=persistent)
    print(f"visited {visited} calls")  # noqa: T201  # pytest shows it with a failure
    assert body.calls == visited
    assert forgiven <= body.forgiven
    if not persistent:
        assert forgiven == body.forgiven


@pytest.mark.slow
@needs_fork
@pytest.mark.case("S58", "E59")
@every_body
def test_three_files_when_killed_at_any_call_then_all_are_old_or_all_new(
    body: Body,
) -> None:
    """SIGKILL before each call: the next command finishes or undoes the work."""
    for nth in itertools.count(1):
        with fresh_folder() as root, staged(Path(root)) as group:
            body.prepare(group)
            killed = killed_at(nth, lambda g=group: body.run(g))
            if killed:
                _settle(group, body)
            assert group.state() in (body.may_end_as if killed else {body.ends_as})
            assert group.litter() == []
        if not killed:
            break
    assert body.calls == nth - 1


@pytest.mark.case("S52")
@every_body
def test_three_files_when_reads_and_writes_are_short_then_ends_as_ever(
    body: Body,
) -> None:
    """Neither a short write nor a short read is taken for the end."""
    with fresh_folder() as root, staged(Path(root)) as group:
        body.prepare(group)
        with each_call(at_most=3):
            body.run(group)
        assert group.state() == body.ends_as
        assert group.litter() == []
