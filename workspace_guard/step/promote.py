"""Put a step's targets into the workspace: all of them or none, durably.

Room: step. Knows how a candidate becomes a staged file beside its destination and what
of the old file it keeps; which candidates are good enough was said by `step.judge`.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workspace_guard.errors import (
    PromotionFailed,
    RunNotClosed,
    StateUnusable,
    show_path,
)
from workspace_guard.files import journal as journals
from workspace_guard.files.digest import copy_regular
from workspace_guard.files.keep import copy_as_is, take_over_attributes
from workspace_guard.files.layout import make_private
from workspace_guard.files.relpath import RelPath
from workspace_guard.files.replace import staged_file, staged_name
from workspace_guard.files.tree import Folder, NotRegular

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from workspace_guard.files.layout import WorkspaceState
    from workspace_guard.step.candidates import TargetState
    from workspace_guard.step.stage import StagedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    """One destination that holds its target now."""

    destination: RelPath
    before_sha256: str | None
    """None where there was no file."""
    after_sha256: str
    previous: str | None
    """Where the old content is kept, relative to the run's folder."""


class DestinationMoved(Exception):  # caught by the street, never shown
    """Somebody else changed a destination in the last moment; nothing was replaced."""

    def __init__(self, destination: str) -> None:
        super().__init__(destination)
        self.destination = destination


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPromotion:
    """Candidates that are staged and flushed; only this can be committed."""

    workspace: Path
    state: WorkspaceState
    group: journals.Group

    def commit(self) -> tuple[Promoted, ...]:
        """Replace the destinations.

        Returns:
            What was replaced by what.

        Raises:
            DestinationMoved: a destination is not what it was; nothing was replaced.
            PromotionFailed: a call failed; every destination is the old one again.
            RunNotClosed: a call failed, and another one of undoing it or of closing
                the journal; `recover` finishes or undoes it.
        """
        previous = self.state.run(self.group.owner).previous
        try:
            with Folder.open(self.workspace) as top, Folder.open(previous) as kept:
                self._commit(top, kept)
        except OSError as error:
            raise _refusal(error) from error
        return tuple(_promoted(r) for r in self.group.replacements)

    def _commit(self, top: Folder, kept: Folder) -> None:
        try:
            journal = Folder.open(self.state.journal)
        except OSError as error:
            _undo(error, self.group, top, kept)
            raise
        with journal:
            journals.commit(self.group, top, kept, journal)


def _promoted(replacement: journals.Replacement) -> Promoted:
    kept = replacement.kept
    return Promoted(
        destination=replacement.destination,
        before_sha256=replacement.before_sha256,
        after_sha256=replacement.after_sha256,
        previous=None if kept is None else f"previous/{os.fsdecode(kept)}",
    )


def prepare(
    workspace: Path,
    state: WorkspaceState,
    run_id: str,
    staged: StagedStep,
    targets: tuple[TargetState, ...],
) -> PreparedPromotion:
    """Copy every candidate to a staged file beside its destination.

    Args:
        workspace: absolute and resolved.
        state: the workspace's state folder.
        run_id: whose promotion it is.
        staged: the step that holds the candidates.
        targets: all valid, with the digests that were judged.

    Returns:
        What can be committed.

    Raises:
        DestinationMoved: a destination is no longer the file that it was.
        PromotionFailed: a candidate could not be copied, or is not what was judged.
            In both cases nothing that was made for them is left.
        RunNotClosed: something of it could not be removed again; `recover` does.
    """
    run = state.run(run_id)
    try:
        make_private(run.previous)
        with (
            Folder.open(workspace) as top,
            Folder.open(staged.path) as step,
            Folder.open(run.previous) as kept,
        ):
            places = _Places(run_id, top, step, kept)
            group = _stage_all(places, staged.baseline, targets)
    except OSError as error:
        raise _refusal(error) from error
    except StateUnusable as error:
        raise PromotionFailed(f"promotion failed: {error.message}") from error
    return PreparedPromotion(workspace=workspace, state=state, group=group)


@dataclass(frozen=True, slots=True)
class _Places:
    run_id: str
    top: Folder
    step: Folder
    kept: Folder


def _group(
    run_id: str, done: list[journals.Replacement], made: list[RelPath]
) -> journals.Group:
    return journals.Group(
        owner=run_id, replacements=tuple(done), made_folders=tuple(made)
    )


def _undo(error: OSError, group: journals.Group, top: Folder, kept: Folder) -> None:
    try:
        journals.rollback(group, top, kept)
    except OSError as second:
        error.add_note(f"and undoing it failed too: {second}")


def _refusal(
    error: OSError,
) -> DestinationMoved | PromotionFailed | RunNotClosed:
    """Say what became of a promotion that failed; a note tells what is not undone."""
    # Of a rename the second name tells more: the first is one of ours.
    name = error.filename2 or error.filename
    where = f"{show_path(name)}: " if name else ""
    fact = f"promotion failed: {where}{error.strerror or error}"
    notes = "".join(f"; {show_path(n)}" for n in getattr(error, "__notes__", ()))
    if notes:
        return RunNotClosed(fact + notes)
    if isinstance(error, journals.Moved):
        return DestinationMoved(show_path(error.filename))
    return PromotionFailed(fact)


def _stage_all(
    places: _Places, baseline: Mapping[RelPath, str], targets: tuple[TargetState, ...]
) -> journals.Group:
    done: list[journals.Replacement] = []
    made: list[RelPath] = []
    try:
        for number, target in enumerate(targets):
            _make_parents(places.top, target.destination.parent, made)
            name = str(number).encode()
            before = baseline.get(target.destination)
            done.append(_stage_one(places, target, before, name))
    except OSError as error:
        _undo(error, _group(places.run_id, done, made), places.top, places.kept)
        raise
    return _group(places.run_id, done, made)


def _make_parents(top: Folder, path: RelPath, made: list[RelPath]) -> None:
    """Make the folders that a destination lacks; add each to `made` at once."""
    for depth in range(1, len(path.parts) + 1):
        inner = RelPath(path.parts[:depth])
        with top.reach(inner.parent) as parent:
            if parent.lookup(inner.name) is None:
                parent.make_folder(inner.name)
                made.append(inner)


def _stage_one(
    places: _Places, target: TargetState, before: str | None, name: bytes
) -> journals.Replacement:
    """Stage one candidate and keep the file that it will replace."""
    destination = target.destination
    kept_name: bytes | None = None
    with (
        places.step.reach(target.path.parent) as source,
        places.top.reach(destination.parent) as folder,
    ):
        staged = _staged_copy(places.run_id, source, target, folder, before)
        if before is not None:
            try:
                _keep(folder, destination.name, places.kept, name)
            except OSError as error:
                _drop(error, folder, staged)
                raise
            kept_name = name
    return journals.Replacement(
        destination=destination,
        staged=staged,
        before_sha256=before,
        after_sha256=target.sha256 or "",
        kept=kept_name,
    )


def _drop(error: OSError, folder: Folder, staged: bytes) -> None:
    try:
        folder.unlink(staged)
    except OSError as second:
        error.add_note(f"and {show_path(staged)} could not be removed: {second}")


def _keep(folder: Folder, name: bytes, kept: Folder, kept_name: bytes) -> None:
    """Keep the old file: as a second name of it, else as a copy.

    A second name costs no bytes, and since the destination is replaced by rename
    nobody else has that file any more. Where it has further names somebody has: then
    only a copy keeps its content, and their link count stays what it was.
    """
    if folder.stat(name).st_nlink == 1:
        with contextlib.suppress(OSError):
            folder.link(name, kept, kept_name)
            return
    copy_as_is(folder, name, kept, kept_name)


def _staged_copy(
    run_id: str, source: Folder, target: TargetState, folder: Folder, before: str | None
) -> bytes:
    name = staged_name(run_id)
    replaces = before is not None
    # A new file gets what the umask leaves of these; one that replaces another is
    # private until it has that one's owner and mode.
    mode = 0o600 if replaces else (0o777 if target.executable else 0o666)
    with staged_file(folder, name, mode) as fd:
        digest = copy_regular(source, target.path.name, fd)
        if digest.sha256 != target.sha256:
            raise OSError(0, "changed after it was judged", bytes(target.path))
        if replaces:
            _take_over(folder, target.destination, fd)
    return name


def _take_over(folder: Folder, destination: RelPath, fd: int) -> None:
    """Give a staged file what belongs to the file that it will replace."""
    try:
        old = folder.open_regular(destination.name)
    except (FileNotFoundError, NotRegular) as error:
        moved = journals.Moved(0, "changed meanwhile", bytes(destination))
        raise moved from error
    try:
        take_over_attributes(old, fd)
    finally:
        os.close(old)
