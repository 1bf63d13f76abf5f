"""What a step must leave, and where each of it goes.

Room: step. Knows how a target is written down and which ones contradict each other;
has not looked at the disk (`step.candidates` does).
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import Literal, Self

from workspace_guard.errors import ContractError, TargetPathError
from workspace_guard.files.relpath import RelPath, UnlawfulPath

TargetKind = Literal["file", "folder", "glob"]

INPUTS = RelPath((b"inputs",))
TASK = RelPath((b"TASK.md",))
LOG = RelPath((b"execution.log",))

_GLOB = "glob:"
_MAGIC = re.compile(rb"[*?\[]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One thing that the step must leave."""

    path: RelPath
    """Relative to the step; for a glob the pattern, part by part."""
    kind: TargetKind = "file"
    destination: RelPath
    """Relative to the workspace; for a folder or a glob the folder that takes it."""

    @classmethod
    def parse(cls, text: str) -> Self:
        r"""Read `PATH[=DESTINATION]` as the command line and contract files have it.

        Args:
            text: a literal path; with a trailing slash a folder; with `glob:` before
                it a pattern, whose `*` stays within a part and whose `**` does not.
                An equals sign that belongs to a name is written `\=`.

        Raises:
            TargetPathError: one of the two paths is unlawful for a target.
        """
        left, right = _split(text)
        is_glob = left.startswith(_GLOB)
        spelled = left.removeprefix(_GLOB)
        path = lawful_path(spelled)
        kind: TargetKind = "file"
        if is_glob:
            kind = "glob"
        elif spelled.endswith("/"):
            kind = "folder"
        if right is None:
            whole = path if kind != "glob" else RelPath(_literal_parts(path))
            return cls(path=path, kind=kind, destination=whole)
        if kind == "file" and right.endswith("/"):
            return cls(path=path, kind=kind, destination=_folder(right) / path.name)
        if kind == "file":
            return cls(path=path, kind=kind, destination=lawful_path(right))
        return cls(path=path, kind=kind, destination=_folder(right))

    @property
    def top(self) -> RelPath:
        """The part of the path that is no pattern: where to start looking."""
        return RelPath(_literal_parts(self.path)) if self.kind == "glob" else self.path

    def destination_of(self, found: RelPath) -> RelPath:
        """Where a file that this target has matched goes.

        Args:
            found: relative to the step, at or below `top`.
        """
        if self.kind == "file":
            return self.destination
        return RelPath(self.destination.parts + found.parts[len(self.top.parts) :])

    def matches(self, found: RelPath) -> bool:
        """Whether a file of the step, by its path, belongs to this target."""
        match self.kind:
            case "file":
                return found == self.path
            case "folder":
                return found.is_below(self.path) and found != self.path
            case "glob":
                return _matches(self.path.parts, found.parts)

    def __str__(self) -> str:
        shown = self.path.shown
        return {"file": shown, "folder": shown + "/", "glob": _GLOB + shown}[self.kind]


def lawful_path(text: str) -> RelPath:
    """Read a path that a target or a destination may have.

    Raises:
        TargetPathError: absolute, with `..`, NUL or an empty part, or one of the names
            that the step itself uses.
    """
    try:
        path = RelPath.parse(text)
    except UnlawfulPath as error:
        raise TargetPathError(text, str(error)) from error
    if not path.parts:
        raise TargetPathError(text, "is the folder itself", hint="name what is in it")
    if path.is_below(INPUTS):
        raise TargetPathError(text, "lies below inputs/, which holds read-only copies")
    if path in (TASK, LOG):
        raise TargetPathError(text, "is a file that the step itself writes")
    return path


def require_distinct(targets: tuple[Target, ...], *, fold_case: bool) -> None:
    """Refuse targets that would put two files in one place.

    Args:
        targets: of one contract.
        fold_case: whether the workspace's file system takes `A.md` and `a.md` for one.

    Raises:
        ContractError: naming both.
    """
    seen: dict[tuple[bytes, ...], Target] = {}
    for target in targets:
        parts = target.destination.parts
        key = tuple(_fold(part) for part in parts) if fold_case else parts
        for other_key, other in seen.items():
            mixed = {target.kind, other.kind} != {"file"}
            shorter = min(len(key), len(other_key))
            same = key == other_key
            inside = key[:shorter] == other_key[:shorter] and (
                "glob" not in {target.kind, other.kind}
            )
            if same or inside:
                how = "lie inside one another" if mixed and not same else "are one"
                raise ContractError(
                    f"targets {other} and {target}: their destinations "
                    f"{other.destination.shown} and {target.destination.shown} {how}",
                    hint="give one another place with --target PATH=DESTINATION",
                )
        seen[key] = target


def _fold(part: bytes) -> bytes:
    return (
        part.decode("utf-8", "surrogateescape")
        .casefold()
        .encode("utf-8", "surrogateescape")
    )


def _split(text: str) -> tuple[str, str | None]:
    pieces = re.split(r"(?<!\\)=", text)
    names = [piece.replace("\\=", "=") for piece in pieces]
    if len(names) == 1:
        return names[0], None
    if len(names) > 2:  # noqa: PLR2004  # PATH and DESTINATION
        raise TargetPathError(
            text, "has more than one '='", hint="write an '=' in a name as \\="
        )
    return names[0], names[1]


def _folder(text: str) -> RelPath:
    """A destination folder; the workspace itself is one, written `./`."""
    try:
        path = RelPath.parse(text)
    except UnlawfulPath as error:
        raise TargetPathError(text, str(error)) from error
    return path


def _literal_parts(path: RelPath) -> tuple[bytes, ...]:
    literal: list[bytes] = []
    for part in path.parts[:-1]:
        if _MAGIC.search(part):
            break
        literal.append(part)
    return tuple(literal)


def _matches(pattern: tuple[bytes, ...], parts: tuple[bytes, ...]) -> bool:
    if not pattern:
        return not parts
    head, rest = pattern[0], pattern[1:]
    if head == b"**":
        return any(_matches(rest, parts[start:]) for start in range(len(parts) + 1))
    if not parts or not _matches_part(head, parts[0]):
        return False
    return _matches(rest, parts[1:])


def _matches_part(pattern: bytes, part: bytes) -> bool:
    # As in a shell: a hidden name has to be asked for.
    if part.startswith(b".") and not pattern.startswith(b"."):
        return False
    return fnmatch.fnmatchcase(part, pattern)
