"""Put owner, mode, extended attributes and times on something, in the order that holds.

Room: snapshot. Knows which of them undoes another (a chown clears setuid bits and
capabilities, so the owner comes first and the times last) and how to name an inode
without following a link or opening what must not be opened.

Source: chown(2), inode(7), acl(5), open(2) on O_PATH.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from workspace_guard.files.tree import O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK
from workspace_guard.files.xattrs import write_xattrs
from workspace_guard.snapshot.manifest import MODE, entry_of, row_of
from workspace_guard.snapshot.scan import by_name

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from workspace_guard.files.tree import Folder
    from workspace_guard.snapshot.manifest import Entry

_O_PATH: int = getattr(os, "O_PATH", 0)
_SET_ID = stat.S_ISUID | stat.S_ISGID


class TypeMoved(OSError):
    """What stands under a name is of another type than was said."""


def put_on_open(fd: int, entry: Entry) -> list[str]:
    """Give an open file the attributes of an entry.

    Returns:
        What could not be given, each with the reason; empty where all is right.
    """
    return _put_on(fd, fd, entry)


def put_on_name(folder: Folder, name: bytes, entry: Entry) -> list[str]:
    """Give a name of any type the attributes of an entry, following no link.

    Returns:
        What could not be given, each with the reason; empty where all is right.

    Raises:
        TypeMoved: what stands there is of another type; it was not touched.
        OSError: the name is gone or cannot be reached.
    """
    if entry.type == "link":
        return _put_on_link(folder, name, entry)
    fd = _hold(folder, name)
    try:
        found = os.fstat(fd)
        if entry_of((row_of(found), None, (None, None, ()))).type != entry.type:
            raise TypeMoved(0, f"is no {entry.type} any more")
        return _put_on(_target(fd), by_name(folder, name), entry)
    finally:
        os.close(fd)


def set_folder_mode(folder: Folder, name: bytes, *, mode: int = 0, add: int = 0) -> int:
    """Change the permission bits of a folder, following no link.

    Args:
        folder: holds it.
        name: its name there.
        mode: what they are to be, unless some are added.
        add: bits that are added to those that are there.

    Returns:
        What they were.

    Raises:
        TypeMoved: it is no folder; it was not touched.
        OSError: they could not be changed.
    """
    fd = _hold(folder, name)
    try:
        found = os.fstat(fd).st_mode
        if not stat.S_ISDIR(found):
            raise TypeMoved(0, "is no folder any more")
        before = stat.S_IMODE(found)
        wanted = before | add if add else mode
        if before != wanted:
            os.chmod(_target(fd), wanted)
        return before
    finally:
        os.close(fd)


@contextlib.contextmanager
def owner_may(folder: Folder, name: bytes, rights: int) -> Generator[None]:
    """Add rights of the owner for a block, and take them back from the same inode.

    It may be a file that somebody else has a name of, so nothing of it is to stay.

    Raises:
        OSError: they could not be given.
    """
    fd = _hold(folder, name)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISLNK(mode):
            raise TypeMoved(0, "is a link by now")
        os.chmod(_target(fd), stat.S_IMODE(mode) | rights)
        try:
            yield
        finally:
            os.chmod(_target(fd), stat.S_IMODE(mode))
    finally:
        os.close(fd)


def _hold(folder: Folder, name: bytes) -> int:
    """Get a descriptor that stands for an inode; on Linux nothing is opened for it."""
    flags = _O_PATH or (os.O_RDONLY | O_NONBLOCK)
    return os.open(folder.at(name), flags | O_NOFOLLOW | O_CLOEXEC, dir_fd=folder.fd)


def _target(fd: int) -> int | bytes:
    """What to hand to a call that changes the inode behind `_hold`.

    The calls on descriptors refuse O_PATH ones; the link in /proc leads to the inode
    itself, whatever its name is by now.
    """
    return b"/proc/self/fd/%d" % fd if _O_PATH else fd


def _put_on(target: int | bytes, named: int | bytes, entry: Entry) -> list[str]:
    failures: list[str] = []

    def attempt(what: str, call: Callable[[], None]) -> bool:
        try:
            call()
        except OSError as error:
            failures.append(f"{what}: {error.strerror or error}")
            return False
        return True

    found = os.stat(target)
    mode = entry.mode
    owned = (found.st_uid, found.st_gid) == (entry.uid, entry.gid)
    if not owned and not attempt(
        "owner", lambda: os.chown(target, entry.uid, entry.gid)
    ):
        mode &= ~_SET_ID  # never hand out somebody else's rights in our name
    if stat.S_IMODE(os.stat(target).st_mode) != mode:
        attempt("mode", lambda: os.chmod(target, mode))
    attempt("extended attributes", lambda: write_xattrs(named, entry.xattrs))
    now = os.stat(target)
    times = now.st_atime_ns, entry.mtime_ns
    if now.st_mtime_ns != entry.mtime_ns:
        attempt("time", lambda: os.utime(target, ns=times))
    return failures


def _put_on_link(folder: Folder, name: bytes, entry: Entry) -> list[str]:
    failures: list[str] = []
    found = folder.stat(name)
    if not stat.S_ISLNK(row_of(found)[MODE]):
        raise TypeMoved(0, "is no link any more")
    where = folder.at(name)
    try:
        if (found.st_uid, found.st_gid) != (entry.uid, entry.gid):
            os.chown(
                where, entry.uid, entry.gid, dir_fd=folder.fd, follow_symlinks=False
            )
    except OSError as error:
        failures.append(f"owner: {error.strerror or error}")
    try:
        write_xattrs(by_name(folder, name), entry.xattrs)
        times = found.st_atime_ns, entry.mtime_ns
        os.utime(where, ns=times, dir_fd=folder.fd, follow_symlinks=False)
    except OSError as error:
        failures.append(f"attributes: {error.strerror or error}")
    return failures
