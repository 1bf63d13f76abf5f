"""Reach the folders of a tree that is being put back, also those that were locked.

Room: snapshot. Knows how to give a folder's owner the rights that work in it needs, and
which folders were given some, so that their modes can be put back at the end.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING, Self

from workspace_guard.snapshot.attributes import set_folder_mode
from workspace_guard.snapshot.scan import Trail

if TYPE_CHECKING:
    from types import TracebackType

    from workspace_guard.files.tree import Folder

_RIGHTS = os.R_OK | os.W_OK | os.X_OK


class Access:
    """The way to each folder below a top, from `with` to its end."""

    def __init__(self, top: Folder) -> None:
        self._trail = Trail(top)
        self.unlocked: dict[bytes, int] = {}
        """The modes of folders that are not what they were, since we work there."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.forget()

    def forget(self) -> None:
        """Let go of every handle."""
        self._trail.forget()

    def reach(self, path: bytes) -> Folder:
        """Open a folder as it is, unlocking only what bars the way to it.

        Returns:
            A handle that is good until the next call.

        Raises:
            OSError: it is gone, no folder, or not ours to unlock.
        """
        try:
            return self._trail.reach(path)
        except PermissionError:
            self._unlock(path)
            return self._trail.reach(path)

    def reach_to_change(self, path: bytes) -> Folder:
        """Open a folder and see that names in it can be listed, made and removed.

        Where the rights cannot be had the folder is given as it is: what is to be done
        there will fail, and say so.
        """
        folder = self.reach(path)
        if folder.fd is not None and not _may_change(folder.fd):
            with contextlib.suppress(OSError):
                mode = stat.S_IMODE(folder.own_stat().st_mode)
                os.chmod(folder.fd, mode | stat.S_IRWXU)
                self.unlocked.setdefault(path, mode)
        return folder

    def at(self, path: bytes) -> tuple[Folder, bytes]:
        """The folder that holds a path, ready to be changed, and the name in it."""
        above, _, name = path.rpartition(b"/")
        return self.reach_to_change(above), name

    def lock_again(self, path: bytes) -> None:
        """Give an unlocked folder the mode that it had; nothing where it is gone.

        Raises:
            OSError: its mode could not be put back.
        """
        above, _, name = path.rpartition(b"/")
        folder = self.reach(above)
        if folder.lookup(name) is not None:
            set_folder_mode(folder, name, mode=self.unlocked[path])

    def _unlock(self, path: bytes) -> None:
        """Give the owner all rights on every folder on the way, from the top down."""
        parts = path.split(b"/") if path else []
        for count, name in enumerate(parts):
            folder = self._trail.reach(b"/".join(parts[:count]))
            before = set_folder_mode(folder, name, add=stat.S_IRWXU)
            self.unlocked.setdefault(b"/".join(parts[: count + 1]), before)


def _may_change(fd: int) -> bool:
    effective = os.access in os.supports_effective_ids
    return os.access(b".", _RIGHTS, dir_fd=fd, effective_ids=effective)
