"""Tell whether files hold still: what they are now, against what they were.

Room: files. Reads; compares nothing and judges nothing.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from workspace_guard.files.digest import hash_regular
from workspace_guard.files.tree import walk

if TYPE_CHECKING:
    from workspace_guard.files.relpath import RelPath
    from workspace_guard.files.tree import Folder

Stamps = dict[bytes, tuple[object, ...]]


def stamp(step: Folder, tops: tuple[RelPath, ...]) -> Stamps:
    """What the files at or below some places are, to see whether they hold still.

    Args:
        step: the folder that the places are relative to.
        tops: the places; the root path takes in all of it.

    Returns:
        Path below the step to type, size, times, inode and digest; what cannot be
        read has a stamp too.
    """
    found: Stamps = {}
    for top in tops:
        try:
            _stamp_into(found, step, top)
        except OSError:
            found[bytes(top)] = ("absent",)
    return found


def _stamp_into(found: Stamps, step: Folder, top: RelPath) -> None:
    if top.parts:
        with step.reach(top.parent) as folder:
            here = folder.lookup(top.name)
            if here is None:
                found[bytes(top)] = ("absent",)
                return
            found[bytes(top)] = _stamp_of(folder, top.name, here)
            if not stat.S_ISDIR(here.st_mode):
                return
    with step.reach(top) as inner:
        for each in walk(inner):
            path = os.path.join(bytes(top), each.path)
            found[path] = _stamp_of(each.folder, each.name, each.stat)


def _stamp_of(folder: Folder, name: bytes, here: os.stat_result) -> tuple[object, ...]:
    seen = (here.st_mode, here.st_size, here.st_ino, here.st_mtime_ns)
    if not stat.S_ISREG(here.st_mode):
        return seen
    try:
        return (*seen, hash_regular(folder, name).sha256)
    except OSError as error:
        return (*seen, error.errno)


def moved(before: Stamps, after: Stamps) -> tuple[bytes, ...]:
    """The paths whose stamps differ, or that only one of the two has, in order."""
    paths = before.keys() | after.keys()
    return tuple(sorted(p for p in paths if before.get(p) != after.get(p)))
