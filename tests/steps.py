"""What the tests of single stations share: a small workspace, and staged steps."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

from accounts import ORDINARY_UID, is_root

from workspace_guard.files.layout import StateLayout, WorkspaceState
from workspace_guard.step.contract import Contract
from workspace_guard.step.stage import StagedStep, stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

DEADLINE_S = 20.0
OLD_NS = 1_700_000_000_123_456_789
"""A time that nothing which is made now can have by chance."""


def make_workspace(top: Path, files: dict[str | bytes, bytes]) -> Path:
    """Make a folder with these files, all of it old."""
    top.mkdir()
    for path, content in files.items():
        put(top, path, content)
    make_old(top)
    return top


def put(top: Path, path: str | bytes, content: bytes) -> Path:
    """Write a file, with the folders that it needs."""
    where = top / os.fsdecode(path)
    where.parent.mkdir(parents=True, exist_ok=True)
    where.write_bytes(content)
    return where


def make_old(top: Path) -> None:
    """Give everything in a tree an old time, links themselves included."""
    for folder, folders, files in os.walk(os.fsencode(top), topdown=False):
        for name in (*files, *folders):
            path = os.path.join(folder, name)
            os.utime(path, ns=(OLD_NS, OLD_NS), follow_symlinks=False)
    os.utime(top, ns=(OLD_NS, OLD_NS))


def give_to_ordinary(top: Path) -> None:
    """Let a tree belong to the ordinary user of `euid.ordinary_user`."""
    if not is_root():
        return
    for folder, folders, files in os.walk(os.fsencode(top)):
        for name in (".", *files, *folders):
            path = os.path.join(folder, os.fsencode(name))
            os.chown(path, ORDINARY_UID, ORDINARY_UID, follow_symlinks=False)


@contextlib.contextmanager
def written_while_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let another thread write to a file whenever something is read in this one.

    Each read waits for it, so that it never happens in between by chance only.
    """
    asked, done, over = threading.Semaphore(0), threading.Semaphore(0), [False]
    real = os.read

    def write() -> None:
        with path.open("ab", buffering=0) as file:
            while asked.acquire() and not over[0]:
                file.write(b"x")
                done.release()

    def read(fd: int, size: int) -> bytes:
        asked.release()
        assert done.acquire(timeout=DEADLINE_S), "the writer has not written"
        return real(fd, size)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "read", read)
            yield
    finally:
        over[0] = True
        asked.release()
        writer.join()


def staged_with(workspace: Path, **options: object) -> tuple[StagedStep, Contract]:
    """Build a step of these options, and give its contract too."""
    contract = Contract.of(**options)
    return stage(workspace, contract), contract


def state_of(workspace: Path, root: Path) -> WorkspaceState:
    """The state of a workspace, made in a folder beside it."""
    state = StateLayout(root).of(workspace)
    state.make()
    return state
