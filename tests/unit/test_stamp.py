"""Whether files hold still: each difference is seen, and no more than those."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from capabilities import require
from euid import ordinary_user

from workspace_guard.files.relpath import RelPath
from workspace_guard.files.stamp import moved, stamp
from workspace_guard.files.tree import Folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OLD_NS = 1_700_000_000_123_456_789


def stamps(step: Path, *tops: str) -> dict[bytes, tuple[object, ...]]:
    """What the places of a step are now."""
    with Folder.open(step) as folder:
        return stamp(folder, tuple(RelPath.parse(top, "posix") for top in tops))


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """A step with a file, and a folder of two."""
    (tmp_path / "out" / "inner").mkdir(parents=True)
    for name in ("output.md", "out/a.md", "out/inner/b.md"):
        (tmp_path / name).write_bytes(b"text\n")
    return tmp_path


def test_stamp_when_nothing_moves_then_no_path_has_moved(step: Path) -> None:
    """Looking twice makes no difference."""
    tops = ("output.md", "out", "nothing", "out/nothing/x")
    before = stamps(step, *tops)
    assert moved(before, stamps(step, *tops)) == ()
    assert sorted(before) == [
        b"nothing",
        b"out",
        b"out/a.md",
        b"out/inner",
        b"out/inner/b.md",
        b"out/nothing/x",
        b"output.md",
    ]


def test_stamp_when_the_top_is_the_step_itself_then_takes_in_all(step: Path) -> None:
    """A glob at the top of a step watches the whole of it."""
    assert sorted(stamps(step, ".")) == [
        b"out",
        b"out/a.md",
        b"out/inner",
        b"out/inner/b.md",
        b"output.md",
    ]


def rewrite_with_time_back(step: Path) -> None:
    """Other bytes of the same number, and the time put back."""
    file = step / "out" / "inner" / "b.md"
    found = file.stat()
    file.write_bytes(b"TEXT\n")
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


def touch(step: Path) -> None:
    """Another time only."""
    os.utime(step / "out" / "inner" / "b.md", ns=(OLD_NS, OLD_NS))


def replace_by_link(step: Path) -> None:
    """A link of the same name to the same bytes."""
    require("symlinks")
    (step / "out" / "inner" / "b.md").unlink()
    (step / "out" / "inner" / "b.md").symlink_to("../a.md")


def replace_by_fifo(step: Path) -> None:
    """A FIFO, which must not be waited for."""
    require("fifo")
    (step / "out" / "inner" / "b.md").unlink()
    os.mkfifo(step / "out" / "inner" / "b.md")


@pytest.mark.parametrize(
    "change",
    [
        rewrite_with_time_back,
        touch,
        replace_by_link,
        replace_by_fifo,
        lambda step: (step / "out" / "inner" / "b.md").unlink(),
        lambda step: (step / "out" / "inner" / "b.md").chmod(0o600),
    ],
)
@pytest.mark.parametrize("top", ["out", "out/inner", "out/inner/b.md", "."])
def test_moved_when_a_file_changes_then_names_it(
    step: Path, change: Callable[[Path], None], top: str
) -> None:
    """Bytes, time, type, mode, being there: each of them counts."""
    before = stamps(step, top)
    change(step)
    assert b"out/inner/b.md" in moved(before, stamps(step, top))
    assert b"out/a.md" not in moved(before, stamps(step, top))


def test_moved_when_a_name_is_new_then_names_it(step: Path) -> None:
    """A file that came late is a difference."""
    before = stamps(step, "out")
    (step / "out" / "late.md").touch()
    assert b"out/late.md" in moved(before, stamps(step, "out"))


def test_stamp_when_a_link_leads_away_then_is_not_followed(
    step: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What stands behind a link is not the step's."""
    require("symlinks")
    outside = tmp_path_factory.mktemp("outside")
    (step / "away").symlink_to(outside)
    before = stamps(step, "away", "away/file")
    (outside / "file").touch()
    assert moved(before, stamps(step, "away", "away/file")) == ()


def test_stamp_when_a_file_cannot_be_read_then_the_others_are(place: Path) -> None:
    """What cannot be read has a stamp too, and hides no other."""
    with ordinary_user(place):
        for name in ("1", "2", "3"):
            (place / name).write_bytes(b"text\n")
        (place / "2").chmod(0o000)
        before = stamps(place, ".")
        assert sorted(before) == [b"1", b"2", b"3"]
        (place / "3").write_bytes(b"TEXT\n")
        assert moved(before, stamps(place, ".")) == (b"3",)
