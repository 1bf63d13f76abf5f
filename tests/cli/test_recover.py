"""`wsguard recover`: exit statuses and what it says; the stories are in `flow/`."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from guarded import GOOD, House, finish, nobody_runs, until
from killing import die_before_renaming_to, survives

from workspace_guard import Contract

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.mode("detect"), pytest.mark.slow]
KILL = "read _ _ _ guard _ < /proc/$PPID/stat; kill -9 $guard; sleep 60"


@pytest.fixture
def house(workspace: Path, state_dir: Path) -> House:
    """The sample workspace and a state folder."""
    return House(workspace, state_dir)


def crash(house: House, script: str) -> str:
    """Have a run's command kill its guard; the run's id."""
    assert house.run(f"{script}; {KILL}").status == -signal.SIGKILL
    [run_id] = house.runs
    return run_id


def test_recover_when_nothing_is_open_then_0_and_says_so(house: House) -> None:
    """A workspace without a state is whole, and stays as it is."""
    with house.unchanged(without=()):
        text = house.call("recover", house.workspace)
        done = house.call("recover", house.workspace, "--json")

    assert (text.status, text.out, text.err) == (0, b"", "nothing was open\n")
    assert (done.status, done.document) == (
        0,
        {
            "schema": "workspace-guard/recover/1",
            "workspace": str(house.workspace),
            "runs": [],
        },
    )


def test_recover_when_a_run_was_cut_off_then_names_what_it_did(house: House) -> None:
    """Each path that was put back is named, in text and in JSON."""
    run_id = crash(house, "echo mine > ../../PLAN.md; rm ../../template.md")
    done = house.call("recover", house.workspace, "--json")
    [run] = done.document["runs"]

    assert done.status == 0
    assert (run["run_id"], run["promotion"]) == (run_id, "none")
    assert [row["path"] for row in run["put_back"]] == ["PLAN.md", "template.md"]
    assert (run["foreign"], run["left_as_is"]) == ([], False)


def test_recover_when_text_then_says_it_to_a_person(house: House) -> None:
    """Text goes to standard error; standard output has nothing."""
    run_id = crash(house, "echo mine > ../../PLAN.md")
    done = house.call("recover", house.workspace)

    assert (done.status, done.out) == (0, b"")
    assert done.err.startswith(f"run {run_id} had been cut off\n  put back: PLAN.md\n")


def test_recover_when_a_promotion_is_in_conflict_then_44_until_it_is_accepted(
    house: House,
) -> None:
    """A destination that holds neither old nor new is somebody's, and stays."""
    _cut_off_in_a_promotion(house)
    (house.workspace / "PLAN.md").write_bytes(b"an editor's\n")
    with house.unchanged():
        first = house.call("recover", house.workspace, "--json")
        again = house.call("recover", house.workspace)
        blocked = house.run("true")
    accepted = house.call("recover", house.workspace, "--json", "--accept-current")
    after = house.call("recover", house.workspace, "--json")
    [run] = first.document["runs"]

    assert (first.status, run["promotion"]) == (44, "conflict")
    assert [row["path"] for row in run["destinations"]] == ["PLAN.md"]
    assert "--accept-current" in again.err
    assert blocked.error == (44, "recovery-conflict")
    assert accepted.document["runs"][0]["promotion"] == "given_up"
    assert (accepted.status, after.document["runs"], house.journal) == (0, [], [])
    assert (house.workspace / "PLAN.md").read_bytes() == b"an editor's\n"
    assert list(house.workspace.glob(".wsguard-*")) == []


def _cut_off_in_a_promotion(house: House) -> None:
    """Bring about a run that was killed between two of its renames."""

    def run() -> None:
        die_before_renaming_to(b"PLAN.md")
        script = "echo new > output.md; echo new > PLAN.md"
        targets = Contract.of(target=["output.md", "PLAN.md"])
        house.door.run_step(["sh", "-c", script], targets)

    assert not survives(house, run)
    assert (house.workspace / "output.md").read_bytes() == b"new\n"


def test_recover_when_a_run_is_going_on_then_12_or_waits(house: House) -> None:
    """A run that lives is no crash."""
    script = f": > ready; while [ ! -e go ]; do sleep 0.01; done; {GOOD}"
    words = ["run", "-w", house.workspace, "--", "sh", "-c", script]
    step = house.workspace / "tasks/run_1"
    with house.start(*words) as process:
        until((step / "ready").exists)
        held = house.call("recover", house.workspace, "--json")
        waits = ["recover", house.workspace, "--wait", "60", "--json"]
        with house.start(*waits) as waiting:
            until(lambda: len(house.runs) == 2)
            (step / "go").touch()
            waited = finish(waiting)
        finish(process)

    assert held.error == (12, "workspace-held")
    assert f"process {process.pid}" in held.said[0]
    assert (waited.status, waited.document["runs"]) == (0, [])
    assert house.door.record().verdict.value == "promoted"


def test_recover_when_the_workspace_is_missing_then_11(
    house: House, place: Path
) -> None:
    """Nothing is made of a folder that is not there."""
    done = house.call("recover", place / "nowhere", "--json")

    assert done.error == (11, "workspace-unusable")
    assert not house.state.exists()


def test_recover_when_interrupted_then_can_be_done_again(house: House) -> None:
    """Ctrl-C leaves the run open and the rest as it is."""
    crash(house, "echo mine > ../../PLAN.md")
    [run_id] = house.runs
    until(lambda: nobody_runs(run_id))
    with house.unchanged():
        holder = _hold(house)
        words = ["recover", house.workspace, "--wait", "60", "--json"]
        with house.start(*words) as waiting:
            until(lambda: len(house.runs) == 2)
            waiting.send_signal(signal.SIGINT)
            done = finish(waiting)
        os.close(holder)

    assert done.error == (130, "interrupted")
    assert house.call("recover", house.workspace).status == 0


def _hold(house: House) -> int:
    """Hold the lock of the workspace, as another process would."""
    import fcntl  # noqa: PLC0415  # not on Windows

    fd = os.open(house.folder / "lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.ftruncate(fd, 0)
    return fd
