"""`doctor`: what this machine can enforce, mode by mode, and why not.

Room: cli.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
from typing import TYPE_CHECKING

import click

from workspace_guard import __version__
from workspace_guard.cli.main import Globals
from workspace_guard.cli.output import (
    SpeakingCommand,
    leave,
    print_json,
    reported,
    shown_home,
)

if TYPE_CHECKING:
    from workspace_guard.containment.choose import ModeReport


@click.command(
    name="doctor", cls=SpeakingCommand, epilog="\b\nExample:\n  wsguard doctor --json"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Say what this machine can enforce, mode by mode, and why not."""
    with reported(as_json=as_json):
        from workspace_guard.containment.choose import choose, survey  # noqa: PLC0415
        from workspace_guard.containment.host import facilities  # noqa: PLC0415
        from workspace_guard.step.workspace import state_layout  # noqa: PLC0415  # slow

        modes = survey()
        chosen = choose("auto", modes)
        layout = state_layout(ctx.ensure_object(Globals).state_dir)
        found = facilities(layout.root)
        if as_json:
            print_json(
                {
                    "schema": "workspace-guard/doctor/1",
                    "version": __version__,
                    "python": platform.python_version(),
                    "system": f"{platform.system()} {platform.release()}",
                    "machine": platform.machine(),
                    "uid": os.getuid() if hasattr(os, "getuid") else None,
                    "state_dir": str(layout.root),
                    "auto": chosen.name,
                    "modes": [_mode_to_json(mode) for mode in modes],
                    "facilities": [dataclasses.asdict(item) for item in found],
                }
            )
            leave(0)
        click.echo(
            f"wsguard {__version__}, Python {platform.python_version()}"
            f" ({sys.executable}), {platform.system()} {platform.release()}"
        )
        click.echo(f"state folder: {shown_home(layout.root)}")
        click.echo("\nmodes, strongest first:")
        for mode in modes:
            mark = "*" if mode.name == chosen.name else " "
            have = "available" if mode.available else "not available"
            click.echo(f" {mark} {mode.name:<7} {have}: {mode.reason}")
            if mode.available:
                click.echo(f"            {_strength(mode)}")
        click.echo(f"\n`--mode auto` takes {chosen.name}.\n\nfacilities:")
        for item in found:
            have = "yes" if item.available else "no"
            click.echo(f"   {item.name:<26} {have:<4} {item.detail}")
            if item.advice:
                click.echo(f"   {'':<26}      -> {item.advice}")
    leave(0)


def _mode_to_json(mode: ModeReport) -> dict[str, object]:
    return {
        "name": mode.name,
        "available": mode.available,
        "reason": mode.reason,
        "enforcement": {
            field.name: getattr(mode.strength, field.name).value
            for field in dataclasses.fields(mode.strength)
        },
    }


def _strength(mode: ModeReport) -> str:
    return ", ".join(
        f"{field.name} {getattr(mode.strength, field.name).value}"
        for field in dataclasses.fields(mode.strength)
    )
