"""The street of one step, from contract to record.

Room: step. Names the stations in their order and hands each the value of the one
before; what a station does is said in its own module.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shutil
import signal
import stat
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from workspace_guard.containment.base import Enclosure, Limits, Progress
from workspace_guard.errors import (
    GuardError,
    Interrupted,
    PromotionFailed,
    RunNotClosed,
    StateWriteFailed,
    show_path,
)
from workspace_guard.files.mounts import mounts_below, remove_unmounted
from workspace_guard.files.replace import staged_name
from workspace_guard.files.tree import CHUNK_BYTES, Folder, remove_entry
from workspace_guard.step.archive import utc, write_record
from workspace_guard.step.candidates import look
from workspace_guard.step.destinations import hash_places
from workspace_guard.step.environment import environment, scratch_folder
from workspace_guard.step.folders import folder_times, put_back_folders
from workspace_guard.step.judge import Facts, Judgement, Policy, Verdict, judge
from workspace_guard.step.openrun import OpenRun
from workspace_guard.step.promote import DestinationMoved, Promoted, prepare
from workspace_guard.step.record import RunRecord
from workspace_guard.step.stage import TASKS, StagedStep, stage, unstage
from workspace_guard.step.verify import moved_targets, never_ran, together, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from pathlib import Path

    from workspace_guard.containment.base import ContainedRun, Containment, Stdio
    from workspace_guard.containment.choose import ModeReport
    from workspace_guard.containment.interrupts import Interrupts
    from workspace_guard.files.layout import RunFolder, WorkspaceState
    from workspace_guard.step.candidates import TargetState
    from workspace_guard.step.contract import Contract
    from workspace_guard.step.judge import Verification


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a run takes place, and with what."""

    workspace: Path
    """Absolute and resolved; held by a lock."""
    state: WorkspaceState
    run: RunFolder
    containment: Containment
    mode: ModeReport
    interrupts: Interrupts
    caller_environment: Mapping[str, str]
    stdio: Stdio
    on_event: Callable[[Progress], None]
    warnings: tuple[str, ...] = ()
    """What was to be said before the run began."""


def run_step(site: Site, command: tuple[str, ...], contract: Contract) -> RunRecord:
    """Take one step from its contract to its record.

    Args:
        site: where, in a workspace that is held and whole.
        command: the program and its arguments.
        contract: what the step gets and must leave.

    Returns:
        The record, which is on disk; a step that misbehaved is a verdict in it.

    Raises:
        GuardError: nothing ran and nothing of the step is left; or, for
            `RunNotClosed` alone, the run is over and its record could not be written:
            the journal is open and `recover` closes it.
    """
    started, begun_s = dt.datetime.now(dt.UTC), time.monotonic()
    site.on_event(Progress(stage="staging"))
    with scratch_folder(site.workspace, site.run) as scratch:
        staged = stage(site.workspace, contract)
        open_run = _open_run(site, staged, command, utc(started), scratch)
        enclosure = _enclosure(site, staged, contract, scratch)
        with _nothing_left_if_refused(site, staged, open_run):
            contained = _contain(site, enclosure, command, contract)
        contained = _heed_late_signals(site, contained)
        site.on_event(Progress(stage="judging"))
        targets = look(staged, contract)
        contained, verification = _verify(
            site, staged, contract, enclosure, contained, targets
        )
        contained = _heed_late_signals(site, contained)
        judgement = judge(
            _facts(site, contained, targets, staged, verification),
            _policy(contract, staged),
        )
        judgement, promotion = _promote(site, open_run, staged, targets, judgement)
        warnings = _leave_log(site.run, staged)
        warnings += _misplaced(contained, command)
        warnings += _mounted_in(scratch)
        if contract.remove_step and judgement.verdict is Verdict.PROMOTED:
            warnings += _remove_step(staged)
    record = RunRecord(
        run_id=site.run.run_id,
        workspace=os.fsencode(site.workspace),
        step_name=staged.name,
        step_path=open_run.step,
        mode=site.mode.name,
        mode_reason=site.mode.reason,
        enforcement=contained.strength,
        gaps=contained.gaps,
        started_at=open_run.started_at,
        ended_at=utc(dt.datetime.now(dt.UTC)),
        duration_s=round(time.monotonic() - begun_s, 3),
        command=command,
        runner=contained.runner,
        inputs=staged.inputs,
        targets=targets,
        escapes=contained.escapes,
        processes=contained.processes,
        usage=contained.usage,
        verdict=judgement.verdict,
        reason=judgement.reason,
        promotion=promotion,
        task_rewrites=staged.task.rewritten,
        warnings=site.warnings + staged.task.warnings + warnings,
        interrupted_by=contained.interrupted_by,
        snapshot_id=contained.snapshot_id,
    )
    write_record(site.run, record)
    open_run.close(site.state)
    return record


def _open_run(
    site: Site,
    staged: StagedStep,
    command: tuple[str, ...],
    started_at: str,
    scratch: Path,
) -> OpenRun:
    """Put the run into the journal; it stays there until its record is written."""
    absent = dict.fromkeys(t.destination for t in staged.targets if t.kind == "file")
    destinations = {**absent, **staged.baseline}
    relative = staged.relative
    with Folder.open(site.workspace) as top:
        folders = folder_times(top, destinations)
    open_run = OpenRun(
        run_id=site.run.run_id,
        pid=os.getpid(),
        started_at=started_at,
        mode=site.mode.name,
        mode_reason=site.mode.reason,
        command=command,
        step_name=staged.name,
        step=os.fsencode(staged.path) if relative is None else bytes(relative),
        scratch=os.fsencode(scratch),
        destinations=destinations,
        folders=folders,
    )
    with _nothing_left_if_refused(site, staged, None):
        open_run.write(site.state)
    return open_run


@contextlib.contextmanager
def _nothing_left_if_refused(
    site: Site, staged: StagedStep, open_run: OpenRun | None
) -> Generator[None]:
    """Take the step away again where the command was never started."""
    try:
        yield
    except RunNotClosed:
        raise
    except GuardError as error:
        try:
            unstage(site.workspace, staged)
        except OSError as second:
            error.add_note(f"and the step {staged.name} stays: {second}")
        if open_run is not None:
            open_run.close(site.state)
        raise


def _enclosure(
    site: Site, staged: StagedStep, contract: Contract, scratch: Path
) -> Enclosure:
    tasks = contract.step_dir or site.workspace / os.fsdecode(TASKS)
    inputs = {staged_input.source for staged_input in staged.inputs}
    return Enclosure(
        workspace=site.workspace,
        step=staged.relative,
        step_path=staged.path,
        run_id=site.run.run_id,
        log=site.run.log,
        quarantine=site.run.quarantine,
        environment=environment(
            contract,
            site.caller_environment,
            staged,
            tasks=tasks,
            scratch=scratch,
            run_id=site.run.run_id,
        ),
        selections=tuple(dict.fromkeys(target.top for target in staged.targets)),
        hashed=frozenset(inputs | staged.baseline.keys()),
        on_escape=contract.on_escape,
        verify_content=contract.verify_content,
        max_snapshot_bytes=contract.max_snapshot_bytes,
        keep_snapshot=contract.keep_snapshot,
        stdio=site.stdio,
    )


def _contain(
    site: Site, enclosure: Enclosure, command: tuple[str, ...], contract: Contract
) -> ContainedRun:
    limits = Limits(timeout_s=contract.timeout_s, grace_s=contract.grace_s)
    return site.containment.contain(
        enclosure, command, limits, site.interrupts, site.on_event
    )


def _verify(  # one value of each station so far
    site: Site,
    staged: StagedStep,
    contract: Contract,
    enclosure: Enclosure,
    contained: ContainedRun,
    targets: tuple[TargetState, ...],
) -> tuple[ContainedRun, Verification | None]:
    """Run the contract's check, where every rule before it holds."""
    if not contract.verify:
        return contained, None
    so_far = judge(
        _facts(site, contained, targets, staged, None), _policy(contract, staged)
    )
    if so_far.verdict not in {Verdict.PROMOTED, Verdict.ACCEPTED, Verdict.CONFLICT}:
        return contained, None
    try:
        verification, checked = verify(
            contract, enclosure, lambda e, c: _contain(site, e, c, contract)
        )
    except RunNotClosed:
        raise
    except Interrupted as error:
        return _interrupted(contained, error.signum), None
    except GuardError as error:
        return contained, never_ran(contract, error)
    return together(contained, checked), verification


def _heed_late_signals(site: Site, contained: ContainedRun) -> ContainedRun:
    """Let a signal that came after the command's end keep its work from promotion.

    By the same rule as before that end: SIGTERM, or SIGINT twice.
    """
    arrived = site.interrupts.take()
    signum = contained.interrupted_by
    if signum is None and signal.SIGTERM in arrived:
        signum = signal.SIGTERM
    elif signum is None and len(arrived) > 1:
        signum = signal.SIGINT
    return contained if signum is None else _interrupted(contained, signum)


def _interrupted(contained: ContainedRun, signum: int) -> ContainedRun:
    runner = contained.runner
    if runner.error is None:
        fact = f"ended because {signal.Signals(signum).name} came to the guard"
        runner = replace(runner, error="interrupted", message=fact)
    return replace(contained, runner=runner, interrupted_by=signum)


def _facts(
    site: Site,
    contained: ContainedRun,
    targets: tuple[TargetState, ...],
    staged: StagedStep,
    verification: Verification | None,
) -> Facts:
    places = [target.destination for target in targets]
    with Folder.open(site.workspace) as top:
        now = hash_places(top, places)
    return Facts(
        runner=contained.runner,
        stopped_for_escape=contained.stopped_for_escape,
        leftovers=contained.processes,
        moved_targets=moved_targets(staged.targets, contained.moved_targets),
        escapes=contained.escapes,
        gaps=contained.gaps,
        targets=targets,
        verification=verification,
        moved_destinations=tuple(
            place for place in places if now.get(place) != staged.baseline.get(place)
        ),
    )


def _policy(contract: Contract, staged: StagedStep) -> Policy:
    return Policy(
        on_escape=contract.on_escape,
        accept_gaps=contract.accept_gaps,
        promote=contract.promote,
        has_targets=bool(staged.targets),
    )


def _promote(
    site: Site,
    open_run: OpenRun,
    staged: StagedStep,
    targets: tuple[TargetState, ...],
    judgement: Judgement,
) -> tuple[Judgement, tuple[Promoted, ...]]:
    if not judgement.may_promote:
        return judgement, ()
    site.on_event(Progress(stage="promoting"))
    run_id = site.run.run_id
    try:
        _foresee(site, open_run, targets)
        with _folders_kept_if_undone(site.workspace, targets):
            prepared = prepare(site.workspace, site.state, run_id, staged, targets)
            return judgement, prepared.commit()
    except DestinationMoved as error:
        reason = f"changed in the last moment: {error.destination}"
        return Judgement(verdict=Verdict.CONFLICT, reason=reason), ()
    except (PromotionFailed, StateWriteFailed) as error:
        verdict = Verdict.PROMOTION_FAILED
        return Judgement(verdict=verdict, reason=error.message), ()


def _foresee(site: Site, open_run: OpenRun, targets: tuple[TargetState, ...]) -> None:
    """See that the journal names every place that is about to change.

    What a folder or a pattern has matched is known only now.

    Raises:
        StateWriteFailed: the journal could not be written; nothing has changed yet.
    """
    places = {target.destination: None for target in targets} | open_run.destinations
    if places == open_run.destinations:
        return
    with Folder.open(site.workspace) as top:
        folders = folder_times(top, places)
    replace(open_run, destinations=places, folders=folders).write(site.state)


@contextlib.contextmanager
def _folders_kept_if_undone(
    workspace: Path, targets: tuple[TargetState, ...]
) -> Generator[None]:
    """Leave no trace in the folders of the destinations if the block fails."""
    with Folder.open(workspace) as top:
        before = folder_times(top, (target.destination for target in targets))
        try:
            yield
        except (DestinationMoved, PromotionFailed):
            put_back_folders(top, before)
            raise


def _misplaced(contained: ContainedRun, command: tuple[str, ...]) -> tuple[str, ...]:
    """Say of a failed command which of its words is a file here and not in the step.

    Whoever writes `-- python3 agent.py` means the file beside them, and the command
    looks for it in its own folder.
    """
    if contained.runner.error not in {"not_found", "not_executable", "exit"}:
        return ()
    return tuple(
        f"{show_path(word)} is a file in your working folder; the command runs in the "
        "step's: give its whole path"
        for word in command
        if not os.path.isabs(word) and not word.startswith("-") and os.path.isfile(word)
    )


def _leave_log(run: RunFolder, staged: StagedStep) -> tuple[str, ...]:
    """Copy the log into the step, in place of whatever the command put there."""
    name, staged_as = b"execution.log", staged_name(run.run_id)
    try:
        with Folder.open(run.path) as source, Folder.open(staged.path) as step:
            found = step.lookup(name)
            if found is not None and stat.S_ISDIR(found.st_mode):
                remove_entry(step, name)  # which no rename would replace
            try:
                _copy_plainly(source, name, step, staged_as)
                step.rename(staged_as, step, name)
            except OSError:
                with contextlib.suppress(FileNotFoundError):
                    step.unlink(staged_as)
                raise
    except OSError as error:
        return (f"the log could not be copied into the step: {error.strerror}",)
    return ()


def _copy_plainly(source: Folder, name: bytes, to: Folder, new_name: bytes) -> None:
    """Copy a file of ours; not flushed, for the one that counts is the source."""
    with (
        os.fdopen(source.open_regular(name), "rb") as old,
        os.fdopen(to.create(new_name, 0o644), "wb") as new,
    ):
        shutil.copyfileobj(old, new, CHUNK_BYTES)


def _mounted_in(scratch: Path) -> tuple[str, ...]:
    """Say that the private TMPDIR will stay, with whatever is mounted in it."""
    return tuple(
        f"{show_path(point)}: a file system is mounted there; the folder stays"
        for _, point in sorted(mounts_below(os.fsencode(scratch)))
    )


def _remove_step(staged: StagedStep) -> tuple[str, ...]:
    try:
        with Folder.open(staged.path.parent) as parent:
            remove_unmounted(parent, os.fsencode(staged.name))
    except OSError as error:
        return (f"step {staged.name} could not be removed: {error.strerror}",)
    return ()
