"""What belongs to a file besides its bytes, and how another one takes it over."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from typing import TYPE_CHECKING

import pytest
from accounts import ORDINARY_UID
from capabilities import require
from euid import ordinary_user
from listing import changes, tree_state
from oscalls import Call, each_call

from workspace_guard.files.digest import Unstable
from workspace_guard.files.keep import copy_as_is, put_back_kept, take_over_attributes
from workspace_guard.files.tree import Folder, NotRegular
from workspace_guard.files.xattrs import read_xattrs, write_xattrs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STRANGER, TEAM = 12346, 12347
ENDLESS = 1000
"""More calls than any body here makes that ends."""
OLD_NS = 1_700_000_000_123_456_789
ACL = "system.posix_acl_access"
DEFAULT_ACL = "system.posix_acl_default"


def acl(user: int) -> bytes:
    """Spell `u::rw-,u:USER:r--,g::r--,m::r--,o::---` as the kernel keeps it."""
    nobody = 0xFFFFFFFF
    entries = (
        (0x01, 6, nobody),
        (0x02, 4, user),
        (0x04, 4, nobody),
        (0x10, 4, nobody),
        (0x20, 0, nobody),
    )
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in entries)


def set_acl(path: Path, name: str, user: int) -> None:
    """Give a file or folder an ACL, without the program `setfacl`."""
    try:
        os.setxattr(path, name, acl(user))
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        require("acl")


def take_over(old: Path, new: Path) -> None:
    """Give one file the attributes of another."""
    with (
        contextlib.closing(os.fdopen(os.open(old, os.O_RDONLY), "rb")) as from_file,
        contextlib.closing(os.fdopen(os.open(new, os.O_RDWR), "r+b")) as to_file,
    ):
        take_over_attributes(from_file.fileno(), to_file.fileno())


def mode_of(path: Path) -> int:
    """The permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def old(place: Path) -> Path:
    """The file that is replaced."""
    (place / "old").write_bytes(b"old\n")
    return place / "old"


@pytest.fixture
def new(place: Path) -> Path:
    """The file that replaces it, private as it is staged."""
    (place / "new").touch(mode=0o600)
    return place / "new"


# --- Attributes -----------------------------------------------------------------------


@pytest.mark.case("S56", "E19")
@pytest.mark.parametrize("mode", [0o664, 0o600, 0o755, 0o444, 0o000, 0o4755, 0o2775])
def test_take_over_when_the_file_is_ours_then_mode_is_the_same(
    old: Path, new: Path, mode: int
) -> None:
    """Every permission bit comes along, setuid and setgid with the owner's."""
    require("root")
    old.chmod(mode)
    take_over(old, new)
    assert mode == mode_of(new)


@pytest.mark.case("S56", "S35")
def test_take_over_when_root_then_owner_mode_and_attributes_are_the_same(
    old: Path, new: Path
) -> None:
    """Giving the owner last would clear setuid and the capability again."""
    require("root")
    require("xattr")
    os.chown(old, STRANGER, TEAM)
    old.chmod(0o4750)
    os.setxattr(old, "user.origin", b"export")
    capability = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)
    os.setxattr(old, "security.capability", capability)
    take_over(old, new)
    found = new.stat()
    assert (found.st_uid, found.st_gid, mode_of(new)) == (STRANGER, TEAM, 0o4750)
    assert os.getxattr(new, "user.origin") == b"export"
    assert os.getxattr(new, "security.capability") == capability


@pytest.mark.case("S56")
def test_take_over_when_there_is_an_acl_then_it_comes_along(
    old: Path, new: Path
) -> None:
    """Whoever was let in by an ACL is let in still."""
    require("xattr")
    set_acl(old, ACL, STRANGER)
    take_over(old, new)
    assert acl(STRANGER) == os.getxattr(new, ACL)
    assert mode_of(new) == mode_of(old) == 0o640


@pytest.mark.case("S56")
def test_take_over_when_the_folder_gave_the_new_one_an_acl_then_it_goes(
    place: Path, old: Path
) -> None:
    """A default ACL of the folder lets nobody in who was not let in before."""
    require("xattr")
    old.chmod(0o600)
    set_acl(place, DEFAULT_ACL, STRANGER)
    inheriting = place / "inheriting"
    inheriting.touch(mode=0o666)
    assert ACL in os.listxattr(inheriting)
    take_over(old, inheriting)
    assert ACL not in os.listxattr(inheriting)
    assert mode_of(inheriting) == 0o600


@pytest.mark.case("E30")
def test_take_over_when_an_overlay_left_its_marks_then_they_stay_behind(
    old: Path, new: Path
) -> None:
    """What an overlay keeps for itself does not get into the workspace."""
    require("xattr")
    os.setxattr(old, "user.overlay.origin", b"x")
    os.setxattr(old, "user.mine", b"y")
    take_over(old, new)
    assert os.listxattr(new) == ["user.mine"]


def test_take_over_when_the_owner_is_somebody_else_then_lends_no_rights(
    place: Path, old: Path, new: Path
) -> None:
    """Without the owner, setuid would run new bytes with our rights, not theirs."""
    require("root")
    os.chown(old, STRANGER, STRANGER)
    old.chmod(0o6755)
    os.chown(new, ORDINARY_UID, ORDINARY_UID)
    with ordinary_user(place):
        take_over(old, new)
    found = new.stat()
    assert (found.st_uid, found.st_gid) == (ORDINARY_UID, ORDINARY_UID)
    assert mode_of(new) == 0o755


@pytest.mark.case("S56")
def test_take_over_when_only_the_group_may_be_given_then_it_is(
    place: Path, old: Path, new: Path
) -> None:
    """In a shared folder the team keeps its rights, whoever of them replaces a file."""
    require("root")
    os.chown(old, STRANGER, TEAM)
    old.chmod(0o664)
    os.chown(new, ORDINARY_UID, ORDINARY_UID)
    with ordinary_user(place, groups=(TEAM,)):
        take_over(old, new)
    found = new.stat()
    assert (found.st_uid, found.st_gid, mode_of(new)) == (ORDINARY_UID, TEAM, 0o664)


def test_take_over_when_the_owner_cannot_be_given_for_another_reason_then_fails(
    old: Path, new: Path
) -> None:
    """Only "not allowed" and "unknown here" are passed over."""

    def before(call: Call) -> None:
        if call.name == "fchown":
            raise OSError(errno.EIO, "cannot")

    with each_call(before), pytest.raises(OSError, match="cannot"):
        take_over(old, new)


def test_take_over_when_one_attribute_is_forbidden_then_another_failure_is_told(
    old: Path, new: Path
) -> None:
    """A full disk is not hidden behind an attribute that we may not set anyway."""
    require("xattr")
    for name in ("user.1", "user.2", "user.3"):
        os.setxattr(old, name, b"x")
    codes = iter((errno.EPERM, errno.ENOSPC, errno.EPERM))

    def before(call: Call) -> None:
        if call.name == "setxattr":
            code = next(codes)
            raise OSError(code, os.strerror(code))

    with each_call(before), pytest.raises(OSError, match="No space"):
        take_over(old, new)


def test_take_over_when_attributes_are_forbidden_then_the_others_are_given(
    old: Path, new: Path
) -> None:
    """A label that only a privileged user may set is left out."""
    require("xattr")
    os.setxattr(old, "user.1", b"x")
    os.setxattr(old, "user.2", b"y")

    def before(call: Call) -> None:
        if call.name == "setxattr" and not given:
            given.append(call)
            raise PermissionError(errno.EPERM, "not allowed")

    given: list[Call] = []
    with each_call(before):
        take_over(old, new)
    assert os.listxattr(new) == ["user.2"]


def test_xattrs_when_written_then_are_these_and_no_others(place: Path) -> None:
    """What is there and not wanted goes; on a link nothing is followed."""
    require("xattr")
    file = place / "file"
    file.touch()
    os.setxattr(file, "user.old", b"1")
    os.setxattr(file, "user.kept", b"2")
    where = os.fsencode(file)
    wanted = ((b"user.kept", b"2"), (b"user.new", b"3"))
    write_xattrs(where, wanted)
    assert wanted == read_xattrs(where)


def test_xattrs_when_a_link_then_does_not_read_its_target(place: Path) -> None:
    """A path is not followed."""
    require("xattr")
    (place / "file").touch()
    os.setxattr(place / "file", "user.x", b"1")
    (place / "link").symlink_to("file")
    assert read_xattrs(os.fsencode(place / "link")) == ()


# --- Copies ---------------------------------------------------------------------------


@pytest.fixture
def folders(place: Path, old: Path) -> Iterator[tuple[Folder, Folder]]:
    """The folder of the old file, and the folder of kept ones."""
    assert old.exists()
    (place / "kept").mkdir()
    with Folder.open(place) as here, Folder.open(place / "kept") as kept:
        yield here, kept


def test_copy_as_is_when_done_then_only_the_inode_differs(
    place: Path, old: Path, folders: tuple[Folder, Folder]
) -> None:
    """Bytes, mode, owner, times and attributes are those of the source."""
    require("xattr")
    os.setxattr(old, "user.origin", b"export")
    old.chmod(0o664)
    os.utime(old, ns=(OLD_NS, OLD_NS))
    here, kept = folders
    copy_as_is(here, b"old", kept, b"0")
    copy = tree_state(place / "kept")[b"0"]
    assert copy == tree_state(place)[b"old"]
    assert not os.path.samefile(place / "kept" / "0", old)


def test_copy_as_is_when_traced_then_is_flushed_before_it_is_closed(
    folders: tuple[Folder, Folder],
) -> None:
    """What is kept must be there for good before anything rests on it."""
    here, kept = folders
    with each_call() as calls:
        copy_as_is(here, b"old", kept, b"0")
    assert calls.lines("fsync", "utime", "close", "fchmod") == [
        "fchmod 0",
        "utime 0",
        "fsync 0",
        "close 0",
        "close old",
    ]


def test_copy_as_is_when_the_file_grows_then_stops_and_leaves_nothing(
    old: Path, folders: tuple[Folder, Folder]
) -> None:
    """A file that grows as fast as it is read does not fill the disk."""
    here, kept = folders

    def before(call: Call) -> None:
        assert call.number < ENDLESS
        if str(call) == "read old":
            with old.open("ab") as file:
                file.write(b"more\n")

    with each_call(before, at_most=5), pytest.raises(Unstable):
        copy_as_is(here, b"old", kept, b"0")
    assert kept.names() == []


def test_copy_as_is_when_a_link_then_refuses(
    place: Path, folders: tuple[Folder, Folder]
) -> None:
    """Nothing is copied by way of a link."""
    require("symlinks")
    (place / "link").symlink_to("old")
    here, kept = folders
    with pytest.raises(NotRegular):
        copy_as_is(here, b"link", kept, b"0")
    assert kept.names() == []


@pytest.mark.parametrize("links", [True, False])
def test_put_back_when_something_else_is_there_then_the_kept_file_replaces_it(
    place: Path, old: Path, folders: tuple[Folder, Folder], links: bool
) -> None:
    """It returns as itself where names can be linked, as a copy where not."""
    require("hard-links")
    old.chmod(0o640)
    os.utime(old, ns=(OLD_NS, OLD_NS))
    here, kept = folders
    before = tree_state(place, without=(b"kept",), any_time=(b".",))
    inode = old.stat().st_ino
    here.rename(b"old", kept, b"0")
    old.write_bytes(b"new\n")

    def refuse(call: Call) -> None:
        if call.name == "link" and not links:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    with each_call(refuse):
        put_back_kept(kept, b"0", here, b"old", "run-1")
    assert links == (old.stat().st_ino == inode)
    kept.unlink(b"0")
    after = tree_state(place, without=(b"kept",), any_time=(b".",))
    assert changes(before, after) == {}


def test_put_back_when_the_rename_fails_then_leaves_no_second_name(
    old: Path, folders: tuple[Folder, Folder]
) -> None:
    """A staged second name that finds no place goes again."""
    here, kept = folders
    here.rename(b"old", kept, b"0")
    old.mkdir()
    with pytest.raises(IsADirectoryError):
        put_back_kept(kept, b"0", here, b"old", "run-1")
    assert sorted(here.names()) == [b"kept", b"old"]
    assert kept.stat(b"0").st_nlink == 1
