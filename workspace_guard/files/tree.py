"""Walk, open, copy, move and remove by folder descriptor, never through a link.

Room: files. Knows folders as open handles and names as bytes inside them; knows
nothing of what the files are for. Where a platform has no `dir_fd` (Windows) the same
code works by path, with a look at each folder before it is entered.

Source: openat(2), unlinkat(2), symlink(7).
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from workspace_guard.files.relpath import RelPath

BY_DESCRIPTOR = os.open in os.supports_dir_fd
"""Whether this platform can name a file by folder descriptor."""

O_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
O_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
O_CLOEXEC = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0)
O_BINARY = getattr(os, "O_BINARY", 0)
O_DIRECTORY = getattr(os, "O_DIRECTORY", 0)
_O_PATH: int = getattr(os, "O_PATH", 0)
_LINKS_NO_FOLLOW = os.link in os.supports_follow_symlinks

CHUNK_BYTES = 1 << 20


class NotRegular(OSError):
    """What was to be read is no regular file; it was not opened for reading."""


class Folder:
    """An open folder; all names given to it are single parts, as bytes.

    A handle is opened without following a link in its last part, so what it names
    cannot be swapped for something else while it is held. Close it with `with`.
    """

    __slots__ = ("fd", "path")

    def __init__(self, path: bytes, fd: int | None) -> None:
        self.path = path
        """How the folder was reached, for messages (and for access on Windows)."""
        self.fd = fd
        """The descriptor, or None where the platform has none."""

    @classmethod
    def open(cls, path: str | bytes | os.PathLike[str]) -> Self:
        """Open a folder by path; links in the parts above the last are followed.

        Raises:
            OSError: with `filename` set: missing, no folder, a link, not readable.
        """
        raw = os.fsencode(path)
        if not BY_DESCRIPTOR:
            _require_folder(raw)
            return cls(raw, None)
        # With a slash behind it the kernel would follow a link after all.
        raw = raw.rstrip(b"/") or raw
        flags = os.O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC
        return cls(raw, os.open(raw, flags))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the descriptor; closing twice does nothing."""
        if self.fd is not None:
            fd, self.fd = self.fd, None
            os.close(fd)

    def at(self, name: bytes) -> bytes:
        """The name to hand to an `os` call together with `dir_fd=self.fd`."""
        return name if self.fd is not None else os.path.join(self.path, name)

    def enter(self, name: bytes) -> Folder:
        """Open a folder inside this one, refusing a link (ELOOP or ENOTDIR)."""
        inner = os.path.join(self.path, name)
        if self.fd is None:
            _require_folder(inner)
            return Folder(inner, None)
        flags = os.O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC
        return Folder(inner, os.open(name, flags, dir_fd=self.fd))

    def reach(self, path: RelPath) -> Folder:
        """Open the folder at `path` below this one, part by part, through no link.

        Returns:
            A handle of its own, also for the root path.
        """
        if not path.parts:
            return self.enter(b".")
        here = self
        try:
            for part in path.parts:
                above, here = here, here.enter(part)
                if above is not self:
                    above.close()
        except BaseException:
            if here is not self:
                here.close()
            raise
        return here

    def stat(self, name: bytes) -> os.stat_result:
        """`lstat` of a name in this folder."""
        return os.stat(self.at(name), dir_fd=self.fd, follow_symlinks=False)

    def lookup(self, name: bytes) -> os.stat_result | None:
        """`lstat` of a name, or None where there is nothing."""
        try:
            return self.stat(name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def own_stat(self) -> os.stat_result:
        """`stat` of the folder itself."""
        return os.stat(self.fd if self.fd is not None else self.path)

    def names(self) -> list[bytes]:
        """All names in the folder, in the order of the file system."""
        if self.fd is None:
            return os.listdir(self.path)
        return [os.fsencode(name) for name in os.listdir(self.fd)]

    def open_regular(self, name: bytes) -> int:
        """Open a regular file for reading, never through a link, never blocking.

        Returns:
            A descriptor that the caller closes.

        Raises:
            NotRegular: it is a link, folder, FIFO, socket or device.
            OSError: missing or not readable.

        Source: open(2) on O_NONBLOCK with a FIFO; spec 1 trap 9.
        """
        where = os.path.join(self.path, name)
        if not stat.S_ISREG(self.stat(name).st_mode):
            raise NotRegular(0, "is no regular file", os.fsdecode(where))
        flags = os.O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_BINARY
        fd = os.open(self.at(name), flags, dir_fd=self.fd)
        try:
            is_regular = stat.S_ISREG(os.fstat(fd).st_mode)
        except BaseException:
            os.close(fd)
            raise
        if is_regular:
            return fd
        os.close(fd)
        raise NotRegular(0, "is no regular file", os.fsdecode(where))

    def create(self, name: bytes, mode: int = 0o600) -> int:
        """Create a new file for writing; fails where the name is taken, link or not."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_BINARY
        return os.open(self.at(name), flags, mode, dir_fd=self.fd)

    def make_folder(self, name: bytes, mode: int = 0o777) -> None:
        """Create a folder; the umask holds."""
        os.mkdir(self.at(name), mode, dir_fd=self.fd)

    def unlink(self, name: bytes) -> None:
        """Remove a name that is no folder."""
        os.unlink(self.at(name), dir_fd=self.fd)

    def remove_folder(self, name: bytes) -> None:
        """Remove an empty folder."""
        os.rmdir(self.at(name), dir_fd=self.fd)

    def read_link(self, name: bytes) -> bytes:
        """The text of a symlink."""
        return os.readlink(self.at(name), dir_fd=self.fd)

    def rename(self, name: bytes, to: Folder, new_name: bytes) -> None:
        """Rename into another folder of this file system, replacing a file there."""
        os.replace(self.at(name), to.at(new_name), src_dir_fd=self.fd, dst_dir_fd=to.fd)

    def link(self, name: bytes, to: Folder, new_name: bytes) -> None:
        """Give a file a second name in a folder of this file system."""
        if _LINKS_NO_FOLLOW:
            os.link(
                self.at(name),
                to.at(new_name),
                src_dir_fd=self.fd,
                dst_dir_fd=to.fd,
                follow_symlinks=False,
            )
        else:
            os.link(self.at(name), to.at(new_name))

    def sync(self) -> None:
        """Flush the folder's names to the disk (nothing where a platform cannot)."""
        if self.fd is not None:
            os.fsync(self.fd)


_JUNCTION = 0xA0000003  # IO_REPARSE_TAG_MOUNT_POINT


def _require_folder(path: bytes) -> None:
    """Stand in for O_DIRECTORY | O_NOFOLLOW where there are no descriptors."""
    found = os.lstat(path)
    # A junction is Windows' other way to link a folder (`os.path.isjunction`, 3.12).
    is_junction = getattr(found, "st_reparse_tag", 0) == _JUNCTION
    if not stat.S_ISDIR(found.st_mode) or is_junction:
        raise NotADirectoryError(errno.ENOTDIR, "is no folder", os.fsdecode(path))


def write_all(fd: int, chunk: bytes | memoryview) -> None:
    """Write every byte: a short write is not success (case S52)."""
    view = memoryview(chunk)
    while view:
        view = view[os.write(fd, view) :]


def walk(
    top: Folder,
    *,
    skip: frozenset[bytes] = frozenset(),
    enters: Callable[[bytes], bool] = lambda _path: True,
) -> Iterator[Found]:
    """Go through a tree, depth first, a folder before what it holds.

    Args:
        top: the folder to start in; stays open.
        skip: relative paths (bytes, `/` between parts) that are not entered or named.
        enters: told the relative path of a folder, whether to go into it.

    Yields:
        What was found, with a handle on the folder that holds it. The handle is good
        only until the next step of the iteration.

    Raises:
        OSError: a folder could not be read, or was swapped for something else. Names
            that vanish meanwhile are left out.
    """
    # A list, no recursion: a step may nest deeper than Python's stack.
    levels = [_Level(top, b"")]
    try:
        while levels:
            here = levels[-1]
            name = next(here.names, None)
            if name is None:
                levels.pop().close_unless(top)
                continue
            path = here.prefix + name
            found = None if path in skip else here.folder.lookup(name)
            if found is None:
                continue
            yield Found(here.folder, name, path, found)
            if stat.S_ISDIR(found.st_mode) and enters(path):
                with contextlib.suppress(FileNotFoundError):
                    levels.append(_Level(here.folder.enter(name), path + b"/"))
    finally:
        for level in levels:
            level.close_unless(top)


class Found:
    """A name that a walk has come upon."""

    __slots__ = ("folder", "name", "path", "stat")

    def __init__(
        self, folder: Folder, name: bytes, path: bytes, found: os.stat_result
    ) -> None:
        self.folder = folder
        self.name = name
        self.path = path
        """Relative to the top of the walk."""
        self.stat = found

    @property
    def is_folder(self) -> bool:
        """Whether it is a real folder, no link to one."""
        return stat.S_ISDIR(self.stat.st_mode)


class _Level:
    """A folder on the way of a walk, and the names in it that are still to come."""

    __slots__ = ("folder", "names", "prefix")

    def __init__(self, folder: Folder, prefix: bytes) -> None:
        self.folder = folder
        self.prefix = prefix
        self.names = self._read()

    def _read(self) -> Iterator[bytes]:
        yield from self.folder.names()

    def close_unless(self, top: Folder) -> None:
        if self.folder is not top:
            self.folder.close()


_LEVELS = 64
"""How many levels `remove_entry` goes down before it moves things up."""


def remove_entry(folder: Folder, name: bytes) -> None:
    """Remove a name and, where it is a folder, all below it, through no link.

    A folder without permission is opened up first: it is about to go. Nothing is done
    where the name is not there. However deep the tree, only so many handles are open:
    what lies deeper is moved up, into the folder that goes.

    Raises:
        OSError: something could not be removed; what was removed before stays so.
    """
    if _removed_as_leaf(folder, name):
        return
    with open_up(folder, name) as top:
        pending = top.names()
        while pending:
            _remove_below(top, pending.pop(), _LEVELS, top, pending)
    folder.remove_folder(name)


def _remove_below(
    here: Folder, name: bytes, levels: int, top: Folder, pending: list[bytes]
) -> None:
    """Remove a name, or move it into `top` and note it in `pending` if it is deep."""
    if _removed_as_leaf(here, name):
        return
    with open_up(here, name) as inner:
        if levels:
            for child in inner.names():
                _remove_below(inner, child, levels - 1, top, pending)
    if levels:
        here.remove_folder(name)
    else:
        moved = secrets.token_hex(8).encode()
        here.rename(name, top, moved)
        pending.append(moved)


def _removed_as_leaf(folder: Folder, name: bytes) -> bool:
    """Remove a name that is no folder or is not there; False where it is a folder."""
    found = folder.lookup(name)
    if found is None:
        return True
    if stat.S_ISDIR(found.st_mode):
        return False
    with contextlib.suppress(FileNotFoundError):
        folder.unlink(name)
    return True


def open_up(folder: Folder, name: bytes) -> Folder:
    """Enter a folder, giving its owner all rights where they are missing.

    Raises:
        OSError: it is gone, no folder, a link, or somebody else's.
    """
    try:
        inner = folder.enter(name)
    except PermissionError:
        _give_owner_all(folder, name)
        return folder.enter(name)
    try:
        if inner.own_stat().st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(inner.path if inner.fd is None else inner.fd, stat.S_IRWXU)
    except BaseException:
        inner.close()
        raise
    return inner


def _give_owner_all(folder: Folder, name: bytes) -> None:
    """Give the owner all rights to a folder that cannot be opened for reading.

    A plain chmod by name would follow a link that was put there meanwhile.

    Source: open(2) on O_PATH; fchmod(2) refuses such a descriptor, /proc does not.
    """
    if folder.fd is None:
        where = folder.at(name)
        _require_folder(where)
        os.chmod(where, stat.S_IRWXU)
    elif _O_PATH:
        flags = _O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC
        fd = os.open(name, flags, dir_fd=folder.fd)
        try:
            os.chmod(b"/proc/self/fd/%d" % fd, stat.S_IRWXU)
        finally:
            os.close(fd)
    else:
        os.chmod(name, stat.S_IRWXU, dir_fd=folder.fd, follow_symlinks=False)
