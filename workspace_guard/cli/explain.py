"""`run --explain`: print what would happen.

Room: cli.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import click

from workspace_guard.cli.output import print_json
from workspace_guard.errors import show_path
from workspace_guard.files.relpath import path_fields
from workspace_guard.step.explain import explain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workspace_guard.step.contract import Contract
    from workspace_guard.step.explain import Explanation
    from workspace_guard.step.workspace import Workspace


def show_explanation(
    workspace: Workspace, command: tuple[str, ...], contract: Contract, *, as_json: bool
) -> bool:
    """Print what `run` would do with this contract; start nothing.

    Returns:
        Whether nothing was found that would make it fail for certain.
    """
    found = explain(workspace.path, workspace.state, command, contract, os.environ)
    if as_json:
        print_json(_to_json(workspace, command, found))
        return not found.problems
    for line in _lines(workspace, command, contract, found):
        click.echo(line)
    return not found.problems


def _to_json(
    workspace: Workspace, command: tuple[str, ...], found: Explanation
) -> dict[str, object]:
    mode = found.mode
    return {
        "schema": "workspace-guard/explain/1",
        **path_fields(bytes(workspace.path), "workspace"),
        "command": list(command),
        "mode": None if mode is None else mode.name,
        "mode_reason": None if mode is None else mode.reason,
        "enforcement": None
        if mode is None
        else {
            field.name: getattr(mode.strength, field.name).value
            for field in dataclasses.fields(mode.strength)
        },
        "inputs": [
            {**path_fields(bytes(source), "source"), **path_fields(bytes(path))}
            for source, path in found.inputs
        ],
        "targets": [
            {
                "path": str(target),
                **path_fields(bytes(target.destination), "destination"),
            }
            for target in found.targets
        ],
        "replaced": [path_fields(bytes(path)) for path in found.replaced],
        "writable": ["the step's folder", "$TMPDIR (private)"],
        "task": found.task.text,
        "task_rewrites": [list(pair) for pair in found.task.rewritten],
        "warnings": list(found.task.warnings),
        "problems": list(found.problems),
        "open_runs": list(found.open_runs),
    }


def _lines(
    workspace: Workspace,
    command: tuple[str, ...],
    contract: Contract,
    found: Explanation,
) -> Iterator[str]:
    name = contract.name or f"{contract.name_prefix}_<next number>"
    yield f"workspace  {show_path(workspace.path)}"
    yield f"step       {contract.step_dir or 'tasks'}/{show_path(name)}"
    yield f"command    {' '.join(map(show_path, command)) or '(none)'}"
    yield from _mode_lines(found)
    yield "writable   the step's folder and a private TMPDIR"
    rows = [("input", f"{s.shown} as {path.shown}") for s, path in found.inputs]
    rows += [("target", f"{t} to {t.destination.shown}") for t in found.targets]
    rows += [("replaces", path.shown) for path in found.replaced]
    rows += [
        ("rewritten", f"{show_path(was)} in the task text becomes {show_path(now)}")
        for was, now in found.task.rewritten
    ]
    rows += [("warning", text) for text in found.task.warnings]
    rows += [
        ("first", f"recover run {run_id}, unless it is going on")
        for run_id in found.open_runs
    ]
    rows += [("problem", problem) for problem in found.problems]
    for label, text in rows:
        yield f"{label:<10} {text}"
    yield "nothing was started"


def _mode_lines(found: Explanation) -> Iterator[str]:
    if found.mode is None:
        return
    yield f"mode       {found.mode.name}: {found.mode.reason}"
    strength = found.mode.strength
    held = [
        f"{field.name} {getattr(strength, field.name).value}"
        for field in dataclasses.fields(strength)
    ]
    yield f"           {', '.join(held)}"
