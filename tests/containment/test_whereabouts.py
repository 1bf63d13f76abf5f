"""A command that moves the workspace itself, or what is above it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from workspace_guard import Contract, Verdict, Workspace
from workspace_guard.errors import RunNotClosed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def ground(tmp_path: Path) -> Path:
    """A workspace in a folder of its own."""
    folder = tmp_path / "above" / "report"
    folder.mkdir(parents=True)
    (folder / "output.md").write_text("old")
    return folder


def run(ground: Path, script: str) -> tuple[Workspace, Verdict]:
    """Run a shell script as a step."""
    workspace = Workspace(ground, ground.parents[1] / "state")
    record = workspace.run_step(["sh", "-c", script], Contract())
    return workspace, record.verdict


def test_workspace_when_the_command_moves_it_then_is_moved_back(ground: Path) -> None:
    """A workspace that was renamed is an escape, and stands in its place again."""
    workspace, verdict = run(
        ground, "echo new > output.md; mv ../../../report ../../../away"
    )
    [escape] = workspace.record().escapes

    assert verdict is Verdict.ESCAPED
    assert (escape.path, escape.kind, escape.effect) == (b".", "renamed", "restored")
    assert (ground / "output.md").read_text() == "old"
    assert [path.name for path in ground.parent.iterdir()] == ["report"]


def test_workspace_when_its_place_is_taken_then_nothing_is_touched(
    ground: Path,
) -> None:
    """What stands in the workspace's place is not ours to remove."""
    script = "mv ../../../report ../../../away; mkdir ../../../report"

    with pytest.raises(RunNotClosed, match="something else is in its place"):
        run(ground, script)
    away = ground.parent / "away"
    assert (away / "output.md").read_text() == "old"
    assert list(ground.iterdir()) == []

    ground.rmdir()
    away.rename(ground)
    recovery = Workspace(ground, ground.parents[1] / "state").recover()
    assert recovery.conflicts == ()
    assert [run.promotion for run in recovery.runs] == ["none"]


def test_workspace_when_a_folder_above_moves_then_says_where_it_is(
    ground: Path,
) -> None:
    """A folder above cannot be brought back by us; the error names the place."""
    with pytest.raises(RunNotClosed, match="elsewhere/report"):
        run(ground, "mv ../../../../above ../../../../elsewhere")

    moved = ground.parents[1] / "elsewhere" / "report"
    assert (moved / "output.md").read_text() == "old"
