"""Put a tree back as its snapshot says, and look again whether that was done.

Room: snapshot. Knows how the operations of a plan are done; every step goes through a
folder's descriptor and no link, nothing is written in place, and nothing is removed
that is neither in the snapshot nor in quarantine by then. A path that fails never
keeps the others from being put back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from workspace_guard.errors import GuardError
from workspace_guard.files.replace import is_staged_name, staged_name
from workspace_guard.snapshot.access import Access
from workspace_guard.snapshot.attributes import put_on_name
from workspace_guard.snapshot.compare import (
    EVIDENCE_BYTES,
    Change,
    Comparison,
    compare,
    tell,
)
from workspace_guard.snapshot.manifest import (
    CTIME_NS,
    Entry,
    Gap,
    Manifest,
    Row,
    entry_of,
    is_folder,
    join,
    row_of,
)
from workspace_guard.snapshot.plan import (
    NOT_CAPTURED,
    OWNER,
    Adjust,
    Join,
    Leave,
    MakeFolder,
    Operation,
    Put,
    Save,
    Settle,
    depth,
    plan,
)
from workspace_guard.snapshot.quarantine import Quarantine
from workspace_guard.snapshot.remake import remake
from workspace_guard.snapshot.scan import list_folder, look, names_by_folder

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

    from workspace_guard.files.tree import Folder
    from workspace_guard.snapshot.store import Snapshot, Store

_MOST_ROUNDS = 16
"""Each round opens folders that were locked, so what they hold comes to light."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """What was done, and what is still different now."""

    saved: Mapping[bytes, bytes]
    """Where in the quarantine each path is kept that was taken out of the tree."""
    unrestored: Mapping[bytes, str]
    """What is still not as it was, with the reason."""
    foreign: tuple[bytes, ...]
    """What was left alone because somebody else has changed it since."""
    found_later: tuple[Change, ...]
    """Changes that the comparison could not see, behind doors that were locked."""
    gaps: tuple[Gap, ...]
    """What cannot be seen now; they replace those of the comparison."""


def restore(
    store: Store,
    snapshot: Snapshot,
    top: Folder,
    comparison: Comparison,
    quarantine: Path,
    *,
    keep_newer_than_ns: int | None = None,
) -> Restoration:
    """Undo every difference that a comparison has found.

    Args:
        store: has the content.
        snapshot: the tree as it was.
        top: the tree's folder as it is; stays open.
        comparison: how it differs, with what was left out of it.
        quarantine: a folder outside the tree for what is taken out of it.
        keep_newer_than_ns: leave alone what was changed later than this, as after a
            crash; None leaves nothing.

    Returns:
        The outcome, found by comparing again and hashing what was touched. Where there
        was nothing to do, nothing was done.
    """
    now, todo = comparison, comparison
    with Quarantine(quarantine) as kept, Access(top) as access:
        work = _Work(
            store=store,
            manifest=snapshot.manifest,
            access=access,
            quarantine=kept,
            skipped=names_by_folder(comparison.skip),
            keep_newer_than_ns=keep_newer_than_ns,
            known={change.path for change in comparison.changes},
        )
        for _round in range(_MOST_ROUNDS):
            operations = plan(
                snapshot.manifest, todo, keep_newer_than_ns=keep_newer_than_ns
            )
            if not operations:
                break
            work.do(operations)
            now = compare(
                snapshot.manifest,
                top,
                skip=comparison.skip,
                hashed=frozenset(work.touched),
            )
            fresh = work.learn(now.changes)
            if not fresh:
                break
            todo = dataclasses.replace(now, changes=fresh)
        return work.outcome(now)


@dataclass(slots=True, kw_only=True)
class _Work:
    """A restore that is under way."""

    store: Store
    manifest: Manifest
    access: Access
    quarantine: Quarantine
    skipped: Mapping[bytes, frozenset[str]]
    keep_newer_than_ns: int | None
    known: set[bytes]
    """Paths of which it is known that they differ."""
    found: list[Change] = field(default_factory=list[Change])
    """Changes that came to light on the way."""
    touched: set[bytes] = field(default_factory=set[bytes])
    foreign: set[bytes] = field(default_factory=set[bytes])
    reasons: dict[bytes, str] = field(default_factory=dict[bytes, str])
    """Why something could not be done; the first reason of a path stands."""

    def learn(self, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        """Note changes and give those that were not known before."""
        fresh = tuple(one for one in changes if one.path not in self.known)
        self.known.update(change.path for change in fresh)
        self.found += fresh
        return fresh

    def outcome(self, now: Comparison) -> Restoration:
        """Account for what is different now that all is done."""
        different = dict.fromkeys(now.moved_folders, "its time is still another")
        for change in now.changes:
            different[change.path] = f"is still {tell(change)}"
        return Restoration(
            saved=dict(self.quarantine.saved),
            unrestored={
                path: self.reasons.get(path, otherwise)
                for path, otherwise in sorted(different.items())
                if path not in self.foreign
            },
            foreign=tuple(sorted(self.foreign)),
            found_later=tuple(sorted(self.found, key=lambda change: change.path)),
            gaps=now.gaps,
        )

    # --- Operations -------------------------------------------------------------------

    def do(self, operations: tuple[Operation, ...]) -> None:
        """Do what was planned; what fails is given its reason and passed over."""
        settles: dict[bytes, Entry] = {}
        for operation in operations:
            if isinstance(operation, Settle):
                settles[operation.path] = operation.entry
            else:
                with self._attempt(operation.path):
                    self._do(operation)
        self._settle_all(settles)
        self.access.forget()

    def _do(self, operation: Leave | Save | MakeFolder | Put | Join | Adjust) -> None:
        match operation:
            case Leave():
                self.reasons[operation.path] = operation.reason
                if operation.foreign:
                    self.foreign.add(operation.path)
            case Save():
                self._save(operation.path)
            case MakeFolder():
                self._make_folder(operation)
            case Put():
                self._put(operation.path, operation.entry, replaces=operation.replaces)
            case Join():
                self._join(operation)
            case Adjust():
                self._adjust(operation)
            case _:
                assert_never(operation)

    @contextlib.contextmanager
    def _attempt(self, path: bytes) -> Generator[None]:
        """Note why the block has failed, and go on with the others."""
        self.touched.add(path)
        try:
            yield
        except (OSError, GuardError) as error:
            fact = getattr(error, "strerror", None) or str(error)
            self.reasons.setdefault(path, fact)

    def _blame(self, path: bytes, failures: list[str]) -> None:
        if failures:
            self.reasons.setdefault(path, "; ".join(failures))

    # --- Taking away ------------------------------------------------------------------

    def _save(self, path: bytes) -> None:
        folder, name = self.access.at(path)
        found = folder.lookup(name)
        if found is None:
            return
        rows = [(path, row_of(found))]
        if is_folder(rows[0][1]):
            rows += self._rows_below(path)
        for inner, row in reversed(rows):  # what a folder holds goes before it
            if self._is_foreign(inner, row):
                self._spare(inner, path)
            else:
                with self._attempt(inner):
                    self._save_one(inner, row)

    def _save_one(self, path: bytes, row: Row) -> None:
        folder, name = self.access.at(path)
        if is_folder(row):
            self.quarantine.take_folder(folder, name, path, row)
        else:
            self.quarantine.take(folder, name, path)

    def _rows_below(self, path: bytes) -> list[tuple[bytes, Row]]:
        """List all that a folder holds, a folder before what it holds."""
        rows: list[tuple[bytes, Row]] = []
        pending = [path]
        while pending:
            above = pending.pop()
            try:
                folder = self.access.reach_to_change(above)
                listing = list_folder(folder, self.skipped.get(above, frozenset()))
            except OSError as error:
                self.reasons.setdefault(above, error.strerror or str(error))
                continue
            for name, row in listing.by_name().items():
                inner = join(above, name)
                rows.append((inner, row))
                if inner not in self.known:
                    self._discover(inner, folder, name)
            pending += [join(above, name) for name in listing.folders]
        return rows

    def _discover(self, path: bytes, folder: Folder, name: bytes) -> None:
        """Note something created that the comparison could not see."""
        with contextlib.suppress(OSError):
            now, _ = look(folder, name, hash_bytes=EVIDENCE_BYTES)
            after = entry_of(now)
            change = Change(path=path, kind="created", before=None, after=after)
            self.learn((change,))

    def _is_foreign(self, path: bytes, row: Row) -> bool:
        if path in self.foreign:
            return True
        keep = self.keep_newer_than_ns
        ours = is_staged_name(path.rpartition(b"/")[2], OWNER)
        return keep is not None and row[CTIME_NS] > keep and not ours

    def _spare(self, path: bytes, up_to: bytes) -> None:
        """Leave a path in place, and with it the folders that hold it."""
        while True:
            self.foreign.add(path)
            if path == up_to:
                return
            path = path.rpartition(b"/")[0]

    # --- Putting back -----------------------------------------------------------------

    def _make_folder(self, operation: MakeFolder) -> None:
        if operation.replaces:
            self._save(operation.path)
        folder, name = self.access.at(operation.path)
        folder.make_folder(name, 0o700)

    def _put(self, path: bytes, entry: Entry, *, replaces: bool) -> None:
        """Make an entry under a name of ours, and only then clear its place for it."""
        folder, _ = self.access.at(path)
        staged = staged_name(OWNER)
        try:
            failures = remake(folder, staged, entry, self.store.copy_content)
            self._move_in(staged, path, replaces=replaces)
        except BaseException:
            with contextlib.suppress(OSError):
                self.access.at(path)[0].unlink(staged)
            raise
        self._blame(path, failures)

    def _move_in(self, staged: bytes, path: bytes, *, replaces: bool) -> None:
        if replaces:
            self._save(path)
        folder, name = self.access.at(path)
        if folder.lookup(name) is not None:
            raise FileExistsError(0, "what stands there now was not saved")
        folder.rename(staged, folder, name)

    def _adjust(self, operation: Adjust) -> None:
        path, entry = operation.path, operation.entry
        folder, name = self.access.at(path)
        found = folder.stat(name)
        # An inode with other names than it had may be anybody's: a file outside that
        # was linked in. It is not touched; a new file takes the name (case S25).
        same = (found.st_dev, found.st_ino) == (entry.device, entry.inode)
        if found.st_nlink <= entry.nlink and (same or found.st_nlink == 1):
            self._blame(path, put_on_name(folder, name, entry))
        elif operation.captured:
            self._put(path, entry, replaces=True)
        else:
            self.reasons.setdefault(path, NOT_CAPTURED)

    def _join(self, operation: Join) -> None:
        entry = operation.entry
        keeper = self._find_keeper(operation)
        if keeper is None:
            keeper = operation.path
            self._put(keeper, entry, replaces=True)
        with self.access.at(keeper)[0].enter(b".") as home:
            name = keeper.rpartition(b"/")[2]
            kept = home.stat(name)
            for path in operation.paths:
                with self._attempt(path):
                    self._link(home, name, kept, path)
            self._blame(keeper, put_on_name(home, name, entry))

    def _find_keeper(self, operation: Join) -> bytes | None:
        """Find a path that still is the file it was, also by its content.

        Not where the file has gained a name that nobody here can take away, for then
        somebody else holds it too.
        """
        entry = operation.entry
        there: list[tuple[bytes, int]] = []
        for path in operation.paths:
            if path in operation.spoiled:
                continue
            try:
                folder, name = self.access.at(path)
                found = folder.stat(name)
            except OSError:
                continue
            if (found.st_dev, found.st_ino) == (entry.device, entry.inode):
                there.append((path, found.st_nlink))
        elsewhere = entry.nlink - len(operation.paths)
        if not there or there[0][1] - len(there) > elsewhere:
            return None
        return there[0][0]

    def _link(
        self, home: Folder, name: bytes, kept: os.stat_result, path: bytes
    ) -> None:
        """Make a path another name of a file."""
        folder, last = self.access.at(path)
        found = folder.lookup(last)
        identity = None if found is None else (found.st_dev, found.st_ino)
        if identity == (kept.st_dev, kept.st_ino):
            return
        staged = staged_name(OWNER)
        os.link(
            home.at(name),
            folder.at(staged),
            src_dir_fd=home.fd,
            dst_dir_fd=folder.fd,
            follow_symlinks=False,
        )
        try:
            self._move_in(staged, path, replaces=True)
        except BaseException:
            with contextlib.suppress(OSError):
                self.access.at(path)[0].unlink(staged)
            raise

    # --- Folders ----------------------------------------------------------------------

    def _settle_all(self, wanted: dict[bytes, Entry]) -> None:
        """Give folders their attributes back, deepest first, for each moves the next.

        A folder on the way may have to be unlocked for that, and is settled as well.
        """
        done: set[bytes] = set()
        while todo := (wanted.keys() | self.access.unlocked.keys()) - done:
            for path in sorted(todo, key=depth, reverse=True):
                entry = wanted.get(path) or self.manifest.entry(path)
                done.add(path)
                with self._attempt(path):
                    if entry is not None:
                        self._settle(path, entry)
                    else:
                        self.access.lock_again(path)
        self.access.unlocked.clear()

    def _settle(self, path: bytes, entry: Entry) -> None:
        if path:
            above, _, name = path.rpartition(b"/")
        else:
            above, name = b"", b"."
        folder = self.access.reach(above)
        self._blame(path, put_on_name(folder, name, entry))
