"""Compare a tree with its manifest, in one walk that reads only what may have changed.

Room: snapshot. Knows what counts as a change; changes nothing and judges nothing.

A folder whose names and stat rows are the same bytes as before is done with, unless it
holds entries that are too young to be trusted, or that must be hashed in any case.
Elsewhere each name whose row differs is looked at whole: links are read, attributes
listed, content hashed. Content, type, mode, owner, mtime, attributes, link text and
link count make a change. An inode or ctime that moved while all these stayed is a note.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from workspace_guard.snapshot.manifest import (
    MODE,
    SIZE,
    Entry,
    FolderRecord,
    Gap,
    GapKind,
    Manifest,
    Row,
    Stored,
    entry_of,
    is_folder,
    is_young,
    join,
)
from workspace_guard.snapshot.scan import (
    GONE,
    Listing,
    Trail,
    fact_of,
    list_folder,
    look,
    names_by_folder,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workspace_guard.files.tree import Folder

ChangeKind = Literal["created", "changed", "deleted", "replaced", "metadata"]

EVIDENCE_BYTES = 64 << 20
"""Content that is different for certain is hashed up to this size, as evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One path that is not as it was."""

    path: bytes
    kind: ChangeKind
    before: Entry | None
    after: Entry | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something that moved and is no change."""

    path: bytes
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All that differs; each tuple is in the order of paths."""

    changes: tuple[Change, ...]
    moved_folders: tuple[bytes, ...]
    """Folders whose time alone has moved, because of a change inside: to be put back,
    and not worth an entry of their own."""
    notes: tuple[Note, ...]
    gaps: tuple[Gap, ...]
    """What this comparison could not see; the manifest has those of the snapshot."""
    skip: frozenset[bytes]
    """What was not looked at."""


def _ignore() -> None:
    """Stand in where nobody checks."""


def compare(
    manifest: Manifest,
    top: Folder,
    *,
    skip: frozenset[bytes] = frozenset(),
    hashed: frozenset[bytes] = frozenset(),
    verify_content: bool = False,
    check: Callable[[], None] = _ignore,
) -> Comparison:
    """Find every difference between a tree and its manifest.

    Args:
        manifest: the tree as it was.
        top: the tree's folder as it is; stays open.
        skip: relative paths that are not looked at, with all below them.
        hashed: files whose content is read however untouched they look (case S1).
        verify_content: read the content of every file.
        check: called once a folder; may raise to give up.

    Returns:
        The differences. A folder that cannot be read is a gap that could hide one; so
        is a file whose content would have to be read and cannot be.
    """
    walk = _Walk(
        manifest=manifest,
        skipped=names_by_folder(skip),
        skip=skip,
        hashed=hashed,
        hashed_in=frozenset(path.rpartition(b"/")[0] for path in hashed),
        verify_content=verify_content,
    )
    walk.look_at_top(top)
    pending = [b""]
    with Trail(top) as trail:
        while pending:
            path = pending.pop()
            check()
            try:
                inner = walk.visit(path, trail.reach(path))
            except OSError as error:
                walk.miss(path, error)
                continue
            pending += reversed(inner)
    return walk.result()


@dataclass(slots=True, kw_only=True)
class _Walk:
    """What the walk has found so far."""

    manifest: Manifest
    skip: frozenset[bytes]
    skipped: Mapping[bytes, frozenset[str]]
    hashed: frozenset[bytes]
    hashed_in: frozenset[bytes]
    """The folders that hold a path of `hashed`."""
    verify_content: bool
    changes: list[Change] = field(default_factory=list[Change])
    moved: list[bytes] = field(default_factory=list[bytes])
    notes: list[Note] = field(default_factory=list[Note])
    gaps: list[Gap] = field(default_factory=list[Gap])
    times: dict[bytes, Change] = field(default_factory=dict[bytes, Change])
    """Folders whose time has moved, until what they hold explains it or does not."""
    created: set[bytes] = field(default_factory=set[bytes])
    """Folders that the manifest does not know."""

    def result(self) -> Comparison:
        """Put together what was found."""
        # What was never entered explains nothing: the time is a change of its own.
        self.changes += self.times.values()
        return Comparison(
            changes=tuple(sorted(self.changes, key=lambda change: change.path)),
            moved_folders=tuple(sorted(self.moved)),
            notes=tuple(sorted(self.notes, key=lambda note: note.path)),
            gaps=tuple(sorted(self.gaps, key=lambda gap: gap.path)),
            skip=self.skip,
        )

    # --- Folders ----------------------------------------------------------------------

    def look_at_top(self, top: Folder) -> None:
        """Compare the top folder's own entry."""
        now, _ = look(top, b".", hash_bytes=0)
        self._compare_folder(b"", self.manifest.root, entry_of(now))

    def visit(self, path: bytes, folder: Folder) -> list[bytes]:
        """Compare what a folder holds.

        Returns:
            The folders in it that are to be visited.
        """
        listing = list_folder(folder, self.skipped.get(path, frozenset()))
        record = self.manifest.folders.get(path)
        if record is None or not self._is_untouched(path, listing, record):
            explained = self._compare_names(path, folder, listing, record)
        else:
            explained = False
        moved = self.times.pop(path, None)
        if moved is not None and explained:
            self.moved.append(path)
        elif moved is not None:
            self.changes.append(moved)
        inner = (join(path, name) for name in listing.folders)
        # A folder of the manifest without a record could not be read then: nobody
        # knows what it held, so nothing in it can be called a change.
        return [
            one for one in inner if one in self.created or one in self.manifest.folders
        ]

    def miss(self, path: bytes, error: OSError) -> None:
        """Account for a folder that could not be read."""
        hides = path not in self.created
        if error.errno in GONE:
            self._gap("vanished", path, "vanished during the comparison", hides=hides)
        else:
            message = f"the folder: {fact_of(error)}"
            self._gap("unreadable", path, message, hides=hides)

    def _is_untouched(
        self, path: bytes, listing: Listing, record: FolderRecord
    ) -> bool:
        if record.young or self.verify_content or path in self.hashed_in:
            return False
        return (
            listing.packed_rows() == record.rows
            and listing.packed_names() == record.names
        )

    def _compare_names(
        self, path: bytes, folder: Folder, listing: Listing, record: FolderRecord | None
    ) -> bool:
        """Compare name by name.

        Returns:
            Whether what became of a name accounts for a moved time of the folder.
        """
        skipped = self.skipped.get(path, frozenset())
        before = record.decode() if record is not None else {}
        now = listing.by_name()
        explained = False
        for name in before.keys() - now.keys():
            if os.fsdecode(name) not in skipped:
                self._add_deleted(join(path, name), before[name])
                explained = True
        for name, row in now.items():
            where = join(path, name)
            stored = before.get(name)
            if stored is None:
                explained |= self._add_created(where, folder, name)
            elif row != stored[0] or self._is_suspect(where, row):
                explained |= self._examine(where, folder, name, stored)
        return explained

    def _compare_folder(self, path: bytes, before: Entry, after: Entry) -> None:
        change = Change(path=path, kind="metadata", before=before, after=after)
        if _attributes(before) != _attributes(after):
            self.changes.append(change)
        elif before.mtime_ns != after.mtime_ns:
            self.times[path] = change
        elif (before.inode, before.ctime_ns) != (after.inode, after.ctime_ns):
            self._note(path)

    # --- Names ------------------------------------------------------------------------

    def _is_suspect(self, path: bytes, row: Row) -> bool:
        """Tell whether a row that has not changed proves nothing."""
        if is_young(row, self.manifest.moment_ns) or path in self.hashed:
            return True
        return self.verify_content and stat.S_ISREG(row[MODE])

    def _examine(
        self, path: bytes, folder: Folder, name: bytes, before: Stored
    ) -> bool:
        """Look at one name whole and say what became of it.

        Returns:
            Whether the folder's time may have moved with it. The inode does not tell:
            a file system gives the number of one that went to the next that comes.
        """
        known = len(self.changes), len(self.times)
        try:
            same_size = folder.stat(name).st_size == before[0][SIZE]
            after, problem = look(
                folder, name, hash_bytes=None if same_size else EVIDENCE_BYTES
            )
        except OSError as error:
            return self._lose(path, before, error)
        old, new = entry_of(before), entry_of(after)
        if old.type != new.type:
            self._add_replaced(path, old, new)
            return True
        if new.type == "folder":
            self._compare_folder(path, old, new)
        elif differs_in_content(old, new):
            self._add(path, "changed", old, new)
        elif _metadata(old) != _metadata(new):
            self._add(path, "metadata", old, new)
        elif problem is not None:
            self._gap("unreadable", path, problem, hides=True)
        elif before[0] != after[0]:
            self._note(path)
        changed = known != (len(self.changes), len(self.times))
        return changed or old.inode != new.inode

    def _lose(self, path: bytes, before: Stored, error: OSError) -> bool:
        """Account for a name that was listed and could not be looked at."""
        if error.errno in GONE:
            self._add_deleted(path, before)
            return True
        self._gap("unreadable", path, fact_of(error), hides=True)
        return False

    def _add_created(self, path: bytes, folder: Folder, name: bytes) -> bool:
        try:
            after, _ = look(folder, name, hash_bytes=EVIDENCE_BYTES)
        except OSError as error:
            if error.errno not in GONE:
                self._gap("unreadable", path, fact_of(error), hides=True)
            return True  # it came and went, which moves the folder's time as well
        self._add(path, "created", None, entry_of(after))
        if is_folder(after[0]):
            self.created.add(path)
        return True

    def _add_replaced(self, path: bytes, old: Entry, new: Entry) -> None:
        self._add(path, "replaced", old, new)
        self._add_what_was_below(path, old)
        if new.type == "folder":
            self.created.add(path)

    def _add_deleted(self, path: bytes, before: Stored) -> None:
        old = entry_of(before)
        self._add(path, "deleted", old, None)
        self._add_what_was_below(path, old)

    def _add_what_was_below(self, path: bytes, old: Entry) -> None:
        if old.type != "folder":
            return
        for inner, entry in self.manifest.below(path):
            self._add(inner, "deleted", entry, None)

    def _add(
        self, path: bytes, kind: ChangeKind, before: Entry | None, after: Entry | None
    ) -> None:
        self.changes.append(Change(path=path, kind=kind, before=before, after=after))

    def _gap(self, kind: GapKind, path: bytes, message: str, *, hides: bool) -> None:
        self.gaps.append(
            Gap(kind=kind, path=path, could_hide_escape=hides, message=message)
        )

    def _note(self, path: bytes) -> None:
        message = "its inode or change time moved; all that counts is as it was"
        self.notes.append(Note(path=path, message=message))


# --- What counts ----------------------------------------------------------------------


def differs_in_content(before: Entry, after: Entry) -> bool:
    """Tell whether one name of one type holds something else.

    Where the content of a file could not be read, whatever a write would have moved
    counts as one.
    """
    if before.type == "file" and None in (before.sha256, after.sha256):
        return _written(before) != _written(after)
    return (before.sha256, before.link, before.rdev) != (
        after.sha256,
        after.link,
        after.rdev,
    )


def tell(change: Change) -> str:
    """Say in a few words what became of a path."""
    before, after = change.before, change.after
    if before is None or after is None or change.kind == "replaced":
        return change.kind
    facts = [
        f"{word} {was} became {now}"
        for word, was, now in (
            ("mode", f"{before.mode:04o}", f"{after.mode:04o}"),
            ("uid", before.uid, after.uid),
            ("gid", before.gid, after.gid),
            ("size", before.size, after.size),
            ("link count", before.nlink, after.nlink),
        )
        if was != now
        and not (after.type == "folder" and word in ("size", "link count"))
    ]
    return f"{change.kind} ({', '.join(facts)})" if facts else change.kind


def _written(entry: Entry) -> tuple[int, ...]:
    return entry.device, entry.inode, entry.size, entry.mtime_ns


def _attributes(entry: Entry) -> tuple[object, ...]:
    """What is compared of a folder, but for its time."""
    return entry.mode, entry.uid, entry.gid, entry.xattrs


def _metadata(entry: Entry) -> tuple[object, ...]:
    """What is compared of anything else, but for its content."""
    return (*_attributes(entry), entry.mtime_ns, entry.nlink)
