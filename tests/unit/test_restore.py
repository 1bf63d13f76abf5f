"""Putting back: exact, through no link, never at the cost of what was not captured."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import stat
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from capabilities import require
from listing import changes, tree_state
from sample import build_workspace
from snapshots import (
    Ground,
    as_ordinary,
    deep_tree,
    edit_in_place,
    grow_old,
    save_by_rename,
    wait_for,
)

from workspace_guard.errors import StoreIncomplete
from workspace_guard.files.tree import Folder
from workspace_guard.snapshot.plan import plan
from workspace_guard.snapshot.restore import Restoration, restore
from workspace_guard.snapshot.store import Snapshot, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workspace_guard.snapshot.manifest import Manifest

OLD_NS = 1_700_000_000_123_456_789


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """A tree with a file, a folder with a file in it, and an empty folder, all old."""
    made = Ground.make(tmp_path)
    made.put("output.md", b"AAAA\n").chmod(0o644)
    made.put("sub/inner.md", b"inner\n").chmod(0o600)
    (made.top / "empty").mkdir()
    make_old(made.top)
    return made


@pytest.fixture
def ordinary(place: Path) -> Ground:
    """An empty tree of an ordinary user."""
    return Ground.make_for_ordinary(place)


def make_old(top: Path) -> None:
    """Give every entry a time of its own, long ago."""
    for number, path in enumerate(sorted(top.rglob("*"), reverse=True)):
        when = OLD_NS + number * 10**9
        os.utime(path, ns=(when, when), follow_symlinks=False)
    os.utime(top, ns=(OLD_NS, OLD_NS))


@dataclasses.dataclass(frozen=True, slots=True)
class Before:
    """A tree as it was, and its snapshot."""

    ground: Ground
    snapshot: Snapshot
    state: object
    outside: object

    @classmethod
    def take(cls, ground: Ground) -> Before:
        """Look at the tree and at what lies beside it, and take the snapshot."""
        state, outside = ground.state(), tree_state(ground.outside)
        return cls(ground, ground.take(), state, outside)

    def restore_whole(self) -> Restoration:
        """Restore, and see that all is as it was, outside too."""
        done = self.ground.restore(self.snapshot)
        assert done.unrestored == {}
        assert done.gaps == ()
        assert changes(self.state, self.ground.state()) == {}
        assert changes(self.outside, tree_state(self.ground.outside)) == {}
        return done


# --- Content and names ----------------------------------------------------------------


def test_restore_when_nothing_happened_then_does_nothing(ground: Ground) -> None:
    """Where nothing differs nothing is written, and no quarantine is made."""
    before = Before.take(ground)
    times = [path.stat().st_ctime_ns for path in ground.top.rglob("*")]
    done = before.restore_whole()
    assert times == [path.stat().st_ctime_ns for path in ground.top.rglob("*")]
    assert (done.saved, done.found_later, ground.quarantine.exists()) == ({}, (), False)


EDITS: dict[str, Callable[[Path], object]] = {
    "write": lambda path: path.write_bytes(b"BBBB\n"),
    "truncate": lambda path: os.truncate(path, 0),
    "in place": lambda path: edit_in_place(path, b"B"),
    "by rename": lambda path: save_by_rename(path, b"BBBB\n"),
    "mode": lambda path: path.chmod(0o4777),
    "time": lambda path: os.utime(path, (1, 1)),
    "delete": os.unlink,
    "delete folder": lambda path: remove_all(path.parent / "sub"),
    "rename": lambda path: path.rename(path.with_name("moved")),
    "rename folder": lambda path: (path.parent / "sub").rename(path.parent / "moved"),
    "move into": lambda path: path.rename(path.parent / "empty" / "moved"),
    "create": lambda path: path.with_name("new").write_bytes(b"new"),
    "create tree": lambda path: os.makedirs(path.parent / "new/deep/er"),
    "folder mode": lambda path: (path.parent / "sub").chmod(0o711),
    "top mode": lambda path: path.parent.chmod(0o711),
}


def remove_all(path: Path) -> None:
    """Delete a tree the way a script does."""
    shutil.rmtree(path)


@pytest.mark.case("S47", "S7", "S41")
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_restore_when_something_was_done_then_all_is_as_it_was(
    ground: Ground, edit: Callable[[Path], object]
) -> None:
    """To the byte, the mode and the nanosecond, and the restore itself looks again."""
    before = Before.take(ground)
    edit(ground.top / "output.md")
    assert changes(before.state, ground.state()) != {}
    before.restore_whole()


def test_restore_when_a_file_was_changed_then_what_was_written_is_kept(
    ground: Ground,
) -> None:
    """What is taken out of the tree lies in quarantine under its own path."""
    before = Before.take(ground)
    (ground.top / "sub/inner.md").write_bytes(b"good work in the wrong place\n")
    ground.put("new/deep/file", b"new\n")
    done = before.restore_whole()
    assert done.saved == {
        b"sub/inner.md": b"sub/inner.md",
        b"new/deep/file": b"new/deep/file",
        b"new/deep": b"new/deep",
        b"new": b"new",
    }
    assert ground.kept() == {
        b"sub": None,
        b"sub/inner.md": b"good work in the wrong place\n",
        b"new": None,
        b"new/deep": None,
        b"new/deep/file": b"new\n",
    }
    assert stat.S_IMODE(ground.quarantine.stat().st_mode) == 0o700


@pytest.mark.case("S31")
def test_restore_when_done_twice_then_the_second_does_nothing(ground: Ground) -> None:
    """A restore can be repeated, links that are there already included."""
    (ground.top / "link").symlink_to("output.md")
    make_old(ground.top)
    before = Before.take(ground)
    (ground.top / "link").unlink()
    (ground.top / "output.md").write_bytes(b"B")
    before.restore_whole()
    times = [path.lstat().st_ctime_ns for path in ground.top.rglob("*")]
    done = before.restore_whole()
    assert times == [path.lstat().st_ctime_ns for path in ground.top.rglob("*")]
    assert done.saved == {}


def test_restore_when_saved_before_then_keeps_both(ground: Ground) -> None:
    """A quarantine never loses what is in it, also where types collide."""
    before = Before.take(ground)
    for content in (b"first\n", b"second\n"):
        (ground.top / "output.md").write_bytes(content)
        before.restore_whole()
    (ground.top / "output.md").unlink()
    ground.put("output.md/inside", b"third\n")
    before.restore_whole()
    assert ground.kept() == {
        b"output.md": b"first\n",
        b"output.md~1": b"second\n",
        b"output.md~2": None,
        b"output.md~2/inside": b"third\n",
    }


@pytest.mark.case("S40", "E8")
def test_restore_when_links_and_empty_folders_are_gone_then_they_are_back(
    ground: Ground,
) -> None:
    """Links and empty folders come back with their times; a new link goes."""
    (ground.top / "link").symlink_to("nowhere/at/all")
    (ground.top / "empty/inner").mkdir(mode=0o750)
    make_old(ground.top)
    before = Before.take(ground)
    (ground.top / "link").unlink()
    remove_all(ground.top / "empty")
    (ground.top / "new link").symlink_to("output.md")
    before.restore_whole()
    assert os.readlink(ground.quarantine / "new link") == "output.md"


@pytest.mark.case("E7")
def test_restore_when_written_through_a_link_then_both_ends_are_as_they_were(
    ground: Ground,
) -> None:
    """The link stays a link, what it leads to gets its bytes back, evidence is kept."""
    (ground.top / "config").symlink_to("output.md")
    make_old(ground.top)
    before = Before.take(ground)
    (ground.top / "config").write_bytes(b"through the link\n")
    before.restore_whole()
    assert ground.kept() == {b"output.md": b"through the link\n"}


@pytest.mark.case("E7")
def test_restore_when_a_link_became_a_file_then_is_a_link_again(
    ground: Ground,
) -> None:
    """A file that took a link's place is kept, and the link is back."""
    (ground.top / "config").symlink_to("output.md")
    make_old(ground.top)
    before = Before.take(ground)
    (ground.top / "config").unlink()
    ground.put("config", b"no link any more\n")
    before.restore_whole()
    assert ground.kept() == {b"config": b"no link any more\n"}


@pytest.mark.case("S16", "E10", "E11")
def test_restore_when_names_are_odd_then_handles_each_by_its_bytes(
    ground: Ground,
) -> None:
    """Names with newlines, escapes or stray bytes are names like others."""
    require("undecodable-names")
    names = (b"two\nlines", b"esc\x1b[2J\r", b"bad\xff", b"-rf", b" ")
    for name in names:
        ground.put(name, b"old " + name)
    make_old(ground.top)
    before = Before.take(ground)
    for name in names:
        (ground.top / os.fsdecode(name)).unlink()
        ground.put(b"new " + name, name)
    done = before.restore_whole()
    assert {b"new " + name: name for name in names} == ground.kept()
    assert set(done.saved) == {b"new " + name for name in names}


@pytest.mark.case("E22")
def test_restore_when_a_folder_was_renamed_then_bytes_are_kept_on_both_sides(
    ground: Ground,
) -> None:
    """The old folder is whole again, and the new one is in quarantine."""
    before = Before.take(ground)
    (ground.top / "sub").rename(ground.top / "other")
    before.restore_whole()
    assert ground.kept() == {b"other": None, b"other/inner.md": b"inner\n"}


# --- Types ----------------------------------------------------------------------------


@pytest.mark.case("S32")
def test_restore_when_a_folder_took_a_files_place_then_all_of_it_is_kept(
    ground: Ground,
) -> None:
    """A folder that is not empty goes into quarantine as a folder."""
    before = Before.take(ground)
    (ground.top / "output.md").unlink()
    ground.put("output.md/deep/inside", b"in the folder\n")
    before.restore_whole()
    assert ground.kept() == {
        b"output.md": None,
        b"output.md/deep": None,
        b"output.md/deep/inside": b"in the folder\n",
    }


@pytest.mark.case("S32")
def test_restore_when_a_folder_and_a_file_changed_places_then_both_are_back(
    ground: Ground,
) -> None:
    """A file where a folder was, and the other way round, at the same time."""
    before = Before.take(ground)
    (ground.top / "output.md").rename(ground.outside / "was a file")
    (ground.top / "sub").rename(ground.top / "output.md")
    (ground.outside / "was a file").rename(ground.top / "sub")
    os.utime(ground.outside, ns=(OLD_NS, OLD_NS))
    before = dataclasses.replace(before, outside=tree_state(ground.outside))
    before.restore_whole()


@pytest.mark.case("S13", "E16", "E17")
def test_restore_when_nodes_took_a_files_place_then_they_are_kept_as_such(
    ground: Ground,
) -> None:
    """FIFOs and sockets are moved, never opened, and never become files."""
    before = Before.take(ground)
    (ground.top / "output.md").unlink()
    os.mkfifo(ground.top / "output.md")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(ground.top / "sock"))
    before.restore_whole()
    kept = tree_state(ground.quarantine)
    assert (kept[b"output.md"].kind, kept[b"sock"].kind) == ("fifo", "socket")


@pytest.mark.case("E17")
def test_restore_when_nodes_are_gone_then_they_are_made_again(ground: Ground) -> None:
    """A FIFO and a socket come back with mode and time; devices where root does it."""
    os.mkfifo(ground.top / "pipe", 0o622)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(ground.top / "sock"))
    if os.geteuid() == 0:
        os.mknod(ground.top / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    make_old(ground.top)
    before = Before.take(ground)
    for path in ground.top.iterdir():
        if not path.is_dir() and not path.is_file():
            path.unlink()
    before.restore_whole()


def test_restore_when_a_device_may_not_be_made_then_says_so(ordinary: Ground) -> None:
    """What only root could make again is unrestored, with the reason."""
    require("root")
    os.mknod(ordinary.top / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    ordinary.put("a", b"1")
    with as_ordinary():
        snapshot = ordinary.take()
        (ordinary.top / "null").unlink()
        ordinary.put("b", b"2")
        done = ordinary.restore(snapshot)
    assert done.unrestored == {b"null": "Operation not permitted"}
    assert sorted(os.listdir(ordinary.top)) == ["a"]


# --- Nothing outside is touched -------------------------------------------------------


@pytest.mark.case("S25")
@pytest.mark.parametrize("content", [b"AAAA\n", b"precious\n"])
def test_restore_when_an_outside_file_was_linked_in_then_it_is_not_written(
    ground: Ground, content: bytes
) -> None:
    """A new inode takes the name; the outside file keeps bytes, mode and times."""
    victim = ground.outside / "victim"
    victim.write_bytes(content)
    victim.chmod(0o640)
    os.utime(victim, ns=(OLD_NS, OLD_NS))
    before = Before.take(ground)
    (ground.top / "output.md").unlink()
    os.link(victim, ground.top / "output.md")
    before.restore_whole()
    assert ground.kept() == {b"output.md": content}


@pytest.mark.case("S25")
def test_restore_when_a_shut_file_was_linked_in_then_stays_shut_outside(
    ordinary: Ground,
) -> None:
    """A right that is lent to save a file is taken back from the inode."""
    require("ordinary-user")
    with as_ordinary():
        snapshot = ordinary.take()
        (ordinary.outside / "victim").chmod(0)
        os.link(ordinary.outside / "victim", ordinary.top / "taken in")
        done = ordinary.restore(snapshot)
    assert done.unrestored == {}
    assert stat.S_IMODE((ordinary.outside / "victim").stat().st_mode) == 0
    assert tree_state(ordinary.quarantine)[b"taken in"].mode == 0


def test_restore_when_a_file_was_given_away_then_the_other_name_is_another_file(
    ground: Ground,
) -> None:
    """Whoever keeps a name of a parent's file holds it no longer afterwards."""
    ground.put("step/x")
    skip = frozenset({b"step"})
    before = tree_state(ground.top, without=(b"step",))
    snapshot = ground.take(skip=skip)
    os.link(ground.top / "output.md", ground.top / "step/kept")
    done = ground.restore(snapshot, skip=skip)
    (ground.top / "step/kept").write_bytes(b"written later\n")
    assert done.unrestored == {}
    assert changes(before, tree_state(ground.top, without=(b"step",))) == {}


def test_restore_when_a_pair_was_given_away_then_the_other_name_is_another_file(
    ground: Ground,
) -> None:
    """The same for a file that has two names in the tree: both become a new file."""
    ground.put("step/x")
    os.link(ground.top / "output.md", ground.top / "sub/again.md")
    skip = frozenset({b"step"})
    before = tree_state(ground.top, without=(b"step",))
    snapshot = ground.take(skip=skip)
    os.link(ground.top / "output.md", ground.top / "step/kept")
    done = ground.restore(snapshot, skip=skip)
    (ground.top / "step/kept").write_bytes(b"written later\n")
    assert done.unrestored == {}
    assert changes(before, tree_state(ground.top, without=(b"step",))) == {}


@pytest.mark.case("S25")
def test_restore_when_equal_bytes_were_linked_in_then_their_metadata_is_not_touched(
    ground: Ground,
) -> None:
    """An inode that was not the file's is not given the file's mode and times."""
    os.link(ground.top / "output.md", ground.outside / "other name")
    victim = ground.outside / "victim"
    victim.write_bytes(b"AAAA\n")
    victim.chmod(0o600)
    snapshot = ground.take()
    (ground.top / "output.md").unlink()
    os.link(victim, ground.top / "output.md")
    before = victim.stat().st_mtime_ns
    done = ground.restore(snapshot)
    found = victim.stat()
    assert (0o600, before) == (stat.S_IMODE(found.st_mode), found.st_mtime_ns)
    assert list(done.unrestored) == [b"output.md"]
    assert stat.S_IMODE((ground.top / "output.md").stat().st_mode) == 0o644


@pytest.mark.case("S29", "E5")
def test_restore_when_a_folder_became_a_link_then_nothing_goes_through_it(
    ground: Ground,
) -> None:
    """The link is removed and kept, the folder is back, the victim untouched."""
    (ground.outside / "inner.md").write_bytes(b"the victim's own\n")
    before = Before.take(ground)
    (ground.top / "sub/inner.md").unlink()
    (ground.top / "sub").rmdir()
    (ground.top / "sub").symlink_to(ground.outside)
    before.restore_whole()
    assert os.readlink(ground.quarantine / "sub") == str(ground.outside)


@pytest.mark.case("S29", "E5")
def test_restore_when_a_folder_is_swapped_after_comparing_then_stops_there(
    ground: Ground,
) -> None:
    """Also a link that comes between comparing and restoring is not followed."""
    before = Before.take(ground)
    (ground.outside / "inner.md").write_bytes(b"the victim's own\n")
    outside = tree_state(ground.outside)
    (ground.top / "sub/inner.md").write_bytes(b"changed\n")
    comparison = ground.compare(before.snapshot.manifest)
    (ground.top / "sub").rename(ground.top / "aside")
    (ground.top / "sub").symlink_to(ground.outside)
    with Folder.open(ground.top) as top:
        restore(ground.store, before.snapshot, top, comparison, ground.quarantine)
    assert changes(outside, tree_state(ground.outside)) == {}
    dataclasses.replace(before, outside=outside).restore_whole()


@pytest.mark.case("E67")
def test_restore_when_written_through_a_name_outside_then_says_what_remains(
    ground: Ground,
) -> None:
    """The bytes are back; that the outside name is another file now is told."""
    os.link(ground.top / "output.md", ground.outside / "name")
    make_old(ground.top)
    snapshot = ground.take()
    (ground.outside / "name").write_bytes(b"by another name\n")
    done = ground.restore(snapshot)
    assert (ground.top / "output.md").read_bytes() == b"AAAA\n"
    assert (ground.outside / "name").read_bytes() == b"by another name\n"
    assert done.unrestored == {
        b"output.md": "is still metadata (link count 2 became 1)"
    }


# --- Hard links -----------------------------------------------------------------------


LINK_EDITS: dict[str, Callable[[Path, Path], object]] = {
    "written in place": lambda one, _: one.write_bytes(b"B"),
    "one saved by rename": lambda one, _: save_by_rename(one, b"B"),
    "both saved by rename": lambda one, two: (
        save_by_rename(one, b"B"),
        save_by_rename(two, b"C"),
    ),
    "one made a copy": lambda one, two: (one.unlink(), shutil.copy2(two, one)),
    "one deleted": lambda one, _: one.unlink(),
    "both deleted": lambda one, two: (one.unlink(), two.unlink()),
    "a third name": lambda one, _: os.link(one, one.with_name("third")),
    "mode": lambda one, _: one.chmod(0o777),
    "one a folder": lambda one, _: (one.unlink(), one.mkdir()),
    "the folder deleted": lambda _, two: remove_all(two.parent),
}


@pytest.mark.case("E29")
@pytest.mark.parametrize("edit", LINK_EDITS.values(), ids=LINK_EDITS)
def test_restore_when_a_file_had_two_names_then_has_them_again(
    ground: Ground, edit: Callable[[Path, Path], object]
) -> None:
    """Names of one file end as names of one file, whatever became of them."""
    one, two = ground.top / "output.md", ground.top / "sub" / "again.md"
    os.link(one, two)
    make_old(ground.top)
    before = Before.take(ground)
    edit(one, two)
    before.restore_whole()
    assert one.stat().st_ino == two.stat().st_ino


def test_restore_when_one_of_two_names_is_whole_then_it_keeps_its_inode(
    ground: Ground,
) -> None:
    """What need not be written is not written."""
    one, two = ground.top / "output.md", ground.top / "sub" / "again.md"
    os.link(one, two)
    before = Before.take(ground)
    inode = two.stat().st_ino
    save_by_rename(one, b"B")
    before.restore_whole()
    assert inode == one.stat().st_ino


# --- Metadata -------------------------------------------------------------------------


@pytest.mark.case("S34")
def test_restore_when_a_file_is_put_back_then_its_folder_is_as_it_was(
    ground: Ground,
) -> None:
    """Mode and time of a folder survive what is written in it."""
    (ground.top / "sub").chmod(0o700)
    os.utime(ground.top / "sub", ns=(OLD_NS, OLD_NS))
    before = Before.take(ground)
    (ground.top / "sub/inner.md").unlink()
    before.restore_whole()
    found = (ground.top / "sub").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns) == (0o700, OLD_NS)


CAPABILITY = bytes.fromhex("0100000200000400000000000000000000000000")
"""cap_net_raw+ep, as version 2 of vfs_cap_data."""


@pytest.mark.case("S35")
@pytest.mark.parametrize("edit", ["write", "delete", "strip", "chown"])
def test_restore_when_a_file_had_special_rights_then_has_them_again(
    ground: Ground, edit: str
) -> None:
    """Owner, then mode, then attributes: neither setuid bit nor capability is lost."""
    require("root")
    require("xattr")
    path = ground.top / "output.md"
    os.chown(path, 12345, 54321)
    path.chmod(0o6755)
    os.setxattr(path, "security.capability", CAPABILITY)
    os.setxattr(path, "user.origin", b"here")
    os.utime(path, ns=(OLD_NS, OLD_NS))
    before = Before.take(ground)
    match edit:
        case "write":
            path.write_bytes(b"B")
        case "delete":
            path.unlink()
        case "strip":
            os.removexattr(path, "security.capability")
            path.chmod(0o755)
        case _:
            os.chown(path, 0, 0)
    before.restore_whole()
    assert os.getxattr(path, "security.capability") == CAPABILITY


@pytest.mark.case("S35")
def test_restore_when_attributes_differ_then_has_exactly_those_that_were(
    ground: Ground,
) -> None:
    """An attribute too many goes, one too few comes back, on files and folders."""
    require("xattr")
    for path in (ground.top, ground.top / "sub", ground.top / "output.md"):
        os.setxattr(path, "user.origin", b"here")
    before = Before.take(ground)
    for path in (ground.top, ground.top / "sub", ground.top / "output.md"):
        os.removexattr(path, "user.origin")
        os.setxattr(path, "user.new", b"there")
    before.restore_whole()


def access_list(*, named: int, mask: int) -> bytes:
    """An access list with one named user, as acl(5) has it in the attribute."""
    nobody = 0xFFFF_FFFF
    entries = (
        (0x01, 6, nobody),
        (0x02, named, 12345),
        (0x04, 4, nobody),
        (0x10, mask, nobody),
        (0x20, 4, nobody),
    )
    packed = (struct.pack("<HHI", *entry) for entry in entries)
    return struct.pack("<I", 2) + b"".join(packed)


def test_restore_when_an_access_list_was_set_then_mode_and_list_are_as_they_were(
    ground: Ground,
) -> None:
    """An access list is an attribute that changes what the mode means."""
    require("xattr")
    path, name = ground.top / "output.md", "system.posix_acl_access"
    try:
        os.setxattr(path, name, access_list(named=6, mask=6))
    except OSError:
        pytest.skip("this file system has no access lists")
    before = Before.take(ground)
    os.setxattr(path, name, access_list(named=4, mask=7))
    default = access_list(named=7, mask=7)
    os.setxattr(ground.top / "sub", "system.posix_acl_default", default)
    (ground.top / "sub/inner.md").unlink()
    before.restore_whole()


def test_restore_when_the_owner_was_another_then_setuid_is_not_given_in_our_name(
    ordinary: Ground,
) -> None:
    """What an ordinary user may not give back is told, and no right is made up."""
    require("root")
    ordinary.put("tool", b"1")
    (ordinary.top / "tool").chmod(0o4755)
    with as_ordinary():
        snapshot = ordinary.take()
        (ordinary.top / "tool").unlink()
        done = ordinary.restore(snapshot)
    found = (ordinary.top / "tool").stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (12345, 0o755)
    assert done.unrestored == {b"tool": "owner: Operation not permitted"}


# --- What was not captured ------------------------------------------------------------


@pytest.mark.case("S26")
@pytest.mark.parametrize("edit", ["mode", "write", "replace"])
def test_restore_when_content_was_not_captured_then_it_is_left_alone(
    ordinary: Ground, edit: str
) -> None:
    """What the snapshot does not hold is neither deleted nor overwritten."""
    require("ordinary-user")
    path = ordinary.top / "shut"
    with as_ordinary():
        ordinary.put("shut", b"never captured").chmod(0)
        ordinary.put("b", b"1")
        snapshot = ordinary.take()
        path.chmod(0o600)
        match edit:
            case "write":
                path.write_bytes(b"changed")
            case "replace":
                path.unlink()
                ordinary.put("shut/inside", b"changed")
            case _:
                pass
        (ordinary.top / "b").write_bytes(b"2")
        done = ordinary.restore(snapshot)
    assert (ordinary.top / "b").read_bytes() == b"1"
    reason = "its content was not captured when the snapshot was taken"
    match edit:
        case "mode":
            assert done.unrestored == {}
            assert (path.read_bytes(), path.stat().st_mode) == (
                b"never captured",
                stat.S_IFREG,
            )
        case "write":
            assert done.unrestored == {b"shut": reason}
            assert path.read_bytes() == b"changed"
        case _:
            assert done.unrestored == {b"shut": reason, b"shut/inside": reason}
            assert (path / "inside").read_bytes() == b"changed"


@pytest.mark.case("S26")
def test_restore_when_a_folder_was_not_captured_then_what_it_holds_stays(
    ordinary: Ground,
) -> None:
    """Nothing in a folder that could not be read is taken for new."""
    require("ordinary-user")
    with as_ordinary():
        ordinary.put("shut/inside", b"never captured").parent.chmod(0)
        snapshot = ordinary.take()
        (ordinary.top / "shut").chmod(0o700)
        ordinary.put("new", b"1")
        done = ordinary.restore(snapshot)
    assert done.unrestored == {}
    assert tree_state(ordinary.top)[b"shut/inside"].size == 14
    assert os.listdir(ordinary.top) == ["shut"]


@pytest.mark.case("S28")
def test_restore_when_content_is_gone_from_the_store_then_nothing_is_removed(
    ground: Ground,
) -> None:
    """A snapshot that lost its content is refused, and the tree is as it stands."""
    snapshot = ground.take()
    (ground.top / "output.md").write_bytes(b"B")
    before = ground.state()
    for path in ground.store.folder.glob("*.pack"):
        path.unlink()
    store = Store(ground.store.folder)
    with pytest.raises(StoreIncomplete):
        store.load(snapshot.id)
    assert changes(before, ground.state()) == {}


def test_restore_when_one_content_is_damaged_then_what_stands_there_stays(
    ground: Ground,
) -> None:
    """A place is cleared only once what belongs there is ready; others are put back."""
    ground.put("other.md", b"other\n")
    snapshot = ground.take()
    (ground.top / "output.md").write_bytes(b"what the agent wrote\n")
    (ground.top / "other.md").unlink()
    [pack] = ground.store.folder.glob("*.pack")
    pack.write_bytes(pack.read_bytes().replace(b"AAAA\n", b"XXXX\n"))
    done = ground.restore(snapshot)
    assert (list(done.unrestored), done.saved) == ([b"output.md"], {})
    assert "has become" in done.unrestored[b"output.md"]
    assert (ground.top / "output.md").read_bytes() == b"what the agent wrote\n"
    assert (ground.top / "other.md").read_bytes() == b"other\n"
    assert sorted(os.listdir(ground.top)) == ["empty", "other.md", "output.md", "sub"]


# --- Locked doors, and failures -------------------------------------------------------


def test_restore_when_folders_were_locked_then_finds_and_undoes_what_is_behind(
    ordinary: Ground,
) -> None:
    """What a comparison could not see comes to light, door by door."""
    require("ordinary-user")
    with as_ordinary():
        ordinary.put("one/two/three", b"1")
        ordinary.put("one/other", b"1")
        make_old(ordinary.top)
        before = ordinary.state()
        snapshot = ordinary.take()
        ordinary.put("one/two/three", b"2")
        ordinary.put("one/two/new", b"new")
        ordinary.put("locked/hidden", b"hidden")
        for name in ("one/two", "one", "locked"):
            (ordinary.top / name).chmod(0)
        done = ordinary.restore(snapshot)
        after = ordinary.state()
    assert changes(before, after) == {}
    assert {change.path: change.kind for change in done.found_later} == {
        b"one/two": "metadata",
        b"one/two/three": "changed",
        b"one/two/new": "created",
        b"locked/hidden": "created",
    }
    assert (done.unrestored, done.gaps) == ({}, ())
    assert ordinary.kept()[b"locked/hidden"] == b"hidden"


def test_restore_when_a_changed_file_was_shut_then_its_bytes_are_back_too(
    ordinary: Ground,
) -> None:
    """Content that nobody could read is not taken for unchanged."""
    require("ordinary-user")
    with as_ordinary():
        path = ordinary.put("a", b"1")
        before = ordinary.state()
        snapshot = ordinary.take()
        edit_in_place(path, b"2")
        path.chmod(0)
        done = ordinary.restore(snapshot)
        assert changes(before, ordinary.state()) == {}
    assert done.unrestored == {}
    assert ordinary.kept() == {b"a": b"2"}


def test_restore_when_a_folder_was_read_only_all_along_then_works_in_it(
    ordinary: Ground,
) -> None:
    """A folder without write permission is opened for the work and closed again."""
    require("ordinary-user")
    with as_ordinary():
        ordinary.put("sub/inner", b"1").parent.chmod(0o555)
        before = ordinary.state()
        snapshot = ordinary.take()
        (ordinary.top / "sub").chmod(0o755)
        (ordinary.top / "sub/inner").unlink()
        ordinary.put("sub/new")
        (ordinary.top / "sub").chmod(0o555)
        done = ordinary.restore(snapshot)
        assert changes(before, ordinary.state()) == {}
    assert done.unrestored == {}


def test_restore_when_one_path_cannot_be_put_back_then_the_others_are(
    ordinary: Ground,
) -> None:
    """A failure has its reason and stops nothing else."""
    require("root")
    ordinary.put("theirs/a", b"1")
    ordinary.put("theirs/b", b"1")
    with as_ordinary():
        ordinary.put("ours/a", b"1")
        ordinary.put("z", b"1")
        snapshot = ordinary.take()
    for name in ("theirs/a", "ours/a", "z"):
        (ordinary.top / name).unlink()
    ordinary.put("theirs/new")
    with as_ordinary():
        done = ordinary.restore(snapshot)
    assert {path: reason for path, reason in done.unrestored.items() if path} == {
        b"theirs": "time: Operation not permitted",
        b"theirs/a": "Permission denied",
        b"theirs/new": "Permission denied",
    }
    assert (ordinary.top / "ours/a").read_bytes() == b"1"
    assert (ordinary.top / "z").read_bytes() == b"1"
    assert (ordinary.top / "theirs/new").exists()


@pytest.mark.slow
def test_restore_when_a_very_deep_tree_was_made_then_takes_it_away(
    ground: Ground,
) -> None:
    """Depth costs neither descriptors nor the interpreter's stack."""
    before = Before.take(ground)
    with deep_tree(ground.top, 1_200):
        done = before.restore_whole()
    assert len(done.saved) == 1_200


# --- Another file system --------------------------------------------------------------


@pytest.fixture
def other_device(ground: Ground) -> Iterator[Ground]:
    """A ground whose quarantine lies on another file system."""
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == ground.top.stat().st_dev:
        pytest.skip("there is no other file system to write to")
    with tempfile.TemporaryDirectory(dir=shm) as name:
        yield dataclasses.replace(ground, quarantine=Path(name) / "quarantine")


def test_restore_when_quarantine_is_elsewhere_then_copies_everything(
    other_device: Ground,
) -> None:
    """Files, links, FIFOs and folders are copied with mode and time, then removed."""
    ground = other_device
    before = Before.take(ground)
    (ground.top / "output.md").write_bytes(b"B" * (3 << 20))
    (ground.top / "output.md").chmod(0o755)
    ground.put("new/file", b"new").chmod(0o400)
    (ground.top / "new/link").symlink_to("nowhere")
    os.mkfifo(ground.top / "new/pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(ground.top / "new/sock"))
    make_old(ground.top / "new")
    wanted = tree_state(ground.top / "new")
    before.restore_whole()
    kept = tree_state(ground.quarantine / "new")
    assert changes(wanted, kept) == {}
    saved = ground.quarantine / "output.md"
    assert (saved.stat().st_mode & 0o7777, saved.stat().st_size) == (0o755, 3 << 20)


def test_restore_when_a_sparse_file_is_copied_then_holes_stay_holes(
    other_device: Ground,
) -> None:
    """A large file with next to nothing in it costs next to nothing to keep."""
    ground = other_device
    before = Before.take(ground)
    size = 16 << 20
    with ground.put("sparse").open("wb") as file:
        file.write(b"start")
        file.seek(size)
        file.write(b"end")
        file.truncate(2 * size)
    before.restore_whole()
    saved = ground.quarantine / "sparse"
    assert saved.read_bytes() == (b"start".ljust(size, b"\0") + b"end").ljust(
        2 * size, b"\0"
    )
    assert saved.stat().st_blocks < 1_000


def test_restore_when_the_quarantine_is_full_then_removes_nothing(
    ground: Ground,
) -> None:
    """What cannot be saved stays where it is, and the rest is put back."""
    require("root")
    ground.put("other.md", b"other\n")
    before = Before.take(ground)
    ground.put("huge", b"h" * 300_000)
    (ground.top / "other.md").unlink()
    ground.quarantine.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(ground.quarantine)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        done = ground.restore(before.snapshot)
        left = list(ground.quarantine.iterdir())
    finally:
        subprocess.run(["umount", str(ground.quarantine)], check=True)
    assert done.unrestored == {b"huge": "No space left on device"}
    assert (ground.top / "huge").stat().st_size == 300_000
    assert (ground.top / "other.md").read_bytes() == b"other\n"
    assert left == []


# --- Somebody else's edits ------------------------------------------------------------


@pytest.mark.case("S39")
def test_restore_when_somebody_edited_later_then_that_is_left_alone(
    ground: Ground,
) -> None:
    """What changed after the dead run is foreign: kept, and named."""
    ground.put("deleted.md", b"1")
    ground.put("theirs.md", b"1")
    snapshot = ground.take()
    (ground.top / "output.md").write_bytes(b"by the dead run\n")
    (ground.top / "deleted.md").unlink()
    ground.put("made/by the dead run", b"1")
    ground.put("made too/edited later", b"1")
    ground.put("made too/not edited", b"1")
    grow_old(ground.top)
    last_beat = time.time_ns()
    wait_for(lambda: time.time_ns() > last_beat + 20_000_000)
    (ground.top / "theirs.md").write_bytes(b"by somebody\n")
    ground.put("made/by somebody", b"mine\n")
    ground.put("made too/edited later", b"mine\n")
    ground.put("new/by somebody", b"mine\n")
    done = ground.restore(snapshot, keep_newer_than_ns=last_beat)
    assert done.foreign == (
        b"made",
        b"made too",
        b"made too/edited later",
        b"made/by somebody",
        b"new",
        b"new/by somebody",
        b"theirs.md",
    )
    assert done.unrestored == {}
    assert (ground.top / "output.md").read_bytes() == b"AAAA\n"
    assert (ground.top / "deleted.md").read_bytes() == b"1"
    assert (ground.top / "theirs.md").read_bytes() == b"by somebody\n"
    assert (ground.top / "made/by somebody").read_bytes() == b"mine\n"
    assert (ground.top / "new/by somebody").read_bytes() == b"mine\n"
    assert (ground.top / "made too/edited later").read_bytes() == b"mine\n"
    assert set(done.saved) == {
        b"output.md",
        b"made/by the dead run",
        b"made too/not edited",
    }


def test_restore_when_a_locked_folder_holds_somebodys_file_then_is_locked_again(
    ordinary: Ground,
) -> None:
    """A folder that stays because of what it holds keeps its mode."""
    require("ordinary-user")
    with as_ordinary():
        snapshot = ordinary.take()
        ordinary.put("made/theirs", b"1")
        ordinary.put("made/by the dead run", b"1")
        (ordinary.top / "made").chmod(0o555)
        grow_old(ordinary.top)
        last_beat = time.time_ns()
        wait_for(lambda: time.time_ns() > last_beat + 20_000_000)
        ordinary.put("made/theirs", b"edited")
        done = ordinary.restore(snapshot, keep_newer_than_ns=last_beat)
    assert done.foreign == (b"made", b"made/theirs")
    assert os.listdir(ordinary.top / "made") == ["theirs"]
    assert stat.S_IMODE((ordinary.top / "made").stat().st_mode) == 0o555


def test_restore_when_an_earlier_one_was_killed_then_its_litter_is_kept_and_gone(
    ground: Ground,
) -> None:
    """A staged file of ours is no edit of somebody else's, however new it is."""
    before = Before.take(ground)
    ground.put(".wsguard-restore-0123456789ab.tmp", b"half of it")
    done = ground.restore(before.snapshot, keep_newer_than_ns=OLD_NS)
    assert (done.foreign, done.unrestored) == ((), {})
    assert changes(before.state, ground.state()) == {}


# --- The plan -------------------------------------------------------------------------


def test_plan_when_made_then_says_what_will_be_done_and_does_nothing(
    ground: Ground,
) -> None:
    """A plan can be shown before anything is done."""
    os.link(ground.top / "sub/inner.md", ground.top / "sub/again.md")
    manifest = ground.take().manifest
    (ground.top / "output.md").chmod(0o600)
    (ground.top / "sub/again.md").unlink()
    (ground.top / "empty").rmdir()
    ground.put("esc\x1b/file")
    comparison = ground.compare(manifest)
    before = ground.state()
    said = [operation.describe() for operation in plan(manifest, comparison)]
    assert said == [
        "move esc\\x1b into quarantine",
        "make the folder empty again",
        "put back the attributes of output.md",
        "make sub/again.md, sub/inner.md one file again",
        "put back the attributes of the folder empty",
        "put back the attributes of the folder sub",
        "put back the attributes of the folder .",
    ]
    assert changes(before, ground.state()) == {}


def test_plan_when_nothing_differs_then_is_empty(ground: Ground) -> None:
    """No difference, no operation."""
    manifest: Manifest = ground.take().manifest
    assert plan(manifest, ground.compare(manifest)) == ()


# --- The whole sample -----------------------------------------------------------------


def test_restore_when_everything_is_gone_then_everything_is_back(place: Path) -> None:
    """A tree with something of everything comes back from nothing."""
    build_workspace(place / "workspace")
    before = Before.take(
        dataclasses.replace(Ground.make(place), top=place / "workspace")
    )
    for path in (place / "workspace").iterdir():
        if path.is_dir() and not path.is_symlink():
            remove_all(path)
        else:
            path.unlink()
    before.restore_whole()
