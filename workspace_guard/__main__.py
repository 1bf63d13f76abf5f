"""The program `workspace-guard`, also `wsguard` and `python -m workspace_guard`."""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit with its status."""
    from workspace_guard.cli.main import cli  # noqa: PLC0415  # only the program needs it

    cli(prog_name="wsguard")


if __name__ == "__main__":
    main()
