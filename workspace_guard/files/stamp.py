"""Tell whether files hold still: what they are now, against what they were.

Room: files. Reads; compares nothing and judges nothing.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from workspace_guard.files.digest import hash_regular

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
        if not top.parts:
            _stamp_names(found, step, b"")
            continue
        try:
            with step.reach(top.parent) as folder:
                _stamp_into(found, folder, top.name, bytes(top))
        except OSError:
            found[bytes(top)] = ("absent",)
    return found


def _stamp_into(found: Stamps, folder: Folder, name: bytes, path: bytes) -> None:
    here = folder.lookup(name)
    if here is None:
        found[path] = ("absent",)
        return
    found[path] = (here.st_mode, here.st_size, here.st_ino, here.st_mtime_ns)
    if stat.S_ISDIR(here.st_mode):
        with folder.enter(name) as inner:
            _stamp_names(found, inner, path)
    elif stat.S_ISREG(here.st_mode):
        try:
            found[path] += (hash_regular(folder, name).sha256,)
        except OSError as error:
            found[path] += (error.errno,)


def _stamp_names(found: Stamps, folder: Folder, path: bytes) -> None:
    for child in folder.names():
        _stamp_into(found, folder, child, os.path.join(path, child))


def moved(before: Stamps, after: Stamps) -> tuple[bytes, ...]:
    """The paths whose stamps differ, or that only one of the two has, in order."""
    paths = before.keys() | after.keys()
    return tuple(sorted(p for p in paths if before.get(p) != after.get(p)))
