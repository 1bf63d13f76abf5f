"""A path that cannot leave its root.

Room: files. Knows which spellings of a relative path are lawful on which platform;
knows nothing of what is on disk. Resolution is by folder descriptor
(`files.tree`), never by joining strings.
"""

from __future__ import annotations

import base64
import os
import sys
from dataclasses import dataclass
from typing import Literal, Self

from workspace_guard.errors import show_path

Flavour = Literal["posix", "windows"]
HERE: Flavour = "windows" if sys.platform == "win32" else "posix"

# https://learn.microsoft.com/windows/win32/fileio/naming-a-file
_PORTS = "123456789\N{SUPERSCRIPT ONE}\N{SUPERSCRIPT TWO}\N{SUPERSCRIPT THREE}"
_RESERVED = frozenset(
    {b"con", b"prn", b"aux", b"nul", b"conin$", b"conout$"}
    | {f"{kind}{n}".encode() for kind in ("com", "lpt") for n in _PORTS}
)
_FORBIDDEN_ON_WINDOWS = frozenset(b'<>:"|?*') | frozenset(range(32))


class UnlawfulPath(ValueError):
    """A spelling that is no relative path inside a root; the text says which rule."""


@dataclass(frozen=True, slots=True, order=True)
class RelPath:
    """A path below some root, as byte parts; the root itself has no parts.

    Made once, at the border, by `parse` or `of`; from then on it can be trusted to
    stay below its root as long as it is walked without following links.
    """

    parts: tuple[bytes, ...] = ()

    @classmethod
    def parse(cls, text: str | bytes, flavour: Flavour = HERE) -> Self:
        r"""Read a path that a user or a file has written.

        Args:
            text: separated by `/` (on Windows by `\` too); `.` parts are dropped.
            flavour: whose rules hold.

        Returns:
            The path; `.` alone is the root itself.

        Raises:
            UnlawfulPath: empty, absolute, with `..`, NUL or an empty part, or not to
                be spelled in bytes; on Windows also a drive, a reserved device name,
                or a character that names a stream. Nothing on disk was looked at.
        """
        try:
            raw = os.fsencode(text)
        except UnicodeEncodeError as error:  # half of a surrogate pair, from JSON
            raise UnlawfulPath("holds a character that no file name has") from error
        if not raw:
            raise UnlawfulPath("is empty")
        if b"\0" in raw:
            raise UnlawfulPath("holds a NUL character")
        if flavour == "windows":
            raw = raw.replace(b"\\", b"/")
        if raw.startswith(b"/"):
            raise UnlawfulPath("is absolute; it must be relative")
        pieces = raw.split(b"/")
        if pieces[-1] == b"" and len(pieces) > 1:
            pieces.pop()  # one trailing slash marks a folder; the caller has seen it
        parts = tuple(piece for piece in pieces if piece != b".")
        for part in parts:
            _check_part(part, flavour)
        return cls(parts)

    @classmethod
    def of(cls, raw: bytes) -> Self:
        """Take a path as the kernel gave it, `/` between the parts; b"" is the root."""
        return cls(tuple(raw.split(b"/"))) if raw else cls()

    def __truediv__(self, name: bytes | str) -> RelPath:
        return RelPath((*self.parts, os.fsencode(name)))

    def __bytes__(self) -> bytes:
        return b"/".join(self.parts)

    def __str__(self) -> str:
        """The text as `os.fsdecode` gives it; `.` for the root."""
        return os.fsdecode(bytes(self)) or "."

    @property
    def name(self) -> bytes:
        """The last part; empty for the root."""
        return self.parts[-1] if self.parts else b""

    @property
    def parent(self) -> RelPath:
        """The path without its last part."""
        return RelPath(self.parts[:-1])

    @property
    def shown(self) -> str:
        """The text for people, with control characters and stray bytes escaped."""
        return show_path(bytes(self)) or "."

    def is_below(self, other: RelPath) -> bool:
        """Tell whether this is `other` or something inside it."""
        return self.parts[: len(other.parts)] == other.parts


def _check_part(part: bytes, flavour: Flavour) -> None:
    if part == b"":
        raise UnlawfulPath("has an empty part (two slashes in a row)")
    if part == b"..":
        raise UnlawfulPath("leads upwards with '..'")
    if flavour == "posix":
        return
    if _FORBIDDEN_ON_WINDOWS.intersection(part):
        raise UnlawfulPath("holds a character that Windows does not allow in a name")
    if part[-1:] in (b".", b" "):
        raise UnlawfulPath("has a part that ends in a dot or a space")
    if part.split(b".")[0].rstrip().lower() in _RESERVED:
        raise UnlawfulPath("has a part that is a device name on Windows")


def path_fields(raw: bytes, key: str = "path") -> dict[str, str]:
    r"""Spell a path for JSON, without loss.

    Args:
        raw: the path in bytes.
        key: the name of the field.

    Returns:
        `{key: text}`; where the bytes are no UTF-8 the text has them as `\xNN`, and
        `{key}_bytes` beside it is the exact name in base64 (spec 4, run record).
    """
    try:
        return {key: raw.decode("utf-8")}
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "backslashreplace")
        return {key: text, f"{key}_bytes": base64.b64encode(raw).decode("ascii")}


def path_from_fields(fields: dict[str, object], key: str = "path") -> bytes:
    """Read back what `path_fields` has written."""
    exact = fields.get(f"{key}_bytes")
    if isinstance(exact, str):
        return base64.b64decode(exact)
    return str(fields[key]).encode("utf-8")
