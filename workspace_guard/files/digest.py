"""Read regular files whole, in chunks, and say exactly what was read.

Room: files. Knows SHA-256 and when a file has moved under the reader; knows nothing of
what the digest is compared with.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workspace_guard.files.tree import CHUNK_BYTES, write_all

if TYPE_CHECKING:
    from workspace_guard.files.tree import Folder

_ATTEMPTS = 3


class Unstable(OSError):
    """The file changed while it was read, each time that it was tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """What a regular file held when it was read."""

    sha256: str
    """Hexadecimal."""
    size_bytes: int


def identity(found: os.stat_result) -> tuple[int, int, int, int, int]:
    """The fields that a write to a file cannot leave alone (but see case S1)."""
    return (
        found.st_dev,
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
    )


def hash_regular(folder: Folder, name: bytes) -> Digest:
    """Hash a regular file through no link.

    Raises:
        NotRegular: it is something else; it was not opened for reading.
        Unstable: it would not hold still, in three attempts.
        OSError: missing or not readable.
    """
    fd = folder.open_regular(name)
    try:
        return read_stably(fd, None, os.path.join(folder.path, name))
    finally:
        os.close(fd)


def copy_regular(folder: Folder, name: bytes, to_fd: int) -> Digest:
    """Copy a regular file's bytes into an empty, seekable file, and hash them.

    Args:
        folder: the folder that holds the source.
        name: the source's name in it.
        to_fd: where the bytes go, from its start; emptied again before a new attempt.

    Returns:
        The digest of what was both read and written.

    Raises:
        NotRegular, Unstable, OSError: as `hash_regular`; `to_fd` then holds part of it.
    """
    fd = folder.open_regular(name)
    try:
        return read_stably(fd, to_fd, os.path.join(folder.path, name))
    finally:
        os.close(fd)


def read_stably(fd: int, to_fd: int | None, where: bytes) -> Digest:
    """Read an open regular file as it was at one moment, hash it and perhaps copy it.

    Args:
        fd: the file, open for reading; its position is moved.
        to_fd: where the bytes go, as for `copy_regular`; None only hashes.
        where: the file's path, for messages.

    Raises:
        Unstable: it would not hold still, in three attempts.
        OSError: it could not be read, or the copy not be written.
    """
    for _attempt in range(_ATTEMPTS):
        before = os.fstat(fd)
        os.lseek(fd, 0, os.SEEK_SET)
        if to_fd is not None:
            os.lseek(to_fd, 0, os.SEEK_SET)
            os.ftruncate(to_fd, 0)
        # One byte past the known end is asked for, so that a file that grows as fast
        # as it is read ends the attempt instead of the disk.
        digest = _read_bounded(fd, to_fd, before.st_size + 1)
        if digest.size_bytes == before.st_size and identity(before) == identity(
            os.fstat(fd)
        ):
            return digest
    raise Unstable(0, "changed while it was read", os.fsdecode(where))


def _read_bounded(fd: int, to_fd: int | None, limit_bytes: int) -> Digest:
    sha256 = hashlib.sha256()
    left = limit_bytes
    while left > 0:
        chunk = os.read(fd, min(CHUNK_BYTES, left))
        if not chunk:
            break
        left -= len(chunk)
        sha256.update(chunk)
        if to_fd is not None:
            write_all(to_fd, chunk)
    return Digest(sha256=sha256.hexdigest(), size_bytes=limit_bytes - left)
