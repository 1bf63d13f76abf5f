"""Start a command under supervision in a test, talk to it, and wait for facts."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from workspace_guard.containment.base import Stdio
from workspace_guard.containment.launch import (
    RUN_VARIABLE,
    Ended,
    InterruptKey,
    Launch,
    Started,
    TreeEnd,
)
from workspace_guard.containment.processes import alive, with_variable
from workspace_guard.containment.supervision import Supervision

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from workspace_guard.containment.base import RunnerResult
    from workspace_guard.containment.launch import Event, Supervised

    Start = Callable[[Launch], Supervised]

DEADLINE_S = 10.0
_NUMBERS = itertools.count(1)


def python(program: str, *arguments: str) -> tuple[str, ...]:
    """A command that runs a small program of Python, started as fast as can be."""
    return (sys.executable, "-I", "-S", "-c", program, *arguments)


def shell(script: str) -> tuple[str, ...]:
    """A command that runs a script of the shell."""
    return ("sh", "-c", script)


def launch(place: Path, *command: str, **more: object) -> Launch:
    """Ask for a command in a folder, with its log there and an id of its own."""
    environment = {
        "PATH": os.environ["PATH"],
        "TERM": "dumb",
        RUN_VARIABLE: f"test-{os.getpid()}-{next(_NUMBERS)}",
    }
    more = {"environment": environment, "log": place / "execution.log", **more}
    return Launch(command=command, **{"cwd": place, **more})


def until(fact: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Wait until something is so.

    Raises:
        AssertionError: it did not come to be in time.
    """
    limit = time.monotonic() + deadline_s
    while not fact():
        assert time.monotonic() < limit, f"not so within {deadline_s} s: {fact}"
        threading.Event().wait(0.002)


def gone(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    return not alive(pid)


def nobody_of(asked: Launch) -> bool:
    """Whether no process of a run is alive."""
    return not with_variable(RUN_VARIABLE, asked.environment[RUN_VARIABLE])


@dataclass
class Course:
    """What was told of a command from its start to its tree's end."""

    events: list[Event] = field(default_factory=list)
    tree: TreeEnd | None = None

    @property
    def started(self) -> Started:
        """The event that says so."""
        return next(event for event in self.events if isinstance(event, Started))

    @property
    def ended(self) -> Ended:
        """The event that says so."""
        return next(event for event in self.events if isinstance(event, Ended))

    @property
    def result(self) -> RunnerResult:
        """How the command ended."""
        return self.ended.result


def events_until_end(supervised: Supervised) -> list[Event]:
    """Take all events up to the one that says that the command has ended."""
    events: list[Event] = []
    limit = time.monotonic() + DEADLINE_S
    while not (events and isinstance(events[-1], Ended)):
        event = supervised.next_event(0.1)
        events += [] if event is None else [event]
        assert time.monotonic() < limit, f"the command goes on; so far {events}"
    return events


def until_started(supervised: Supervised) -> Started:
    """Wait until the program runs."""
    event = supervised.next_event(DEADLINE_S)
    assert isinstance(event, Started), event
    return event


def run_whole(
    asked: Launch,
    start: Callable[[Launch], Supervised] = Supervision.start,
    grace_s: float = 0.0,
) -> Course:
    """Run a command to the end of its tree."""
    with start(asked) as supervised:
        course = Course(events=events_until_end(supervised))
        course.tree = supervised.end_tree(grace_s)
    return course


def read_rest(fd: int) -> bytes:
    """Read to the end of file."""
    return b"".join(iter(lambda: os.read(fd, 1 << 16), b""))


def read_exactly(fd: int, size: int) -> bytes:
    """Read so many bytes, each wait with the deadline."""
    got = b""
    while len(got) < size:
        ready, _, _ = select.select([fd], [], [], DEADLINE_S)
        assert ready, f"only {len(got)} of {size} bytes came"
        got += os.read(fd, 1 << 12)
    return got


class Pipe:
    """A pipe whose ends are closed with the block."""

    def __init__(self) -> None:
        self.source, self.end = os.pipe()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_source()
        self.close_end()

    def close_source(self) -> None:
        """Read no more."""
        if self.source >= 0:
            os.close(self.source)
            self.source = -1

    def close_end(self) -> None:
        """Write no more."""
        if self.end >= 0:
            os.close(self.end)
            self.end = -1


class Dialogue:
    """What a person would do at the command's terminal: type, and wait for words."""

    def __init__(self, supervised: Supervised, typed: Pipe, shown: Pipe) -> None:
        self.supervised = supervised
        self.events: list[Event] = []
        self.text = b""
        self._typed = typed
        self._shown = shown

    def say(self, keys: bytes) -> None:
        """Type something."""
        os.write(self._typed.end, keys)

    def hang_up(self) -> None:
        """Type no more."""
        self._typed.close_end()

    def expect(self, words: bytes) -> bytes:
        """Wait until something is shown; returns all up to it, and forgets that."""
        limit = time.monotonic() + DEADLINE_S
        while words not in self.text:
            self._look()
            assert time.monotonic() < limit, f"no {words!r} in {self.text!r}"
        before, _, self.text = self.text.partition(words)
        return before

    def expect_keys(self, count: int) -> None:
        """Wait until so many interrupt keys were told; there must be no more."""
        limit = time.monotonic() + DEADLINE_S
        while sum(isinstance(event, InterruptKey) for event in self.events) != count:
            self._look()
            assert time.monotonic() < limit, f"not {count} keys in {self.events}"

    def expect_end(self) -> Ended:
        """Wait until the command has ended."""
        limit = time.monotonic() + DEADLINE_S
        while not (self.events and isinstance(self.events[-1], Ended)):
            self._look()
            assert time.monotonic() < limit, f"it goes on, and shows {self.text!r}"
        return self.events[-1]

    def _look(self) -> None:
        event = self.supervised.next_event(0.05, (self._shown.source,))
        self.events += [] if event is None else [event]
        with contextlib.suppress(BlockingIOError):
            self.text += os.read(self._shown.source, 1 << 16)


@contextlib.contextmanager
def dialogue(
    place: Path, *command: str, size: tuple[int, int] = (24, 80), **more: object
) -> Generator[Dialogue]:
    """Run a command on a terminal of its own and talk to it; ends it in the end."""
    with Pipe() as typed, Pipe() as shown:
        os.set_blocking(shown.source, False)
        stdio = Stdio(stdin=typed.source, stdout=shown.end, terminal=size)
        asked = launch(place, *command, stdio=stdio, **more)
        with Supervision.start(asked) as supervised:
            yield Dialogue(supervised, typed, shown)
            supervised.end_tree(0.0)
