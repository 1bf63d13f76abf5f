"""The guard's side of the supervisor: start it, hear it, notice when it is lost.

Room: containment. Knows the supervisor's words and what to do without it; knows
nothing of workspaces. Nothing calls back: whoever supervises asks for the next event.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Self, cast

from workspace_guard.containment import processes
from workspace_guard.containment.base import Leftover, Usage
from workspace_guard.containment.handover import (
    descriptors_of,
    make_request,
    open_private,
    open_streams,
    signals_held_back,
)
from workspace_guard.containment.launch import (
    RUN_VARIABLE,
    Drained,
    Ended,
    InterruptKey,
    Started,
    TreeEnd,
    runner_result,
    unknown_result,
)
from workspace_guard.containment.plain import PlainSupervision
from workspace_guard.containment.wire import Channel, heartbeat_line
from workspace_guard.errors import show_path

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType

    from workspace_guard.containment.base import (
        ProcessName,
        RunnerFault,
        RunnerResult,
    )
    from workspace_guard.containment.launch import Event, How, Launch, Supervised
    from workspace_guard.containment.wire import Message, Request

    Row = tuple[int, bytes, How]

SILENCE_S = 2.0
"""A supervisor that says nothing for so long is lost."""
_LOOK_S = 0.5
_LOST_S = 5.0
"""How long is tried to end the tree of a supervisor that is lost."""
_LOST_LOOK_S = 0.01
_PARTING_S = 7.0
"""More than the supervisor needs to end a tree that cannot be ended."""
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from workspace_guard.containment.supervisor import main; main(int(sys.argv[2]))"
)
_UNKNOWN_USAGE = Usage(cpu_s=0.0, max_rss_bytes=0)


def supervise(launch: Launch) -> Supervised:
    """Start a command under the best supervision that this platform has.

    Raises:
        OSError: the log, the heartbeat or a stream cannot be used, or no process be
            made; nothing was started. A command that cannot run is an `Ended`.
    """
    if hasattr(os, "fork"):
        return Supervision.start(launch)
    return PlainSupervision.start(launch)


class Supervision:
    """A command under a supervisor of its own; use it in `with`.

    Leaving the block ends whatever of the tree is still alive, also by an exception.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        control: socket.socket,
        launch: Launch,
        request: Request,
    ) -> None:
        self._process = process
        self._control = control
        self._channel = Channel(control.fileno())
        self._program = launch.command[0]
        self._run_id = launch.environment.get(RUN_VARIABLE)
        self._heartbeat = request["heartbeat"]
        self._events: deque[Event] = deque()
        self._reason = "the supervisor was asked to stop"
        self._fault = ""
        self._silent_s = 0.0
        self._ended = False
        self._over = False
        """Whether there is no supervisor any more to be heard."""
        self._lost = False
        self._named: dict[int, str] = {}
        self._rows: dict[int, tuple[str, How]] = {}
        """Who was ended: command line, and how."""
        self._usage: Usage | None = None
        """Known once the tree has ended."""
        self._log_fault: str | None = None
        self._channel.send("run", request)

    @classmethod
    def start(cls, launch: Launch) -> Self:
        """Start the supervisor and have it run the command; see `supervise`."""
        with contextlib.ExitStack() as passed, contextlib.ExitStack() as undo:
            streams = open_streams(passed, launch.stdio)
            heartbeat = None
            if launch.heartbeat is not None:
                heartbeat = open_private(undo, launch.heartbeat, 0)
            log = open_private(passed, launch.log, os.O_APPEND)
            control, far = socket.socketpair()
            undo.enter_context(control)
            passed.enter_context(far)
            request = make_request(launch, streams, log, heartbeat)
            command = [sys.executable, "-I", "-S", "-c", _PROGRAM, _ROOT]
            with signals_held_back():
                process = subprocess.Popen(
                    [*command, str(far.fileno())],
                    pass_fds=descriptors_of(request, far.fileno()),
                )
                undo.callback(_discard, process)
            supervision = cls(process, control, launch, request)
            undo.pop_all()
            return supervision

    @property
    def pid(self) -> int:
        """The supervisor's."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and self._usage is not None:
                while not self._over:  # a slow destination gets all of it
                    self._wait(_LOOK_S, ())
        finally:
            self._put_down()

    # --- what happens -----------------------------------------------------------------

    def next_event(
        self, timeout_s: float | None, wake_fds: Collection[int] = ()
    ) -> Event | None:
        """Wait for what happens next; see `Supervised`."""
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self._events:
            left = max(0.0, until - time.monotonic())
            woken = self._wait(min(left, _LOOK_S), wake_fds)
            if not self._events and (woken or time.monotonic() >= until):
                return None
        return self._events.popleft()

    def _wait(self, patience_s: float, wake_fds: Collection[int]) -> bool:
        """Hear what is said within a time; tells whether a wake descriptor is ready."""
        poll = select.poll()
        for fd in wake_fds:
            poll.register(fd, select.POLLIN)
        if not self._over:
            out = select.POLLOUT if self._channel.waiting else 0
            poll.register(self._channel.fd, select.POLLIN | out)
        began = time.monotonic()
        ready = {fd for fd, _ in poll.poll(math.ceil(patience_s * 1000))}
        if self._channel.fd in ready and not self._over:
            self._channel.flush()
            self._hear()
        elif not self._over:
            # Not by the clock alone: the time that we ourselves were stopped (Ctrl-Z)
            # is no silence of the supervisor's.
            self._notice_silence(min(time.monotonic() - began, patience_s))
        return not ready.isdisjoint(wake_fds)

    def _hear(self) -> bool:
        """Take in what was said; tells whether there was anything."""
        self._silent_s = 0.0
        messages = self._channel.receive()
        for message in messages:
            self._learn(message)
        if self._channel.closed:
            self._settle("it has ended")
        return bool(messages)

    def _learn(self, message: Message) -> None:
        match message:
            case ("beat",):
                pass
            case ("key",):
                self._events.append(InterruptKey())
            case ("started", int(pid), bool(whole_tree)):
                self._events.append(Started(pid=pid, whole_tree=whole_tree))
            case ("not_started", fault, str(text)):
                text = f"{show_path(self._program)}: {text}"
                self._tell_ended(unknown_result(cast("RunnerFault", fault), text))
            case ("ended", int() | None as status, str(cause)):
                self._learn_end(status, cause)
            case ("tree_ended", rows, float(cpu_s), int(rss), log_fault):
                self._note_rows(cast("list[Row]", rows))
                self._log_fault = None if log_fault is None else str(log_fault)
                self._usage = Usage(cpu_s=cpu_s, max_rss_bytes=rss)
            case ("failed", str(text)):
                self._fault = text
            case _:
                raise ValueError(message)

    def _learn_end(self, status: int | None, cause: str) -> None:
        code = None if status is None else os.waitstatus_to_exitcode(status)
        stopped = self._reason if cause == "stop" else None
        self._tell_ended(
            runner_result(code, timed_out=cause == "timeout", stopped=stopped)
        )

    def _tell_ended(self, result: RunnerResult, *, lost: bool = False) -> None:
        self._ended = True
        self._events.append(Ended(result=result, lost=lost))

    def _note_rows(self, rows: list[Row]) -> None:
        for pid, line, how in rows:
            words = line.rstrip(b"\0").split(b"\0")
            self._rows[pid] = (processes.show_command(words), how)

    # --- what is asked ----------------------------------------------------------------

    def send_signal(self, signum: int) -> None:
        """Signal the command's foreground group, as the terminal's keys would."""
        self._channel.send("signal", int(signum))  # an enum has no wire form

    def resize(self, rows: int, columns: int) -> None:
        """Give the command's terminal another size."""
        self._channel.send("resize", rows, columns)

    def stop(self, reason: str) -> None:
        """End the command; `Ended` will say `interrupted`, with this reason.

        Once the tree has ended: wait no more for a destination that is slow.
        """
        self._reason = reason
        self._channel.send("stop")

    def leftovers(self) -> tuple[ProcessName, ...]:
        """Who of the tree is alive now."""
        if self._over:
            return ()
        found = processes.descendants(self.pid)
        if self._ended:
            self._named.update((each.pid, each.command) for each in found)
        return found

    def end_tree(self, grace_s: float, holders: Collection[int] = ()) -> TreeEnd:
        """See the whole tree to its end; see `Supervised`."""
        if not self._ended:
            self.stop("the run was broken off")
        while not self._ended:
            self._wait(_LOOK_S, ())
        if not self._over:
            self._channel.send("end_tree", float(grace_s))
        while self._usage is None and not self._over:
            self._wait(_LOOK_S, ())
        return TreeEnd(
            leftovers=tuple(
                Leftover(
                    pid=pid, command=command, ended=how, target_open=pid in holders
                )
                for pid, (command, how) in self._told().items()
            ),
            usage=self._usage or _UNKNOWN_USAGE,
            log_fault=self._log_fault,
            lost=self._lost,
        )

    def _told(self) -> dict[int, tuple[str, How]]:
        """Whoever was left: as named when the command had ended, or when seen first."""
        told: dict[int, tuple[str, How]] = {
            pid: (command, "exited") for pid, command in self._named.items()
        }
        for pid, (command, how) in self._rows.items():
            told[pid] = (self._named.get(pid) or command, how)
        return told

    # --- without a supervisor ---------------------------------------------------------

    def _notice_silence(self, seconds: float) -> None:
        self._silent_s += seconds
        if self._process.poll() is not None:
            while self._hear():  # its last words
                pass
            self._settle("it has ended")
        elif self._silent_s >= SILENCE_S and not processes.waits_for_disk(self.pid):
            self._settle(f"it has not answered for {SILENCE_S:g} s")

    def _settle(self, why: str) -> None:
        """Nothing more is to be heard: all is told, or the supervisor is lost."""
        if self._over:
            return
        self._over = True
        if self._usage is None:
            self._lost = True
            self._end_lost_tree()
            text = f"supervisor_lost: {self._fault or why}"
            if not self._ended:
                self._tell_ended(unknown_result("interrupted", text), lost=True)
        self._put_down()
        self._events.append(Drained())

    def _end_lost_tree(self) -> None:
        """End whoever can be found of the tree, and the supervisor after them.

        While it lives, though stopped, it is the parent of all orphans; when it has
        gone, the environment is all that tells them from others.
        """
        until = time.monotonic() + _LOST_S
        while time.monotonic() < until:
            found = self._findable()
            if not found and self._process.returncode is not None:
                break
            if not found:
                self._kill_supervisor()
            for pid, command in found.items():
                self._rows[pid] = (command, "killed")
            processes.end(found, forced=True)
            time.sleep(_LOST_LOOK_S)
        self._kill_supervisor()
        left = [pid for pid in self._rows if processes.alive(pid)]
        for pid in left:
            self._rows[pid] = (self._rows[pid][0], "alive")
        if not left and self._heartbeat is not None:
            os.pwrite(self._heartbeat, heartbeat_line("ended", self.pid), 0)

    def _findable(self) -> dict[int, str]:
        found: dict[int, str] = {}
        if self._process.poll() is None:
            found = {p.pid: p.command for p in processes.descendants(self.pid)}
        if self._run_id is not None:
            for pid in processes.with_variable(RUN_VARIABLE, self._run_id):
                found[pid] = processes.describe(pid).command
        return found

    def _kill_supervisor(self) -> None:
        self._process.kill()
        self._process.wait()

    def _put_down(self) -> None:
        """Close our end, which ends whatever still lives, and wait for that."""
        over, self._over = self._over, True
        self._channel.closed = True
        self._control.close()
        try:
            self._process.wait(_PARTING_S)
        except subprocess.TimeoutExpired:
            if not over:
                self._end_lost_tree()
            self._kill_supervisor()
        if self._heartbeat is not None:
            os.close(self._heartbeat)
            self._heartbeat = None


def _discard(process: subprocess.Popen[bytes]) -> None:
    """End a supervisor that was asked nothing yet."""
    process.kill()
    process.wait()
