"""The contract's own check of a candidate: a command, contained like the step itself.

Room: step. Runs the check and says what it did; whether that matters is for
`step.judge`.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from workspace_guard.errors import WorkspaceUnusable, show_path
from workspace_guard.files.relpath import RelPath
from workspace_guard.files.stamp import moved, stamp
from workspace_guard.files.tree import Folder
from workspace_guard.step.judge import Verification

if TYPE_CHECKING:
    from collections.abc import Callable

    from workspace_guard.containment.base import ContainedRun, Enclosure
    from workspace_guard.errors import GuardError
    from workspace_guard.step.contract import Contract
    from workspace_guard.step.targets import Target


def verify(
    contract: Contract,
    enclosure: Enclosure,
    contain: Callable[[Enclosure, tuple[str, ...]], ContainedRun],
) -> tuple[Verification, ContainedRun]:
    """Run the check in the step, with nothing more writable than the command had.

    Args:
        contract: names the check.
        enclosure: the command's own.
        contain: runs a command in an enclosure.

    Returns:
        What it said, and how it ran: it can escape like any other command.

    Raises:
        GuardError: it was not started; the command may have removed the step.
    """
    # Its own place for what it writes astray, so that nothing of the command's is
    # overwritten there.
    aside = enclosure.quarantine.with_name("quarantine-verify")
    with _step_of(enclosure) as step:
        before = stamp(step, enclosure.selections)
        checked = contain(replace(enclosure, quarantine=aside), contract.verify)
        after = stamp(step, enclosure.selections)
    fault = _fault(checked)
    changed = moved_targets(contract.targets, moved(before, after))
    if fault is None and changed:
        fault = f"changed {show_path(changed[0])}"
    return Verification(command=shlex.join(contract.verify), fault=fault), checked


def _step_of(enclosure: Enclosure) -> Folder:
    try:
        return Folder.open(enclosure.step_path)
    except OSError as error:
        fact = f"the step is gone: {error.strerror or error}"
        raise WorkspaceUnusable(enclosure.step_path, fact) from error


def moved_targets(
    targets: tuple[Target, ...], moved_paths: tuple[bytes, ...]
) -> tuple[bytes, ...]:
    """Those of the paths in a step that belong to a target.

    Args:
        targets: of the contract; none stands for the default one, a single file.
        moved_paths: at or below the tops of the targets.
    """
    return tuple(
        path
        for path in moved_paths
        if not targets or any(t.matches(RelPath.of(path)) for t in targets)
    )


def _fault(checked: ContainedRun) -> str | None:
    runner = checked.runner
    if runner.error is None:
        return None
    if runner.error == "exit":
        return f"exited with {runner.exit_code}"
    if runner.error in {"not_found", "not_executable"}:
        return f"could not be started ({runner.message})"
    return runner.message or runner.error


def never_ran(contract: Contract, error: GuardError) -> Verification:
    """Say of a check that the guard could not run it; so it has not accepted."""
    fault = f"could not be run: {error.message}"
    return Verification(command=shlex.join(contract.verify), fault=fault)


def together(run: ContainedRun, checked: ContainedRun) -> ContainedRun:
    """Add what a check did to what the command did; the command's end stays its own."""
    return replace(
        run,
        escapes=run.escapes + checked.escapes,
        processes=run.processes + checked.processes,
        gaps=tuple(dict.fromkeys(run.gaps + checked.gaps)),
        interrupted_by=run.interrupted_by or checked.interrupted_by,
        snapshot_id=checked.snapshot_id or run.snapshot_id,
    )
