"""Comparing: what counts as a change, what is a note, and what cannot be seen."""

from __future__ import annotations

import dataclasses
import mmap
import os
import shutil
import socket
import stat
from typing import TYPE_CHECKING

import pytest
from capabilities import require
from sample import build_workspace
from snapshots import (
    Ground,
    as_ordinary,
    edit_in_place,
    grow_old,
    save_by_rename,
    trusting,
)

from workspace_guard.files.tree import Folder
from workspace_guard.snapshot.compare import Change, Comparison, compare, tell
from workspace_guard.snapshot.manifest import CTIME_NS, Entry, FolderRecord, Manifest
from workspace_guard.snapshot.scan import list_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """A tree with a file, a folder with a file in it, and an empty folder."""
    made = Ground.make(tmp_path)
    made.put("output.md", b"AAAA")
    made.put("sub/inner.md", b"inner\n")
    (made.top / "empty").mkdir()
    return made


@pytest.fixture
def ordinary(place: Path) -> Ground:
    """An empty tree of an ordinary user."""
    return Ground.make_for_ordinary(place)


def kinds(comparison: Comparison) -> dict[bytes, str]:
    """The kind of change by path."""
    return {change.path: change.kind for change in comparison.changes}


def change_of(comparison: Comparison, path: bytes) -> Change:
    """The change of a path."""
    [found] = [change for change in comparison.changes if change.path == path]
    return found


NOTHING = ((), (), (), ())


def findings(found: Comparison) -> tuple[object, ...]:
    """All that a comparison has to say."""
    return found.changes, found.moved_folders, found.notes, found.gaps


# --- Nothing happened -----------------------------------------------------------------


def test_compare_when_nothing_happened_then_finds_nothing(place: Path) -> None:
    """The same tree does not differ, young as it is, whatever it holds."""
    build_workspace(place / "workspace")
    ground = dataclasses.replace(Ground.make(place), top=place / "workspace")
    manifest = ground.take().manifest
    assert findings(ground.compare(manifest)) == NOTHING
    assert findings(ground.compare(trusting(manifest))) == NOTHING
    assert findings(ground.compare(manifest, verify_content=True)) == NOTHING


def test_compare_when_the_tree_is_old_then_reads_no_content(ground: Ground) -> None:
    """An untouched tree is compared by its stat rows alone."""
    grow_old(ground.top)
    manifest = ground.take().manifest
    assert [record.young for record in manifest.folders.values()] == [False] * 3
    times = [path.stat().st_atime_ns for path in ground.top.rglob("*")]
    assert findings(ground.compare(manifest)) == NOTHING
    assert times == [path.stat().st_atime_ns for path in ground.top.rglob("*")]


def test_folder_when_listed_twice_then_gives_the_same_bytes(ground: Ground) -> None:
    """That is what makes an untouched folder cost little."""
    manifest = ground.take().manifest
    with Folder.open(ground.top) as top:
        listing = list_folder(top)
    record = manifest.folders[b""]
    assert (record.rows, record.names) == (
        listing.packed_rows(),
        listing.packed_names(),
    )


def test_compare_when_names_come_in_another_order_then_finds_nothing(
    ground: Ground,
) -> None:
    """The order in which a file system names things does not count."""
    manifest = ground.take().manifest
    turned = {
        path: FolderRecord.of(
            b"\0".join(reversed(record.all_names())),
            list(reversed(record.decode().values())),
            moment_ns=manifest.moment_ns,
        )
        for path, record in manifest.folders.items()
    }
    again = dataclasses.replace(manifest, folders=turned)
    assert findings(ground.compare(trusting(again))) == NOTHING


# --- Content --------------------------------------------------------------------------

EDITS: dict[str, Callable[[Path], object]] = {
    "write": lambda path: path.write_bytes(b"BBBB"),
    "append": lambda path: path.open("ab").write(b"B"),
    "truncate": lambda path: os.truncate(path, 1),
    "grow": lambda path: os.truncate(path, 50 << 20),
    "rename": lambda path: save_by_rename(path, b"BBBB"),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_compare_when_a_file_was_written_then_it_is_changed(
    ground: Ground, edit: Callable[[Path], object]
) -> None:
    """Other content is a change of the file, and of nothing else."""
    manifest = trusting(ground.take().manifest)
    edit(ground.top / "output.md")
    assert ground.kinds(manifest) == {b"output.md": "changed"}


def test_compare_when_a_file_was_written_then_says_what_it_was_and_is(
    ground: Ground,
) -> None:
    """A change has both sides with their digests."""
    manifest = ground.take().manifest
    (ground.top / "output.md").write_bytes(b"BBBBB")
    change = change_of(ground.compare(manifest), b"output.md")
    assert change.before is not None
    assert change.after is not None
    assert (change.before.size, change.before.sha256) == (
        4,
        "63c1dd951ffedf6f7fd968ad4efa39b8ed584f162f46e715114ee184f8de9201",
    )
    assert (change.after.size, change.after.sha256) == (
        5,
        "0fad32b1e81a318bb7ec37b8b6cd180d1b86cb279240142348a3ecd435cd0742",
    )


@pytest.mark.case("S47")
def test_compare_when_changed_in_place_with_its_time_put_back_then_is_changed(
    ground: Ground,
) -> None:
    """The ctime gives it away, and the hash decides."""
    manifest = trusting(ground.take().manifest)
    edit_in_place(ground.top / "output.md", b"B")
    assert ground.kinds(manifest) == {b"output.md": "changed"}


@pytest.mark.case("S4")
def test_compare_when_a_twin_was_renamed_over_then_is_changed(ground: Ground) -> None:
    """Equal size, mode and times do not make the same file."""
    manifest = trusting(ground.take().manifest)
    twin = ground.outside / "twin"
    shutil.copy2(ground.top / "output.md", twin)
    edit_in_place(twin, b"B")
    twin.replace(ground.top / "output.md")
    comparison = ground.compare(manifest)
    assert kinds(comparison) == {b"output.md": "changed"}
    assert comparison.moved_folders == (b"",)


def within_the_same_tick(ground: Ground, name: bytes, manifest: Manifest) -> Manifest:
    """The manifest as if the file's stat had been taken after its last write.

    That is what a coarse clock does: two writes, one time. The digest stays.
    """
    found = (ground.top / os.fsdecode(name)).stat()
    stored = manifest.folders[b""].decode()
    row, digest, extra = stored[name]
    row = (*row[:7], found.st_mtime_ns, found.st_ctime_ns)
    stored[name] = row, digest, extra
    (top_row, none, top_extra) = manifest.top
    return dataclasses.replace(
        manifest,
        top=(top_row, none, top_extra),
        folders={
            **manifest.folders,
            b"": FolderRecord.of(
                b"\0".join(stored), list(stored.values()), moment_ns=row[CTIME_NS]
            ),
        },
        moment_ns=row[CTIME_NS],
    )


@pytest.mark.case("S2")
def test_compare_when_written_twice_within_a_tick_then_is_changed(
    ground: Ground,
) -> None:
    """A row that was too young when it was taken is not trusted."""
    manifest = ground.take().manifest
    (ground.top / "output.md").write_bytes(b"BBBB")
    same = within_the_same_tick(ground, b"output.md", manifest)
    assert ground.kinds(same) == {b"output.md": "changed"}
    assert ground.kinds(trusting(same)) == {}


@pytest.mark.case("S1")
def test_compare_when_stored_through_an_old_mapping_then_hashing_finds_it(
    ground: Ground,
) -> None:
    """A store through a shared mapping may move no stat field: some are hashed."""
    path = ground.top / "output.md"
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[0:1] = b"B"  # from here on the page is writable and dirty
        manifest = trusting(ground.take().manifest)
        before = path.stat()
        memory[0:1] = b"C"
        unseen = before == path.stat()
        by_stat = ground.kinds(manifest)
        named = ground.compare(manifest, hashed=frozenset({b"output.md"}))
        everything = ground.compare(manifest, verify_content=True)
    assert by_stat == ({} if unseen else {b"output.md": "changed"})
    assert kinds(named) == {b"output.md": "changed"}
    assert kinds(everything) == {b"output.md": "changed"}


# --- Metadata, and notes --------------------------------------------------------------

METADATA: dict[str, Callable[[Path], object]] = {
    "mode": lambda path: path.chmod(0o777),
    "time": lambda path: os.utime(path, (1, 1)),
    "xattr": lambda path: os.setxattr(path, "user.x", b"1"),
    "another name": lambda path: os.link(path, path.parent.parent / "outside/name"),
    "equal bytes": lambda path: path.write_bytes(b"AAAA"),
}


@pytest.mark.parametrize("edit", METADATA.values(), ids=METADATA)
def test_compare_when_only_metadata_differs_then_says_so(
    ground: Ground, edit: Callable[[Path], object]
) -> None:
    """Mode, time, attributes and link count are changes of metadata."""
    require("xattr")
    manifest = trusting(ground.take().manifest)
    edit(ground.top / "output.md")
    assert ground.kinds(manifest) == {b"output.md": "metadata"}


@pytest.mark.case("S7")
def test_compare_when_only_the_execute_bit_was_set_then_says_so(
    ground: Ground,
) -> None:
    """An execute bit counts, and can be told."""
    (ground.top / "output.md").chmod(0o644)
    manifest = trusting(ground.take().manifest)
    (ground.top / "output.md").chmod(0o755)
    change = change_of(ground.compare(manifest), b"output.md")
    assert tell(change) == "metadata (mode 0644 became 0755)"


def test_compare_when_the_owner_differs_then_says_so(ground: Ground) -> None:
    """Owner and group count."""
    require("root")
    manifest = trusting(ground.take().manifest)
    os.chown(ground.top / "output.md", 12345, 54321)
    change = change_of(ground.compare(manifest), b"output.md")
    assert tell(change) == "metadata (uid 0 became 12345, gid 0 became 54321)"


@pytest.mark.case("S5", "S8")
@pytest.mark.parametrize("edit", ["mode", "owner", "name", "copy"])
def test_compare_when_only_ctime_or_inode_moved_then_it_is_a_note(
    ground: Ground, edit: str
) -> None:
    """What leaves bytes and metadata as they were is no change."""
    path = ground.top / "output.md"
    path.chmod(0o644)
    manifest = trusting(ground.take().manifest)
    match edit:
        case "mode":
            path.chmod(0o644)
        case "owner":
            os.chown(path, path.stat().st_uid, path.stat().st_gid)
        case "name":
            os.link(path, ground.outside / "scratch")
            (ground.outside / "scratch").unlink()
        case _:
            shutil.copy2(path, ground.outside / "copy")
            (ground.outside / "copy").replace(path)
    comparison = ground.compare(manifest)
    assert comparison.changes == ()
    assert b"output.md" in [note.path for note in comparison.notes]


def test_compare_when_a_folder_changed_then_says_so(ground: Ground) -> None:
    """A folder's mode is its own, and so is that of the top."""
    manifest = trusting(ground.take().manifest)
    (ground.top / "sub").chmod(0o700)
    ground.top.chmod(0o711)
    assert ground.kinds(manifest) == {b"": "metadata", b"sub": "metadata"}


def test_compare_when_a_file_came_and_went_then_the_folder_has_changed(
    ground: Ground,
) -> None:
    """A folder whose time moved for no reason that is left was written in."""
    manifest = trusting(ground.take().manifest)
    ground.put("sub/fleeting").unlink()
    comparison = ground.compare(manifest)
    assert kinds(comparison) == {b"sub": "metadata"}
    assert comparison.moved_folders == ()


@pytest.mark.parametrize("what", ["created", "deleted", "renamed over", "link"])
def test_compare_when_what_a_folder_holds_explains_its_time_then_it_only_moved(
    ground: Ground, what: str
) -> None:
    """A folder is put back in time without being named as a change."""
    ground.put("sub/other")
    (ground.top / "sub/link").symlink_to("inner.md")
    manifest = trusting(ground.take().manifest)
    match what:
        case "created":
            ground.put("sub/new")
        case "deleted":
            (ground.top / "sub/other").unlink()
        case "renamed over":
            save_by_rename(ground.top / "sub/inner.md", b"by rename")
        case _:
            (ground.top / "sub/link").unlink()
            (ground.top / "sub/link").symlink_to("elsewhere")
    comparison = ground.compare(manifest)
    assert comparison.moved_folders == (b"sub",)
    assert len(comparison.changes) == 1


# --- Names and types ------------------------------------------------------------------


@pytest.mark.case("E8")
def test_compare_when_link_and_empty_folder_are_gone_then_finds_both_and_the_new(
    ground: Ground,
) -> None:
    """Links and empty folders are part of the tree."""
    (ground.top / "link").symlink_to("output.md")
    manifest = ground.take().manifest
    (ground.top / "link").unlink()
    (ground.top / "empty").rmdir()
    (ground.top / "new link").symlink_to("output.md")
    assert ground.kinds(manifest) == {
        b"link": "deleted",
        b"empty": "deleted",
        b"new link": "created",
    }


@pytest.mark.case("E7")
def test_compare_when_written_through_a_link_then_the_file_changed_not_the_link(
    ground: Ground,
) -> None:
    """A link and what it leads to are two things."""
    (ground.top / "config").symlink_to("output.md")
    manifest = ground.take().manifest
    (ground.top / "config").write_bytes(b"through the link")
    assert ground.kinds(manifest) == {b"output.md": "changed"}


def test_compare_when_a_link_leads_elsewhere_then_it_is_changed(
    ground: Ground,
) -> None:
    """The content of a link is its text."""
    (ground.top / "link").symlink_to("output.md")
    manifest = trusting(ground.take().manifest)
    (ground.top / "link").unlink()
    (ground.top / "link").symlink_to("empty")
    change = change_of(ground.compare(manifest), b"link")
    assert change.before is not None
    assert change.after is not None
    assert (change.kind, change.before.link, change.after.link) == (
        "changed",
        b"output.md",
        b"empty",
    )


def test_compare_when_a_device_has_another_number_then_it_is_changed(
    ground: Ground,
) -> None:
    """The content of a device node is its number."""
    require("root")
    node = ground.top / "node"
    os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    manifest = trusting(ground.take().manifest)
    node.unlink()
    os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    assert ground.kinds(manifest) == {b"node": "changed"}


@pytest.mark.case("S13", "E16", "E17")
@pytest.mark.parametrize("to", ["fifo", "socket", "link", "folder"])
def test_compare_when_the_type_is_another_then_is_replaced(
    ground: Ground, to: str
) -> None:
    """What takes a file's place is named by its type, and never opened."""
    manifest = ground.take().manifest
    path = ground.top / "output.md"
    path.unlink()
    match to:
        case "fifo":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(path))
        case "link":
            path.symlink_to(ground.outside / "victim")
        case _:
            path.mkdir()
    comparison = ground.compare(manifest, verify_content=True)
    change = change_of(comparison, b"output.md")
    assert change.after is not None
    assert (change.kind, change.after.type) == ("replaced", to)


@pytest.mark.case("S32")
def test_compare_when_a_folder_and_a_file_changed_places_then_names_all_of_it(
    ground: Ground,
) -> None:
    """What a folder held is deleted, what the new one holds is created."""
    manifest = ground.take().manifest
    (ground.top / "output.md").rename(ground.outside / "was a file")
    (ground.top / "sub").rename(ground.top / "output.md")
    (ground.outside / "was a file").rename(ground.top / "sub")
    assert ground.kinds(manifest) == {
        b"output.md": "replaced",
        b"output.md/inner.md": "created",
        b"sub": "replaced",
        b"sub/inner.md": "deleted",
    }


@pytest.mark.case("E21")
def test_compare_when_a_folder_was_made_anew_then_what_it_held_is_deleted(
    ground: Ground,
) -> None:
    """A folder of the same name does not bring back what the first one held."""
    manifest = ground.take().manifest
    (ground.top / "sub/inner.md").unlink()
    (ground.top / "sub").rmdir()
    ground.put("sub/new")
    found = ground.kinds(manifest)
    assert (found[b"sub/inner.md"], found[b"sub/new"]) == ("deleted", "created")


@pytest.mark.case("E22")
def test_compare_when_a_folder_was_renamed_then_names_every_child(
    ground: Ground,
) -> None:
    """Everything in it is deleted in one place and created in the other."""
    ground.put("sub/deep/er")
    manifest = ground.take().manifest
    (ground.top / "sub").rename(ground.top / "other")
    assert ground.kinds(manifest) == {
        b"sub": "deleted",
        b"sub/deep": "deleted",
        b"sub/deep/er": "deleted",
        b"sub/inner.md": "deleted",
        b"other": "created",
        b"other/deep": "created",
        b"other/deep/er": "created",
        b"other/inner.md": "created",
    }


@pytest.mark.case("E29")
def test_compare_when_one_of_two_names_was_saved_by_rename_then_both_differ(
    ground: Ground,
) -> None:
    """The pair is broken: one has other content, and the other lost a name."""
    os.link(ground.top / "output.md", ground.top / "again.md")
    manifest = ground.take().manifest
    save_by_rename(ground.top / "again.md", b"BBBB")
    comparison = ground.compare(manifest)
    assert kinds(comparison) == {b"again.md": "changed", b"output.md": "metadata"}
    assert tell(change_of(comparison, b"output.md")) == (
        "metadata (link count 2 became 1)"
    )


@pytest.mark.case("E67")
def test_compare_when_written_through_a_name_outside_then_is_changed(
    ground: Ground,
) -> None:
    """It does not matter by which name a file was written."""
    os.link(ground.top / "output.md", ground.outside / "name")
    manifest = trusting(ground.take().manifest)
    edit_in_place(ground.outside / "name", b"B")
    assert ground.kinds(manifest) == {b"output.md": "changed"}


@pytest.mark.case("S16", "E10", "E11")
def test_compare_when_names_are_odd_then_has_them_byte_for_byte(
    ground: Ground,
) -> None:
    """No name hides another, and each is exact."""
    require("undecodable-names")
    ground.put(b"old\xff")
    manifest = ground.take().manifest
    (ground.top / os.fsdecode(b"old\xff")).unlink()
    for name in (b"a\nb", b"\x1b[2J\r", b"bad\xfe", b"-rf"):
        ground.put(name)
    assert ground.kinds(manifest) == {
        b"old\xff": "deleted",
        b"a\nb": "created",
        b"\x1b[2J\r": "created",
        b"bad\xfe": "created",
        b"-rf": "created",
    }


@pytest.mark.case("E31")
def test_compare_when_a_name_looks_like_a_whiteout_then_is_an_ordinary_file(
    ground: Ground,
) -> None:
    """Names mean nothing here."""
    manifest = ground.take().manifest
    ground.put(".wh.output.md")
    assert ground.kinds(manifest) == {b".wh.output.md": "created"}


@pytest.mark.case("E32")
def test_compare_when_very_much_was_created_then_no_deletion_is_lost(
    ground: Ground,
) -> None:
    """No list is cut."""
    for number in range(5):
        ground.put(f"doomed-{number}")
    manifest = ground.take().manifest
    for number in range(5):
        (ground.top / f"doomed-{number}").unlink()
    for number in range(200):
        ground.put(f"new-{number}")
    found = list(ground.kinds(manifest).values())
    assert (found.count("created"), found.count("deleted")) == (200, 5)


# --- What is left out, and what cannot be seen ----------------------------------------


def test_compare_when_something_is_skipped_then_is_not_looked_at(
    ground: Ground,
) -> None:
    """What is skipped may do as it likes; its neighbours may not."""
    ground.put("tasks/repair_1/output.md")
    skip = frozenset({b"tasks/repair_1"})
    manifest = ground.take(skip=skip).manifest
    ground.put("tasks/repair_1/output.md", b"good work")
    ground.put("tasks/repair_1/deep/notes")
    assert findings(ground.compare(manifest, skip=skip)) == NOTHING
    ground.put("tasks/repair_2")
    assert kinds(ground.compare(manifest, skip=skip)) == {b"tasks/repair_2": "created"}


def test_compare_when_what_was_captured_is_skipped_then_is_not_deleted(
    ground: Ground,
) -> None:
    """Leaving out more than the snapshot did makes nothing look deleted."""
    manifest = trusting(ground.take().manifest)
    ground.put("new")
    found = ground.compare(manifest, skip=frozenset({b"sub", b"new"}))
    assert kinds(found) == {b"": "metadata"}


def test_compare_when_a_folder_became_unreadable_then_it_could_hide_a_change(
    ordinary: Ground,
) -> None:
    """Its mode is a change; what goes on inside is a gap."""
    require("ordinary-user")
    with as_ordinary():
        ordinary.put("sub/inner", b"1")
        manifest = ordinary.take().manifest
        ordinary.put("sub/inner", b"2")
        (ordinary.top / "sub").chmod(0)
        comparison = ordinary.compare(manifest)
        (ordinary.top / "sub").chmod(0o700)
    assert kinds(comparison) == {b"sub": "metadata"}
    [gap] = comparison.gaps
    assert (gap.kind, gap.path, gap.could_hide_escape) == ("unreadable", b"sub", True)


def test_compare_when_a_folder_could_not_be_read_before_then_nothing_in_it_is_new(
    ordinary: Ground,
) -> None:
    """Of a folder that was not captured nobody knows what it held."""
    require("ordinary-user")
    with as_ordinary():
        ordinary.put("sub/inner", b"1").parent.chmod(0)
        manifest = ordinary.take().manifest
        (ordinary.top / "sub").chmod(0o700)
        comparison = ordinary.compare(manifest)
    assert kinds(comparison) == {b"sub": "metadata"}


def test_compare_when_content_must_be_read_and_cannot_be_then_it_could_hide_a_change(
    ordinary: Ground,
) -> None:
    """A gap of the snapshot becomes one that can hide where a stat is not enough."""
    require("ordinary-user")
    with as_ordinary():
        ordinary.put("shut", b"1").chmod(0)
        manifest = trusting(ordinary.take().manifest)
        by_stat = ordinary.compare(manifest)
        verified = ordinary.compare(manifest, verify_content=True)
    assert findings(by_stat) == NOTHING
    [gap] = verified.gaps
    assert (gap.kind, gap.path, gap.could_hide_escape) == ("unreadable", b"shut", True)


def test_compare_when_a_file_was_shut_then_its_metadata_changed(
    ordinary: Ground,
) -> None:
    """That its content cannot be read any more hides nothing: it is named already."""
    require("ordinary-user")
    with as_ordinary():
        ordinary.put("a", b"1")
        manifest = trusting(ordinary.take().manifest)
        (ordinary.top / "a").chmod(0)
        comparison = ordinary.compare(manifest)
    change = change_of(comparison, b"a")
    assert change.after is not None
    assert (change.kind, change.after.sha256) == ("metadata", None)
    assert comparison.gaps == ()


class Stop(Exception):
    """The caller gives up."""


def test_compare_when_interrupted_then_lets_it_through(ground: Ground) -> None:
    """Whatever the caller raises ends the walk; no descriptor stays open."""
    manifest = ground.take().manifest

    def check() -> None:
        raise Stop

    with Folder.open(ground.top) as top, pytest.raises(Stop):
        compare(manifest, top, check=check)


@pytest.mark.parametrize(
    ("kind", "after", "told"),
    [
        ("deleted", None, "deleted"),
        ("replaced", {"type": "link"}, "replaced"),
        ("changed", {"sha256": "00"}, "changed"),
        ("changed", {"size": 9}, "changed (size 1 became 9)"),
    ],
)
def test_tell_when_asked_then_names_what_differs(
    kind: str, after: dict[str, object] | None, told: str
) -> None:
    """A person is told what became of a path in a few words."""
    before = Entry(
        type="file",
        mode=0o644,
        uid=0,
        gid=0,
        size=1,
        mtime_ns=0,
        ctime_ns=0,
        inode=1,
        device=1,
        nlink=1,
    )
    now = None if after is None else dataclasses.replace(before, **after)
    assert told == tell(Change(path=b"x", kind=kind, before=before, after=now))
