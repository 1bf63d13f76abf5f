"""What a person sees while a command runs: its own output, and a live line under it.

Room: cli. Knows the terminal. The command's output passes through unchanged; the live
line is drawn only where it can do no harm: at the start of a line, and never again once
a program has taken the whole screen for itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from workspace_guard.containment.base import Progress, Stdio
from workspace_guard.files.tree import write_all

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

_CHUNK_BYTES = 1 << 16
_REDRAW_S = 0.2
_ERASE = b"\r\x1b[2K"
# Any control sequence but a colour, or a string to the terminal: a full-screen program.
_TAKES_SCREEN = re.compile(rb"\x1b(?:\[[0-9;?]*[@-ln-~]|[\]P_^])")
_STAGES = {
    "staging": "building the step",
    "snapshot": "taking a snapshot",
    "running": "running",
    "ending": "ending what is left of its tree",
    "comparing": "comparing the workspace with its snapshot",
    "restoring": "putting the workspace back",
    "judging": "looking at the targets",
    "promoting": "promoting",
}


class Screen:
    """Where the command's streams go, and the live line beside them."""

    def __init__(
        self, stdio: Stdio, line: _LiveLine | None, keys: _Keys | None = None
    ) -> None:
        self.stdio = stdio
        self._line = line
        self._keys = keys

    @classmethod
    @contextlib.contextmanager
    def open(cls, *, as_json: bool, quiet: bool) -> Generator[Self]:
        """Arrange the streams of a command.

        Args:
            as_json: standard output belongs to the JSON document.
            quiet: no live line.

        Yields:
            The screen. On a terminal the command gets one of its own; else its
            streams are ours.
        """
        with contextlib.ExitStack() as stack:
            if os.isatty(0) and os.isatty(1) and not as_json:
                yield cls(*_own_terminal(stack, live=not quiet))
                return
            out = 2 if as_json else 1
            if quiet or not os.isatty(2):
                yield cls(Stdio(stdout=out, stderr=2), None)
                return
            # What goes to the terminal passes by the live line.
            line = stack.enter_context(_LiveLine(2))
            relay = stack.enter_context(_Relay(line, 2))
            first = relay.fd if out == 2 or os.isatty(1) else 1  # noqa: PLR2004  # stderr
            yield cls(Stdio(stdout=first, stderr=relay.fd), line)

    def show(self, progress: Progress) -> None:
        """Tell the live line what is going on, and the keys whose they are."""
        if self._keys is not None:
            self._keys.hand_over(yes=progress.stage == "running")
        if self._line is not None:
            self._line.update(progress)


def _own_terminal(
    stack: contextlib.ExitStack, *, live: bool
) -> tuple[Stdio, _LiveLine | None, _Keys]:
    columns, rows = os.get_terminal_size(1)
    line = stack.enter_context(_LiveLine(1)) if live else None
    relay = stack.enter_context(_Relay(line, 1))
    keys = stack.enter_context(_Keys(0))
    stdio = Stdio(
        stdin=0, stdout=relay.fd, stderr=relay.fd, terminal=(rows, columns), size_of=1
    )
    return stdio, line, keys


class _Keys:
    """The keys of a terminal: the command's while it runs, and else the guard's.

    Handed over, each goes through as it is, and the command's own terminal gives it its
    meaning. Before and after, Ctrl-C is a signal to us: a large workspace takes time.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.hand_over(yes=False)

    def hand_over(self, *, yes: bool) -> None:
        """Give the keys to the command, or take them back."""
        if yes == (self._before is not None) or sys.platform == "win32":
            return
        import termios  # noqa: PLC0415  # not on Windows
        import tty  # noqa: PLC0415

        with contextlib.suppress(termios.error):  # the terminal is gone
            if self._before is None:
                before = termios.tcgetattr(self._fd)
                tty.setraw(self._fd, termios.TCSADRAIN)
                self._before = before
            else:
                before, self._before = self._before, None
                termios.tcsetattr(self._fd, termios.TCSADRAIN, before)


class _LiveLine:
    """One line below the output: elapsed time, files captured, escapes seen."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._began_s = time.monotonic()
        self._at_line_start = True
        self._drawn = False
        self._off = False
        self._text = b""
        self._stage = ""
        self._next_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._erase()
            self._off = True

    def update(self, progress: Progress) -> None:
        """Show another state of things."""
        parts = [f"{time.monotonic() - self._began_s:.0f} s", _STAGES[progress.stage]]
        if progress.files:
            parts.append(f"{progress.files:,} files")
        if progress.escapes:
            changes = "change" if progress.escapes == 1 else "changes"
            parts.append(f"{progress.escapes:,} {changes} outside the step")
        if progress.interrupted:
            parts.append("Ctrl-C went to the command; press it twice to end the run")
        elif progress.stage == "running":
            parts.append("edits made in the workspace now may be undone")
        text = f"wsguard: {', '.join(parts)}"
        now_s = time.monotonic()
        with self._lock, contextlib.suppress(OSError):
            if progress.stage == self._stage and now_s < self._next_s:
                return
            self._stage, self._next_s = progress.stage, now_s + _REDRAW_S
            width = os.get_terminal_size(self._fd).columns
            shown = text[: max(width - 1, 0)].encode()
            if shown != self._text:
                self._text = shown
                self._erase()
                self._draw()

    def write(self, chunk: bytes) -> None:
        """Pass output through, with the live line out of its way."""
        with self._lock:
            self._erase()
            write_all(self._fd, chunk)
            self._at_line_start = chunk.endswith(b"\n")
            if not self._off and _TAKES_SCREEN.search(chunk):
                self._off = True
            self._draw()

    def _draw(self) -> None:
        if not self._off and self._at_line_start and self._text:
            write_all(self._fd, b"\x1b[2m" + self._text + b"\x1b[0m")
            self._drawn = True

    def _erase(self) -> None:
        if self._drawn:
            write_all(self._fd, _ERASE)
            self._drawn = False


class _Relay:
    """A pipe whose far end goes to the terminal, by way of the live line."""

    def __init__(self, line: _LiveLine | None, fd: int) -> None:
        self._read_fd, self.fd = os.pipe()
        self._line = line
        self._to = fd
        self._thread = threading.Thread(target=self._pump, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self.fd)
        self._thread.join()
        os.close(self._read_fd)

    def _pump(self) -> None:
        while chunk := os.read(self._read_fd, _CHUNK_BYTES):
            with contextlib.suppress(OSError):  # the terminal is gone: go on reading
                if self._line is None:
                    write_all(self._to, chunk)
                else:
                    self._line.write(chunk)
