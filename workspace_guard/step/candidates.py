"""Look at what the command has left, by descriptor and without believing anybody.

Room: step. Reads the step's folder and says what each target is; whether that is good
enough is for `step.judge`.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from workspace_guard.files.digest import Unstable, hash_regular
from workspace_guard.files.tree import Folder
from workspace_guard.step.destinations import files_of, path_fact, type_fact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workspace_guard.files.relpath import RelPath
    from workspace_guard.step.contract import Contract
    from workspace_guard.step.stage import StagedInput, StagedStep
    from workspace_guard.step.targets import Target

TargetStateName = Literal["valid", "missing", "invalid", "empty", "unchanged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """What one target is, in fact."""

    path: RelPath
    """Relative to the step: a file, or the target itself where there is none."""
    destination: RelPath
    state: TargetStateName
    sha256: str | None = None
    size_bytes: int | None = None
    executable: bool = False
    reason: str | None = None
    """Why it is not valid."""


def look(staged: StagedStep, contract: Contract) -> tuple[TargetState, ...]:
    """Say what each target of a step is now.

    Args:
        staged: the step, after its command.
        contract: whether an empty or an unchanged file will do.

    Returns:
        A state for every file that a target has matched, and one for every target
        that is not as it must be. Two files with one destination are both invalid.
    """
    try:
        step = Folder.open(staged.path)
    except OSError as error:
        reason = f"the step's folder is gone: {error.strerror}"
        return tuple(_bad(t, t.path, "missing", reason) for t in staged.targets)
    with step:
        states = [
            _refine(state, contract, staged.inputs)
            for target in staged.targets
            for state in _look_at(step, target)
        ]
    return _without_collisions(states)


def _look_at(step: Folder, target: Target) -> Iterator[TargetState]:
    top = target.top
    try:
        if target.kind == "file":
            with step.reach(top.parent) as folder:
                yield _file(folder, target, target.path)
            return
        with step.reach(top) as folder:
            yield from _tree(folder, target)
    except FileNotFoundError:
        yield _bad(target, target.path, "missing", "is not there")
    except OSError as error:
        yield _bad(target, target.path, "invalid", path_fact(error))


def _tree(folder: Folder, target: Target) -> Iterator[TargetState]:
    some = False
    for path, found in files_of(target, folder):
        some = True
        yield _file(found.folder, target, path)
    if not some:
        fact = "holds no file" if target.kind == "folder" else "matches no file"
        yield _bad(target, target.path, "missing", fact)


def _file(folder: Folder, target: Target, path: RelPath) -> TargetState:
    found = folder.lookup(path.name)
    if found is None:
        return _bad(target, path, "missing", "is not there")
    if not stat.S_ISREG(found.st_mode):
        return _bad(target, path, "invalid", type_fact(found.st_mode))
    if found.st_nlink != 1:
        fact = f"has {found.st_nlink} hard links; a target must have one"
        return _bad(target, path, "invalid", fact)
    try:
        digest = hash_regular(folder, path.name)
    except Unstable:
        return _bad(target, path, "invalid", "is still being written")
    except OSError as error:
        return _bad(target, path, "invalid", f"cannot be read: {error.strerror}")
    return TargetState(
        path=path,
        destination=target.destination_of(path),
        state="valid" if digest.size_bytes else "empty",
        sha256=digest.sha256,
        size_bytes=digest.size_bytes,
        executable=bool(found.st_mode & stat.S_IXUSR),
        reason=None if digest.size_bytes else "is empty",
    )


def _refine(
    state: TargetState, contract: Contract, inputs: tuple[StagedInput, ...]
) -> TargetState:
    if state.state == "empty" and contract.allow_empty:
        state = replace(state, state="valid", reason=None)
    if state.state == "valid" and contract.require_change:
        origin = next((i for i in inputs if i.source == state.destination), None)
        if origin is not None and origin.sha256 == state.sha256:
            fact = f"is byte for byte the input {origin.path.shown}"
            return replace(state, state="unchanged", reason=fact)
    return state


def _without_collisions(states: list[TargetState]) -> tuple[TargetState, ...]:
    """Name each file once, and refuse files that would take one place."""
    found: dict[tuple[RelPath, RelPath], TargetState] = {}
    takers: dict[RelPath, list[RelPath]] = {}
    for state in states:
        key = state.path, state.destination
        if key not in found and state.state != "missing":
            takers.setdefault(state.destination, []).append(state.path)
        found.setdefault(key, state)

    def checked(state: TargetState) -> TargetState:
        rivals = [p for p in takers.get(state.destination, ()) if p != state.path]
        if not rivals or state.state == "missing":
            return state
        fact = f"goes to the same destination as {rivals[0].shown}"
        return replace(state, state="invalid", reason=fact)

    return tuple(map(checked, found.values()))


def _bad(
    target: Target, path: RelPath, state: TargetStateName, reason: str
) -> TargetState:
    return TargetState(
        path=path,
        destination=target.destination_of(path),
        state=state,
        reason=reason,
    )
