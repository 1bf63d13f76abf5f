"""Put targets in place, all or none, on a real file system with real failures."""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from accounts import ORDINARY_UID, is_root
from capabilities import require
from euid import ordinary_user
from listing import TreeState, changes, tree_state
from snapshots import save_by_rename
from steps import give_to_ordinary, make_old, make_workspace, put, staged_with, state_of

from workspace_guard.errors import PromotionFailed, RunNotClosed
from workspace_guard.files import journal as journals
from workspace_guard.files.relpath import RelPath
from workspace_guard.files.tree import Folder
from workspace_guard.step.candidates import look
from workspace_guard.step.promote import (
    DestinationMoved,
    PreparedPromotion,
    Promoted,
    prepare,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from workspace_guard.files.layout import WorkspaceState

RUN_ID = "20261130T160000.000Z-abcdef"
FILES: dict[str | bytes, bytes] = {
    "a.md": b"old a\n",
    "b.md": b"old b\n",
    "c/c.md": b"old c\n",
    "template.md": b"## a\n",
}
THREE = ["a.md", "b.md", "c/c.md"]


class Street:
    """A workspace with a step whose candidates are there, up to its promotion."""

    def __init__(self, place: Path, files: dict[str | bytes, bytes]) -> None:
        self.top = make_workspace(place / "workspace", files)
        self.state: WorkspaceState = state_of(self.top, place / "state")
        (self.state.run(RUN_ID).path).mkdir(mode=0o700)

    def stage(self, candidates: dict[str, bytes], **options: object) -> None:
        """Build a step and let the command leave these files."""
        options.setdefault("target", list(candidates))
        self.staged, self.contract = staged_with(self.top, **options)
        for name, content in candidates.items():
            put(self.staged.path, name.partition("=")[0], content)
        self.targets = look(self.staged, self.contract)
        assert {state.state for state in self.targets} == {"valid"}

    def prepare(self) -> PreparedPromotion:
        """Stage the candidates beside their destinations."""
        return prepare(self.top, self.state, RUN_ID, self.staged, self.targets)

    def promote(self) -> tuple[Promoted, ...]:
        """Put them in place."""
        return self.prepare().commit()

    def recover(self) -> journals.Recovered | None:
        """Do what `recover` does about a journal that was left open."""
        with (
            Folder.open(self.top) as top,
            Folder.open(self.state.run(RUN_ID).previous) as kept,
            Folder.open(self.state.journal) as journal,
        ):
            return journals.recover(RUN_ID, top, kept, journal)

    def parent(self) -> TreeState:
        """All of the workspace but for the step."""
        return tree_state(self.top, without=(b"tasks",))

    def previous(self) -> dict[str, bytes]:
        """The old content that is kept."""
        folder = self.state.run(RUN_ID).previous
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    @contextlib.contextmanager
    def untouched(self) -> Iterator[None]:
        """See that the block leaves the workspace, journal and kept files alone.

        The times of folders may move: files were made in them and removed again.
        """
        before = self.parent()
        yield
        found = changes(before, self.parent())
        folders = {path for path, (_, now) in found.items() if _is_folder(now)}
        assert found.keys() - folders == set()
        assert folders <= {b".", b"c"}
        assert self.previous() == {}
        assert os.listdir(self.state.journal) == []


def _is_folder(look: object) -> bool:
    return getattr(look, "kind", None) == "folder"


@pytest.fixture
def street(tmp_path: Path) -> Street:
    """A workspace with three documents, in two folders."""
    return Street(tmp_path, FILES)


def sha256(some: bytes) -> str:
    """The digest of some bytes."""
    return hashlib.sha256(some).hexdigest()


def content(path: Path) -> object:
    """What is at a path, in a form that can be compared."""
    if path.is_symlink():
        return "link", os.readlink(path)
    if path.is_file():
        return "file", path.read_bytes()
    return "other", os.path.lexists(path)


# --- All of them ----------------------------------------------------------------------


def test_targets_when_promoted_then_are_in_place_and_the_old_ones_kept(
    street: Street,
) -> None:
    """Each destination holds its target; what it held before lies with the run."""
    street.stage({"a.md": b"new a\n", "x.md=c/c.md": b"new c\n", "d/e/n.md": b"new\n"})

    promotion = street.promote()

    assert promotion == (
        Promoted(
            destination=RelPath((b"a.md",)),
            before_sha256=sha256(b"old a\n"),
            after_sha256=sha256(b"new a\n"),
            previous="previous/0",
        ),
        Promoted(
            destination=RelPath((b"c", b"c.md")),
            before_sha256=sha256(b"old c\n"),
            after_sha256=sha256(b"new c\n"),
            previous="previous/1",
        ),
        Promoted(
            destination=RelPath((b"d", b"e", b"n.md")),
            before_sha256=None,
            after_sha256=sha256(b"new\n"),
            previous=None,
        ),
    )
    found = {path: (street.top / path).read_bytes() for path in ("a.md", "c/c.md")}
    assert found == {"a.md": b"new a\n", "c/c.md": b"new c\n"}
    assert (street.top / "d" / "e" / "n.md").read_bytes() == b"new\n"
    assert street.previous() == {"0": b"old a\n", "1": b"old c\n"}
    assert os.listdir(street.state.journal) == []


def test_targets_when_promoted_then_nothing_else_is_different(street: Street) -> None:
    """No staged file, no other time, and the candidates stay in the step."""
    street.stage({"a.md": b"new a\n", "b.md": b"new b\n"})
    before = street.parent()
    step = tree_state(street.staged.path)

    street.promote()

    assert set(changes(before, street.parent())) == {b".", b"a.md", b"b.md"}
    assert changes(step, tree_state(street.staged.path)) == {}


@pytest.mark.case("E10", "E11")
@pytest.mark.parametrize(
    "name", [b"two\nlines.md", "会议 (1) [2].md".encode(), b"-rf", b"bad\xff.md"]
)
def test_target_when_its_name_is_unusual_then_is_promoted_exactly(
    street: Street, name: bytes
) -> None:
    """Names are bytes, also in the journal."""
    if b"\xff" in name:
        require("undecodable-names")
    street.stage({os.fsdecode(name): b"1\n", "a.md": b"2\n"})

    street.promote()

    with open(os.path.join(os.fsencode(street.top), name), "rb") as file:
        assert file.read() == b"1\n"


def test_target_when_it_equals_what_is_there_then_is_promoted_all_the_same(
    street: Street,
) -> None:
    """Without `--require-change` a file may be replaced by its equal."""
    street.stage({"a.md": b"old a\n", "b.md": b"new\n"})

    promotion = street.promote()

    assert [p.before_sha256 == p.after_sha256 for p in promotion] == [True, False]
    assert (street.top / "a.md").read_bytes() == b"old a\n"


def test_target_when_large_then_is_promoted_whole(street: Street) -> None:
    """Files are copied in chunks and compared with what was judged."""
    large = os.urandom((3 << 20) + 1)
    street.stage({"a.md": large})

    street.promote()

    assert (street.top / "a.md").read_bytes() == large


def test_folder_when_promoted_then_adds_and_replaces_and_removes_nothing(
    street: Street,
) -> None:
    """A folder target puts its files in place; what else is there stays."""
    put(street.top, "figures/old.png", b"old")
    put(street.top, "figures/same.png", b"old")
    street.stage(
        {"figures/same.png": b"new", "figures/x/new.png": b"new"}, target="figures/"
    )

    street.promote()

    figures = street.top / "figures"
    found = {
        path.relative_to(figures).as_posix(): path.read_bytes()
        for path in figures.rglob("*.png")
    }
    assert found == {"old.png": b"old", "same.png": b"new", "x/new.png": b"new"}


# --- What a destination keeps ---------------------------------------------------------


def _acl() -> bytes:
    """An ACL that lets uid 12345 read and write, as the kernel has it.

    Source: acl(5); linux/posix_acl_xattr.h.
    """
    entries = (
        (0x01, 6, 0xFFFFFFFF),
        (0x02, 6, ORDINARY_UID),
        (0x04, 4, 0xFFFFFFFF),
        (0x10, 6, 0xFFFFFFFF),
        (0x20, 4, 0xFFFFFFFF),
    )
    rows = [struct.pack("<HHI", *entry) for entry in entries]
    return struct.pack("<I", 2) + b"".join(rows)


@pytest.mark.case("S56", "E19")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o755, 0o444, 0o4711])
def test_destination_when_replaced_then_keeps_its_mode(
    street: Street, mode: int
) -> None:
    """The parent's mode stands, whatever the candidate's is."""
    (street.top / "a.md").chmod(mode)
    street.stage({"a.md": b"new\n", "b.md": b"new\n"})
    (street.staged.path / "a.md").chmod(0o777)

    street.promote()

    assert oct(mode) == oct((street.top / "a.md").stat().st_mode & 0o7777)


@pytest.mark.case("S56", "S35")
def test_destination_when_replaced_then_keeps_owner_acl_and_attributes(
    street: Street,
) -> None:
    """Owner first, since its change clears setuid; then mode, ACL and attributes."""
    require("xattr")
    old = street.top / "a.md"
    if is_root():
        os.chown(old, ORDINARY_UID, ORDINARY_UID + 1)
    old.chmod(0o6754)
    os.setxattr(old, "user.origin", b"export")
    try:
        os.setxattr(old, "system.posix_acl_access", _acl())
    except OSError:
        require("acl")
    before = tree_state(street.top)[b"a.md"]
    street.stage({"a.md": b"new\n"})

    street.promote()

    after = tree_state(street.top)[b"a.md"]
    assert (before.owner, before.xattrs, before.mode, before.links) == (
        after.owner,
        after.xattrs,
        after.mode,
        after.links,
    )
    assert (street.top / "a.md").read_bytes() == b"new\n"


@pytest.mark.case("E30")
def test_candidate_when_it_has_attributes_then_none_of_them_comes_along(
    street: Street,
) -> None:
    """What is promoted is content: neither `user.overlay.*` nor anything else."""
    require("xattr")
    street.stage({"a.md": b"new\n", "n.md": b"new\n"})
    for name in ("a.md", "n.md"):
        candidate = street.staged.path / name
        os.setxattr(candidate, "user.overlay.opaque", b"y")
        os.setxattr(candidate, "user.mine", b"1")

    street.promote()

    assert [os.listxattr(street.top / name) for name in ("a.md", "n.md")] == [[], []]


@pytest.mark.case("E30")
def test_destination_when_it_has_attributes_of_an_overlay_then_they_are_left_out(
    street: Street,
) -> None:
    """A file that was copied up once does not pass that on."""
    require("xattr")
    os.setxattr(street.top / "a.md", "user.overlay.origin", b"y")
    os.setxattr(street.top / "a.md", "user.mine", b"1")
    street.stage({"a.md": b"new\n"})

    street.promote()

    assert os.listxattr(street.top / "a.md") == ["user.mine"]


@pytest.mark.parametrize(
    ("umask", "of_candidate", "expected"),
    [
        (0o022, 0o644, 0o644),
        (0o022, 0o400, 0o644),
        (0o022, 0o755, 0o755),
        (0o022, 0o700, 0o755),
        (0o077, 0o644, 0o600),
        (0o077, 0o755, 0o700),
        (0o000, 0o666, 0o666),
        (0o002, 0o6755, 0o775),
    ],
)
def test_destination_when_new_then_has_what_the_umask_leaves(
    street: Street, umask: int, of_candidate: int, expected: int
) -> None:
    """0666 & ~umask, executable if the target is; nothing more of the candidate's."""
    street.stage({"n.md": b"new\n", "d/n.md": b"new\n"})
    for name in ("n.md", "d/n.md"):
        (street.staged.path / name).chmod(of_candidate)
    street.targets = look(street.staged, street.contract)

    before = os.umask(umask)
    try:
        street.promote()
    finally:
        os.umask(before)

    modes = {oct((street.top / n).stat().st_mode & 0o7777) for n in ("n.md", "d/n.md")}
    assert modes == {oct(expected)}
    assert (street.top / "d").stat().st_mode & 0o777 == 0o777 & ~umask


@pytest.mark.case("E19")
def test_destination_when_it_has_a_second_name_then_that_keeps_the_old_content(
    street: Street, tmp_path: Path
) -> None:
    """Replacing is by rename: what else bears the old file's name is left alone."""
    require("hard-links")
    os.link(street.top / "a.md", tmp_path / "twin")
    street.stage({"a.md": b"new\n"})

    street.promote()

    assert (tmp_path / "twin").read_bytes() == b"old a\n"
    assert (street.top / "a.md").read_bytes() == b"new\n"


@pytest.mark.case("S56")
def test_destination_when_it_belongs_to_somebody_else_then_is_replaced_without_rights(
    place: Path,
) -> None:
    """Where the owner cannot be given, setuid is not lent to another one."""
    require("ordinary-user")
    if not is_root():
        pytest.skip("needs a file of another owner")
    street = Street(place, FILES)
    give_to_ordinary(place)
    os.chown(street.top / "a.md", 0, 0)
    (street.top / "a.md").chmod(0o4755)

    with ordinary_user():
        street.stage({"a.md": b"new\n"})
        street.promote()

    after = (street.top / "a.md").stat()
    assert (after.st_uid, oct(after.st_mode & 0o7777)) == (ORDINARY_UID, "0o755")


# --- None of them: what was judged is not what is there -------------------------------


@contextlib.contextmanager
def refused(street: Street, fact: str) -> Iterator[None]:
    """See that the promotion fails with this fact and leaves nothing of itself."""
    with street.untouched():
        with pytest.raises(PromotionFailed) as caught:
            yield
        assert caught.value.message.startswith("promotion failed: ")
        assert fact in caught.value.message
        assert caught.value.exit_status == 45


def _link_out(path: Path) -> None:
    path.unlink()
    path.symlink_to("../../template.md")


def _link_to_same_bytes(path: Path) -> None:
    """A link to a file whose digest is the one that was judged."""
    twin = path.with_name("twin")
    path.rename(twin)
    path.symlink_to(twin)


def _other_content(path: Path) -> None:
    path.write_bytes(b"something else\n")


def _gone(path: Path) -> None:
    path.unlink()


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path) -> None:
    require("fifo")
    path.unlink()
    os.mkfifo(path)


def _folder_above_is_a_link(path: Path) -> None:
    path.parent.rename(path.parent.with_name("real"))
    path.parent.symlink_to("real")


@pytest.mark.case("E4", "E61")
@pytest.mark.parametrize(
    ("swap", "fact"),
    [
        (_link_out, "c.md: is no regular file"),
        (_link_to_same_bytes, "c.md: is no regular file"),
        (_other_content, "c/c.md: changed after it was judged"),
        (_gone, "c.md: No such file or directory"),
        (_folder, "c.md: is no regular file"),
        (_fifo, "c.md: is no regular file"),
        (_folder_above_is_a_link, "c: Not a directory"),
    ],
)
def test_candidate_when_it_is_no_longer_what_was_judged_then_none_is_promoted(
    street: Street, swap: Callable[[Path], None], fact: str
) -> None:
    """Promotion follows no link that was planted, and believes its own digest."""
    street.stage({"a.md": b"new a\n", "b.md": b"new b\n", "c/c.md": b"new c\n"})
    swap(street.staged.path / "c" / "c.md")

    with refused(street, fact):
        street.promote()


def test_candidate_when_its_name_is_no_utf8_then_the_message_can_be_written(
    street: Street,
) -> None:
    """A hostile name breaks neither the message nor the record that it goes into."""
    require("undecodable-names")
    name = os.fsdecode(b"bad\xff\n.md")
    street.stage({name: b"new\n"})
    _other_content(street.staged.path / name)

    with refused(street, r"bad\xff\n.md: changed after it was judged"):
        street.promote()


def test_step_when_it_is_gone_then_none_is_promoted(street: Street) -> None:
    """A step that vanished after it was judged has nothing to promote."""
    street.stage({"a.md": b"new a\n"})
    street.staged.path.rename(street.top / "tasks" / "elsewhere")

    with refused(street, "run_1: No such file or directory"):
        street.promote()


# --- None of them: a destination has moved --------------------------------------------


def _edited_in_place(path: Path) -> None:
    path.write_bytes(b"their edit\n")


def _saved_by_rename(path: Path) -> None:
    save_by_rename(path, b"their edit\n")


def _to_a_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("template.md")


@pytest.mark.case("E62", "E19", "E20")
@pytest.mark.parametrize("when", ["before it is prepared", "before it is committed"])
@pytest.mark.parametrize(
    "edit", [_edited_in_place, _saved_by_rename, _gone, _to_a_link, _folder, _fifo]
)
@pytest.mark.parametrize("name", THREE)
def test_destination_when_changed_in_the_last_moment_then_none_is_replaced(
    street: Street, name: str, edit: Callable[[Path], None], when: str
) -> None:
    """Somebody's edit after the verdict is a conflict, and theirs stands."""
    street.stage({"a.md": b"new a\n", "b.md": b"new b\n", "c/c.md": b"new c\n"})
    path = street.top / name

    if when == "before it is prepared":
        edit(path)
        with street.untouched(), pytest.raises(DestinationMoved) as caught:
            street.promote()
    else:
        prepared = street.prepare()
        edit(path)
        edited = content(path)
        with pytest.raises(DestinationMoved) as caught:
            prepared.commit()
        assert edited == content(path)
        assert street.previous() == {}

    assert name == caught.value.destination
    others = {n: (street.top / n).read_bytes() for n in THREE if n != name}
    assert others == {n: FILES[n] for n in THREE if n != name}
    assert not list(street.top.rglob(".wsguard-*"))


@pytest.mark.case("E62")
def test_destination_when_it_came_to_be_meanwhile_then_is_not_replaced(
    street: Street,
) -> None:
    """What was absent when the step was built must be absent still."""
    street.stage({"a.md": b"new a\n", "n.md": b"new\n"})
    prepared = street.prepare()
    put(street.top, "n.md", b"mine\n")

    with pytest.raises(DestinationMoved) as caught:
        prepared.commit()

    assert caught.value.destination == "n.md"
    assert (street.top / "n.md").read_bytes() == b"mine\n"
    assert (street.top / "a.md").read_bytes() == b"old a\n"


@pytest.mark.case("E62")
def test_destination_when_others_beside_it_are_edited_then_is_replaced(
    street: Street,
) -> None:
    """Edits of what is no destination are nobody's conflict, and stay."""
    street.stage({"a.md": b"new a\n"})
    prepared = street.prepare()
    put(street.top, "mine", b"mine\n")
    put(street.top, "b.md", b"their b\n")

    prepared.commit()

    names = ("a.md", "b.md", "mine")
    found = [(street.top / name).read_bytes() for name in names]
    assert found == [b"new a\n", b"their b\n", b"mine\n"]


# --- None of them: the file system refuses --------------------------------------------


@contextlib.contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Let writes beyond a size fail, as on a full disk."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.case("S52", "S53")
def test_disk_when_it_takes_no_more_then_none_is_promoted_and_no_litter_stays(
    street: Street,
) -> None:
    """A write that is cut short is not success, and its file goes again."""
    street.stage({"a.md": b"new a\n", "b.md": bytes(100_000), "n/n.md": b"new\n"})

    with refused(street, "File too large"), largest_file(50_000):
        street.promote()


@pytest.mark.case("S53")
def test_kept_file_when_it_cannot_be_written_then_nothing_is_staged(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the old content cannot be kept nothing is replaced."""
    put(street.top, "a.md", bytes(100_000))
    street.stage({"a.md": b"new a\n"})

    def no_links(*_names: object, **_options: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_links)
    with refused(street, "File too large"), largest_file(50_000):
        street.promote()


def test_old_content_when_it_cannot_be_linked_then_is_copied(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state folder on another file system keeps copies."""
    (street.top / "a.md").chmod(0o640)
    make_old(street.top)
    street.stage({"a.md": b"new a\n"})

    def no_links(*_names: object, **_options: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_links)
    street.promote()

    kept = street.state.run(RUN_ID).previous / "0"
    assert street.previous() == {"0": b"old a\n"}
    assert oct(kept.stat().st_mode & 0o777) == "0o640"
    assert kept.stat().st_mtime_ns == 1_700_000_000_123_456_789


@pytest.mark.case("S61")
def test_folder_when_read_only_then_none_is_promoted(place: Path) -> None:
    """A destination that cannot be replaced is known before the first rename."""
    require("ordinary-user")
    street = Street(place, FILES)
    give_to_ordinary(place)
    (street.top / "c").chmod(0o555)
    with ordinary_user():
        street.stage({"a.md": b"new a\n", "b.md": b"new b\n", "c/c.md": b"new c\n"})

        with refused(street, "Permission denied"):
            street.promote()


@pytest.mark.case("S58", "S59", "S61")
def test_third_of_three_when_it_cannot_be_replaced_then_all_are_the_old_files_again(
    street: Street,
) -> None:
    """Exact old bytes, mode, owner, times and inode: the old files themselves."""
    require("immutable-files")
    (street.top / "a.md").chmod(0o640)
    make_old(street.top)
    third = street.top / "c" / "c.md"
    street.stage({"a.md": b"new a\n", "b.md": b"new b\n", "c/c.md": b"new c\n"})
    inodes = [(street.top / name).stat().st_ino for name in THREE]
    subprocess.run(["chattr", "+i", third], check=True)
    try:
        with refused(street, "Operation not permitted"):
            street.promote()
    finally:
        subprocess.run(["chattr", "-i", third], check=True)

    assert inodes == [(street.top / name).stat().st_ino for name in THREE]


@pytest.mark.case("S58", "S59")
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_rename_when_the_nth_fails_then_all_are_the_old_files_again(
    street: Street, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """Also of the journal's own rename, which is the first; new files go again."""
    street.stage({"a.md": b"new a\n", "d/n.md": b"new\n", "c/c.md": b"new c\n"})
    prepared = street.prepare()
    real, left = os.replace, [nth]

    def fail_nth(*names: object, **options: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(5, "Input/output error")
        real(*names, **options)

    monkeypatch.setattr(os, "replace", fail_nth)
    with pytest.raises(PromotionFailed) as caught:
        prepared.commit()
    monkeypatch.undo()

    assert caught.value.message == "promotion failed: Input/output error"
    assert {n: (street.top / n).read_bytes() for n in THREE} == {
        n: FILES[n] for n in THREE
    }
    assert not (street.top / "d").exists()
    assert not list(street.top.rglob(".wsguard-*"))
    assert (street.previous(), os.listdir(street.state.journal)) == ({}, [])


@pytest.mark.case("S55")
def test_destination_when_it_is_a_mount_point_then_is_refused_with_that_word(
    street: Street, tmp_path: Path
) -> None:
    """No rename goes onto a mount, and nothing is written in place instead."""
    if sys.platform != "linux" or not is_root():
        pytest.skip("needs to mount")
    source = put(tmp_path, "mounted", b"old a\n")
    if subprocess.run(
        ["mount", "--bind", source, street.top / "a.md"], check=False
    ).returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        street.stage({"a.md": b"new a\n", "b.md": b"new b\n"})
        with street.untouched(), pytest.raises(PromotionFailed) as caught:
            street.promote()
    finally:
        subprocess.run(["umount", street.top / "a.md"], check=True)

    assert "Device or resource busy" in caught.value.message
    assert source.read_bytes() == b"old a\n"


# --- Folders that are made ------------------------------------------------------------


def test_folders_when_one_cannot_be_made_then_those_above_it_go_again(
    street: Street,
) -> None:
    """Missing folders are made for a promotion, and removed where it fails."""
    deep = f"a.md=d/e/{'x' * 300}/n.md"
    street.stage({"b.md": b"new b\n", deep: b"new\n"})

    with refused(street, "File name too long"):
        street.promote()


def test_folders_when_a_later_target_fails_then_they_go_again(street: Street) -> None:
    """All or none holds for folders as well."""
    street.stage({"d/e/n.md": b"new\n", "b.md": b"new b\n"})
    _other_content(street.staged.path / "b.md")

    with refused(street, "changed after it was judged"):
        street.promote()


def test_folders_when_somebody_uses_them_meanwhile_then_they_stay(
    street: Street,
) -> None:
    """A folder that we have made is somebody else's once they put something there."""
    street.stage({"d/n.md": b"new\n", "b.md": b"new b\n"})
    prepared = street.prepare()
    put(street.top, "d/mine", b"mine\n")
    _edited_in_place(street.top / "b.md")

    with pytest.raises(DestinationMoved):
        prepared.commit()

    assert os.listdir(street.top / "d") == ["mine"]


def test_folder_when_it_turned_into_a_link_then_nothing_goes_through_it(
    street: Street, tmp_path: Path
) -> None:
    """A destination's folder is reached through no link, also at the end."""
    (tmp_path / "outside").mkdir()
    put(tmp_path, "outside/c.md", b"old c\n")
    street.stage({"c/c.md": b"new c\n"})
    (street.top / "c").rename(street.top / "real")
    (street.top / "c").symlink_to(tmp_path / "outside")

    with pytest.raises(PromotionFailed):
        street.promote()

    found = {path.name: path.read_bytes() for path in (tmp_path / "outside").iterdir()}
    assert found == {"c.md": b"old c\n"}


# --- The state folder -----------------------------------------------------------------


def test_state_when_the_old_content_has_no_place_then_none_is_promoted(
    street: Street,
) -> None:
    """A state folder that fails at the end ends the promotion and not the guard."""
    street.stage({"a.md": b"new a\n"})
    previous = street.state.run(RUN_ID).previous
    previous.write_bytes(b"in the way")
    before = street.parent()

    with pytest.raises(PromotionFailed) as caught:
        street.promote()

    assert f"state folder {previous}: File exists" in caught.value.message
    assert changes(before, street.parent()) == {}


def test_journal_when_it_cannot_be_written_then_none_is_promoted(
    street: Street,
) -> None:
    """Several files are never replaced without a journal that can be finished."""
    street.stage({"a.md": b"new a\n", "b.md": b"new b\n", "d/n.md": b"new\n"})
    prepared = street.prepare()
    street.state.journal.rmdir()

    with pytest.raises(PromotionFailed):
        prepared.commit()

    assert {n: (street.top / n).read_bytes() for n in THREE} == {
        n: FILES[n] for n in THREE
    }
    assert sorted(os.listdir(street.top)) == [
        "a.md",
        "b.md",
        "c",
        "tasks",
        "template.md",
    ]
    assert street.previous() == {}


# --- When undoing fails as well -------------------------------------------------------


def _fail_from(monkeypatch: pytest.MonkeyPatch, name: str, after: int) -> None:
    """Let each call of an `os` function but the first few fail."""
    real, left = getattr(os, name), [after]

    def fail(*names: object, **options: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(5, "Input/output error")
        return real(*names, **options)

    monkeypatch.setattr(os, name, fail)


def test_promotion_when_undoing_it_fails_too_then_says_that_the_run_is_open(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    """45 means "failed and undone"; what is not undone is `recover`'s, and says so.

    The journal and the first file are renamed, then nothing more can be.
    """
    street.stage({"a.md": b"new a\n", "b.md": b"new b\n", "c/c.md": b"new c\n"})
    prepared = street.prepare()
    _fail_from(monkeypatch, "replace", 2)

    with pytest.raises(RunNotClosed) as caught:
        prepared.commit()
    monkeypatch.undo()

    assert "and undoing it failed too" in caught.value.message
    journal = f"{RUN_ID}.promotion.json"
    assert os.listdir(street.state.journal) == [journal]
    recovered = street.recover()
    assert recovered is not None
    found = {name: (street.top / name).read_bytes() for name in THREE}
    assert found == {name: FILES[name] for name in THREE}
    assert recovered.outcome == "undone"
    assert os.listdir(street.state.journal) == []


def test_promotion_when_its_journal_cannot_be_closed_then_says_that_the_run_is_open(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in place is not called failed: `recover` finishes it."""
    street.stage({"a.md": b"new a\n", "b.md": b"new b\n"})
    prepared = street.prepare()
    _fail_from(monkeypatch, "unlink", 0)

    with pytest.raises(RunNotClosed):
        prepared.commit()
    monkeypatch.undo()

    recovered = street.recover()
    assert recovered is not None
    assert recovered.outcome == "finished"
    names = ("a.md", "b.md")
    found = [(street.top / name).read_bytes() for name in names]
    assert found == [b"new a\n", b"new b\n"]


def test_staged_file_when_it_cannot_be_removed_then_says_that_the_run_is_open(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Litter in the workspace is named, and is `recover`'s to remove."""
    street.stage({"a.md": b"new a\n", "b.md": b"new b\n"})
    _other_content(street.staged.path / "b.md")
    _fail_from(monkeypatch, "unlink", 0)

    with pytest.raises(RunNotClosed) as caught:
        street.promote()
    monkeypatch.undo()

    assert "b.md: changed after it was judged" in caught.value.message
    assert {n: (street.top / n).read_bytes() for n in THREE} == {
        n: FILES[n] for n in THREE
    }
