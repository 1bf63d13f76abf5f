"""Where other file systems are mounted, so that nobody empties one by mistake.

Room: files. Reads the kernel's list; mounts and unmounts nothing.

Source: proc_pid_mountinfo(5).
"""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING

from workspace_guard.files.tree import remove_entry

if TYPE_CHECKING:
    from workspace_guard.files.tree import Folder

_OCTAL = re.compile(rb"\\([0-7]{3})")
_POINT = 4

Mounts = frozenset[tuple[bytes, bytes]]
"""(the kernel's number of the mount, its absolute path)."""


def mounts_below(folder: bytes) -> Mounts:
    """The mounts on or below a folder; empty where the platform does not tell.

    Args:
        folder: an absolute path without links.
    """
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return frozenset()
    found: set[tuple[bytes, bytes]] = set()
    for line in lines:
        fields = line.split(b" ")
        point = _OCTAL.sub(lambda match: bytes([int(match[1], 8)]), fields[_POINT])
        if point.startswith(folder.rstrip(b"/") + b"/"):
            found.add((fields[0], point))
    return frozenset(found)


def remove_unmounted(folder: Folder, name: bytes) -> None:
    """Remove a name and all below it, but not where anything is mounted in it.

    What is mounted there lies elsewhere and is nobody's to remove.

    Raises:
        OSError: EBUSY with the place of the mount, before anything was removed; or as
            `remove_entry`.
    """
    place = os.path.realpath(os.path.join(folder.path, name))
    mounts = sorted(point for _, point in mounts_below(place))
    if mounts:
        fact = "a file system is mounted there"
        raise OSError(errno.EBUSY, fact, os.fsdecode(mounts[0]))
    remove_entry(folder, name)
