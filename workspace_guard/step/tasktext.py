"""The text that tells the command what to do, in local names only.

Room: step. Pure: strings in, strings out.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from workspace_guard.errors import show_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workspace_guard.files.relpath import RelPath
    from workspace_guard.step.targets import Target

_UP = "../../"  # from tasks/<name>/ to the workspace
# A path ends where no further part of a name follows; a full stop ends a sentence
# unless a letter follows it. Letters of other scripts (as in "output.md文件") do not
# continue a path that has its suffix: texts in Chinese put no blanks around one.
_BEFORE = r"(?<![A-Za-z0-9_./\\-])(?:\./)?"
_AFTER = r"(?![A-Za-z0-9_/\\~-]|\.[A-Za-z0-9_])"
_AFTER_WITHOUT_SUFFIX = r"(?![\w/\\~-]|\.\w)"
# What ends a path in a warning: blanks, quotes and brackets, also those of Chinese.
_WORD = re.compile(
    r"[^\s\"'`<>()\[\]{},;:!?|&"
    r"\u2018-\u201f\u2026\u3000-\u303f\uff01-\uff0f\uff1a-\uff20]+"
)
_UPWARDS = re.compile(
    r"(?<![\w./\\])\.\.(?![\w.])"
    r"|(?<![A-Za-z0-9_.])\.\.(?=[/\\])"
    r"|(?<=[/\\])\.\.(?![A-Za-z0-9_.])"
)


class _Input(Protocol):
    @property
    def path(self) -> RelPath: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskText:
    """The user's text after every parent path that could be was made local."""

    text: str
    rewritten: tuple[tuple[str, str], ...] = ()
    """(what stood there, what stands there now), each once."""
    warnings: tuple[str, ...] = ()
    """Paths with `..` that are left."""


def localise(text: str, inputs: Mapping[bytes, bytes]) -> TaskText:
    """Put the local copy's name wherever the text names an input by its parent path.

    Args:
        text: as the user wrote it.
        inputs: path in the workspace to path in the step.

    Returns:
        The text, with what was rewritten, and each path with `..` that stays as a
        warning.
    """
    rewritten: dict[str, str] = {}
    # Longest first, so that a/output.md is not taken for output.md.
    for source in sorted(inputs, key=len, reverse=True):
        parent, local = _UP + os.fsdecode(source), os.fsdecode(inputs[source])
        after = _AFTER if b"." in os.path.basename(source) else _AFTER_WITHOUT_SUFFIX
        pattern = re.compile(_BEFORE + re.escape(parent) + after)
        if pattern.search(text):
            rewritten[parent] = local
            text = local.join(pattern.split(text))
    left = dict.fromkeys(w for w in _WORD.findall(text) if _UPWARDS.search(w))
    return TaskText(
        text=text,
        rewritten=tuple(rewritten.items()),
        warnings=tuple(
            f"the task text names {show_path(path)!r}, which leads out of the step"
            for path in left
        ),
    )


def render(task: TaskText, inputs: Sequence[_Input], targets: Sequence[Target]) -> str:
    """Write TASK.md.

    Returns:
        The text; nothing in it that is ours leads upwards.
    """
    lines = ["# Task", "", task.text.strip() or "(no text was given)", ""]
    lines += ["## Inputs", ""]
    if inputs:
        lines += ["Read-only copies, made for this step:", ""]
        lines += [f"- {_code(staged.path.shown)}" for staged in inputs]
    else:
        lines += ["None."]
    lines += ["", "## What to leave here", ""]
    if targets:
        lines += [f"- {_code(target.path.shown)}{_kind(target)}" for target in targets]
    else:
        lines += ["Nothing in particular."]
    lines += [
        "",
        "## Rules",
        "",
        "- Work in this folder only. Nothing outside this folder may be changed.",
        "- What you are asked for counts only if it is in this folder when you end.",
        "- A report of success counts for nothing; the files do.",
        "",
    ]
    return "\n".join(lines)


def _code(text: str) -> str:
    """Spell a code span that holds exactly this text.

    Source: CommonMark 0.31, "Code spans".
    """
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    # One blank at both ends is taken away again by whoever reads it, unless all is.
    edges = {text[:1], text[-1:]}
    pad = " " if "`" in edges or (edges == {" "} and text.strip(" ")) else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _kind(target: Target) -> str:
    return {
        "file": "",
        "folder": " (a folder with at least one file)",
        "glob": " (at least one file of this pattern)",
    }[target.kind]
