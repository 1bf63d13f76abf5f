"""The end of a run, for a person: verdict first, then why, then what is kept where.

Room: cli. Formats a record; decides nothing.
"""

from __future__ import annotations

import os
from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from workspace_guard.cli.output import console, shown_home
from workspace_guard.errors import show_path
from workspace_guard.step.judge import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workspace_guard.containment.base import Escape
    from workspace_guard.files.layout import RunFolder
    from workspace_guard.step.record import RunRecord

_SHOWN_OF_A_KIND = 20
_GOOD = frozenset({Verdict.PROMOTED, Verdict.ACCEPTED})
_EFFECTS = {
    "refused": "was refused; nothing changed",
    "absorbed": "went into a layer; the workspace did not change",
    "restored": "put back as it was",
    "unrestored": "NOT put back",
    "reported": "reported only",
    "foreign": "somebody else's edit; left alone",
}


def show_record(run: RunFolder, record: RunRecord) -> None:
    """Print a record to standard error, so that a person understands it at once."""
    out = console()
    out.print(_headline(record))
    for label, text in _lines(run, record):
        line = Text("  ")
        line.append(f"{label:<10}", style="bold" if label else "")
        line.append_text(text)
        out.print(line)


def _headline(record: RunRecord) -> Text:
    good = record.verdict in _GOOD
    line = Text()
    line.append("✔ " if good else "✘ ", style="green" if good else "red")
    line.append(record.verdict.value, style="bold green" if good else "bold red")
    line.append(f": {record.verdict.meaning}")
    return line


def _lines(run: RunFolder, record: RunRecord) -> Iterator[tuple[str, Text]]:
    yield "why", Text(record.reason)
    yield "step", Text(f"{_shown(record.step_path)} ({record.duration_s:.2f} s)")
    yield "runner", Text(_runner(record))
    yield "mode", Text(f"{record.mode}: {record.mode_reason}")
    yield from _labelled("target", _targets(record))
    yield from _labelled("escape", _escapes(record.escapes))
    yield from _labelled("leftover", _leftovers(record))
    yield from _labelled("gap", (Text(gap.shown) for gap in record.gaps))
    yield from _labelled(
        "rewritten",
        (
            Text(f"{show_path(was)} in the task text became {show_path(now)}")
            for was, now in record.task_rewrites
        ),
    )
    yield from _labelled(
        "warning", (Text(text, style="yellow") for text in record.warnings)
    )
    if record.verdict not in _GOOD:
        yield "next", Text(record.verdict.next_step)
    yield "kept", Text(shown_home(run.path))
    for name, what in (
        ("execution.log", "all output of the command"),
        ("quarantine", "what was written in the wrong place"),
        ("quarantine-verify", "what the check has written in the wrong place"),
        ("previous", "what promotion has replaced"),
    ):
        if (run.path / name).exists():
            yield "", Text(f"  {name}: {what}")


def _labelled(label: str, lines: Iterator[Text]) -> Iterator[tuple[str, Text]]:
    for number, line in enumerate(lines):
        yield ("" if number else label), line


def _runner(record: RunRecord) -> str:
    runner = record.runner
    ended = runner.message or f"exited with status {runner.exit_code}"
    words = " ".join(show_path(word) for word in record.command)
    return f"{ended}: {words}"


def _targets(record: RunRecord) -> Iterator[Text]:
    promoted = {item.destination for item in record.promotion}
    for target in record.targets:
        line = Text(f"{target.path.shown}: {target.state}")
        if target.reason:
            line.append(f", {target.reason}")
        if target.destination in promoted:
            line.append(f", now {target.destination.shown} of the workspace")
        elif target.state == "valid":
            line.append(", not promoted")
        line.stylize("green" if target.state == "valid" else "red")
        yield line


def _escapes(escapes: tuple[Escape, ...]) -> Iterator[Text]:
    """The first of each kind and effect, and how many more there are."""

    def sort(escape: Escape) -> tuple[str, str]:
        return escape.effect, escape.kind

    for (effect, kind), group in groupby(sorted(escapes, key=sort), key=sort):
        same = list(group)
        style = "red" if effect == "unrestored" else "yellow"
        for escape in same[:_SHOWN_OF_A_KIND]:
            line = Text(f"{kind} {show_path(escape.path)}: ", style=style)
            line.append(_effect(escape))
            if escape.message:
                line.append(f" ({escape.message})")
            if escape.process is not None:
                line.append(f", by {escape.process.pid} {escape.process.command}")
            if escape.quarantine is not None:
                line.append(f", kept as {show_path(escape.quarantine)}")
            yield line
        if len(same) > _SHOWN_OF_A_KIND:
            more = len(same) - _SHOWN_OF_A_KIND
            yield Text(f"{kind}: {more:,} more of {len(same):,}", style=style)


def _effect(escape: Escape) -> str:
    if escape.effect != "restored":
        return _EFFECTS[escape.effect]
    if escape.kind == "created":
        return "removed from the workspace"
    if escape.kind == "deleted":
        return "brought back"
    before, after = escape.before, escape.after
    if before is not None and after is not None and before.mode != after.mode:
        return f"put back as it was (mode {after.mode:04o} to {before.mode:04o})"
    return _EFFECTS[escape.effect]


def _leftovers(record: RunRecord) -> Iterator[Text]:
    for process in record.processes:
        line = Text(f"{process.pid} {process.command}: {process.ended}")
        if process.target_open:
            line.append(", had a target open", style="red")
        yield line


def _shown(path: bytes) -> str:
    text = show_path(path)
    return shown_home(text) if os.path.isabs(text) else text
