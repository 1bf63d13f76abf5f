"""Each row of the predicate, with real commands through the Python API.

Every test states verdict, exit status, and what is different in the parent: nothing,
but for what a promotion has put there.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from capabilities import require
from guarded import GOOD, House
from listing import changes
from sample import DOCUMENT, FILES

from workspace_guard import Contract

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from accounts import Account

    from workspace_guard import RunRecord
    from workspace_guard.containment.base import Progress

resource = pytest.importorskip("resource")  # not on Windows
pytestmark = pytest.mark.mode("detect")
OLD = DOCUMENT.encode()
NEW = b"done\n"


@pytest.fixture
def house(workspace: Path, state_dir: Path) -> House:
    """The sample workspace and a state folder."""
    return House(workspace, state_dir)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What must come of a step."""

    verdict: str
    exit_status: int
    changed: tuple[bytes, ...] = ()
    """What is different in the parent."""


PROMOTED = Outcome("promoted", 0, (b"output.md",))


def outcome(
    house: House,
    command: str | list[str],
    on_event: Callable[[Progress], None] | None = None,
    **options: object,
) -> tuple[Outcome, RunRecord]:
    """Run a step, and say what came of it."""
    words = ["sh", "-c", command] if isinstance(command, str) else command
    before = house.look()
    record = house.door.run_step(words, Contract.of(**options), on_event=on_event)
    found = changes(before, house.look())
    if record.promotion:
        found.pop(b".", None)  # a new name moves the time of its folder
    verdict = record.verdict.value
    return Outcome(verdict, record.exit_status, tuple(found)), record


def at(stage: str, action: Callable[[], object]) -> Callable[[Progress], None]:
    """Do something once, when a run has come to a stage."""
    todo = [action]

    def on_event(progress: Progress) -> None:
        if progress.stage == stage and todo:
            todo.pop()()

    return on_event


def escapes(record: RunRecord) -> list[tuple[bytes, str, str]]:
    """Path, kind and effect of each escape."""
    return [(e.path, e.kind, e.effect) for e in record.escapes]


def states(record: RunRecord) -> dict[str, str]:
    """The state of each target."""
    return {target.path.shown: target.state for target in record.targets}


def call_as(user: Account, house: House, script: str, *options: str) -> dict[str, Any]:
    """Run a step as somebody else, by the command; its record, with the status."""
    done = user.wsguard(
        *("run", "-w", house.workspace, "--json", *options, "--", "sh", "-c", script),
        cwd=house.workspace,
        env={"WORKSPACE_GUARD_STATE_DIR": str(house.state)},
    )
    assert done.stdout, done.stderr.decode(errors="replace")
    return {**json.loads(done.stdout), "status": done.returncode}


# --- Rule 1: the runner ---------------------------------------------------------------


@pytest.mark.case("E60")
def test_command_when_it_exits_with_3_then_runner_failed(house: House) -> None:
    """Good work of a command that failed is not promoted, and stays in the step."""
    found, record = outcome(house, f"{GOOD}; exit 3")
    runner = record.runner

    assert Outcome("runner_failed", 20) == found
    assert (runner.error, runner.exit_code, runner.signal) == ("exit", 3, None)
    assert (house.workspace / "tasks/run_1/output.md").read_bytes() == NEW


def test_command_when_killed_then_runner_failed(house: House) -> None:
    """A command that was ended by a signal has failed."""
    found, record = outcome(house, f"{GOOD}; kill -9 $$")
    runner = record.runner

    assert Outcome("runner_failed", 20) == found
    assert (runner.error, runner.exit_code, runner.signal) == ("signal", None, 9)


def test_command_when_not_found_then_runner_failed(house: House) -> None:
    """A program that is not there is told by its name."""
    found, record = outcome(house, ["no-such-program", "--flag"])

    assert Outcome("runner_failed", 20) == found
    assert (
        record.runner.error,
        record.runner.message,
    ) == ("not_found", "no-such-program: no such program")


def test_command_when_not_executable_then_runner_failed(
    house: House, place: Path
) -> None:
    """A file that may not be executed is told by its path."""
    (place / "agent").write_text("#!/bin/sh\n")
    found, record = outcome(house, [str(place / "agent")])

    assert Outcome("runner_failed", 20) == found
    assert record.runner.error == "not_executable"
    assert str(place / "agent") in record.runner.message


@pytest.mark.slow
def test_command_when_its_time_is_up_then_timed_out(house: House) -> None:
    """What was there when the time was up is not promoted."""
    found, record = outcome(house, f"{GOOD}; sleep 60", timeout=0.3)

    assert Outcome("timed_out", 21) == found
    assert (record.runner.error, record.runner.timed_out) == ("timeout", True)


# --- Rule 2: nobody was still writing -------------------------------------------------


@pytest.mark.case("S45")
def test_target_when_a_leftover_has_it_open_then_unfinished(house: House) -> None:
    """A process that outlives the command with a target open is a writer."""
    script = f"{GOOD}; exec 3>>output.md; sleep 61 & exit 0"
    found, record = outcome(house, script, grace=0)

    assert Outcome("unfinished", 22) == found
    assert [
        (left.command, left.ended, left.target_open) for left in record.processes
    ] == [("sleep 61", "terminated", True)]


@pytest.mark.slow
def test_target_when_changed_after_the_command_then_unfinished(house: House) -> None:
    """A target that is written while the tree is being ended was not finished."""
    wait = "do sleep 0.01; done"
    late = f"trap 'echo late >> output.md; exit' TERM; : > ready; while :; {wait}"
    script = f"({late}) & while [ ! -e ready ]; {wait}; {GOOD}"
    found, record = outcome(house, script, grace=0)

    assert Outcome("unfinished", 22) == found
    assert record.reason == "changed after the command had ended: output.md"


def test_leftover_when_it_has_no_target_then_is_ended_and_named(house: House) -> None:
    """A process that was forgotten fails nothing."""
    found, record = outcome(house, f"{GOOD}; sleep 62 & exit 0", grace=0)

    assert found == PROMOTED
    assert [
        (left.command, left.ended, left.target_open) for left in record.processes
    ] == [("sleep 62", "terminated", False)]


# --- Rule 3: nothing escaped, and no gap could hide it --------------------------------


def test_command_when_it_writes_into_the_parent_then_escaped(house: House) -> None:
    """A good target counts for nothing beside an escape."""
    found, record = outcome(house, f"{GOOD}; echo mine > ../../PLAN.md")

    assert Outcome("escaped", 30) == found
    assert escapes(record) == [(b"PLAN.md", "changed", "restored")]


@contextlib.contextmanager
def mutable_again(path: Path) -> Generator[None]:
    """Take the flag of a file away again that nobody can change."""
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", path], check=True)


@pytest.mark.slow
def test_escape_when_it_cannot_be_undone_then_31_and_the_place_is_named(
    house: House,
) -> None:
    """What cannot be put back has an exit status of its own, and is not hidden."""
    require("immutable-files")
    script = f"{GOOD}; echo 4. >> ../../PLAN.md; chattr +i ../../PLAN.md"
    with mutable_again(house.workspace / "PLAN.md"):
        found, record = outcome(house, script)
    [escape] = record.escapes

    assert Outcome("escaped", 31, (b"PLAN.md",)) == found
    assert escapes(record) == [(b"PLAN.md", "changed", "unrestored")]
    assert escape.message == "Operation not permitted"
    # What could put it back by hand is kept.
    assert record.snapshot_id is not None
    assert f"{record.snapshot_id}.manifest" in house.snapshots


def test_escape_when_not_undone_and_only_reported_then_fails_all_the_same(
    house: House,
) -> None:
    """`--on-escape report` is no licence for a parent that is not as it was."""
    require("immutable-files")
    script = f"{GOOD}; : > ../../new; chattr +i ../../new"
    with mutable_again(house.workspace / "new"):
        found, record = outcome(house, script, on_escape="report")

    assert Outcome("escaped", 31, (b"new",)) == found
    assert escapes(record) == [(b"new", "created", "unrestored")]


@pytest.mark.slow
@pytest.mark.parametrize("user", ["ordinary"], indirect=True)
def test_escape_when_an_owner_cannot_be_given_back_then_31(
    user: Account, house: House
) -> None:
    """An ordinary user can remove root's file in his folder, but not make it again."""
    require("root")
    os.chown(house.workspace / "PLAN.md", 0, 0)
    record = call_as(user, house, f"{GOOD}; rm -f ../../PLAN.md")
    [escape] = record["escapes"]

    assert (record["status"], record["verdict"]) == (31, "escaped")
    assert (
        escape["path"],
        escape["kind"],
        escape["effect"],
    ) == ("PLAN.md", "deleted", "unrestored")
    assert "owner" in escape["message"]
    # Its content is there all the same.
    assert (house.workspace / "PLAN.md").read_bytes() == FILES[b"PLAN.md"][1]


def test_escape_when_only_reported_then_is_undone_and_fails_nothing(
    house: House,
) -> None:
    """`--on-escape report` puts back as ever and does not fail."""
    script = f"{GOOD}; echo mine > ../../PLAN.md"
    found, record = outcome(house, script, on_escape="report")

    assert found == PROMOTED
    assert escapes(record) == [(b"PLAN.md", "changed", "restored")]


@pytest.mark.slow
def test_escape_when_it_stops_the_run_then_the_tree_is_ended_at_once(
    house: House,
) -> None:
    """`--on-escape stop` saves the hour of a lost agent and judges as `fail`."""
    require("inotify")
    script = "sleep 63 & echo mine > ../../PLAN.md; sleep 64"
    found, record = outcome(house, script, on_escape="stop")

    assert Outcome("escaped", 30) == found
    assert record.runner.message == "ended at its first escape"
    assert record.duration_s < 30


@pytest.mark.case("S23")
def test_command_when_innocent_and_escapes_stop_then_is_not_stopped(
    house: House,
) -> None:
    """What the guard itself does in the tree is no escape of the command's."""
    found, record = outcome(house, f"sleep 0.1; {GOOD}", on_escape="stop")

    assert (found, escapes(record)) == (PROMOTED, [])


HIDDEN = "data/private"


@pytest.mark.slow
@pytest.mark.parametrize("user", ["ordinary"], indirect=True)
@pytest.mark.parametrize(
    ("options", "expected"),
    [((), (32, "unproven")), (("--accept-gaps",), (0, "promoted"))],
)
def test_folder_when_it_cannot_be_read_then_unproven_unless_accepted(
    user: Account, house: House, options: tuple[str, ...], expected: tuple[int, str]
) -> None:
    """Where nobody can look nobody can say that nothing escaped."""
    (house.workspace / HIDDEN).chmod(0)
    record = call_as(user, house, GOOD, *options)

    assert expected == (record["status"], record["verdict"])
    assert [(gap["path"], gap["could_hide_escape"]) for gap in record["gaps"]] == [
        (HIDDEN, True)
    ]
    document = (house.workspace / "output.md").read_bytes()
    assert document == (NEW if expected[0] == 0 else OLD)


# --- Rule 4: the targets are there ----------------------------------------------------

MISSING = Outcome("target_missing", 40)
INVALID = Outcome("target_invalid", 41)


@pytest.mark.case("S46")
@pytest.mark.parametrize(
    ("script", "target"),
    [
        ("true", "output.md"),
        ("echo 'Outcome: SUCCESS'", "output.md"),
        ("mkdir -p figures/empty", "figures/"),
        ("mkdir out; echo 1 > out/a.txt", "glob:out/*.md"),
    ],
)
def test_target_when_not_there_then_target_missing(
    house: House, script: str, target: str
) -> None:
    """A command that leaves nothing has not done its work, whatever it says."""
    found, record = outcome(house, script, target=[target])

    assert found == MISSING
    assert list(states(record).values()) == ["missing"]


@pytest.mark.parametrize(
    ("script", "target", "reason"),
    [
        pytest.param(
            "ln -s inputs/output.snapshot.md output.md",
            "output.md",
            "is a link",
            marks=pytest.mark.case("E4"),
        ),
        pytest.param(
            "ln -s /nowhere output.md",
            "output.md",
            "is a link",
            marks=pytest.mark.case("E61"),
        ),
        pytest.param(
            "mkfifo output.md",
            "output.md",
            "is no regular file",
            marks=pytest.mark.case("E16"),
        ),
        ("mkdir output.md", "output.md", "is a folder"),
        (": > output.md", "output.md", "is empty"),
        (
            "echo 1 > output.md; ln output.md twin",
            "output.md",
            "has 2 hard links; a target must have one",
        ),
        (
            "mkdir a; echo 1 > a/x.md; ln -s a b",
            "b/x.md",
            "a part of its path is a link or no folder",
        ),
        (
            "mkdir f; echo 1 > f/x; ln -s x f/y",
            "f/",
            "is a link",
        ),
    ],
)
def test_target_when_not_a_file_of_the_step_then_target_invalid(
    house: House, script: str, target: str, reason: str
) -> None:
    """Only regular files with one name, reached through no link, are promoted."""
    found, record = outcome(house, script, target=[target])

    assert found == INVALID
    assert reason in [target.reason for target in record.targets]


def test_target_when_empty_and_allowed_then_promoted(house: House) -> None:
    """An empty file may be what was wanted."""
    found, _ = outcome(house, ": > output.md", allow_empty=True)

    assert found == PROMOTED
    assert (house.workspace / "output.md").read_bytes() == b""


# --- Rules 5 and 6: changed, and accepted ---------------------------------------------

COPY = "cp inputs/output.snapshot.md output.md"


def test_target_when_it_is_its_input_and_a_change_is_required_then_unchanged(
    house: House,
) -> None:
    """A copy of the document is no new version of it."""
    found, record = outcome(house, COPY, require_change=True)

    assert Outcome("unchanged", 42) == found
    assert states(record) == {"output.md": "unchanged"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "fault"),
    [
        ("grep -q 阻塞信息 output.md", "exited with 1"),
        ("sh -c 'echo >> output.md'", "changed output.md"),
        ("no-such-check", "could not be started (no-such-check: no such program)"),
        ("sh -c 'kill -9 $$'", "ended by SIGKILL"),
    ],
)
def test_check_when_it_does_not_accept_then_rejected(
    house: House, check: str, fault: str
) -> None:
    """The contract's own check has the last word, and may not mend the candidate."""
    found, record = outcome(house, GOOD, verify=check)

    assert Outcome("rejected", 43) == found
    assert record.reason.endswith(fault)


@pytest.mark.slow
def test_check_when_it_escapes_then_escaped(house: House) -> None:
    """The check is held like the command."""
    check = "sh -c 'echo mine > ../../PLAN.md'"
    found, record = outcome(house, GOOD, verify=check)

    assert Outcome("escaped", 30) == found
    assert escapes(record) == [(b"PLAN.md", "changed", "restored")]


@pytest.mark.slow
def test_check_when_it_accepts_then_promoted(house: House) -> None:
    """A check runs in the step, after the command."""
    found, _ = outcome(house, GOOD, verify="grep -q done output.md")

    assert found == PROMOTED


# --- Rule 7: the destinations are as they were ----------------------------------------


@pytest.mark.case("E62")
@pytest.mark.parametrize("stage", ["judging", "promoting"])
def test_destination_when_edited_by_somebody_then_conflict(
    house: House, stage: str
) -> None:
    """Somebody's newer edit is never overwritten, also in the last moment."""
    document = house.workspace / "output.md"
    edit = at(stage, lambda: document.write_bytes(b"an editor's\n"))
    found, record = outcome(house, GOOD, on_event=edit)

    assert Outcome("conflict", 44, (b"output.md",)) == found
    assert document.read_bytes() == b"an editor's\n"
    assert "output.md" in record.reason


def test_destination_when_made_by_somebody_meanwhile_then_conflict(
    house: House,
) -> None:
    """A destination that was absent and is there now is somebody's."""
    new = house.workspace / "report.md"
    edit = at("judging", lambda: new.write_bytes(b"an editor's\n"))
    found, _ = outcome(house, "echo 1 > report.md", edit, target=["report.md"])

    assert Outcome("conflict", 44, (b".", b"report.md")) == found
    assert new.read_bytes() == b"an editor's\n"


# --- The promotion itself -------------------------------------------------------------

FAILED = Outcome("promotion_failed", 45)
THREE = "for n in 1 2 3; do echo new $n > $n.md; done"
TARGETS = ["1.md=output.md", "2.md=PLAN.md", "3.md=template.md"]


@contextlib.contextmanager
def mounted_on(path: Path) -> Generator[None]:
    """Make a file a mount point, so that no rename can replace it."""
    subprocess.run(["mount", "--bind", path, path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)


@pytest.mark.slow
@pytest.mark.case("S55")
@pytest.mark.case("S58")
@pytest.mark.case("S59")
def test_promotion_when_the_third_file_fails_then_none_has_changed(
    house: House,
) -> None:
    """All of the targets or none: the first two are the old files again, exactly."""
    require("mounts")
    with mounted_on(house.workspace / "template.md"):
        found, record = outcome(house, THREE, target=TARGETS)

    assert found == FAILED
    fact = "template.md: Device or resource busy"
    assert record.reason == f"promotion failed: {fact}"
    assert house.journal == []


@pytest.mark.slow
@pytest.mark.case("S61")
@pytest.mark.parametrize("user", ["ordinary"], indirect=True)
def test_promotion_when_a_folder_is_read_only_then_failed_before_any_rename(
    user: Account, house: House
) -> None:
    """What can be known before the first rename is known before it."""
    (house.workspace / "bin").chmod(0o555)
    targets = ("--target", "1.md=PLAN.md", "--target", "2.md=bin/check.sh")
    before = house.look()
    record = call_as(user, house, THREE, *targets)

    assert (record["status"], record["verdict"]) == (45, "promotion_failed")
    assert changes(before, house.look()) == {}


@pytest.mark.case("S52")
@pytest.mark.case("S53")
def test_promotion_when_the_disk_takes_half_a_file_then_failed_without_litter(
    house: House,
) -> None:
    """A short write is no success, and what was staged is gone."""
    which = resource.RLIMIT_FSIZE
    before = resource.getrlimit(which)
    limit = at("promoting", lambda: resource.setrlimit(which, (50_000, before[1])))
    try:
        found, record = outcome(house, "head -c 100000 /dev/zero > output.md", limit)
    finally:
        resource.setrlimit(which, before)

    assert found == FAILED
    assert record.reason == "promotion failed: File too large"


def test_promotion_when_a_folder_has_become_a_file_then_failed(house: House) -> None:
    """A destination that cannot be reached any more fails, and leaves no trace."""
    data = house.workspace / "reports"
    block = at("promoting", lambda: data.write_bytes(b"a file\n"))
    target = ["output.md=reports/2026/output.md"]
    found, _ = outcome(house, GOOD, block, target=target)

    assert Outcome("promotion_failed", 45, (b".", b"reports")) == found


# --- The good ends --------------------------------------------------------------------


def test_step_when_every_rule_holds_then_promoted(house: House) -> None:
    """The document is the new one, and nothing else has changed."""
    found, record = outcome(house, GOOD)
    [promoted] = record.promotion

    assert found == PROMOTED
    assert (house.workspace / "output.md").read_bytes() == NEW
    kept = house.folder / "runs" / record.run_id / str(promoted.previous)
    assert kept.read_bytes() == OLD
    assert house.journal == []
    assert house.snapshots == []


def test_step_when_many_targets_are_good_then_all_are_promoted(house: House) -> None:
    """Several files, some of them new and in new folders, are put in place together."""
    targets = [*TARGETS[:2], "3.md=reports/2026/three.md"]
    found, _ = outcome(house, THREE, target=targets)

    expected = (
        *(b"PLAN.md", b"output.md"),
        *(b"reports", b"reports/2026", b"reports/2026/three.md"),
    )
    assert Outcome("promoted", 0, expected) == found


def test_step_when_not_to_be_promoted_then_accepted(house: House) -> None:
    """A good candidate stays in its step under `--no-promote`."""
    found, record = outcome(house, GOOD, no_promote=True)

    assert Outcome("accepted", 0) == found
    assert states(record) == {"output.md": "valid"}
    assert (house.workspace / "tasks/run_1/output.md").read_bytes() == NEW


def test_step_when_nothing_is_asked_for_then_accepted(house: House) -> None:
    """A step without a target can still be judged."""
    found, record = outcome(house, "true", no_target=True)

    assert Outcome("accepted", 0) == found
    assert record.targets == ()
