"""`wsguard runs`: what is kept of earlier runs, found and shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from guarded import GOOD, House, finish, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture
def house(workspace: Path, state_dir: Path) -> House:
    """The sample workspace and a state folder."""
    return House(workspace, state_dir)


@pytest.fixture
def two_runs(house: House) -> tuple[str, str]:
    """The ids of a good run and of one that escaped."""
    house.door.run_step(["sh", "-c", GOOD])
    house.door.run_step(["sh", "-c", "echo mine > ../../PLAN.md"])
    first, second = house.door.runs()
    return first, second


def test_list_when_runs_are_kept_then_has_each_with_its_end(
    house: House, two_runs: tuple[str, str]
) -> None:
    """The oldest comes first."""
    done = house.call_here("runs", "list", "--json")
    rows = done.document["runs"]

    assert done.status == 0
    assert [(row["run_id"], row["verdict"], row["exit_status"]) for row in rows] == [
        (two_runs[0], "promoted", 0),
        (two_runs[1], "escaped", 30),
    ]
    assert {row["workspace"] for row in rows} == {str(house.workspace)}


def test_list_when_text_then_a_line_a_run_on_stdout(
    house: House, two_runs: tuple[str, str]
) -> None:
    """What is listed can be piped on, whatever the width and the encoding."""
    done = house.call("runs", "list", env={"PYTHONIOENCODING": "ascii"})
    lines = done.out.decode("ascii").splitlines()

    assert [line.split()[0] for line in lines] == ["run", *two_runs]
    assert lines[2].split()[1:3] == ["escaped", "1"]
    assert done.err == ""


def test_list_when_another_workspace_is_asked_for_then_is_empty(
    house: House, two_runs: tuple[str, str], place: Path
) -> None:
    """`-w` narrows the list."""
    del two_runs
    (place / "other").mkdir()
    there = house.call_here("runs", "list", "-w", house.workspace, "--json")
    elsewhere = house.call_here("runs", "list", "-w", place / "other", "--json")

    assert len(there.document["runs"]) == 2
    assert elsewhere.document["runs"] == []


def test_list_when_a_run_is_going_on_then_says_open_and_changes_nothing(
    house: House,
) -> None:
    """Reading commands recover nothing and wait for nobody."""
    script = ": > ready; while [ ! -e go ]; do sleep 0.01; done"
    words = ["run", "-w", house.workspace, "--no-target", "--", "sh", "-c", script]
    step = house.workspace / "tasks/run_1"
    with house.start(*words) as process:
        until((step / "ready").exists)
        journal = house.journal
        done = house.call("runs", "list", "--json")
        assert house.journal == journal
        (step / "go").touch()
        finish(process)

    [row] = done.document["runs"]
    assert (row["state"], row["verdict"]) == ("open", None)


@pytest.mark.parametrize("which", ["latest", "whole", "beginning", "none"])
def test_show_when_a_run_is_named_then_is_its_record(
    house: House, two_runs: tuple[str, str], which: str
) -> None:
    """By its id, by a beginning of it, as `latest`, and the last of this workspace."""
    first, last = two_runs
    differ = next(n for n in range(len(first)) if first[n] != last[n])
    named = {"latest": "latest", "whole": last, "beginning": last[: differ + 1]}
    words = [named[which]] if which in named else []
    done = house.call_here("runs", "show", *words, "--json", cwd=house.workspace)

    assert (done.status, done.document["run_id"]) == (0, last)
    run = house.folder / "runs" / last
    assert json.loads((run / "record.json").read_bytes()) == done.document


def test_show_when_text_then_a_person_understands_it(
    house: House, two_runs: tuple[str, str]
) -> None:
    """Verdict, why, the escape with what happened to it, and where things are kept."""
    done = house.call_here("runs", "show", two_runs[1])
    run = house.folder / "runs" / two_runs[1]

    assert done.out == b""
    for text in (
        "✘ escaped: the command changed something outside its step",
        "outside the step: changed PLAN.md",
        "changed PLAN.md: put back as it was, kept as quarantine/PLAN.md",
        "output.md: missing",
        str(run),
        "quarantine: what was written in the wrong place",
    ):
        assert text in done.err


@pytest.mark.parametrize("run_id", ["19990101", "2", ""])
def test_show_when_no_single_run_is_meant_then_50(
    house: House, two_runs: tuple[str, str], run_id: str
) -> None:
    """An id that no run has, or more than one, is refused."""
    del two_runs
    done = house.call_here("runs", "show", run_id, "--json")

    assert done.error == (50, "record-missing")
    assert "wsguard runs list" in done.said[1]


def test_show_when_the_record_is_damaged_then_51(
    house: House, two_runs: tuple[str, str]
) -> None:
    """A record with any byte changed is not shown for true."""
    record = house.folder / "runs" / two_runs[1] / "record.json"
    record.write_bytes(record.read_bytes().replace(b"escaped", b"refused"))
    done = house.call_here("runs", "show", two_runs[1], "--json")
    rows = house.call_here("runs", "list", "--json").document["runs"]

    assert done.error == (51, "record-damaged")
    assert [row["state"] for row in rows] == ["closed", "damaged"]


def test_show_when_nothing_was_ever_run_then_50(house: House) -> None:
    """A state folder that is not there yet has no runs, and is not made."""
    done = house.call_here("runs", "show", "-w", house.workspace, "--json")
    listed = house.call_here("runs", "list", "--json")

    assert (done.status, listed.document["runs"]) == (50, [])
    assert not house.state.exists()


def test_pipe_when_closed_early_then_no_traceback(
    house: House, two_runs: tuple[str, str]
) -> None:
    """`wsguard runs list | head -1` is quiet."""
    del two_runs
    before = ["sh", "-c", '"$@" | true; exec 2>&1; "$@" | head -n 1', "sh"]
    done = house.call("runs", "list", before=before)

    assert (done.status, done.err) == (0, "")
