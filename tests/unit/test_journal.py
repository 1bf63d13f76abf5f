"""Several files as one: all new or all old, whatever comes between."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from capabilities import require
from groups import (
    JOURNAL,
    OWNER,
    THREE_OLD,
    Spec,
    contents,
    edit,
    fifo_instead,
    folder_instead,
    link_instead,
    look,
    staged,
    swap_by_rename,
)
from listing import changes, tree_state
from oscalls import Call, each_call, meddle

from workspace_guard.files.journal import (
    Moved,
    Recovered,
)
from workspace_guard.files.keep import copy_as_is
from workspace_guard.files.relpath import RelPath
from workspace_guard.files.replace import staged_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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


# --- Putting in place -----------------------------------------------------------------


@pytest.mark.case("S58")
def test_commit_when_nothing_fails_then_all_are_new_and_the_old_is_kept(
    three: Staged,
) -> None:
    """Each destination holds its new bytes, nothing of ours is beside them."""
    three.commit()
    assert contents(three.workspace) == ALL_NEW
    assert three.state() == "new"
    assert three.litter() == []


def test_commit_when_there_are_many_then_the_journal_decides_before_the_first_rename(
    three: Staged,
) -> None:
    """First what was kept is durable, then the journal, then come the renames."""
    with each_call(descriptors=three.labels) as calls:
        three.commit()
    assert calls.lines("fsync", "replace", "unlink", "link") == [
        "fsync KEPT",
        "fsync staged",
        f"replace staged {JOURNAL}",
        "fsync JOURNAL",
        "replace staged a.md",
        "replace staged b.md",
        "replace staged c.md",
        "fsync .",
        "fsync made",
        f"unlink {JOURNAL}",
        "fsync JOURNAL",
    ]


def test_commit_when_there_is_one_then_writes_no_journal(tmp_path: Path) -> None:
    """One rename is all or nothing by itself."""
    with staged(tmp_path, {"a.md": (b"old a\n", b"new a\n")}) as one:
        with each_call(descriptors=one.labels) as calls:
            one.commit()
        assert calls.lines("fsync", "replace", "link") == [
            "fsync KEPT",
            "replace staged a.md",
            "fsync .",
        ]
        assert one.state() == "new"


@pytest.mark.case("E62", "E4")
@pytest.mark.parametrize(
    "somebody",
    [
        edit,
        swap_by_rename,
        link_instead,
        folder_instead,
        fifo_instead,
        lambda path: path.unlink(),
    ],
)
def test_commit_when_a_destination_has_changed_then_replaces_nothing(
    three: Staged, somebody: Callable[[Path], None]
) -> None:
    """What somebody did meanwhile stays, and every other destination with it."""
    somebody(three.workspace / "a.md")
    with pytest.raises(Moved) as caught:
        three.commit()
    assert caught.value.filename == "a.md"
    assert not hasattr(caught.value, "__notes__")
    there = look(three.workspace)
    assert three.before.keys() - {b"a.md"} <= there.keys()
    assert there.keys() <= {*three.before.keys(), b"moved"}
    assert there.get(b"a.md") != three.before[b"a.md"]
    assert three.litter() == []
    assert three.kept.names() == []


def test_commit_when_edited_in_place_then_the_link_count_is_right_again(
    three: Staged,
) -> None:
    """A kept second name of a file that somebody has edited goes all the same."""
    edit(three.workspace / "a.md")
    with pytest.raises(Moved):
        three.commit()
    assert (three.workspace / "a.md").stat().st_nlink == 1


def test_commit_when_a_new_name_is_taken_then_leaves_that_file(three: Staged) -> None:
    """A file that came to be where there was none is not replaced."""
    (three.workspace / "made" / "c.md").write_bytes(b"mine\n")
    with pytest.raises(Moved):
        three.commit()
    assert contents(three.workspace) == {"a.md": b"old a\n", "made/c.md": b"mine\n"}
    assert three.litter() == []


@pytest.mark.case("S58", "S59")
def test_commit_when_the_third_fails_then_the_first_two_hold_the_exact_old_bytes(
    tmp_path: Path,
) -> None:
    """Bytes, modes, times, link counts: the old files are back, and nothing else."""
    with staged(tmp_path, THREE_OLD) as group:
        third = group.group.replacements[2]
        lost = group.workspace / "sub" / os.fsdecode(third.staged)
        with (
            meddle("replace staged c.md", lost.unlink),
            pytest.raises(FileNotFoundError) as caught,
        ):
            group.commit()
        assert not hasattr(caught.value, "__notes__")
        assert group.state() == "old"
        assert group.litter() == []


def test_commit_when_undoing_fails_too_then_the_first_error_tells_and_recover_ends_it(
    three: Staged,
) -> None:
    """The journal stays open, the error says so, and recovery finishes the work."""

    def before(call: Call) -> None:
        if str(call) == "replace staged c.md":
            raise OSError(errno.ENOSPC, "the first")
        if call.name == "unlink":
            raise OSError(errno.EIO, "the second")

    with pytest.raises(OSError, match="the first") as caught, each_call(before):
        three.commit()
    assert caught.value.__notes__ == ["and undoing it failed too: [Errno 5] the second"]
    assert three.journal.names() == [JOURNAL.encode()]
    assert three.recover() == Recovered(outcome="finished", destinations=DESTINATIONS)
    assert three.state() == "new"


def test_commit_when_only_the_journal_cannot_be_closed_then_says_that_all_is_new(
    three: Staged,
) -> None:
    """Files that are in place are not taken back for the sake of the journal."""

    def before(call: Call) -> None:
        if str(call) == f"unlink {JOURNAL}":
            raise OSError(errno.EIO, "cannot")

    with pytest.raises(OSError, match="cannot") as caught, each_call(before):
        three.commit()
    assert caught.value.__notes__ == [
        "every file is in place, but its journal is still open"
    ]
    assert three.state() == "new"
    assert three.recover() == Recovered(outcome="finished", destinations=DESTINATIONS)


# --- Taking back ----------------------------------------------------------------------


def test_rollback_when_nothing_was_put_in_place_then_leaves_no_trace(
    three: Staged,
) -> None:
    """Staged files, kept names and made folders go."""
    three.rollback()
    assert three.state() == "old"
    assert three.litter() == []


@pytest.mark.case("S59")
def test_rollback_when_all_were_put_in_place_then_they_are_the_old_files_again(
    three: Staged,
) -> None:
    """The same inode is back, with its times and one name."""
    inode = (three.workspace / "a.md").stat().st_ino
    three.commit()
    three.rollback()
    assert three.state() == "old"
    assert (three.workspace / "a.md").stat().st_ino == inode
    assert (three.workspace / "a.md").stat().st_nlink == 1


def test_rollback_when_done_twice_then_does_nothing_more(three: Staged) -> None:
    """Taking back what is taken back changes nothing."""
    three.commit()
    three.rollback()
    three.rollback()
    assert three.state() == "old"


def test_rollback_when_the_old_file_had_another_name_then_both_are_one_again(
    tmp_path: Path,
) -> None:
    """Hard links that the user had stay hard links."""

    def prepare(workspace: Path) -> None:
        os.link(workspace / "a.md", workspace / "again.md")

    require("hard-links")
    with staged(tmp_path, prepare=prepare) as group:
        group.cut_after(1)
        assert (group.workspace / "again.md").read_bytes() == b"old a\n"
        group.rollback()
        assert group.state() == "old"
        assert (group.workspace / "a.md").stat().st_nlink == 2


def test_rollback_when_a_copy_was_kept_then_it_returns_with_all_its_attributes(
    tmp_path: Path,
) -> None:
    """Mode, times and attributes of the old file are those of the copy."""

    def prepare(workspace: Path) -> None:
        os.setxattr(workspace / "a.md", "user.origin", b"export")
        (workspace / "a.md").chmod(0o664)

    require("xattr")
    with staged(tmp_path, prepare=prepare, keep=copy_as_is) as group:
        assert (group.workspace / "a.md").stat().st_nlink == 1
        group.commit()
        group.rollback()
        assert group.state() == "old"


def test_rollback_when_old_and_new_are_equal_then_the_old_file_is_back(
    tmp_path: Path,
) -> None:
    """Equal bytes do not make the new file the old one: its times count too."""
    spec: Spec = {"a.md": (b"same\n", b"same\n"), "b.md": (b"old b\n", b"new b\n")}
    with staged(tmp_path, spec) as group:
        group.commit()
        group.rollback()
        assert group.state() == "old"


def test_rollback_when_equal_and_never_put_in_place_then_is_not_touched(
    tmp_path: Path,
) -> None:
    """A file that was not replaced is not put back either, be it kept as a copy."""
    spec: Spec = {"a.md": (b"same\n", b"same\n")}
    with staged(tmp_path, spec, keep=copy_as_is) as group:
        inode = (group.workspace / "a.md").stat().st_ino
        group.rollback()
        assert group.state() == "old"
        assert (group.workspace / "a.md").stat().st_ino == inode


def test_rollback_when_somebody_edited_a_new_file_then_it_stays_and_so_does_the_old(
    three: Staged,
) -> None:
    """An edit is left alone, and the last copy of what stood there before is kept."""
    three.commit()
    edit(three.workspace / "a.md")
    three.rollback()
    assert contents(three.workspace) == {"a.md": b"mine\n"}
    assert three.kept.names() == [b"0"]


def test_rollback_when_a_made_folder_holds_more_then_it_stays(three: Staged) -> None:
    """What somebody put into a folder of ours is not removed with it."""
    three.commit()
    (three.workspace / "made" / "mine.md").write_bytes(b"mine\n")
    three.rollback()
    assert contents(three.workspace) == {"a.md": b"old a\n", "made/mine.md": b"mine\n"}


def test_rollback_when_a_made_folder_is_gone_then_goes_on(three: Staged) -> None:
    """What somebody removed need not be removed."""
    three.commit()
    (three.workspace / "made" / "c.md").unlink()
    (three.workspace / "made").rmdir()
    three.rollback()
    assert three.state() == "old"


def test_rollback_when_a_made_folder_is_a_link_by_now_then_is_not_followed(
    three: Staged, outside: Path
) -> None:
    """A link in the place of a folder of ours leads to nothing that is ours."""
    require("symlinks")
    three.commit()
    (three.workspace / "made").rename(three.workspace / "moved")
    (three.workspace / "made").symlink_to(outside)
    three.rollback()
    assert (three.workspace / "a.md").read_bytes() == b"old a\n"
    assert (three.workspace / "made").is_symlink()


@pytest.mark.case("S62")
def test_rollback_when_another_run_stages_beside_then_its_file_stays(
    three: Staged,
) -> None:
    """The clean-up after a failure removes what is its own and nothing else."""
    other = three.workspace / os.fsdecode(staged_name(f"{OWNER}-b"))
    other.touch()
    three.rollback()
    assert other.exists()


def test_rollback_when_one_cannot_be_put_back_then_the_others_are(
    tmp_path: Path,
) -> None:
    """Each is tried; the first failure is told; what was kept stays for next time."""

    def before(call: Call) -> None:
        if str(call) == "replace staged a.md":
            raise OSError(errno.EIO, "cannot")

    with staged(tmp_path, THREE_OLD) as group:
        group.commit()
        with pytest.raises(OSError, match="cannot"), each_call(before):
            group.rollback()
        assert contents(group.workspace) == {
            "a.md": b"new a\n",
            "sub/b.md": b"old b\n",
            "sub/c.md": b"old c\n",
        }
        assert sorted(group.kept.names()) == [b"0", b"1", b"2"]
        assert group.litter() == []
        group.rollback()
        assert group.state() == "old"


def test_rollback_when_a_made_folder_cannot_be_removed_then_says_so(
    three: Staged,
) -> None:
    """Only that a folder holds something is no failure."""

    def before(call: Call) -> None:
        if call.name == "rmdir":
            raise OSError(errno.EIO, "cannot")

    with pytest.raises(OSError, match="cannot"), each_call(before):
        three.rollback()
    three.rollback()
    assert three.state() == "old"


# --- A mount point --------------------------------------------------------------------


def run_in_namespace(script: str, *arguments: Path) -> str:
    """Run Python in a mount namespace of its own and return what it prints."""
    done = subprocess.run(
        [
            *("unshare", "--user", "--map-root-user", "--mount"),
            *(sys.executable, "-c", script, *arguments),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


@pytest.mark.slow
@pytest.mark.case("S55")
def test_commit_when_a_destination_is_a_mount_point_then_all_are_old(
    tmp_path: Path,
) -> None:
    """A rename onto a mounted file is refused, and the file is not written in place."""
    require("user-namespaces")
    mounted = tmp_path / "mounted"
    mounted.write_bytes(b"old c\n")
    script = (
        "import errno, pathlib, subprocess, sys\n"
        "from groups import THREE_OLD, contents, staged\n"
        "with staged(pathlib.Path(sys.argv[1]), THREE_OLD) as group:\n"
        "    third = group.workspace / 'sub' / 'c.md'\n"
        "    subprocess.run(['mount', '--bind', sys.argv[2], third], check=True)\n"
        "    try:\n"
        "        group.commit()\n"
        "    except OSError as error:\n"
        "        print(errno.errorcode[error.errno], group.litter())\n"
        "    print(contents(group.workspace))\n"
        "    subprocess.run(['umount', third], check=True)\n"
        "    print(group.state())\n"
    )
    done = run_in_namespace(script, tmp_path, mounted)
    assert done == (
        "EBUSY []\n"
        "{'a.md': b'old a\\n', 'sub/b.md': b'old b\\n', 'sub/c.md': b'old c\\n'}\n"
        "old\n"
    )
