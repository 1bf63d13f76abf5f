"""The folders on the way to the destinations, so that an undone promotion leaves none.

Room: step. Knows which of them were there, and with which time; what is put into them
is for `step.promote`.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from workspace_guard.files.relpath import RelPath

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from workspace_guard.files.tree import Folder

FolderTimes = dict[RelPath, int | None]
"""Each folder's mtime in nanoseconds; None for one that is not there."""


def folder_times(top: Folder, destinations: Iterable[RelPath]) -> FolderTimes:
    """Look at every folder on the way to some destinations, the workspace included."""
    paths = {above for path in destinations for above in _above(path)}
    return {path: _time_of(top, path) for path in sorted(paths)}


def put_back_folders(top: Folder, before: Mapping[RelPath, int | None]) -> None:
    """Take away folders that were not there, if nothing is in them; put back times.

    A folder that somebody has put something into meanwhile stays, and one that is
    another's keeps its time.
    """
    for path in sorted(before, reverse=True):  # what a folder holds goes before it
        if before[path] is None:
            with contextlib.suppress(OSError), top.reach(path.parent) as parent:
                parent.remove_folder(path.name)
    for path, wanted in before.items():
        if wanted is not None:
            with contextlib.suppress(OSError), top.reach(path) as folder:
                _set_time(folder, wanted)


def _above(path: RelPath) -> Iterator[RelPath]:
    for depth in range(len(path.parts)):
        yield RelPath(path.parts[:depth])


def _time_of(top: Folder, path: RelPath) -> int | None:
    try:
        with top.reach(path) as folder:
            return folder.own_stat().st_mtime_ns
    except OSError:
        return None


def _set_time(folder: Folder, mtime_ns: int) -> None:
    found = folder.own_stat()
    if found.st_mtime_ns != mtime_ns:
        where = folder.path if folder.fd is None else folder.fd
        os.utime(where, ns=(found.st_atime_ns, mtime_ns))
