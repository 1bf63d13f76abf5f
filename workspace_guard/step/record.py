"""The account of one run, from contract to verdict, and its form on disk.

Room: step. Knows the fields of `workspace-guard/run/1`; where records are kept is
`step.archive`'s to know.

Source: spec 4, "Run record".
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, TypeVar, cast

from workspace_guard.containment.base import (
    Enforcement,
    EntryState,
    Escape,
    Gap,
    Leftover,
    ProcessName,
    RunnerResult,
    Strength,
    Usage,
)
from workspace_guard.files.relpath import RelPath, path_fields, path_from_fields
from workspace_guard.step.candidates import TargetState
from workspace_guard.step.document import Json, graft, printable, unknown_to
from workspace_guard.step.judge import ESCAPED_NOT_RESTORED, Verdict
from workspace_guard.step.promote import Promoted
from workspace_guard.step.stage import StagedInput

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = "workspace-guard/run/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What happened in one run."""

    run_id: str
    workspace: bytes
    """Absolute path."""
    step_name: str
    step_path: bytes
    """Relative to the workspace; absolute for a step that was placed elsewhere."""
    mode: str
    mode_reason: str
    enforcement: Strength
    gaps: tuple[Gap, ...]
    started_at: str
    """RFC 3339, UTC, microseconds."""
    ended_at: str
    duration_s: float
    command: tuple[str, ...]
    runner: RunnerResult
    inputs: tuple[StagedInput, ...]
    targets: tuple[TargetState, ...]
    escapes: tuple[Escape, ...]
    processes: tuple[Leftover, ...]
    usage: Usage
    verdict: Verdict
    reason: str
    promotion: tuple[Promoted, ...]
    task_rewrites: tuple[tuple[str, str], ...] = ()
    """(parent path as written, local path), for the user's task text."""
    warnings: tuple[str, ...] = ()
    interrupted_by: int | None = None
    """The signal to the guard that ended the run."""
    snapshot_id: str | None = None
    """A snapshot of the parent that was kept."""
    unknown: Mapping[str, object] = field(default_factory=lambda: cast("Json", {}))
    """Fields that this version does not know, at any depth (see `step.document`)."""

    @property
    def exit_status(self) -> int:
        """The exit status that `run` ends with (`design/architecture.md`).

        A workspace that is not as it was has its own, whatever else has failed.
        """
        if any(escape.effect == "unrestored" for escape in self.escapes):
            return ESCAPED_NOT_RESTORED
        if self.interrupted_by is not None:
            return 128 + self.interrupted_by
        return self.verdict.exit_status

    def to_json(self) -> Json:
        """The record as a JSON document, in which every text is lawful Unicode."""
        whole = graft(self._known_fields(), self.unknown)
        return cast("Json", printable(whole))

    def _known_fields(self) -> Json:
        return {
            "schema": SCHEMA,
            "run_id": self.run_id,
            **path_fields(self.workspace, "workspace"),
            "step": {
                **path_fields(os.fsencode(self.step_name), "name"),
                **path_fields(self.step_path),
            },
            "mode": self.mode,
            "mode_reason": self.mode_reason,
            "enforcement": {
                aspect.name: getattr(self.enforcement, aspect.name).value
                for aspect in fields(Strength)
            },
            "gaps": [_gap_to_json(gap) for gap in self.gaps],
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "duration_s": self.duration_s,
            "command": list(self.command),
            "runner": _plain(self.runner),
            "inputs": [_input_to_json(i) for i in self.inputs],
            "targets": [_target_to_json(t) for t in self.targets],
            "escapes": [_escape_to_json(e) for e in self.escapes],
            "processes": [_plain(process) for process in self.processes],
            "usage": _plain(self.usage),
            "verdict": self.verdict.value,
            "reason": self.reason,
            "promotion": [_promoted_to_json(p) for p in self.promotion],
            "task_rewrites": [list(pair) for pair in self.task_rewrites],
            "warnings": list(self.warnings),
            "interrupted_by": self.interrupted_by,
            "snapshot_id": self.snapshot_id,
        }

    @classmethod
    def from_json(cls, document: Json) -> RunRecord:
        """Read a record back.

        Raises:
            KeyError, ValueError, TypeError: it is no record of this schema.
        """
        if document["schema"] != SCHEMA:
            message = f"schema {document['schema']!r} is not {SCHEMA!r}"
            raise ValueError(message)
        step = cast("Json", document["step"])
        strength = cast("dict[str, str]", document["enforcement"])
        record = cls(
            run_id=str(document["run_id"]),
            workspace=path_from_fields(document, "workspace"),
            step_name=os.fsdecode(path_from_fields(step, "name")),
            step_path=path_from_fields(step),
            mode=str(document["mode"]),
            mode_reason=str(document["mode_reason"]),
            enforcement=Strength(
                **{f.name: Enforcement(strength[f.name]) for f in fields(Strength)}
            ),
            gaps=tuple(_gap(row) for row in _rows(document, "gaps")),
            started_at=str(document["started_at"]),
            ended_at=str(document["ended_at"]),
            duration_s=cast("float", document["duration_s"]),
            command=tuple(cast("list[str]", document["command"])),
            runner=_value(RunnerResult, document["runner"]),
            inputs=tuple(_input(row) for row in _rows(document, "inputs")),
            targets=tuple(_target(row) for row in _rows(document, "targets")),
            escapes=tuple(_escape(row) for row in _rows(document, "escapes")),
            processes=tuple(
                _value(Leftover, row) for row in _rows(document, "processes")
            ),
            usage=_value(Usage, document["usage"]),
            verdict=Verdict(document["verdict"]),
            reason=str(document["reason"]),
            promotion=tuple(_promoted(row) for row in _rows(document, "promotion")),
            task_rewrites=tuple(
                (pair[0], pair[1])
                for pair in cast("list[list[str]]", document["task_rewrites"])
            ),
            warnings=tuple(cast("list[str]", document["warnings"])),
            interrupted_by=cast("int | None", document["interrupted_by"]),
            snapshot_id=cast("str | None", document["snapshot_id"]),
        )
        return replace(record, unknown=unknown_to(record.to_json(), document))


def _plain(value: object) -> Json:
    return {f.name: getattr(value, f.name) for f in fields(value)}  # type: ignore[arg-type]  # only dataclasses come here


_T = TypeVar("_T")


def _value(kind: type[_T], row: object) -> _T:
    """Read a flat value; fields that it does not know are left out."""
    known = cast("Json", row)
    return kind(**{f.name: known[f.name] for f in fields(kind) if f.name in known})  # type: ignore[arg-type]  # only dataclasses come here


def _rows(document: Json, key: str) -> list[Json]:
    return cast("list[Json]", document[key])


def _gap_to_json(gap: Gap) -> Json:
    where = {"path": None} if gap.path is None else path_fields(gap.path)
    return {
        "kind": gap.kind,
        **where,
        "could_hide_escape": gap.could_hide_escape,
        "message": gap.message,
    }


def _gap(row: Json) -> Gap:
    return Gap(
        kind=str(row["kind"]),
        path=None if row["path"] is None else path_from_fields(row),
        could_hide_escape=bool(row["could_hide_escape"]),
        message=str(row["message"]),
    )


def _input_to_json(staged: StagedInput) -> Json:
    return {
        **path_fields(bytes(staged.source), "source"),
        **path_fields(bytes(staged.path)),
        "sha256": staged.sha256,
        "size_bytes": staged.size_bytes,
    }


def _input(row: Json) -> StagedInput:
    return StagedInput(
        source=RelPath.of(path_from_fields(row, "source")),
        path=RelPath.of(path_from_fields(row)),
        sha256=str(row["sha256"]),
        size_bytes=cast("int", row["size_bytes"]),
    )


def _target_to_json(target: TargetState) -> Json:
    return {
        **path_fields(bytes(target.path)),
        **path_fields(bytes(target.destination), "destination"),
        "state": target.state,
        "sha256": target.sha256,
        "size_bytes": target.size_bytes,
        "executable": target.executable,
        "reason": target.reason,
    }


def _target(row: Json) -> TargetState:
    return TargetState(
        path=RelPath.of(path_from_fields(row)),
        destination=RelPath.of(path_from_fields(row, "destination")),
        state=row["state"],  # type: ignore[arg-type]  # sealed by the record's digest
        sha256=cast("str | None", row["sha256"]),
        size_bytes=cast("int | None", row["size_bytes"]),
        executable=bool(row["executable"]),
        reason=cast("str | None", row["reason"]),
    )


def _state_to_json(state: EntryState | None) -> Json | None:
    if state is None:
        return None
    link = (
        {"target": None}
        if state.target is None
        else path_fields(state.target, "target")
    )
    return {
        "type": state.type,
        "mode": f"{state.mode:04o}",
        "size_bytes": state.size_bytes,
        "sha256": state.sha256,
        **link,
    }


def _state(row: Json | None) -> EntryState | None:
    if row is None:
        return None
    return EntryState(
        type=row["type"],  # type: ignore[arg-type]  # sealed by the record's digest
        mode=int(str(row["mode"]), 8),
        size_bytes=cast("int | None", row["size_bytes"]),
        sha256=cast("str | None", row["sha256"]),
        target=None if row["target"] is None else path_from_fields(row, "target"),
    )


def _escape_to_json(escape: Escape) -> Json:
    quarantine = escape.quarantine
    kept = (
        {"quarantine": None}
        if quarantine is None
        else path_fields(quarantine, "quarantine")
    )
    return {
        **path_fields(escape.path),
        "kind": escape.kind,
        "effect": escape.effect,
        "before": _state_to_json(escape.before),
        "after": _state_to_json(escape.after),
        **kept,
        "process": None if escape.process is None else _plain(escape.process),
        "at": escape.at,
        "message": escape.message,
    }


def _escape(row: Json) -> Escape:
    process = row["process"]
    kept = row["quarantine"]
    return Escape(
        path=path_from_fields(row),
        kind=row["kind"],  # type: ignore[arg-type]  # sealed by the record's digest
        effect=row["effect"],  # type: ignore[arg-type]  # sealed by the record's digest
        before=_state(cast("Json | None", row["before"])),
        after=_state(cast("Json | None", row["after"])),
        quarantine=None if kept is None else path_from_fields(row, "quarantine"),
        process=None if process is None else _value(ProcessName, process),
        at=cast("str | None", row["at"]),
        message=cast("str | None", row["message"]),
    )


def _promoted_to_json(promoted: Promoted) -> Json:
    return {
        **path_fields(bytes(promoted.destination), "destination"),
        "before_sha256": promoted.before_sha256,
        "after_sha256": promoted.after_sha256,
        "previous": promoted.previous,
    }


def _promoted(row: Json) -> Promoted:
    return Promoted(
        destination=RelPath.of(path_from_fields(row, "destination")),
        before_sha256=cast("str | None", row["before_sha256"]),
        after_sha256=str(row["after_sha256"]),
        previous=cast("str | None", row["previous"]),
    )
