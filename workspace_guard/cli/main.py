"""The command group; each command's module is loaded when it is called.

Room: cli. Knows the names of the commands and the options that all of them share.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from workspace_guard import __version__

if TYPE_CHECKING:
    import io
    from collections.abc import Mapping

_COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("workspace_guard.cli.run", "Run a command as one contained step."),
    "runs": ("workspace_guard.cli.runs", "See what happened in earlier runs."),
    "recover": (
        "workspace_guard.cli.recover",
        "Finish or undo what a crash has left open.",
    ),
    "doctor": ("workspace_guard.cli.doctor", "Say what this machine can enforce."),
}


@dataclass(frozen=True, slots=True)
class Globals:
    """What stands before the command's name."""

    state_dir: Path | None


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(_COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)  # noqa: S101  # a bug of ours
        return command

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        del ctx  # the table is enough: help must not load every command
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="wsguard")
@click.option(
    "--state-dir",
    envvar="WORKSPACE_GUARD_STATE_DIR",
    type=click.Path(path_type=Path),
    help="Where records, journals and snapshots are kept.",
)
@click.pass_context
def cli(ctx: click.Context, state_dir: Path | None) -> None:
    """Run any command as a contained step; promote its output all at once or not."""
    # A name that the terminal's encoding lacks is no reason to fail.
    if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]  # closed
        cast("io.TextIOWrapper", sys.stdout).reconfigure(errors="backslashreplace")
    ctx.obj = Globals(state_dir)
