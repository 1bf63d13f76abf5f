"""What the tests of the snapshot room share: a ground to work on, and small edits."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accounts import ORDINARY_UID, is_root
from listing import TreeState, tree_state

from workspace_guard.files.tree import Folder
from workspace_guard.snapshot.compare import Comparison, compare
from workspace_guard.snapshot.manifest import GRANULARITY_NS, Manifest
from workspace_guard.snapshot.restore import Restoration, restore
from workspace_guard.snapshot.store import Snapshot, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """A tree, a store and a quarantine, each in its own folder."""

    top: Path
    store: Store
    quarantine: Path
    outside: Path
    """A folder beside the tree that nothing of ours may touch."""

    @classmethod
    def make(cls, place: Path) -> Ground:
        """Make a ground with an empty tree in a folder."""
        for name in ("top", "outside"):
            (place / name).mkdir()
        (place / "outside" / "victim").write_bytes(b"precious\n")
        return cls(
            top=place / "top",
            store=Store(place / "store"),
            quarantine=place / "quarantine",
            outside=place / "outside",
        )

    @classmethod
    def make_for_ordinary(cls, place: Path) -> Ground:
        """Make a ground that belongs to the ordinary user of `as_ordinary`."""
        if is_root():
            os.chown(place, ORDINARY_UID, ORDINARY_UID)
        with as_ordinary():
            return cls.make(place)

    def put(self, name: str | bytes, content: bytes = b"") -> Path:
        """Write a file of the tree, with the folders that it needs."""
        path = self.top / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def take(
        self,
        *,
        skip: frozenset[bytes] = frozenset(),
        max_bytes: int | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> Snapshot:
        """Take a snapshot of the tree."""
        with Folder.open(self.top) as top:
            return self.store.create(top, skip=skip, max_bytes=max_bytes, check=check)

    def compare(
        self,
        manifest: Manifest,
        *,
        skip: frozenset[bytes] = frozenset(),
        hashed: frozenset[bytes] = frozenset(),
        verify_content: bool = False,
    ) -> Comparison:
        """Compare the tree with a manifest."""
        with Folder.open(self.top) as top:
            return compare(
                manifest,
                top,
                skip=skip,
                hashed=hashed,
                verify_content=verify_content,
            )

    def kinds(self, manifest: Manifest) -> dict[bytes, str]:
        """The kind of change of each path that differs."""
        return {change.path: change.kind for change in self.compare(manifest).changes}

    def restore(
        self,
        snapshot: Snapshot,
        *,
        skip: frozenset[bytes] = frozenset(),
        keep_newer_than_ns: int | None = None,
    ) -> Restoration:
        """Compare the tree with a snapshot and put it back."""
        comparison = self.compare(snapshot.manifest, skip=skip)
        with Folder.open(self.top) as top:
            return restore(
                self.store,
                snapshot,
                top,
                comparison,
                self.quarantine,
                keep_newer_than_ns=keep_newer_than_ns,
            )

    def state(self) -> TreeState:
        """All that stands in the tree."""
        return tree_state(self.top)

    def kept(self) -> dict[bytes, bytes | None]:
        """What lies in quarantine: path to content, None for what is no file."""
        if not self.quarantine.exists():
            return {}
        found = tree_state(self.quarantine)
        return {
            path: _content(self.quarantine, path) if look.kind == "file" else None
            for path, look in found.items()
            if path != b"."
        }


def _content(top: Path, path: bytes) -> bytes:
    with open(os.path.join(os.fsencode(top), path), "rb") as file:
        return file.read()


@contextlib.contextmanager
def as_ordinary() -> Iterator[None]:
    """Do the block as an ordinary user: root's rights are laid down for it."""
    if not is_root():
        yield
        return
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(ORDINARY_UID)
    os.seteuid(ORDINARY_UID)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@contextlib.contextmanager
def deep_tree(top: Path, depth: int) -> Iterator[None]:
    """Make folders so deep that what clears up after a test could not remove them."""
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    try:
        yield
    finally:
        subprocess.run(["rm", "-rf", *top.parent.glob("*/d")], check=True)


def grow_old(top: Path) -> None:
    """Wait until everything in a tree is old enough to be trusted by its stat."""
    newest = max(
        os.lstat(os.path.join(folder, name)).st_ctime_ns
        for folder, folders, files in os.walk(top)
        for name in (".", *folders, *files)
    )
    wait_for(lambda: time.time_ns() > newest + 2 * GRANULARITY_NS)


def wait_for(fact: Callable[[], bool]) -> None:
    """Go on once something holds; fail where it never does."""
    deadline = time.monotonic() + DEADLINE_S
    while not fact():
        assert time.monotonic() < deadline, "what was waited for has not come about"


def trusting(manifest: Manifest) -> Manifest:
    """The manifest as it would be of a tree that had been old at the time."""
    return dataclasses.replace(
        manifest,
        moment_ns=manifest.moment_ns + 3_600 * 10**9,
        folders={
            path: record._replace(young=False)
            for path, record in manifest.folders.items()
        },
    )


def save_by_rename(path: Path, content: bytes) -> None:
    """Save as an editor does: a new file, renamed over the old one."""
    staged = path.with_name("staged by an editor")
    staged.write_bytes(content)
    staged.replace(path)


def edit_in_place(path: Path, content: bytes) -> None:
    """Overwrite the beginning of a file and put its times back (case S47)."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
