"""What one step is asked to do, what it gets, and what it must leave.

Room: step. Knows the words of a contract, wherever they come from: keyword arguments,
the command line, or a TOML file, all by one table of options. Has not looked at the
workspace (`step.stage` does).
"""

from __future__ import annotations

import difflib
import math
import re
import shlex
import tomllib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, cast

from workspace_guard.errors import ContractError, show_path
from workspace_guard.files.relpath import RelPath, UnlawfulPath
from workspace_guard.step.targets import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from workspace_guard.containment.base import OnEscape

Mode = Literal["auto", "deny", "absorb", "detect"]

GIB = 1 << 30
_LONGEST_NAME_BYTES = 200
"""Of a step; file systems take 255."""
DEFAULT_INPUTS = tuple(
    RelPath((name,)) for name in (b"output.md", b"template.md", b"blackboard.json")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """The declaration of one step. All paths are relative and have been checked."""

    task: str = ""
    """What to do, in the user's words."""
    name: str | None = None
    """The step's folder below `tasks/`; None takes the next free number."""
    name_prefix: str = "run"
    """What a numbered name starts with."""
    step_dir: Path | None = None
    """Where the step is built instead of `<workspace>/tasks`; absolute."""
    inputs: tuple[RelPath, ...] = ()
    """Files of the workspace that must be there."""
    default_inputs: bool = True
    """Whether those of `DEFAULT_INPUTS` that exist are given too."""
    targets: tuple[Target, ...] = ()
    """Empty: `output.md`, where the workspace has one."""
    no_target: bool = False
    """The step need not leave anything; it ends as `accepted`."""
    mode: Mode = "auto"
    timeout_s: float | None = None
    grace_s: float = 1.0
    on_escape: OnEscape = "fail"
    require_change: bool = False
    allow_empty: bool = False
    verify: tuple[str, ...] = ()
    """A command that accepts the candidate by exiting 0; empty for none."""
    promote: bool = True
    """False: a good candidate is `accepted` and stays in the step."""
    accept_gaps: bool = False
    verify_content: bool = False
    environment: Mapping[str, str | None] = field(
        default_factory=lambda: cast("dict[str, str | None]", {})
    )
    """What is set; None passes the caller's own value on, also with `clean_env`."""
    clean_env: bool = False
    max_snapshot_bytes: int = 2 * GIB
    keep_snapshot: bool = False
    remove_step: bool = False
    """Remove the step's folder once its targets are promoted."""

    @classmethod
    def of(cls, **options: object) -> Contract:
        """Make a contract of options: `Contract.of(task="…", target=["a.md"])`.

        Args:
            options: the long options of `run` with `_` for `-`; see `OPTIONS`.

        Raises:
            ContractError: naming every option that is unknown or unlawful.
        """
        return contract_from_options(options)

    @classmethod
    def from_toml(cls, path: Path) -> Contract:
        """Read a contract from a TOML file.

        Args:
            path: the file; its keys are the long options of `run` with `_` for `-`.

        Raises:
            ContractError: missing, unreadable, no TOML, or an unlawful value.
        """
        return contract_from_options(read_options(path))


def read_options(path: Path) -> dict[str, object]:
    """Read the options that a contract file has, unchecked.

    Raises:
        ContractError: missing, unreadable or no TOML.
    """
    where = f"contract file {show_path(path)}"
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ContractError(f"{where}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # no UTF-8, too deep, too long
        raise ContractError(f"{where}: is no TOML: {error}") from error


def contract_from_options(options: Mapping[str, object]) -> Contract:
    """Make a contract of options, as a file or the command line has them.

    Args:
        options: by their long names with `_` for `-`; see `OPTIONS`.

    Raises:
        ContractError: naming every option that is unknown or has an unlawful value.
    """
    contract = Contract()
    issues: list[ContractError] = []
    for key, value in options.items():
        reader = OPTIONS.get(key)
        if reader is None:
            near = difflib.get_close_matches(key, OPTIONS, n=1)
            guess = f" (did you mean {near[0]!r}?)" if near else ""
            issues.append(ContractError(f"unknown option {key!r}{guess}"))
            continue
        try:
            contract = reader(contract, value)
        except ContractError as error:
            issues.append(error)
        except (TypeError, ValueError, OverflowError) as error:
            issues.append(ContractError(f"option {key!r}: {error}"))
    if contract.no_target and contract.targets:
        exclude = "options 'no_target' and 'target' exclude each other"
        issues.append(ContractError(exclude))
    if issues:
        raise _as_one(issues)
    return contract


def _as_one(issues: list[ContractError]) -> ContractError:
    """One error for all; a single one stays what it is."""
    if len(issues) == 1:
        return issues[0]
    hints = dict.fromkeys(issue.hint for issue in issues if issue.hint)
    message = "; ".join(issue.message for issue in issues)
    return ContractError(message, hint="; ".join(hints) or None)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"must be text, not {value!r}")
    if "\0" in value:
        raise ValueError("holds a NUL character")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"must be true or false, not {value!r}")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_text(value),)
    if not isinstance(value, list | tuple):
        raise TypeError(f"must be a list of texts, not {value!r}")
    return tuple(_text(item) for item in cast("list[object]", value))


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"must be a number of seconds, not {value!r}")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"must be a number of seconds from 0 on, not {value!r}")
    return float(value)


def _timeout(value: object) -> float:
    seconds = _seconds(value)
    if seconds == 0:
        raise ValueError("must be more than 0 seconds")
    return seconds


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(value: object) -> int:
    """Read a number of bytes: 2147483648, "2G", "500 MiB"."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    found = re.fullmatch(
        r"(\d+)\s*([KMGT]?)(?:i?B)?", str(value).strip(), re.IGNORECASE
    )
    if found is None or isinstance(value, bool):
        raise ValueError(f"must be a number of bytes such as 500M, not {value!r}")
    return int(found[1]) * _UNITS[found[2].upper()]


def _input(text: str) -> RelPath:
    try:
        path = RelPath.parse(text)
    except UnlawfulPath as error:
        raise ContractError(
            f"input {show_path(text)!r}: {error}",
            hint="inputs are named relative to the workspace",
        ) from error
    if not path.parts:
        raise ContractError(f"input {text!r}: is the workspace itself")
    return path


def _environment(value: object) -> dict[str, str | None]:
    if isinstance(value, dict):
        pairs = cast("dict[object, object]", value).items()
        return {_variable(_text(name)): _text(text) for name, text in pairs}
    found: dict[str, str | None] = {}
    for item in _texts(value):
        name, equals, text = item.partition("=")
        found[_variable(name)] = text if equals else None
    return found


def _variable(name: str) -> str:
    if not name or "=" in name:
        raise ValueError(f"{name!r} is no name of a variable")
    return name


def _choice(value: object, *allowed: str) -> str:
    if value not in allowed:
        raise ValueError(f"must be one of {', '.join(allowed)}, not {value!r}")
    return str(value)


def _mode(value: object) -> Mode:
    return cast("Mode", _choice(value, "auto", "deny", "absorb", "detect"))


def _on_escape(value: object) -> OnEscape:
    return cast("OnEscape", _choice(value, "fail", "fail-on-attempt", "stop", "report"))


def lawful_step_name(name: str) -> str:
    """Give back a name that a step's folder may have.

    Raises:
        ContractError: empty, a dot name, with a separator or NUL, with a leading dash,
            or too long.
    """
    problem = None
    if name in {"", ".", ".."}:
        problem = "names no folder of its own"
    elif "/" in name or "\\" in name:
        problem = "holds a path separator"
    elif name.startswith("-"):
        problem = "starts with a dash"
    else:
        try:
            if len(bytes(RelPath.parse(name))) > _LONGEST_NAME_BYTES:
                problem = f"is longer than {_LONGEST_NAME_BYTES} bytes"
        except UnlawfulPath as error:
            problem = str(error)
    if problem:
        raise ContractError(f"step name {show_path(name)!r}: {problem}")
    return name


def _command_line(value: object) -> tuple[str, ...]:
    words = shlex.split(_text(value)) if isinstance(value, str) else _texts(value)
    if not words or not words[0]:
        raise ValueError("holds no command")
    return tuple(words)


OPTIONS: Mapping[str, Callable[[Contract, object], Contract]] = {
    "name": lambda c, v: replace(c, name=lawful_step_name(_text(v))),
    "task": lambda c, v: replace(c, task=_text(v)),
    "input": lambda c, v: replace(c, inputs=tuple(_input(t) for t in _texts(v))),
    "no_default_inputs": lambda c, v: replace(c, default_inputs=not _flag(v)),
    "target": lambda c, v: replace(c, targets=tuple(map(Target.parse, _texts(v)))),
    "no_target": lambda c, v: replace(c, no_target=_flag(v)),
    "mode": lambda c, v: replace(c, mode=_mode(v)),
    "timeout": lambda c, v: replace(c, timeout_s=_timeout(v)),
    "grace": lambda c, v: replace(c, grace_s=_seconds(v)),
    "on_escape": lambda c, v: replace(c, on_escape=_on_escape(v)),
    "require_change": lambda c, v: replace(c, require_change=_flag(v)),
    "allow_empty": lambda c, v: replace(c, allow_empty=_flag(v)),
    "verify": lambda c, v: replace(c, verify=_command_line(v)),
    "no_promote": lambda c, v: replace(c, promote=not _flag(v)),
    "accept_gaps": lambda c, v: replace(c, accept_gaps=_flag(v)),
    "verify_content": lambda c, v: replace(c, verify_content=_flag(v)),
    "env": lambda c, v: replace(c, environment=_environment(v)),
    "clean_env": lambda c, v: replace(c, clean_env=_flag(v)),
    "max_snapshot": lambda c, v: replace(c, max_snapshot_bytes=parse_bytes(v)),
    "keep_snapshot": lambda c, v: replace(c, keep_snapshot=_flag(v)),
    "rm": lambda c, v: replace(c, remove_step=_flag(v)),
}
"""Every option of a contract, and how its value is read."""
