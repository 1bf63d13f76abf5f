"""Build the step's folder: copies of the inputs, the task text, nothing else.

Room: step. Knows how a step looks before its command runs; starts nothing. When
anything here fails, what was built is gone again and the workspace is as it was.
"""

from __future__ import annotations

import contextlib
import errno
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
    show_path,
)
from workspace_guard.files.digest import Unstable, copy_regular
from workspace_guard.files.mounts import remove_unmounted
from workspace_guard.files.relpath import RelPath
from workspace_guard.files.tree import Folder, NotRegular, write_all
from workspace_guard.step.contract import DEFAULT_INPUTS, lawful_step_name
from workspace_guard.step.destinations import hash_destinations, path_fact, type_fact
from workspace_guard.step.targets import Target, require_distinct
from workspace_guard.step.tasktext import TaskText, localise, render

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from workspace_guard.step.contract import Contract

TASKS = b"tasks"
_NO_ROOM = frozenset(
    {errno.ENOSPC, errno.EROFS, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
)
"""What the copy of an input can fail with that is no fault of the input."""
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
    made_tasks: bool = False
    """Whether the workspace had no `tasks` folder before."""


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
        WorkspaceUnusable: it cannot be read, or nothing be written in it.
        GuardError: in every case the half-built step is gone, and the folders above
            it have the times that they had.
    """
    try:
        return _stage(workspace, contract)
    except OSError as error:
        where = f"{show_path(error.filename)}: " if error.filename else ""
        raise WorkspaceUnusable(
            workspace,
            f"no step can be built: {where}{path_fact(error)}",
            hint="mend that, or choose another workspace",
        ) from error


def _stage(workspace: Path, contract: Contract) -> StagedStep:
    with Folder.open(workspace) as top:
        targets = targets_of(top, contract)
        baseline = hash_destinations(top, targets)
        sources = sources_of(top, contract)
        with _new_step(workspace, top, contract) as (name, step, made_tasks):
            inputs = tuple(_copy_input(top, step, source) for source in sources)
            task = localise(
                contract.task, {bytes(i.source): bytes(i.path) for i in inputs}
            )
            text = render(task, inputs, targets)
            _write(step, b"TASK.md", text.encode("utf-8", "surrogateescape"))
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
        made_tasks=made_tasks,
    )


def unstage(workspace: Path, staged: StagedStep) -> None:
    """Take a step away again that nothing has run in; the times above it stay.

    Raises:
        OSError: something of it could not be removed.
    """
    with contextlib.ExitStack() as stack:
        if staged.relative is None:
            parent = stack.enter_context(Folder.open(staged.path.parent))
        else:
            top = stack.enter_context(Folder.open(workspace))
            stack.enter_context(_times_kept(top))
            parent = stack.enter_context(top.enter(TASKS))
            if staged.made_tasks:
                stack.callback(_remove_tasks, top)
            stack.enter_context(_times_kept(parent))
        remove_unmounted(parent, os.fsencode(staged.name))


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
    names = set(top.names())
    for name in names:
        swapped = name.swapcase()
        if swapped in names:  # itself without a letter, or two names: no proof
            continue
        here, there = top.lookup(name), top.lookup(swapped)
        if here is not None:
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
        if error.errno in _NO_ROOM:
            raise
        fact = f"cannot be copied: {path_fact(error)}"
        raise InputError(bytes(source), fact) from error
    return StagedInput(
        source=source, path=path, sha256=digest.sha256, size_bytes=digest.size_bytes
    )


def _seal(folder: Folder, name: bytes, fd: int) -> None:
    """Make a copy read-only for everybody."""
    if hasattr(os, "fchmod"):
        os.fchmod(fd, 0o444)
    else:
        os.chmod(folder.at(name), 0o444)


@contextlib.contextmanager
def _new_step(
    workspace: Path, top: Folder, contract: Contract
) -> Generator[tuple[str, Folder, bool]]:
    """Make the step's folder; take it away again if the block fails.

    The folders above it get their times back, so that building a step is no change of
    the parent that anybody would have to explain.

    Yields:
        The step's name, its folder, and whether `tasks` was made for it.
    """
    with contextlib.ExitStack() as stack:
        made_tasks = False
        if contract.step_dir is None:
            stack.enter_context(_times_kept(top))
            tasks = _tasks_folder(workspace, top)
            parent, made_tasks = stack.enter_context(tasks)
            stack.enter_context(_times_kept(parent))
        else:
            parent = stack.enter_context(Folder.open(contract.step_dir))
        name = _make_named(parent, contract)
        raw = os.fsencode(name)
        try:
            with parent.enter(raw) as step:
                yield name, step, made_tasks
        except BaseException as error:
            try:
                remove_unmounted(parent, raw)
            except OSError as second:
                error.add_note(f"and the half-built step {name} stays: {second}")
            raise


@contextlib.contextmanager
def _tasks_folder(workspace: Path, top: Folder) -> Generator[tuple[Folder, bool]]:
    found = top.lookup(TASKS)
    if found is not None and not stat.S_ISDIR(found.st_mode):
        fact = "is a link" if stat.S_ISLNK(found.st_mode) else "is no folder"
        raise WorkspaceUnusable(
            workspace, f"its tasks {fact}", hint="steps are built in a folder tasks/"
        )
    made = found is None
    if made:
        with contextlib.suppress(FileExistsError):  # another run was faster
            top.make_folder(TASKS)
    with top.enter(TASKS) as tasks:
        try:
            yield tasks, made
        except BaseException:
            if made:
                _remove_tasks(top)
            raise


def _remove_tasks(top: Folder) -> None:
    # Somebody else may have put something there meanwhile; then it stays.
    with contextlib.suppress(OSError):
        top.remove_folder(TASKS)


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
                f"step {show_path(name)}: {show_path(parent.path)} has it already",
                hint="choose another --name, or leave it out to get the next number",
            ) from error
        return name
    number = _next_number(parent, contract.name_prefix)
    while True:
        name = f"{contract.name_prefix}_{number}"
        try:
            parent.make_folder(os.fsencode(name))
        except FileExistsError:
            number += 1  # another run has just taken that one
        else:
            return name


def _next_number(parent: Folder, prefix: str) -> int:
    pattern = re.compile(re.escape(os.fsencode(prefix)) + rb"_(\d+)")
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
