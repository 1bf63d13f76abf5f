"""What stands in the journal while a run is going on, and how it is read again."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from steps import state_of

from workspace_guard.errors import JournalDamaged, RunNotClosed, StateWriteFailed
from workspace_guard.files.journal import write_sealed
from workspace_guard.files.relpath import RelPath
from workspace_guard.files.tree import Folder
from workspace_guard.step.openrun import OpenRun, open_runs, read_open_run

if TYPE_CHECKING:
    from pathlib import Path

    from workspace_guard.files.layout import WorkspaceState

OPEN = OpenRun(
    run_id="20261130T160000.000Z-abcdef",
    pid=4711,
    started_at="2026-11-30T16:00:00.000000Z",
    mode="detect",
    mode_reason="asked for by name",
    command=("pi", "-p", "补上"),
    step_name="run_1",
    step=b"tasks/run_1",
    scratch=b"/tmp/wsguard-x",
    destinations={RelPath((b"a.md",)): "a" * 64, RelPath((b"d", b"n.md")): None},
    folders={RelPath(): 1_700_000_000_123_456_789, RelPath((b"d",)): None},
)


@pytest.fixture
def state(tmp_path: Path) -> WorkspaceState:
    """The state of a workspace."""
    return state_of(tmp_path / "workspace", tmp_path / "state")


def test_open_run_when_written_then_reads_back(state: WorkspaceState) -> None:
    """Whoever finds a run cut off knows all that its guard knew."""
    OPEN.write(state)

    assert open_runs(state) == (OPEN.run_id,)
    assert read_open_run(state, OPEN.run_id) == OPEN


@pytest.mark.case("E11")
def test_open_run_when_names_are_no_utf8_then_reads_back_byte_for_byte(
    state: WorkspaceState,
) -> None:
    """A name that is no text stops neither the run nor its recovery."""
    odd = replace(
        OPEN,
        step_name=os.fsdecode(b"bad\xff"),
        step=b"tasks/bad\xff",
        scratch=b"/tmp/\xfe",
        destinations={RelPath((b"\xff\n",)): None},
        folders={RelPath((b"\xfe",)): 1},
    )

    odd.write(state)

    assert read_open_run(state, OPEN.run_id) == odd


def test_open_run_when_an_argument_is_no_utf8_then_is_shown_escaped(
    state: WorkspaceState,
) -> None:
    """A command is kept for people; it is not run again."""
    replace(OPEN, command=("cat", os.fsdecode(b"\xff"), "\ud800")).write(state)

    found = read_open_run(state, OPEN.run_id).command
    assert found == ("cat", "\\xff", "\\ud800")


def test_open_run_when_closed_then_is_out_of_the_journal(
    state: WorkspaceState,
) -> None:
    """An empty journal means that all is well."""
    OPEN.write(state)

    OPEN.close(state)

    assert (open_runs(state), os.listdir(state.journal)) == ((), [])


def test_open_run_when_it_cannot_be_closed_then_the_run_is_not_closed(
    state: WorkspaceState,
) -> None:
    """What should have been there and is not is told."""
    with pytest.raises(RunNotClosed) as caught:
        OPEN.close(state)

    assert caught.value.exit_status == 56


def test_open_run_when_it_cannot_be_written_then_is_refused(
    state: WorkspaceState,
) -> None:
    """No command is started whose run could not be recovered."""
    state.journal.rmdir()

    with pytest.raises(StateWriteFailed) as caught:
        OPEN.write(state)

    expected = f"journal {state.journal}: No such file or directory"
    assert expected == caught.value.message


@pytest.mark.parametrize("position", [0, 10, 100, 500, -2])
def test_open_run_when_a_byte_was_changed_then_is_damaged(
    state: WorkspaceState, position: int
) -> None:
    """Nothing is put back by a journal that somebody has touched."""
    OPEN.write(state)
    file = state.journal / f"{OPEN.run_id}.run.json"
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)

    with pytest.raises(JournalDamaged):
        read_open_run(state, OPEN.run_id)


def test_open_run_when_of_another_schema_then_is_not_guessed_at(
    state: WorkspaceState,
) -> None:
    """A newer version's open run is for a newer version to close."""
    with Folder.open(state.journal) as journal:
        document = {"schema": "workspace-guard/open-run/2"}
        write_sealed(journal, b"x.run.json", document, owner="x")

    with pytest.raises(JournalDamaged, match="open-run/2"):
        read_open_run(state, "x")


def test_open_runs_when_other_files_lie_there_then_are_not_runs(
    state: WorkspaceState,
) -> None:
    """Promotion journals and litter are no open runs; no state has none."""
    for name in ("x.promotion.json", ".wsguard-x-000000000000.tmp"):
        (state.journal / name).write_bytes(b"")

    assert open_runs(state) == ()
    assert open_runs(replace(state, path=state.path / "nowhere")) == ()
