"""Supervision for platforms that cannot fork: threads, and psutil for the tree.

Room: containment. The same interface as `supervision`, weaker in fact: nobody adopts
orphans (the environment tells who belongs to the run), nobody is there when the guard
dies, and the command has no terminal of its own.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, BinaryIO, Self

from workspace_guard.containment import processes
from workspace_guard.containment.base import Leftover, Usage
from workspace_guard.containment.launch import (
    RUN_VARIABLE,
    Drained,
    Ended,
    Started,
    TreeEnd,
    runner_result,
    unknown_result,
)
from workspace_guard.containment.wire import heartbeat_line
from workspace_guard.errors import show_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import TracebackType

    from workspace_guard.containment.base import ProcessName, RunnerResult
    from workspace_guard.containment.launch import Event, How, Launch

_CHUNK_BYTES = 1 << 16
_BEAT_S = 0.5
_TERM_S = 0.3
_KILL_S = 5.0
_LOOK_S = 0.02
_WAKE_LOOK_S = 0.1
"""How often a caller looks at its wake descriptors: a queue cannot wait for them."""


class PlainSupervision:
    """A command that the guard itself watches; use it in `with`."""

    def __init__(self, launch: Launch, log: BinaryIO) -> None:
        self._launch = launch
        self._log = log
        self._log_lock = threading.Lock()
        self._log_fault: str | None = None
        self._heartbeat: BinaryIO | None = None
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._threads: list[threading.Thread] = []
        self._stopped: str | None = None
        self._gone = threading.Event()
        """Set once the tree has been seen to its end."""

    @classmethod
    def start(cls, launch: Launch) -> Self:
        """Start the command; see `supervision.supervise`."""
        with contextlib.ExitStack() as undo:
            log = undo.enter_context(open(launch.log, "ab", buffering=0))
            supervision = cls(launch, log)
            if launch.heartbeat is not None:
                beat = open(launch.heartbeat, "wb", buffering=0)  # noqa: SIM115 - kept
                supervision._heartbeat = undo.enter_context(beat)
            supervision._run()
            undo.pop_all()
            return supervision

    def _run(self) -> None:
        launch = self._launch
        try:
            process = subprocess.Popen(
                launch.command,
                cwd=launch.cwd,
                env=launch.environment,
                stdin=launch.stdio.stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=launch.own_session,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
                * launch.own_session,
            )
        except OSError as error:
            self._events.put(Ended(result=_not_started(launch, error)))
            return
        self._process = process
        self._events.put(Started(pid=process.pid, whole_tree=False))
        for source, destination, own in (
            (process.stdout, launch.stdio.stdout, 1),
            (process.stderr, launch.stdio.stderr, 2),
        ):
            to = own if destination is None else destination
            self._spawn_thread(self._carry, source, to)
        self._spawn_thread(self._watch, process)

    def _spawn_thread(self, body: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=body, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    @property
    def pid(self) -> int:
        """The guard's own: it holds the tree itself, as far as it can."""
        return os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if not self._gone.is_set():
                self.end_tree(0.0)
        finally:
            self._close()

    # --- the threads ------------------------------------------------------------------

    def _carry(self, source: BinaryIO, destination: int) -> None:
        """Carry one stream to its destination, if that is there, and into the log."""
        goes = True
        with source:
            while chunk := os.read(source.fileno(), _CHUNK_BYTES):
                self._write_log(chunk)
                goes = goes and _write_all(destination, chunk)

    def _write_log(self, chunk: bytes) -> None:
        with self._log_lock:
            if self._log_fault is None and not _write_all(self._log.fileno(), chunk):
                self._log_fault = "the log could not be written"

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the command within its time, and beat until the tree is gone."""
        limit = self._launch.timeout_s
        until = math.inf if limit is None else time.monotonic() + limit
        timed_out = False
        while process.returncode is None:
            self._beat("running")
            left = until - time.monotonic()
            if left <= 0 and not timed_out:
                timed_out = True
                self._end_command(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_BEAT_S if timed_out else min(_BEAT_S, left))
        result = runner_result(
            process.returncode, timed_out=timed_out, stopped=self._stopped
        )
        self._events.put(Ended(result=result))
        while not self._gone.wait(_BEAT_S):
            self._beat("running")
        self._beat("ended")

    def _beat(self, state: str) -> None:
        if self._heartbeat is not None:
            with contextlib.suppress(OSError):
                self._heartbeat.seek(0)
                self._heartbeat.write(heartbeat_line(state, self.pid))

    def _end_command(self, process: subprocess.Popen[bytes]) -> None:
        pids = [process.pid, *(each.pid for each in processes.descendants(process.pid))]
        processes.end(pids)
        try:
            process.wait(_TERM_S)
        except subprocess.TimeoutExpired:
            processes.end(pids, forced=True)

    # --- what happens, and what is asked ----------------------------------------------

    def next_event(
        self, timeout_s: float | None, wake_fds: Collection[int] = ()
    ) -> Event | None:
        """Wait for what happens next; see `Supervised`."""
        patience = math.inf if timeout_s is None else timeout_s
        if wake_fds:
            patience = min(patience, _WAKE_LOOK_S)
        try:
            return self._events.get(timeout=min(patience, threading.TIMEOUT_MAX))
        except queue.Empty:
            return None

    def send_signal(self, signum: int) -> None:
        """Signal the command's process group."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        if sys.platform == "win32":
            asked = signum == signal.SIGINT
            process.send_signal(signal.CTRL_BREAK_EVENT if asked else signum)
        elif self._launch.own_session:
            os.killpg(process.pid, signum)
        else:
            process.send_signal(signum)

    def resize(self, rows: int, columns: int) -> None:
        """Do nothing: the command has no terminal of its own here."""

    def stop(self, reason: str) -> None:
        """End the command; `Ended` will say `interrupted`, with this reason."""
        if self._process is not None and self._process.poll() is None:
            self._stopped = reason
            self._end_command(self._process)

    def leftovers(self) -> tuple[ProcessName, ...]:
        """Who of the tree is alive now, as far as it can be told."""
        if self._process is None:
            return ()
        found = {each.pid: each for each in processes.descendants(self._process.pid)}
        run_id = self._launch.environment.get(RUN_VARIABLE)
        if run_id is not None:
            for pid in processes.with_variable(RUN_VARIABLE, run_id):
                found.setdefault(pid, processes.describe(pid))
        found.pop(self._process.pid, None)
        return tuple(found.values())

    def end_tree(self, grace_s: float, holders: Collection[int] = ()) -> TreeEnd:
        """See the tree to its end; see `Supervised`."""
        self.stop("the run was broken off")
        ends: dict[int, tuple[str, How]] = {}
        steps: tuple[tuple[How, float], ...] = (
            ("exited", grace_s),
            ("terminated", _TERM_S),
            ("killed", _KILL_S),
        )
        for how, patience_s in steps:
            self._end_by(how, patience_s, ends)
        left = {each.pid for each in self.leftovers()}
        self._gone.set()
        for thread in self._threads:
            thread.join(_KILL_S)
        self._events.put(Drained())
        return TreeEnd(
            leftovers=tuple(
                Leftover(
                    pid=pid,
                    command=command,
                    ended="alive" if pid in left else how,
                    target_open=pid in holders,
                )
                for pid, (command, how) in ends.items()
            ),
            usage=Usage(cpu_s=0.0, max_rss_bytes=0),
            log_fault=self._log_fault,
        )

    def _end_by(
        self, how: How, patience_s: float, ends: dict[int, tuple[str, How]]
    ) -> None:
        """Ask whoever is there to end in one way, and wait until nobody is left."""
        until = time.monotonic() + patience_s
        asked: set[int] = set()
        while found := self.leftovers():
            ends.update((each.pid, (each.command, how)) for each in found)
            fresh = {each.pid for each in found} - asked
            if how != "exited":
                processes.end(fresh, forced=how == "killed")
            asked |= fresh
            if time.monotonic() >= until:
                return
            time.sleep(_LOOK_S)

    def _close(self) -> None:
        if any(thread.is_alive() for thread in self._threads):
            return  # somebody who got away holds the pipes, and may still be heard
        self._log.close()
        if self._heartbeat is not None:
            self._heartbeat.close()


def _not_started(launch: Launch, error: OSError) -> RunnerResult:
    program = show_path(launch.command[0])
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return unknown_result("not_found", f"{program}: no such program")
    text = error.strerror or str(error)
    return unknown_result("not_executable", f"{program}: {text}")


def _write_all(fd: int, chunk: bytes) -> bool:
    """Write every byte; tells whether that could be done."""
    view = memoryview(chunk)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        return False
    return True
