"""The program `workspace-guard`, also `wsguard` and `python -m workspace_guard`."""

from __future__ import annotations

import os


def main() -> None:
    """Run the command line and exit with its status."""
    _have_standard_streams()
    from workspace_guard.cli.main import cli  # noqa: PLC0415  # only the program needs it

    cli(prog_name="wsguard")


def _have_standard_streams() -> None:
    """Open what of 0 to 2 is closed on nothing.

    A file of ours that got one of these numbers would be taken for the terminal, and
    the command's output would be written into it.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one


if __name__ == "__main__":
    main()
