"""What the command says and hears: pipes and terminal, destinations, and the log.

Room: containment, inside the supervisor. Knows bytes and descriptors; knows nothing of
processes. Nothing here blocks for a reader that is slow: a supervisor that waits for
somebody's terminal would seem dead.
"""

from __future__ import annotations

import _socket
import os
import select
import stat
import time

_CHUNK_BYTES = 1 << 16
_KEYS_BYTES = 1 << 12
_PIPE_BUF_BYTES = 512
"""What a descriptor that polls as writable takes at once on any platform (POSIX)."""
_DRAIN_S = 1.0
_INTERRUPT_KEY = b"\x03"
_END_OF_INPUT = b"\x04"
_PSEUDO_TERMINAL_MASTER = (5, 2)


class Log:
    """The file that keeps all output, both streams as they come."""

    __slots__ = ("fault", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.fault: str | None = None
        """Why it is not whole."""

    def write(self, chunk: bytes) -> None:
        """Append every byte, or note why that failed and write nothing more."""
        if self.fault is not None:
            return
        view = memoryview(chunk)
        try:
            while view:
                view = view[os.write(self.fd, view) :]
        except OSError as error:
            self.fault = error.strerror or str(error)


class Sink:
    """A destination, written without blocking and without changing it for others.

    O_NONBLOCK would hold for everyone who shares the descriptor: the guard, the user's
    shell. So a pipe and a terminal are opened anew where that can be; where not, little
    is written, and only after a look.
    """

    __slots__ = ("_careful", "_socket", "fd")

    def __init__(self, fd: int) -> None:
        self._socket: _socket.socket | None = None
        self._careful = False
        found = os.fstat(fd)
        if stat.S_ISSOCK(found.st_mode):
            self.fd = os.dup(fd)
            self._socket = _socket.socket(fileno=self.fd)
        elif stat.S_ISFIFO(found.st_mode) or _is_terminal(fd, found):
            self._open_anew(fd, found.st_rdev)
        else:
            self.fd = os.dup(fd)

    def _open_anew(self, fd: int, device: int) -> None:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        # Opening a master gives another terminal, not this one.
        is_master = (os.major(device), os.minor(device)) == _PSEUDO_TERMINAL_MASTER
        try:
            again = -1 if is_master else os.open(f"/proc/self/fd/{fd}", flags)
        except OSError:
            again = -1
        self._careful = again < 0
        self.fd = os.dup(fd) if again < 0 else again

    def write(self, chunk: bytes | bytearray) -> int:
        """Write what the destination takes now; 0 where it takes nothing.

        Raises:
            OSError: it is gone.
        """
        try:
            if self._socket is not None:
                return self._socket.send(chunk, _socket.MSG_DONTWAIT)
            if not self._careful:
                return os.write(self.fd, chunk)
        except BlockingIOError:
            return 0
        return self._write_a_little(chunk)

    def _write_a_little(self, chunk: bytes | bytearray) -> int:
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        if not poll.poll(0):
            return 0
        return os.write(self.fd, chunk[:_PIPE_BUF_BYTES])

    def close(self) -> None:
        """Let go of it."""
        if self._socket is not None:
            self._socket.close()
        else:
            os.close(self.fd)


def _is_terminal(fd: int, found: os.stat_result) -> bool:
    return stat.S_ISCHR(found.st_mode) and os.isatty(fd)


class Pump:
    """Carries one stream of the command to its destination and into the log.

    While the destination has not taken everything nothing more is read, so that the
    command feels the back-pressure that a pipe would give.
    """

    __slots__ = ("_log", "_pending", "sink", "source")

    def __init__(self, source: int, sink: Sink | None, log: Log) -> None:
        os.set_blocking(source, False)
        self.source: int | None = source
        self.sink = sink
        """None once it has gone away; the log goes on."""
        self._log = log
        self._pending = bytearray()

    @property
    def pending(self) -> bool:
        """Whether the destination has still to take something."""
        return bool(self._pending)

    def take(self) -> bool:
        """Read once and pass it on; tells whether there was anything."""
        if self.source is None:
            return False
        try:
            chunk = os.read(self.source, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # EIO: nobody has the other end of the terminal any more
            chunk = b""
        if not chunk:
            self.close_source()
            return False
        self._log.write(chunk)
        if self.sink is not None:
            self._pending += chunk
            self.give()
        return True

    def give(self) -> None:
        """Hand the destination what it takes now; forget it where it is gone."""
        try:
            while self._pending and self.sink is not None:
                written = self.sink.write(self._pending)
                if not written:
                    return
                del self._pending[:written]
        except OSError:
            self.drop_sink()

    def drop_sink(self) -> None:
        """Go on without the destination."""
        self._pending.clear()
        if self.sink is not None:
            self.sink.close()
            self.sink = None

    def drain(self) -> None:
        """Read all that the tree has left in the pipe, now that it is gone.

        Somebody outside may hold the other end and go on writing: that is no longer
        the command's output, so it is read for a short time only.
        """
        until = time.monotonic() + _DRAIN_S
        while self.take() and time.monotonic() < until:
            pass
        self.close_source()

    def close_source(self) -> None:
        """Read nothing more."""
        if self.source is not None:
            os.close(self.source)
            self.source = None


class Keyboard:
    """Carries what is typed to the command's terminal."""

    __slots__ = ("_pending", "master", "resting", "source")

    def __init__(self, source: int, master: int) -> None:
        self.source: int | None = source
        """None once it has ended."""
        self.resting = False
        """Whether it cannot be read for now: we are in the terminal's background."""
        self.master = master
        self._pending = bytearray()

    @property
    def pending(self) -> bool:
        """Whether the terminal has still to take something."""
        return bool(self._pending)

    def take(self) -> int:
        """Read what was typed; says how many interrupt keys were among it."""
        if self.source is None:
            return 0
        try:
            typed = os.read(self.source, _KEYS_BYTES)
        except OSError:
            self.resting = True
            return 0
        if not typed:
            self.source = None
        self._pending += typed or _END_OF_INPUT
        self.give()
        return typed.count(_INTERRUPT_KEY)

    def give(self) -> None:
        """Hand the terminal what it takes now."""
        try:
            while self._pending:
                del self._pending[: os.write(self.master, self._pending)]
        except BlockingIOError:
            return
        except OSError:
            self._pending.clear()
