"""Build the step's folder: copies of the inputs, the task text, nothing else.

Room: step. Knows how a step looks before its command runs; starts nothing. When
anything here fails, what was built is gone again and the workspace is as it was.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workspace_guard.errors import (
    ContractError,
    InputError,
    StepNameTaken,
    WorkspaceUnusable,
)
from workspace_guard.files.digest import Unstable, copy_regular
from workspace_guard.files.relpath import RelPath
from workspace_guard.files.tree import Folder, NotRegular, remove_entry, write_all
from workspace_guard.step.contract import DEFAULT_INPUTS, lawful_step_name
from workspace_guard.step.destinations import (
    LINK_IN_PATH,
    hash_destinations,
    type_fact,
)
from workspace_guard.step.targets import Target, require_distinct
from workspace_guard.step.tasktext import TaskText, localise, render

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from workspace_guard.step.contract import Contract

TASKS = b"tasks"
_DEFAULT_TARGET = Target.parse("output.md")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedInput:
    """A read-only copy of a parent file."""

    source: RelPath
    """Relative to the workspace."""
    path: RelPath
    """Relative to the step."""
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedStep:
    """A step that is ready for its command."""

    name: str
    path: Path
    """Absolute."""
    relative: RelPath | None
    """Below the workspace; None for a step that was placed elsewhere."""
    inputs: tuple[StagedInput, ...]
    targets: tuple[Target, ...]
    baseline: dict[RelPath, str]
    """SHA-256 of every destination that was there when the step was built."""
    task: TaskText


def stage(workspace: Path, contract: Contract) -> StagedStep:
    """Build the step that a contract asks for.

    Args:
        workspace: absolute and resolved.
        contract: what to build.

    Returns:
        The step, with the digests of its inputs and of the destinations.

    Raises:
        ContractError: no target, or destinations that cannot be.
        InputError: an input is missing, linked, no regular file, or moves.
        StepNameTaken: the folder is there already.
        GuardError, OSError: in every case the half-built step is gone.
    """
    with Folder.open(workspace) as top:
        targets = targets_of(top, contract)
        baseline = hash_destinations(top, targets)
        sources = sources_of(top, contract)
        with _new_step(workspace, top, contract) as (name, step):
            inputs = tuple(_copy_input(top, step, source) for source in sources)
            task = localise(
                contract.task, {bytes(i.source): bytes(i.path) for i in inputs}
            )
            _write(step, b"TASK.md", render(task, inputs, targets).encode("utf-8"))
            # The name in our handle is the path that it was opened with.
            path = workspace / TASKS.decode() / name
            relative: RelPath | None = RelPath((TASKS, os.fsencode(name)))
            if contract.step_dir is not None:
                path, relative = contract.step_dir / name, None
            _require_outside(relative, targets)
    return StagedStep(
        name=name,
        path=path,
        relative=relative,
        inputs=inputs,
        targets=targets,
        baseline=baseline,
        task=task,
    )


def targets_of(top: Folder, contract: Contract) -> tuple[Target, ...]:
    """The targets of a contract in this workspace, with the default where it has none.

    Raises:
        ContractError: there is none, or two would take one place.
    """
    if contract.no_target:
        return ()
    targets = contract.targets
    if not targets:
        if top.lookup(b"output.md") is None:
            raise ContractError(
                "no target is named and the workspace has no output.md",
                hint="name one with --target PATH, or say --no-target",
            )
        targets = (_DEFAULT_TARGET,)
    require_distinct(targets, fold_case=_folds_case(top))
    return targets


def _folds_case(top: Folder) -> bool:
    """Whether the workspace's file system takes names that differ in case for one."""
    for name in top.names():
        swapped = name.swapcase()
        if swapped != name:
            here, there = top.lookup(name), top.lookup(swapped)
            if here is None:
                continue
            return there is not None and os.path.samestat(here, there)
    return False


def _require_outside(relative: RelPath | None, targets: tuple[Target, ...]) -> None:
    for target in targets:
        if relative is not None and target.destination.is_below(relative):
            raise ContractError(f"target {target}: its destination lies in the step")


def sources_of(top: Folder, contract: Contract) -> tuple[RelPath, ...]:
    """The inputs of a contract in this workspace, each once."""
    sources = list(contract.inputs)
    if contract.default_inputs:
        sources += [p for p in DEFAULT_INPUTS if top.lookup(p.name) is not None]
    return tuple(dict.fromkeys(sources))


def snapshot_path(source: RelPath) -> RelPath:
    """The place of an input's copy: `a/output.md` is `inputs/a/output.snapshot.md`."""
    stem, suffix = os.path.splitext(source.name)
    name = stem + b".snapshot" + suffix
    return RelPath((b"inputs", *source.parent.parts, name))


def _copy_input(top: Folder, step: Folder, source: RelPath) -> StagedInput:
    path = snapshot_path(source)
    try:
        with top.reach(source.parent) as origin, _made(step, path.parent) as place:
            found = origin.stat(source.name)
            if not stat.S_ISREG(found.st_mode):
                raise InputError(bytes(source), type_fact(found.st_mode))
            fd = place.create(path.name, 0o600)
            try:
                digest = copy_regular(origin, source.name, fd)
                _seal(place, path.name, fd)
            finally:
                os.close(fd)
    except FileNotFoundError as error:
        raise InputError(
            bytes(source),
            "is not there",
            hint="inputs are named relative to the workspace",
        ) from error
    except Unstable as error:
        raise InputError(
            bytes(source), "changed while it was copied", hint="end what writes to it"
        ) from error
    except NotRegular as error:
        raise InputError(bytes(source), "is no regular file") from error
    except OSError as error:
        raise InputError(bytes(source), _input_fact(error)) from error
    return StagedInput(
        source=source, path=path, sha256=digest.sha256, size_bytes=digest.size_bytes
    )


def _input_fact(error: OSError) -> str:
    if error.errno in LINK_IN_PATH:
        return "a part of its path is a link or no folder"
    return f"cannot be read: {error.strerror or error}"


def _seal(folder: Folder, name: bytes, fd: int) -> None:
    """Make a copy read-only for everybody."""
    if hasattr(os, "fchmod"):
        os.fchmod(fd, 0o444)
    else:
        os.chmod(folder.at(name), 0o444)


@contextlib.contextmanager
def _new_step(
    workspace: Path, top: Folder, contract: Contract
) -> Generator[tuple[str, Folder]]:
    """Make the step's folder; take it away again if the block fails.

    The folders above it get their times back, so that building a step is no change of
    the parent that anybody would have to explain.
    """
    with contextlib.ExitStack() as stack:
        if contract.step_dir is None:
            stack.enter_context(_times_kept(top))
            parent = stack.enter_context(_tasks_folder(workspace, top))
            stack.enter_context(_times_kept(parent))
        else:
            parent = stack.enter_context(Folder.open(contract.step_dir))
        name = _make_named(parent, contract)
        raw = os.fsencode(name)
        try:
            with parent.enter(raw) as step:
                yield name, step
        except BaseException as error:
            try:
                remove_entry(parent, raw)
            except OSError as second:
                error.add_note(f"and the half-built step {name} stays: {second}")
            raise


@contextlib.contextmanager
def _tasks_folder(workspace: Path, top: Folder) -> Generator[Folder]:
    made = top.lookup(TASKS) is None
    if made:
        _make_tasks(workspace, top)
    try:
        tasks = top.enter(TASKS)
    except OSError as error:
        raise WorkspaceUnusable(
            workspace, f"its tasks folder cannot be used: {error.strerror}"
        ) from error
    with tasks:
        try:
            yield tasks
        except BaseException:
            if made:  # somebody else may have put something there meanwhile
                with contextlib.suppress(OSError):
                    top.remove_folder(TASKS)
            raise


def _make_tasks(workspace: Path, top: Folder) -> None:
    try:
        top.make_folder(TASKS)
    except FileExistsError:
        return  # another run was faster
    except OSError as error:
        raise WorkspaceUnusable(
            workspace, f"no tasks folder can be made in it: {error.strerror}"
        ) from error


@contextlib.contextmanager
def _times_kept(folder: Folder) -> Generator[None]:
    before = folder.own_stat()
    try:
        yield
    finally:
        # A folder of another owner keeps the times that it has got.
        with contextlib.suppress(PermissionError):
            os.utime(
                folder.path if folder.fd is None else folder.fd,
                ns=(before.st_atime_ns, before.st_mtime_ns),
            )


def _make_named(parent: Folder, contract: Contract) -> str:
    if contract.name is not None:
        name = lawful_step_name(contract.name)
        try:
            parent.make_folder(os.fsencode(name))
        except FileExistsError as error:
            raise StepNameTaken(
                f"step {name}: {parent.path.decode(errors='replace')} has it already",
                hint="choose another --name, or leave it out to get the next number",
            ) from error
        return name
    while True:
        name = f"{contract.name_prefix}_{_next_number(parent, contract.name_prefix)}"
        try:
            parent.make_folder(os.fsencode(name))
        except FileExistsError:
            continue  # another run has just taken that number
        return name


def _next_number(parent: Folder, prefix: str) -> int:
    pattern = re.compile(re.escape(os.fsencode(prefix)) + rb"_(\d{1,9})")
    found = (pattern.fullmatch(name) for name in parent.names())
    return max((int(match[1]) for match in found if match), default=0) + 1


@contextlib.contextmanager
def _made(top: Folder, path: RelPath) -> Generator[Folder]:
    """Reach a folder below `top`, making what is missing."""
    with contextlib.ExitStack() as stack:
        here = top
        for part in path.parts:
            if here.lookup(part) is None:
                here.make_folder(part)
            here = stack.enter_context(here.enter(part))
        yield here


def _write(folder: Folder, name: bytes, content: bytes) -> None:
    fd = folder.create(name, 0o644)
    try:
        write_all(fd, content)
    finally:
        os.close(fd)
