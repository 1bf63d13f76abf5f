"""What a command does to the workspace as a whole, to its mounts, or to the watch."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from capabilities import require
from listing import changes, tree_state

from workspace_guard import Contract, Verdict, Workspace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workspace_guard import RunRecord


@pytest.fixture
def ground(tmp_path: Path) -> Path:
    """A workspace with a few files in a folder of its own."""
    folder = tmp_path / "above" / "report"
    (folder / "bin").mkdir(parents=True)
    (folder / "output.md").write_text("old")
    (folder / "bin" / "tool").write_text("tool")
    (folder / "tasks").mkdir()
    return folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder that lies elsewhere and is nobody's to empty."""
    require("root")
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "precious").write_text("precious")
    return folder


@pytest.fixture
def unmounted(tmp_path: Path) -> Iterator[list[str]]:
    """Places to unmount when the test is over."""
    places: list[str] = []
    yield places
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4]
        if point.startswith(str(tmp_path)) or any(point.startswith(p) for p in places):
            subprocess.run(["umount", "-l", point], check=True)


def run(ground: Path, script: str, **options: object) -> RunRecord:
    """Run a shell script as a step."""
    workspace = Workspace(ground, ground.parents[1] / "state")
    contract = Contract.of(**({"target": ["output.md"]} | options))
    return workspace.run_step(["sh", "-c", script], contract)


def parent_of(ground: Path) -> dict[bytes, object]:
    """The workspace without its steps."""
    return dict(tree_state(ground, without={b"tasks/run_1"}))


def test_mount_when_made_over_a_folder_then_what_lies_elsewhere_is_not_emptied(
    ground: Path, victim: Path, unmounted: list[str]
) -> None:
    """A mount of the command's is left alone and named: exit status 31."""
    assert unmounted == []
    record = run(ground, f"mount --bind {victim} ../../bin; echo x > output.md")
    [escape] = record.escapes

    assert (escape.path, escape.effect) == (b"bin", "unrestored")
    assert (record.verdict, record.exit_status) == (Verdict.ESCAPED, 31)
    assert [path.name for path in victim.iterdir()] == ["precious"]


def test_mount_when_made_in_a_new_folder_then_what_lies_elsewhere_is_not_emptied(
    ground: Path, victim: Path, unmounted: list[str]
) -> None:
    """A new folder is not taken away while something is mounted in it."""
    assert unmounted == []
    record = run(
        ground, f"mkdir -p ../../new/m; mount --bind {victim} ../../new/m; true"
    )

    assert record.exit_status == 31
    assert [path.name for path in victim.iterdir()] == ["precious"]


@pytest.mark.parametrize("place", ["$TMPDIR/m", "m"])
def test_mount_when_made_where_we_clean_up_then_is_not_emptied(
    ground: Path, victim: Path, unmounted: list[str], place: str
) -> None:
    """Neither TMPDIR nor a step that is to go is removed with a mount in it."""
    script = f"mkdir {place}; mount --bind {victim} {place}; echo x > output.md; "
    record = run(ground, script + "echo $TMPDIR", rm=True)
    log = (ground.parents[1] / "state").glob("*/runs/*/execution.log")
    unmounted.extend(next(iter(log)).read_text().split())

    assert record.verdict is Verdict.PROMOTED
    assert [path.name for path in victim.iterdir()] == ["precious"]
    assert any("mounted" in text for text in record.warnings)


EXCHANGE = (
    "python3 -c 'import ctypes; ctypes.CDLL(None).renameat2("
    '-100, b"../../bin", -100, b"../../sub", 2)\''
)


def test_watch_when_folders_are_exchanged_then_the_comparison_decides(
    ground: Path,
) -> None:
    """No failure of the live watch keeps the parent from being put back."""
    (ground / "sub" / "deep").mkdir(parents=True)
    before = parent_of(ground)
    record = run(ground, f"{EXCHANGE}; mkdir -p ../../bin/x/y; mv ../../bin ../../b2")

    assert record.verdict is Verdict.ESCAPED
    assert changes(before, parent_of(ground)) == {}


def test_watch_when_the_tree_is_very_deep_then_says_so_as_a_gap(ground: Path) -> None:
    """A tree that the watch cannot walk is still compared."""
    here = os.open(ground, os.O_RDONLY)
    for _ in range(1_100):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    record = run(ground, "echo x > output.md")
    subprocess.run(["rm", "-rf", ground / "d"], check=True)

    assert record.verdict is Verdict.PROMOTED
    assert "monitor_failed" in {gap.kind for gap in record.gaps}


def test_workspace_when_closed_to_its_owner_then_is_opened_and_put_back(
    ground: Path,
) -> None:
    """Mode 000 on the workspace itself is undone like any other change."""
    before = parent_of(ground)
    record = run(ground, "echo bad > ../../output.md; chmod 0 ../..")

    assert record.verdict is Verdict.ESCAPED
    assert changes(before, parent_of(ground)) == {}
    assert {escape.path for escape in record.escapes} == {b".", b"output.md"}


def test_workspace_when_removed_then_is_there_again(ground: Path) -> None:
    """`rm -rf` of the workspace itself is undone by the run that met it."""
    before = parent_of(ground)
    record = run(ground, 'rm -rf "$(cd ../.. && pwd)"')
    now = parent_of(ground)

    assert (record.verdict, record.exit_status) == (Verdict.ESCAPED, 30)
    assert changes(before, now) == {}


def test_previous_when_the_old_file_has_two_names_then_keeps_its_content(
    ground: Path,
) -> None:
    """What promotion keeps cannot be changed through another name of the old file."""
    (ground / "copy.md").hardlink_to(ground / "output.md")
    record = run(ground, "echo new > output.md")
    (ground / "copy.md").write_text("changed later")
    [kept] = (ground.parents[1] / "state").glob("*/runs/*/previous/0")

    assert record.verdict is Verdict.PROMOTED
    assert kept.read_text() == "old"
    assert (ground / "copy.md").stat().st_nlink == 1


def test_link_when_given_another_name_then_its_names_stay_one(ground: Path) -> None:
    """Two names of one symbolic link are one again once a third is gone."""
    (ground / "s1").symlink_to("output.md")
    os.link(ground / "s1", ground / "s2", follow_symlinks=False)
    before = parent_of(ground)
    record = run(ground, "ln ../../s1 ../../bin/s3")

    assert (record.verdict, record.exit_status) == (Verdict.ESCAPED, 30)
    assert changes(before, parent_of(ground)) == {}
