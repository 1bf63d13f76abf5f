"""How every command speaks: one JSON document, or text for people; errors too.

Room: cli. Knows standard output, standard error and exit statuses.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from workspace_guard.errors import GuardError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from rich.console import Console

BUG = 70


def print_json(document: Mapping[str, object]) -> None:
    """Print one JSON document to standard output."""
    # ASCII keeps it whole through any terminal's or pipe's encoding.
    click.echo(json.dumps(document, indent=2))


def console() -> Console:
    """The console for people: standard error, coloured only on a terminal."""
    from rich.console import Console  # noqa: PLC0415  # costs 30 ms

    return Console(stderr=True, highlight=False, soft_wrap=True)


def leave(status: int) -> NoReturn:
    """Exit, and survive a reader that has gone away."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    click.get_current_context().exit(status)


@contextlib.contextmanager
def reported(*, as_json: bool) -> Generator[None]:
    """Turn an error of ours into a message and its exit status.

    Args:
        as_json: print the error as the one JSON document as well.
    """
    try:
        yield
    except GuardError as error:
        _report(error.msgid, error.message, error.hint, error.exit_status, as_json)
        leave(error.exit_status)
    except KeyboardInterrupt:
        leave(130)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _report("os-error", f"{where}{error.strerror or error}", "", BUG, as_json)
        leave(BUG)


def _report(msgid: str, message: str, hint: str, status: int, as_json: bool) -> None:
    click.echo(f"wsguard: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)
    if as_json:
        print_json(
            {
                "schema": "workspace-guard/error/1",
                "error": {"id": msgid, "message": message, "hint": hint or None},
                "exit_status": status,
            }
        )


def shown_home(path: str | os.PathLike[str]) -> str:
    """A path for people, with the home folder as `~`."""
    text, home = os.fspath(path), os.path.expanduser("~")
    return "~" + text[len(home) :] if text.startswith(home + os.sep) else text
