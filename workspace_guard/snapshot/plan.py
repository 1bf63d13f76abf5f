"""What has to be done to put a tree back, decided before anything is done.

Room: snapshot. Knows the order that works (a file where a folder was, and the other way
round) and what must be left alone; touches no disk.

Order: leave; take away what was created; make folders, from the top down; put back what
they hold; at last the folders' own attributes, deepest first, since all that went
before has moved their times. What stands where something is put back goes into
quarantine only once that is ready to take its place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from workspace_guard.errors import show_path
from workspace_guard.files.replace import is_staged_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workspace_guard.snapshot.compare import Change, Comparison
    from workspace_guard.snapshot.manifest import Entry, Manifest

OWNER = "restore"
"""In whose name files are staged in the workspace."""

NOT_CAPTURED = "its content was not captured when the snapshot was taken"
NEWER = "it was changed later than what is undone here, by somebody else"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Do not touch a path."""

    path: bytes
    reason: str
    foreign: bool = False
    """Whether somebody else's edit is the reason."""

    def describe(self) -> str:
        """What is done, for people."""
        return f"leave {show_path(self.path)}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """Move what was created at a path into quarantine, with all below it."""

    path: bytes

    def describe(self) -> str:
        """What is done, for people."""
        return f"move {show_path(self.path)} into quarantine"


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeFolder:
    """Make a folder again, for its owner alone until it is settled."""

    path: bytes
    replaces: bool
    """Whether something else stands there, which goes into quarantine."""

    def describe(self) -> str:
        """What is done, for people."""
        return f"make the folder {show_path(self.path)} again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Put back anything but a folder."""

    path: bytes
    entry: Entry
    replaces: bool
    """Whether something else stands there, which goes into quarantine."""

    def describe(self) -> str:
        """What is done, for people."""
        return f"put back the {self.entry.type} {show_path(self.path)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Make paths the names of one file again."""

    paths: tuple[bytes, ...]
    entry: Entry
    spoiled: frozenset[bytes]
    """Those where something else stands now, or nothing."""

    @property
    def path(self) -> bytes:
        """The first of them."""
        return self.paths[0]

    def describe(self) -> str:
        """What is done, for people."""
        names = ", ".join(show_path(path) for path in self.paths)
        return f"make {names} one file again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjust:
    """Put back owner, mode, attributes and time of anything but a folder."""

    path: bytes
    entry: Entry
    captured: bool
    """Whether the content could be put back too, should that be needed."""

    def describe(self) -> str:
        """What is done, for people."""
        return f"put back the attributes of {show_path(self.path)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """Put back owner, mode, attributes and time of a folder."""

    path: bytes
    entry: Entry

    def describe(self) -> str:
        """What is done, for people."""
        return f"put back the attributes of the folder {show_path(self.path) or '.'}"


Operation = Leave | Save | MakeFolder | Put | Join | Adjust | Settle


def plan(
    manifest: Manifest,
    comparison: Comparison,
    *,
    keep_newer_than_ns: int | None = None,
) -> tuple[Operation, ...]:
    """Decide what puts a tree back.

    Args:
        manifest: the tree as it was.
        comparison: how it differs.
        keep_newer_than_ns: leave alone what was changed later; None leaves nothing. A
            folder's attributes are put back all the same: its time of change moves
            with everything that happens inside, so it names nobody.

    Returns:
        The operations, in the order in which they are to be done.
    """
    draft = _Draft(manifest, keep_newer_than_ns)
    for change in comparison.changes:
        draft.add(change)
    draft.settled.update(comparison.moved_folders)
    return draft.finish()


@dataclass(slots=True)
class _Draft:
    """The operations so far, sorted by what they are."""

    manifest: Manifest
    keep_newer_than_ns: int | None
    left: dict[bytes, Leave] = field(default_factory=dict[bytes, Leave])
    taken: set[bytes] = field(default_factory=set[bytes])
    """Paths that go into quarantine, also as part of a folder that does."""
    saves: list[bytes] = field(default_factory=list[bytes])
    folders: dict[bytes, MakeFolder] = field(default_factory=dict[bytes, MakeFolder])
    files: dict[bytes, Put | Adjust] = field(default_factory=dict[bytes, Put | Adjust])
    settled: set[bytes] = field(default_factory=set[bytes])

    def add(self, change: Change) -> None:
        """Take in a change; a folder's comes before those of what it holds."""
        if self._is_foreign(change):
            self._leave(change.path, NEWER, foreign=True)
        elif change.kind == "created":
            self._remove(change.path)
        elif change.before is None:
            return
        elif change.kind != "metadata":
            self._bring_back(change, change.before)
        elif change.before.type == "folder":
            self.settled.add(change.path)
        else:
            self._put_right(change, change.before)

    def finish(self) -> tuple[Operation, ...]:
        """Put the operations in order."""
        joins = self._joins()
        names = [*self.saves, *self.folders, *self.files]
        for join in joins:
            names += join.paths
            for path in join.paths:
                self.files.pop(path, None)
        self.settled.update(path.rpartition(b"/")[0] for path in names if path)
        self.settled.update(self.folders)
        return (
            *self.left.values(),
            *(Save(path=path) for path in self.saves),
            *self.folders.values(),
            *self.files.values(),
            *joins,
            *self._settles(),
        )

    def _is_foreign(self, change: Change) -> bool:
        if self.keep_newer_than_ns is None or change.after is None:
            return False
        if change.kind == "metadata" and change.after.type == "folder":
            return False
        # What a restore that was killed has staged is ours, however new it is.
        name = change.path.rpartition(b"/")[2]
        return change.after.ctime_ns > self.keep_newer_than_ns and not is_staged_name(
            name, OWNER
        )

    def _leave(self, path: bytes, reason: str, *, foreign: bool = False) -> None:
        self.left[path] = Leave(path=path, reason=reason, foreign=foreign)

    def _remove(self, path: bytes) -> None:
        above = self._above(path)
        if above in self.left and not self.left[above].foreign:
            self._leave(path, self.left[above].reason)
            return
        if above not in self.taken:
            self.saves.append(path)
        self.taken.add(path)

    def _bring_back(self, change: Change, before: Entry) -> None:
        """Plan for something that was changed, deleted or replaced."""
        above = self._above(change.path)
        if above in self.left:
            leave = self.left[above]
            self._leave(change.path, leave.reason, foreign=leave.foreign)
        elif not self.manifest.is_captured(change.path, before):
            self._leave(change.path, NOT_CAPTURED)
        else:
            self._replace(change, before)

    def _replace(self, change: Change, before: Entry) -> None:
        path, replaces = change.path, change.after is not None
        if replaces:
            self.taken.add(path)
        if before.type == "folder":
            self.folders[path] = MakeFolder(path=path, replaces=replaces)
        else:
            self.files[path] = Put(path=path, entry=before, replaces=replaces)

    def _put_right(self, change: Change, before: Entry) -> None:
        """Plan for something of which only the metadata is said to differ."""
        captured = self.manifest.is_captured(change.path, before)
        unread = change.after is not None and change.after.sha256 is None
        if before.sha256 is not None and unread:
            self._replace(change, before)  # nobody has seen that its content is right
        else:
            self.files[change.path] = Adjust(
                path=change.path, entry=before, captured=captured
            )

    def _joins(self) -> list[Join]:
        """Find the files of several names of which one is to be put back."""
        joins: list[Join] = []
        for group in self.manifest.links:
            mended = [self.files[path] for path in group if path in self.files]
            paths = tuple(path for path in group if path not in self.left)
            if mended and mended[0].entry.sha256 is not None:
                spoiled = frozenset(one.path for one in mended if isinstance(one, Put))
                joins.append(Join(paths=paths, entry=mended[0].entry, spoiled=spoiled))
        return joins

    def _settles(self) -> Iterable[Settle]:
        for path in sorted(self.settled, key=lambda path: (-depth(path), path)):
            entry = self.manifest.entry(path)
            if entry is not None and entry.type == "folder" and path not in self.left:
                yield Settle(path=path, entry=entry)

    @staticmethod
    def _above(path: bytes) -> bytes:
        return path.rpartition(b"/")[0]


def depth(path: bytes) -> int:
    """How many folders down a path lies; the top lies above all."""
    return path.count(b"/") + 1 if path else 0
