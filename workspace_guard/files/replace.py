"""Replace one name durably: the old file or the new one, never something between.

Room: files. Knows temporary names, flushing and renaming; several names at once are
the journal's business.

Source: rename(2), fsync(2); Rebello et al., "Can Applications Recover from fsync
Failures?", USENIX ATC 2020 (a failed fsync is never repeated).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import stat
from typing import TYPE_CHECKING

from workspace_guard.errors import show_path
from workspace_guard.files.tree import write_all

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from workspace_guard.files.tree import Folder

_PREFIX = b".wsguard-"
_SUFFIX = b".tmp"
_DIGITS = re.compile(rb"[0-9a-f]{12}")


def staged_name(owner: str) -> bytes:
    """A name that nobody can guess, for a file that is about to replace another.

    Args:
        owner: the run that makes it, so that its litter can be told from others'.
    """
    return _PREFIX + os.fsencode(owner) + b"-" + secrets.token_hex(6).encode() + _SUFFIX


def is_staged_name(name: bytes, owner: str) -> bool:
    """Tell whether `staged_name(owner)` has made this name."""
    head = _PREFIX + os.fsencode(owner) + b"-"
    # Between the two stand our digits only: a run `a` must not claim what `a-b` made.
    digits = name.removeprefix(head).removesuffix(_SUFFIX)
    return name == head + digits + _SUFFIX and _DIGITS.fullmatch(digits) is not None


def remove_staged(folder: Folder, owner: str) -> None:
    """Remove the staged files that a crash of `owner` has left in a folder.

    Raises:
        OSError: the folder cannot be read, or one could not be removed.
    """
    for name in folder.names():
        if not is_staged_name(name, owner):
            continue
        found = folder.lookup(name)
        if found is not None and not stat.S_ISDIR(found.st_mode):
            folder.unlink(name)


@contextlib.contextmanager
def staged_file(folder: Folder, name: bytes, mode: int = 0o600) -> Generator[int]:
    """Create a file under a staged name and flush it when the block ends.

    Yields:
        The descriptor to write to; it is closed afterwards.

    Raises:
        OSError: of the first call that failed. The staged name is then gone again; a
            failure to remove it is noted on the first error and does not hide it.
    """
    fd = folder.create(name, mode)
    try:
        try:
            yield fd
            os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException as error:
        _remove_after(error, folder, name)
        raise


def move_staged(folder: Folder, staged: bytes, name: bytes) -> None:
    """Rename a staged file to its name; where that fails, remove it.

    Raises:
        OSError: of the rename; a failure to remove the staged file is noted on it.
    """
    try:
        folder.rename(staged, folder, name)
    except BaseException as error:
        _remove_after(error, folder, staged)
        raise


def _remove_after(error: BaseException, folder: Folder, name: bytes) -> None:
    try:
        folder.unlink(name)
    except OSError as second:
        error.add_note(f"and {show_path(name)} could not be removed: {second}")


def write_file(
    folder: Folder, name: bytes, content: bytes, *, owner: str, mode: int = 0o600
) -> None:
    """Put a file in place of `name`, durably.

    Args:
        folder: the folder that holds it.
        name: the name to replace, or to make.
        content: all of it.
        owner: whose staged name is used meanwhile.
        mode: the new file's permission bits, before the umask.

    Raises:
        OSError: up to the rename the old file is untouched and nothing of ours is
            left; a failure of the last flush leaves the new one, perhaps not durable.
    """
    staged = staged_name(owner)
    with staged_file(folder, staged, mode) as fd:
        write_all(fd, content)
    move_staged(folder, staged, name)
    folder.sync()


def to_json(document: Mapping[str, object]) -> bytes:
    """Spell a document as we keep it on disk: readable, in UTF-8, one end of line."""
    text = json.dumps(document, ensure_ascii=False, indent=1)
    return text.encode("utf-8") + b"\n"
