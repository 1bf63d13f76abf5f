"""See one command from its start to the end of its whole tree.

Room: containment. What every mode does with a supervised command: pass signals on,
stop it at an escape where that was asked for, look at its targets when it ends and
again when its tree is gone. Knows nothing of how the parent is kept.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, assert_never

from workspace_guard.containment.base import Gap, Progress
from workspace_guard.containment.interrupts import Answer, Patience
from workspace_guard.containment.launch import (
    Drained,
    Ended,
    InterruptKey,
    Launch,
    Started,
)
from workspace_guard.containment.processes import holders
from workspace_guard.containment.supervision import supervise
from workspace_guard.errors import StateUnusable
from workspace_guard.files.stamp import Stamps, moved, stamp
from workspace_guard.files.tree import Folder

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from workspace_guard.containment.base import (
        Enclosure,
        Leftover,
        Limits,
        RunnerResult,
        Usage,
    )
    from workspace_guard.containment.interrupts import Interrupts
    from workspace_guard.containment.launch import Supervised, TreeEnd

_TICK_S = 0.25


class Witness(Protocol):
    """Whoever sees changes outside the step while the command runs."""

    @property
    def wake_fd(self) -> int:
        """Readable from the first change on."""
        ...

    @property
    def count(self) -> int:
        """How many paths have changed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Conducted:
    """How the command and its tree ended."""

    runner: RunnerResult
    leftovers: tuple[Leftover, ...]
    moved_targets: tuple[bytes, ...]
    usage: Usage
    gaps: tuple[Gap, ...]
    stopped_for_escape: bool
    interrupted_by: int | None


def conduct(
    launch: Launch,
    enclosure: Enclosure,
    limits: Limits,
    interrupts: Interrupts,
    witness: Witness,
    on_progress: Callable[[Progress], None],
) -> Conducted:
    """Run a command to its end.

    Returns:
        When this returns nothing of the tree is alive, or a gap says so.

    Raises:
        StateUnusable: the log could not be opened; nothing was started.
        BaseException: whatever was raised meanwhile; the tree is ended by then.
    """
    # Before it starts: a terminal is made ready for it by whoever shows this.
    on_progress(Progress(stage="running"))
    try:
        supervised = supervise(launch)
    except OSError as error:
        where: str | Path = error.filename or launch.log
        raise StateUnusable(where, error.strerror or str(error)) from error
    with supervised:
        course = _Course(supervised, launch, enclosure, interrupts, witness)
        ended = course.until_command_ends(on_progress)
        on_progress(Progress(stage="ending", escapes=witness.count))
        tree, moved_targets = _end_tree(course, enclosure, limits.grace_s)
    return Conducted(
        runner=ended.result,
        leftovers=tree.leftovers,
        moved_targets=moved_targets,
        usage=tree.usage,
        gaps=tuple(_gaps(ended, tree, whole_tree=course.whole_tree)),
        stopped_for_escape=course.stopped_for_escape,
        interrupted_by=course.ended_by(ended),
    )


class _Course:
    """The time in which the command itself runs."""

    def __init__(
        self,
        supervised: Supervised,
        launch: Launch,
        enclosure: Enclosure,
        interrupts: Interrupts,
        witness: Witness,
    ) -> None:
        self.supervised = supervised
        self._launch = launch
        self._stops = enclosure.on_escape == "stop"
        self._interrupts = interrupts
        self._witness = witness
        self._patience = Patience()
        self._size = launch.stdio.terminal
        self.whole_tree = True
        self.stopped_for_escape = False
        self.interrupted_by: int | None = None
        self._was_interrupted = False

    def ended_by(self, ended: Ended) -> int | None:
        """The signal that ended the run: by us, or by the command when it got it.

        A command that takes Ctrl-C and goes on, or ends well, was not ended by it.
        """
        if self.interrupted_by is None and self._was_interrupted:
            failed = ended.result.error in {"exit", "signal"}
            return int(signal.SIGINT) if failed else None
        return self.interrupted_by

    def until_command_ends(self, on_progress: Callable[[Progress], None]) -> Ended:
        while True:
            event = self.supervised.next_event(_TICK_S, self._wake_fds())
            match event:
                case Ended():
                    return event
                case Started():
                    self.whole_tree = event.whole_tree
                case InterruptKey():
                    self._answer(signal.SIGINT, passed_on=True)
                case Drained() | None:
                    pass
                case _:
                    assert_never(event)
            self._look_around()
            on_progress(
                Progress(
                    stage="running",
                    escapes=self._witness.count,
                    interrupted=self._was_interrupted,
                )
            )

    def see_leftovers_out(self, grace_s: float) -> float:
        """Give what is left of the tree its time, unless a signal ends the run.

        Returns:
            How much of the time there still is; seconds.
        """
        until = time.monotonic() + grace_s
        while (left_s := until - time.monotonic()) > 0 and self.supervised.leftovers():
            self.supervised.next_event(min(left_s, _TICK_S), self._wake_fds())
            self._look_around()
            if self.interrupted_by is not None or self.stopped_for_escape:
                return 0.0
        return max(left_s, 0.0)

    def _wake_fds(self) -> tuple[int, ...]:
        fds: tuple[int, ...] = ()
        if self._interrupts.fd is not None:
            fds += (self._interrupts.fd,)
        if self._stops and not self.stopped_for_escape:
            fds += (self._witness.wake_fd,)
        return fds

    def _look_around(self) -> None:
        for signum in self._interrupts.take():
            self._answer(signum, passed_on=not self._launch.own_session)
        if self._stops and not self.stopped_for_escape and self._witness.count:
            self.stopped_for_escape = True
            self.supervised.stop("ended at its first escape")
        self._follow_size()

    def _answer(self, signum: int, *, passed_on: bool) -> None:
        if self._patience.answer(signum, time.monotonic()) is Answer.END:
            if self.interrupted_by is None:
                self.interrupted_by = signum
                name = signal.Signals(signum).name
                self.supervised.stop(f"ended because {name} came to the guard")
            return
        self._was_interrupted = True
        if not passed_on:
            self.supervised.send_signal(signum)

    def _follow_size(self) -> None:
        fd = self._launch.stdio.size_of
        if fd is None or self._size is None:
            return
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(fd)
            if (rows, columns) != self._size:
                self._size = (rows, columns)
                self.supervised.resize(rows, columns)


def _end_tree(
    course: _Course, enclosure: Enclosure, grace_s: float
) -> tuple[TreeEnd, tuple[bytes, ...]]:
    """See the tree to its end, and say which targets moved after the command's.

    Nobody can move a target once nobody is left, so without leftovers nothing has to
    be read twice.
    """
    supervised = course.supervised
    left = supervised.leftovers()
    if not left:
        return supervised.end_tree(grace_s), ()
    with _step_of(enclosure) as step:
        before = _stamps(step, enclosure)
        paths = [os.path.join(os.fsencode(enclosure.step_path), p) for p in before]
        writing = holders(paths, [process.pid for process in left])
        tree = supervised.end_tree(course.see_leftovers_out(grace_s), writing)
        return tree, moved(before, _stamps(step, enclosure))


@contextlib.contextmanager
def _step_of(enclosure: Enclosure) -> Generator[Folder | None]:
    """The step's folder; None where the command has taken it away."""
    try:
        folder = Folder.open(enclosure.step_path)
    except OSError:
        yield None
        return
    with folder:
        yield folder


def _stamps(step: Folder | None, enclosure: Enclosure) -> Stamps:
    return {} if step is None else stamp(step, enclosure.selections)


def _gaps(ended: Ended, tree: TreeEnd, *, whole_tree: bool) -> list[Gap]:
    found: list[Gap] = []
    if ended.lost or tree.lost:
        found.append(
            _gap(
                "supervisor_lost",
                "the supervisor was killed or stopped; what it had started was ended, "
                "but a process may have got away",
                hides=True,
            )
        )
    if not whole_tree:
        found.append(
            _gap(
                "tree_not_held",
                "this platform cannot hold daemons that leave their session",
                hides=False,
            )
        )
    alive = [left for left in tree.leftovers if left.ended == "alive"]
    found += [
        _gap(
            "process_alive",
            f"process {left.pid} ({left.command}) could not be ended",
            hides=True,
        )
        for left in alive
    ]
    if tree.log_fault is not None:
        fact = f"execution.log is not whole: {tree.log_fault}"
        found.append(_gap("log_incomplete", fact, hides=False))
    return found


def _gap(kind: str, message: str, *, hides: bool) -> Gap:
    return Gap(kind=kind, path=None, could_hide_escape=hides, message=message)
