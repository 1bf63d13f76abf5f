"""Content by its SHA-256, appended to packs; a pack counts once its index is there.

Room: snapshot. Knows packs and their indexes; knows nothing of names and manifests.

A pack is contents end to end, and nothing else. Its index is a line of schema, then 48
bytes a content, sorted (digest, offset, length), then the SHA-256 of all that. A pack
is named for its index's digest, so that a manifest which names a pack has also said
what is in it. Order of writes: the pack, flushed; its final name; the index by
replacement. A pack without an index is what a dead writer has left.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import os
import struct
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workspace_guard.errors import StateWriteFailed, StoreDamaged, show_path
from workspace_guard.files.replace import staged_file, staged_name
from workspace_guard.files.tree import CHUNK_BYTES, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from workspace_guard.files.tree import Folder

OWNER = "store"
"""In whose name files of the store are staged."""
PACK_SUFFIX = b".pack"
INDEX_SUFFIX = b".index"

_SCHEMA = b"workspace-guard/pack-index/1\n"
_RECORD = struct.Struct(">32sQQ")
_DIGEST_BYTES = 32
_NAME_DIGITS = 32
_BUFFER_BYTES = CHUNK_BYTES


@contextlib.contextmanager
def writing(path: bytes) -> Generator[None]:
    """Turn a failure to write the store into an error that names path and fact.

    Raises:
        StateWriteFailed: in place of any OSError of the block.
    """
    try:
        yield
    except OSError as error:
        fact = error.strerror or str(error)
        raise StateWriteFailed(f"{show_path(path)}: {fact}") from error


@dataclass(frozen=True, slots=True)
class Span:
    """Where a content lies."""

    pack: str
    offset: int
    length: int


class PackIndex:
    """What a finished pack holds; looked up in the sorted bytes, never unpacked."""

    __slots__ = ("_records", "name")

    def __init__(self, name: str, records: bytes) -> None:
        self.name = name
        self._records = records

    @classmethod
    def read(cls, folder: Folder, name: str) -> PackIndex | None:
        """Read a pack's index.

        Returns:
            The index, or None where pack or index is not there.

        Raises:
            StoreDamaged: it is torn, was changed, or the pack is shorter than it says.
        """
        file = name.encode() + INDEX_SUFFIX
        pack = folder.lookup(name.encode() + PACK_SUFFIX)
        where = os.path.join(folder.path, file)
        try:
            content = read_file(folder, file)
        except FileNotFoundError:
            return None
        records, digest = (
            content[len(_SCHEMA) : -_DIGEST_BYTES],
            content[-_DIGEST_BYTES:],
        )
        whole = content.startswith(_SCHEMA) and _digest(records) == digest
        if not whole or digest.hex()[:_NAME_DIGITS] != name:
            raise StoreDamaged(f"{show_path(where)}: does not agree with its digest")
        if pack is None:
            return None
        index = cls(name, records)
        if pack.st_size != index.size_bytes:
            raise StoreDamaged(
                f"{show_path(where)}: its pack has {pack.st_size} bytes,"
                f" {index.size_bytes} were written"
            )
        return index

    def __len__(self) -> int:
        return len(self._records) // _RECORD.size

    @property
    def size_bytes(self) -> int:
        """Of the pack."""
        return sum(length for _, _, length in _RECORD.iter_unpack(self._records))

    def find(self, digest: bytes) -> Span | None:
        """Where in the pack a content lies, or None."""
        position = bisect.bisect_left(range(len(self)), digest, key=self._digest_at)
        if position == len(self) or self._digest_at(position) != digest:
            return None
        _, offset, length = _RECORD.unpack_from(self._records, position * _RECORD.size)
        return Span(self.name, offset, length)

    def _digest_at(self, position: int) -> bytes:
        start = position * _RECORD.size
        return self._records[start : start + _DIGEST_BYTES]


class PackWriter:
    """A pack that is being written; without `finish` nothing of it stays."""

    def __init__(self, folder: Folder, known: Callable[[bytes], bool]) -> None:
        """Start a pack.

        Args:
            folder: the store's; stays open as long as the writer.
            known: tells whether the store has a content already.
        """
        self._folder = folder
        self._known = known
        self._positions: dict[bytes, int] = {}
        """Where in the two arrays a content's place is; whole numbers in arrays take
        a fifth of what as many pairs would."""
        self._offsets = array("Q")
        self._lengths = array("Q")
        self._pending: list[bytes] = []
        self._end = 0
        """Where the content that counts ends, also what is still pending."""
        self._written = 0
        """Where it ends in the file."""
        self._staged = staged_name(OWNER)
        self._path = os.path.join(folder.path, self._staged)
        self._fd: int | None = None
        self._made: list[bytes] = []

    def add(self, content: bytes) -> bytes:
        """Keep a small content.

        Returns:
            Its SHA-256.

        Raises:
            StateWriteFailed: the pack could not be written.
        """
        digest = hashlib.sha256(content).digest()
        if not self._has(digest):
            self._note(digest, len(content))
            self._pending.append(content)
            if self._end - self._written >= _BUFFER_BYTES:
                self._flush()
        return digest

    def stream(self, fd: int, size: int) -> bytes | None:
        """Copy a large file's content in, on trial: `settle` makes it count.

        Args:
            fd: the file, at its start.
            size: how long it is said to be, in bytes.

        Returns:
            Its SHA-256; None where it was not that long.

        Raises:
            StateWriteFailed: the pack could not be written.
            OSError: the file could not be read.
        """
        self._flush()
        pack = self._file()
        with writing(self._path):
            os.lseek(pack, self._end, os.SEEK_SET)
        sha256 = hashlib.sha256()
        left = size + 1
        while left > 0 and (chunk := os.read(fd, min(CHUNK_BYTES, left))):
            left -= len(chunk)
            sha256.update(chunk)
            with writing(self._path):
                write_all(pack, chunk)
        return sha256.digest() if left == 1 else None

    def settle(self, digest: bytes, size: int) -> None:
        """Count the content that was streamed last."""
        if not self._has(digest):
            self._note(digest, size)
            self._written = self._end

    def finish(self) -> PackIndex | None:
        """Make the pack durable and give it its index.

        Returns:
            The index; None where there was nothing new.

        Raises:
            StateWriteFailed: it could not be written; `discard` removes what is there.
        """
        if not self._positions:
            self.discard()
            return None
        self._flush()
        pack = self._file()
        records = self._take_records()
        digest = _digest(records)
        name = digest.hex()[:_NAME_DIGITS]
        with writing(self._path):
            os.ftruncate(pack, self._end)  # what was streamed in and did not count
            os.fsync(pack)
            self._close()
            final = name.encode() + PACK_SUFFIX
            self._made.append(final)
            self._folder.rename(self._staged, self._folder, final)
        index = name.encode() + INDEX_SUFFIX
        self._made.append(index)
        replace_durably(self._folder, index, (_SCHEMA, records, digest))
        return PackIndex(name, records)

    def discard(self) -> None:
        """Remove everything that was written; what cannot be is litter for the next."""
        self._close()
        for name in (self._staged, *self._made):
            with contextlib.suppress(OSError):
                self._folder.unlink(name)

    def _has(self, digest: bytes) -> bool:
        return digest in self._positions or self._known(digest)

    def _note(self, digest: bytes, length: int) -> None:
        self._positions[digest] = len(self._offsets)
        self._offsets.append(self._end)
        self._lengths.append(length)
        self._end += length

    def _take_records(self) -> bytes:
        """Spell the index, and let go of what it was made from."""
        records = bytearray(_RECORD.size * len(self._positions))
        for row, digest in enumerate(sorted(self._positions)):
            position = self._positions[digest]
            place = self._offsets[position], self._lengths[position]
            _RECORD.pack_into(records, row * _RECORD.size, digest, *place)
        self._positions.clear()
        return bytes(records)

    def _flush(self) -> None:
        if not self._pending:
            return
        pack = self._file()
        with writing(self._path):
            os.lseek(pack, self._written, os.SEEK_SET)
            write_all(pack, b"".join(self._pending))
        self._pending.clear()
        self._written = self._end

    def _file(self) -> int:
        if self._fd is None:
            with writing(self._path):
                self._fd = self._folder.create(self._staged)
        return self._fd

    def _close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)


def _digest(records: bytes) -> bytes:
    """The digest of an index, which also names its pack."""
    sha256 = hashlib.sha256(_SCHEMA)
    sha256.update(records)
    return sha256.digest()


def read_file(folder: Folder, name: bytes, limit_bytes: int = 1 << 62) -> bytes:
    """Read a file of the store, from its start."""
    fd = folder.open_regular(name)
    with open(fd, "rb") as file:
        return file.read(min(limit_bytes, os.fstat(fd).st_size))


def replace_durably(folder: Folder, name: bytes, pieces: tuple[bytes, ...]) -> None:
    """Put a file of the store in place, flushed, in one rename.

    Raises:
        StateWriteFailed: nothing of it is left, but for a failure of the last flush.
    """
    with writing(os.path.join(folder.path, name)):
        staged = staged_name(OWNER)
        with staged_file(folder, staged) as fd:
            for piece in pieces:
                write_all(fd, piece)
        try:
            folder.rename(staged, folder, name)
        except OSError:
            with contextlib.suppress(OSError):
                folder.unlink(staged)
            raise
        folder.sync()
