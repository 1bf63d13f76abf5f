"""Keep what was written in the wrong place, under its own path, before it is removed.

Room: snapshot. Knows how to move one name out of a tree so that nothing of it is lost
and no inode that somebody else can name comes along; knows nothing of why it must go.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import stat
from typing import TYPE_CHECKING, Self

from workspace_guard.files.tree import CHUNK_BYTES, Folder, write_all
from workspace_guard.snapshot.attributes import owner_may, put_on_name, put_on_open
from workspace_guard.snapshot.manifest import (
    MTIME_NS,
    SIZE,
    Entry,
    Row,
    entry_of,
    join,
    row_of,
)
from workspace_guard.snapshot.scan import Trail, extra_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

_ATTEMPTS = 3
_LONGEST_NAME_BYTES = 240


class Restless(OSError):
    """A file changed each time that it was copied; it was not removed."""


class Quarantine:
    """A folder for what a restore takes out of a tree; made when first needed."""

    def __init__(self, path: Path) -> None:
        """Name the folder; nothing is done yet.

        Args:
            path: outside the tree. It and what is missing above are made, owner-only.
        """
        self._path = path
        self._open: tuple[Folder, Trail] | None = None
        self._saved: dict[bytes, bytes] = {}
        self._folders: dict[bytes, bytes] = {b"": b""}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._open is not None:
            top, trail = self._open
            trail.forget()
            top.close()

    @property
    def saved(self) -> Mapping[bytes, bytes]:
        """Where each path is kept, relative to the quarantine."""
        return self._saved

    def take(self, folder: Folder, name: bytes, path: bytes) -> None:
        """Move a name that is no folder out of the tree.

        By renaming where that can be; a file with other names is copied, for they would
        be names of what is kept. A device node or socket that may not be made again is
        removed all the same: it holds nothing.

        Raises:
            OSError: it is where it was, and nothing of it is here.
        """
        found = folder.stat(name)
        above, _, last = path.rpartition(b"/")
        kept_above = self._keep_above(above)
        to = self._reach(kept_above)
        kept = _free_name(to, last)
        moved = found.st_nlink == 1 and _try_rename(folder, name, to, kept)
        if not moved:
            if stat.S_ISREG(found.st_mode):
                _copy_file(folder, name, to, kept)
            else:
                _copy_other(folder, name, found, to, kept)
            folder.unlink(name)
        if to.lookup(kept) is not None:
            self._saved[path] = join(kept_above, kept)

    def take_folder(self, folder: Folder, name: bytes, path: bytes, row: Row) -> None:
        """Keep a folder that is empty by now, and remove it.

        Args:
            folder: holds it.
            name: its name there.
            path: its path in the tree.
            row: what it was before it was emptied.

        Raises:
            OSError: it is where it was, perhaps because it is not empty.
        """
        entry = entry_of((row, None, extra_of(folder, name, folder.stat(name))))
        kept = self._keep_above(path)
        folder.remove_folder(name)
        self._saved[path] = kept
        above, _, last = kept.rpartition(b"/")
        usable = dataclasses.replace(entry, mode=entry.mode | stat.S_IRWXU)
        with contextlib.suppress(OSError):
            put_on_name(self._reach(above), last, usable)

    def _keep_above(self, path: bytes) -> bytes:
        """Make the folder that keeps what a folder holds; give where it is."""
        missing: list[bytes] = []
        while path not in self._folders:
            missing.append(path)
            path = path.rpartition(b"/")[0]
        for inner in reversed(missing):
            kept_above = self._folders[inner.rpartition(b"/")[0]]
            to = self._reach(kept_above)
            name = _free_name(to, inner.rpartition(b"/")[2])
            to.make_folder(name, 0o700)
            self._folders[inner] = join(kept_above, name)
            path = inner
        return self._folders[path]

    def _reach(self, kept: bytes) -> Folder:
        if self._open is None:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            top = Folder.open(self._path)
            self._open = top, Trail(top)
        return self._open[1].reach(kept)


def _free_name(folder: Folder, name: bytes) -> bytes:
    """The name itself, or one beside it where it is taken already."""
    candidate, number = name, 0
    while folder.lookup(candidate) is not None:
        number += 1
        candidate = b"%s~%d" % (name[:_LONGEST_NAME_BYTES], number)
    return candidate


def _try_rename(folder: Folder, name: bytes, to: Folder, kept: bytes) -> bool:
    try:
        folder.rename(name, to, kept)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def _entry(folder: Folder, name: bytes) -> Entry:
    found = folder.stat(name)
    return entry_of((row_of(found), None, extra_of(folder, name, found)))


def _copy_file(folder: Folder, name: bytes, to: Folder, kept: bytes) -> None:
    """Copy a file durably, holes as holes, attributes as far as we may."""
    fd = _open_in_any_case(folder, name)
    try:
        to_fd = to.create(kept)
        try:
            _copy_steadily(fd, to_fd)
            put_on_open(to_fd, _entry(folder, name))
            os.fsync(to_fd)  # the original is about to go
        except BaseException:
            with contextlib.suppress(OSError):
                to.unlink(kept)
            raise
        finally:
            os.close(to_fd)
    finally:
        os.close(fd)


def _open_in_any_case(folder: Folder, name: bytes) -> int:
    """Open a file of ours for reading, also where its mode keeps its owner out."""
    try:
        return folder.open_regular(name)
    except PermissionError:
        with owner_may(folder, name, stat.S_IRUSR):
            return folder.open_regular(name)


def _copy_steadily(fd: int, to_fd: int) -> None:
    for _attempt in range(_ATTEMPTS):
        before = os.fstat(fd)
        os.ftruncate(to_fd, 0)
        for start, end in _filled(fd, before.st_size):
            _copy_range(fd, to_fd, start, end)
        os.ftruncate(to_fd, before.st_size)
        if _written(row_of(os.fstat(fd))) == _written(row_of(before)):
            return
    raise Restless(0, "changed each time that it was copied")


def _written(row: Row) -> tuple[int, int]:
    return row[SIZE], row[MTIME_NS]


def _filled(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """The ranges of a file that hold data; all of it where nobody can tell."""
    if not hasattr(os, "SEEK_DATA"):
        yield 0, size
        return
    position = 0
    while position < size:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # nothing but a hole up to the end
        position = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        yield start, position


def _copy_range(fd: int, to_fd: int, start: int, end: int) -> None:
    os.lseek(fd, start, os.SEEK_SET)
    os.lseek(to_fd, start, os.SEEK_SET)
    while start < end and (chunk := os.read(fd, min(CHUNK_BYTES, end - start))):
        write_all(to_fd, chunk)
        start += len(chunk)


def _copy_other(
    folder: Folder, name: bytes, found: os.stat_result, to: Folder, kept: bytes
) -> None:
    """Make a link, FIFO, socket or device node again, as far as we may."""
    entry = _entry(folder, name)
    if entry.link is not None:
        os.symlink(entry.link, to.at(kept), dir_fd=to.fd)
    else:
        with contextlib.suppress(PermissionError):
            os.mknod(to.at(kept), found.st_mode, found.st_rdev, dir_fd=to.fd)
    with contextlib.suppress(FileNotFoundError):
        put_on_name(to, kept, entry)
