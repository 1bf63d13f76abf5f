"""The hostile programs without any guard: each really does what its name says."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import hostile
import psutil
import pytest
from capabilities import require
from listing import TreeState, changes, tree_state
from suite import NEEDS, STEP, fold
from test_detect import EXPECTED

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 10.0


def _wait_for_change(
    workspace: Path, before: TreeState, *, expected: bool
) -> set[bytes]:
    """What differs, apart from folders of which only the time has moved."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        now = tree_state(workspace, without=(STEP,))
        found = {
            fold(path)
            for path, (old, new) in changes(before, now).items()
            if not _only_the_time_of_a_folder(old, new)
        }
        if found or not expected or time.monotonic() > deadline:
            return found
        threading.Event().wait(0.01)


def _only_the_time_of_a_folder(old: object, new: object) -> bool:
    return (
        getattr(old, "kind", "") == getattr(new, "kind", "") == "folder"
        and old.mode == new.mode  # type: ignore[attr-defined]  # both are Looks
        and old.owner == new.owner  # type: ignore[attr-defined]
    )


def _end_who_is_in(folder: Path) -> None:
    """End the processes that a program has left behind in its step."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd() == str(folder):
                process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in hostile.PROGRAMS if "git" not in n])
def test_program_when_nobody_guards_then_changes_what_the_table_says(
    workspace: Path, place: Path, name: str
) -> None:
    """A program that changes nothing would pass every containment test."""
    for facility in NEEDS.get(name, ()):
        require(facility)
    step = workspace / os.fsdecode(STEP)
    (step / "inputs").mkdir(parents=True)
    (place / "outside").mkdir()
    (place / "outside" / "precious.md").write_bytes(b"precious\n")
    before = tree_state(workspace, without=(STEP,))

    with subprocess.Popen(
        [sys.executable, hostile.__file__, name], cwd=step
    ) as process:
        status = process.wait(timeout=DEADLINE_S)
        expected = set(EXPECTED[name].escapes)
        found = _wait_for_change(workspace, before, expected=bool(expected))
        _end_who_is_in(step)

    status_of_its_own = 3 if name == "fails_after_writing" else 0
    assert (status, found) == (status_of_its_own, expected)
