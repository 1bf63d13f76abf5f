"""Close the runs that a crash has cut off: put back, finish or undo, record.

Room: step. Knows the order: first the parent is put back as it was before the command
(`containment.detect`), then a promotion that had begun is finished or undone
(`files.journal`), then what is left of the run is removed and its record written.
Harmless when repeated.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from workspace_guard.containment.base import RunnerResult, Usage
from workspace_guard.containment.choose import DETECT_STRENGTH
from workspace_guard.containment.detect import Detected, put_back_after_crash
from workspace_guard.errors import NotPutBack
from workspace_guard.files import journal as journals
from workspace_guard.files.relpath import RelPath
from workspace_guard.files.replace import is_staged_name
from workspace_guard.files.tree import Folder
from workspace_guard.step.archive import utc, write_record
from workspace_guard.step.destinations import hash_places
from workspace_guard.step.environment import remove_scratch
from workspace_guard.step.judge import Verdict
from workspace_guard.step.openrun import OpenRun, open_runs, read_open_run
from workspace_guard.step.promote import Promoted
from workspace_guard.step.record import RunRecord

if TYPE_CHECKING:
    from pathlib import Path

    from workspace_guard.files.layout import WorkspaceState


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredRun:
    """What became of one run that had been cut off."""

    run_id: str
    put_back: tuple[bytes, ...]
    """Paths of the workspace that were put back."""
    foreign: tuple[bytes, ...]
    """Paths that somebody changed after the crash; left alone."""
    unrestored: tuple[bytes, ...]
    """Paths that could not be put back."""
    promotion: Literal["none", "finished", "undone", "conflict", "given_up"]
    destinations: tuple[bytes, ...] = ()
    """Those of the promotion; for a conflict, those that somebody has edited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What was found open, and what was done about it."""

    runs: tuple[RecoveredRun, ...] = ()

    @property
    def conflicts(self) -> tuple[bytes, ...]:
        """Paths where somebody's newer edit was met and left alone."""
        return tuple(
            path
            for run in self.runs
            for path in (
                *run.foreign,
                *(run.destinations if run.promotion == "conflict" else ()),
            )
        )


def recover(
    workspace: Path, state: WorkspaceState, *, accept_current: bool = False
) -> Recovery:
    """Close every open run of a workspace that we hold.

    Args:
        workspace: absolute and resolved.
        state: its state folder.
        accept_current: give up a promotion whose destinations were edited meanwhile.

    Returns:
        What was done. A run whose promotion is in conflict stays open.

    Raises:
        NotPutBack: something could not be put back; the run stays open, and
            what was changed is in its quarantine.
        GuardError: the journal or the store is broken.
    """
    return Recovery(
        runs=tuple(
            _recover_one(
                workspace,
                state,
                read_open_run(state, run_id),
                accept_current=accept_current,
            )
            for run_id in open_runs(state)
        )
    )


def _recover_one(
    workspace: Path, state: WorkspaceState, open_run: OpenRun, *, accept_current: bool
) -> RecoveredRun:
    detected = put_back_after_crash(workspace, state, open_run.run_id)
    unrestored = tuple(
        escape.path for escape in detected.escapes if escape.effect == "unrestored"
    )
    if unrestored:
        names = ", ".join(path.decode(errors="replace") for path in unrestored)
        raise NotPutBack(
            f"run {open_run.run_id} was cut off and could not be put back: {names}"
        )
    promotion = _close_promotion(
        workspace, state, open_run, accept_current=accept_current
    )
    done = RecoveredRun(
        run_id=open_run.run_id,
        put_back=tuple(e.path for e in detected.escapes if e.effect == "restored"),
        foreign=tuple(e.path for e in detected.escapes if e.effect == "foreign"),
        unrestored=unrestored,
        promotion=promotion[0],
        destinations=tuple(bytes(path) for path in promotion[1]),
    )
    if done.promotion == "conflict":
        return done
    _remove_litter(workspace, open_run)
    remove_scratch(open_run.scratch)
    write_record(
        state.run(open_run.run_id), _record(workspace, open_run, detected, done)
    )
    open_run.close(state)
    return done


def _close_promotion(
    workspace: Path, state: WorkspaceState, open_run: OpenRun, *, accept_current: bool
) -> tuple[
    Literal["none", "finished", "undone", "conflict", "given_up"], tuple[RelPath, ...]
]:
    run = state.run(open_run.run_id)
    if not run.previous.is_dir():
        return "none", ()
    with (
        Folder.open(workspace) as top,
        Folder.open(run.previous) as kept,
        Folder.open(state.journal) as journal,
    ):
        found = journals.recover(open_run.run_id, top, kept, journal)
        if found is None:
            return _single_promotion(top, kept, open_run)
        if found.outcome == "conflict" and accept_current:
            journal.unlink(journals.journal_name(open_run.run_id))
            return "given_up", found.destinations
    return found.outcome, found.destinations


def _single_promotion(
    top: Folder, kept: Folder, open_run: OpenRun
) -> tuple[Literal["none", "finished", "undone"], tuple[RelPath, ...]]:
    """Tell how far a promotion of one file had come: it needs no journal.

    One rename is all or nothing, so the destination is the old file or the new one;
    what is left is to say which, and to let go of the kept name of an old file that
    is still in place.
    """
    now = hash_places(top, open_run.destinations)
    moved = tuple(
        path
        for path, before in open_run.destinations.items()
        if now.get(path) != before
    )
    if moved:
        return "finished", moved
    names = kept.names()
    for name in names:
        kept.unlink(name)
    return ("undone" if names else "none"), ()


def _remove_litter(workspace: Path, open_run: OpenRun) -> None:
    """Remove staged files that the run has left beside its destinations."""
    parents = {path.parent for path in open_run.destinations}
    with Folder.open(workspace) as top:
        for parent in parents:
            with contextlib.suppress(OSError), top.reach(parent) as folder:
                for name in folder.names():
                    if is_staged_name(name, open_run.run_id):
                        folder.unlink(name)


def _record(
    workspace: Path, open_run: OpenRun, detected: Detected, done: RecoveredRun
) -> RunRecord:
    """The record of a run whose guard was killed: it never ends well by itself."""
    promoted = done.promotion == "finished"
    verdict = Verdict.PROMOTED if promoted else Verdict.RUNNER_FAILED
    reason = (
        "the guard was killed after the step had been judged; recovery finished it"
        if promoted
        else "the guard was killed while the run was going on"
    )
    with Folder.open(workspace) as top:
        now = hash_places(top, open_run.destinations)
    return RunRecord(
        run_id=open_run.run_id,
        workspace=os.fsencode(workspace),
        step_name=open_run.step_name,
        step_path=open_run.step,
        mode=open_run.mode,
        mode_reason=open_run.mode_reason,
        enforcement=DETECT_STRENGTH,
        gaps=detected.gaps,
        started_at=open_run.started_at,
        ended_at=utc(dt.datetime.now(dt.UTC)),
        duration_s=0.0,
        command=open_run.command,
        runner=RunnerResult(
            error=None if promoted else "interrupted",
            exit_code=0 if promoted else None,
            signal=None,
            timed_out=False,
            message="" if promoted else reason,
        ),
        inputs=(),
        targets=(),
        escapes=detected.escapes,
        processes=(),
        usage=Usage(cpu_s=0.0, max_rss_bytes=0),
        verdict=verdict,
        reason=reason,
        promotion=tuple(
            Promoted(
                destination=RelPath.of(path),
                before_sha256=open_run.destinations.get(RelPath.of(path)),
                after_sha256=now.get(RelPath.of(path), ""),
                previous=None,
            )
            for path in (done.destinations if promoted else ())
        ),
        interrupted_by=None if promoted else int(signal.SIGTERM),
    )
