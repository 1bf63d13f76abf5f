"""Whatever is done to a tree, comparing finds it and restoring undoes it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from accounts import is_root
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from listing import TreeState, tree_state
from snapshots import Ground, as_ordinary, grow_old

from workspace_guard.files.tree import Folder, remove_entry

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = int(os.environ.get("WORKSPACE_GUARD_TEST_EXAMPLES", "200"))
OLD_NS = 1_700_000_000_123_456_789

NAMES = (
    b"a",
    b"sub",
    b"two words",
    b"two\nlines",
    b"esc\x1b[2J",
    b"bad\xff",
    b"-rf",
    b"file",
    b".wsguard-restore-0123.tmp",
    "会议".encode(),
)
CONTENTS = (b"", b"x", b"ONE\n", b"TWO\n", b"longer than the others\n" * 40)
TEXTS = (b".", b"..", b"a", b"nowhere/at/all", b"../outside", b"../outside/victim")
MODES = (0o000, 0o400, 0o444, 0o500, 0o555, 0o644, 0o700, 0o755, 0o2755, 0o4755, 0o1777)

pick = st.integers(min_value=0, max_value=2**16)
names = st.sampled_from(NAMES)
contents = st.sampled_from(CONTENTS)


class TreeEdits(RuleBasedStateMachine):
    """Edits of a tree that has something of everything, and at times a restore."""

    def __init__(self) -> None:
        super().__init__()
        with self.acting():
            self.place = Path(tempfile.mkdtemp(prefix="wsguard-machine-"))
            self.ground = Ground.make(self.place)
        self.root = os.fsencode(self.ground.top)
        self.is_edited = False

    def acting(self) -> contextlib.AbstractContextManager[None]:
        """Whoever works on the tree."""
        return contextlib.nullcontext()

    def teardown(self) -> None:
        """Undo what is left to be undone, and leave nothing behind."""
        try:
            if self.is_edited:
                self.restore()
        finally:
            with Folder.open(self.place.parent) as above:
                remove_entry(above, os.fsencode(self.place.name))

    @initialize(aged=st.booleans())
    def build(self, aged: bool) -> None:
        """Build the tree and take its snapshot, of a young tree or an old one."""
        with self.acting():
            self._build()
            if aged:
                grow_old(self.ground.top)
            self.snapshot = self.ground.take()
        self.before = self.ground.state()

    def _build(self) -> None:
        ground = self.ground
        ground.put(b"file", b"ONE\n").chmod(0o640)
        ground.put(b"sub/a", b"TWO\n").chmod(0o4755)
        ground.put(b"sub/inner/bad\xff", b"")
        ground.put(b"sub/inner/two\nlines", b"longer\n" * 100)
        ground.put(b"deep/er/and/deeper", b"x")
        os.link(ground.top / "file", ground.top / "deep" / "file")
        os.link(ground.top / "sub/a", ground.top / "sub/a too")
        (ground.top / "empty").mkdir(mode=0o700)
        (ground.top / "link").symlink_to("sub")
        (ground.top / "deep/out").symlink_to("../../outside")
        os.mkfifo(ground.top / "deep/pipe")
        with contextlib.suppress(OSError):
            os.setxattr(ground.top / "file", "user.origin", b"here")
            os.setxattr(ground.top / "sub", "user.origin", b"there")
        when = OLD_NS
        for folder, folders, files in os.walk(ground.top, topdown=False):
            for name in sorted((*folders, *files, ".")):
                when += 60 * 10**9
                path = os.path.join(folder, name)
                os.utime(path, ns=(when, when), follow_symlinks=False)

    # --- What is edited ---------------------------------------------------------------

    def path(self, number: int) -> bytes:
        """One of the paths that are there, folders and files alike."""
        found = [
            os.path.join(folder, name)
            for folder, folders, files in os.walk(self.root)
            for name in sorted((*folders, *files))
        ]
        return sorted(found)[number % len(found)] if found else self.root

    def folder(self, number: int) -> bytes:
        """One of the folders that are there."""
        found = sorted(folder for folder, _, _ in os.walk(self.root))
        return found[number % len(found)]

    def new(self, number: int, name: bytes) -> bytes:
        """A name in one of the folders."""
        return os.path.join(self.folder(number), name)

    @contextlib.contextmanager
    def editing(self) -> Iterator[None]:
        """Take note of an edit; the kernel may well refuse it."""
        self.is_edited = True
        with self.acting(), contextlib.suppress(OSError):
            yield

    # --- Edits ------------------------------------------------------------------------

    @rule(number=pick, name=names, content=contents)
    def write(self, number: int, name: bytes, content: bytes) -> None:
        """Write a file, new or not, through whatever stands there."""
        with self.editing():
            put(self.new(number, name), content)

    @rule(number=pick)
    def change_in_place(self, number: int) -> None:
        """Change a byte and put the times back."""
        path = self.path(number)
        with self.editing():
            before = os.lstat(path)
            if stat.S_ISREG(before.st_mode) and before.st_size:
                with open(path, "r+b") as file:
                    file.write(b"#")
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    @rule(number=pick, size=st.integers(0, 6))
    def truncate(self, number: int, size: int) -> None:
        """Cut a file short, or make it longer."""
        path = self.path(number)
        with self.editing():
            if stat.S_ISREG(os.lstat(path).st_mode):
                os.truncate(path, size)

    @rule(number=pick, content=contents)
    def save_by_rename(self, number: int, content: bytes) -> None:
        """Write a new file and rename it over what is there."""
        path = self.path(number)
        staged = os.path.join(os.path.dirname(path), b"staged")
        with self.editing():
            put(staged, content)
            os.rename(staged, path)

    @rule(number=pick, mode=st.sampled_from(MODES))
    def chmod(self, number: int, mode: int) -> None:
        """Change a mode."""
        path = self.path(number)
        with self.editing():
            if not os.path.islink(path):
                os.chmod(path, mode)

    @rule(number=pick, when=st.sampled_from((0, OLD_NS, OLD_NS + 1)))
    def utime(self, number: int, when: int) -> None:
        """Change the modification time."""
        with self.editing():
            os.utime(self.path(number), ns=(when, when), follow_symlinks=False)

    @precondition(lambda self: is_root() and type(self) is TreeEdits)
    @rule(number=pick, owner=st.sampled_from((0, 12345)))
    def chown(self, number: int, owner: int) -> None:
        """Change the owner."""
        with self.editing():
            os.lchown(self.path(number), owner, owner)

    @rule(number=pick, value=st.sampled_from((b"", b"here", b"elsewhere", None)))
    def xattr(self, number: int, value: bytes | None) -> None:
        """Set an extended attribute, or remove it."""
        path = self.path(number)
        with self.editing():
            if value is None:
                os.removexattr(path, "user.origin", follow_symlinks=False)
            else:
                os.setxattr(path, "user.origin", value, follow_symlinks=False)

    @rule(number=pick, other=pick, name=names)
    def link(self, number: int, other: int, name: bytes) -> None:
        """Give a file another name."""
        with self.editing():
            os.link(self.path(number), self.new(other, name), follow_symlinks=False)

    @rule(number=pick, name=names)
    def link_in(self, number: int, name: bytes) -> None:
        """Put a file of outside under a name in the tree."""
        path = self.new(number, name)
        with self.editing():
            if os.path.lexists(path):
                os.unlink(path)
            os.link(self.ground.outside / "victim", path)

    @rule(number=pick, name=names, text=st.sampled_from(TEXTS))
    def symlink(self, number: int, name: bytes, text: bytes) -> None:
        """Make a symbolic link."""
        with self.editing():
            os.symlink(text, self.new(number, name))

    @rule(number=pick, name=names)
    def mkdir(self, number: int, name: bytes) -> None:
        """Make a folder."""
        with self.editing():
            os.mkdir(self.new(number, name))

    @rule(number=pick, name=names)
    def mkfifo(self, number: int, name: bytes) -> None:
        """Make a FIFO."""
        with self.editing():
            os.mkfifo(self.new(number, name))

    @rule(number=pick)
    def bind(self, number: int) -> None:
        """Bind a socket."""
        path = os.path.join(self.folder(number), b"sock")
        with self.editing(), socket.socket(socket.AF_UNIX) as server:
            server.bind(path)

    @rule(number=pick, other=pick, name=names)
    def rename(self, number: int, other: int, name: bytes) -> None:
        """Rename anything, over what is there or not."""
        with self.editing():
            os.rename(self.path(number), self.new(other, name))

    @rule(number=pick)
    def delete(self, number: int) -> None:
        """Delete anything, a folder with all that it holds."""
        self._delete(self.path(number))

    @rule(number=pick, to=st.sampled_from(("file", "folder", "link", "fifo")))
    def swap_type(self, number: int, to: str) -> None:
        """Put something of another type in a place."""
        path = self.path(number)
        self._delete(path)
        with self.editing():
            match to:
                case "file":
                    put(path, b"was something else\n")
                case "folder":
                    os.mkdir(path)
                case "link":
                    os.symlink(b"../outside", path)
                case _:
                    os.mkfifo(path)

    def _delete(self, path: bytes) -> None:
        with self.editing():
            if path == self.root:
                return
            if stat.S_ISDIR(os.lstat(path).st_mode):
                shutil.rmtree(path)
            else:
                os.unlink(path)

    # --- And back ---------------------------------------------------------------------

    @precondition(lambda self: self.is_edited)
    @rule()
    def restore(self) -> None:
        """Put the tree back: nothing differs, and nothing outside was touched."""
        outside = without_links(tree_state(self.ground.outside))
        with self.acting():
            done = self.ground.restore(self.snapshot)
        assert done.unrestored == {}
        assert done.gaps == ()
        assert self.before == self.ground.state()
        assert outside == without_links(tree_state(self.ground.outside))
        with self.acting():
            again = self.ground.compare(self.snapshot.manifest)
        assert (again.changes, again.moved_folders, again.gaps) == ((), (), ())
        self.is_edited = False


def put(path: bytes, content: bytes) -> None:
    """Write a file; a FIFO that stands there refuses instead of blocking."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK
    fd = os.open(path, flags)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)


def without_links(state: TreeState) -> TreeState:
    """A listing without link counts: names given away are taken back."""
    return {path: dataclasses.replace(look, links=0) for path, look in state.items()}


class TreeEditsAsOrdinary(TreeEdits):
    """The same by somebody whom modes can keep out."""

    def acting(self) -> contextlib.AbstractContextManager[None]:
        """Whoever works on the tree."""
        return as_ordinary()


@pytest.mark.slow
@pytest.mark.parametrize("machine", [TreeEdits, TreeEditsAsOrdinary])
def test_restore_when_anything_was_done_to_a_tree_then_leaves_no_difference(
    machine: type[TreeEdits],
) -> None:
    """No sequence of edits is beyond comparison and restore."""
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=EXAMPLES, stateful_step_count=20, deadline=None),
    )
