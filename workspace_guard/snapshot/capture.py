"""Take a tree in: one walk that stats, reads, hashes and keeps what it has read.

Room: snapshot. Knows how a manifest comes to be; where content goes is the pack
writer's affair. What cannot be read or will not hold still is a stated gap, never an
error and never left out in silence.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from workspace_guard.errors import SnapshotTooLarge
from workspace_guard.files.tree import (
    CHUNK_BYTES,
    O_BINARY,
    O_CLOEXEC,
    O_NOFOLLOW,
    O_NONBLOCK,
    NotRegular,
)
from workspace_guard.snapshot.manifest import (
    DEVICE,
    INODE,
    MODE,
    NLINK,
    NO_EXTRA,
    SIZE,
    FolderRecord,
    Gap,
    GapKind,
    Manifest,
    Row,
    Stored,
    is_folder,
    join,
    row_of,
)
from workspace_guard.snapshot.scan import (
    GONE,
    Trail,
    extra_of,
    fact_of,
    list_folder,
    names_by_folder,
    place_of,
    read_steadily,
    read_whole,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from workspace_guard.files.tree import Folder
    from workspace_guard.snapshot.packs import PackWriter

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """What a walk has brought in."""

    manifest: Manifest
    files: int
    size_bytes: int
    """Of all regular files."""


def refuse_if_larger(
    top: Folder,
    *,
    skip: frozenset[bytes],
    max_bytes: int,
    check: Callable[[], None],
) -> None:
    """Add up the sizes of all files, reading none.

    Raises:
        SnapshotTooLarge: they are more than `max_bytes`.
    """
    skipped = names_by_folder(skip)
    found, linked = 0, set[tuple[int, int]]()
    pending = [b""]
    with Trail(top) as trail:
        while pending:
            path = pending.pop()
            check()
            try:
                listing = list_folder(trail.reach(path), skipped.get(path, frozenset()))
            except OSError as error:
                fact_of(error)  # the walk itself will state the gap
                continue
            pending += [join(path, name) for name in listing.folders]
            found += sum(_sizes(listing.rows, linked))
    if found > max_bytes:
        raise SnapshotTooLarge(
            top.path,
            f"holds {found} bytes, and a snapshot may take {max_bytes}",
            hint=f"allow more with --max-snapshot {found}",
        )


def _sizes(rows: list[Row], linked: set[tuple[int, int]]) -> list[int]:
    """The sizes of regular files, each counted under one of its names."""
    sizes: list[int] = []
    for row in rows:
        if not stat.S_ISREG(row[MODE]):
            continue
        if row[NLINK] > 1:
            if (row[DEVICE], row[INODE]) in linked:
                continue
            linked.add((row[DEVICE], row[INODE]))
        sizes.append(row[SIZE])
    return sizes


def capture(
    top: Folder,
    writer: PackWriter,
    *,
    moment_ns: int,
    skip: frozenset[bytes],
    on_progress: Callable[[int], None],
    check: Callable[[], None],
) -> Capture:
    """Walk a tree and keep the content of every regular file that can be read.

    Args:
        top: the folder; stays open.
        writer: where content goes.
        moment_ns: when the walk begins, by the clock of the file system.
        skip: paths that are left out with all below them.
        on_progress: told the number of files so far, once a folder.
        check: called once a folder; may raise to give up.

    Raises:
        StateWriteFailed: content could not be kept.
    """
    walk = _Walk(writer, moment_ns, names_by_folder(skip))
    pending = [b""]
    with Trail(top) as trail:
        root = top.own_stat()
        root_stored = row_of(root), None, extra_of(top, b".", root)
        while pending:
            path = pending.pop()
            check()
            try:
                folder = trail.reach(path)
                inner = walk.take_folder(path, folder)
            except OSError as error:
                walk.miss_folder(path, error)
                continue
            pending += [join(path, name) for name in reversed(inner)]
            on_progress(walk.files)
    groups = (sorted(paths) for paths in walk.names.values() if len(paths) > 1)
    return Capture(
        manifest=Manifest(
            moment_ns=moment_ns,
            top=root_stored,
            folders=walk.folders,
            links=tuple(tuple(paths) for paths in sorted(groups)),
            gaps=tuple(walk.gaps),
            skip=skip,
        ),
        files=walk.files,
        size_bytes=walk.size_bytes,
    )


_File = tuple[int, int]
"""Device and inode."""


@dataclass(slots=True)
class _Walk:
    """What the walk has gathered so far."""

    writer: PackWriter
    moment_ns: int
    skipped: dict[bytes, frozenset[str]]
    folders: dict[bytes, FolderRecord] = field(
        default_factory=dict[bytes, FolderRecord]
    )
    gaps: list[Gap] = field(default_factory=list[Gap])
    digests: dict[_File, tuple[Row, bytes]] = field(
        default_factory=dict[_File, tuple[Row, bytes]]
    )
    """Of files with several names, so that each is read once."""
    names: dict[_File, list[bytes]] = field(default_factory=dict[_File, list[bytes]])
    """The paths of files with several names."""
    files: int = 0
    size_bytes: int = 0

    def take_folder(self, path: bytes, folder: Folder) -> list[bytes]:
        """Take in all that a folder holds.

        Returns:
            The names of the folders in it.
        """
        names, stored = self._take_steadily(path, folder)
        self.folders[path] = FolderRecord.of(
            b"\0".join(names), stored, moment_ns=self.moment_ns
        )
        device = folder.own_stat().st_dev
        inner: list[bytes] = []
        for name, (row, _, _) in zip(names, stored, strict=True):
            self._count(join(path, name), row)
            if is_folder(row):
                inner.append(name)
            if row[DEVICE] != device:
                message = "another file system is mounted here; it is covered too"
                self._gap("mount", join(path, name), message)
        return inner

    def miss_folder(self, path: bytes, error: OSError) -> None:
        """Account for a folder that could not be read."""
        if error.errno in GONE:
            self._gap("vanished", path, "the folder vanished during the snapshot")
        else:
            self._gap("unreadable", path, f"the folder: {fact_of(error)}", hides=True)

    def _gap(
        self, kind: GapKind, path: bytes, message: str, *, hides: bool = False
    ) -> None:
        self.gaps.append(
            Gap(kind=kind, path=path, could_hide_escape=hides, message=message)
        )

    def _count(self, path: bytes, row: Row) -> None:
        if not stat.S_ISREG(row[MODE]):
            return
        self.files += 1
        if row[NLINK] > 1:
            paths = self.names.setdefault((row[DEVICE], row[INODE]), [])
            paths.append(path)
            if len(paths) > 1:
                return
        self.size_bytes += row[SIZE]

    def _take_steadily(
        self, path: bytes, folder: Folder
    ) -> tuple[list[bytes], list[Stored]]:
        """Take in a folder's names so that they are those of one moment."""
        mark = len(self.gaps)
        names, stored = list[bytes](), list[Stored]()
        for _attempt in range(_ATTEMPTS):
            del self.gaps[mark:]
            before = row_of(folder.own_stat())
            names, stored = self._take_names(path, folder)
            if row_of(folder.own_stat()) == before:
                return names, stored
        message = "the folder changed while it was read, in each of three attempts"
        self._gap("unstable", path, message, hides=True)
        return names, stored

    def _take_names(
        self, path: bytes, folder: Folder
    ) -> tuple[list[bytes], list[Stored]]:
        skipped = self.skipped.get(path, frozenset())
        names: list[bytes] = []
        stored: list[Stored] = []
        with os.scandir(place_of(folder)) as found:
            for item in found:
                if item.name in skipped:
                    continue
                name = os.fsencode(item.name)
                is_file = item.is_file(follow_symlinks=False)
                taken = self._take(path, folder, name, is_file=is_file)
                if taken is not None:
                    names.append(name)
                    stored.append(taken)
        return names, stored

    def _take(
        self, above: bytes, folder: Folder, name: bytes, *, is_file: bool
    ) -> Stored | None:
        """Take in one name; None where it has vanished."""
        try:
            if is_file:
                return self._take_file(above, folder, name)
            return self._take_unread(folder, name)
        except NotRegular:
            return self._take(above, folder, name, is_file=False)
        except OSError as error:
            if error.errno not in GONE:
                raise
            message = "vanished while the snapshot was taken"
            self._gap("vanished", join(above, name), message)
            return None

    def _take_unread(self, folder: Folder, name: bytes) -> Stored:
        found = folder.stat(name)
        return row_of(found), None, extra_of(folder, name, found)

    def _take_file(self, above: bytes, folder: Folder, name: bytes) -> Stored:
        # The listing has said that this is a regular file. Should it have become
        # something else since, neither O_NONBLOCK nor the look before reading lets
        # that block or be read; a stat before each open would cost a fifth of the time.
        flags = os.O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_BINARY
        try:
            fd = os.open(folder.at(name), flags, dir_fd=folder.fd)
        except OSError as error:
            return self._miss_file(above, folder, name, error)
        try:
            seen = read_steadily(fd, lambda row: self._keep(fd, row))
            if seen is None:
                message = "changed while it was read, in each of three attempts"
                self._gap("unstable", join(above, name), message, hides=True)
                return self._take_unread(folder, name)
        except NotRegular:
            raise
        except OSError as error:
            return self._miss_file(above, folder, name, error)
        finally:
            os.close(fd)
        row, xattrs, digest = seen
        if row[SIZE] > CHUNK_BYTES:
            self.writer.settle(digest, row[SIZE])
        if row[NLINK] > 1:
            self.digests[row[DEVICE], row[INODE]] = row, digest
        return row, digest, (None, None, xattrs) if xattrs else NO_EXTRA

    def _miss_file(
        self, above: bytes, folder: Folder, name: bytes, error: OSError
    ) -> Stored:
        """Take in a file whose content cannot be read."""
        stored = self._take_unread(folder, name)
        if error.errno not in GONE and stat.S_ISREG(stored[0][MODE]):
            self._gap("unreadable", join(above, name), fact_of(error))
        return stored

    def _keep(self, fd: int, row: Row) -> bytes | None:
        """Read a file's content into the store; None where it moved."""
        if row[NLINK] > 1:
            known_row, known = self.digests.get((row[DEVICE], row[INODE]), (None, b""))
            if known_row == row:
                return known
        if row[SIZE] > CHUNK_BYTES:
            return self.writer.stream(fd, row[SIZE])
        content = read_whole(fd, row[SIZE])
        return self.writer.add(content) if content is not None else None
