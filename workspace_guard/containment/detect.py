"""Let the command write, find every change of the parent, and put it back.

Room: containment. Knows the order of a `detect` run: journal, snapshot, watch, run,
compare, put back, look again, close the journal. What a change is, and how it is
undone, is said in `snapshot`.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from workspace_guard.containment.base import (
    ContainedRun,
    EntryState,
    Escape,
    Gap,
    Progress,
)
from workspace_guard.containment.choose import DETECT_STRENGTH
from workspace_guard.containment.conduct import Conducted, conduct
from workspace_guard.containment.launch import Launch
from workspace_guard.containment.monitor import Monitor
from workspace_guard.containment.opendetect import OpenDetect, drop_unfinished
from workspace_guard.containment.whereabouts import (
    Stray,
    bring_home,
    open_locked,
    strange_mounts,
)
from workspace_guard.files.mounts import mounts_below
from workspace_guard.files.tree import Folder
from workspace_guard.snapshot.compare import Comparison, compare
from workspace_guard.snapshot.plan import Leave, plan
from workspace_guard.snapshot.restore import Restoration, restore
from workspace_guard.snapshot.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from workspace_guard.containment.base import Enclosure, EscapeEffect, Limits
    from workspace_guard.containment.interrupts import Interrupts
    from workspace_guard.files.layout import WorkspaceState
    from workspace_guard.files.lock import WorkspaceLock
    from workspace_guard.snapshot.compare import Change
    from workspace_guard.snapshot.manifest import Entry
    from workspace_guard.snapshot.manifest import Gap as SnapshotGap
    from workspace_guard.snapshot.store import Snapshot


class Detect:
    """The mode that works everywhere; the parent is changed for a moment.

    Args:
        state: the workspace's state folder, which the caller has made.
        lock: the workspace is held by it, alone.
    """

    name: Literal["detect"] = "detect"

    def __init__(self, state: WorkspaceState, lock: WorkspaceLock) -> None:
        self._state = state
        self._lock = lock

    def contain(
        self,
        enclosure: Enclosure,
        command: tuple[str, ...],
        limits: Limits,
        interrupts: Interrupts,
        on_progress: Callable[[Progress], None],
    ) -> ContainedRun:
        """Run the command and put the parent back; see `base.Containment`."""
        journal = OpenDetect(self._state, enclosure.run_id)
        store = Store(self._state.snapshots)
        step = None if enclosure.step is None else bytes(enclosure.step)
        skip = frozenset[bytes]() if step is None else frozenset({step})
        with Folder.open(enclosure.workspace) as top:
            snapshot = journal.begin(
                store, top, skip, enclosure, interrupts, on_progress
            )
            again = _Again(journal, store, snapshot, top, enclosure)
            folders = snapshot.manifest.folders
            try:
                with Monitor.start(enclosure.workspace, step, folders) as monitor:
                    launch = self._launch(enclosure, command, limits, journal)
                    conducted = conduct(
                        launch, enclosure, limits, interrupts, monitor, on_progress
                    )
            except BaseException:
                # Whatever it is, the parent is whole before anybody hears of it.
                if again.whole(_silent).is_whole:
                    journal.close(store, snapshot.id)
                raise
            after = again.whole(on_progress)
        escapes = tuple(_escapes(after, enclosure.quarantine, monitor))
        whole = after.is_whole
        keep = enclosure.keep_snapshot or not whole
        litter = journal.close_after_run(store, None if keep else snapshot.id)
        return _contained(
            conducted, snapshot, after, escapes, (*monitor.gaps, *litter), kept=keep
        )

    def _launch(
        self,
        enclosure: Enclosure,
        command: tuple[str, ...],
        limits: Limits,
        journal: OpenDetect,
    ) -> Launch:
        stdin = 0 if enclosure.stdio.stdin is None else enclosure.stdio.stdin
        # A command that shares a terminal with us has to stay in its foreground group.
        shares = enclosure.stdio.terminal is None and os.isatty(stdin)
        return Launch(
            command=command,
            cwd=enclosure.step_path,
            environment=enclosure.environment,
            log=enclosure.log,
            stdio=enclosure.stdio,
            timeout_s=limits.timeout_s,
            hold_fds=(self._lock.fd,),
            heartbeat=journal.heartbeat,
            own_session=not shares,
        )


def _silent(_progress: Progress) -> None:
    """Nobody is told while an exception is on its way."""


@dataclass(frozen=True, slots=True)
class _PutBack:
    comparison: Comparison
    restoration: Restoration
    mounts: tuple[bytes, ...] = ()
    """What the command has mounted in the workspace; left alone."""
    stray: Stray | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all is as it was."""
        return not self.restoration.unrestored and not self.mounts

    @property
    def changes(self) -> tuple[Change, ...]:
        """All of them, also those that came to light behind locked doors."""
        return self.comparison.changes + self.restoration.found_later


class _Again:
    """Knows what a workspace was before its command, to make it so again."""

    def __init__(
        self,
        journal: OpenDetect,
        store: Store,
        snapshot: Snapshot,
        top: Folder,
        enclosure: Enclosure,
    ) -> None:
        self._journal = journal
        self._store = store
        self._snapshot = snapshot
        self._top = top
        self._enclosure = enclosure
        self._mounts = mounts_below(os.fsencode(enclosure.workspace))

    def whole(self, on_progress: Callable[[Progress], None]) -> _PutBack:
        """Put everything back that can be, and say what was done."""
        enclosure, manifest = self._enclosure, self._snapshot.manifest
        stray = bring_home(self._top, enclosure.workspace)
        strange = strange_mounts(enclosure.workspace, self._mounts, manifest)
        on_progress(Progress(stage="comparing"))
        with open_locked(enclosure.workspace) as top:
            comparison = compare(
                manifest,
                top,
                skip=manifest.skip | strange.paths,
                hashed=frozenset(bytes(path) for path in enclosure.hashed),
                verify_content=enclosure.verify_content,
            )
            changes = len(comparison.changes)
            on_progress(Progress(stage="restoring", escapes=changes))
            with self._journal.beating():
                restoration = restore(
                    self._store, self._snapshot, top, comparison, enclosure.quarantine
                )
        return _PutBack(comparison, restoration, strange.mounts, stray)


def _contained(
    conducted: Conducted,
    snapshot: Snapshot,
    after: _PutBack,
    escapes: tuple[Escape, ...],
    more_gaps: tuple[Gap, ...],
    *,
    kept: bool,
) -> ContainedRun:
    gaps = [_gap_of(gap) for gap in snapshot.manifest.gaps]
    gaps += [_gap_of(gap) for gap in after.restoration.gaps]
    return ContainedRun(
        runner=conducted.runner,
        escapes=escapes,
        processes=conducted.leftovers,
        moved_targets=conducted.moved_targets,
        strength=DETECT_STRENGTH,
        gaps=tuple(dict.fromkeys((*conducted.gaps, *more_gaps, *gaps))),
        usage=conducted.usage,
        stopped_for_escape=conducted.stopped_for_escape,
        interrupted_by=conducted.interrupted_by,
        snapshot_id=snapshot.id if kept else None,
    )


def _gap_of(gap: SnapshotGap) -> Gap:
    return Gap(
        kind=gap.kind,
        path=gap.path,
        could_hide_escape=gap.could_hide_escape,
        message=gap.message,
    )


def _escapes(
    after: _PutBack, quarantine: Path, monitor: Monitor | None
) -> list[Escape]:
    restoration = after.restoration
    foreign = set(restoration.foreign)
    found: list[Escape] = []
    for change in after.changes:
        effect: EscapeEffect = "restored"
        if change.path in foreign:
            effect = "foreign"
        elif change.path in restoration.unrestored:
            effect = "unrestored"
        saved = restoration.saved.get(change.path)
        found.append(
            Escape(
                path=change.path or b".",
                kind=change.kind,
                effect=effect,
                before=_state_of(change.before),
                after=_state_of(change.after),
                quarantine=(
                    None
                    if saved is None
                    else os.path.join(os.fsencode(quarantine.name), saved)
                ),
                at=None if monitor is None else monitor.first_seen(change.path),
                message=restoration.unrestored.get(change.path),
            )
        )
    found += [_mounted(path) for path in after.mounts]
    named = {change.path for change in after.changes}
    if after.stray is not None and not (
        after.stray.kind == "metadata" and b"" in named
    ):
        found.append(_of_the_whole(after.stray))
    found += [
        _residue(path, reason)
        for path, reason in restoration.unrestored.items()
        if path not in named
    ]
    return found


def _of_the_whole(stray: Stray) -> Escape:
    return Escape(
        path=b".",
        kind=stray.kind,
        effect="restored",
        before=None,
        after=None,
        quarantine=None,
        message=stray.message,
    )


def _mounted(path: bytes) -> Escape:
    """A mount hides what was there and shows what lies elsewhere: nobody's to empty."""
    return Escape(
        path=path,
        kind="replaced",
        effect="unrestored",
        before=None,
        after=None,
        quarantine=None,
        message="a file system was mounted here and is left alone; unmount it, then "
        "look at what it has hidden",
    )


def _residue(path: bytes, reason: str) -> Escape:
    """A place that was no change of the command's, and yet is not as it was."""
    return Escape(
        path=path,
        kind="metadata",
        effect="unrestored",
        before=None,
        after=None,
        quarantine=None,
        message=reason,
    )


def _state_of(entry: Entry | None) -> EntryState | None:
    if entry is None:
        return None
    return EntryState(
        type=entry.type,
        mode=entry.mode,
        size_bytes=entry.size if entry.type == "file" else None,
        sha256=entry.sha256,
        target=entry.link,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """What a run that was cut off had changed, and what became of it."""

    escapes: tuple[Escape, ...] = ()
    gaps: tuple[Gap, ...] = ()
    snapshot_id: str | None = None
    """The run's snapshot, where it was kept."""


def put_back_after_crash(
    workspace: Path, state: WorkspaceState, run_id: str
) -> Detected:
    """Put the parent back after the guard of a `detect` run was killed.

    An entry that changed after the run's last heartbeat is somebody else's: it is
    left alone and reported as `foreign`.

    Args:
        workspace: absolute and resolved; held by us.
        state: its state folder.
        run_id: the run that was cut off.

    Returns:
        What had been changed; nothing where no entry of that run is open. Where
        something could not be put back the entry stays.

    Raises:
        JournalDamaged, StoreDamaged, StoreIncomplete: nothing was touched.
    """
    journal = OpenDetect(state, run_id)
    store = Store(state.snapshots)
    entry = journal.read()
    if entry is None:
        journal.finish_closing(store)
        return Detected()
    snapshot_id, began_ns = entry
    if snapshot_id is None:  # cut off before its command: nothing to put back
        drop_unfinished(store, began_ns)
        journal.close(store, None)
        return Detected()
    snapshot = store.load(snapshot_id)
    quarantine = state.run(run_id).quarantine
    with open_locked(workspace) as top:
        after = _put_back_older(journal, store, snapshot, top, workspace, quarantine)
    restoration = after.restoration
    # What somebody has edited since may be the last place of an old content.
    keep = bool(not after.is_whole or restoration.foreign)
    if after.is_whole:
        journal.close(store, None if keep else snapshot_id)
    gaps = (*snapshot.manifest.gaps, *restoration.gaps)
    return Detected(
        escapes=tuple(_escapes(after, quarantine, None)),
        gaps=tuple(_gap_of(gap) for gap in gaps),
        snapshot_id=snapshot_id if keep else None,
    )


def _put_back_older(
    journal: OpenDetect,
    store: Store,
    snapshot: Snapshot,
    top: Folder,
    workspace: Path,
    quarantine: Path,
) -> _PutBack:
    """Put back all that is not newer than the last heartbeat."""
    manifest = snapshot.manifest
    keep = journal.last_beat_ns()
    strange = strange_mounts(workspace, None, manifest)
    comparison = compare(manifest, top, skip=manifest.skip | strange.paths)
    operations = plan(manifest, comparison, keep_newer_than_ns=keep)
    newer = any(isinstance(one, Leave) and one.foreign for one in operations)
    # A heartbeat of ours would make the newer edits look like the run's.
    with contextlib.nullcontext() if newer else journal.beating():
        restoration = restore(
            store, snapshot, top, comparison, quarantine, keep_newer_than_ns=keep
        )
    return _PutBack(comparison, restoration, strange.mounts)


def give_up_after_crash(state: WorkspaceState, run_id: str) -> Detected:
    """Close the entry of a run that cannot be put back; every file stays as it is.

    Its snapshot stays too, if there is one.
    """
    OpenDetect(state, run_id).close(Store(state.snapshots), None)
    return Detected()
