"""Where run records are kept: written once, found by id, checked when read.

Room: step. Knows the files of a run's folder; a record counts only together with its
digest, which is written after it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import secrets
from typing import TYPE_CHECKING

from workspace_guard.errors import RecordDamaged, RecordMissing, RunNotClosed
from workspace_guard.files.layout import RunFolder, make_private
from workspace_guard.files.replace import to_json, write_file
from workspace_guard.files.tree import Folder
from workspace_guard.step.record import RunRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workspace_guard.files.layout import StateLayout, WorkspaceState

LATEST = "latest"
_NO_RECORD = (KeyError, ValueError, TypeError, AttributeError, RecursionError)
"""What reading a document as a record ends with where it is none."""


def utc(moment: dt.datetime) -> str:
    """Spell a moment as records have it: RFC 3339, UTC, microseconds."""
    text = moment.astimezone(dt.UTC).isoformat(timespec="microseconds")
    return text.replace("+00:00", "Z")


def new_run(state: WorkspaceState) -> RunFolder:
    """Make the folder of a new run; its name is the run's id and sorts by time.

    Raises:
        StateUnusable: it cannot be made.
    """
    now = dt.datetime.now(dt.UTC)
    stamp = f"{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03d}Z"
    run = state.run(f"{stamp}-{secrets.token_hex(3)}")
    make_private(run.path)
    return run


def write_record(run: RunFolder, record: RunRecord) -> None:
    """Write a record and then its digest, both durably.

    Raises:
        RunNotClosed: one could not be written; an earlier record is still whole.
    """
    content = to_json(record.to_json())
    digest = hashlib.sha256(content).hexdigest().encode() + b"\n"
    try:
        with Folder.open(run.path) as folder:
            write_file(folder, b"record.json", content, owner=run.run_id)
            write_file(folder, b"record.sha256", digest, owner=run.run_id)
    except OSError as error:
        raise RunNotClosed(
            f"run record {run.record}: {error.strerror or error}"
        ) from error


def read_record(run: RunFolder) -> RunRecord:
    """Read a record and check it against its digest.

    Raises:
        RecordMissing: the run has none: it is still going on, or was cut off.
        RecordDamaged: a byte of it has changed, or it is no record.
    """
    try:
        content = run.record.read_bytes()
        digest = run.record_digest.read_bytes().strip()
    except FileNotFoundError as error:
        raise RecordMissing(
            f"run {run.run_id}: has no finished record ({error.filename})",
            hint="it is still going on, or was cut off: `wsguard recover` closes it",
        ) from error
    except OSError as error:
        raise RecordDamaged(f"run record {run.record}: {error.strerror}") from error
    if hashlib.sha256(content).hexdigest().encode() != digest:
        raise RecordDamaged(
            f"run record {run.record}: does not agree with {run.record_digest.name}"
        )
    try:
        return RunRecord.from_json(json.loads(content))
    except _NO_RECORD as error:
        fact = f"{type(error).__name__}: {error}"
        raise RecordDamaged(f"run record {run.record}: {fact}") from error


def runs_of(state: WorkspaceState) -> list[RunFolder]:
    """The runs of one workspace, oldest first."""
    try:
        names = sorted(os.listdir(state.runs))
    except FileNotFoundError:
        return []
    return [state.run(name) for name in names]


def all_runs(layout: StateLayout) -> Iterator[RunFolder]:
    """The runs of every workspace, by workspace and then oldest first."""
    for state in layout.workspaces():
        yield from runs_of(state)


def find_run(
    layout: StateLayout, state: WorkspaceState | None, run_id: str
) -> RunFolder:
    """Find a run by its id, by a beginning of it that only one has, or as `latest`.

    Args:
        layout: the whole state folder.
        state: look only in this workspace; None looks in all.
        run_id: what the user wrote.

    Raises:
        RecordMissing: there is none, or more than one.
    """
    runs = list(all_runs(layout)) if state is None else runs_of(state)
    if run_id == LATEST:
        found = sorted(runs, key=lambda run: run.run_id)[-1:]
    else:
        found = [run for run in runs if run.run_id == run_id] or [
            run for run in runs if run_id and run.run_id.startswith(run_id)
        ]
    if len(found) == 1:
        return found[0]
    fact = f"{len(found)} runs begin so" if found else "there is no such run"
    raise RecordMissing(f"run {run_id!r}: {fact} in {layout.root}")
