"""One holder for a workspace, by a lock that the kernel drops with the process.

Room: files. Knows `flock` and what stands in the lock file; a stale lock cannot be,
since the text in the file is only a name for messages and never the lock itself.

Source: flock(2).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Self

from workspace_guard.errors import WorkspaceHeld
from workspace_guard.files.relpath import path_fields, path_from_fields
from workspace_guard.files.tree import O_CLOEXEC, O_NOFOLLOW, write_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from workspace_guard.files.tree import Folder

_POLL_S = 0.05
_MAX_TEXT_BYTES = 16384
_DYING_S = 10.0
"""How long a supervisor may hold on after its guard was killed, to end its tree."""


class WorkspaceLock:
    """The lock of one workspace, held from `acquire` until the `with` block ends.

    A process that inherits `fd` keeps the workspace held after we are gone; that is
    how a supervisor holds it until the last of its tree has ended.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def acquire(
        cls,
        folder: Folder,
        workspace: bytes,
        *,
        run_id: str,
        wait_s: float = 0.0,
        check: Callable[[], None] = lambda: None,
    ) -> Self:
        """Take the lock in a workspace's state folder.

        Args:
            folder: the state folder of the workspace.
            workspace: its path, for the message.
            run_id: who we are, written into the file.
            wait_s: how long to wait for another holder, in seconds.
            check: called while waiting; may raise to give up.

        Raises:
            WorkspaceHeld: another process or thread has it still. Heirs of a holder
                that is dead are waited for, since a supervisor ends by itself; the
                hint says so where one does not.
            OSError: the lock file cannot be opened.
        """
        flags = os.O_RDWR | os.O_CREAT | O_NOFOLLOW | O_CLOEXEC
        fd = os.open(folder.at(b"lock"), flags, 0o600, dir_fd=folder.fd)
        try:
            began = time.monotonic()
            while not _try_lock(fd):
                check()
                waited_s = time.monotonic() - began
                if waited_s >= wait_s and (
                    waited_s >= _DYING_S or not _holder_is_dead(fd)
                ):
                    _refuse(fd, workspace)
                time.sleep(_POLL_S)
            # On a full disk the lock holds without its text.
            with contextlib.suppress(OSError):
                _write_holder(fd, run_id, workspace)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self.fd, 0)  # nobody is named who has let go
        os.close(self.fd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Whoever a lock file names."""

    pid: int
    run_id: str
    workspace: bytes
    """Absolute path."""


def living_holder(folder: Folder) -> Holder | None:
    """Whom the lock of a workspace names, if that process is alive.

    The lock itself is not tried: whoever wants it must not find it taken by us.

    Args:
        folder: the state folder of the workspace.
    """
    flags = os.O_RDONLY | O_NOFOLLOW | O_CLOEXEC
    try:
        fd = os.open(folder.at(b"lock"), flags, dir_fd=folder.fd)
    except OSError:
        return None
    try:
        document = json.loads(os.read(fd, _MAX_TEXT_BYTES))
        holder = Holder(
            pid=int(document["pid"]),
            run_id=str(document["run_id"]),
            workspace=path_from_fields(document, "workspace"),
        )
        return None if _holder_is_dead(fd) else holder
    except (OSError, ValueError, KeyError, TypeError):
        return None
    finally:
        os.close(fd)


def _refuse(fd: int, workspace: bytes) -> NoReturn:
    pid, holder = _read_holder(fd)
    hint = None
    if _holder_is_dead(fd):
        hint = f"process {pid} has ended; one that it started still holds on: end that"
    raise WorkspaceHeld(workspace, pid=pid, run_id=holder, hint=hint)


def _holder_is_dead(fd: int) -> bool:
    """Whether the holder named in the file has gone, and only its heirs hold on."""
    pid, _run_id = _read_holder(fd)
    if pid is None or sys.platform == "win32":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _write_holder(fd: int, run_id: str, workspace: bytes) -> None:
    fields = path_fields(workspace, "workspace")
    text = json.dumps({"pid": os.getpid(), "run_id": run_id, **fields}).encode() + b"\n"
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)
    write_all(fd, text)


def _read_holder(fd: int) -> tuple[int | None, str | None]:
    os.lseek(fd, 0, os.SEEK_SET)
    try:
        document = json.loads(os.read(fd, _MAX_TEXT_BYTES))
        return int(document["pid"]), str(document["run_id"])
    except (ValueError, KeyError, TypeError):
        return None, None  # the holder is between taking the lock and writing its name


if sys.platform == "win32":
    import msvcrt

    def _try_lock(fd: int) -> bool:
        # The byte that is locked lies past the text, so that others may read it.
        os.lseek(fd, _MAX_TEXT_BYTES, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
