"""What stands in the journal while a `detect` run is open.

Room: containment. Knows the journal's entry, the order in which it and the snapshot
come and go, and up to when a run that was cut off may have written.

What stands in the workspace's journal while a run is open:

    <run id>.detect.json   which snapshot the parent is put back to (checksummed)
    <run id>.closing.json  the same, once the parent is whole and the snapshot goes
    <run id>.heartbeat     touched by the supervisor while the tree lives, and once more
                           when it is gone; then by whoever puts the parent back
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, cast

from workspace_guard.containment.base import Gap, Progress
from workspace_guard.containment.wire import heartbeat_line
from workspace_guard.errors import GuardError, RunNotClosed, StateWriteFailed
from workspace_guard.files.journal import read_sealed, write_sealed
from workspace_guard.files.tree import Folder

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from workspace_guard.containment.base import Enclosure
    from workspace_guard.containment.interrupts import Interrupts
    from workspace_guard.files.layout import WorkspaceState
    from workspace_guard.snapshot.store import Snapshot, Store

_SCHEMA = "workspace-guard/open-detect/1"
_BEAT_S = 0.5
_HEARTBEAT_SLACK_NS = 1_000_000_000
"""Two beats: how old the last one of a supervisor that was killed too may be."""
_CLOCK_SLACK_NS = 20_000_000
"""File times come from a clock that is coarser than the one of the heartbeat."""


class OpenDetect:
    """What the journal holds of one `detect` run."""

    def __init__(self, state: WorkspaceState, run_id: str) -> None:
        self._state = state
        self._run_id = run_id
        self._name = os.fsencode(run_id) + b".detect.json"
        self._closing = os.fsencode(run_id) + b".closing.json"
        self.heartbeat = state.journal / f"{run_id}.heartbeat"

    def begin(
        self,
        store: Store,
        top: Folder,
        skip: frozenset[bytes],
        enclosure: Enclosure,
        interrupts: Interrupts,
        on_progress: Callable[[Progress], None],
    ) -> Snapshot:
        """Take the snapshot, with an entry in the journal before and after it.

        Raises:
            GuardError, OSError: nothing is left in the journal or the store.
        """
        began_ns = time.time_ns()
        self._write(None, began_ns)
        try:
            snapshot = store.create(
                top,
                skip=skip,
                max_bytes=enclosure.max_snapshot_bytes,
                on_progress=lambda files: on_progress(
                    Progress(stage="snapshot", files=files)
                ),
                check=interrupts.check,
            )
            self._write(snapshot.id, began_ns)
        except BaseException:
            with contextlib.suppress(OSError):
                self.close(store, None)
            raise
        return snapshot

    def _write(self, snapshot_id: str | None, began_ns: int) -> None:
        document = {
            "schema": _SCHEMA,
            "run_id": self._run_id,
            "snapshot_id": snapshot_id,
            "began_ns": began_ns,
        }
        try:
            with Folder.open(self._state.journal) as journal:
                write_sealed(journal, self._name, document, owner=self._run_id)
        except OSError as error:
            raise StateWriteFailed(
                f"journal {self._state.journal}: {error.strerror or error}"
            ) from error

    def read(self) -> tuple[str | None, int] | None:
        """The snapshot and when it was begun; None where the journal has no entry.

        Raises:
            JournalDamaged: the entry does not agree with its checksum.
        """
        with Folder.open(self._state.journal) as journal:
            if journal.lookup(self._name) is None:
                return None
            document = read_sealed(journal, self._name)
        return (
            cast("str | None", document["snapshot_id"]),
            cast("int", document["began_ns"]),
        )

    def close(self, store: Store, snapshot_id: str | None) -> None:
        """Take the entry out of the journal and let go of a snapshot.

        In this order: a snapshot without an entry is only litter, an entry without
        its snapshot could not be recovered. It is gone for good, also after a power
        cut, before anything is promoted.

        Args:
            store: has the snapshot.
            snapshot_id: None keeps it.
        """
        self._take_out(to_drop=snapshot_id is not None)
        if snapshot_id is not None:
            self._drop(store, snapshot_id)

    def close_after_run(self, store: Store, snapshot_id: str | None) -> tuple[Gap, ...]:
        """Close the entry of a run that is over.

        Returns:
            What could not be removed from the store: litter, no danger.

        Raises:
            RunNotClosed: the entry is still open. Nothing may be promoted then, for
                recovery would take the promotion for a change of the command's.
        """
        try:
            self._take_out(to_drop=snapshot_id is not None)
        except OSError as error:
            raise RunNotClosed(
                f"journal {self._state.journal}: {error.strerror or error}"
            ) from error
        if snapshot_id is not None:
            try:
                self._drop(store, snapshot_id)
            except (GuardError, OSError) as error:
                return (
                    Gap(
                        kind="state_litter",
                        path=None,
                        could_hide_escape=False,
                        message=f"the snapshot could not be removed: {error}",
                    ),
                )
        return ()

    def finish_closing(self, store: Store) -> None:
        """Let go of what a run that was cut off while it closed had left.

        Raises:
            JournalDamaged: what it was cannot be read; nothing was touched.
        """
        with Folder.open(self._state.journal) as journal:
            with contextlib.suppress(FileNotFoundError):
                journal.unlink(os.fsencode(self.heartbeat.name))
            if journal.lookup(self._closing) is None:
                return
            document = read_sealed(journal, self._closing)
        self._drop(store, cast("str", document["snapshot_id"]))

    def _take_out(self, *, to_drop: bool) -> None:
        with Folder.open(self._state.journal) as journal:
            with contextlib.suppress(FileNotFoundError):
                if to_drop:
                    journal.rename(self._name, journal, self._closing)
                else:
                    journal.unlink(self._name)
            with contextlib.suppress(FileNotFoundError):
                journal.unlink(os.fsencode(self.heartbeat.name))
            journal.sync()

    def _drop(self, store: Store, snapshot_id: str) -> None:
        store.drop(snapshot_id)
        with Folder.open(self._state.journal) as journal:
            journal.unlink(self._closing)

    @contextlib.contextmanager
    def beating(self) -> Generator[None]:
        """Keep the heartbeat going while we put the parent back.

        Recovery writes in the parent like the run that it closes: should it be cut off
        too, what it has written is not to be taken for somebody's newer edit.
        """
        over = threading.Event()

        def beat() -> None:
            self._beat("running")
            while not over.wait(_BEAT_S):
                self._beat("running")

        thread = threading.Thread(target=beat, name="wsguard heartbeat", daemon=True)
        self._beat("running")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._beat("ended")

    def _beat(self, state: str) -> None:
        # On a full disk the one that is there has to do.
        with contextlib.suppress(OSError):
            self.heartbeat.write_bytes(heartbeat_line(state, os.getpid()))

    def last_beat_ns(self) -> int | None:
        """Up to when the run may have written; None where its tree never lived."""
        try:
            text = self.heartbeat.read_bytes()
            beat_ns = os.stat(self.heartbeat).st_mtime_ns
        except FileNotFoundError:
            return None
        if text.startswith(b"ended"):
            return beat_ns + _CLOCK_SLACK_NS
        return beat_ns + _HEARTBEAT_SLACK_NS


def drop_unfinished(store: Store, began_ns: int) -> None:
    """Drop what a run has captured that was killed before it could note its id."""
    for summary in store.list():
        if summary.created_ns >= began_ns:
            store.drop(summary.id)
    store.sweep()
