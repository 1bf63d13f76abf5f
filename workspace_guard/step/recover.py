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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from workspace_guard.containment.base import RunnerResult, Usage
from workspace_guard.containment.choose import DETECT_STRENGTH
from workspace_guard.containment.detect import (
    Detected,
    give_up_after_crash,
    put_back_after_crash,
)
from workspace_guard.errors import (
    JournalDamaged,
    NotPutBack,
    StoreDamaged,
    StoreIncomplete,
    show_path,
)
from workspace_guard.files import journal as journals
from workspace_guard.files.relpath import RelPath
from workspace_guard.files.replace import is_staged_name, remove_staged
from workspace_guard.files.tree import Folder
from workspace_guard.step.archive import runs_of, utc, write_record
from workspace_guard.step.destinations import hash_places
from workspace_guard.step.environment import (
    remove_scratch,
    remove_unnamed_scratch,
)
from workspace_guard.step.folders import put_back_folders
from workspace_guard.step.judge import Verdict
from workspace_guard.step.openrun import OpenRun, open_runs, read_open_run
from workspace_guard.step.promote import Promoted
from workspace_guard.step.record import RunRecord

if TYPE_CHECKING:
    from pathlib import Path

    from workspace_guard.files.layout import WorkspaceState


PromotionOutcome = Literal["none", "finished", "undone", "conflict", "given_up"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredRun:
    """What became of one run that had been cut off."""

    run_id: str
    put_back: tuple[bytes, ...]
    """Paths of the workspace that were put back."""
    foreign: tuple[bytes, ...]
    """Paths that somebody changed after the crash; left alone."""
    promotion: PromotionOutcome
    destinations: tuple[bytes, ...] = ()
    """Those of the promotion; for a conflict, those that somebody has edited."""
    left_as_is: bool = False
    """Whether putting back was given up, so that every file stays as it is."""

    @property
    def shown(self) -> str:
        """What was done, in one line for people."""
        text = f"run {self.run_id} had been cut off and was closed first"
        if self.put_back:
            names = ", ".join(show_path(path) or "." for path in self.put_back[:3])
            more = len(self.put_back) - 3
            text += f"; put back: {names}" + (f" and {more} more" if more > 0 else "")
            text += f"; `wsguard runs show {self.run_id}` names what was there instead"
        if self.promotion == "finished":
            text += "; its promotion was finished"
        return text


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
        accept_current: give up what cannot be closed otherwise: a promotion whose
            destinations were edited meanwhile, a run whose snapshot or journal is
            damaged. Every file then stays as it is.

    Returns:
        What was done. A run whose promotion is in conflict stays open.

    Raises:
        NotPutBack: something could not be put back; the run stays open, and
            what was changed is in its quarantine.
        GuardError: the journal or the store is broken.
    """
    return Recovery(
        runs=tuple(
            _recover_one(workspace, state, run_id, accept_current=accept_current)
            for run_id in open_runs(state)
        )
    )


def sweep_unstarted(state: WorkspaceState) -> None:
    """Remove what is left of runs that were killed before the journal named them.

    Nothing had run in them, so their folders are empty; one that is not stays. The
    newest are looked at, down to the last run that is over.
    """
    still_open = set(open_runs(state))
    with Folder.open(state.journal) as journal, Folder.open(state.runs) as runs:
        for run in reversed(runs_of(state)):
            if run.record_digest.exists():
                return
            if run.run_id not in still_open:
                remove_staged(journal, run.run_id)
                remove_unnamed_scratch(run)
                with contextlib.suppress(OSError):
                    runs.remove_folder(os.fsencode(run.run_id))


def _recover_one(
    workspace: Path, state: WorkspaceState, run_id: str, *, accept_current: bool
) -> RecoveredRun:
    try:
        open_run = read_open_run(state, run_id)
    except JournalDamaged:
        if not accept_current:
            raise
        return _give_up(state, run_id)
    detected, left = _put_back(workspace, state, run_id, accept_current=accept_current)
    outcome, destinations = _close_promotion(
        workspace, state, open_run, accept_current=accept_current
    )
    done = RecoveredRun(
        run_id=run_id,
        put_back=tuple(e.path for e in detected.escapes if e.effect == "restored"),
        foreign=tuple(e.path for e in detected.escapes if e.effect == "foreign"),
        left_as_is=left,
        promotion=outcome,
        destinations=tuple(bytes(path) for path in destinations),
    )
    if done.promotion == "conflict":
        return done
    _clear_up(workspace, state, open_run, undone=done.promotion in {"none", "undone"})
    record = _record(workspace, open_run, detected, done)
    write_record(state.run(run_id), record)
    open_run.close(state)
    return done


def _put_back(
    workspace: Path, state: WorkspaceState, run_id: str, *, accept_current: bool
) -> tuple[Detected, bool]:
    """Put the parent back; tells whether that was given up instead."""
    try:
        return _require_whole(put_back_after_crash(workspace, state, run_id)), False
    except (JournalDamaged, StoreDamaged, StoreIncomplete, NotPutBack):
        if not accept_current:
            raise
        return give_up_after_crash(state, run_id), True


def _require_whole(detected: Detected) -> Detected:
    lost = [e.path for e in detected.escapes if e.effect == "unrestored"]
    if lost:
        names = ", ".join(show_path(path) for path in lost)
        raise NotPutBack(f"a run was cut off and could not be put back: {names}")
    return detected


def _give_up(state: WorkspaceState, run_id: str) -> RecoveredRun:
    """Close a run of which the journal does not tell enough to close it by a record."""
    give_up_after_crash(state, run_id)
    own = os.fsencode(run_id) + b"."
    with Folder.open(state.journal) as journal:
        for name in journal.names():
            if name.startswith(own):
                journal.unlink(name)
    return RecoveredRun(
        run_id=run_id, put_back=(), foreign=(), left_as_is=True, promotion="given_up"
    )


def _close_promotion(
    workspace: Path, state: WorkspaceState, open_run: OpenRun, *, accept_current: bool
) -> tuple[PromotionOutcome, tuple[RelPath, ...]]:
    run = state.run(open_run.run_id)
    if not run.previous.is_dir():
        return "none", ()
    with (
        Folder.open(workspace) as top,
        Folder.open(run.previous) as kept,
        Folder.open(state.journal) as journal,
    ):
        try:
            found = journals.recover(open_run.run_id, top, kept, journal)
        except JournalDamaged:
            if not accept_current:
                raise
            found = journals.Recovered(outcome="conflict", destinations=())
        if found is None:
            return _without_journal(top, kept, open_run)
        if found.outcome == "conflict" and accept_current:
            journal.unlink(journals.journal_name(open_run.run_id))
            return "given_up", found.destinations
    return found.outcome, found.destinations


def _without_journal(
    top: Folder, kept: Folder, open_run: OpenRun
) -> tuple[Literal["none", "finished", "undone"], tuple[RelPath, ...]]:
    """Tell how far a promotion had come that has no journal (any more).

    One of several files was not decided yet, or is over; one of a single file has none:
    its rename is all or nothing. A staged file that is still there says that nothing
    was renamed.
    """
    now = hash_places(top, open_run.destinations)
    moved = tuple(
        path
        for path, before in open_run.destinations.items()
        if now.get(path) != before
    )
    names = kept.names()
    began_absent = all(open_run.destinations[path] is None for path in moved)
    if moved and (names or began_absent) and not _has_staged(top, open_run):
        return "finished", moved
    if not moved:
        for name in names:  # second names of what is still in place
            kept.unlink(name)
    return ("undone" if names else "none"), ()


def _has_staged(top: Folder, open_run: OpenRun) -> bool:
    for parent in _parents(open_run):
        with contextlib.suppress(OSError), top.reach(parent) as folder:
            if any(is_staged_name(n, open_run.run_id) for n in folder.names()):
                return True
    return False


def _parents(open_run: OpenRun) -> set[RelPath]:
    return {path.parent for path in open_run.destinations}


def _clear_up(
    workspace: Path, state: WorkspaceState, open_run: OpenRun, *, undone: bool
) -> None:
    """Remove what the run has left that nobody asked for."""
    had_begun = state.run(open_run.run_id).previous.is_dir()
    with Folder.open(workspace) as top:
        for parent in _parents(open_run):
            with contextlib.suppress(OSError), top.reach(parent) as folder:
                remove_staged(folder, open_run.run_id)
        if undone and had_begun:
            put_back_folders(top, open_run.folders)
    with Folder.open(state.journal) as journal:
        remove_staged(journal, open_run.run_id)
    remove_scratch(open_run.scratch)


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
        snapshot_id=detected.snapshot_id,
    )
