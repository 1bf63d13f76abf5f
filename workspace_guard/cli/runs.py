"""`runs`: what happened in earlier runs.

Room: cli.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from workspace_guard.cli.main import Globals
from workspace_guard.cli.output import (
    SpeakingCommand,
    console,
    leave,
    print_json,
    reported,
)
from workspace_guard.errors import RecordMissing, show_path

if TYPE_CHECKING:
    from workspace_guard.files.layout import RunFolder, StateLayout, WorkspaceState

_WORKSPACE = click.option(
    "-w",
    "--workspace",
    type=click.Path(path_type=Path),
    help="Look at this workspace only.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(name="runs", short_help="See what happened in earlier runs.")
def command() -> None:
    """See what happened in earlier runs."""


def _layout(ctx: click.Context) -> StateLayout:
    from workspace_guard.step.workspace import state_layout  # noqa: PLC0415  # slow

    return state_layout(ctx.ensure_object(Globals).state_dir)


def _state(layout: StateLayout, workspace: Path | None) -> WorkspaceState | None:
    return None if workspace is None else layout.of(workspace.resolve())


@command.command(
    name="list",
    cls=SpeakingCommand,
    epilog="\b\nExample:\n  wsguard runs list -w report/ --json",
)
@_WORKSPACE
@_JSON
@click.pass_context
def list_runs(ctx: click.Context, workspace: Path | None, as_json: bool) -> None:
    """List the runs that are kept, oldest first, with how each ended."""
    with reported(as_json=as_json):
        from workspace_guard.step.archive import all_runs, runs_of  # noqa: PLC0415

        layout = _layout(ctx)
        state = _state(layout, workspace)
        runs = list(all_runs(layout)) if state is None else runs_of(state)
        rows = [_row(run) for run in sorted(runs, key=lambda run: run.run_id)]
        if as_json:
            print_json({"schema": "workspace-guard/runs/1", "runs": rows})
        else:
            _print_rows(rows)
    leave(0)


def _row(run: RunFolder) -> dict[str, object]:
    from workspace_guard.errors import GuardError  # noqa: PLC0415
    from workspace_guard.files.relpath import path_fields  # noqa: PLC0415
    from workspace_guard.step.archive import read_record  # noqa: PLC0415

    try:
        record = read_record(run)
    except RecordMissing:
        return {"run_id": run.run_id, "state": "open", "verdict": None}
    except GuardError as error:
        return {
            "run_id": run.run_id,
            "state": "damaged",
            "verdict": None,
            "message": error.message,
        }
    return {
        "run_id": record.run_id,
        "state": "closed",
        "verdict": record.verdict.value,
        "exit_status": record.exit_status,
        **path_fields(record.workspace, "workspace"),
        "step": record.step_name,
        "mode": record.mode,
        "started_at": record.started_at,
        "duration_s": record.duration_s,
        "escapes": len(record.escapes),
    }


def _print_rows(rows: list[dict[str, object]]) -> None:
    from rich.table import Table  # noqa: PLC0415  # costs 30 ms
    from rich.text import Text  # noqa: PLC0415

    if not rows:
        click.echo("no runs are kept here", err=True)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("run", "verdict", "escapes", "seconds", "step", "workspace"):
        table.add_column(heading, no_wrap=True, overflow="fold")
    for row in rows:
        table.add_row(
            str(row["run_id"]),
            str(row["verdict"] or row["state"]),
            str(row.get("escapes", "")),
            str(row.get("duration_s", "")),
            Text(show_path(str(row.get("step", "")))) if row.get("step") else "",
            Text(show_path(str(row["workspace"]))) if row.get("workspace") else "",
        )
    out = console()
    out.file = sys.stdout
    out.print(table)


@command.command(
    name="show",
    cls=SpeakingCommand,
    epilog="\b\nExample:\n  wsguard runs show latest --json",
)
@click.argument("run_id", required=False)
@_WORKSPACE
@_JSON
@click.pass_context
def show_run(
    ctx: click.Context, run_id: str | None, workspace: Path | None, as_json: bool
) -> None:
    """Show one run: RUN_ID, a beginning of one, or `latest`.

    Without RUN_ID the last run of the current workspace.
    """
    with reported(as_json=as_json):
        from workspace_guard.step.archive import find_run, read_record  # noqa: PLC0415

        layout = _layout(ctx)
        if run_id is None and workspace is None:
            workspace = Path()
        run = find_run(layout, _state(layout, workspace), run_id or "latest")
        record = read_record(run)
        if as_json:
            print_json(record.to_json())
        else:
            from workspace_guard.cli.report import show_record  # noqa: PLC0415  # slow

            show_record(run, record)
    leave(0)
