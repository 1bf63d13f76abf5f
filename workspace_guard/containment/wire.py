"""The words between the guard and its supervisor: tuples, each with its length first.

Room: containment. Knows how a message is put on a descriptor and taken off it, and
what the first one asks; knows nothing of processes. The supervisor loads it, so it
imports nothing that takes time.

The guard says `run request` once, and then `signal number`, `resize rows columns`,
`stop`, `end_tree grace`. The supervisor says `started pid whole_tree` or
`not_started fault text`, `beat`, `key` (an interrupt key was pressed),
`ended status cause` (no status: it cannot be ended), `tree_ended rows cpu_s
max_rss_bytes log_fault`, and `failed text` where it broke. End of file from the guard
means that it died.
"""

from __future__ import annotations

import marshal
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself would cost the supervisor its start time
    from typing import TypedDict

    class Request(TypedDict):
        """What the supervisor is asked to run. Descriptors are open in it."""

        guard: int
        command: list[bytes]
        cwd: bytes
        environment: dict[bytes, bytes]
        streams: tuple[int, int, int]
        terminal: tuple[int, int, int] | None
        """Rows, columns, and this platform's number of TIOCSWINSZ."""
        own_session: bool
        timeout_s: float | None
        log: int
        heartbeat: int | None
        hold: list[int]


Message = tuple[object, ...]

_LENGTH = struct.Struct("=I")
_CHUNK_BYTES = 1 << 16


class Channel:
    """One end of the pair: never blocks, keeps what could not be written yet.

    Both ends are ours and no command ever gets one, so what is read is trusted.
    """

    __slots__ = ("_read", "_unsent", "closed", "fd")

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.closed = False
        """Whether the other end is gone, or ours."""
        self._read = bytearray()
        self._unsent = bytearray()

    @property
    def waiting(self) -> bool:
        """Whether something is still to be written."""
        return bool(self._unsent)

    def send(self, *message: object) -> None:
        """Say something; what does not fit is kept for `flush`.

        Nothing is done once it is closed: the number may be another file's by now.
        """
        if self.closed:
            return
        body = marshal.dumps(message)  # type: ignore[arg-type]  # plain values only
        self._unsent += _LENGTH.pack(len(body)) + body
        self.flush()

    def flush(self) -> None:
        """Write what was kept, as far as it goes now."""
        while self._unsent:
            try:
                written = os.write(self.fd, self._unsent)
            except BlockingIOError:
                return
            except OSError:  # nobody reads any more; reading will say so as well
                self._unsent.clear()
                return
            del self._unsent[:written]

    def receive(self) -> list[Message]:
        """Take what has come, whole messages only; sets `closed` at the end."""
        try:
            chunk = os.read(self.fd, _CHUNK_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            chunk = b""
        self.closed = not chunk
        self._read += chunk
        return self._whole_messages()

    def _whole_messages(self) -> list[Message]:
        messages: list[Message] = []
        while len(self._read) >= _LENGTH.size:
            end = _LENGTH.size + int(_LENGTH.unpack_from(self._read)[0])
            if len(self._read) < end:
                break
            body = self._read[_LENGTH.size : end]
            message: Message = marshal.loads(body)  # noqa: S302 - see the class
            del self._read[:end]
            messages.append(message)
        return messages


def heartbeat_line(state: str, pid: int) -> bytes:
    """What a heartbeat file holds: `running` or `ended`, and the supervisor's pid.

    Always of one length, so that it can be written over in place by one call.
    """
    return f"{state:<7} {pid:>10}\n".encode("ascii")
