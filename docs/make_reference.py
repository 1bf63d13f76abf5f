"""Make the pages of `docs/reference/` of the code, so that they cannot be untrue.

    python docs/make_reference.py

`tests/test_reference.py` fails where a page is not what this makes.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workspace_guard import errors
from workspace_guard.step.judge import ESCAPED_NOT_RESTORED, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

REFERENCE = Path(__file__).parent / "reference"

_HEAD = """\
# Exit statuses

<!-- Made by docs/make_reference.py of the code; edit that. -->

What `wsguard` ends with. A step that misbehaved is a verdict, and `run` ends with its
status; everything else that is not 0 means that the guard itself could not do its work,
and says so on standard error with the next step. Under `--json` the id stands in the
one JSON document: `verdict` of a run record, or `error.id`.

| range | what it says |
| --- | --- |
| 0 | done |
| 2 | the command line cannot be understood |
| 10 to 15 | refused: nothing ran |
| 20 to 22 | the command itself did not end well |
| 30 to 32 | something outside the step was changed, or may have been |
| 40 to 45 | the targets did not come into the workspace |
| 50 to 59 | a record, the store or the journal is broken |
| 70 | a bug of ours |
| 130, 143 | SIGINT, SIGTERM |

"""


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """One exit status of one id."""

    status: int
    msgid: str
    meaning: str
    next_step: str


_BESIDE = (
    Row(
        2,
        "usage",
        "an option or argument that there is not, or without its value",
        "`wsguard COMMAND --help` shows all of them, with an example",
    ),
    Row(
        ESCAPED_NOT_RESTORED,
        Verdict.ESCAPED.value,
        "the command changed something outside its step, and not all of it could be "
        "put back",
        "mend what the named paths say, then take them from the run's quarantine",
    ),
    Row(
        70,
        "os-error",
        "the system refused something that no command of ours foresees",
        "look at the named path; what a run had begun is closed by `wsguard recover`",
    ),
    Row(
        130,
        Verdict.RUNNER_FAILED.value,
        "SIGINT ended the run; the workspace is as it was and the record is written",
        "`wsguard runs show` says how far it had come",
    ),
    Row(
        143,
        Verdict.RUNNER_FAILED.value,
        "SIGTERM ended the run; the workspace is as it was and the record is written",
        "`wsguard runs show` says how far it had come",
    ),
)
"""What neither a class nor a verdict says by itself."""


def rows() -> list[Row]:
    """Every exit status, by number and then by id."""
    verdicts = (
        Row(verdict.exit_status, verdict.value, verdict.meaning, verdict.next_step)
        for verdict in Verdict
    )
    return sorted({*verdicts, *map(_row, error_classes()), *_BESIDE})


def error_classes() -> Iterator[type[errors.GuardError]]:
    """Every class of `workspace_guard.errors`, the root itself too."""
    for _, found in inspect.getmembers(errors, inspect.isclass):
        if issubclass(found, errors.GuardError):
            yield found


def _row(kind: type[errors.GuardError]) -> Row:
    meaning = (inspect.getdoc(kind) or "").partition("\n")[0].rstrip(".")
    if kind is errors.GuardError:
        meaning = "something that must not happen"
    if meaning[1:2].islower():  # no SIGTERM
        meaning = meaning[0].lower() + meaning[1:]
    return Row(kind.exit_status, kind.msgid, meaning, kind.usual_hint)


def exit_status_page() -> str:
    """The text of `exit-status.md`."""
    lines = ["| status | id | meaning | next step |", "| --- | --- | --- | --- |"]
    for row in rows():
        cells = str(row.status), f"`{row.msgid}`", row.meaning, row.next_step
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return _HEAD + "\n".join(lines) + "\n"


PAGES = {"exit-status.md": exit_status_page}
"""The pages by name, each with what makes it."""


def main() -> None:
    """Write every page."""
    REFERENCE.mkdir(exist_ok=True)
    for name, make in PAGES.items():
        (REFERENCE / name).write_text(make(), encoding="utf-8")
        print(f"made {REFERENCE.name}/{name}")


if __name__ == "__main__":
    main()
