"""Files that are about to be replaced as one, staged the way a promotion stages them.

By default three: one that is there, one that is new, and one in a new folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from listing import TreeState, changes, tree_state
from oscalls import Call, each_call

from workspace_guard.files import journal
from workspace_guard.files.journal import Group, Recovered, Replacement
from workspace_guard.files.relpath import RelPath
from workspace_guard.files.replace import staged_file, staged_name
from workspace_guard.files.tree import Folder

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

OWNER = "run-1"
JOURNAL = "run-1.promotion.json"
LONG_AGO_NS = 1_700_000_000_123_456_789

Spec = dict[str, tuple[bytes | None, bytes]]
"""Destination to its old content (None: absent) and its new one."""
THREE: Spec = {
    "a.md": (b"old a\n", b"new a\n"),
    "b.md": (None, b"new b\n"),
    "made/c.md": (None, b"new c\n"),
}
THREE_OLD: Spec = {
    "a.md": (b"old a\n", b"new a\n"),
    "sub/b.md": (b"old b\n", b"new b\n"),
    "sub/c.md": (b"old c\n", b"new c\n"),
}


class Cut(BaseException):
    """The power goes: no handler of the code under test takes it for a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A group that is staged, and the folders it lives in."""

    workspace: Path
    spec: Spec
    top: Folder
    kept: Folder
    journal: Folder
    group: Group
    before: TreeState
    """The workspace before anything was staged."""

    def commit(self) -> None:
        """Put all in place."""
        journal.commit(self.group, self.top, self.kept, self.journal)

    def rollback(self) -> None:
        """Take all back."""
        journal.rollback(self.group, self.top, self.kept)

    def recover(self) -> Recovered | None:
        """Finish or undo."""
        return journal.recover(OWNER, self.top, self.kept, self.journal)

    @property
    def labels(self) -> dict[int, str]:
        """Names of the open folders, for the trace."""
        named = {"TOP": self.top, "KEPT": self.kept, "JOURNAL": self.journal}
        return {folder.fd or -1: name for name, folder in named.items()}

    def cut_at(self, line: str) -> None:
        """Commit, and be cut off just before a call."""

        def before(call: Call) -> None:
            if str(call) == line:
                raise Cut

        with contextlib.suppress(Cut), each_call(before, descriptors=self.labels):
            self.commit()
            raise AssertionError(f"no call {line!r}")

    def cut_after(self, renamed: int) -> None:
        """Commit, and be cut off when so many files are in place."""
        names = [os.fsdecode(r.destination.name) for r in self.group.replacements]
        lines = [f"replace staged {name}" for name in names]
        last = [f"unlink {JOURNAL}"]
        self.cut_at((lines + last)[renamed])

    def now(self) -> TreeState:
        """The workspace as it is."""
        return look(self.workspace)

    def state(self) -> str:
        """`old`, `new`, or what is neither, in words.

        Old is all that a listing tells, kept files among it: none may be left. New is
        the bytes, with the old content kept.
        """
        changed = changes(self.before, self.now())
        kept = self.kept.names()
        if not changed and not kept:
            return "old"
        expected = {p: new for p, (_, new) in self.spec.items()}
        if contents(self.workspace) == expected and self._holds_the_old():
            return "new"
        return f"a mixture: {sorted(changed)}, kept {kept}"

    def _holds_the_old(self) -> bool:
        return all(
            _read(self.kept, r.kept) == self.spec[str(r.destination)][0]
            for r in self.group.replacements
        )

    def litter(self) -> list[str]:
        """Staged files anywhere, and whatever stands in the journal."""
        return sorted(
            name
            for path in (self.workspace, os.fsdecode(self.journal.path))
            for _, _, names in os.walk(path)
            for name in names
            if name.startswith(".wsguard-") or path != self.workspace
        )


def staged_path(group: Staged, number: int) -> Path:
    """Where the staged file of one replacement lies, or lay."""
    replacement = group.group.replacements[number]
    path = replacement.destination.parent / replacement.staged
    return group.workspace / os.fsdecode(bytes(path))


def look(workspace: Path) -> TreeState:
    """List a workspace, without the times of folders: staging alone moves them."""
    folders = (os.path.relpath(path, workspace) for path, _, _ in os.walk(workspace))
    return tree_state(workspace, any_time=tuple(os.fsencode(f) for f in folders))


def _read(folder: Folder, name: bytes | None) -> bytes | None:
    if name is None or folder.lookup(name) is None:
        return None
    with os.fdopen(folder.open_regular(name), "rb") as file:
        return file.read()


def contents(top: Path) -> dict[str, bytes]:
    """Every file below a folder, with its bytes."""
    return {
        os.path.relpath(os.path.join(folder, name), top): _bytes(folder, name)
        for folder, _, names in os.walk(top)
        for name in names
    }


def _bytes(folder: str, name: str) -> bytes:
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


def second_name(folder: Folder, name: bytes, kept: Folder, as_name: bytes) -> None:
    """Keep a file as a second name of it."""
    folder.link(name, kept, as_name)


# --- What somebody else does meanwhile ------------------------------------------------


def edit(path: Path) -> None:
    """Write other bytes in place."""
    path.write_bytes(b"mine\n")


def swap_by_rename(path: Path) -> None:
    """Save other bytes as editors do."""
    path.with_name("new").write_bytes(b"mine\n")
    path.with_name("new").rename(path)


def link_instead(path: Path) -> None:
    """Put a link to the same bytes there."""
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def folder_instead(path: Path) -> None:
    """Put a folder there."""
    path.unlink()
    path.mkdir()


def fifo_instead(path: Path) -> None:
    """Put a FIFO there, which must not be waited for."""
    path.unlink()
    os.mkfifo(path)


# --- Staging --------------------------------------------------------------------------


@contextlib.contextmanager
def staged(
    root: Path,
    spec: Spec | None = None,
    *,
    keep: Callable[[Folder, bytes, Folder, bytes], None] = second_name,
    prepare: Callable[[Path], None] = lambda _workspace: None,
) -> Generator[Staged]:
    """Build a workspace in an empty folder, and stage a group in it.

    Args:
        root: gets `workspace`, `kept` and `journal`.
        spec: what is replaced by what.
        keep: how the old file is kept; by a second name, or as a copy.
        prepare: what is done to the old files before.
    """
    spec = THREE if spec is None else spec
    workspace = root / "workspace"
    for folder in (workspace, root / "kept", root / "journal"):
        folder.mkdir()
    for path, (old, _) in spec.items():
        if old is not None:
            _write_old(workspace / path, old)
    prepare(workspace)
    before = look(workspace)
    with (
        Folder.open(workspace) as top,
        Folder.open(root / "kept") as kept,
        Folder.open(root / "journal") as journal_folder,
    ):
        made = _make_parents(workspace, spec)
        replacements = tuple(
            _stage(top, kept, keep, number, RelPath.parse(path, "posix"), *contents)
            for number, (path, contents) in enumerate(spec.items())
        )
        yield Staged(
            workspace=workspace,
            spec=spec,
            top=top,
            kept=kept,
            journal=journal_folder,
            group=Group(owner=OWNER, replacements=replacements, made_folders=made),
            before=before,
        )


def _write_old(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o640)
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    os.utime(path.parent, ns=(LONG_AGO_NS, LONG_AGO_NS))


def _make_parents(workspace: Path, spec: Spec) -> tuple[RelPath, ...]:
    made: list[RelPath] = []
    for path in spec:
        for depth in range(1, len(path.split("/"))):
            folder = "/".join(path.split("/")[:depth])
            if not (workspace / folder).exists():
                (workspace / folder).mkdir()
                made.append(RelPath.parse(folder, "posix"))
    return tuple(made)


def _stage(  # noqa: PLR0913, PLR0917  # what a promotion has at hand for one file
    top: Folder,
    kept: Folder,
    keep: Callable[[Folder, bytes, Folder, bytes], None],
    number: int,
    destination: RelPath,
    old: bytes | None,
    new: bytes,
) -> Replacement:
    name = staged_name(OWNER)
    kept_name = None if old is None else str(number).encode()
    with top.reach(destination.parent) as folder:
        with staged_file(folder, name) as fd:
            os.write(fd, new)
        if kept_name is not None:
            keep(folder, destination.name, kept, kept_name)
    return Replacement(
        destination=destination,
        staged=name,
        before_sha256=None if old is None else hashlib.sha256(old).hexdigest(),
        after_sha256=hashlib.sha256(new).hexdigest(),
        kept=kept_name,
    )
