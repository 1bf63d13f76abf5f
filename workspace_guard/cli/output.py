"""How every command speaks: one JSON document, or text for people; errors too.

Room: cli. Knows standard output, standard error and exit statuses.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from typing import TYPE_CHECKING, NoReturn

import click

from workspace_guard.errors import GuardError, show_path

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from rich.console import Console

BUG = 70
USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


def print_json(document: Mapping[str, object]) -> None:
    """Print one JSON document to standard output."""
    # ASCII keeps it whole through any terminal's or pipe's encoding.
    with _reader_may_leave():
        click.echo(json.dumps(document, indent=2))


def console() -> Console:
    """The console for people: standard error, coloured only on a terminal."""
    from rich.console import Console  # noqa: PLC0415  # costs 30 ms

    return Console(stderr=True, highlight=False, soft_wrap=True)


def leave(status: int) -> NoReturn:
    """Exit, and survive a reader that has gone away."""
    with _reader_may_leave():
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # None where it was closed
                stream.flush()
    click.get_current_context().exit(status)


@contextlib.contextmanager
def _reader_may_leave() -> Generator[None]:
    """Let nobody's having read us change the exit status: it tells of the run."""
    try:
        yield
    except BrokenPipeError:
        _read_by_nobody()
    except OSError as error:
        _read_by_nobody()
        fact = error.strerror or str(error)
        with contextlib.suppress(OSError):
            _say(f"standard output: {fact}; not all of it was written", "")


def _read_by_nobody() -> None:
    """Drop what is still buffered: it would fail again when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


@contextlib.contextmanager
def reported(*, as_json: bool) -> Generator[None]:
    """Turn an error into a message, the one JSON document, and its exit status.

    Args:
        as_json: whether a document is wanted.
    """
    try:
        yield
    except GuardError as error:
        notes = getattr(error, "__notes__", ())
        message = "; ".join((error.message, *notes))
        _report(error.msgid, message, error.hint, error.exit_status, as_json)
    except KeyboardInterrupt:
        hint = "`wsguard recover` closes what is open"
        _report("interrupted", "stopped by Ctrl-C", hint, INTERRUPTED, as_json)
    except (click.exceptions.Exit, click.ClickException, click.Abort):
        raise
    except BrokenPipeError:  # a reader such as `head` has seen enough
        _read_by_nobody()
        leave(BROKEN_PIPE)
    except OSError as error:
        where = f"{show_path(error.filename)}: " if error.filename else ""
        fact = error.strerror or str(error)
        _report("os-error", f"{where}{fact}", "", BUG, as_json)
    except Exception as error:  # noqa: BLE001  # a bug of ours; the one place for it
        traceback.print_exc()
        fact = f"{type(error).__name__}: {error}"
        hint = "this is a bug; the lines above tell where"
        _report("internal", fact, hint, BUG, as_json)


def complain(error: GuardError) -> None:
    """Say what went wrong, and the next step, to a person."""
    _say(error.message, error.hint)


def _say(message: str, hint: str) -> None:
    click.echo(f"wsguard: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)


def _report(
    msgid: str, message: str, hint: str, status: int, as_json: bool
) -> NoReturn:
    _say(message, hint)
    if as_json:
        print_json(_error_document(msgid, message, hint, status))
    leave(status)


def _error_document(
    msgid: str, message: str, hint: str, status: int
) -> dict[str, object]:
    return {
        "schema": "workspace-guard/error/1",
        "error": {"id": msgid, "message": message, "hint": hint or None},
        "exit_status": status,
    }


class SpeakingCommand(click.Command):
    """A command whose usage errors are a JSON document too, where one is wanted."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: object,
    ) -> click.Context:
        """Read the command line; see `click.Command.make_context`."""
        ours = args[: args.index("--")] if "--" in args else args
        wanted = "--json" in ours
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            if wanted:
                fact = error.format_message()
                hint = f"wsguard {info_name} --help"
                print_json(_error_document("usage", fact, hint, USAGE))
            raise


def shown_home(path: str | os.PathLike[str]) -> str:
    """A path for people, with the home folder as `~`."""
    text, home = os.fspath(path), os.path.expanduser("~")
    return "~" + text[len(home) :] if text.startswith(home + os.sep) else text
