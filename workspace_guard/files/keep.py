"""Keep a file that is about to be replaced, and put it back as the file that it was.

Room: files. Knows what belongs to a file besides its bytes, and how a new one takes it
over; which files are kept, and for how long, is the journal's business.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from workspace_guard.files.digest import read_stably
from workspace_guard.files.replace import move_staged, staged_file, staged_name
from workspace_guard.files.xattrs import carry_over

if TYPE_CHECKING:
    from workspace_guard.files.tree import Folder

_NOT_GIVEN = frozenset({errno.EPERM, errno.EINVAL})
_TIMES_BY_DESCRIPTOR = os.utime in os.supports_fd


def put_back_kept(
    kept: Folder, kept_name: bytes, folder: Folder, name: bytes, owner: str
) -> None:
    """Put a kept file back under its old name, as the file that it was if possible.

    The kept file stays. Where it is a second name of the old file, that file returns
    with all that it had; a copy has to be given its mode, owner and times.
    """
    staged = staged_name(owner)
    try:
        kept.link(kept_name, folder, staged)
    except OSError:
        copy_as_is(kept, kept_name, folder, staged)
    move_staged(folder, staged, name)


def copy_as_is(source: Folder, name: bytes, to: Folder, new_name: bytes) -> None:
    """Copy a regular file with its mode, its times and, where we may, its owner."""
    from_fd = source.open_regular(name)
    try:
        found = os.fstat(from_fd)
        with staged_file(to, new_name) as fd:
            read_stably(from_fd, fd, os.path.join(source.path, name))
            take_over_attributes(from_fd, fd)
            where = fd if _TIMES_BY_DESCRIPTOR else to.at(new_name)
            os.utime(where, ns=(found.st_atime_ns, found.st_mtime_ns))
    finally:
        os.close(from_fd)


def take_over_attributes(from_fd: int, to_fd: int) -> None:
    """Give a new file the owner, mode, ACL and attributes of the one it replaces.

    Owner first, since a change of owner clears setuid bits and capabilities. Where the
    owner cannot be given, the group is, if it may; setuid and setgid are then left
    out, since they would lend our rights and not those of the old owner.

    Source: chown(2), S35.
    """
    found = os.fstat(from_fd)
    mode = stat.S_IMODE(found.st_mode)
    if not _gave_owner(to_fd, found.st_uid, found.st_gid):
        _gave_owner(to_fd, -1, found.st_gid)
        mode &= ~(stat.S_ISUID | stat.S_ISGID)
    if hasattr(os, "fchmod"):
        os.fchmod(to_fd, mode)
    carry_over(from_fd, to_fd)


def _gave_owner(fd: int, uid: int, gid: int) -> bool:
    if not hasattr(os, "fchown"):
        return True
    try:
        os.fchown(fd, uid, gid)
    except OSError as error:
        if error.errno not in _NOT_GIVEN:
            raise
        return False
    return True
