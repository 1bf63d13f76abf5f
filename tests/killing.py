"""Have a process of our own killed by SIGKILL at a chosen change of the disk."""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from guarded import House

CHANGES = (
    *("rename", "replace", "link", "symlink", "unlink", "remove", "rmdir", "mkdir"),
    *("mknod", "mkfifo", "utime", "chmod", "fchmod", "chown", "fchown", "fsync"),
    *("setxattr", "removexattr", "open"),
)


def die_at(nth: int) -> None:
    """Have this process killed before its Nth call that changes the disk."""
    count = itertools.count(1)

    def deadly(name: str) -> Callable[..., Any]:
        call = getattr(os, name)

        def killing(*args: Any, **more: Any) -> Any:  # noqa: ANN401  # what `call` has
            changing = name != "open" or args[1] & os.O_CREAT
            ours = threading.current_thread() is threading.main_thread()
            if changing and ours and next(count) == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **more)

        return killing

    for name in CHANGES:
        if hasattr(os, name):
            setattr(os, name, deadly(name))


def survives(house: House, body: Callable[[], object], nth: int | None = None) -> bool:
    """Do something in a child process that is killed before its Nth change."""
    pid = os.fork()
    if pid == 0:
        try:
            tempfile.tempdir = str(house.temporary)
            if nth is not None:
                die_at(nth)
            body()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFEXITED(status)


def die_before_renaming_to(name: bytes) -> None:
    """Have this process killed before it renames something to a name."""
    for call in ("rename", "replace"):
        real = getattr(os, call)

        def killing(*args: Any, real: Any = real, **more: Any) -> Any:  # noqa: ANN401  # what `real` has
            if args[1] == name:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **more)

        setattr(os, call, killing)
