"""A small program of its own that holds the command's whole process tree.

Room: containment, in a process of its own, started with `python -I -S` by
`containment.supervision`. Runs the command, carries its streams, keeps its time, ends
and reaps what it leaves, and tells the guard over one socket. It outlives the guard
just long enough to end the tree. It loads only what starts fast; a test names it.

Source: PR_SET_CHILD_SUBREAPER(2const), termios(3), spec 1.
"""

from __future__ import annotations

import os
import select
import sys
import time

from workspace_guard.containment.child import spawn, start_fault
from workspace_guard.containment.offspring import (
    KILL_S,
    TERM_S,
    Ending,
    signal_each,
    signal_group,
)
from workspace_guard.containment.relay import Keyboard, Log, Pump, Sink
from workspace_guard.containment.terminal import Foreground, Terminal
from workspace_guard.containment.wire import Channel, heartbeat_line

if sys.platform == "linux":
    from workspace_guard.kernel import calls

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself would cost the supervisor its start time
    import signal as _signal
    from collections.abc import Callable, Iterator
    from types import FrameType

    from workspace_guard.containment.wire import Message, Request

    Watch = tuple[int, int, Callable[[], object]]
else:
    import _signal  # what `signal` wraps in enums, at a price

BEAT_S = 0.5
_BROKEN = select.POLLERR | select.POLLHUP | select.POLLNVAL
_BYTES_KIB = 1 if sys.platform == "darwin" else 1024
"""The unit of `ru_maxrss`, getrusage(2)."""
_IGNORED = ("SIGINT", "SIGQUIT", "SIGHUP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGPIPE")


def main(control: int) -> None:
    """Serve one request that comes over a descriptor, to the end of its tree."""
    wake = _settle_signals()
    _fill_standard_descriptors()
    channel = Channel(control)
    first, *others = _first_messages(channel)
    match first:
        case ("run", request):
            supervisor = Supervisor(channel, wake, request)  # type: ignore[arg-type]  # it has one form
            supervisor.run(others)
        case _:
            pass  # the guard has died before it could ask
    os._exit(0)  # nothing is to be tidied, and the guard waits for our end


def _settle_signals() -> int:
    """Survive the terminal's signals, hear of children and of SIGTERM.

    The guard has blocked them before it started us, so none was lost or killed us.

    Returns:
        A descriptor that reads the number of each signal that has come.
    """
    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    _signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for name in _IGNORED:
        _signal.signal(getattr(_signal, name), _signal.SIG_IGN)
    for signum in (_signal.SIGCHLD, _signal.SIGTERM):
        _signal.signal(signum, _note_only)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    return wake


def _note_only(_signum: int, _frame: FrameType | None) -> None:
    """Be a handler, so that the signal's number is written to the descriptor."""


def _fill_standard_descriptors() -> None:
    """See that 0 to 2 are taken, so that no pipe of ours gets such a number."""
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:  # noqa: PLR2004 - the standard three
            os.close(fd)
            return


def _first_messages(channel: Channel) -> list[Message]:
    """Wait for the request; other words may have come right behind it."""
    poll = select.poll()
    poll.register(channel.fd, select.POLLIN)
    messages: list[Message] = []
    while not messages and not channel.closed:
        poll.poll()
        messages = channel.receive()
    return messages or [()]


class Supervisor:
    """The loop. Lives for one request.

    The command runs; it ends, and the guard may look at what it left while leftovers
    still live; the guard asks for the tree's end; the tree ends; destinations get what
    they have not taken yet; the loop ends. The guard's death cuts it short anywhere.
    """

    def __init__(self, channel: Channel, wake: int, request: Request) -> None:
        self.channel = channel
        self.wake = wake
        self.request = request
        self.log = Log(request["log"])
        self.pumps: list[Pump] = []
        self.keyboard: Keyboard | None = None
        self.terminal: Terminal | None = None
        self.whole_tree = sys.platform == "linux" and calls.adopt_orphans()
        self.foreground = Foreground(request["streams"][0])
        self.pid = 0
        self.starting: int | None = None
        """Reads how the exec went; None once that is known."""
        self.running = True
        self.owes_end = True
        """Whether the guard has still to hear how the command ends."""
        self.childless = False
        self.cause = ""
        """Why we ended the command: `timeout`, `stop`, or nothing."""
        self.grace_s: float | None = None
        """Known once the guard wants the tree to end."""
        self.ending: Ending | None = None
        self.finished = False
        self.cpu_s = 0.0
        self.max_rss_bytes = 0
        self.beat_at = 0.0
        self.timeout_at: float | None = None
        self.kill_at: float | None = None
        self.give_up_at: float | None = None

    def run(self, messages: list[Message]) -> None:
        """Serve the request; returns when the tree is gone and all is told.

        Args:
            messages: what the guard said right behind the request.
        """
        try:
            self._launch()
            for message in messages:
                self._obey(message)
            while not self._done():
                self._turn()
                if self.channel.closed or os.getppid() != self.request["guard"]:
                    self._abandon()
                    return
        except BaseException as error:
            self.channel.send("failed", repr(error))
            self._abandon()
            raise

    def _done(self) -> bool:
        return (
            self.finished
            and not self.channel.waiting
            and not any(pump.pending for pump in self.pumps)
        )

    # --- the start --------------------------------------------------------------------

    def _launch(self) -> None:
        if self.request["timeout_s"] is not None:
            self.timeout_at = time.monotonic() + self.request["timeout_s"]
        ends = self._open_terminal() or self._open_pipes()
        self.pid, self.starting = spawn(self.request, ends)
        if self.terminal is None:
            for end in ends[1:]:
                os.close(end)

    def _open_terminal(self) -> tuple[int, ...]:
        wanted = self.request["terminal"]
        if wanted is None:
            return ()
        self.terminal = Terminal(*wanted)
        stdin, stdout, _ = self.request["streams"]
        self.pumps = [Pump(self.terminal.our_end, Sink(stdout), self.log)]
        self.keyboard = Keyboard(stdin, self.terminal.our_end)
        return (self.terminal.command_end,)

    def _open_pipes(self) -> tuple[int, ...]:
        stdin, *destinations = self.request["streams"]
        ends = [stdin]
        for destination in destinations:
            source, end = os.pipe()
            self.pumps.append(Pump(source, Sink(destination), self.log))
            ends.append(end)
        return tuple(ends)

    def _learn_start(self) -> None:
        """Tell whether the program runs: the descriptor has ended, or says why not."""
        if self.starting is None:
            return
        fault = start_fault(os.read(self.starting, 1 << 16))
        os.close(self.starting)
        self.starting = None
        if fault is None:
            self.channel.send("started", self.pid, self.whole_tree)
        else:
            self.owes_end = False
            self.channel.send("not_started", *fault)

    # --- one turn ---------------------------------------------------------------------

    def _turn(self) -> None:
        """Wait for the next thing that happens, and do what it asks."""
        poll = select.poll()
        watches: dict[int, list[Watch]] = {}
        for watch in self._watched():
            watches.setdefault(watch[0], []).append(watch)
        for fd, each in watches.items():
            poll.register(fd, sum({events for _, events, _ in each}))
        for fd, came in poll.poll(self._patience_ms()):
            for _, events, action in watches[fd]:
                if came & (events | _BROKEN):
                    action()
        self._keep_time(time.monotonic())

    def _watched(self) -> Iterator[Watch]:
        """Every descriptor that may have something for us, with what to do then."""
        yield self.channel.fd, select.POLLIN, self._hear
        if self.channel.waiting:
            yield self.channel.fd, select.POLLOUT, self.channel.flush
        yield self.wake, select.POLLIN, self._hear_signals
        if self.starting is not None:
            yield self.starting, select.POLLIN, self._learn_start
        for pump in self.pumps:
            if pump.pending and pump.sink is not None:
                yield pump.sink.fd, select.POLLOUT, pump.give
            elif pump.source is not None:
                yield pump.source, select.POLLIN, pump.take
        if self.keyboard is not None:
            yield from self._watched_keys(self.keyboard)

    def _watched_keys(self, keyboard: Keyboard) -> Iterator[Watch]:
        if keyboard.pending:
            yield keyboard.master, select.POLLOUT, keyboard.give
        elif keyboard.source is not None and not keyboard.resting:
            yield keyboard.source, select.POLLIN, self._hear_keys

    def _patience_ms(self) -> int:
        due = [self.beat_at]
        if self.running:
            due += [at for at in (self.timeout_at, self.kill_at) if at is not None]
        if self.ending is not None and not self.finished:
            due.append(self.ending.due)
        return max(0, int((min(due) - time.monotonic()) * 1000) + 1)

    def _keep_time(self, now: float) -> None:
        if now >= self.beat_at:
            self._beat(now)
        if self.running:
            self._keep_limits(now)
        elif self.grace_s is not None and not self.finished:
            self.ending = self.ending or Ending(now, self.grace_s, self._group())
            if now >= self.ending.due:
                self._end_tree(self.ending, now)

    def _keep_limits(self, now: float) -> None:
        if self.timeout_at is not None and now >= self.timeout_at:
            self.timeout_at = None
            self._end_command("timeout")
        if self.kill_at is not None and now >= self.kill_at:
            self.kill_at = now + TERM_S
            self._signal_command(_signal.SIGKILL)
        if self.give_up_at is not None and now >= self.give_up_at:
            self._command_ended(None)

    def _end_tree(self, ending: Ending, now: float) -> None:
        self._reap()
        if ending.step(now, childless=self.childless):
            self._finish(ending)

    def _beat(self, now: float) -> None:
        self.beat_at = now + BEAT_S
        if not self.channel.waiting:  # else the guard is busy, and has enough to read
            self.channel.send("beat")
        self._mark("ended" if self.finished else "running")
        if self.keyboard is not None:
            self.keyboard.resting = False

    def _mark(self, state: str) -> None:
        """Write the heartbeat file; its time is what a later recovery goes by."""
        fd = self.request["heartbeat"]
        if fd is None:
            return
        try:
            os.pwrite(fd, heartbeat_line(state, os.getpid()), 0)
        except OSError:  # a full disk: the run itself must go on
            return

    # --- what comes in ----------------------------------------------------------------

    def _hear(self) -> None:
        for message in self.channel.receive():
            self._obey(message)

    def _obey(self, message: Message) -> None:
        match message:
            case ("signal", int(signum)):
                self._signal_foreground(signum)
            case ("resize", int(rows), int(columns)):
                if self.terminal is not None:
                    self.terminal.resize(rows, columns)
            case ("stop",):
                self._stop()
            case ("end_tree", float(grace_s)):
                self.grace_s = grace_s
            case _:
                raise ValueError(message)

    def _hear_signals(self) -> None:
        if _signal.SIGTERM in os.read(self.wake, 1 << 10):
            self._stop()
        self._reap()

    def _hear_keys(self) -> None:
        if self.keyboard is not None:
            for _ in range(self.keyboard.take()):
                self.channel.send("key")

    # --- signals and ends -------------------------------------------------------------

    def _signal_foreground(self, signum: int) -> None:
        """Signal whom the terminal's own keys would reach."""
        if not self.running:
            return
        if self.terminal is None or not self.terminal.signal_foreground(signum):
            self._signal_command(signum)

    def _signal_command(self, signum: int) -> None:
        """Signal the command's group; not being reaped, it still owns its number."""
        # Forked just now, it has no group yet.
        if not self._has_session() or not signal_group(self.pid, signum):
            signal_each([self.pid], signum)

    def _has_session(self) -> bool:
        return self.request["own_session"] or self.terminal is not None

    def _group(self) -> int | None:
        """The group that stands for the tree where orphans are not ours."""
        return self.pid if self._has_session() and not self.whole_tree else None

    def _stop(self) -> None:
        """End the command; after the tree's end, leave slow destinations alone."""
        if self.running:
            self._end_command("stop")
        elif self.finished:
            for pump in self.pumps:
                pump.drop_sink()

    def _end_command(self, cause: str) -> None:
        self._reap()  # it may have ended by itself, and that is what counts then
        if self.running and not self.cause:
            self.cause = cause
            self.kill_at = time.monotonic() + TERM_S
            self.give_up_at = self.kill_at + KILL_S
            self._signal_command(_signal.SIGTERM)

    def _reap(self) -> None:
        """Take the status of every child that has ended."""
        while not self.childless:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                return
            if pid == 0:
                return
            # A process counts what it has waited for; so the sum is the whole tree.
            self.cpu_s += used.ru_utime + used.ru_stime
            rss = used.ru_maxrss * _BYTES_KIB
            self.max_rss_bytes = max(self.max_rss_bytes, rss)
            if pid == self.pid:
                self._command_ended(status)

    def _command_ended(self, status: int | None) -> None:
        """Tell how it ended; None: it cannot be ended, and is waited for no more."""
        self._learn_start()
        self.running = False
        self.keyboard = None  # what is typed from now on is for somebody else
        if not self._has_session():
            self.foreground.give_back()
        if self.owes_end:
            self.owes_end = False
            self.channel.send("ended", status, self.cause)

    def _finish(self, ending: Ending) -> None:
        """The tree is gone, or what is left cannot be ended: say so, let go."""
        self._drain()
        for fd in self.request["hold"]:
            os.close(fd)
        if ending.gone:
            self._mark("ended")
        used = (self.cpu_s, self.max_rss_bytes)
        self.channel.send("tree_ended", ending.rows(), *used, self.log.fault)
        self.finished = True

    def _drain(self) -> None:
        if self.terminal is not None:
            self.terminal.release()
        for pump in self.pumps:
            pump.drain()
        self.terminal = None

    def _abandon(self) -> None:
        """The guard is gone, or we are broken: nobody of the tree may live on."""
        if not self.pid or self.finished:
            return
        self.owes_end = False  # it is us who end it, and for no reason of its own
        ending = Ending(time.monotonic(), None, self._group())
        pause = select.poll()
        while not ending.step(time.monotonic(), childless=self.childless):
            self._reap()
            if not self.childless:
                pause.poll(2)
        for pump in self.pumps:
            pump.drop_sink()
        self._drain()
        if ending.gone:
            self._mark("ended")
