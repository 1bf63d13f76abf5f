"""`runs`: what happened in earlier runs.

Room: cli.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from workspace_guard.cli.main import Globals
from workspace_guard.cli.output import (
    SpeakingCommand,
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
    type=click.Path(path_type=Path, readable=False),
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
    if not rows:
        click.echo("no runs are kept here", err=True)
        return
    headings = ("run", "verdict", "escapes", "seconds", "step", "workspace")
    table = [headings, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(5)]
    for line in table:  # nothing is cut, whatever the width of the terminal
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        click.echo("  ".join([*padded, line[5]]).rstrip())


def _cells(row: dict[str, object]) -> tuple[str, str, str, str, str, str]:
    def cell(key: str) -> str:
        return show_path(str(row[key])) if row.get(key) is not None else ""

    return (
        cell("run_id"),
        cell("verdict") or cell("state"),
        cell("escapes"),
        cell("duration_s"),
        cell("step"),
        cell("workspace"),
    )


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
        from workspace_guard.step.archive import (  # noqa: PLC0415
            find_run,
            read_record,
            runs_of,
        )

        layout = _layout(ctx)
        if run_id is None and workspace is None:
            workspace = Path()
        state = _state(layout, workspace)
        if run_id is None and state is not None and not runs_of(state):
            raise RecordMissing(
                f"workspace {show_path(workspace or Path())}: no run of it is kept",
                hint="name it with -w, or `wsguard runs show latest` for any",
            )
        run = find_run(layout, state, "latest" if run_id is None else run_id)
        record = read_record(run)
        if as_json:
            print_json(record.to_json())
        else:
            from workspace_guard.cli.report import show_record  # noqa: PLC0415  # slow

            show_record(run, record)
    leave(0)
