"""Let the Nth call fail, for every N, or die in its place.

After SQLite's tests: the body is run again and again, with the first call failing, then
the second, until a run passes untouched. What must hold is checked after each.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import tempfile
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from oscalls import Call, Calls, each_call

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

ERRNOS = (errno.ENOSPC, errno.EIO, errno.EACCES)
ONCE_AND_FOR_GOOD = (False, True)
_UNHURT = 0
_BROKEN = 70

_IN_MEMORY = "/dev/shm"

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def fresh_folder() -> tempfile.TemporaryDirectory[str]:
    """An empty folder for one attempt, in memory where that can be had.

    The loops make thousands of flushes, and no test can see what a disk does in one.
    """
    in_memory = os.access(_IN_MEMORY, os.W_OK | os.X_OK)
    return tempfile.TemporaryDirectory(dir=_IN_MEMORY if in_memory else None)


@dataclass(slots=True)
class Hit:
    """What a fault has hit."""

    calls: Calls = field(default_factory=Calls)
    errors: list[OSError] = field(default_factory=list)
    """The errors that were raised, in order."""
    victim: Call | None = None
    """The first call that failed; None where the body ended before."""


@contextlib.contextmanager
def fail_nth(
    nth: int,
    code: int,
    *,
    persistent: bool = False,
    descriptors: Mapping[int, str] | None = None,
) -> Generator[Hit]:
    """Let the Nth watched call fail, and with `persistent` every one after it.

    A close that fails for good is nobody's case: after the first fault it works.
    """
    hit = Hit()

    def before(call: Call) -> None:
        if call.number < nth or (call.number > nth and not persistent):
            return
        if call.name == "close" and call.number > nth:
            return
        error = OSError(code, os.strerror(code), str(call))
        hit.errors.append(error)
        hit.victim = hit.victim or call
        raise error

    with each_call(before, descriptors=descriptors) as hit.calls:
        yield hit


def killed_at(nth: int, body: Callable[[], object]) -> bool:
    """Run a body in a child of ours that is killed before its Nth call.

    Returns:
        Whether it was killed; False where it made fewer calls and ended well.

    Raises:
        AssertionError: the body raised.
    """
    pid = os.fork()
    if pid == 0:
        _be_killed(nth, body)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == _UNHURT, "the body raised in the child"
    return False


def _be_killed(nth: int, body: Callable[[], object]) -> None:
    """Never returns: this is a copy of the test process and must not go on as one."""

    def before(call: Call) -> None:
        if call.number == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    status = _BROKEN
    try:
        with each_call(before):
            body()
        status = _UNHURT
    except BaseException:  # noqa: BLE001  # whatever it is, it is told here
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)
