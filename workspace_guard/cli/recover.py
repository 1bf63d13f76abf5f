"""`recover`: finish or undo what a crash has left open.

Room: cli.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from workspace_guard.cli.main import Globals
from workspace_guard.cli.output import SpeakingCommand, leave, print_json, reported
from workspace_guard.errors import RecoveryConflict, show_path
from workspace_guard.files.relpath import path_fields

if TYPE_CHECKING:
    from workspace_guard.step.recover import RecoveredRun


@click.command(
    name="recover",
    cls=SpeakingCommand,
    epilog=(
        "\b\nExample:\n  wsguard recover report/\n\n"
        "\b\nExit status:\n  0 all is whole, or nothing was open\n"
        "  44 a newer edit was met and left alone\n"
        "  12 a run is going on   50-59 something is broken"
    ),
)
@click.argument(
    "workspace", type=click.Path(path_type=Path, readable=False), default=Path()
)
@click.option(
    "--accept-current",
    is_flag=True,
    help="Give up what cannot be closed otherwise: a promotion whose destinations"
    " were edited meanwhile, a damaged journal or snapshot. Every file stays as it is"
    " now.",
)
@click.option(
    "--wait",
    type=float,
    default=0.0,
    metavar="SECONDS",
    help="Wait for a run that is going on.",
)
@click.option(
    "--force", is_flag=True, help="Allow /, the home folder or a link as the workspace."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    workspace: Path,
    accept_current: bool,
    wait: float,
    force: bool,
    as_json: bool,
) -> None:
    """Finish or undo what a crash has left open in WORKSPACE."""
    with reported(as_json=as_json):
        from workspace_guard.step.workspace import Workspace  # noqa: PLC0415  # slow

        place = Workspace(workspace, ctx.ensure_object(Globals).state_dir, force=force)
        recovery = place.recover(accept_current=accept_current, wait_s=wait)
        if as_json:
            print_json(
                {
                    "schema": "workspace-guard/recover/1",
                    **path_fields(bytes(place.path), "workspace"),
                    "runs": [_run_to_json(run) for run in recovery.runs],
                }
            )
        else:
            _print_runs(recovery.runs)
    leave(RecoveryConflict.exit_status if recovery.conflicts else 0)


def _run_to_json(run: RecoveredRun) -> dict[str, object]:
    return {
        "run_id": run.run_id,
        "put_back": [path_fields(path) for path in run.put_back],
        "foreign": [path_fields(path) for path in run.foreign],
        "left_as_is": run.left_as_is,
        "promotion": run.promotion,
        "destinations": [path_fields(path) for path in run.destinations],
    }


_PROMOTIONS = {
    "none": "nothing had been promoted",
    "finished": "its promotion was finished",
    "undone": "its promotion was undone",
    "conflict": "its promotion stays open: somebody has edited",
    "given_up": "its promotion was given up; files stay as they are",
}


def _print_runs(runs: tuple[RecoveredRun, ...]) -> None:
    if not runs:
        click.echo("nothing was open", err=True)
    for run in runs:
        click.echo(f"run {run.run_id} had been cut off", err=True)
        for path in run.put_back:
            click.echo(f"  put back: {show_path(path) or '.'}", err=True)
        for path in run.foreign:
            click.echo(f"  newer edit, left alone: {show_path(path)}", err=True)
        if run.left_as_is:
            click.echo("  putting back was given up; files stay as they are", err=True)
        if run.put_back:
            shown = f"wsguard runs show {run.run_id}"
            click.echo(f"  what stood there instead is kept: `{shown}`", err=True)
        names = ", ".join(show_path(path) for path in run.destinations)
        click.echo(f"  {_PROMOTIONS[run.promotion]} {names}".rstrip(), err=True)
        if run.promotion == "conflict":
            click.echo(
                "hint: keep what is there with --accept-current, or put the old"
                " content back yourself",
                err=True,
            )
