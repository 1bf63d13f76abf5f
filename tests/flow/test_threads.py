"""One `Workspace` for many threads: kept apart where they share, else at once."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING

import pytest
from guarded import GOOD, House, until
from sample import build_workspace

from workspace_guard import Contract, Workspace
from workspace_guard.errors import WorkspaceHeld

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from workspace_guard import RunRecord

pytestmark = pytest.mark.mode("detect")


@pytest.fixture
def house(workspace: Path, state_dir: Path) -> House:
    """The sample workspace and a state folder."""
    return House(workspace, state_dir)


@pytest.fixture
def pool() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    """Four threads."""
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.mark.slow
def test_threads_when_in_different_workspaces_then_run_at_once(
    place: Path, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    """Runs in several workspaces wait for each other only where their commands do."""
    houses = [
        House(place / name / f"workspace-{name}", place / "state") for name in "abcd"
    ]
    for house in houses:
        house.workspace.parent.mkdir()
        build_workspace(house.workspace)
    befores = [house.look() for house in houses]
    # Each goes on once all have begun; so it ends only if they run at once.
    all_here = " && ".join(f"[ -e {place}/begun-{name} ]" for name in "abcd")

    def run(name: str, house: House) -> RunRecord:
        wait = f": > {place}/begun-{name}; until {all_here}; do sleep 0.01; done"
        script = f"{wait}; echo {name} > ../../PLAN.md; {GOOD}"
        contract = Contract.of(on_escape="report", no_promote=True, timeout=30)
        return house.door.run_step(["sh", "-c", script], contract)

    records = list(pool.map(run, "abcd", houses))

    assert [record.verdict.value for record in records] == ["accepted"] * 4
    assert [[e.path for e in r.escapes] for r in records] == [[b"PLAN.md"]] * 4
    assert befores == [house.look() for house in houses]
    pairs = zip(houses, records, strict=True)
    kept = [house.kept(record.to_json(), "PLAN.md") for house, record in pairs]
    assert kept == [b"a\n", b"b\n", b"c\n", b"d\n"]


@pytest.mark.slow
def test_threads_when_in_one_workspace_then_the_second_is_refused(
    house: House, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    """The lock keeps threads apart like processes, and names who holds it."""
    shared = house.door
    script = f": > ready; while [ ! -e go ]; do sleep 0.01; done; {GOOD}"
    step = house.workspace / "tasks/run_1"
    first = pool.submit(shared.run_step, ["sh", "-c", script])
    until((step / "ready").exists)
    with pytest.raises(WorkspaceHeld) as held:
        pool.submit(shared.run_step, ["true"]).result()
    waiting = pool.submit(shared.run_step, ["sh", "-c", GOOD], wait_s=30)
    until(lambda: len(house.runs) == 2)
    (step / "go").touch()

    assert held.value.pid == os.getpid()
    assert held.value.run_id == first.result().run_id
    assert [f.result().verdict.value for f in (first, waiting)] == ["promoted"] * 2
    assert len(shared.runs()) == 2


@pytest.mark.slow
def test_threads_when_all_wait_for_one_workspace_then_each_has_its_turn(
    house: House, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    """Every run gets a step of its own, and promotes onto the one before."""
    shared = house.door
    add = "cat inputs/output.snapshot.md > output.md; echo $WSGUARD_RUN >> output.md"
    futures = [
        pool.submit(shared.run_step, ["sh", "-c", add], wait_s=60) for _ in range(4)
    ]
    records = [future.result() for future in futures]
    lines = (house.workspace / "output.md").read_text().splitlines()

    assert [record.verdict.value for record in records] == ["promoted"] * 4
    assert sorted(lines[-4:]) == sorted(record.run_id for record in records)
    assert {record.step_name for record in records} == {
        *("run_1", "run_2", "run_3", "run_4")
    }
    assert house.journal == []


@pytest.mark.case("E58")
def test_thread_when_it_is_not_the_main_one_then_runs_a_step(house: House) -> None:
    """A worker thread cannot take signals, and need not; its end kills nobody."""
    records: list[RunRecord] = []
    thread = threading.Thread(
        target=lambda: records.append(house.door.run_step(["sh", "-c", GOOD]))
    )
    thread.start()
    thread.join()

    assert [record.verdict.value for record in records] == ["promoted"]


INTERRUPTED = """
    import sys, threading
    from workspace_guard import Workspace

    over = threading.Event()

    def work():
        record = Workspace(sys.argv[1], sys.argv[2]).run_step(["sh", "-c", sys.argv[3]])
        print(record.verdict.value, flush=True)
        over.set()

    threading.Thread(target=work).start()
    try:
        over.wait()
    except KeyboardInterrupt:
        print("the program's own", flush=True)
        over.wait()
"""


@pytest.mark.slow
def test_interrupt_when_the_step_is_in_a_thread_then_is_the_programs(
    house: House,
) -> None:
    """A library takes no signal from a program that runs its steps in threads."""
    script = f": > ready; while [ ! -e go ]; do sleep 0.01; done; {GOOD}"
    words = [house.workspace, house.state, script]
    step = house.workspace / "tasks/run_1"
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED), *words],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as program:
        assert program.stdout is not None
        until((step / "ready").exists)
        program.send_signal(2)
        first = program.stdout.readline()
        (step / "go").touch()
        rest, _ = program.communicate(timeout=20)

    assert (first, rest) == (b"the program's own\n", b"promoted\n")


def test_workspace_when_shared_then_has_no_state_of_its_own(house: House) -> None:
    """Two doors to one workspace are as good as one."""
    one, other = house.door, Workspace(house.workspace, house.state)
    record = one.run_step(["sh", "-c", GOOD])

    assert other.record(record.run_id) == record
    assert one.runs() == other.runs() == [record.run_id]
