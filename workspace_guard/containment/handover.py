"""What the supervisor is handed: its request, and the descriptors that this names.

Room: containment, on the guard's side. Knows how a process is started beside other
threads so that it gets these descriptors and no others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

if sys.platform != "win32":
    import termios

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from workspace_guard.containment.base import Stdio
    from workspace_guard.containment.launch import Launch
    from workspace_guard.containment.wire import Request

_HELD_BACK = ("SIGINT", "SIGQUIT", "SIGHUP", "SIGTERM", "SIGTSTP")


def open_private(stack: contextlib.ExitStack, path: Path, flags: int) -> int:
    """Open a file of ours for writing, owner-only, never through a link."""
    flags |= os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    stack.callback(os.close, fd)
    return fd


def open_streams(stack: contextlib.ExitStack, stdio: Stdio) -> tuple[int, int, int]:
    """The three descriptors; where one of our own is closed, the null device."""
    given = (stdio.stdin, stdio.stdout, stdio.stderr)
    stdin, stdout, stderr = (
        _own_stream(stack, number) if fd is None else fd
        for number, fd in enumerate(given)
    )
    return stdin, stdout, stderr


def _own_stream(stack: contextlib.ExitStack, number: int) -> int:
    try:
        os.fstat(number)
    except OSError:
        fd = os.open(os.devnull, os.O_RDWR)
        stack.callback(os.close, fd)
        return fd
    return number


def make_request(
    launch: Launch, streams: tuple[int, int, int], log: int, heartbeat: int | None
) -> Request:
    """Spell a launch so that it can go to the supervisor."""
    terminal = launch.stdio.terminal
    return {
        "guard": os.getpid(),
        "command": [os.fsencode(word) for word in launch.command],
        "cwd": os.fsencode(launch.cwd),
        "environment": {
            os.fsencode(name): os.fsencode(value)
            for name, value in launch.environment.items()
        },
        "streams": streams,
        "terminal": None if terminal is None else (*terminal, termios.TIOCSWINSZ),
        "own_session": launch.own_session,
        "timeout_s": launch.timeout_s,
        "log": log,
        "heartbeat": heartbeat,
        "hold": list(launch.hold_fds),
    }


def descriptors_of(request: Request, control: int) -> tuple[int, ...]:
    """All that the supervisor must inherit."""
    fds = (*request["streams"], *request["hold"], request["log"], control)
    beat = request["heartbeat"]
    return fds if beat is None else (*fds, beat)


@contextlib.contextmanager
def signals_held_back() -> Generator[None]:
    """Start a process with the terminal's signals blocked, until it is ready for them.

    A Ctrl-C in its first milliseconds would kill it. Of this thread only, and not by a
    function run after fork: that would not be safe beside other threads (case E58).
    """
    wanted = {getattr(signal, name) for name in _HELD_BACK}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
