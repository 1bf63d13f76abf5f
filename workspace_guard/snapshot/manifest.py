"""What is there: every entry of a tree, held so that an unchanged folder costs little.

Room: snapshot. Knows entries, rows and the manifest's file format; touches no disk and
knows nothing of where content lies.

A folder is one record: its names joined by NUL, the stat rows of its entries as one
marshalled blob, and beside them digests and what few entries have (link texts,
attributes, device numbers). A folder that nobody touched gives the same bytes again, so
comparing it is comparing bytes; only an unequal record is decoded, and then compared
name by name. marshal version 2 has no references, so that equal rows are equal bytes.
It is no format for bytes that nobody vouches for: the digest is checked before.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import marshal
import operator
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, cast

from workspace_guard.errors import StoreDamaged, show_path

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from workspace_guard.files.xattrs import Attributes

EntryType = Literal[
    "file", "folder", "link", "fifo", "socket", "block_device", "character_device"
]
GapKind = Literal["unreadable", "unstable", "vanished", "mount"]

SCHEMA = b"workspace-guard/manifest/1"
ID_DIGITS = 12
GRANULARITY_NS = 20_000_000
"""No kernel clock of files is coarser than two ticks of 100 Hz."""

_MARSHAL_VERSION = 2
_DIGEST_BYTES = 32
_NO_DIGEST = bytes(_DIGEST_BYTES)

Row = tuple[int, ...]
"""The fields of `row_of`, in its order."""
MODE, INODE, DEVICE, NLINK, UID, GID, SIZE, MTIME_NS, CTIME_NS = range(9)

row_of: Callable[[os.stat_result], Row] = operator.attrgetter(
    "st_mode",
    "st_ino",
    "st_dev",
    "st_nlink",
    "st_uid",
    "st_gid",
    "st_size",
    "st_mtime_ns",
    "st_ctime_ns",
)

Extra = tuple[bytes | None, int | None, "Attributes"]
"""Link text, device number, extended attributes: what few entries have."""
NO_EXTRA: Extra = (None, None, ())

Stored = tuple[Row, bytes | None, Extra]
"""An entry as a record holds it: row, digest of the content, extra."""

_TYPES: dict[int, EntryType] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFBLK: "block_device",
    stat.S_IFCHR: "character_device",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One name: all that is compared, and all that is put back."""

    type: EntryType
    mode: int
    """Permission bits."""
    uid: int
    gid: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int
    """The file system that holds it."""
    nlink: int
    link: bytes | None = None
    """The text of a link."""
    rdev: int | None = None
    """The number of a device node."""
    xattrs: Attributes = ()
    sha256: str | None = None
    """Of a regular file whose content was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Something that a snapshot or a comparison does not cover."""

    kind: GapKind
    path: bytes
    could_hide_escape: bool
    message: str


def is_folder(row: Row) -> bool:
    """Tell whether a row is a folder's."""
    return stat.S_ISDIR(row[MODE])


def entry_of(stored: Stored) -> Entry:
    """Spell out what a record holds of one name."""
    row, digest, (link, rdev, xattrs) = stored
    return Entry(
        type=_TYPES[stat.S_IFMT(row[MODE])],
        mode=stat.S_IMODE(row[MODE]),
        uid=row[UID],
        gid=row[GID],
        size=row[SIZE],
        mtime_ns=row[MTIME_NS],
        ctime_ns=row[CTIME_NS],
        inode=row[INODE],
        device=row[DEVICE],
        nlink=row[NLINK],
        link=link,
        rdev=rdev,
        xattrs=xattrs,
        sha256=digest.hex() if digest is not None else None,
    )


def pack_rows(rows: list[Row]) -> bytes:
    """Make the bytes of rows; equal rows in equal order give equal bytes."""
    return marshal.dumps(rows, _MARSHAL_VERSION)


class FolderRecord(NamedTuple):
    """What one folder held, in the order in which the file system named it."""

    names: bytes
    """Joined by NUL."""
    rows: bytes
    digests: bytes
    """32 bytes a name, in the order of names; zeros where no content was read."""
    extras: bytes
    """A marshalled mapping from position to extra; empty where there is none."""
    young: bool
    """Whether a row may hide an edit made within the same tick of the clock."""

    @classmethod
    def of(cls, names: bytes, stored: Sequence[Stored], *, moment_ns: int) -> Self:
        """Pack what was found in a folder.

        Args:
            names: joined by NUL.
            stored: one for each name.
            moment_ns: when the snapshot began, by the clock of the file system.
        """
        rows = [row for row, _, _ in stored]
        extras = {
            position: extra
            for position, (_, _, extra) in enumerate(stored)
            if extra != NO_EXTRA
        }
        return cls(
            names,
            pack_rows(rows),
            b"".join(digest or _NO_DIGEST for _, digest, _ in stored),
            marshal.dumps(extras, _MARSHAL_VERSION) if extras else b"",
            any(is_young(row, moment_ns) for row in rows),
        )

    def all_names(self) -> list[bytes]:
        """The names, in order."""
        return self.names.split(b"\0") if self.names else []

    def decode(self) -> dict[bytes, Stored]:
        """Everything that the record holds, by name."""
        return dict(zip(self.all_names(), self._all_stored(), strict=True))

    def _all_stored(self) -> Iterator[Stored]:
        rows = cast("list[Row]", marshal.loads(self.rows))  # noqa: S302 - checked when read
        extras = self._all_extras()
        for position, row in enumerate(rows):
            start = position * _DIGEST_BYTES
            digest = self.digests[start : start + _DIGEST_BYTES]
            known = None if digest == _NO_DIGEST else digest
            yield row, known, extras.get(position, NO_EXTRA)

    def _all_extras(self) -> dict[int, Extra]:
        if not self.extras:
            return {}
        return cast("dict[int, Extra]", marshal.loads(self.extras))  # noqa: S302 - checked when read


def is_young(row: Row, moment_ns: int) -> bool:
    """Tell whether a later edit could leave the row as it is (case S2).

    True where the last change lies so near to the snapshot's beginning, or after it,
    that another one might get the same time from a coarse clock.
    """
    return row[CTIME_NS] > moment_ns - GRANULARITY_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A whole tree as it was."""

    moment_ns: int
    """When the walk began."""
    top: Stored
    """The top folder itself; its path is b""."""
    folders: Mapping[bytes, FolderRecord]
    """By path; a folder that could not be read has none."""
    links: tuple[tuple[bytes, ...], ...]
    """Paths that were names of one file, two or more in a group."""
    gaps: tuple[Gap, ...]
    skip: frozenset[bytes]
    """What was left out on purpose, with all below it."""

    @property
    def root(self) -> Entry:
        """The top folder's own entry."""
        return entry_of(self.top)

    def entry(self, path: bytes) -> Entry | None:
        """What stood at a path, or None."""
        if not path:
            return self.root
        above, _, name = path.rpartition(b"/")
        record = self.folders.get(above)
        stored = record.decode().get(name) if record is not None else None
        return entry_of(stored) if stored is not None else None

    def entries(self) -> Iterator[tuple[bytes, Entry]]:
        """Every path with its entry, a folder before what it holds."""
        yield b"", self.root
        yield from self.below(b"")

    def below(self, path: bytes) -> Iterator[tuple[bytes, Entry]]:
        """Every path below a folder, a folder before what it holds."""
        pending = [path]
        while pending:
            above = pending.pop()
            record = self.folders.get(above)
            if record is None:
                continue
            for name, stored in record.decode().items():
                inner = join(above, name)
                yield inner, entry_of(stored)
                if is_folder(stored[0]):
                    pending.append(inner)

    def is_captured(self, path: bytes, entry: Entry) -> bool:
        """Tell whether what stood at a path can be put back."""
        if entry.type == "folder":
            return path in self.folders
        return entry.type != "file" or entry.sha256 is not None


def join(above: bytes, name: bytes) -> bytes:
    """The path of a name in a folder; the root's path is empty."""
    return above + b"/" + name if above else name


# --- The file -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What can be told of a manifest without decoding it."""

    created_ns: int
    files: int
    size_bytes: int
    """Of all regular files."""
    packs: tuple[str, ...]
    """Where the content lies."""


def encode(manifest: Manifest, head: Head) -> tuple[str, tuple[bytes, bytes]]:
    """Make the file of a manifest.

    Returns:
        The digest of all that follows the file's second line, and the file in two
        pieces: the lines (schema, digest, JSON), and the marshalled body.
    """
    line = json.dumps(dataclasses.asdict(head)).encode("ascii") + b"\n"
    gaps = [
        (gap.kind, gap.path, gap.could_hide_escape, gap.message)
        for gap in manifest.gaps
    ]
    body = marshal.dumps(
        (
            manifest.moment_ns,
            manifest.top,
            {path: tuple(record) for path, record in manifest.folders.items()},
            manifest.links,
            gaps,
            sorted(manifest.skip),
        ),
        _MARSHAL_VERSION,
    )
    digest = _digest(line, body)
    return digest, (SCHEMA + b"\n" + digest.encode("ascii") + b"\n" + line, body)


def decode(file: bytes, path: bytes) -> tuple[str, Head, Manifest]:
    """Read back a manifest's file.

    Args:
        file: all of its bytes.
        path: where it lies, for messages.

    Returns:
        The digest that it bears, its head, and the manifest.

    Raises:
        StoreDamaged: it is no such file, or not the one that was written. Nothing of
            its body has been decoded then.
    """
    digest, line, start = _read_lines(file, path)
    body = memoryview(file)[start:]
    if _digest(line, body) != digest:
        raise StoreDamaged(f"{show_path(path)}: does not agree with its digest")
    moment_ns, top, folders, links, gaps, skip = marshal.loads(body)  # noqa: S302 - checked above
    manifest = Manifest(
        moment_ns=moment_ns,
        top=top,
        folders={where: FolderRecord(*record) for where, record in folders.items()},
        links=links,
        gaps=tuple(
            Gap(kind=kind, path=where, could_hide_escape=hides, message=message)
            for kind, where, hides, message in gaps
        ),
        skip=frozenset(skip),
    )
    return digest, _head_of(line, path), manifest


def decode_head(file_start: bytes, path: bytes) -> Head:
    """Read the head out of the first kilobytes of a manifest's file.

    Raises:
        StoreDamaged: they are no manifest's. Whether the rest agrees with the digest
            has not been looked at.
    """
    _, line, _ = _read_lines(file_start, path)
    return _head_of(line, path)


def _digest(line: bytes, body: bytes | memoryview) -> str:
    sha256 = hashlib.sha256(line)
    sha256.update(body)
    return sha256.hexdigest()


def _read_lines(file: bytes, path: bytes) -> tuple[str, bytes, int]:
    """Take apart schema, digest and head; give where the body starts."""
    after_schema = file.find(b"\n") + 1
    after_digest = file.find(b"\n", after_schema) + 1
    after_head = file.find(b"\n", after_digest) + 1
    if file[:after_schema] != SCHEMA + b"\n" or not after_digest or not after_head:
        raise StoreDamaged(f"{show_path(path)}: is no manifest of this version")
    digest = file[after_schema : after_digest - 1].decode("latin-1")
    return digest, file[after_digest:after_head], after_head


def _head_of(line: bytes, path: bytes) -> Head:
    try:
        document = json.loads(line)
        return Head(
            created_ns=int(document["created_ns"]),
            files=int(document["files"]),
            size_bytes=int(document["size_bytes"]),
            packs=tuple(str(pack) for pack in document["packs"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDamaged(f"{show_path(path)}: its head cannot be read") from error
