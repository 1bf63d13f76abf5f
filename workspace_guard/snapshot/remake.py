"""Make one entry again, whole, under a name that is about to take its place.

Room: snapshot. Knows how each type of entry is made; whose place it takes, and what
becomes of what stands there, is the restore's affair.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, assert_never

from workspace_guard.snapshot.attributes import put_on_name, put_on_open

if TYPE_CHECKING:
    from collections.abc import Callable

    from workspace_guard.files.tree import Folder
    from workspace_guard.snapshot.manifest import Entry

_NODES = {
    "socket": stat.S_IFSOCK,
    "block_device": stat.S_IFBLK,
    "character_device": stat.S_IFCHR,
}


def remake(
    folder: Folder,
    name: bytes,
    entry: Entry,
    copy_content: Callable[[str, int], None],
) -> list[str]:
    """Make anything but a folder, with all its attributes.

    Args:
        folder: where.
        name: not there yet.
        entry: what it is to be; of a file the content was captured.
        copy_content: writes the content of a digest to a descriptor, checked.

    Returns:
        What of its attributes could not be given, each with the reason.

    Raises:
        OSError, StoreDamaged, StoreIncomplete: part of it may stand under the name.
    """
    where = folder.at(name)
    match entry.type:
        case "file":
            fd = folder.create(name)
            try:
                copy_content(entry.sha256 or "", fd)
                return put_on_open(fd, entry)
            finally:
                os.close(fd)
        case "link":
            os.symlink(entry.link or b"", where, dir_fd=folder.fd)
        case "fifo":
            os.mkfifo(where, 0o600, dir_fd=folder.fd)
        case "socket" | "block_device" | "character_device":
            mode = _NODES[entry.type] | 0o600
            os.mknod(where, mode, entry.rdev or 0, dir_fd=folder.fd)
        case "folder":
            raise IsADirectoryError(0, "a folder is made, not put")
        case _:
            assert_never(entry.type)
    return put_on_name(folder, name, entry)
