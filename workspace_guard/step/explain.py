"""Say what a run would do, and start nothing.

Room: step. Reads only: not even the state folder is made. What it cannot know (an input
that changes meanwhile, a destination that is taken) is left to the run.
"""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from workspace_guard.containment.choose import choose, survey
from workspace_guard.errors import GuardError
from workspace_guard.files.tree import Folder
from workspace_guard.step.destinations import hash_destinations, type_fact
from workspace_guard.step.openrun import open_runs
from workspace_guard.step.stage import snapshot_path, sources_of, targets_of
from workspace_guard.step.tasktext import TaskText, localise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from workspace_guard.containment.choose import ModeReport
    from workspace_guard.files.layout import WorkspaceState
    from workspace_guard.files.relpath import RelPath
    from workspace_guard.step.contract import Contract
    from workspace_guard.step.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What would happen."""

    mode: ModeReport | None
    inputs: tuple[tuple[RelPath, RelPath], ...]
    """(path in the workspace, path in the step)."""
    targets: tuple[Target, ...]
    replaced: tuple[RelPath, ...]
    """Destinations that are there now."""
    task: TaskText
    problems: tuple[str, ...]
    """What would make the run be refused, or fail for certain."""
    open_runs: tuple[str, ...]
    """Runs that were cut off, or are going on; recovered first."""


def explain(
    workspace: Path,
    state: WorkspaceState,
    command: tuple[str, ...],
    contract: Contract,
    environment: Mapping[str, str],
) -> Explanation:
    """Look at everything that a run would look at first.

    Args:
        workspace: absolute and resolved.
        state: its state folder, which need not be there.
        command: the program and its arguments.
        contract: what the step would get and must leave.
        environment: where the program would be looked for.
    """
    problems: list[str] = []
    mode = _try(problems, lambda: choose(contract.mode, survey()))
    with Folder.open(workspace) as top:
        targets = _try(problems, lambda: targets_of(top, contract)) or ()
        replaced = _try(problems, lambda: hash_destinations(top, targets)) or {}
        inputs = tuple((s, snapshot_path(s)) for s in sources_of(top, contract))
        problems += [p for s, _ in inputs for p in _input_problem(top, s)]
    problems += _command_problem(command, environment)
    if contract.name is not None and contract.step_dir is None:
        taken = workspace / "tasks" / contract.name
        if os.path.lexists(taken):
            problems.append(f"step {contract.name}: {taken} is there already")
    names = {bytes(source): bytes(path) for source, path in inputs}
    return Explanation(
        mode=mode,
        inputs=inputs,
        targets=targets,
        replaced=tuple(replaced),
        task=localise(contract.task, names),
        problems=tuple(problems),
        open_runs=open_runs(state),
    )


_T = TypeVar("_T")


def _try(problems: list[str], attempt: Callable[[], _T]) -> _T | None:
    try:
        return attempt()
    except GuardError as error:
        problems.append(error.message)
        return None


def _input_problem(top: Folder, source: RelPath) -> list[str]:
    try:
        with top.reach(source.parent) as folder:
            mode = folder.stat(source.name).st_mode
    except OSError as error:
        return [f"input {source.shown}: {error.strerror}"]
    if not stat.S_ISREG(mode):
        return [f"input {source.shown}: {type_fact(mode)}"]
    return []


def _command_problem(
    command: tuple[str, ...], environment: Mapping[str, str]
) -> list[str]:
    if not command:
        return ["no command was given"]
    if os.sep in command[0]:
        return []  # relative to the step, which is not there yet
    if shutil.which(command[0], path=environment.get("PATH")) is None:
        return [f"command {command[0]!r}: not found in PATH"]
    return []
