"""See that the workspace itself is still where it was, and bring it back if it is not.

Room: containment. A command may rename the folder that it works in, or one above; a
handle that was opened before goes with it, a path does not.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from workspace_guard.errors import RunNotClosed, show_path

if TYPE_CHECKING:
    from pathlib import Path

    from workspace_guard.files.tree import Folder


def bring_home(top: Folder, workspace: Path) -> bytes | None:
    """Rename a workspace back that was moved away.

    Args:
        top: the workspace, opened before the command ran.
        workspace: where it was then.

    Returns:
        Where it had been moved to; None where it had not been moved.

    Raises:
        RunNotClosed: it cannot be found, or its place is taken. Nothing was touched.

    Source: proc_pid_fd(5): the link of a descriptor names the place where it is now.
    """
    if _is_at(top, workspace):
        return None
    now = _place_of(top)
    where = "elsewhere" if now is None else show_path(now)
    moved = f"workspace {show_path(workspace)} was moved to {where}"
    if now is None or os.path.lexists(workspace):
        fact = "and something else is in its place" if now else "and cannot be found"
        raise RunNotClosed(f"{moved}, {fact}", hint="put it back, then recover it")
    try:
        os.rename(now, workspace)
    except OSError as error:
        raise RunNotClosed(
            f"{moved}, and cannot be moved back: {error.strerror}",
            hint="put it back, then recover it",
        ) from error
    return now


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
