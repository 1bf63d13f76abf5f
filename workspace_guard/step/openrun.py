"""What stands in the journal while a run is going on, for whoever finds it cut off.

Room: step. Knows the open-run file: enough to close a run without its guard.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from workspace_guard.errors import JournalDamaged, RunNotClosed, StateWriteFailed
from workspace_guard.files.journal import read_sealed, write_sealed
from workspace_guard.files.relpath import RelPath, path_fields, path_from_fields
from workspace_guard.files.tree import Folder
from workspace_guard.step.document import printable
from workspace_guard.step.folders import FolderTimes

if TYPE_CHECKING:
    from workspace_guard.files.layout import WorkspaceState

_SCHEMA = "workspace-guard/open-run/1"
_SUFFIX = b".run.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """A run that has begun and has no record yet."""

    run_id: str
    pid: int
    """The guard's."""
    started_at: str
    mode: str
    mode_reason: str
    command: tuple[str, ...]
    step_name: str
    step: bytes
    """Relative to the workspace; absolute for a step that was placed elsewhere."""
    scratch: bytes
    """The private TMPDIR, absolute."""
    destinations: dict[RelPath, str | None]
    """Every place that promotion may touch, with its digest before; None: absent."""
    folders: FolderTimes = field(default_factory=FolderTimes)
    """The folders on the way there, as they were when the run began."""

    def write(self, state: WorkspaceState) -> None:
        """Put it into the journal, durably.

        Raises:
            StateWriteFailed: it could not be written.
        """
        document: dict[str, object] = {
            "schema": _SCHEMA,
            "run_id": self.run_id,
            "pid": self.pid,
            "started_at": self.started_at,
            "mode": self.mode,
            "mode_reason": self.mode_reason,
            "command": [printable(word) for word in self.command],
            **path_fields(os.fsencode(self.step_name), "step_name"),
            **path_fields(self.step, "step"),
            **path_fields(self.scratch, "scratch"),
            "destinations": [
                {**path_fields(bytes(path)), "sha256": sha256}
                for path, sha256 in self.destinations.items()
            ],
            "folders": [
                {**path_fields(bytes(path)), "mtime_ns": mtime_ns}
                for path, mtime_ns in self.folders.items()
            ],
        }
        name = os.fsencode(self.run_id) + _SUFFIX
        try:
            with Folder.open(state.journal) as journal:
                write_sealed(journal, name, document, owner=self.run_id)
        except OSError as error:
            raise StateWriteFailed(
                f"journal {state.journal}: {error.strerror or error}"
            ) from error

    def close(self, state: WorkspaceState) -> None:
        """Take it out of the journal.

        Raises:
            RunNotClosed: it is still there; `recover` closes it.
        """
        try:
            with Folder.open(state.journal) as journal:
                journal.unlink(os.fsencode(self.run_id) + _SUFFIX)
        except OSError as error:
            raise RunNotClosed(
                f"journal {state.journal}: {error.strerror or error}"
            ) from error


def open_runs(state: WorkspaceState) -> tuple[str, ...]:
    """The ids of the runs that stand in the journal."""
    try:
        names = sorted(os.fsencode(name) for name in os.listdir(state.journal))
    except FileNotFoundError:
        return ()
    return tuple(
        os.fsdecode(name.removesuffix(_SUFFIX))
        for name in names
        if name.endswith(_SUFFIX)
    )


def read_open_run(state: WorkspaceState, run_id: str) -> OpenRun:
    """Read an open run.

    Raises:
        JournalDamaged: it does not agree with its checksum, or is of another schema.
    """
    with Folder.open(state.journal) as journal:
        document = read_sealed(journal, os.fsencode(run_id) + _SUFFIX)
    if document.get("schema") != _SCHEMA:
        raise JournalDamaged(f"open run {run_id}: schema {document.get('schema')!r}")
    rows = cast("list[dict[str, object]]", document["destinations"])
    return OpenRun(
        run_id=run_id,
        pid=cast("int", document["pid"]),
        started_at=str(document["started_at"]),
        mode=str(document["mode"]),
        mode_reason=str(document["mode_reason"]),
        command=tuple(cast("list[str]", document["command"])),
        step_name=os.fsdecode(path_from_fields(document, "step_name")),
        step=path_from_fields(document, "step"),
        scratch=path_from_fields(document, "scratch"),
        destinations={
            RelPath.of(path_from_fields(row)): cast("str | None", row["sha256"])
            for row in rows
        },
        folders={
            RelPath.of(path_from_fields(row)): cast("int | None", row["mtime_ns"])
            for row in cast("list[dict[str, object]]", document["folders"])
        },
    )
