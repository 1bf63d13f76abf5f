"""An independent look at a tree: what stands in it, to the nanosecond and the byte.

Tests compare two of these, before and after. It is written without the package, with
plain `os` calls by path, so that a fault there cannot hide itself here.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFBLK: "block device",
    stat.S_IFCHR: "character device",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """All that is compared of one name."""

    kind: str
    mode: int
    owner: tuple[int, int]
    mtime_ns: int | None
    """None where the caller said that times may move."""
    size: int | None
    """Of files and links; that of a folder is the file system's own affair."""
    links: int | None
    """Of everything but folders, where it counts the folders inside."""
    xattrs: tuple[tuple[str, bytes], ...]
    text: bytes | None
    """Of a link."""
    sha256: str | None
    """Of a regular file."""


TreeState = dict[bytes, Look]


def tree_state(
    top: str | bytes | os.PathLike[str],
    *,
    without: tuple[bytes, ...] = (),
    any_time: tuple[bytes, ...] = (),
) -> TreeState:
    """List a tree.

    Args:
        top: its top folder, listed as b"."; a link in its last part is not followed.
        without: relative paths that are left out with all below them.
        any_time: relative paths whose mtime does not count.
    """
    root = os.fsencode(top)
    return {
        path: _look(os.path.join(root, path), with_time=path not in any_time)
        for path in (b".", *_paths(root, b"", frozenset(without)))
    }


def changes(before: TreeState, after: TreeState) -> dict[bytes, tuple[object, object]]:
    """What differs between two listings, by path; None stands for "is not there"."""
    return {
        path: (before.get(path), after.get(path))
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    }


def _paths(root: bytes, prefix: bytes, without: frozenset[bytes]) -> Iterator[bytes]:
    for name in sorted(os.listdir(os.path.join(root, prefix))):
        path = prefix + name
        if path in without:
            continue
        yield path
        if stat.S_ISDIR(os.lstat(os.path.join(root, path)).st_mode):
            yield from _paths(root, path + b"/", without)


def _look(path: bytes, *, with_time: bool) -> Look:
    found = os.lstat(path)
    kind = _KINDS[stat.S_IFMT(found.st_mode)]
    return Look(
        kind=kind,
        mode=stat.S_IMODE(found.st_mode),
        owner=(found.st_uid, found.st_gid),
        mtime_ns=found.st_mtime_ns if with_time else None,
        size=found.st_size if kind in ("file", "link") else None,
        links=found.st_nlink if kind != "folder" else None,
        xattrs=_xattrs(path),
        text=os.readlink(path) if kind == "link" else None,
        sha256=_sha256(path) if kind == "file" else None,
    )


def _xattrs(path: bytes) -> tuple[tuple[str, bytes], ...]:
    if not hasattr(os, "listxattr"):
        return ()
    return tuple(
        (name, os.getxattr(path, name, follow_symlinks=False))
        for name in sorted(os.listxattr(path, follow_symlinks=False))
    )


def _sha256(path: bytes) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_bytes(path: Path) -> bytes | None:
    """The bytes of a regular file, or None where there is no such file."""
    return path.read_bytes() if path.is_file() and not path.is_symlink() else None
