"""Folders as handles: nothing is followed, nothing blocks, nothing outside is hit."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest
from capabilities import require
from euid import ordinary_user
from listing import changes, tree_state
from oscalls import each_call, meddle

from workspace_guard.files import tree
from workspace_guard.files.relpath import RelPath
from workspace_guard.files.tree import (
    Folder,
    NotRegular,
    remove_entry,
    walk,
    write_all,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DEADLINE_S = 20.0
DEEPER_THAN_PYTHON = 1200


def path(text: str) -> RelPath:
    """A path below a root."""
    return RelPath.parse(text, "posix")


def by_descriptor(where: Path) -> Folder:
    """Open a folder as every platform but Windows does."""
    return Folder.open(where)


def by_path(where: Path) -> Folder:
    """Open a folder as on Windows, where no descriptor names one."""
    return Folder(os.fsencode(where), None)


@pytest.fixture(params=[by_descriptor, by_path])
def opener(request: pytest.FixtureRequest) -> Callable[[Path], Folder]:
    """Run the test once with each way to open a folder."""
    way: Callable[[Path], Folder] = request.param
    return way


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder that nothing may touch; the test fails where something did."""
    folder = tmp_path / "outside"
    (folder / "inner").mkdir(parents=True)
    (folder / "precious.md").write_bytes(b"precious\n")
    (folder / "inner" / "more.md").write_bytes(b"more\n")
    (folder / "closed").mkdir(mode=0o500)
    before = tree_state(folder)
    yield folder
    assert changes(before, tree_state(folder)) == {}


@pytest.fixture
def top(tmp_path: Path, outside: Path) -> Path:
    """A folder with a link to `outside` wherever one can stand."""
    require("symlinks")
    folder = tmp_path / "top"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file.md").write_bytes(b"file\n")
    (folder / "to-folder").symlink_to(outside)
    (folder / "a" / "to-folder").symlink_to(outside)
    (folder / "to-file").symlink_to(outside / "precious.md")
    (folder / "dangling").symlink_to(outside / "nothing")
    (folder / "loop").symlink_to(".")
    return folder


# --- Opening folders ------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["to-folder", "to-folder/", "to-folder//", "loop"])
def test_open_when_the_last_part_is_a_link_then_refuses(
    top: Path, spelling: str
) -> None:
    """A folder is never opened through a link in its last part, however it is spelt."""
    with pytest.raises(NotADirectoryError) as caught:
        Folder.open(f"{top}/{spelling}")
    assert os.fsencode(caught.value.filename).startswith(os.fsencode(top))


def test_open_when_a_part_above_is_a_link_then_follows(top: Path) -> None:
    """Where the root lies is the caller's word; links above it are theirs."""
    with Folder.open(top / "to-folder" / "inner") as folder:
        assert folder.names() == [b"more.md"]


def test_open_when_given_the_root_of_the_file_system_then_opens_it() -> None:
    """Slashes that are dropped behind a name are not the whole name."""
    with Folder.open("/") as folder:
        assert os.path.samestat(folder.own_stat(), os.stat("/"))


@pytest.mark.case("E4")
@pytest.mark.parametrize(
    "where",
    [
        "to-folder",
        "to-folder/inner",
        "a/to-folder",
        "a/to-folder/inner",
        "loop",
        "loop/a",
        "to-file",
        "a/b/file.md",
        "a/b/file.md/x",
    ],
)
def test_reach_when_a_part_is_a_link_or_a_file_then_refuses(
    top: Path, opener: Callable[[Path], Folder], where: str
) -> None:
    """No part of a path is gone through unless it is a real folder."""
    with opener(top) as folder, pytest.raises(NotADirectoryError):
        folder.reach(path(where))


def test_reach_when_all_parts_are_folders_then_opens_the_last(
    top: Path, opener: Callable[[Path], Folder]
) -> None:
    """What is reached is the folder at the path, by a handle of its own."""
    with opener(top) as folder:
        with folder.reach(path("a/b")) as inner:
            assert inner.names() == [b"file.md"]
            assert inner.path == os.fsencode(top / "a" / "b")
        with folder.reach(path(".")) as same:
            assert same is not folder
            assert os.path.samestat(same.own_stat(), os.stat(top))
        assert folder.lookup(b"a") is not None


def test_reach_when_a_part_is_missing_then_says_so(
    top: Path, opener: Callable[[Path], Folder]
) -> None:
    """A folder that is not there is another error than one that is no folder."""
    with opener(top) as folder, pytest.raises(FileNotFoundError):
        folder.reach(path("a/nothing/c"))


def test_enter_when_a_junction_then_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows' other way to link a folder is no folder, on every Python."""

    class Junction:
        st_mode = stat.S_IFDIR | 0o777
        st_reparse_tag = 0xA0000003

    with by_path(tmp_path) as folder:
        monkeypatch.setattr(os, "lstat", lambda _path: Junction)
        with pytest.raises(NotADirectoryError):
            folder.enter(b"junction")
        monkeypatch.undo()


def test_folder_when_swapped_after_it_was_opened_then_is_still_the_first(
    tmp_path: Path,
) -> None:
    """A handle names the folder that was opened, whatever its name is by now."""
    (tmp_path / "sub").mkdir()
    with Folder.open(tmp_path) as folder, folder.enter(b"sub") as sub:
        (tmp_path / "sub").rename(tmp_path / "moved")
        (tmp_path / "sub").mkdir()
        os.close(sub.create(b"new"))
    assert os.listdir(tmp_path / "moved") == ["new"]
    assert os.listdir(tmp_path / "sub") == []


def test_close_when_done_twice_then_does_nothing(tmp_path: Path) -> None:
    """A handle is let go of once; another's descriptor of that number is not hit."""
    folder = Folder.open(tmp_path)
    folder.close()
    with Folder.open(tmp_path) as other:
        folder.close()
        assert other.names() == []


# --- Names ----------------------------------------------------------------------------


@pytest.mark.case("E11")
def test_names_when_one_is_no_utf8_then_are_exact_bytes(
    tmp_path: Path, opener: Callable[[Path], Folder]
) -> None:
    """Names are bytes, as the file system has them."""
    require("undecodable-names")
    for name in (b"bad\xff", b"two\nlines", "纪要".encode()):
        os.mkdir(os.path.join(os.fsencode(tmp_path), name))
    with opener(tmp_path) as folder:
        assert sorted(folder.names()) == [b"bad\xff", b"two\nlines", "纪要".encode()]
        assert stat.S_ISDIR(folder.stat(b"bad\xff").st_mode)


def test_lookup_when_there_is_a_link_then_tells_of_the_link(
    top: Path, opener: Callable[[Path], Folder]
) -> None:
    """What is looked at is the name itself, dangling or not."""
    with opener(top) as folder:
        found = {name: folder.lookup(name) for name in (b"to-file", b"dangling")}
        assert folder.lookup(b"nothing") is None
        assert folder.read_link(b"loop") == b"."
    assert all(each and stat.S_ISLNK(each.st_mode) for each in found.values())


# --- Opening files --------------------------------------------------------------------


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Fail a block that waits for something, where it would wait for ever."""

    def too_late(_signum: int, _frame: object) -> None:
        raise AssertionError(f"still waiting after {DEADLINE_S} s")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.case("E4", "E61")
@pytest.mark.parametrize("name", [b"to-file", b"to-folder", b"dangling", b"loop", b"a"])
def test_open_regular_when_a_link_or_folder_then_refuses(
    top: Path, opener: Callable[[Path], Folder], name: bytes
) -> None:
    """Only a regular file is read, and never by way of a link."""
    with opener(top) as folder, pytest.raises(NotRegular) as caught:
        folder.open_regular(name)
    assert os.fsdecode(name) in str(caught.value)


@pytest.mark.case("S13", "E16", "E17")
@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
def test_open_regular_when_a_special_file_then_refuses_at_once(
    tmp_path: Path, opener: Callable[[Path], Folder], kind: str
) -> None:
    """A FIFO without a writer, a socket and a device are refused, not waited for."""
    special = tmp_path / "special"
    with contextlib.ExitStack() as stack:
        if kind == "fifo":
            require("fifo")
            os.mkfifo(special)
        elif kind == "socket":
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(os.fspath(special))
        else:
            require("root")
            os.mknod(special, stat.S_IFCHR | 0o600, os.makedev(5, 0))
        with opener(tmp_path) as folder, at_once(), pytest.raises(NotRegular):
            folder.open_regular(b"special")


@pytest.mark.case("S13")
def test_open_regular_when_swapped_for_a_fifo_then_does_not_wait(
    tmp_path: Path, opener: Callable[[Path], Folder]
) -> None:
    """A FIFO that takes the place of a file after the look is not waited for either."""
    require("fifo")
    file = tmp_path / "file"
    file.write_bytes(b"x")

    def swap() -> None:
        file.unlink()
        os.mkfifo(file)

    with (
        opener(tmp_path) as folder,
        meddle("open file", swap),
        at_once(),
        pytest.raises(NotRegular),
    ):
        folder.open_regular(b"file")


def test_open_regular_when_swapped_for_a_link_then_refuses(
    tmp_path: Path, outside: Path, opener: Callable[[Path], Folder]
) -> None:
    """A link that takes the place of a file after the look is not followed."""
    require("symlinks")
    file = tmp_path / "file"
    file.write_bytes(b"x")

    def swap() -> None:
        file.unlink()
        file.symlink_to(outside / "precious.md")

    with (
        opener(tmp_path) as folder,
        meddle("open file", swap),
        pytest.raises(OSError, match="file") as caught,
    ):
        folder.open_regular(b"file")
    assert caught.value.errno == errno.ELOOP


@pytest.mark.parametrize("name", [b"file.md", b"link", b"dangling"])
def test_create_when_the_name_is_taken_then_refuses(
    tmp_path: Path, outside: Path, opener: Callable[[Path], Folder], name: bytes
) -> None:
    """A new file never opens what is there, nor makes what a link points to."""
    require("symlinks")
    (tmp_path / "file.md").write_bytes(b"old")
    (tmp_path / "link").symlink_to(outside / "precious.md")
    (tmp_path / "dangling").symlink_to(outside / "nothing")
    with opener(tmp_path) as folder, pytest.raises(FileExistsError):
        folder.create(name)


def test_link_when_given_a_link_then_names_the_link_itself(
    top: Path, opener: Callable[[Path], Folder]
) -> None:
    """A second name of a symlink is a second name, and not one of its target."""
    require("hard-links")
    with opener(top) as folder:
        folder.link(b"to-file", folder, b"again")
        assert stat.S_ISLNK(folder.stat(b"again").st_mode)


def test_rename_when_given_a_link_then_moves_and_replaces_links_only(
    top: Path, opener: Callable[[Path], Folder]
) -> None:
    """Neither the file that a link points to is moved, nor the one it would replace."""
    with opener(top) as folder, folder.enter(b"a") as inner:
        folder.rename(b"to-file", inner, b"moved")
        folder.rename(b"dangling", inner, b"to-folder")
        assert sorted(inner.names()) == [b"b", b"moved", b"to-folder"]
        assert os.readlink(top / "a" / "to-folder").endswith("nothing")


def test_write_all_when_each_write_is_short_then_writes_every_byte(
    tmp_path: Path,
) -> None:
    """A short write is not success."""
    with Folder.open(tmp_path) as folder:
        fd = folder.create(b"file")
        with each_call(at_most=3) as calls:
            write_all(fd, b"0123456789")
        os.close(fd)
    assert (tmp_path / "file").read_bytes() == b"0123456789"
    assert len(calls) == 4


# --- Walking --------------------------------------------------------------------------


@pytest.mark.case("S14")
def test_walk_when_there_are_links_then_names_and_does_not_enter_them(
    top: Path, opener: Callable[[Path], Folder]
) -> None:
    """A link is found as a link; neither a loop nor what is outside is walked."""
    with opener(top) as folder:
        found = [(each.path, each.is_folder) for each in walk(folder)]
    assert sorted(found) == [
        (b"a", True),
        (b"a/b", True),
        (b"a/b/file.md", False),
        (b"a/to-folder", False),
        (b"dangling", False),
        (b"loop", False),
        (b"to-file", False),
        (b"to-folder", False),
    ]


def test_walk_when_it_finds_something_then_has_a_handle_on_its_folder(
    top: Path, opener: Callable[[Path], Folder]
) -> None:
    """Each name can be opened by the handle it comes with, the folder before it."""
    seen: list[bytes] = []
    with opener(top) as folder:
        for found in walk(folder):
            assert os.path.samestat(found.stat, found.folder.stat(found.name))
            assert found.path.rpartition(b"/")[0] in {b"", *seen}
            seen.append(found.path)
        assert folder.names()


@pytest.mark.parametrize(
    ("skip", "left"),
    [
        ({b"a/b"}, [b"a", b"a/c", b"b"]),
        ({b"a"}, [b"b"]),
        ({b"b"}, [b"a", b"a/b", b"a/b/d", b"a/c"]),
        ({b"c", b"d", b"a/b/"}, [b"a", b"a/b", b"a/b/d", b"a/c", b"b"]),
    ],
)
def test_walk_when_told_to_skip_then_neither_names_nor_enters(
    tmp_path: Path,
    opener: Callable[[Path], Folder],
    skip: set[bytes],
    left: list[bytes],
) -> None:
    """What is skipped is one exact path with all below it."""
    (tmp_path / "a" / "b" / "d").mkdir(parents=True)
    (tmp_path / "a" / "c").touch()
    (tmp_path / "b").touch()
    with opener(tmp_path) as folder:
        found = [each.path for each in walk(folder, skip=frozenset(skip))]
    assert left == sorted(found)


def test_walk_when_told_not_to_enter_then_names_the_folder_only(
    tmp_path: Path, opener: Callable[[Path], Folder]
) -> None:
    """A folder that is not to be entered is still found."""
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    with opener(tmp_path) as folder:
        found = [each.path for each in walk(folder, enters=lambda p: p != b"a/b")]
    assert found == [b"a", b"a/b"]


@pytest.mark.case("S10")
@pytest.mark.parametrize(
    ("at", "gone", "left"),
    [
        ("stat file", "file", [b"1", b"2", b"sub"]),
        ("stat sub", "sub", [b"1", b"2", b"file"]),
        ("open sub", "sub", [b"1", b"2", b"file", b"sub"]),
        ("listdir sub", "sub", [b"1", b"2", b"file", b"sub"]),
    ],
)
def test_walk_when_a_name_vanishes_then_goes_on(
    tmp_path: Path, at: str, gone: str, left: list[bytes]
) -> None:
    """What is gone before it was looked at is left out; the rest is found."""
    for name in ("1", "2", "file"):
        (tmp_path / name).touch()
    (tmp_path / "sub").mkdir()
    vanish = (tmp_path / gone).rmdir if gone == "sub" else (tmp_path / gone).unlink
    with Folder.open(tmp_path) as folder, meddle(at, vanish):
        found = [each.path for each in walk(folder)]
    assert left == sorted(found)


def test_walk_when_a_folder_is_swapped_for_a_link_then_refuses(
    tmp_path: Path, outside: Path
) -> None:
    """A link in the place of a folder is an error: neither entered nor passed over."""
    require("symlinks")
    (tmp_path / "top" / "sub").mkdir(parents=True)

    def swap() -> None:
        (tmp_path / "top" / "sub").rmdir()
        (tmp_path / "top" / "sub").symlink_to(outside)

    with (
        Folder.open(tmp_path / "top") as folder,
        meddle("open sub", swap),
        pytest.raises(NotADirectoryError),
    ):
        list(walk(folder))


def test_walk_when_given_up_half_way_then_closes_what_it_opened(tmp_path: Path) -> None:
    """A walk that is not read to its end leaves no handle open, but for the top."""
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    with Folder.open(tmp_path) as folder:
        steps = walk(folder)
        assert [next(steps).path for _ in range(3)] == [b"a", b"a/b", b"a/b/c"]
        steps.close()  # type: ignore[attr-defined]  # it is a generator
        assert folder.names() == [b"a"]


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A folder with a chain of folders `d` in it, too deep for a path, and one file."""
    top = tmp_path / "deep"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(DEEPER_THAN_PYTHON):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    yield top
    # Nothing in Python's library removes such a tree, and pytest would stumble on it.
    subprocess.run(["rm", "-rf", "--", top], check=True)


@pytest.mark.slow
def test_walk_when_the_tree_is_deeper_than_the_stack_then_ends(deep: Path) -> None:
    """A step cannot break the guard by nesting folders."""
    with Folder.open(deep) as folder, handles(2 * DEEPER_THAN_PYTHON):
        depths = [each.path.count(b"/") for each in walk(folder)]
    assert max(depths) == DEEPER_THAN_PYTHON


@contextlib.contextmanager
def handles(at_most: int) -> Iterator[None]:
    """Bound how many descriptors this process may have while the block runs."""
    import resource  # noqa: PLC0415  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(at_most, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- Removing -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [b"to-folder", b"to-file", b"dangling", b"loop", b"a", b"nothing"]
)
def test_remove_entry_when_links_lead_out_then_removes_the_names_only(
    top: Path, opener: Callable[[Path], Folder], name: bytes
) -> None:
    """A link goes as a name; what it leads to is never entered or opened up."""
    with opener(top) as folder:
        remove_entry(folder, name)
        assert folder.lookup(name) is None


def test_remove_entry_when_a_hard_link_leads_out_then_leaves_that_file(
    tmp_path: Path, opener: Callable[[Path], Folder]
) -> None:
    """The other name of a file keeps its bytes and its mode."""
    require("hard-links")
    other = tmp_path / "other.md"
    other.write_bytes(b"mine\n")
    (tmp_path / "sub").mkdir()
    os.link(other, tmp_path / "sub" / "name.md")
    with opener(tmp_path) as folder:
        remove_entry(folder, b"sub")
    assert other.read_bytes() == b"mine\n"
    assert other.stat().st_nlink == 1


@pytest.mark.parametrize("mode", [0o000, 0o100, 0o200, 0o400, 0o500, 0o600])
def test_remove_entry_when_folders_are_closed_then_opens_them_up(
    place: Path, opener: Callable[[Path], Folder], mode: int
) -> None:
    """A folder of ours that lacks rights goes with all that it holds."""
    with ordinary_user(place):
        (place / "a" / "b" / "c").mkdir(parents=True)
        (place / "a" / "b" / "file").touch(mode=0o000)
        for each in ("a/b/c", "a/b", "a"):
            (place / each).chmod(mode)
        with opener(place) as folder:
            remove_entry(folder, b"a")
        assert os.listdir(place) == []


@pytest.mark.parametrize("later", [1, 2, 3])
def test_remove_entry_when_a_closed_folder_is_swapped_for_a_link_then_stops(
    place: Path, later: int
) -> None:
    """Opening up a folder never changes the mode of what a link leads to."""
    require("symlinks")
    with ordinary_user(place):
        victim = place / "victim"
        victim.mkdir(mode=0o500)
        closed = place / "closed"
        closed.mkdir(mode=0o000)

        def swap() -> None:
            closed.rename(place / "moved")
            closed.symlink_to(victim)

        with (
            Folder.open(place) as folder,
            meddle("open closed", swap, later=later),
            pytest.raises(NotADirectoryError),
        ):
            remove_entry(folder, b"closed")
        assert stat.S_IMODE(victim.stat().st_mode) == 0o500


def test_remove_entry_when_not_ours_to_remove_then_says_so(place: Path) -> None:
    """What cannot be removed is an error with the name in it."""
    require("root")
    (place / "a" / "theirs").mkdir(parents=True)
    (place / "a").chmod(0o755)
    with (
        ordinary_user(place),
        Folder.open(place) as folder,
        pytest.raises(PermissionError) as caught,
    ):
        remove_entry(folder, b"a")
    assert caught.value.filename is not None


@pytest.mark.parametrize("at", ["stat file", "unlink file"])
def test_remove_entry_when_a_name_vanishes_then_is_content(
    tmp_path: Path, at: str
) -> None:
    """That somebody else was faster is what was wanted."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "file").touch()
    with (
        Folder.open(tmp_path) as folder,
        meddle(at, (tmp_path / "sub" / "file").unlink),
    ):
        remove_entry(folder, b"sub")
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_remove_entry_when_the_tree_is_deep_then_needs_few_handles(deep: Path) -> None:
    """However deep a step nests folders, they go, with a hundred handles or so."""
    with Folder.open(deep.parent) as folder, handles(tree._LEVELS + 60):
        remove_entry(folder, b"deep")
        assert folder.names() == []


def test_remove_entry_when_deep_folders_are_closed_then_they_go_too(
    place: Path,
) -> None:
    """A folder that is moved up on the way is opened up before."""
    with ordinary_user(place):
        levels = [place / "/".join("d" * depth) for depth in range(1, 140)]
        levels[-1].mkdir(parents=True)
        for each in reversed(levels):
            each.chmod(0o000)
        with Folder.open(place) as folder:
            remove_entry(folder, b"d")
            assert folder.names() == []


def test_sync_when_the_platform_can_then_flushes_the_folder(tmp_path: Path) -> None:
    """Names are flushed through the folder's own descriptor; by path nothing is."""
    with Folder.open(tmp_path) as folder, each_call() as calls:
        folder.sync()
        by_path(tmp_path).sync()
    assert [call.name for call in calls.made] == ["fsync"]
