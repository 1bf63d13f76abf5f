"""`wsguard run --explain`: everything that would happen, and nothing that happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from guarded import House

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow
TASK = "参考 ../../template.md、基于 ../../output.md、输出到 output.md；见 ../notes"


@pytest.fixture
def house(workspace: Path, state_dir: Path) -> House:
    """The sample workspace and a state folder."""
    return House(workspace, state_dir)


def test_explain_when_all_is_well_then_says_what_would_happen(house: House) -> None:
    """Inputs, targets, mode, and the task as the step would get it."""
    with house.unchanged(without=()):
        done = house.run("echo ran > ../../ran", "--explain", "--task", TASK)
    document = done.document

    assert (done.status, document["schema"]) == (0, "workspace-guard/explain/1")
    assert not house.state.exists()
    assert (document["mode"], document["problems"]) == ("detect", [])
    assert [row["path"] for row in document["inputs"]] == [
        "inputs/output.snapshot.md",
        "inputs/template.snapshot.md",
        "inputs/blackboard.snapshot.json",
    ]
    assert document["targets"] == [{"path": "output.md", "destination": "output.md"}]
    assert document["replaced"] == [{"path": "output.md"}]
    assert document["task"].startswith("参考 inputs/template.snapshot.md、基于 inputs/")
    assert document["task_rewrites"] == [
        ["../../template.md", "inputs/template.snapshot.md"],
        ["../../output.md", "inputs/output.snapshot.md"],
    ]
    assert len(document["warnings"]) == 1


def test_explain_when_the_run_would_fail_then_names_every_problem(
    house: House,
) -> None:
    """All that is wrong at once, not one refusal after the other."""
    (house.workspace / "output.md").unlink()
    options = ["--input", "nowhere.md", "--name", "01_draft", "--mode", "deny"]
    words = ["run", "-w", house.workspace, "--explain", "--json", *options]
    with house.unchanged(without=()):
        done = house.call(*words, "--", "no-such-program")
    problems = "\n".join(done.document["problems"])

    assert done.status == 10
    for fact in (
        "mode deny",
        "no target is named",
        "input nowhere.md: ",
        "'no-such-program': not found in PATH",
        "step 01_draft: ",
    ):
        assert fact in problems


def test_explain_when_text_then_says_that_nothing_was_started(house: House) -> None:
    """The last line leaves no doubt."""
    words = ["run", "-w", house.workspace, "--explain", "--", "sh", "-c", "a\x1b[2Jb"]
    done = house.call(*words)

    assert done.status == 0
    assert done.out.decode().endswith("nothing was started\n")
    assert b"\x1b" not in done.out


def test_explain_when_a_run_is_open_then_says_that_it_is_closed_first(
    house: House,
) -> None:
    """An open journal is reported and not touched."""
    kill = "read _ _ _ guard _ < /proc/$PPID/stat; kill -9 $guard; sleep 60"
    house.run(kill)
    [run_id] = house.runs
    journal = house.journal
    done = house.run("true", "--explain")

    assert done.document["open_runs"] == [run_id]
    assert house.journal == journal
