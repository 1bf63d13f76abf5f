"""`run`: one contained step, from the command line.

Room: cli. Has the options, and shows a run to whoever waits for it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from workspace_guard.cli.call import RunCall
from workspace_guard.cli.main import Globals
from workspace_guard.cli.output import (
    SpeakingCommand,
    complain,
    leave,
    print_json,
    reported,
)
from workspace_guard.errors import ContractError, StateWriteFailed, show_path

if TYPE_CHECKING:
    from workspace_guard.step.record import RunRecord
    from workspace_guard.step.workspace import Workspace

_EPILOG = """\b
The command runs in the step's folder: give a program of your own by its whole path.

\b
Example:
  wsguard run -w report/ --task "fill the two empty sections" \\
      --target output.md --timeout 600 -- pi -p "Do the task in TASK.md"

\b
Exit status:
  0 promoted or accepted   2 usage   10-15 refused, nothing ran
  20 runner failed   21 timed out   22 unfinished   30 escaped
  31 escaped, not wholly put back   32 unproven   40 target missing
  41 invalid   42 unchanged   43 rejected   44 conflict   45 promotion failed
  50-59 record or store broken   130, 143 interrupted
"""


@click.command(
    name="run",
    cls=SpeakingCommand,
    epilog=_EPILOG,
    short_help="Run a command as one step.",
)
@click.option(
    "-w",
    "--workspace",
    type=click.Path(path_type=Path, readable=False),
    default=Path(),
    help="The folder that stays as it is.  [default: .]",
)
@click.option("--name", help="The step's folder below tasks/.  [default: run_<n>]")
@click.option("--task", help="What to do; goes into TASK.md.")
@click.option(
    "--task-file",
    type=click.Path(path_type=Path, readable=False),
    help="A file with the task text.",
)
@click.option(
    "--input",
    "input",
    multiple=True,
    metavar="PATH",
    help="A file of the workspace to copy into the step. Repeatable.",
)
@click.option(
    "--no-default-inputs",
    is_flag=True,
    help="Do not give output.md, template.md and blackboard.json.",
)
@click.option(
    "--target",
    multiple=True,
    metavar="PATH[=DESTINATION]",
    help="What the step must leave; `dir/` a folder, `glob:*.md` a pattern."
    " Repeatable.  [default: output.md]",
)
@click.option("--no-target", is_flag=True, help="The step need not leave anything.")
@click.option(
    "--mode",
    type=click.Choice(["auto", "deny", "absorb", "detect"]),
    default="auto",
    show_default=True,
    help="The containment.",
)
@click.option(
    "--timeout", type=float, metavar="SECONDS", help="End the command after this time."
)
@click.option(
    "--grace",
    type=float,
    metavar="SECONDS",
    default=1.0,
    show_default=True,
    help="How long leftovers may go on after the command.",
)
@click.option(
    "--on-escape",
    default="fail",
    show_default=True,
    type=click.Choice(["fail", "fail-on-attempt", "stop", "report"]),
    help="What an escape does to the run.",
)
@click.option(
    "--require-change",
    is_flag=True,
    help="Refuse a target that is byte for byte its input.",
)
@click.option("--allow-empty", is_flag=True, help="Accept an empty target.")
@click.option(
    "--verify",
    metavar="COMMAND",
    help="A command that accepts the candidate by exiting with 0.",
)
@click.option("--no-promote", is_flag=True, help="Leave a good candidate in the step.")
@click.option(
    "--accept-gaps", is_flag=True, help="Promote even if a gap could hide an escape."
)
@click.option(
    "--verify-content",
    is_flag=True,
    help="Hash every file of the workspace again after the run.",
)
@click.option(
    "--env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Set a variable, or pass one on under --clean-env. Repeatable.",
)
@click.option(
    "--clean-env", is_flag=True, help="Start from PATH, HOME, LANG and TERM only."
)
@click.option(
    "--max-snapshot",
    metavar="BYTES",
    default="2G",
    show_default=True,
    help="Refuse a workspace with more content than this.",
)
@click.option("--keep-snapshot", is_flag=True, help="Keep the snapshot of the parent.")
@click.option("--rm", is_flag=True, help="Remove the step once it is promoted.")
@click.option(
    "--wait",
    type=float,
    metavar="SECONDS",
    default=0.0,
    help="Wait for a workspace that another run holds.",
)
@click.option(
    "--force", is_flag=True, help="Allow /, the home folder or a link as the workspace."
)
@click.option(
    "--contract",
    "contract_file",
    type=click.Path(path_type=Path, readable=False),
    metavar="FILE.toml",
    help="Any of these in a file; the command line wins.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path, readable=False),
    metavar="FILE",
    help="Write the run record there too.",
)
@click.option(
    "--explain", is_flag=True, help="Say what would happen, and start nothing."
)
@click.option("--json", "as_json", is_flag=True, help="Print the run record as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No live line and no report.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    contract_file: Path | None,
    as_json: bool,
    quiet: bool,
    command: tuple[str, ...],
    **given: object,
) -> None:
    """Run COMMAND in a fresh step with read-only copies of its inputs.

    The parent stays as it was, or is put back. The targets replace the parent's files
    only if the command succeeded, nothing escaped and every target is really there.
    """
    with reported(as_json=as_json):
        call = RunCall.of(ctx, contract_file, given)
        from workspace_guard.step import workspace as door  # noqa: PLC0415  # slow

        state_dir = ctx.ensure_object(Globals).state_dir
        workspace = door.Workspace(call.workspace, state_dir, force=call.force)
        if call.explain:
            from workspace_guard.cli.explain import show_explanation  # noqa: PLC0415

            good = show_explanation(workspace, command, call.contract, as_json=as_json)
            leave(0 if good else ContractError.exit_status)
        record = _run(workspace, command, call, as_json=as_json, quiet=quiet)
        fault = None if call.record is None else _save(call.record, record)
        if as_json:
            print_json(record.to_json())
        elif not quiet:
            from workspace_guard.cli.report import show_record  # noqa: PLC0415  # slow

            show_record(workspace.state.run(record.run_id), record)
        if fault is not None:
            complain(fault)
            leave(fault.exit_status)
    leave(record.exit_status)


def _run(
    workspace: Workspace,
    command: tuple[str, ...],
    call: RunCall,
    *,
    as_json: bool,
    quiet: bool,
) -> RunRecord:
    from workspace_guard.cli.screen import Screen  # noqa: PLC0415  # slow to load
    from workspace_guard.containment.interrupts import Interrupts  # noqa: PLC0415

    with (
        Interrupts.listening() as interrupts,
        Screen.open(as_json=as_json, quiet=quiet) as screen,
    ):
        return workspace.run_step(
            command,
            call.contract,
            on_event=screen.show,
            wait_s=call.wait_s,
            environment=os.environ,
            stdio=screen.stdio,
            interrupts=interrupts,
        )


def _save(path: Path, record: RunRecord) -> StateWriteFailed | None:
    """Write the record where the caller wants it, whole or not at all.

    Returns:
        Why that failed: the run is over all the same, and its record is kept.
    """
    from workspace_guard.files.replace import to_json, write_file  # noqa: PLC0415
    from workspace_guard.files.tree import Folder  # noqa: PLC0415

    content = to_json(record.to_json())
    name = os.fsencode(path.name)
    try:
        with Folder.open(path.absolute().parent) as folder:
            write_file(folder, name, content, owner=record.run_id, mode=0o644)
    except OSError as error:
        return StateWriteFailed(
            f"record {show_path(path)}: {error.strerror or error}",
            hint=f"the run is over; `wsguard runs show {record.run_id} --json` has it",
        )
    return None
