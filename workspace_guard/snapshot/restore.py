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
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from workspace_guard.errors import GuardError
from workspace_guard.files.replace import is_staged_name, staged_name
from workspace_guard.snapshot.attributes import give_owner, put_on_name, put_on_open
from workspace_guard.snapshot.compare import (
    EVIDENCE_BYTES,
    Change,
    Comparison,
    compare,
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
from workspace_guard.snapshot.scan import Trail, list_folder, look, names_by_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from workspace_guard.files.tree import Folder
    from workspace_guard.snapshot.store import Snapshot, Store

_MOST_ROUNDS = 16
"""Each round opens folders that were locked, so what they hold comes to light."""

_NODES = {
    "socket": stat.S_IFSOCK,
    "block_device": stat.S_IFBLK,
    "character_device": stat.S_IFCHR,
}


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
    with Quarantine(quarantine) as kept, Trail(top) as trail:
        work = _Work(
            store=store,
            manifest=snapshot.manifest,
            trail=trail,
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
    trail: Trail
    quarantine: Quarantine
    skipped: Mapping[bytes, frozenset[str]]
    keep_newer_than_ns: int | None
    known: set[bytes]
    """Paths of which it is known that they differ."""
    found: list[Change] = field(default_factory=list[Change])
    """Changes that came to light on the way."""
    touched: set[bytes] = field(default_factory=set[bytes])
    unlocked: set[bytes] = field(default_factory=set[bytes])
    """Folders that were given rights so that the work could be done."""
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
        different = {path: "its time is still another" for path in now.moved_folders}
        for change in now.changes:
            different[change.path] = f"is still {change.kind}"
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
                self._attempt(operation.path, lambda one=operation: self._do(one))
        self._settle_all(settles)
        self.trail.forget()

    def _do(self, operation: Leave | Save | MakeFolder | Put | Join | Adjust) -> None:
        match operation:
            case Leave():
                self.reasons[operation.path] = operation.reason
                if operation.foreign:
                    self.foreign.add(operation.path)
            case Save():
                self._save(operation.path)
            case MakeFolder():
                folder, name = self._at(operation.path)
                folder.make_folder(name, 0o700)
            case Put():
                self._put(operation.path, operation.entry)
            case Join():
                self._join(operation.paths, operation.entry)
            case Adjust():
                self._adjust(operation)
            case _:
                assert_never(operation)

    def _attempt(self, path: bytes, call: Callable[[], None]) -> None:
        self.touched.add(path)
        try:
            call()
        except (OSError, GuardError) as error:
            fact = getattr(error, "strerror", None) or str(error)
            self.reasons.setdefault(path, fact)

    def _blame(self, path: bytes, failures: list[str]) -> None:
        if failures:
            self.reasons.setdefault(path, "; ".join(failures))

    # --- Taking away ------------------------------------------------------------------

    def _save(self, path: bytes) -> None:
        folder, name = self._at(path)
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
                self._attempt(inner, lambda one=inner, of=row: self._save_one(one, of))

    def _save_one(self, path: bytes, row: Row) -> None:
        folder, name = self._at(path)
        if is_folder(row):
            self.quarantine.take_folder(folder, name, path)
        else:
            self.quarantine.take(folder, name, path)

    def _rows_below(self, path: bytes) -> list[tuple[bytes, Row]]:
        """List all that a folder holds, a folder before what it holds."""
        rows: list[tuple[bytes, Row]] = []
        pending = [path]
        while pending:
            above = pending.pop()
            try:
                folder = self._reach(above)
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

    def _put(self, path: bytes, entry: Entry) -> None:
        folder, name = self._at(path)
        if folder.lookup(name) is not None:
            raise FileExistsError(0, "something stands there that could not be saved")
        staged = staged_name(OWNER)
        try:
            self._blame(path, self._stage(folder, staged, entry))
            folder.rename(staged, folder, name)
        except BaseException:
            with contextlib.suppress(OSError):
                folder.unlink(staged)
            raise

    def _stage(self, folder: Folder, staged: bytes, entry: Entry) -> list[str]:
        """Make an entry under a name of ours; give what of it could not be made."""
        where = folder.at(staged)
        match entry.type:
            case "file":
                fd = folder.create(staged)
                try:
                    self.store.copy_content(entry.sha256 or "", fd)
                    return put_on_open(fd, entry)
                finally:
                    os.close(fd)
            case "link":
                os.symlink(entry.link or b"", where, dir_fd=folder.fd)
            case "fifo":
                os.mkfifo(where, 0o600, dir_fd=folder.fd)
            case "socket" | "block_device" | "character_device":
                mode = _NODES[entry.type] | 0o600
                os.mknod(where, mode, entry.rdev or 0, dir_fd=folder.fd)
            case "folder":
                raise IsADirectoryError(0, "a folder is made, not put")
            case _:
                assert_never(entry.type)
        return put_on_name(folder, staged, entry)

    def _adjust(self, operation: Adjust) -> None:
        path, entry = operation.path, operation.entry
        folder, name = self._at(path)
        found = folder.stat(name)
        # An inode with other names than it had may be anybody's: a file outside that
        # was linked in. It is not touched; a new file takes the name (case S25).
        same = (found.st_dev, found.st_ino) == (entry.device, entry.inode)
        if found.st_nlink <= entry.nlink and (same or found.st_nlink == 1):
            self._blame(path, put_on_name(folder, name, entry))
        elif operation.captured:
            self.quarantine.take(folder, name, path)
            self._put(path, entry)
        else:
            self.reasons.setdefault(path, NOT_CAPTURED)

    def _join(self, paths: tuple[bytes, ...], entry: Entry) -> None:
        keeper = self._find_keeper(paths, entry)
        if keeper is None:
            keeper = paths[0]
            self._clear(keeper)
            self._put(keeper, entry)
        with self._at(keeper)[0].enter(b".") as home:
            name = keeper.rpartition(b"/")[2]
            kept = home.stat(name)
            for path in paths:
                self._attempt(path, lambda one=path: self._link(home, name, kept, one))
            self._blame(keeper, put_on_name(home, name, entry))

    def _find_keeper(self, paths: tuple[bytes, ...], entry: Entry) -> bytes | None:
        """Find a path that still is the file it was; its content has been seen.

        What had other content is in quarantine by now. Not where the file has gained a
        name that nobody here can take away, for then somebody else holds it too.
        """
        there: list[tuple[bytes, int]] = []
        for path in paths:
            try:
                folder, name = self._at(path)
                found = folder.stat(name)
            except OSError:
                continue
            if (found.st_dev, found.st_ino) == (entry.device, entry.inode):
                there.append((path, found.st_nlink))
        if not there or there[0][1] - len(there) > entry.nlink - len(paths):
            return None
        return there[0][0]

    def _link(
        self, home: Folder, name: bytes, kept: os.stat_result, path: bytes
    ) -> None:
        """Make a path another name of a file."""
        folder, last = self._at(path)
        found = folder.lookup(last)
        if found is not None:
            if (found.st_dev, found.st_ino) == (kept.st_dev, kept.st_ino):
                return
            self.quarantine.take(folder, last, path)
        os.link(
            home.at(name),
            folder.at(last),
            src_dir_fd=home.fd,
            dst_dir_fd=folder.fd,
            follow_symlinks=False,
        )

    def _clear(self, path: bytes) -> None:
        folder, name = self._at(path)
        if folder.lookup(name) is not None:
            self.quarantine.take(folder, name, path)

    # --- Folders ----------------------------------------------------------------------

    def _settle_all(self, wanted: dict[bytes, Entry]) -> None:
        """Give folders their attributes back, deepest first, for each moves the next.

        A folder on the way may have to be unlocked for that, and is settled as well.
        """
        done: set[bytes] = set()
        while todo := (wanted.keys() | self.unlocked) - done:
            for path in sorted(todo, key=depth, reverse=True):
                entry = wanted.get(path) or self.manifest.entry(path)
                done.add(path)
                if entry is not None:
                    self._attempt(path, lambda at=path, to=entry: self._settle(at, to))
        self.unlocked.clear()

    def _settle(self, path: bytes, entry: Entry) -> None:
        if path:
            above, _, name = path.rpartition(b"/")
        else:
            above, name = b"", b"."
        try:
            folder = self.trail.reach(above)
        except PermissionError:
            self._unlock(above)
            folder = self.trail.reach(above)
        self._blame(path, put_on_name(folder, name, entry))

    def _at(self, path: bytes) -> tuple[Folder, bytes]:
        """The folder that holds a path, ready to be changed, and the name in it."""
        above, _, name = path.rpartition(b"/")
        return self._reach(above), name

    def _reach(self, path: bytes) -> Folder:
        """Open a folder, giving its owner the rights that the work needs."""
        try:
            folder = self.trail.reach(path)
        except PermissionError:
            self._unlock(path)
            folder = self.trail.reach(path)
        rights = os.R_OK | os.W_OK | os.X_OK
        if folder.fd is not None and not os.access(b".", rights, dir_fd=folder.fd):
            with contextlib.suppress(OSError):
                mode = stat.S_IMODE(folder.own_stat().st_mode)
                os.chmod(folder.fd, mode | stat.S_IRWXU)
                self.unlocked.add(path)
        return folder

    def _unlock(self, path: bytes) -> None:
        """Give the owner all rights on every folder on the way, from the top down."""
        parts = path.split(b"/") if path else []
        for count, name in enumerate(parts):
            folder = self.trail.reach(b"/".join(parts[:count]))
            give_owner(folder, name, stat.S_IRWXU)
            self.unlocked.add(b"/".join(parts[: count + 1]))
