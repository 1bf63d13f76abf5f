"""Standard streams that are closed or full."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

WSGUARD = f"{sys.executable} -m workspace_guard"


@pytest.fixture
def ground(tmp_path: Path) -> Path:
    """A folder with a workspace in it."""
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "output.md").write_text("old")
    return tmp_path


def shell(
    ground: Path, tail: str, redirection: str
) -> subprocess.CompletedProcess[str]:
    """Run the program by a shell that arranges its streams."""
    line = f"{WSGUARD} --state-dir {ground}/state {tail} {redirection}"
    return subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("closed", [">&-", "<&-", ">&- 2>&-", ">/dev/full"])
def test_run_when_a_stream_is_closed_or_full_then_ends_as_the_run_did(
    ground: Path, closed: str
) -> None:
    """What becomes of the words does not change what is said of the run."""
    if "full" in closed and not Path("/dev/full").exists():
        closed = ">&-"
    step = "sh -c 'echo talk; echo new > output.md'"
    done = shell(ground, f"run --json -w {ground}/ws -- {step}", closed)

    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert (ground / "ws" / "output.md").read_text() == "new\n"
    [log] = (ground / "state").glob("*/runs/*/execution.log")
    assert log.read_text() == "talk\n"
    [record] = (ground / "state").glob("*/runs/*/record.json")
    assert json.loads(record.read_text())["verdict"] == "promoted"
