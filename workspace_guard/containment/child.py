"""From fork to exec: what is done between the supervisor and the command's program.

Room: containment, inside the supervisor. Knows how a process must be set up before a
stranger's program runs in it; knows nothing of what becomes of it then.
"""

from __future__ import annotations

import errno
import marshal
import os
import sys

if sys.platform == "linux":
    from workspace_guard.kernel import calls

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself would cost the supervisor its start time
    import signal as _signal
    from typing import NoReturn

    from workspace_guard.containment.wire import Request
else:
    import _signal  # what `signal` wraps in enums, at a price

_FOLDER_OF_DESCRIPTORS = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
_FIRST_TO_CLOSE = 3
_NOTHING_RAN = 127


class _Refusal(Exception):
    """The program cannot be run: which fault, and why."""


def spawn(request: Request, ends: tuple[int, ...]) -> tuple[int, int]:
    """Fork the command.

    Args:
        request: what to run, where.
        ends: its standard input, output and error; or one end of a terminal.

    Returns:
        Its pid, and a descriptor that reads `b""` once the program runs, or a
        marshalled `(fault, text)` where it cannot be run (`start_fault`).
    """
    supervisor = os.getpid()
    heard, told = os.pipe()
    # Until the child has its own dispositions, a signal must wait: a handler of the
    # supervisor's would answer it in the child.
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    pid = os.fork()
    if pid == 0:
        _become(request, ends, told, supervisor)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
    os.close(told)
    return pid, heard


def start_fault(raw: bytes) -> tuple[str, str] | None:
    """Read what the descriptor of `spawn` gave: a fault and its text, or None."""
    if not raw:
        return None
    fault, text = marshal.loads(raw)  # noqa: S302 - our own child wrote it
    return str(fault), str(text)


def _become(
    request: Request, ends: tuple[int, ...], told: int, supervisor: int
) -> NoReturn:
    try:
        _take_place(request, ends)
        _close_all_but(told)
        _enter(request["cwd"])
        _take_default_signals()
        if sys.platform == "linux":
            calls.die_with_parent(_signal.SIGKILL)
        if os.getppid() == supervisor:
            _execute(request["command"], request["environment"])
    except _Refusal as refusal:
        os.write(told, marshal.dumps(refusal.args))
    except BaseException as error:  # noqa: BLE001 - a child must never return
        os.write(told, marshal.dumps(("not_executable", str(error))))
    finally:
        os._exit(_NOTHING_RAN)


def _take_place(request: Request, ends: tuple[int, ...]) -> None:
    """Get the session, and the three standard descriptors."""
    if len(ends) == 1:
        os.login_tty(ends[0])
        return
    if request["own_session"]:
        os.setsid()
    # Input first: its descriptor may be 1 or 2, the two others are pipes beyond 2.
    for number, end in enumerate(ends):
        os.dup2(end, number)


def _close_all_but(kept: int) -> None:
    """Close every descriptor beyond 2 (case E46); `kept` goes with the exec."""
    try:
        last = max(int(name) for name in os.listdir(_FOLDER_OF_DESCRIPTORS))
    except OSError:
        last = os.sysconf("SC_OPEN_MAX")
    os.closerange(_FIRST_TO_CLOSE, kept)
    os.closerange(kept + 1, last + 1)


def _enter(folder: bytes) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        text = f"its working folder cannot be entered: {error.strerror}"
        raise _Refusal("not_executable", text) from error


def _take_default_signals() -> None:
    """Undo what the supervisor ignores and handles, and let signals come."""
    _signal.set_wakeup_fd(-1)
    for signum in _signal.valid_signals():
        if signum not in (_signal.SIGKILL, _signal.SIGSTOP):
            _signal.signal(signum, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def _execute(command: list[bytes], environment: dict[bytes, bytes]) -> NoReturn:
    """Exec, searching the command's own PATH as a shell would.

    Raises:
        _Refusal: no file of that name can be run. A file that is there but cannot be
            run is told before one that is missing.
    """
    refusal = None
    for candidate in _candidates(command[0], environment):
        try:
            os.execve(candidate, command, environment)  # noqa: S606 - the product
        except OSError as error:
            refusal = refusal or _refusal_of(candidate, error)
    raise refusal or _Refusal("not_found", "no such program")


def _candidates(program: bytes, environment: dict[bytes, bytes]) -> list[bytes]:
    if not program:
        return []
    if b"/" in program:
        return [program]
    path = environment.get(b"PATH", os.fsencode(os.defpath))
    return [os.path.join(folder, program) for folder in path.split(b":")]


def _refusal_of(candidate: bytes, error: OSError) -> _Refusal | None:
    """What one failed exec says; None where there simply is no such file."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        if os.path.exists(candidate):
            return _Refusal("not_executable", "its interpreter is missing")
        return None
    if error.errno == errno.ENOEXEC:
        text = "it is no program, and no script with a #! line"
        return _Refusal("not_executable", text)
    return _Refusal("not_executable", os.strerror(error.errno or 0))
