"""Look at a tree folder by folder: stat rows in bulk, links, attributes, steady reads.

Room: snapshot. Knows how to see what is there without following a link, opening
anything but regular files, or trusting a file that moves; knows nothing of what was
there before.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TypeVar

from workspace_guard.files.tree import CHUNK_BYTES, NotRegular
from workspace_guard.files.xattrs import read_xattrs
from workspace_guard.snapshot.manifest import (
    MODE,
    NO_EXTRA,
    SIZE,
    Extra,
    Row,
    Stored,
    pack_rows,
    row_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from workspace_guard.files.tree import Folder
    from workspace_guard.files.xattrs import Attributes

_ATTEMPTS = 3
_HANDLES_KEPT = 128
_HAS_PROC = os.path.exists("/proc/self/fd")

Result = TypeVar("Result")


# --- Errors ---------------------------------------------------------------------------

GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE})
"""What stood under a name has vanished, or something else took its place."""

_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def fact_of(error: OSError) -> str:
    """The reason of a failure, for people; a failure of ours goes on up.

    Raises:
        OSError: descriptors or memory ran out, which says nothing about the path.
    """
    if error.errno in _OURS:
        raise error
    return error.strerror or str(error)


# --- Folders --------------------------------------------------------------------------


class Trail:
    """Open folders on the way from the top of a walk to where it is.

    A walk in depth opens each folder once, relative to the one above. However deep the
    tree is, only so many handles are kept; one that was let go is opened again, part by
    part and through no link, when the walk comes back to it.
    """

    def __init__(self, top: Folder) -> None:
        self._top = top
        self._open: list[tuple[bytes, Folder]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.forget()

    def forget(self) -> None:
        """Let go of every handle, as after a folder on the way was replaced."""
        while self._open:
            self._open.pop()[1].close()

    def reach(self, path: bytes) -> Folder:
        """Open the folder at a path below the top.

        Returns:
            A handle that is good until the next call; the trail closes it.

        Raises:
            OSError: it or one above it is gone, no folder, a link, or not to be read.
        """
        while self._open and not _is_in(path, self._open[-1][0]):
            self._open.pop()[1].close()
        here_path, here = self._open[-1] if self._open else (b"", self._top)
        for name in path[len(here_path) :].split(b"/"):
            if not name:
                continue
            here = here.enter(name)
            here_path = here_path + b"/" + name if here_path else name
            self._open.append((here_path, here))
            if len(self._open) > _HANDLES_KEPT:
                self._open.pop(_HANDLES_KEPT // 2)[1].close()
        return here


def _is_in(path: bytes, folder: bytes) -> bool:
    return path == folder or path.startswith(folder + b"/")


@dataclass(slots=True)
class Listing:
    """What a folder holds, in the order in which the file system names it."""

    names: list[str] = field(default_factory=list[str])
    """As the platform decodes them; `packed_names` has the exact bytes."""
    rows: list[Row] = field(default_factory=list[Row])
    folders: list[bytes] = field(default_factory=list[bytes])

    def packed_names(self) -> bytes:
        """The names as a record has them, joined by NUL."""
        return os.fsencode("\0".join(self.names))

    def packed_rows(self) -> bytes:
        """The rows as a record has them."""
        return pack_rows(self.rows)

    def by_name(self) -> dict[bytes, Row]:
        """The rows by exact name."""
        return dict(zip(map(os.fsencode, self.names), self.rows, strict=True))


def list_folder(folder: Folder, skipped: frozenset[str] = frozenset()) -> Listing:
    """Stat every name in a folder; one that vanishes meanwhile is left out.

    Args:
        folder: the folder.
        skipped: names that are left out.
    """
    listing = Listing()
    names, rows, folders = listing.names, listing.rows, listing.folders
    with os.scandir(place_of(folder)) as found:
        for item in found:
            name = item.name
            if name in skipped:
                continue
            try:
                row = row_of(item.stat(follow_symlinks=False))
            except FileNotFoundError:
                continue
            names.append(name)
            rows.append(row)
            if stat.S_ISDIR(row[MODE]):
                folders.append(os.fsencode(name))
    return listing


def place_of(folder: Folder) -> int | str:
    """What to hand to `os.scandir` for a folder."""
    return folder.fd if folder.fd is not None else os.fsdecode(folder.path)


def names_by_folder(paths: Iterable[bytes]) -> dict[bytes, frozenset[str]]:
    """Sort paths by the folder that holds them, names decoded as in a listing."""
    sorted_out: dict[bytes, set[str]] = {}
    for path in paths:
        above, _, name = path.rpartition(b"/")
        sorted_out.setdefault(above, set()).add(os.fsdecode(name))
    return {above: frozenset(names) for above, names in sorted_out.items()}


# --- Single names ---------------------------------------------------------------------


def read_steadily(
    fd: int, read: Callable[[Row], Result | None]
) -> tuple[Row, Attributes, Result] | None:
    """Read an open regular file so that what was read is one state of it.

    Args:
        fd: at its start.
        read: reads from the start, told the row; None where the size was another.

    Returns:
        Row, attributes and what `read` gave, all of one moment; None where the file
        changed under each of three attempts (case S11).

    Raises:
        NotRegular: it is no regular file; nothing was read.
    """
    for attempt in range(_ATTEMPTS):
        before = row_of(os.fstat(fd))
        if not stat.S_ISREG(before[MODE]):
            raise NotRegular(0, "is no regular file")
        if attempt:
            os.lseek(fd, 0, os.SEEK_SET)
        result = read(before)
        xattrs = read_xattrs(fd)
        if result is not None and row_of(os.fstat(fd)) == before:
            return before, xattrs, result
    return None


def read_whole(fd: int, size: int) -> bytes | None:
    """Read a small file in one go; None where it is not that long."""
    # One byte more is asked for, so that a file that has grown is noticed.
    content = os.read(fd, size + 1)
    return content if len(content) == size else None


def hash_file(fd: int, size: int) -> bytes | None:
    """Hash a file from where it stands, in chunks; None where it is not that long."""
    sha256 = hashlib.sha256()
    left = size + 1
    while left > 0 and (chunk := os.read(fd, min(CHUNK_BYTES, left))):
        sha256.update(chunk)
        left -= len(chunk)
    return sha256.digest() if left == 1 else None


def extra_of(folder: Folder, name: bytes, found: os.stat_result) -> Extra:
    """Read link text, device number and attributes of a name, opening nothing."""
    link = folder.read_link(name) if stat.S_ISLNK(found.st_mode) else None
    is_device = stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode)
    rdev = found.st_rdev if is_device else None
    try:
        xattrs = read_xattrs(by_name(folder, name))
    except PermissionError:  # as their values are where the content may not be read
        xattrs = ()
    return link, rdev, xattrs


def by_name(folder: Folder, name: bytes) -> bytes:
    """A path for the calls that know no folder descriptor, and are told not to follow.

    Source: proc_pid_fd(5): the descriptor's link leads to the open folder itself, also
    when it was renamed or replaced meanwhile.
    """
    if folder.fd is None or not _HAS_PROC:
        return os.path.join(folder.path, name)
    return b"/proc/self/fd/%d/%s" % (folder.fd, name)


def look(
    folder: Folder, name: bytes, *, hash_bytes: int | None
) -> tuple[Stored, str | None]:
    """See one name whole, reading the content of a regular file.

    Args:
        folder: the folder that holds it.
        name: its name there.
        hash_bytes: content longer than this is not read; None reads any.

    Returns:
        The entry; and why the content of a regular file could not be read, or None.

    Raises:
        OSError: the name is gone.
    """
    found = folder.stat(name)
    if not stat.S_ISREG(found.st_mode):
        return (row_of(found), None, extra_of(folder, name, found)), None
    if hash_bytes is not None and found.st_size > hash_bytes:
        return (row_of(found), None, extra_of(folder, name, found)), None
    try:
        fd = folder.open_regular(name)
    except NotRegular:
        return look(folder, name, hash_bytes=hash_bytes)
    except OSError as error:
        if error.errno in GONE:
            raise
        return (row_of(found), None, extra_of(folder, name, found)), fact_of(error)
    try:
        return _look_into(fd)
    finally:
        os.close(fd)


def _look_into(fd: int) -> tuple[Stored, str | None]:
    try:
        seen = read_steadily(fd, lambda row: hash_file(fd, row[SIZE]))
    except OSError as error:
        return (row_of(os.fstat(fd)), None, NO_EXTRA), fact_of(error)
    if seen is None:
        extra: Extra = (None, None, read_xattrs(fd))
        return (row_of(os.fstat(fd)), None, extra), "changed while it was read"
    row, xattrs, digest = seen
    return (row, digest, (None, None, xattrs)), None
