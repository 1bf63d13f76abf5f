"""One name, replaced durably: the order of the calls, and what is left on failure."""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import TYPE_CHECKING

import pytest
from capabilities import require
from hypothesis import given
from hypothesis import strategies as st
from oscalls import Call, each_call

from workspace_guard.files.replace import (
    is_staged_name,
    move_staged,
    remove_staged,
    staged_file,
    staged_name,
    to_json,
    write_file,
)
from workspace_guard.files.tree import Folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """The folder of the test."""
    with Folder.open(tmp_path) as opened:
        yield opened


# --- The names ------------------------------------------------------------------------


def test_staged_name_when_made_twice_then_differs_and_is_its_owners() -> None:
    """Nobody can guess the name, and the owner can tell it."""
    names = {staged_name("run-1") for _ in range(100)}
    assert len(names) == 100
    assert all(is_staged_name(name, "run-1") for name in names)
    assert {name[:15] for name in names} == {b".wsguard-run-1-"}


@pytest.mark.case("S62")
@pytest.mark.parametrize(
    ("maker", "asker", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a-b", "a", False),
        ("a", "a-b", False),
        ("a-0123456789ab", "a", False),
        ("", "", True),
        ("a", "", False),
    ],
)
def test_is_staged_name_when_another_made_it_then_is_not_claimed(
    maker: str, asker: str, expected: bool
) -> None:
    """A run's clean-up never takes the staged file of another for its own."""
    assert expected == is_staged_name(staged_name(maker), asker)


@pytest.mark.parametrize(
    "name",
    [
        b".wsguard-a-.tmp",
        b".wsguard-a-0123456789ab",
        b".wsguard-a-0123456789AB.tmp",
        b".wsguard-a-0123456789ab.tmp.tmp",
        b".wsguard-a-0123456789ab.tmp\n",
        b"x.wsguard-a-0123456789ab.tmp",
        b".wsguard-a.tmp",
        b".wsguard-a-",
        b"",
    ],
)
def test_is_staged_name_when_only_alike_then_is_not_claimed(name: bytes) -> None:
    """A file of the user's that looks alike is not ours to remove."""
    assert not is_staged_name(name, "a")


@given(st.text("ab-0f", max_size=6), st.text("ab-0f", max_size=6))
def test_is_staged_name_when_any_two_owners_then_only_the_maker_is_told(
    maker: str, asker: str
) -> None:
    """No two owners claim one name."""
    assert (maker == asker) == is_staged_name(staged_name(maker), asker)


def test_remove_staged_when_others_are_beside_then_removes_its_own_only(
    tmp_path: Path, folder: Folder
) -> None:
    """What is removed bears our name in every digit, and is no folder."""
    kept = [
        os.fsdecode(staged_name("run-1-b")),
        os.fsdecode(staged_name("run")),
        ".wsguard-run-1-x.tmp",
        "file.md",
    ]
    for name in kept:
        (tmp_path / name).touch()
    planted = staged_name("run-1")
    (tmp_path / os.fsdecode(planted)).mkdir()
    for _ in range(3):
        os.close(folder.create(staged_name("run-1")))
    remove_staged(folder, "run-1")
    assert sorted([*kept, os.fsdecode(planted)]) == sorted(os.listdir(tmp_path))


# --- The order of the calls -----------------------------------------------------------


def test_write_file_when_it_replaces_then_flushes_before_and_after_the_rename(
    tmp_path: Path,
) -> None:
    """The bytes are flushed before the name changes, and the name after it."""
    with Folder.open(tmp_path) as opened:
        labels = {opened.fd or -1: "FOLDER"}
        with each_call(descriptors=labels) as calls:
            write_file(opened, b"file.md", b"new\n", owner="run-1")
    assert calls.lines() == [
        "open staged",
        "write staged",
        "fsync staged",
        "close staged",
        "replace staged file.md",
        "fsync FOLDER",
    ]


def test_staged_file_when_the_block_ends_then_is_flushed_and_closed(
    folder: Folder,
) -> None:
    """Whoever is told that a file is staged may rename it at once."""
    name = staged_name("run-1")
    with each_call() as calls, staged_file(folder, name) as fd:
        os.write(fd, b"new\n")
    assert calls.lines() == [
        "open staged",
        "write staged",
        "fsync staged",
        "close staged",
    ]
    assert folder.names() == [name]


# --- What it does ---------------------------------------------------------------------


def test_write_file_when_there_was_none_then_makes_it(
    tmp_path: Path, folder: Folder
) -> None:
    """The file is there with its bytes, private, and nothing is beside it."""
    write_file(folder, b"file.md", b"new\n", owner="run-1")
    assert os.listdir(tmp_path) == ["file.md"]
    assert (tmp_path / "file.md").read_bytes() == b"new\n"
    assert stat.S_IMODE((tmp_path / "file.md").stat().st_mode) == 0o600


def test_write_file_when_there_was_one_then_never_writes_in_place(
    tmp_path: Path, folder: Folder
) -> None:
    """Whoever has the old file open, or another name of it, keeps the old bytes."""
    require("hard-links")
    (tmp_path / "file.md").write_bytes(b"old\n")
    os.link(tmp_path / "file.md", tmp_path / "second name")
    with (tmp_path / "file.md").open("rb") as reader:
        write_file(folder, b"file.md", b"new\n", owner="run-1")
        assert reader.read() == b"old\n"
    assert (tmp_path / "file.md").read_bytes() == b"new\n"
    assert (tmp_path / "second name").read_bytes() == b"old\n"


@pytest.mark.case("E19")
def test_write_file_when_the_name_is_a_link_then_replaces_the_link(
    tmp_path: Path, folder: Folder
) -> None:
    """What a link points to is not written."""
    require("symlinks")
    (tmp_path / "target").write_bytes(b"precious\n")
    (tmp_path / "file.md").symlink_to("target")
    write_file(folder, b"file.md", b"new\n", owner="run-1")
    assert not (tmp_path / "file.md").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"precious\n"


@pytest.mark.case("E20")
def test_write_file_when_the_name_is_a_folder_then_fails_and_leaves_nothing(
    tmp_path: Path, folder: Folder
) -> None:
    """A folder is not replaced by a file."""
    (tmp_path / "file.md").mkdir()
    with pytest.raises(IsADirectoryError):
        write_file(folder, b"file.md", b"new\n", owner="run-1")
    assert os.listdir(tmp_path) == ["file.md"]


def test_write_file_when_given_a_mode_then_the_umask_holds(
    tmp_path: Path, folder: Folder
) -> None:
    """The mode is what the umask leaves of the one that was asked for."""
    before = os.umask(0o027)
    try:
        write_file(folder, b"file.md", b"new\n", owner="run-1", mode=0o666)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file.md").stat().st_mode) == 0o640


@pytest.mark.case("S52", "S53")
def test_write_file_when_the_file_would_be_too_large_then_the_old_one_stays(
    tmp_path: Path, folder: Folder
) -> None:
    """The kernel cuts a write short and then refuses: nothing half is renamed in."""
    resource = pytest.importorskip("resource")
    (tmp_path / "file.md").write_bytes(b"old\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="large") as caught:
            write_file(folder, b"file.md", b"x" * 4000, owner="run-1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert os.listdir(tmp_path) == ["file.md"]
    assert (tmp_path / "file.md").read_bytes() == b"old\n"


# --- What is left on failure ----------------------------------------------------------


def test_staged_file_when_the_block_raises_then_is_gone(
    tmp_path: Path, folder: Folder
) -> None:
    """Whatever the error, what was staged goes with it."""

    def stage_half() -> None:
        with staged_file(folder, b"staged") as fd:
            os.write(fd, b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stage_half()
    assert os.listdir(tmp_path) == []


def refuse_unlink(call: Call) -> None:
    """Let no name be removed."""
    if call.name == "unlink":
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_staged_file_when_it_cannot_be_removed_then_the_first_error_tells(
    folder: Folder,
) -> None:
    """A failing clean-up is a note on the error that made it necessary."""
    with (
        pytest.raises(RuntimeError, match="the first") as caught,
        each_call(refuse_unlink),
        staged_file(folder, b"staged\xff"),
    ):
        raise RuntimeError("the first")
    assert caught.value.__notes__ == [
        "and staged\\xff could not be removed: [Errno 5] Input/output error"
    ]


def test_move_staged_when_it_cannot_then_removes_it_and_tells_why(
    tmp_path: Path, folder: Folder
) -> None:
    """A staged file that cannot be put in place does not stay."""
    (tmp_path / "file.md").mkdir()
    (tmp_path / "staged").touch()
    with pytest.raises(IsADirectoryError) as caught:
        move_staged(folder, b"staged", b"file.md")
    assert not hasattr(caught.value, "__notes__")
    assert os.listdir(tmp_path) == ["file.md"]


def test_move_staged_when_it_cannot_be_removed_then_the_first_error_tells(
    tmp_path: Path, folder: Folder
) -> None:
    """A failing clean-up does not hide why the rename failed."""
    (tmp_path / "file.md").mkdir()
    (tmp_path / "staged").touch()
    with pytest.raises(IsADirectoryError) as caught, each_call(refuse_unlink):
        move_staged(folder, b"staged", b"file.md")
    assert caught.value.__notes__ == [
        "and staged could not be removed: [Errno 5] Input/output error"
    ]


# --- JSON -----------------------------------------------------------------------------


def test_to_json_when_written_then_is_readable_utf8_with_one_end_of_line() -> None:
    """A document of ours can be read by a person and ends in one newline."""
    spelled = to_json({"path": "纪要.md", "list": [1], "line": "a\nb"})
    assert spelled.decode("utf-8") == (
        '{\n "path": "纪要.md",\n "list": [\n  1\n ],\n "line": "a\\nb"\n}\n'
    )
    assert json.loads(spelled) == {"path": "纪要.md", "list": [1], "line": "a\nb"}
