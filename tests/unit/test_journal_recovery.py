"""After a crash: what is open is finished or undone, and edits are left alone."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from capabilities import require
from groups import (
    JOURNAL,
    OWNER,
    Spec,
    contents,
    edit,
    folder_instead,
    staged,
    staged_path,
    swap_by_rename,
)
from listing import changes, tree_state
from oscalls import Call, each_call

from workspace_guard.errors import JournalDamaged
from workspace_guard.files.journal import (
    Recovered,
    read_sealed,
    recover,
    write_sealed,
)
from workspace_guard.files.relpath import RelPath
from workspace_guard.files.replace import staged_name
from workspace_guard.files.tree import Folder, NotRegular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from groups import Staged

ALL_NEW = {"a.md": b"new a\n", "b.md": b"new b\n", "made/c.md": b"new c\n"}
DESTINATIONS = tuple(RelPath.parse(name, "posix") for name in ALL_NEW)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Staged]:
    """Three staged files: one replaces, one is new, one is new in a new folder."""
    with staged(tmp_path) as group:
        yield group


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder with a file of each destination's name, which nothing may touch."""
    folder = tmp_path / "outside"
    folder.mkdir()
    for name, content in (("c.md", b"new c\n"), ("a.md", b"precious\n")):
        (folder / name).write_bytes(content)
    before = tree_state(folder)
    yield folder
    assert changes(before, tree_state(folder)) == {}


# --- After a crash --------------------------------------------------------------------


def lose(group: Staged, *numbers: int) -> None:
    """Let the staged files of some replacements be gone, where they still are."""
    for number in numbers:
        staged_path(group, number).unlink(missing_ok=True)


@pytest.mark.case("S58", "E59")
@pytest.mark.parametrize("renamed", [0, 1, 2, 3])
def test_recover_when_every_staged_file_is_there_then_finishes(
    three: Staged, renamed: int
) -> None:
    """Once the journal stands, the promotion is decided."""
    three.cut_after(renamed)
    assert three.recover() == Recovered(outcome="finished", destinations=DESTINATIONS)
    assert three.state() == "new"
    assert three.litter() == []


@pytest.mark.case("S58", "S59")
@pytest.mark.parametrize(
    ("renamed", "lost"),
    [(0, (0, 1, 2)), (0, (0,)), (0, (2,)), (1, (1,)), (1, (1, 2)), (2, (2,))],
)
def test_recover_when_a_staged_file_is_lost_then_undoes(
    three: Staged, renamed: int, lost: tuple[int, ...]
) -> None:
    """Where not all can be new, all are old again, by what was kept."""
    three.cut_after(renamed)
    lose(three, *lost)
    assert three.recover() == Recovered(outcome="undone", destinations=DESTINATIONS)
    assert three.state() == "old"
    assert three.litter() == []


def test_recover_when_a_staged_file_is_not_whole_then_undoes(three: Staged) -> None:
    """A staged file whose bytes are not those of the journal is not put in place."""
    three.cut_after(1)
    staged_path(three, 2).write_bytes(b"new")
    assert three.recover() == Recovered(outcome="undone", destinations=DESTINATIONS)
    assert three.state() == "old"


@pytest.mark.case("S39", "E62")
@pytest.mark.parametrize("renamed", [0, 1, 2, 3])
@pytest.mark.parametrize("lost", [(), (2,)])
@pytest.mark.parametrize("somebody", [edit, swap_by_rename, folder_instead])
def test_recover_when_somebody_has_edited_then_changes_nothing(
    three: Staged,
    renamed: int,
    lost: tuple[int, ...],
    somebody: Callable[[Path], None],
) -> None:
    """A newer edit is a conflict, whatever the rest: it is named and all is left."""
    three.cut_after(renamed)
    lose(three, *lost)
    somebody(three.workspace / "a.md")
    before = tree_state(three.workspace.parent)
    for _ in range(2):
        assert three.recover() == Recovered(
            outcome="conflict", destinations=(RelPath((b"a.md",)),)
        )
    assert changes(before, tree_state(three.workspace.parent)) == {}


def test_recover_when_the_edit_is_settled_then_finishes(three: Staged) -> None:
    """A conflict is not for ever: with the old bytes there again, it goes on."""
    three.cut_after(0)
    (three.workspace / "a.md").write_bytes(b"mine\n")
    assert (three.recover() or pytest.fail("no journal")).outcome == "conflict"
    (three.workspace / "a.md").write_bytes(b"old a\n")
    assert (three.recover() or pytest.fail("no journal")).outcome == "finished"
    assert contents(three.workspace) == ALL_NEW


@pytest.mark.parametrize("lost", [(), (1,)])
def test_recover_when_done_twice_then_the_second_finds_nothing(
    three: Staged, lost: tuple[int, ...]
) -> None:
    """A closed journal is closed."""
    three.cut_after(1)
    lose(three, *lost)
    three.recover()
    before = tree_state(three.workspace.parent)
    assert three.recover() is None
    assert changes(before, tree_state(three.workspace.parent)) == {}


def test_recover_when_there_is_no_journal_then_finds_nothing(three: Staged) -> None:
    """What was only staged is not recovery's to put in place."""
    assert three.recover() is None
    assert (three.workspace / "a.md").read_bytes() == b"old a\n"


def test_recover_when_cut_off_while_the_journal_was_written_then_that_goes(
    three: Staged,
) -> None:
    """A journal that never appeared decides nothing, and leaves nothing."""
    three.cut_at(f"replace staged {JOURNAL}")
    os.close(three.journal.create(staged_name(OWNER)))
    assert three.recover() is None
    assert three.journal.names() == []


def test_recover_when_undoing_was_cut_off_then_ends_it(three: Staged) -> None:
    """A made folder that is gone already is no conflict."""
    three.cut_after(1)
    lose(three, 1, 2)
    (three.workspace / "made").rmdir()
    assert three.recover() == Recovered(outcome="undone", destinations=DESTINATIONS)
    assert three.state() == "old"


def test_recover_when_undoing_has_staged_a_kept_file_then_it_goes(
    three: Staged,
) -> None:
    """What putting back had staged when it was cut off does not stay beside."""
    three.cut_after(1)
    lose(three, 1)
    three.kept.link(b"0", three.top, staged_name(OWNER))
    three.recover()
    assert three.state() == "old"
    assert three.litter() == []


def test_recover_when_a_folder_is_a_link_by_now_then_is_a_conflict(
    three: Staged, outside: Path
) -> None:
    """Nothing is put through a link, and nothing behind it taken for ours."""
    require("symlinks")
    three.cut_after(2)
    (three.workspace / "made").rename(three.workspace / "moved")
    (three.workspace / "made").symlink_to(outside)
    assert three.recover() == Recovered(
        outcome="conflict", destinations=(RelPath((b"made", b"c.md")),)
    )


def test_recover_when_a_destination_cannot_be_read_then_is_no_conflict(
    three: Staged,
) -> None:
    """A disk that fails is told as that, not as somebody's edit."""

    def before(call: Call) -> None:
        if str(call) == "read a.md":
            raise OSError(errno.EIO, "cannot")

    three.cut_after(1)
    with pytest.raises(OSError, match="cannot"), each_call(before):
        three.recover()
    assert (three.recover() or pytest.fail("no journal")).outcome == "finished"


def test_recover_when_equal_bytes_were_not_yet_renamed_then_leaves_no_staged_file(
    tmp_path: Path,
) -> None:
    """A destination that has its new bytes already needs no rename."""
    spec: Spec = {"a.md": (b"same\n", b"same\n"), "b.md": (b"old b\n", b"new b\n")}
    with staged(tmp_path, spec) as group:
        group.cut_after(0)
        assert (group.recover() or pytest.fail("no journal")).outcome == "finished"
        assert group.state() == "new"
        assert group.litter() == []


@pytest.mark.case("E11")
def test_recover_when_a_destination_is_no_utf8_then_finishes(tmp_path: Path) -> None:
    """The journal holds names exactly."""
    require("undecodable-names")
    spec: Spec = {"bad\udcff": (b"old\n", b"new\n"), "two\nlines": (None, b"new\n")}
    with staged(tmp_path, spec) as group:
        group.cut_after(1)
        assert (group.recover() or pytest.fail("no journal")).outcome == "finished"
        assert group.state() == "new"


# --- The journal itself ---------------------------------------------------------------


@pytest.mark.parametrize("lost", [2, 10, 64, 65, 66, 67, 200])
def test_recover_when_the_journal_is_torn_then_changes_nothing(
    three: Staged, lost: int
) -> None:
    """A journal without its end is not believed."""
    three.cut_after(1)
    path = Path(os.fsdecode(three.journal.path)) / JOURNAL
    os.truncate(path, path.stat().st_size - lost)
    require_refused(three)


def test_recover_when_the_journal_is_empty_then_changes_nothing(three: Staged) -> None:
    """A journal whose bytes never came to the disk is not believed."""
    three.cut_after(1)
    os.truncate(os.path.join(os.fsdecode(three.journal.path), JOURNAL), 0)
    require_refused(three)


@pytest.mark.slow
def test_recover_when_any_byte_of_the_journal_is_changed_then_changes_nothing(
    three: Staged,
) -> None:
    """There is no byte in it that could be another."""
    three.cut_after(1)
    path = Path(os.fsdecode(three.journal.path)) / JOURNAL
    whole = path.read_bytes()
    for place in range(len(whole)):
        edited = bytearray(whole)
        edited[place] ^= 1
        path.write_bytes(edited)
        with pytest.raises(JournalDamaged, match="its checksum does not agree"):
            three.recover()
    require_refused(three)


@pytest.mark.parametrize(
    "document", [{"schema": "workspace-guard/other/1"}, {}, {"schema": None}]
)
def test_recover_when_the_journal_is_of_another_schema_then_changes_nothing(
    three: Staged, document: dict[str, object]
) -> None:
    """What we do not know how to read is not guessed at."""
    three.cut_after(1)
    write_sealed(three.journal, JOURNAL.encode(), document, owner=OWNER)
    require_refused(three)


def require_refused(group: Staged) -> None:
    """Recovery says that the journal is damaged and leaves every byte alone."""
    before = tree_state(group.workspace.parent)
    with pytest.raises(JournalDamaged) as caught:
        group.recover()
    assert OWNER in caught.value.message
    assert caught.value.exit_status == 54
    assert changes(before, tree_state(group.workspace.parent)) == {}


def test_recover_when_the_journal_is_a_link_then_does_not_read_it(
    three: Staged, tmp_path: Path
) -> None:
    """A journal is a file of ours, or it is none."""
    require("symlinks")
    three.cut_after(1)
    path = Path(os.fsdecode(three.journal.path)) / JOURNAL
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotRegular):
        three.recover()
    assert (three.workspace / "b.md").exists() is False


def test_recover_when_another_owner_asks_then_finds_nothing(three: Staged) -> None:
    """A journal belongs to one run."""
    three.cut_after(1)
    assert recover("run", three.top, three.kept, three.journal) is None
    assert three.journal.names() == [JOURNAL.encode()]


def test_sealed_when_read_back_then_is_the_document(tmp_path: Path) -> None:
    """What was sealed comes back, with fields that nobody here knows."""
    document = {"schema": "x/1", "name": "纪要", "list": [1, None, {"a": "b\n"}]}
    with Folder.open(tmp_path) as folder:
        write_sealed(folder, b"file.json", document, owner=OWNER)
        assert read_sealed(folder, b"file.json") == document
        assert folder.names() == [b"file.json"]
        raw = (tmp_path / "file.json").read_bytes()
        body, seal = raw[:-65], raw[-65:].decode().rstrip("\n")
        assert json.loads(body) == document
        assert seal == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("body", [b"[1]\n", b'"text"\n', b"{half\n", b"\xff\n", b"\n"])
def test_sealed_when_it_is_no_json_object_then_is_damaged(
    tmp_path: Path, body: bytes
) -> None:
    """A right checksum under something else does not make it a document."""
    seal = hashlib.sha256(body).hexdigest().encode() + b"\n"
    (tmp_path / "file.json").write_bytes(body + seal)
    with Folder.open(tmp_path) as folder, pytest.raises(JournalDamaged):
        read_sealed(folder, b"file.json")


def test_sealed_when_missing_then_says_so(tmp_path: Path) -> None:
    """No journal is another thing than a damaged one."""
    with Folder.open(tmp_path) as folder, pytest.raises(FileNotFoundError):
        read_sealed(folder, b"file.json")
