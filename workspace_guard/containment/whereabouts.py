"""See that the workspace itself is where it was and can be entered, and what of it can.

Room: containment. A command may rename the folder that it works in, or one above; a
handle that was opened before goes with it, a path does not.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from workspace_guard.errors import RunNotClosed, show_path
from workspace_guard.files.mounts import Mounts, mounts_below
from workspace_guard.files.tree import Folder

if TYPE_CHECKING:
    from pathlib import Path

    from workspace_guard.snapshot.manifest import Manifest

_BY_HAND = "move it back by hand, then `wsguard recover` puts back what is in it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """What a command had done to the workspace as a whole; undone."""

    kind: Literal["renamed", "deleted", "metadata"]
    message: str


def bring_home(top: Folder, workspace: Path) -> Stray | None:
    """See that the workspace stands in its place and its owner can enter it.

    Args:
        top: the workspace, opened before the command ran.
        workspace: where it was then.

    Returns:
        What had to be undone for that, or None. A workspace that had been removed is
        an empty folder now, for the snapshot to fill.

    Raises:
        RunNotClosed: its place is taken, or it cannot be moved back. Nothing was
            touched.

    Source: proc_pid_fd(5): the link of a descriptor names the place where it is now.
    """
    locked = _unlock(top)
    if _is_at(top, workspace):
        return locked
    if not os.path.lexists(workspace) and top.own_stat().st_nlink == 0:
        return _make_again(workspace)
    now = _place_of(top)
    where = "elsewhere" if now is None else show_path(now)
    moved = f"workspace {show_path(workspace)} was moved to {where}"
    if now is None or os.path.lexists(workspace):
        fact = "and something else is in its place" if now else "and cannot be found"
        raise RunNotClosed(f"{moved}, {fact}", hint=_BY_HAND)
    try:
        os.rename(now, workspace)
    except OSError as error:
        fact = f"{moved}, and cannot be moved back: {error.strerror}"
        raise RunNotClosed(fact, hint=_BY_HAND) from error
    text = f"the workspace itself had been moved to {show_path(now)}"
    return Stray(kind="renamed", message=text)


def _make_again(workspace: Path) -> Stray:
    try:
        workspace.mkdir(mode=0o700)
    except OSError as error:
        raise RunNotClosed(
            f"workspace {show_path(workspace)} was removed: {error.strerror}",
            hint="make the folder, then `wsguard recover` fills it again",
        ) from error
    return Stray(kind="deleted", message="the workspace itself had been removed")


def _unlock(top: Folder) -> Stray | None:
    """Give the owner of the workspace the rights that the command took away."""
    mode = top.own_stat().st_mode
    if top.fd is None or mode & stat.S_IRWXU == stat.S_IRWXU:
        return None
    try:
        os.fchmod(top.fd, stat.S_IMODE(mode) | stat.S_IRWXU)
    except OSError:
        return None  # not ours; whoever compares says what cannot be seen
    text = f"the workspace itself had mode {stat.S_IMODE(mode):04o}"
    return Stray(kind="metadata", message=text)


def open_locked(workspace: Path) -> Folder:
    """Open a workspace that a command may have closed even to its owner.

    Raises:
        OSError: it cannot be entered, and we may not change that.
    """
    try:
        folder = Folder.open(workspace)
    except PermissionError:
        found = os.lstat(workspace)
        if stat.S_ISLNK(found.st_mode):
            raise
        os.chmod(workspace, stat.S_IMODE(found.st_mode) | stat.S_IRWXU)
        folder = Folder.open(workspace)
    _unlock(folder)
    return folder


def strange_mounts(workspace: Path, before: Mounts | None, known: Manifest) -> Skips:
    """What is mounted below the workspace and was not when the snapshot was taken.

    Args:
        workspace: absolute and resolved.
        before: the mounts of that time; None where nobody knows, after a crash.
        known: the snapshot's manifest; its gaps name other file systems.

    Returns:
        The mounts, and what has to be left alone because of them: the mount itself,
        or the topmost new folder that holds it. All relative to the workspace.
    """
    root = os.fsencode(workspace)
    if before is None:
        named = {gap.path for gap in known.gaps if gap.kind == "mount"}
    else:
        named = {point.removeprefix(root + b"/") for _, point in before}
    points = {point.removeprefix(root + b"/") for _, point in mounts_below(root)}
    inside = tuple(skipped + b"/" for skipped in known.skip)
    strange = {p for p in points - named if not p.startswith(inside)}
    return Skips(
        mounts=tuple(sorted(strange)),
        paths=frozenset(_topmost_new(path, known) for path in strange),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Skips:
    """Mounts that were not there before, and what is not entered because of them."""

    mounts: tuple[bytes, ...]
    paths: frozenset[bytes]


def _topmost_new(path: bytes, known: Manifest) -> bytes:
    parts = path.split(b"/")
    for depth in range(1, len(parts)):
        above = b"/".join(parts[:depth])
        if known.entry(above) is None:
            return above
    return path


def _is_at(top: Folder, workspace: Path) -> bool:
    try:
        return os.path.samestat(top.own_stat(), os.lstat(workspace))
    except OSError:
        return False


def _place_of(top: Folder) -> bytes | None:
    if top.fd is None:
        return None
    try:
        place = os.readlink(b"/proc/self/fd/%d" % top.fd)
        is_there = os.path.samestat(os.lstat(place), top.own_stat())
    except OSError:
        return None  # this platform does not tell, or the folder is deleted
    return place if is_there else None
