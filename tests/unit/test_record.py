"""The account of a run: its JSON, its way to the disk and back, and how it is found."""

from __future__ import annotations

import copy
import datetime as dt
import hashlib
import json
import os
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from steps import state_of

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
from workspace_guard.errors import RecordDamaged, RecordMissing, RunNotClosed
from workspace_guard.files.layout import RunFolder, StateLayout
from workspace_guard.files.relpath import RelPath
from workspace_guard.files.replace import to_json
from workspace_guard.step.archive import (
    all_runs,
    find_run,
    new_run,
    read_record,
    runs_of,
    utc,
    write_record,
)
from workspace_guard.step.candidates import TargetState
from workspace_guard.step.judge import Verdict
from workspace_guard.step.promote import Promoted
from workspace_guard.step.record import RunRecord
from workspace_guard.step.stage import StagedInput

if TYPE_CHECKING:
    from pathlib import Path

    from workspace_guard.files.layout import WorkspaceState

A, B = "a" * 64, "b" * 64

RECORD = RunRecord(
    run_id="20261130T160000.000Z-abcdef",
    workspace=b"/srv/report",
    step_name="repair_1",
    step_path=b"tasks/repair_1",
    mode="detect",
    mode_reason="strongest available",
    enforcement=Strength(
        content=Enforcement.FULL,
        metadata=Enforcement.PARTIAL,
        processes=Enforcement.NONE,
        evidence=Enforcement.FULL,
    ),
    gaps=(
        Gap(kind="unreadable", path=b"x", could_hide_escape=True, message="x: closed"),
        Gap(kind="watch", path=None, could_hide_escape=False, message="lost events"),
    ),
    started_at="2026-11-30T16:00:00.000000Z",
    ended_at="2026-11-30T16:00:12.300000Z",
    duration_s=12.3,
    command=("pi", "-p", "补上"),
    runner=RunnerResult(error=None, exit_code=0, signal=None, timed_out=False),
    inputs=(
        StagedInput(
            source=RelPath((b"output.md",)),
            path=RelPath((b"inputs", b"output.snapshot.md")),
            sha256=A,
            size_bytes=812,
        ),
    ),
    targets=(
        TargetState(
            path=RelPath((b"output.md",)),
            destination=RelPath((b"docs", b"output.md")),
            state="valid",
            sha256=B,
            size_bytes=960,
            executable=True,
        ),
        TargetState(
            path=RelPath((b"b.md",)),
            destination=RelPath((b"b.md",)),
            state="missing",
            reason="is not there",
        ),
    ),
    escapes=(
        Escape(
            path=b"output.md",
            kind="replaced",
            effect="restored",
            before=EntryState(
                type="file", mode=0o644, size_bytes=812, sha256=A, target=None
            ),
            after=EntryState(
                type="link", mode=0o777, size_bytes=None, sha256=None, target=b"x"
            ),
            quarantine=b"quarantine/output.md",
            process=ProcessName(pid=4711, command="node pi"),
            at="2026-11-30T16:00:03.000000Z",
        ),
        Escape(
            path=b"/etc/motd",
            kind="changed",
            effect="unrestored",
            before=None,
            after=None,
            quarantine=None,
            message="Permission denied",
        ),
    ),
    processes=(
        Leftover(pid=4715, command="sleep 60", ended="terminated", target_open=False),
    ),
    usage=Usage(cpu_s=1.2, max_rss_bytes=181_000_000),
    verdict=Verdict.PROMOTED,
    reason="1 of 1 targets promoted",
    promotion=(
        Promoted(
            destination=RelPath((b"docs", b"output.md")),
            before_sha256=A,
            after_sha256=B,
            previous="previous/0",
        ),
        Promoted(
            destination=RelPath((b"new.md",)),
            before_sha256=None,
            after_sha256=B,
            previous=None,
        ),
    ),
    task_rewrites=(("../../output.md", "inputs/output.snapshot.md"),),
    warnings=("the task text names '../x', which leads out of the step",),
    interrupted_by=None,
    snapshot_id="0123456789ab",
)

DOCUMENT: dict[str, Any] = {
    "schema": "workspace-guard/run/1",
    "run_id": "20261130T160000.000Z-abcdef",
    "workspace": "/srv/report",
    "step": {"name": "repair_1", "path": "tasks/repair_1"},
    "mode": "detect",
    "mode_reason": "strongest available",
    "enforcement": {
        "content": "full",
        "metadata": "partial",
        "processes": "none",
        "evidence": "full",
    },
    "gaps": [
        {
            "kind": "unreadable",
            "path": "x",
            "could_hide_escape": True,
            "message": "x: closed",
        },
        {
            "kind": "watch",
            "path": None,
            "could_hide_escape": False,
            "message": "lost events",
        },
    ],
    "started_at": "2026-11-30T16:00:00.000000Z",
    "ended_at": "2026-11-30T16:00:12.300000Z",
    "duration_s": 12.3,
    "command": ["pi", "-p", "补上"],
    "runner": {
        "error": None,
        "exit_code": 0,
        "signal": None,
        "timed_out": False,
        "message": "",
    },
    "inputs": [
        {
            "source": "output.md",
            "path": "inputs/output.snapshot.md",
            "sha256": A,
            "size_bytes": 812,
        }
    ],
    "targets": [
        {
            "path": "output.md",
            "destination": "docs/output.md",
            "state": "valid",
            "sha256": B,
            "size_bytes": 960,
            "executable": True,
            "reason": None,
        },
        {
            "path": "b.md",
            "destination": "b.md",
            "state": "missing",
            "sha256": None,
            "size_bytes": None,
            "executable": False,
            "reason": "is not there",
        },
    ],
    "escapes": [
        {
            "path": "output.md",
            "kind": "replaced",
            "effect": "restored",
            "before": {
                "type": "file",
                "mode": "0644",
                "size_bytes": 812,
                "sha256": A,
                "target": None,
            },
            "after": {
                "type": "link",
                "mode": "0777",
                "size_bytes": None,
                "sha256": None,
                "target": "x",
            },
            "quarantine": "quarantine/output.md",
            "process": {"pid": 4711, "command": "node pi"},
            "at": "2026-11-30T16:00:03.000000Z",
            "message": None,
        },
        {
            "path": "/etc/motd",
            "kind": "changed",
            "effect": "unrestored",
            "before": None,
            "after": None,
            "quarantine": None,
            "process": None,
            "at": None,
            "message": "Permission denied",
        },
    ],
    "processes": [
        {
            "pid": 4715,
            "command": "sleep 60",
            "ended": "terminated",
            "target_open": False,
        }
    ],
    "usage": {"cpu_s": 1.2, "max_rss_bytes": 181000000},
    "verdict": "promoted",
    "reason": "1 of 1 targets promoted",
    "promotion": [
        {
            "destination": "docs/output.md",
            "before_sha256": A,
            "after_sha256": B,
            "previous": "previous/0",
        },
        {
            "destination": "new.md",
            "before_sha256": None,
            "after_sha256": B,
            "previous": None,
        },
    ],
    "task_rewrites": [["../../output.md", "inputs/output.snapshot.md"]],
    "warnings": ["the task text names '../x', which leads out of the step"],
    "interrupted_by": None,
    "snapshot_id": "0123456789ab",
}


@pytest.fixture
def state(tmp_path: Path) -> WorkspaceState:
    """The state of a workspace."""
    return state_of(tmp_path / "workspace", tmp_path / "state")


# --- The JSON -------------------------------------------------------------------------


def test_record_when_spelled_then_is_field_by_field_what_the_spec_says() -> None:
    """Scripts rest on these names, and on their order for people."""
    document = RECORD.to_json()

    assert document == DOCUMENT
    assert list(document) == list(DOCUMENT)


def test_record_when_read_back_then_is_the_same_value() -> None:
    """Nothing is lost on the way to JSON and back."""
    assert RunRecord.from_json(json.loads(json.dumps(RECORD.to_json()))) == RECORD


def _record_of(name: bytes) -> RunRecord:
    """A record in which every path holds this name."""
    path = RelPath((b"d", name))
    first = RECORD.escapes[0]
    state = EntryState(type="link", mode=0, size_bytes=None, sha256=None, target=name)
    return replace(
        RECORD,
        workspace=b"/srv/" + name,
        step_name=os.fsdecode(name),
        step_path=b"tasks/" + name,
        gaps=(replace(RECORD.gaps[0], path=name),),
        inputs=(replace(RECORD.inputs[0], source=path, path=path),),
        targets=(replace(RECORD.targets[0], path=path, destination=path),),
        escapes=(
            replace(first, path=name, quarantine=name, before=state, after=state),
        ),
        promotion=(replace(RECORD.promotion[0], destination=path),),
    )


@pytest.mark.case("E10", "E11", "S16")
@pytest.mark.parametrize(
    "name",
    [b"bad\xff.md", b"\xff", b"two\nlines", b"\x1b[2K\r", "会议".encode(), b"\\xff"],
)
def test_record_when_names_are_unusual_then_reads_back_byte_for_byte(
    name: bytes,
) -> None:
    """A path that is no UTF-8 is shown escaped, with its exact bytes beside it."""
    record = _record_of(name)

    text = json.dumps(record.to_json(), ensure_ascii=False).encode("utf-8")

    assert record == RunRecord.from_json(json.loads(text))


def test_path_when_it_is_no_utf8_then_stands_escaped_with_base64_beside_it() -> None:
    """`path` for people, `path_bytes` for programs; neither where it is plain."""
    document = _record_of(b"bad\xff.md").to_json()

    assert document["targets"] == [
        {
            "path": "d/bad\\xff.md",
            "path_bytes": "ZC9iYWT/Lm1k",
            "destination": "d/bad\\xff.md",
            "destination_bytes": "ZC9iYWT/Lm1k",
            "state": "valid",
            "sha256": B,
            "size_bytes": 960,
            "executable": True,
            "reason": None,
        }
    ]
    assert document["step"] == {
        "name": "bad\\xff.md",
        "name_bytes": "YmFk/y5tZA==",
        "path": "tasks/bad\\xff.md",
        "path_bytes": "dGFza3MvYmFk/y5tZA==",
    }


@given(st.binary(min_size=1, max_size=20).filter(lambda raw: b"\0" not in raw))
def test_record_when_a_name_is_any_bytes_then_reads_back(name: bytes) -> None:
    """Whatever a file is called, its record says so exactly."""
    record = _record_of(name.replace(b"/", b"_"))

    assert record == RunRecord.from_json(json.loads(json.dumps(record.to_json())))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (os.fsdecode(b"caf\xe9"), "caf\\xe9"),
        ("half \ud800", "half \\ud800"),
        ("补上", "补上"),
    ],
)
def test_record_when_a_text_is_no_unicode_then_can_be_written_all_the_same(
    state: WorkspaceState, text: str, shown: str
) -> None:
    """Arguments, messages and task texts come from anywhere; a record never fails."""
    record = replace(
        RECORD,
        command=("echo", text),
        reason=text,
        warnings=(text,),
        task_rewrites=((text, text),),
        runner=replace(RECORD.runner, message=text),
        processes=(replace(RECORD.processes[0], command=text),),
        mode_reason=text,
    )
    run = new_run(state)

    write_record(run, record)

    found = read_record(run)
    assert found.command == ("echo", shown)
    assert (found.reason, found.warnings) == (shown, (shown,))
    assert found.task_rewrites == ((shown, shown),)


# --- What a newer version has written -------------------------------------------------


def _newer() -> dict[str, Any]:
    """The document with fields at every depth that this version does not know."""
    document = copy.deepcopy(DOCUMENT)
    document["adopted_from"] = "20261130T150000.000Z-000000"
    document["labels"] = {"a": [1, {"b": None}]}
    document["step"]["round"] = 3
    document["enforcement"]["network"] = "full"
    document["runner"]["core_dumped"] = False
    document["usage"]["energy_j"] = 1.5
    document["gaps"][1]["since"] = "2026"
    document["inputs"][0]["mtime_ns"] = 5
    document["targets"][0]["lines"] = 12
    document["escapes"][0]["before"]["owner"] = 0
    document["escapes"][0]["process"]["uid"] = 12345
    document["escapes"][1]["observed"] = True
    document["processes"][0]["started_at"] = "x"
    document["promotion"][1]["mode"] = "0644"
    document["task_rewrites"][0].append("why")
    return document


def test_record_when_a_newer_version_wrote_it_then_is_read_and_kept_whole() -> None:
    """Unknown fields survive a read and a write, wherever they stand."""
    record = RunRecord.from_json(_newer())

    assert record.to_json() == _newer()
    assert replace(record, unknown={}) == RECORD


def test_unknown_fields_when_the_record_is_changed_then_go_with_the_rest() -> None:
    """What is known is written as it is now, what is unknown as it was."""
    record = replace(RunRecord.from_json(_newer()), reason="taken over", gaps=())

    document = record.to_json()

    expected = _newer() | {"reason": "taken over", "gaps": document["gaps"]}
    assert document == expected


def test_unknown_fields_when_there_are_none_then_nothing_is_kept() -> None:
    """A record of this version has no unknown part."""
    assert RunRecord.from_json(DOCUMENT).unknown == {}


@pytest.mark.parametrize("field", sorted(DOCUMENT))
def test_record_when_a_field_is_missing_then_is_no_record(
    state: WorkspaceState, field: str
) -> None:
    """A document without a field of the schema is damaged, though its digest holds."""
    document = {key: value for key, value in DOCUMENT.items() if key != field}
    run = _write_raw(new_run(state), json.dumps(document).encode())

    with pytest.raises(RecordDamaged):
        read_record(run)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff",
        b"{}",
        json.dumps(DOCUMENT | {"schema": "workspace-guard/run/2"}).encode(),
        json.dumps(DOCUMENT | {"verdict": "fine"}).encode(),
        json.dumps(DOCUMENT | {"gaps": None}).encode(),
        json.dumps(DOCUMENT | {"step": "x"}).encode(),
        json.dumps(DOCUMENT | {"runner": []}).encode(),
        json.dumps(DOCUMENT | {"usage": {}}).encode(),
        json.dumps(DOCUMENT | {"enforcement": []}).encode(),
        b"[" * 100_000,
    ],
)
def test_record_when_it_is_no_record_then_is_damaged_though_its_digest_holds(
    state: WorkspaceState, content: bytes
) -> None:
    """What cannot be understood is said to be damaged, never a crash."""
    run = _write_raw(new_run(state), content)

    with pytest.raises(RecordDamaged) as caught:
        read_record(run)

    assert caught.value.exit_status == 51


def _write_raw(run: RunFolder, content: bytes) -> RunFolder:
    run.record.write_bytes(content)
    run.record_digest.write_text(hashlib.sha256(content).hexdigest() + "\n")
    return run


WHOLE = {"escapes": RECORD.escapes[:1]}
"""What makes of the record one of which every escape was put back."""

# --- Exit statuses --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({**WHOLE}, 0),
        ({**WHOLE, "verdict": Verdict.ACCEPTED}, 0),
        ({**WHOLE, "verdict": Verdict.CONFLICT}, 44),
        ({**WHOLE, "verdict": Verdict.ESCAPED}, 30),
        ({**WHOLE, "verdict": Verdict.RUNNER_FAILED}, 20),
        ({**WHOLE, "verdict": Verdict.RUNNER_FAILED, "interrupted_by": 2}, 130),
        ({**WHOLE, "verdict": Verdict.RUNNER_FAILED, "interrupted_by": 15}, 143),
        ({"verdict": Verdict.ESCAPED}, 31),
        ({"verdict": Verdict.RUNNER_FAILED}, 31),
        ({"verdict": Verdict.RUNNER_FAILED, "interrupted_by": 15}, 31),
    ],
)
def test_exit_status_when_a_run_has_ended_then_is_that_of_its_verdict(
    changed: dict[str, Any], status: int
) -> None:
    """31 wherever an escape was not put back, 128 and the signal where one came."""
    assert status == replace(RECORD, **changed).exit_status


# --- On disk --------------------------------------------------------------------------


def test_record_when_written_then_its_digest_lies_beside_it(
    state: WorkspaceState,
) -> None:
    """`sha256sum -c` can check it without us."""
    run = new_run(state)

    write_record(run, RECORD)

    digest = hashlib.sha256(run.record.read_bytes()).hexdigest()
    assert run.record_digest.read_text() == f"{digest}\n"
    assert run.record.read_bytes() == to_json(RECORD.to_json())
    assert sorted(os.listdir(run.path)) == ["record.json", "record.sha256"]
    assert read_record(run) == RECORD


def test_record_when_written_again_then_replaces_the_first(
    state: WorkspaceState,
) -> None:
    """`recover` may write the same run's record once more."""
    run = new_run(state)
    write_record(run, RECORD)

    write_record(run, replace(RECORD, reason="again"))

    assert read_record(run).reason == "again"


def _written(state: WorkspaceState) -> RunFolder:
    """A record as `write_record` has written it, without waiting for the disk."""
    run = state.run("x")
    run.path.mkdir(exist_ok=True)
    return _write_raw(run, to_json(RECORD.to_json()))


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(position=st.integers(min_value=0), bits=st.integers(min_value=1, max_value=255))
def test_record_when_any_byte_was_changed_then_is_damaged(
    state: WorkspaceState, position: int, bits: int
) -> None:
    """A record fails its check wherever it was touched."""
    run = _written(state)
    content = bytearray(run.record.read_bytes())
    content[position % len(content)] ^= bits
    run.record.write_bytes(content)

    with pytest.raises(RecordDamaged) as caught:
        read_record(run)

    expected = f"run record {run.record}: does not agree with record.sha256"
    assert expected == caught.value.message


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(length=st.integers(min_value=0))
def test_record_when_cut_off_then_is_damaged(
    state: WorkspaceState, length: int
) -> None:
    """A record that is not whole is none."""
    run = _written(state)
    content = run.record.read_bytes()
    run.record.write_bytes(content[: length % len(content)])

    with pytest.raises(RecordDamaged):
        read_record(run)


@pytest.mark.parametrize(
    "digest", [b"", b"\xff\xfe", b"0" * 64, A.encode(), b"x" * 1000]
)
def test_record_when_its_digest_was_changed_then_is_damaged(
    state: WorkspaceState, digest: bytes
) -> None:
    """The digest counts as much as the record."""
    run = new_run(state)
    write_record(run, RECORD)
    run.record_digest.write_bytes(digest)

    with pytest.raises(RecordDamaged):
        read_record(run)


@pytest.mark.parametrize("name", ["record.json", "record.sha256"])
def test_record_when_half_of_it_is_missing_then_counts_as_not_finished(
    state: WorkspaceState, name: str
) -> None:
    """The digest is written after the record: without it the run was cut off."""
    run = new_run(state)
    write_record(run, RECORD)
    (run.path / name).unlink()

    with pytest.raises(RecordMissing) as caught:
        read_record(run)

    expected = f"run {run.run_id}: has no finished record ({run.path / name})"
    assert expected == caught.value.message
    assert caught.value.exit_status == 50


def test_record_when_it_is_a_folder_then_is_damaged(state: WorkspaceState) -> None:
    """What cannot be read is named, never a crash."""
    run = new_run(state)
    write_record(run, RECORD)
    run.record.unlink()
    run.record.mkdir()

    with pytest.raises(RecordDamaged) as caught:
        read_record(run)

    assert caught.value.message == f"run record {run.record}: Is a directory"


def test_record_when_it_cannot_be_written_then_the_run_is_not_closed(
    state: WorkspaceState,
) -> None:
    """A run is over and its record is not there: its own exit status, and no litter."""
    run = new_run(state)
    run.record.mkdir()

    with pytest.raises(RunNotClosed) as caught:
        write_record(run, RECORD)

    assert caught.value.exit_status == 56
    assert os.listdir(run.path) == ["record.json"]


# --- Finding runs ---------------------------------------------------------------------


@pytest.fixture
def layout(tmp_path: Path) -> StateLayout:
    """Two workspaces with three runs, the newest in the first."""
    layout = StateLayout(tmp_path / "state")
    for workspace, ids in (("one", ("2026-a1", "2026-c3")), ("two", ("2026-b2",))):
        state = layout.of(tmp_path / workspace)
        state.make()
        for run_id in ids:
            state.run(run_id).path.mkdir()
    return layout


@pytest.mark.parametrize(
    ("asked", "workspace", "found"),
    [
        ("2026-a1", None, "2026-a1"),
        ("2026-b2", None, "2026-b2"),
        ("2026-b", None, "2026-b2"),
        ("latest", None, "2026-c3"),
        ("latest", "one", "2026-c3"),
        ("latest", "two", "2026-b2"),
        ("2026", "two", "2026-b2"),
        ("2026-a", "one", "2026-a1"),
    ],
)
def test_run_when_asked_for_then_is_found_by_id_beginning_or_as_latest(
    tmp_path: Path, layout: StateLayout, asked: str, workspace: str | None, found: str
) -> None:
    """A run is found without its workspace, and in one where that is given."""
    state = None if workspace is None else layout.of(tmp_path / workspace)

    assert found == find_run(layout, state, asked).run_id


@pytest.mark.parametrize(
    ("asked", "workspace", "fact"),
    [
        ("2026", None, "run '2026': 3 runs begin so in {root}"),
        ("2026", "one", "run '2026': 2 runs begin so in {root}"),
        ("", None, "run '': there is no such run in {root}"),
        ("2027", None, "run '2027': there is no such run in {root}"),
        ("2026-b2", "one", "run '2026-b2': there is no such run in {root}"),
        ("../runs", None, "run '../runs': there is no such run in {root}"),
        ("latest", "three", "run 'latest': there is no such run in {root}"),
    ],
)
def test_run_when_not_one_is_meant_then_the_message_says_so(
    tmp_path: Path, layout: StateLayout, asked: str, workspace: str | None, fact: str
) -> None:
    """Neither the first of several nor another workspace's is taken for it."""
    state = None if workspace is None else layout.of(tmp_path / workspace)

    with pytest.raises(RecordMissing) as caught:
        find_run(layout, state, asked)

    assert caught.value.message == fact.format(root=layout.root)


def test_run_when_its_id_begins_another_then_is_found_itself(
    tmp_path: Path, layout: StateLayout
) -> None:
    """A whole id is never ambiguous."""
    layout.of(tmp_path / "one").run("2026-a1-again").path.mkdir()

    assert find_run(layout, None, "2026-a1").run_id == "2026-a1"


def test_runs_when_there_is_no_state_yet_then_are_none(tmp_path: Path) -> None:
    """Looking makes nothing."""
    layout = StateLayout(tmp_path / "state")

    assert (runs_of(layout.of(tmp_path)), list(all_runs(layout))) == ([], [])
    assert os.listdir(tmp_path) == []


@pytest.mark.case("S62")
def test_runs_when_made_one_after_the_other_then_are_private_and_sorted_by_time(
    state: WorkspaceState,
) -> None:
    """An id sorts by time, is never given twice, and its folder is the owner's only."""
    made = [new_run(state) for _ in range(20)]

    assert len({run.run_id for run in made}) == 20
    stamps = [run.run_id.rpartition("-")[0] for run in runs_of(state)]
    assert stamps == sorted(stamps)
    assert {oct(run.path.stat().st_mode & 0o777) for run in made} == {"0o700"}


def test_moment_when_spelled_then_is_utc_with_microseconds() -> None:
    """RFC 3339, the same length every time, so that texts sort as times do."""
    zone = dt.timezone(dt.timedelta(hours=8))

    assert utc(dt.datetime(2026, 12, 1, 0, 0, tzinfo=zone)) == (
        "2026-11-30T16:00:00.000000Z"
    )


def test_record_when_its_fields_are_listed_then_each_is_in_the_document() -> None:
    """A field that is added to the record is added to its JSON."""
    spelled = {"step_name": "step", "step_path": "step"}
    names = {spelled.get(field.name, field.name) for field in fields(RunRecord)}

    assert names - {"unknown"} == set(DOCUMENT) - {"schema"}
