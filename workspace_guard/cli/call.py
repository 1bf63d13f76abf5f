"""What one call of `run` asks for, from the command line and a contract file.

Room: cli. Knows which options are a matter of the contract and which of the call, and
that the command line wins; starts nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from click.core import ParameterSource

from workspace_guard.errors import ContractError, show_path
from workspace_guard.step.contract import contract_from_options, read_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    import click

    from workspace_guard.step.contract import Contract

_PATHS = ("workspace", "task_file", "record")
_OF_THE_CALL = frozenset({*_PATHS, "wait", "force", "explain"})
"""What is not a matter of the contract: where, how to show it, what it needs around."""
_RIVALS = {
    "task": "task_file",
    "task_file": "task",
    "target": "no_target",
    "no_target": "target",
}
"""What an option of the command line takes the place of in a contract file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCall:
    """One call of `run`."""

    contract: Contract
    workspace: Path
    record: Path | None
    """Where the caller wants the record too."""
    wait_s: float
    force: bool
    explain: bool

    @classmethod
    def of(
        cls,
        ctx: click.Context,
        contract_file: Path | None,
        given: Mapping[str, object],
    ) -> RunCall:
        """Read a call.

        Args:
            ctx: tells what was really given, and what is a default.
            contract_file: holds any of the options by its long name.
            given: what click has read.

        Raises:
            ContractError: an option is unknown or has an unlawful value.
        """
        options = _of_the_file(contract_file)
        here = {
            name: value
            for name, value in given.items()
            if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
        }
        for name in here:
            options.pop(_RIVALS.get(name, ""), None)
        options |= here
        record = options.get("record")
        return cls(
            contract=_contract(options),
            workspace=Path(str(options.get("workspace", "."))),
            record=None if record is None else _record_file(Path(str(record))),
            wait_s=_seconds("wait", options.get("wait", 0.0)),
            force=_flag("force", options.get("force", False)),
            explain=_flag("explain", options.get("explain", False)),
        )


def _of_the_file(path: Path | None) -> dict[str, object]:
    """The options of a contract file; its paths mean the same from wherever it is used.

    Raises:
        ContractError: it cannot be read, or a path in it is no text.
    """
    if path is None:
        return {}
    options = read_options(path)
    folder = path.absolute().parent
    for name in _PATHS:
        text = options.get(name)
        if text is None:
            continue
        if not isinstance(text, str) or "\0" in text:
            raise ContractError(f"option {name!r}: must be a path, not {text!r}")
        options[name] = folder / text
    try:
        _contract(options)
    except ContractError as error:
        # By itself, so that the message can say where to look.
        where = f"contract file {show_path(path)}"
        raise ContractError(f"{where}: {error.message}", hint=error.hint) from error
    return options


def _contract(options: Mapping[str, object]) -> Contract:
    of_the_step = {k: v for k, v in options.items() if k not in _OF_THE_CALL}
    task_file = options.get("task_file")
    if task_file is not None:
        if "task" in of_the_step:
            raise ContractError(
                "options 'task' and 'task_file' exclude each other", hint="give one"
            )
        of_the_step["task"] = _read_task(Path(str(task_file)))
    return contract_from_options(of_the_step)


def _read_task(path: Path) -> str:
    where = f"task file {show_path(path)}"
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ContractError(f"{where}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ContractError(f"{where}: is no UTF-8") from error


def _record_file(path: Path) -> Path:
    """See before anything runs that the record has a place to go to."""
    if path.is_dir():
        raise ContractError(
            f"record {show_path(path)}: is a folder", hint="name a file"
        )
    if not path.absolute().parent.is_dir():
        raise ContractError(
            f"record {show_path(path)}: there is no such folder", hint="make it first"
        )
    return path


def _seconds(name: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
        if 0 <= seconds < math.inf:
            return seconds
    raise ContractError(
        f"option {name!r}: must be a number of seconds from 0 on, not {value!r}"
    )


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ContractError(f"option {name!r}: must be true or false, not {value!r}")
    return value
