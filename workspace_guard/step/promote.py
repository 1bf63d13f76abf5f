"""Put a step's targets into the workspace: all of them or none, durably.

Room: step. Knows how a candidate becomes a staged file beside its destination and what
of the old file it keeps; which candidates are good enough was said by `step.judge`.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workspace_guard.errors import PromotionFailed
from workspace_guard.files import journal as journals
from workspace_guard.files.digest import copy_regular
from workspace_guard.files.layout import make_private
from workspace_guard.files.relpath import RelPath
from workspace_guard.files.replace import staged_file, staged_name
from workspace_guard.files.tree import Folder

if TYPE_CHECKING:
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
            PromotionFailed: a call failed; every destination is the old one again, or
                the journal is open and `recover` will finish the work.
        """
        run = self.state.run(self.group.owner)
        try:
            with (
                Folder.open(self.workspace) as top,
                Folder.open(run.previous) as kept,
                Folder.open(self.state.journal) as journal,
            ):
                journals.commit(self.group, top, kept, journal)
        except journals.Moved as error:
            raise DestinationMoved(str(error.filename)) from error
        except OSError as error:
            raise _failed(error) from error
        return tuple(_promoted(r) for r in self.group.replacements)


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
        PromotionFailed: a candidate could not be copied, or is not what was judged;
            nothing that was made for it is left.
    """
    run = state.run(run_id)
    make_private(run.previous)
    done: list[journals.Replacement] = []
    made: list[RelPath] = []
    with (
        Folder.open(workspace) as top,
        Folder.open(staged.path) as step,
        Folder.open(run.previous) as kept,
    ):
        try:
            places = _Places(run_id, top, step, kept)
            for number, target in enumerate(targets):
                made += _make_parents(top, target.destination.parent)
                name = str(number).encode()
                before = staged.baseline.get(target.destination)
                done.append(_stage_one(places, target, before, name))
        except OSError as error:
            group = _group(run_id, done, made)
            try:
                journals.rollback(group, top, kept)
            except OSError as second:
                error.add_note(f"and undoing it failed too: {second}")
            raise _failed(error) from error
    return PreparedPromotion(
        workspace=workspace, state=state, group=_group(run_id, done, made)
    )


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


def _failed(error: OSError) -> PromotionFailed:
    where = f"{error.filename}: " if error.filename else ""
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    return PromotionFailed(
        f"promotion failed: {where}{error.strerror or error}{notes}",
        hint="the step still holds its targets; mend the cause and run it again",
    )


def _make_parents(top: Folder, path: RelPath) -> list[RelPath]:
    """Make the folders that a destination lacks; say which were made."""
    made: list[RelPath] = []
    for depth in range(1, len(path.parts) + 1):
        inner = RelPath(path.parts[:depth])
        with top.reach(inner.parent) as parent:
            if parent.lookup(inner.name) is None:
                parent.make_folder(inner.name)
                made.append(inner)
    return made


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
            except OSError:
                folder.unlink(staged)
                raise
            kept_name = name
    return journals.Replacement(
        destination=destination,
        staged=staged,
        before_sha256=before,
        after_sha256=target.sha256 or "",
        kept=kept_name,
    )


def _keep(folder: Folder, name: bytes, kept: Folder, kept_name: bytes) -> None:
    """Keep the old file: as a second name of it, else as a copy.

    A second name costs no bytes, and since the destination is replaced by rename its
    content cannot change under it.
    """
    try:
        folder.link(name, kept, kept_name)
    except OSError:
        journals.copy_as_is(folder, name, kept, kept_name)


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
            raise OSError(0, "changed after it was judged", target.path.shown)
        if replaces:
            old = folder.open_regular(target.destination.name)
            with contextlib.closing(os.fdopen(old, "rb")):
                journals.take_over_attributes(old, fd)
    return name
