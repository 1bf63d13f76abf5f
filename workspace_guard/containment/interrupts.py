"""How Ctrl-C and SIGTERM reach a run: as something to look at, never as an exception.

Room: containment. Knows signals and what they ask for; knows nothing of processes. An
exception in the middle of putting a workspace back would leave it half done, so a
signal is noted, wakes whoever waits, and is looked at between two stages.
"""

from __future__ import annotations

import contextlib
import enum
import os
import signal
from typing import TYPE_CHECKING

from workspace_guard.errors import Interrupted, Terminated

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

_LISTENED = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """The signals that have come and were not yet looked at.

    As it is made it listens to nothing, which is what a library must do whose program
    has handlers of its own. `listening` makes one that does listen.
    """

    __slots__ = ("_arrived", "_heard", "_told")

    def __init__(self) -> None:
        self._arrived: list[int] = []
        self._heard: int | None = None
        self._told: int | None = None

    @property
    def fd(self) -> int | None:
        """A descriptor that can be read while there is something to take, or None."""
        return self._heard

    @classmethod
    @contextlib.contextmanager
    def listening(cls) -> Generator[Interrupts]:
        """Catch SIGINT and SIGTERM until the block ends; then the old handlers hold.

        Raises:
            ValueError: this is not the main thread. Nothing was changed.
        """
        interrupts = cls()
        with contextlib.ExitStack() as undo:
            interrupts._heard, interrupts._told = os.pipe()
            undo.callback(interrupts._close)
            os.set_blocking(interrupts._heard, False)
            os.set_blocking(interrupts._told, False)
            for signum in _LISTENED:
                before = signal.signal(signum, interrupts._note)
                # None: the handler is not Python's, and cannot be named from here.
                undo.callback(signal.signal, signum, before or signal.SIG_DFL)
            yield interrupts

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        self._arrived.append(signum)
        if self._told is not None:
            with contextlib.suppress(BlockingIOError):  # it is full: readable anyhow
                os.write(self._told, b"\0")

    def _close(self) -> None:
        for fd in (self._heard, self._told):
            if fd is not None:
                os.close(fd)
        self._heard = self._told = None

    def take(self) -> tuple[int, ...]:
        """Get the signals that came since, in order; they count as looked at."""
        if self._heard is not None:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._heard, 1 << 10):
                    pass
        arrived, self._arrived = self._arrived, []
        return tuple(arrived)

    def check(self) -> None:
        """Stop here if a signal has come; for the stages before the command runs.

        Raises:
            Terminated: SIGTERM came, alone or not.
            Interrupted: SIGINT came.
        """
        arrived = self.take()
        if signal.SIGTERM in arrived:
            raise Terminated(signal.SIGTERM)
        if arrived:
            raise Interrupted(arrived[0])


class Answer(enum.Enum):
    """What a signal asks of a run whose command is running."""

    FORWARD = "forward"
    END = "end"


class Patience:
    """Tells the Ctrl-C that is meant for the command from the one that is meant for us.

    The first goes to the command (interactive agents use it); another within
    `AGAIN_S`, or SIGTERM at any time, ends the run.
    """

    __slots__ = ("_last_at_s",)

    AGAIN_S = 2.0

    def __init__(self) -> None:
        self._last_at_s: float | None = None

    def answer(self, signum: int, at_s: float) -> Answer:
        """Decide about one signal.

        Args:
            signum: SIGINT (also for an interrupt key) or SIGTERM.
            at_s: when it came, of a clock that only goes forward.
        """
        if signum == signal.SIGTERM:
            return Answer.END
        last, self._last_at_s = self._last_at_s, at_s
        if last is not None and at_s - last <= self.AGAIN_S:
            return Answer.END
        return Answer.FORWARD
