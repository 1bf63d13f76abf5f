"""What a step must leave, and where each of it goes.

Room: step. Knows how a target is written down and which ones contradict each other;
has not looked at the disk (`step.candidates` does).
"""

from __future__ import annotations

import fnmatch
import os
import re
from dataclasses import dataclass
from typing import Literal, Self

from workspace_guard.errors import ContractError, TargetPathError
from workspace_guard.files.relpath import HERE, Flavour, RelPath, UnlawfulPath

TargetKind = Literal["file", "folder", "glob"]

_OURS = {
    b"inputs": "lies below inputs/, which holds read-only copies",
    b"TASK.md": "is a file that the step itself writes",
    b"execution.log": "is a file that the step itself writes",
}
"""The names in a step that are not the command's, and why no target is there."""
_GLOB = "glob:"
_MAGIC = re.compile(rb"[*?\[]")
_SLASHES = ("/", os.sep)


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
                An equals sign that belongs to a name is written `\=`. A destination
                may be any place below the workspace; with a trailing slash it is the
                folder that takes the file.

        Raises:
            TargetPathError: one of the two paths is unlawful.
        """
        left, right = _split(text)
        kind, path = _kind_and_path(left)
        if right is None:
            whole = path if kind != "glob" else RelPath(_literal_parts(path))
            return cls(path=path, kind=kind, destination=whole)
        place = _place(right)
        if kind != "file":
            return cls(path=path, kind=kind, destination=place)
        if right.endswith(_SLASHES):
            return cls(path=path, kind=kind, destination=place / path.name)
        if not place.parts:
            raise TargetPathError(right, "is the folder itself", hint="write ./")
        return cls(path=path, kind=kind, destination=place)

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
                return not _is_ours(found) and _matches(self.path.parts, found.parts)

    def may_hold(self, folder: RelPath) -> bool:
        """Whether a folder of the step could hold a file of this target.

        Args:
            folder: relative to the step, at or below `top`.
        """
        if self.kind != "glob":
            return True
        return not _is_ours(folder) and _leads_to(self.path.parts, folder.parts)

    def __str__(self) -> str:
        shown = self.path.shown
        return {"file": shown, "folder": shown + "/", "glob": _GLOB + shown}[self.kind]


def lawful_path(text: str, flavour: Flavour = HERE) -> RelPath:
    """Read a path that a target may have.

    Raises:
        TargetPathError: absolute, with `..`, NUL or an empty part, or one of the names
            that the step itself uses.
    """
    try:
        path = RelPath.parse(text, flavour)
    except UnlawfulPath as error:
        raise TargetPathError(text, str(error)) from error
    if not path.parts:
        raise TargetPathError(text, "is the folder itself", hint="name what is in it")
    _require_not_ours(path)
    return path


def require_distinct(targets: tuple[Target, ...], *, fold_case: bool) -> None:
    """Refuse targets that would put two files in one place.

    Args:
        targets: of one contract.
        fold_case: whether the workspace's file system takes `A.md` and `a.md` for one.

    Raises:
        ContractError: naming both; or a target is one of the step's own names but for
            its case.
    """
    for number, target in enumerate(targets):
        if fold_case:
            _require_not_ours(target.path, fold_case=True)
        for other in targets[:number]:
            how = _overlap(other, target, fold_case=fold_case)
            if how is not None:
                raise ContractError(
                    f"targets {other} and {target}: their destinations {how}: "
                    f"{other.destination.shown}, {target.destination.shown}",
                    hint="give one another place with --target PATH=DESTINATION",
                )


def _overlap(one: Target, other: Target, *, fold_case: bool) -> str | None:
    """How two targets get in each other's way; None where they need not.

    Patterns may share a folder: whether two of their files go to one place is seen
    when they are there (`step.candidates`).
    """
    spell = _fold if fold_case else _text
    first = tuple(map(spell, one.destination.parts))
    second = tuple(map(spell, other.destination.parts))
    if first == second:
        return "are one" if {one.kind, other.kind} != {"glob"} else None
    outer = one if len(first) < len(second) else other
    depth = min(len(first), len(second))
    if first[:depth] == second[:depth] and outer.kind != "glob":
        return "lie inside one another"
    return None


def _is_ours(path: RelPath) -> bool:
    return path.parts[:1] in {(name,) for name in _OURS}


def _require_not_ours(path: RelPath, *, fold_case: bool = False) -> None:
    for name, fact in _OURS.items():
        first = path.parts[0]
        if first == name or (fold_case and _fold(first) == _fold(name)):
            raise TargetPathError(bytes(path), fact)


def _fold(part: bytes) -> str:
    return _text(part).casefold()


def _text(part: bytes) -> str:
    return part.decode("utf-8", "surrogateescape")


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


def _kind_and_path(text: str) -> tuple[TargetKind, RelPath]:
    if not text.startswith(_GLOB):
        return ("folder" if text.endswith(_SLASHES) else "file"), lawful_path(text)
    pattern = text.removeprefix(_GLOB)
    # What Windows forbids in a name is what patterns are made of.
    path = lawful_path(pattern, "posix")
    if pattern.endswith("/"):
        raise TargetPathError(
            text,
            "is a pattern of folders",
            hint=f"write {text}** for the files in them",
        )
    return "glob", path


def _place(text: str) -> RelPath:
    """A place below the workspace; the workspace itself is `./`."""
    try:
        return RelPath.parse(text)
    except UnlawfulPath as error:
        raise TargetPathError(text, str(error)) from error


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
    if pattern[0] == b"**":
        return _matches(pattern[1:], parts) or (
            bool(parts) and not _is_hidden(parts[0]) and _matches(pattern, parts[1:])
        )
    return (
        bool(parts)
        and _matches_part(pattern[0], parts[0])
        and _matches(pattern[1:], parts[1:])
    )


def _leads_to(pattern: tuple[bytes, ...], parts: tuple[bytes, ...]) -> bool:
    """Whether something below the folder `parts` could match the pattern."""
    if not pattern or not parts:
        return bool(pattern)
    if pattern[0] == b"**":
        return _leads_to(pattern[1:], parts) or (
            not _is_hidden(parts[0]) and _leads_to(pattern, parts[1:])
        )
    return _matches_part(pattern[0], parts[0]) and _leads_to(pattern[1:], parts[1:])


def _matches_part(pattern: bytes, part: bytes) -> bool:
    # As in a shell: a hidden name has to be asked for.
    if _is_hidden(part) and not _is_hidden(pattern):
        return False
    # As text: a `?` stands for one character, not for one byte of it.
    return fnmatch.fnmatchcase(_text(part), _text(pattern))


def _is_hidden(name: bytes) -> bool:
    return name.startswith(b".")
