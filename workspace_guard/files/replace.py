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
import secrets
from typing import TYPE_CHECKING

from workspace_guard.files.tree import write_all

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from workspace_guard.files.tree import Folder

_PREFIX = b".wsguard-"
_SUFFIX = b".tmp"


def staged_name(owner: str) -> bytes:
    """A name that nobody can guess, for a file that is about to replace another.

    Args:
        owner: the run that makes it, so that its litter can be told from others'.
    """
    return _PREFIX + os.fsencode(owner) + b"-" + secrets.token_hex(6).encode() + _SUFFIX


def is_staged_name(name: bytes, owner: str) -> bool:
    """Tell whether `staged_name(owner)` has made this name."""
    return name.startswith(_PREFIX + os.fsencode(owner) + b"-") and name.endswith(
        _SUFFIX
    )


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
        try:
            folder.unlink(name)
        except OSError as second:
            error.add_note(f"and {os.fsdecode(name)} could not be removed: {second}")
        raise


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
    try:
        folder.rename(staged, folder, name)
    except BaseException:
        with contextlib.suppress(OSError):
            folder.unlink(staged)
        raise
    folder.sync()


def to_json(document: Mapping[str, object]) -> bytes:
    """Spell a document as we keep it on disk: readable, in UTF-8, one end of line."""
    text = json.dumps(document, ensure_ascii=False, indent=1)
    return text.encode("utf-8") + b"\n"
