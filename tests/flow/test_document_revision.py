"""The example: the incident's workspace, and three agents let loose on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from listing import changes, tree_state

EXAMPLE = Path(__file__).parents[2] / "examples" / "document-revision"
AS_BEFORE = "parent byte for byte, mode for mode, mtime for mtime as before"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("story", "last_line"),
    [
        ("good", "good: promoted; nothing else in the parent has changed"),
        ("incident", f"incident: {AS_BEFORE}"),
        ("lingering", f"lingering: not promoted; {AS_BEFORE}"),
    ],
    ids=["good", "incident", "lingering"],
)
def test_example_when_run_from_any_folder_then_ends_as_promised(
    tmp_path: Path, story: str, last_line: str
) -> None:
    """`make run` shows the good step promoted and the incident caught."""
    before = tree_state(EXAMPLE / "workspace")
    done = subprocess.run(
        [sys.executable, EXAMPLE / "run.py", story],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, last_line)
    assert changes(before, tree_state(EXAMPLE / "workspace")) == {}
