"""Snapshots: manifests, and the content that puts what they name back.

Room: snapshot. Knows what of the store belongs together and in which order it is
written and removed; knows nothing of comparing or restoring.

    <store>/<id>.manifest            a tree; the id is 12 digits of the file's digest
    <store>/<name>.pack  .index      content, and where in the pack it lies

A manifest is written last, once all the content that it names is durable, and goes
first when a snapshot is dropped; so a manifest that is there is whole, or the store was
damaged. Whoever writes holds the workspace alone (`files.lock`); any number may read.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workspace_guard.errors import StoreDamaged, StoreIncomplete, show_path
from workspace_guard.files.replace import is_staged_name
from workspace_guard.files.tree import CHUNK_BYTES, Folder, write_all
from workspace_guard.snapshot.capture import capture, refuse_if_larger
from workspace_guard.snapshot.manifest import (
    ID_DIGITS,
    Head,
    Manifest,
    decode,
    decode_head,
    encode,
)
from workspace_guard.snapshot.packs import (
    INDEX_SUFFIX,
    OWNER,
    PACK_SUFFIX,
    PackIndex,
    PackWriter,
    Span,
    read_file,
    replace_durably,
    writing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_MANIFEST_SUFFIX = b".manifest"
_ID = re.compile(rf"[0-9a-f]{{{ID_DIGITS}}}")
_HEAD_BYTES = 1 << 16


def _ignore(_files: int = 0) -> None:
    """Stand in where nobody listens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A tree that can be put back."""

    id: str
    head: Head
    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A snapshot as a list shows it."""

    id: str
    created_ns: int
    files: int
    size_bytes: int


class Store:
    """The snapshots of one workspace."""

    def __init__(self, folder: Path) -> None:
        """Name the store; nothing is looked at yet.

        Args:
            folder: made, owner-only, by the first `create`.
        """
        self.folder = folder
        self._indexes: dict[str, PackIndex] = {}

    def create(
        self,
        top: Folder,
        *,
        skip: frozenset[bytes] = frozenset(),
        max_bytes: int | None = None,
        on_progress: Callable[[int], None] = _ignore,
        check: Callable[[], None] = _ignore,
    ) -> Snapshot:
        """Take a snapshot of a tree, nothing left out but what `skip` names.

        Args:
            top: the tree's folder.
            skip: relative paths that are left out with all below them.
            max_bytes: refuse a tree whose files are larger together; None takes any.
            on_progress: told the number of files so far, once a folder.
            check: called once a folder; what it raises ends the work.

        Returns:
            The snapshot, durable. What could not be read is in its manifest's gaps.

        Raises:
            SnapshotTooLarge: nothing was read or written.
            StateWriteFailed: the store could not be written.
            GuardError, OSError: or what `check` has raised; nothing half-done stays.
        """
        moment_ns = time.time_ns()
        if max_bytes is not None:
            refuse_if_larger(top, skip=skip, max_bytes=max_bytes, check=check)
        with writing(os.fsencode(self.folder)):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with Folder.open(self.folder) as folder:
            self._sweep(folder)
            self._load_indexes(folder)
            used: set[str] = set()
            writer = PackWriter(folder, lambda digest: self._use(digest, used))
            try:
                taken = capture(
                    top,
                    writer,
                    moment_ns=moment_ns,
                    skip=skip,
                    on_progress=on_progress,
                    check=check,
                )
                check()
                index = writer.finish()
                if index is not None:
                    used.add(index.name)
                head = Head(
                    created_ns=moment_ns,
                    files=taken.files,
                    size_bytes=taken.size_bytes,
                    packs=tuple(sorted(used)),
                )
                digest, pieces = encode(taken.manifest, head)
                replace_durably(folder, _manifest_name(digest[:ID_DIGITS]), pieces)
            except BaseException:
                writer.discard()
                raise
        if index is not None:
            self._indexes[index.name] = index
        return Snapshot(id=digest[:ID_DIGITS], head=head, manifest=taken.manifest)

    def load(self, snapshot_id: str) -> Snapshot:
        """Read a snapshot back, and see that all its content is there.

        Raises:
            StoreIncomplete: there is no such snapshot, or a pack that it needs is gone.
            StoreDamaged: its manifest or a pack does not agree with its digest.
        """
        where = self.folder / os.fsdecode(_manifest_name(snapshot_id))
        missing = StoreIncomplete(f"snapshot {snapshot_id}: {where} is not there")
        if not _ID.fullmatch(snapshot_id):
            raise missing
        try:
            with Folder.open(self.folder) as folder:
                file = read_file(folder, _manifest_name(snapshot_id))
                digest, head, manifest = decode(file, os.fsencode(where))
                if not digest.startswith(snapshot_id):
                    raise StoreDamaged(f"{where}: is the manifest of another snapshot")
                for name in head.packs:
                    self._need(folder, name, snapshot_id)
        except FileNotFoundError:
            raise missing from None
        return Snapshot(id=snapshot_id, head=head, manifest=manifest)

    def list(self) -> tuple[Summary, ...]:
        """All snapshots, the oldest first; a damaged one is not named."""
        try:
            with Folder.open(self.folder) as folder:
                heads = dict(self._heads(folder))
        except FileNotFoundError:
            return ()
        known = [
            Summary(
                id=snapshot_id,
                created_ns=head.created_ns,
                files=head.files,
                size_bytes=head.size_bytes,
            )
            for snapshot_id, head in heads.items()
            if head is not None
        ]
        return tuple(sorted(known, key=lambda one: (one.created_ns, one.id)))

    def copy_content(self, sha256: str, fd: int) -> None:
        """Write a content to an open file, checking it on the way.

        Args:
            sha256: its digest, hexadecimal.
            fd: where it goes, from where it stands.

        Raises:
            StoreIncomplete: no snapshot that was created or loaded here has it.
            StoreDamaged: what was written is not what had been kept.
            OSError: the file could not be written.
        """
        span = self._find(bytes.fromhex(sha256))
        if span is None:
            raise StoreIncomplete(f"{self.folder}: has no content {sha256}")
        actual = hashlib.sha256()
        for chunk in self._read(span):
            actual.update(chunk)
            write_all(fd, chunk)
        if actual.hexdigest() != sha256:
            raise StoreDamaged(
                f"{self.folder}: content {sha256} has become {actual.hexdigest()}"
            )

    def drop(self, snapshot_id: str) -> None:
        """Remove a snapshot, and the content that no other one needs.

        Nothing is done where there is no such snapshot.

        Raises:
            StateWriteFailed: something could not be removed; the next writer does it.
        """
        if not _ID.fullmatch(snapshot_id) or not self.folder.exists():
            return
        with Folder.open(self.folder) as folder:
            self._remove(folder, _manifest_name(snapshot_id))
            self._sweep(folder)
            with writing(folder.path):
                folder.sync()

    def sweep(self) -> None:
        """Remove what a writer has left that was cut off.

        Raises:
            StateWriteFailed: something could not be removed; the next writer does it.
        """
        if self.folder.exists():
            with Folder.open(self.folder) as folder:
                self._sweep(folder)

    # --- What belongs together --------------------------------------------------------

    def _heads(self, folder: Folder) -> Iterator[tuple[str, Head | None]]:
        """Each snapshot's head; None where it cannot be read."""
        for name in folder.names():
            if not name.endswith(_MANIFEST_SUFFIX):
                continue
            where = os.path.join(folder.path, name)
            snapshot_id = os.fsdecode(name.removesuffix(_MANIFEST_SUFFIX))
            try:
                start = read_file(folder, name, _HEAD_BYTES)
                yield snapshot_id, decode_head(start, where)
            except (StoreDamaged, OSError):
                yield snapshot_id, None

    def _sweep(self, folder: Folder) -> None:
        """Remove what a dead writer has left, and packs that no manifest names.

        Where a manifest cannot be read nobody knows what it needs: then every pack that
        has its index stays.
        """
        names = set(folder.names())
        heads = [head for _, head in self._heads(folder)]
        needed = {pack for head in heads if head is not None for pack in head.packs}
        for name in sorted(names):
            stem, dot, suffix = name.rpartition(b".")
            if is_staged_name(name, OWNER):
                self._remove(folder, name)
            elif dot + suffix in (PACK_SUFFIX, INDEX_SUFFIX):
                both = {stem + PACK_SUFFIX, stem + INDEX_SUFFIX} <= names
                if os.fsdecode(stem) not in needed and not (both and None in heads):
                    self._remove(folder, name)
                    self._indexes.pop(os.fsdecode(stem), None)

    def _remove(self, folder: Folder, name: bytes) -> None:
        with writing(os.path.join(folder.path, name)):
            if folder.lookup(name) is not None:
                folder.unlink(name)

    # --- Content ----------------------------------------------------------------------

    def _load_indexes(self, folder: Folder) -> None:
        """Know every whole pack, so that what is there is not kept twice."""
        self._indexes.clear()  # another process may have dropped what we knew
        for file in folder.names():
            name = os.fsdecode(file.removesuffix(INDEX_SUFFIX))
            if not file.endswith(INDEX_SUFFIX):
                continue
            try:
                index = PackIndex.read(folder, name)
            except StoreDamaged:
                continue  # a new snapshot does not lean on it; loading an old one tells
            if index is not None:
                self._indexes[name] = index

    def _need(self, folder: Folder, name: str, snapshot_id: str) -> None:
        """See that a pack is there as it was written, and know what it holds."""
        index = PackIndex.read(folder, name)
        if index is None:
            raise StoreIncomplete(
                f"snapshot {snapshot_id}: its pack {name} is not in {self.folder}"
            )
        self._indexes[name] = index

    def _find(self, digest: bytes) -> Span | None:
        for index in self._indexes.values():
            span = index.find(digest)
            if span is not None:
                return span
        return None

    def _use(self, digest: bytes, used: set[str]) -> bool:
        """Tell whether a content is there already, and note whose it is."""
        span = self._find(digest)
        if span is not None:
            used.add(span.pack)
        return span is not None

    def _read(self, span: Span) -> Iterator[bytes]:
        """The bytes of a content, in chunks, as they lie in the pack now."""
        name = span.pack.encode() + PACK_SUFFIX
        where = os.path.join(os.fsencode(self.folder), name)
        try:
            with Folder.open(self.folder) as folder:
                fd = folder.open_regular(name)
        except FileNotFoundError:
            raise StoreIncomplete(f"{show_path(where)}: is not there") from None
        try:
            yield from _read_span(fd, span)
        except OSError as error:
            fact = error.strerror or str(error)
            raise StoreDamaged(f"{show_path(where)}: {fact}") from error
        finally:
            os.close(fd)


def _read_span(fd: int, span: Span) -> Iterator[bytes]:
    os.lseek(fd, span.offset, os.SEEK_SET)
    left = span.length
    while left > 0 and (chunk := os.read(fd, min(CHUNK_BYTES, left))):
        left -= len(chunk)
        yield chunk


def _manifest_name(snapshot_id: str) -> bytes:
    return os.fsencode(snapshot_id) + _MANIFEST_SUFFIX
