"""SIGKILL of the guard at any moment, then `recover`: all is whole again.

The installed command is killed by strace at named system calls, and by its own command
when that starts and when it ends. Beside that a run in a child process is killed before
each single change of the disk that it makes, one after the other.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING

import pytest
from capabilities import require
from guarded import GOOD, House, nobody_runs, until
from killing import die_at, survives
from listing import changes
from sample import FILES, build_workspace

from workspace_guard import Contract
from workspace_guard.errors import GuardError, NotPutBack, RecoveryIncomplete

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from listing import TreeState

pytestmark = pytest.mark.mode("detect")
PLAN = FILES[b"PLAN.md"][1]
KILL = "read _ _ _ guard _ < /proc/$PPID/stat; kill -9 $guard"
"""Kill the guard, which is the parent of the supervisor, which is ours."""
SPOIL = (
    "echo mine > ../../PLAN.md; rm -rf ../../data; mv ../../bin ../../tools;"
    " chmod 700 ../../notes; mkdir -p ../../new/deep; echo 1 > ../../new/deep/file"
)
THREE = "for n in 1 2 3; do echo new $n > $n.md; done"
EVERY = int(os.environ.get("WORKSPACE_GUARD_TEST_EVERY", "3"))
TARGETS = ["1.md=output.md", "2.md=PLAN.md", "3.md=new/deep/three.md"]
STEP = b"tasks/run_1"


@pytest.fixture
def house(workspace: Path, state_dir: Path) -> House:
    """The sample workspace and a state folder."""
    return House(workspace, state_dir)


def with_door(place: Path) -> House:
    """A workspace and a state folder of its own below a folder."""
    place.mkdir()
    build_workspace(place / "workspace")
    return House(place / "workspace", place / "state")


def crash(house: House, script: str = SPOIL) -> str:
    """Run a step whose command kills the guard at its end; the run's id."""
    command = ["sh", "-c", f"{script}; {KILL}; sleep 60"]
    assert not survives(house, lambda: house.door.run_step(command))
    [run_id] = house.runs
    return run_id


def require_whole(house: House, before: TreeState) -> None:
    """See that the parent is as it was, and that nothing is left of a crash."""
    assert changes(before, house.look()) == {}
    assert (house.journal, house.snapshots) == ([], [])


# --- Killed by its own command --------------------------------------------------------


@pytest.mark.slow
@pytest.mark.case("E59")
@pytest.mark.parametrize(
    "script",
    [f"{KILL}; {SPOIL}; sleep 60", f"{SPOIL}; {KILL}; sleep 60", f"{GOOD}; {KILL}"],
    ids=["at the start", "at the end", "behind good work"],
)
def test_guard_when_killed_by_its_command_then_recover_puts_back(
    house: House, script: str
) -> None:
    """The tree is ended without its guard, and the parent is as it was."""
    before = house.look()
    killed = house.run(script)
    [run_id] = house.runs
    done = house.call("recover", house.workspace, "--json")

    assert killed.status == -signal.SIGKILL
    assert (done.status, len(done.document["runs"])) == (0, 1)
    require_whole(house, before)
    assert nobody_runs(run_id)
    assert list(house.temporary.iterdir()) == []
    record = house.door.record(run_id)
    assert (record.verdict.value, record.exit_status) == ("runner_failed", 20)


@pytest.mark.slow
@pytest.mark.case("S31")
def test_recover_when_repeated_then_does_nothing_more(house: House) -> None:
    """The second time nothing is open, and nothing is touched."""
    crash(house)
    first = house.call("recover", house.workspace, "--json")
    with house.unchanged(without=()):
        second = house.call("recover", house.workspace, "--json")

    assert (first.status, second.status) == (0, 0)
    assert second.document["runs"] == []


@pytest.mark.slow
@pytest.mark.case("S44")
def test_run_when_an_earlier_one_was_killed_then_recovers_first(house: House) -> None:
    """Nobody has to think of `recover`: the next run begins with it."""
    before = house.look()
    first = crash(house)
    done = house.run("true", "--no-target", "--name", "next")

    assert (done.status, done.document["verdict"]) == (0, "accepted")
    assert house.door.runs() == [first, done.document["run_id"]]
    assert house.door.record(first).verdict.value == "runner_failed"
    now = house.look(without=(STEP, b"tasks/next"))
    assert changes(before, now) == {}


@pytest.mark.slow
def test_quarantine_when_recovered_then_has_what_the_command_wrote(
    house: House,
) -> None:
    """Nothing is lost, also of a run that was cut off."""
    run_id = crash(house)
    done = house.call("recover", house.workspace, "--json")
    quarantine = house.folder / "runs" / run_id / "quarantine"

    assert done.status == 0
    assert (quarantine / "PLAN.md").read_bytes() == b"mine\n"
    assert (quarantine / "new/deep/file").read_bytes() == b"1\n"
    assert (quarantine / "tools/check.sh").exists()


# --- Newer edits ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.case("S39")
@pytest.mark.parametrize("by", ["recover", "run"])
def test_file_when_edited_after_the_crash_then_is_left_alone(
    house: House, by: str
) -> None:
    """Somebody's newer edit stays, is named, and the exit status is 44."""
    before = house.look()
    run_id = crash(house)
    until(lambda: nobody_runs(run_id))
    [heartbeat] = (house.folder / "journal").glob("*.heartbeat")
    until(lambda: heartbeat.read_bytes().startswith(b"ended"))
    until(lambda: time.time_ns() > heartbeat.stat().st_mtime_ns + 50_000_000)
    (house.workspace / "PLAN.md").write_bytes(b"an editor's\n")
    (house.workspace / "letter.md").write_bytes(b"an editor's\n")
    words = [by, house.workspace] if by == "recover" else ["run", "-w", house.workspace]
    done = house.call(*words, "--json", *(["--", "true"] if by == "run" else []))
    left = {b"PLAN.md", b"letter.md"}

    assert done.status == 44
    assert "PLAN.md" in done.out.decode()
    assert set(changes(before, house.look())) - {b"."} == left
    assert (house.workspace / "PLAN.md").read_bytes() == b"an editor's\n"
    assert house.journal == []
    # Its content from before the run is nowhere else any more, so it is kept.
    snapshot_id = house.door.record(run_id).snapshot_id
    assert f"{snapshot_id}.manifest" in house.snapshots


# --- What is needed is damaged --------------------------------------------------------


def flip_a_byte(path: Path) -> None:
    """Damage a file in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def only(folder: Path, pattern: str) -> Path:
    """The one file of a folder that a pattern matches."""
    [found] = folder.glob(pattern)
    return found


DAMAGES = [
    ("journal", "*.run.json", flip_a_byte, 54, "journal-damaged"),
    ("journal", "*.detect.json", flip_a_byte, 54, "journal-damaged"),
    ("snapshots", "*.manifest", flip_a_byte, 52, "store-damaged"),
    ("snapshots", "*.manifest", os.unlink, 53, "store-incomplete"),
    ("snapshots", "*.pack", os.unlink, 53, "store-incomplete"),
    ("snapshots", "*.index", flip_a_byte, 52, "store-damaged"),
]


@pytest.mark.slow
@pytest.mark.case("S28")
@pytest.mark.parametrize(("where", "pattern", "damage", "status", "error"), DAMAGES)
def test_recover_when_journal_or_store_is_damaged_then_touches_nothing(
    house: House,
    where: str,
    pattern: str,
    damage: Callable[[Path], object],
    status: int,
    error: str,
) -> None:
    """Nothing is done by what cannot be trusted, until somebody gives the run up."""
    crash(house)
    damage(only(house.folder / where, pattern))
    with house.unchanged(without=()):
        with pytest.raises(GuardError) as refused:
            house.door.recover()
        with pytest.raises(RecoveryIncomplete) as not_run:
            house.door.run_step(["true"], Contract.of(no_target=True))
        [given_up] = house.door.recover(accept_current=True).runs
        after = house.door.recover()

    assert (refused.value.exit_status, refused.value.msgid) == (status, error)
    assert not_run.value.message == refused.value.message
    assert given_up.left_as_is
    assert (after.runs, house.journal) == ((), [])


@pytest.mark.slow
def test_recover_when_a_content_is_damaged_then_names_what_is_not_put_back(
    house: House,
) -> None:
    """What can be put back is, and the rest stays open with its name."""
    crash(house, "echo mine > ../../PLAN.md; rm ../../template.md")
    pack = only(house.folder / "snapshots", "*.pack")
    pack.write_bytes(pack.read_bytes().replace(PLAN, b"x" * len(PLAN)))
    with pytest.raises(NotPutBack, match=r"could not be put back: PLAN\.md$"):
        house.door.recover()

    assert (house.workspace / "PLAN.md").read_bytes() == b"mine\n"
    template = (house.workspace / "template.md").read_bytes()
    assert template == FILES[b"template.md"][1]
    assert house.journal != []


@pytest.mark.slow
def test_recover_when_the_cause_is_mended_then_closes_the_run(house: House) -> None:
    """A folder that was locked is put back once somebody has opened it."""
    require("immutable-files")
    before = house.look()
    folder = house.workspace / "notes"
    try:
        crash(house, "rm ../../notes/-rf; chattr +i ../../notes")
        with pytest.raises(NotPutBack, match="notes"):
            house.door.recover()
    finally:
        subprocess.run(["chattr", "-i", folder], check=True)
    house.door.recover()

    require_whole(house, before)


# --- No room --------------------------------------------------------------------------


@pytest.fixture
def small_disk(state_dir: Path) -> Generator[Path]:
    """A state folder on a file system of its own of one megabyte."""
    require("mounts")
    state_dir.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", state_dir], check=True
    )
    try:
        yield state_dir
    finally:
        subprocess.run(["umount", state_dir], check=True)


@pytest.mark.slow
def test_run_when_the_snapshot_has_no_room_then_is_refused(
    house: House, small_disk: Path
) -> None:
    """Without a snapshot nothing runs, and nothing is left of it."""
    del small_disk
    (house.workspace / "big.bin").write_bytes(os.urandom(2 << 20))
    with house.unchanged(without=()):
        done = house.run(SPOIL)

    assert done.error == (55, "state-write-failed")
    assert "No space left on device" in done.said[0]
    assert (house.journal, house.snapshots, house.runs) == ([], [], [])


@pytest.mark.slow
def test_escape_when_quarantine_has_no_room_then_stays_where_it_is(
    house: House, small_disk: Path
) -> None:
    """Nothing is taken away that cannot be kept; the exit status says that it is so."""
    fill = f"dd if=/dev/zero of={small_disk}/filler bs=4k"
    record = house.door.run_step(["sh", "-c", f"echo mine > ../../PLAN.md; {fill}"])
    [escape] = record.escapes

    assert (record.exit_status, escape.effect) == (31, "unrestored")
    assert escape.message == "No space left on device"
    assert (house.workspace / "PLAN.md").read_bytes() == b"mine\n"
    assert house.journal == []
    assert f"{record.snapshot_id}.manifest" in house.snapshots


@pytest.mark.slow
def test_run_when_its_record_has_no_room_then_is_closed_once_there_is(
    house: House, small_disk: Path
) -> None:
    """The parent is whole all the same; `recover` writes what could not be written."""
    many = "for n in $(seq 300); do echo $n > $n.txt; done"
    fill = f"dd if=/dev/zero of={small_disk}/filler bs=4k; true"
    with house.unchanged():
        done = house.run(f"{many}; {fill}", "--target", "glob:*.txt", "--no-promote")
        (small_disk / "filler").unlink()
        recovered = house.door.recover().runs

    assert done.error == (56, "run-not-closed")
    assert "No space left on device" in done.said[0]
    assert [run.run_id for run in recovered] == house.door.runs()
    assert house.door.record().run_id == recovered[0].run_id
    assert house.journal == []


# --- Killed by strace at a named call -------------------------------------------------


def killed_at(call: str, nth: int) -> list[str]:
    """The command that has the guard, and only the guard, killed at a system call."""
    inject = f"inject={call}:signal=KILL:when={nth}"
    return ["strace", "-o", os.devnull, "-e", f"trace={call}", "-e", inject]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "nth"),
    [
        pytest.param("renameat", 1, id="the journal gets the run"),
        pytest.param("renameat", 3, id="the store gets its pack"),
        pytest.param("linkat", 1, id="two names become one file again"),
        pytest.param("unlinkat", 6, id="the store lets go"),
    ],
)
def test_command_when_killed_in_a_spoiled_run_then_recover_puts_back(
    house: House, call: str, nth: int
) -> None:
    """Wherever the guard is killed, the parent is whole after `recover`."""
    require("strace")
    before = house.look()
    words = ["run", "-w", house.workspace, "--", "sh", "-c", SPOIL]
    killed = house.call(*words, before=killed_at(call, nth))
    done = house.call("recover", house.workspace, "--json")

    assert (killed.status, done.status) == (-signal.SIGKILL, 0)
    require_whole(house, before)


@pytest.mark.slow
@pytest.mark.case("S58")
@pytest.mark.parametrize(
    ("nth", "promotion"),
    [(8, "undone"), (9, "finished"), (10, "finished")],
)
def test_command_when_killed_in_a_promotion_then_all_files_are_of_one_side(
    house: House, nth: int, promotion: str
) -> None:
    """Up to the journal it is undone, and from then on finished."""
    require("strace")
    before = house.look()
    options = [word for target in TARGETS for word in ("--target", target)]
    words = ["run", "-w", house.workspace, *options, "--", "sh", "-c", THREE]
    killed = house.call(*words, before=killed_at("renameat", nth))
    done = house.call("recover", house.workspace, "--json")
    [run] = done.document["runs"]

    assert (killed.status, done.status) == (-signal.SIGKILL, 0)
    assert run["promotion"] == promotion
    if promotion == "undone":
        require_whole(house, before)
    else:
        require_promoted(house)


def require_promoted(house: House) -> None:
    """See that all three targets are in place, and nothing else has changed."""
    new = [house.workspace / target.partition("=")[2] for target in TARGETS]
    assert [p.read_bytes() for p in new] == [b"new 1\n", b"new 2\n", b"new 3\n"]
    assert sorted(os.listdir(house.workspace / "new")) == ["deep"]
    assert os.listdir(house.workspace / "new/deep") == ["three.md"]
    assert house.journal == []
    assert house.door.record().verdict.value == "promoted"


# --- Killed before its Nth change of the disk -----------------------------------------


def every_kill(
    place: Path, body: Callable[[House, int], bool]
) -> Generator[tuple[House, TreeState]]:
    """Do something in a fresh workspace each time, killed ever later.

    Args:
        place: a scratch folder.
        body: gets a house and the number of the call that kills; tells whether it
            came through.

    Yields:
        The house after the kill, and the parent as it was before.
    """
    for nth in itertools.count(1, EVERY):
        house = with_door(place / str(nth))
        before = house.look()
        survived = body(house, nth)
        yield house, before
        if survived:
            assert nth > 20, "what was to be killed has hardly done anything"
            return


@pytest.mark.slow
@pytest.mark.case("S43")
def test_run_when_killed_before_any_change_then_recover_puts_back(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no moment at which a killed guard leaves a spoiled parent."""

    def body(house: House, nth: int) -> bool:
        command = ["sh", "-c", SPOIL]
        return survives(house, lambda: house.door.run_step(command), nth)

    for house, before in every_kill(place, body):
        monkeypatch.setattr(tempfile, "tempdir", str(house.temporary))
        house.door.recover()
        assert list(house.temporary.iterdir()) == []
        # Before the journal names the run nobody knows that its step was being built.
        built = set(changes(before, house.look())) - {b"tasks"}
        assert (built, house.journal, house.snapshots) == (set(), [], [])


@pytest.mark.slow
def test_promotion_when_killed_before_any_change_then_all_or_nothing(
    place: Path,
) -> None:
    """Every destination is the old one or the new one, and all are of one side."""

    def body(house: House, nth: int) -> bool:
        def run() -> None:
            house.door.run_step(
                ["sh", "-c", THREE],
                Contract.of(target=TARGETS),
                on_event=lambda p: die_at(nth) if p.stage == "promoting" else None,
            )

        return survives(house, run)

    for house, before in every_kill(place, body):
        recovered = house.door.recover().runs
        if recovered and recovered[0].promotion in {"none", "undone"}:
            require_whole(house, before)
        else:
            require_promoted(house)


@pytest.mark.slow
def test_recovery_when_killed_before_any_change_then_the_next_one_puts_back(
    place: Path,
) -> None:
    """Recovery can itself be cut off, and what it has done is no newer edit."""

    def body(house: House, nth: int) -> bool:
        command = ["sh", "-c", f"{SPOIL}; {KILL}; sleep 60"]
        assert not survives(house, lambda: house.door.run_step(command))
        return survives(house, house.door.recover, nth)

    for house, before in every_kill(place, body):
        house.door.recover()
        require_whole(house, before)
