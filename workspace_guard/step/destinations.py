"""What lies at the places that the targets are to take.

Room: step. Reads destinations and nothing else; says "the same as before?" for the
last rule of the predicate, and refuses at the start what could never be replaced.
"""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING, NoReturn

from workspace_guard.errors import ContractError
from workspace_guard.files.digest import hash_regular
from workspace_guard.files.relpath import RelPath
from workspace_guard.files.tree import Folder, Found, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from workspace_guard.step.targets import Target

_LINK_IN_PATH = frozenset({errno.ELOOP, errno.ENOTDIR})
"""What the kernel answers when a folder on the way is a link, or a file."""


def hash_destinations(top: Folder, targets: tuple[Target, ...]) -> dict[RelPath, str]:
    """Hash every file that the targets could replace.

    Args:
        top: the workspace.
        targets: of one contract.

    Returns:
        Destination to SHA-256; what is absent is not in it.

    Raises:
        ContractError: a destination is a link, a folder, or cannot be read.
    """
    return dict(_baseline(top, targets))


def hash_places(top: Folder, places: Iterable[RelPath]) -> dict[RelPath, str]:
    """Hash single destinations again, putting into words what is no regular file.

    Returns:
        Destination to SHA-256 or to a text that is no digest; what is absent is not
        in it.
    """
    return {
        path: found
        for place in places
        for path, found in _destination(top, place, lenient=True)
    }


def _baseline(
    top: Folder, targets: tuple[Target, ...]
) -> Iterator[tuple[RelPath, str]]:
    for target in targets:
        if target.kind == "file":
            yield from _destination(top, target.destination, lenient=False)
            continue
        try:
            with top.reach(target.destination) as folder:
                found = [path for path, _ in files_of(target, folder)]
        except FileNotFoundError:
            continue
        except OSError as error:
            _refuse_destination(target.destination, path_fact(error))
        for path in found:
            yield from _destination(top, target.destination_of(path), lenient=False)


def files_of(target: Target, folder: Folder) -> Iterator[tuple[RelPath, Found]]:
    """Find what a folder or pattern target takes in: all of it that is no folder.

    Args:
        target: no single file.
        folder: the target's top in the step, or its destination in the workspace.

    Yields:
        The path that it has in the step, and what was found; good until the next one.

    Raises:
        OSError: a folder could not be read.
    """
    top = target.top.parts

    def in_step(path: bytes) -> RelPath:
        return RelPath(top + RelPath.of(path).parts)

    for found in walk(folder, enters=lambda path: target.may_hold(in_step(path))):
        if not found.is_folder and target.matches(in_step(found.path)):
            yield in_step(found.path), found


def _destination(
    top: Folder, path: RelPath, *, lenient: bool
) -> Iterator[tuple[RelPath, str]]:
    """Hash one destination, if it is there.

    A link is refused rather than followed or replaced: which of the two was meant
    nobody can know (case E19).
    """
    fact = None
    try:
        with top.reach(path.parent) as folder:
            found = folder.lookup(path.name)
            if found is None:
                return
            if stat.S_ISREG(found.st_mode):
                yield path, hash_regular(folder, path.name).sha256
                return
            fact = type_fact(found.st_mode)
    except FileNotFoundError:
        return
    except OSError as error:
        fact = path_fact(error)
    if not lenient:
        _refuse_destination(path, fact)
    yield path, fact


def _refuse_destination(path: RelPath, fact: str) -> NoReturn:
    raise ContractError(
        f"destination {path.shown}: {fact}",
        hint="promotion replaces regular files only; name the file itself",
    )


def path_fact(error: OSError) -> str:
    """Say in words why a path could not be walked, or what it leads to not be read."""
    if error.errno in _LINK_IN_PATH:
        return "a part of its path is a link or no folder"
    return error.strerror or str(error)


def type_fact(mode: int) -> str:
    """Say in words what is there instead of a regular file."""
    if stat.S_ISLNK(mode):
        return "is a link"
    if stat.S_ISDIR(mode):
        return "is a folder"
    return "is no regular file"
