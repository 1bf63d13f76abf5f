"""What was read is what was there at one moment, or it is said that it was not."""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING

import pytest
from capabilities import require
from oscalls import Call, each_call, meddle

from workspace_guard.files.digest import (
    Digest,
    Unstable,
    copy_regular,
    hash_regular,
    identity,
    read_stably,
)
from workspace_guard.files.tree import CHUNK_BYTES, Folder, NotRegular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ENDLESS = 1000
"""More calls than any body here makes that ends."""
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """The folder of the test."""
    with Folder.open(tmp_path) as opened:
        yield opened


@contextlib.contextmanager
def copy_to(tmp_path: Path, already: bytes = b"") -> Iterator[int]:
    """A descriptor to copy to, on the file `copy`."""
    fd = os.open(tmp_path / "copy", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.write(fd, already)
        yield fd
    finally:
        os.close(fd)


# --- What holds still -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", Digest(sha256=EMPTY, size_bytes=0)),
        (b"abc", Digest(sha256=ABC, size_bytes=3)),
    ],
)
def test_hash_when_a_file_holds_still_then_is_its_sha256_and_size(
    tmp_path: Path, folder: Folder, content: bytes, expected: Digest
) -> None:
    """The digest is that of the whole file."""
    (tmp_path / "file").write_bytes(content)
    assert expected == hash_regular(folder, b"file")


@pytest.mark.parametrize("size", [CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 1])
def test_copy_when_larger_than_a_chunk_then_is_whole(
    tmp_path: Path, folder: Folder, size: int
) -> None:
    """Chunks are put together without loss at their borders."""
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(content)
    with copy_to(tmp_path) as fd:
        digest = copy_regular(folder, b"file", fd)
    assert (tmp_path / "copy").read_bytes() == content
    assert digest == hash_regular(folder, b"copy")
    assert digest.size_bytes == size
    assert digest.sha256 == hashlib.sha256(content).hexdigest()


@pytest.mark.case("S52")
def test_copy_when_reads_and_writes_are_short_then_is_whole(
    tmp_path: Path, folder: Folder
) -> None:
    """A short read is not the end, and a short write is not success."""
    content = os.urandom(100)
    (tmp_path / "file").write_bytes(content)
    with copy_to(tmp_path) as fd, each_call(at_most=7):
        digest = copy_regular(folder, b"file", fd)
    assert (tmp_path / "copy").read_bytes() == content
    assert digest.size_bytes == 100


def test_copy_when_something_is_there_already_then_replaces_it(
    tmp_path: Path, folder: Folder
) -> None:
    """What the destination held before does not stay behind the copy."""
    (tmp_path / "file").write_bytes(b"abc")
    with copy_to(tmp_path, b"longer than that") as fd:
        digest = copy_regular(folder, b"file", fd)
    assert (tmp_path / "copy").read_bytes() == b"abc"
    assert digest == Digest(sha256=ABC, size_bytes=3)


def test_read_when_the_position_was_moved_then_starts_at_the_start(
    tmp_path: Path,
) -> None:
    """An open file is read as a whole, wherever its position was."""
    (tmp_path / "file").write_bytes(b"abc")
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        os.lseek(fd, 2, os.SEEK_SET)
        assert read_stably(fd, None, b"file").sha256 == ABC
    finally:
        os.close(fd)


# --- What moves -----------------------------------------------------------------------


def write_now(tmp_path: Path) -> None:
    """Other bytes, as many as before."""
    (tmp_path / "file").write_bytes(b"xyz")


def append_now(tmp_path: Path) -> None:
    """More bytes."""
    with (tmp_path / "file").open("ab") as file:
        file.write(b"d")


def truncate_now(tmp_path: Path) -> None:
    """Fewer bytes."""
    os.truncate(tmp_path / "file", 1)


def chmod_now(tmp_path: Path) -> None:
    """The same bytes; but the time of change is all that a reader has to go by."""
    (tmp_path / "file").chmod(0o640)


def time_back_now(tmp_path: Path) -> None:
    """Other bytes, and the old time put back."""
    found = (tmp_path / "file").stat()
    (tmp_path / "file").write_bytes(b"xyz")
    os.utime(tmp_path / "file", ns=(found.st_atime_ns, found.st_mtime_ns))


def until_the_clock_ticks(tmp_path: Path) -> None:
    """Wait until a change gets another time than one before got."""
    probe = tmp_path / "probe"
    probe.touch()
    first = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == first:
        probe.chmod(0o600)


EDITS = (write_now, append_now, truncate_now, chmod_now, time_back_now)
by_edit = pytest.mark.parametrize("edit", EDITS)


@pytest.mark.case("S11")
@by_edit
def test_hash_when_a_file_moves_once_then_is_read_again(
    tmp_path: Path, folder: Folder, edit: Callable[[Path], None]
) -> None:
    """One edit during the read costs one attempt; the digest is that of the end."""
    (tmp_path / "file").write_bytes(b"abc")

    def edit_later() -> None:
        until_the_clock_ticks(tmp_path)
        edit(tmp_path)

    with meddle("read file", edit_later, later=1):
        digest = hash_regular(folder, b"file")
    now = (tmp_path / "file").read_bytes()
    assert digest == Digest(sha256=hashlib.sha256(now).hexdigest(), size_bytes=len(now))


@pytest.mark.case("S11")
@by_edit
def test_hash_when_a_file_moves_each_time_then_is_unstable(
    tmp_path: Path, folder: Folder, edit: Callable[[Path], None]
) -> None:
    """A file that will not hold still has no digest, and is named."""
    (tmp_path / "file").write_bytes(b"abc")

    def before(call: Call) -> None:
        assert call.number < ENDLESS
        if call.name == "read":
            until_the_clock_ticks(tmp_path)
            edit(tmp_path)

    with each_call(before) as calls, pytest.raises(Unstable) as caught:
        hash_regular(folder, b"file")
    assert os.fspath(tmp_path / "file") == caught.value.filename
    assert len(calls.lines("lseek")) == 3


@pytest.mark.case("S11")
def test_copy_when_a_file_moves_once_then_holds_no_bytes_of_before(
    tmp_path: Path, folder: Folder
) -> None:
    """A second attempt starts the copy anew."""
    (tmp_path / "file").write_bytes(b"a long text that goes\n")
    with (
        copy_to(tmp_path) as fd,
        meddle("read file", lambda: write_now(tmp_path), later=2),
    ):
        digest = copy_regular(folder, b"file", fd)
    assert (tmp_path / "copy").read_bytes() == b"xyz"
    assert digest.size_bytes == 3


def test_copy_when_a_file_grows_as_fast_as_it_is_read_then_is_bounded(
    tmp_path: Path, folder: Folder
) -> None:
    """A growing file ends the attempt, not the disk: one byte more than it had."""
    (tmp_path / "file").write_bytes(b"abc")
    moved = 0

    def before(call: Call) -> None:
        nonlocal moved
        assert call.number < ENDLESS
        if call.name == "read":
            append_now(tmp_path)
        moved += call.name == "write"

    with (
        copy_to(tmp_path) as fd,
        each_call(before, at_most=1),
        pytest.raises(Unstable),
    ):
        copy_regular(folder, b"file", fd)
    # Each read added a byte: 4 of 3 + 1, then 8 of 7 + 1, then 16 of 15 + 1.
    assert moved == 4 + 8 + 16


def test_hash_when_the_size_is_a_lie_then_is_unstable() -> None:
    """A file of /proc says that it is empty, and is not."""
    require("procfs")
    with Folder.open("/proc") as folder, pytest.raises(Unstable):
        hash_regular(folder, b"version")


def test_identity_when_a_file_is_replaced_by_its_twin_then_differs(
    tmp_path: Path,
) -> None:
    """Equal bytes, size and time do not make another file the same one."""
    for name in ("file", "twin"):
        (tmp_path / name).write_bytes(b"abc")
        os.utime(tmp_path / name, ns=(1, 1))
    before = identity(os.stat(tmp_path / "file"))
    assert before == identity(os.stat(tmp_path / "file"))
    os.replace(tmp_path / "twin", tmp_path / "file")
    assert before != identity(os.stat(tmp_path / "file"))


@by_edit
def test_identity_when_a_file_is_edited_then_differs(
    tmp_path: Path, edit: Callable[[Path], None]
) -> None:
    """Each edit leaves its mark, the time of change if nothing else."""
    (tmp_path / "file").write_bytes(b"abc")
    os.utime(tmp_path / "file", ns=(1, 1))
    before = identity(os.stat(tmp_path / "file"))
    until_the_clock_ticks(tmp_path)
    edit(tmp_path)
    assert before != identity(os.stat(tmp_path / "file"))


# --- What is not read -----------------------------------------------------------------


@pytest.mark.case("S13", "E16", "E4")
@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "folder"])
def test_hash_when_no_regular_file_then_is_refused(
    tmp_path: Path, folder: Folder, kind: str
) -> None:
    """Neither a link's target nor a FIFO is read, for a digest or for a copy."""
    odd = tmp_path / "odd"
    (tmp_path / "file").write_bytes(b"abc")
    if kind == "fifo":
        require("fifo")
        os.mkfifo(odd)
    elif kind == "folder":
        odd.mkdir()
    else:
        require("symlinks")
        odd.symlink_to("file" if kind == "link" else "nothing")
    with pytest.raises(NotRegular):
        hash_regular(folder, b"odd")
    with copy_to(tmp_path, b"as it was") as fd, pytest.raises(NotRegular):
        copy_regular(folder, b"odd", fd)
    assert (tmp_path / "copy").read_bytes() == b"as it was"


def test_hash_when_missing_then_says_so(folder: Folder) -> None:
    """What is not there is another error than what cannot be read."""
    with pytest.raises(FileNotFoundError):
        hash_regular(folder, b"nothing")
