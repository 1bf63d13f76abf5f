"""Ctrl-C and SIGTERM at any time: the parent is whole, and nothing is left.

A signal that is to come in a certain stage is raised by whoever is told of that stage,
so that it really comes then.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
from capabilities import require
from guarded import GOOD, House, finish, nobody_runs, until

from workspace_guard import Contract
from workspace_guard.containment.interrupts import Interrupts
from workspace_guard.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from workspace_guard import RunRecord
    from workspace_guard.containment.base import Progress

pytestmark = pytest.mark.mode("detect")
INT, TERM = signal.SIGINT, signal.SIGTERM
SPOIL = "echo mine > ../../PLAN.md; rm ../../template.md; mkdir ../../new"
READY = ": > ../../ready; sleep 60"
"""Write into the parent, so that there is something to put back, and wait."""


@pytest.fixture
def house(workspace: Path, state_dir: Path) -> House:
    """The sample workspace and a state folder."""
    return House(workspace, state_dir)


def raised_in(stage: str, *signals: int) -> Callable[[Progress], None]:
    """Raise signals when a run has come to a stage."""
    todo = list(signals)

    def on_event(progress: Progress) -> None:
        while progress.stage == stage and todo:
            signal.raise_signal(todo.pop(0))

    return on_event


def run_as_the_command_does(
    house: House, script: str, on_event: Callable[[Progress], None], **options: object
) -> RunRecord:
    """Run a step with signals taken as `wsguard run` takes them."""
    with Interrupts.listening() as interrupts:
        return house.door.run_step(
            ["sh", "-c", script],
            Contract.of(**options),
            on_event=on_event,
            interrupts=interrupts,
        )


@contextlib.contextmanager
def nothing_left(house: House) -> Generator[None]:
    """See that the parent is exactly as it was, and nothing is open."""
    with house.unchanged():
        yield
    assert house.journal == []
    assert house.snapshots == []


# --- Before the command ---------------------------------------------------------------


@pytest.mark.parametrize("stage", ["staging", "snapshot"])
@pytest.mark.parametrize(("signum", "status"), [(INT, 130), (TERM, 143)])
def test_signal_when_nothing_has_run_yet_then_nothing_is_left(
    house: House, stage: str, signum: int, status: int
) -> None:
    """A step that was not begun leaves no folder, no record and no open entry."""
    with house.unchanged(without=()), pytest.raises(Interrupted) as caught:
        run_as_the_command_does(house, GOOD, raised_in(stage, signum))

    assert caught.value.exit_status == status
    assert (house.journal, house.snapshots, house.runs) == ([], [], [])


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "status"), [(INT, 130), (TERM, 143)])
def test_command_when_signalled_while_it_waits_then_gives_up(
    house: House, signum: int, status: int
) -> None:
    """Who waits for a held workspace can be told to stop."""
    holder = house.start("run", "-w", house.workspace, "--", "sh", "-c", READY)
    until((house.workspace / "ready").exists)
    words = ["run", "-w", house.workspace, "--json", "--wait", "60", "--", "true"]
    with house.start(*words) as waiting:
        until(lambda: len(house.runs) == 2)
        waiting.send_signal(signum)
        done = finish(waiting)
    holder.send_signal(TERM)
    finish(holder)

    assert done.status == status
    assert done.document["exit_status"] == status
    assert len(house.runs) == 1


# --- While it runs --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signals", "status"), [((INT, INT), 130), ((TERM,), 143), ((INT, TERM), 143)]
)
def test_guard_when_signalled_to_end_then_ends_the_tree_and_puts_back(
    house: House, signals: tuple[int, ...], status: int
) -> None:
    """A second Ctrl-C within two seconds, or SIGTERM, ends the run at once."""
    before = house.look()
    take = "trap ': > ../../taken' INT; sleep 61 & : > ../../ready;"
    loop = "while :; do sleep 0.05; done"
    words = ["run", "-w", house.workspace, "--json", "--", "sh", "-c"]
    with house.start(*words, f"{SPOIL}; {take} {loop}") as guard:
        until((house.workspace / "ready").exists)
        guard.send_signal(signals[0])
        if len(signals) > 1:
            until((house.workspace / "taken").exists)
            guard.send_signal(signals[1])
        done = finish(guard)
    record = done.document

    assert (done.status, record["verdict"]) == (status, "runner_failed")
    assert record["runner"]["error"] == "interrupted"
    assert record["interrupted_by"] == signals[-1]
    assert {e["effect"] for e in record["escapes"]} == {"restored"}
    assert nobody_runs(record["run_id"])
    assert house.look() == before
    assert (house.journal, list(house.temporary.iterdir())) == ([], [])


@pytest.mark.slow
def test_interrupt_when_single_then_is_the_commands_own(house: House) -> None:
    """Interactive agents use the first Ctrl-C; what they make of it counts."""
    take = f"trap '{GOOD}; rm ../../ready; exit 0' INT; : > ../../ready;"
    loop = "while :; do sleep 0.01; done"
    words = ["run", "-w", house.workspace, "--json", "--on-escape", "report"]
    with house.start(*words, "--", "sh", "-c", f"{take} {loop}") as guard:
        until((house.workspace / "ready").exists)
        guard.send_signal(INT)
        done = finish(guard)

    assert (done.status, done.document["verdict"]) == (0, "promoted")
    assert done.document["interrupted_by"] is None


# --- After the command ----------------------------------------------------------------

LATE = [
    ("judging", (TERM,), 143),
    ("judging", (INT, INT), 130),
    ("restoring", (TERM,), 143),
    ("comparing", (INT, INT), 130),
    ("ending", (TERM,), 143),
]


@pytest.mark.parametrize(("stage", "signals", "status"), LATE)
def test_signal_when_the_command_has_ended_then_its_work_is_not_promoted(
    house: House, stage: str, signals: tuple[int, ...], status: int
) -> None:
    """Whoever ends a run before its promotion gets the workspace as it was."""
    with nothing_left(house):
        record = run_as_the_command_does(
            house,
            f"{GOOD}; {SPOIL}",
            raised_in(stage, *signals),
            on_escape="report",
        )

    assert (record.exit_status, record.verdict.value) == (status, "runner_failed")
    assert record.runner.error == "interrupted"
    assert house.door.record() == record


def test_signal_when_the_promotion_is_decided_then_comes_too_late(
    house: House,
) -> None:
    """All of the targets or none, and the exit status says which of both."""
    targets = ["output.md", "PLAN.md"]
    script = f"{GOOD}; cp output.md PLAN.md"
    event = raised_in("promoting", TERM, INT, INT)
    record = run_as_the_command_does(house, script, event, target=targets)

    assert (record.exit_status, record.verdict.value) == (0, "promoted")
    assert (house.workspace / "PLAN.md").read_bytes() == b"done\n"
    assert house.journal == []


@pytest.mark.slow
def test_guard_when_ended_during_the_grace_then_does_not_wait_for_its_end(
    house: House,
) -> None:
    """What is left of the tree has its time only as long as nobody is in a hurry."""
    script = f"{SPOIL}; sleep 62 & {GOOD}"
    words = ["run", "-w", house.workspace, "--json", "--grace", "60"]
    before = house.look()
    with house.start(*words, "--", "sh", "-c", script) as guard:
        until((house.workspace / "tasks/run_1/output.md").exists)
        until(lambda: _only_sleep_is_left(guard.pid))
        guard.send_signal(TERM)
        done = finish(guard)

    assert (done.status, done.document["verdict"]) == (143, "runner_failed")
    assert [p["ended"] for p in done.document["processes"]] == ["terminated"]
    assert done.document["duration_s"] < 20
    assert house.look() == before


def _only_sleep_is_left(guard: int) -> bool:
    import psutil  # noqa: PLC0415

    children = psutil.Process(guard).children(recursive=True)
    return "sleep" in [c.name() for c in children] and "sh" not in [
        c.name() for c in children if c.status() != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("signals", "status"), [((TERM,), 143), ((INT, INT), 130)])
def test_signal_when_the_check_runs_then_nothing_is_promoted(
    house: House, signals: tuple[int, ...], status: int
) -> None:
    """A check that was broken off has not accepted."""
    seen: list[str] = []

    def on_event(progress: Progress) -> None:
        seen.append(progress.stage)
        if progress.stage == "running" and "judging" in seen:
            raised_in("running", *signals)(progress)
            seen.clear()

    with nothing_left(house):
        record = run_as_the_command_does(house, GOOD, on_event, verify="sleep 63")

    assert record.exit_status == status
    assert record.promotion == ()


def test_signal_when_the_checks_snapshot_is_taken_then_the_run_has_its_record(
    house: House,
) -> None:
    """What the command did is accounted for, also where its check never began."""
    snapshots: list[str] = []

    def on_event(progress: Progress) -> None:
        if progress.stage == "judging":
            snapshots.append("judged")
        if progress.stage == "snapshot" and snapshots == ["judged"]:
            signal.raise_signal(TERM)
            snapshots.append("signalled")

    script = f"{GOOD}; echo mine > ../../PLAN.md"
    with nothing_left(house):
        record = run_as_the_command_does(
            house, script, on_event, verify="true", on_escape="report"
        )

    assert (record.exit_status, record.verdict.value) == (143, "runner_failed")
    run = house.folder / "runs" / record.run_id
    assert (run / "quarantine/PLAN.md").read_bytes() == b"mine\n"


# --- The Python API by itself ---------------------------------------------------------


def test_api_when_interrupted_twice_then_raises_once_all_is_whole(
    house: House,
) -> None:
    """KeyboardInterrupt comes when the parent is as it was and the record is there."""
    with nothing_left(house), pytest.raises(KeyboardInterrupt):
        house.door.run_step(
            ["sh", "-c", f"{SPOIL}; sleep 64"],
            on_event=raised_in("running", INT, INT),
        )

    record = house.door.record()
    assert (record.verdict.value, record.exit_status) == ("runner_failed", 130)
    assert nobody_runs(record.run_id)


def test_api_when_interrupted_before_the_command_then_raises_keyboard_interrupt(
    house: House,
) -> None:
    """Before anything ran there is nothing to account for."""
    with house.unchanged(without=()), pytest.raises(KeyboardInterrupt):
        house.door.run_step(["true"], on_event=raised_in("snapshot", INT))

    assert (house.journal, house.runs) == ([], [])


TERMINATED = """
    import sys
    from workspace_guard import Workspace
    workspace = Workspace(sys.argv[1], sys.argv[2])
    workspace.run_step(["sh", "-c", sys.argv[3]])
    print("not reached")
"""


@pytest.mark.slow
def test_api_when_terminated_then_the_program_ends_by_that_signal(
    house: House,
) -> None:
    """SIGTERM does to the program what it would, once the parent is whole."""
    program = textwrap.dedent(TERMINATED)
    words = [house.workspace, house.state, f"{SPOIL}; {READY}"]
    before = house.look()
    with subprocess.Popen(
        [sys.executable, "-c", program, *words], stdout=subprocess.PIPE
    ) as guard:
        until((house.workspace / "ready").exists)
        guard.send_signal(TERM)
        out, _ = guard.communicate(timeout=20)

    assert (guard.returncode, out) == (-TERM, b"")
    assert house.look() == before
    assert house.door.record().exit_status == 143


def test_guard_when_its_own_code_raises_then_the_parent_is_whole_first(
    house: House,
) -> None:
    """An exception of anybody's ends the tree and puts the parent back on its way."""

    def fail(progress: Progress) -> None:
        if progress.escapes >= 3:
            raise ZeroDivisionError

    with house.unchanged(), pytest.raises(ZeroDivisionError):
        house.door.run_step(["sh", "-c", f"{SPOIL}; sleep 65"], on_event=fail)
    [run_id] = house.runs

    assert nobody_runs(run_id)
    # Its record is written by whoever comes next.
    [recovered] = house.door.recover().runs
    assert (recovered.run_id, recovered.promotion) == (run_id, "none")
    assert house.journal == []


@pytest.mark.slow
def test_run_when_its_journal_cannot_be_closed_then_is_closed_later(
    house: House,
) -> None:
    """A run that is not closed promotes nothing, says so, and `recover` closes it."""
    require("immutable-files")
    journal = f"{house.state}/workspace-*/journal"
    try:
        with house.unchanged():
            done = house.run(f"{GOOD}; {SPOIL}; chattr +i {journal}")
    finally:
        subprocess.run(f"chattr -i {journal}", shell=True, check=True)
    [run_id] = house.runs

    assert done.error == (56, "run-not-closed")
    assert house.door.runs() == [run_id]
    assert house.call("recover", house.workspace).status == 0
    assert house.door.record().verdict.value == "runner_failed"
    assert house.journal == []
