"""Replace several files as one: all of them or none, also across a crash.

Room: files. Knows staged files, the journal that decides, and how a crash is finished
or undone; knows nothing of what the files mean.

The order of writes: every new file is staged beside its destination and flushed; the
old content is kept; the journal appears by rename and is flushed (from here on it is
decided); each file is renamed; the folders are flushed; the journal goes. One file
alone needs no journal, for one rename is all or nothing by itself. Between two renames
other processes can see a mixture; what holds is that after recovery it is gone.

Source: SQLite, "Atomic Commit", the super-journal, turned round: there the commit
point is its removal, here its appearance.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from workspace_guard.errors import JournalDamaged, show_path
from workspace_guard.files.digest import Unstable, hash_regular
from workspace_guard.files.keep import put_back_kept
from workspace_guard.files.relpath import RelPath, path_fields, path_from_fields
from workspace_guard.files.replace import remove_staged, to_json, write_file
from workspace_guard.files.tree import NotRegular

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from workspace_guard.files.tree import Folder

_SCHEMA = "workspace-guard/promotion-journal/1"
_NO_FOLDER = frozenset({errno.ENOTDIR, errno.ELOOP})
_GONE = _NO_FOLDER | {errno.ENOENT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """One file that is about to take the place of another."""

    destination: RelPath
    """Below the folder that all replacements of a group share."""
    staged: bytes
    """The new file's name, in the destination's folder."""
    before_sha256: str | None
    """None where there was no file."""
    after_sha256: str
    kept: bytes | None
    """The old file's name in the folder of kept files; None where there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Files that are replaced together."""

    owner: str
    """The run whose promotion it is."""
    replacements: tuple[Replacement, ...]
    made_folders: tuple[RelPath, ...] = ()
    """Folders that were made for them, outermost first; they go if it is undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What became of a group that a crash had left open."""

    outcome: Literal["finished", "undone", "conflict"]
    destinations: tuple[RelPath, ...]
    """Those that changed; for a conflict, those that hold neither old nor new."""


class Moved(OSError):
    """A destination is no longer what it was when its replacement was staged."""


def write_sealed(
    folder: Folder, name: bytes, document: Mapping[str, object], *, owner: str
) -> None:
    """Write a JSON document with its own checksum behind it, durably."""
    body = to_json(document)
    seal = hashlib.sha256(body).hexdigest().encode() + b"\n"
    write_file(folder, name, body + seal, owner=owner)


def read_sealed(folder: Folder, name: bytes) -> dict[str, object]:
    """Read what `write_sealed` has written.

    Raises:
        JournalDamaged: the checksum does not agree, or it is no JSON object.
        FileNotFoundError: there is none.
    """
    fd = folder.open_regular(name)
    with os.fdopen(fd, "rb") as file:
        raw = file.read()
    body, _, seal = raw.rstrip(b"\n").rpartition(b"\n")
    body += b"\n"
    where = show_path(os.path.join(folder.path, name))
    if hashlib.sha256(body).hexdigest().encode() != seal:
        raise JournalDamaged(f"journal {where}: its checksum does not agree")
    try:
        document: object = json.loads(body)
    except ValueError as error:
        raise JournalDamaged(f"journal {where}: is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise JournalDamaged(f"journal {where}: is no JSON object")
    return cast("dict[str, object]", document)


def journal_name(owner: str) -> bytes:
    """The journal file of a group."""
    return os.fsencode(owner) + b".promotion.json"


def commit(group: Group, top: Folder, kept: Folder, journal: Folder) -> None:
    """Put every staged file in its place.

    Args:
        group: what to replace; everything in it is staged and flushed.
        top: the folder that the destinations are relative to.
        kept: the folder of kept files.
        journal: where open journals lie.

    Raises:
        Moved: a destination is not what it was; nothing was replaced.
        OSError: a replacement failed. In both cases every destination is the old one
            again and no staged file is left, unless a note on the error says more:
            where undoing failed too, or all is in place and the journal could not be
            closed, `recover` finishes the work; where it had no journal yet,
            `rollback` does.
    """
    name = journal_name(group.owner)
    try:
        # Kept names must be there for good before anything rests on them.
        kept.sync()
        for replacement in group.replacements:
            _require_unmoved(top, replacement)
        if len(group.replacements) > 1:
            write_sealed(journal, name, _to_document(group), owner=group.owner)
        for replacement in group.replacements:
            _put_in_place(top, replacement)
        for parent in _parents(group):
            with top.reach(parent) as folder:
                folder.sync()
    except OSError as error:
        with _noted_on(error, "and undoing it failed too"):
            rollback(group, top, kept)
            _close(journal, name)
        raise
    try:
        _close(journal, name)
    except OSError as error:
        error.add_note("every file is in place, but its journal is still open")
        raise


@contextlib.contextmanager
def _noted_on(error: OSError, what: str) -> Generator[None]:
    """Let no failure of a clean-up hide the error that made it necessary."""
    try:
        yield
    except OSError as second:
        error.add_note(f"{what}: {second}")


def rollback(group: Group, top: Folder, kept: Folder) -> None:
    """Make every destination the old one again and remove what was staged.

    Does nothing to a destination that holds neither the old nor the new content: that
    is somebody else's edit. Harmless when repeated.

    Raises:
        OSError: of the first thing that could not be put back or removed; the others
            were tried all the same, and every kept file is still there.
    """
    errors: list[OSError] = []
    old_again: list[bytes] = []
    for replacement in group.replacements:
        try:
            back = _take_back(top, kept, replacement, group.owner)
        except OSError as error:
            errors.append(error)
        else:
            if back and replacement.kept is not None:
                old_again.append(replacement.kept)
    errors += _clear_up(group, top)
    if errors:
        raise errors[0]
    for name in old_again:
        # It may be a second name of the file that is in place again.
        _unlink_if_there(kept, name)


def _clear_up(group: Group, top: Folder) -> list[OSError]:
    """Remove what a killed undoing has staged, and the folders that were made."""
    errors: list[OSError] = []
    for path in _parents(group):
        try:
            with top.reach(path) as folder:
                remove_staged(folder, group.owner)
        except OSError as error:
            errors.append(error)
    for path in reversed(group.made_folders):
        try:
            with top.reach(path.parent) as parent:
                parent.remove_folder(path.name)
        except OSError as error:
            # It may hold something by now that is not ours; then it stays.
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                errors.append(error)
    return [error for error in errors if error.errno not in _GONE]


def recover(owner: str, top: Folder, kept: Folder, journal: Folder) -> Recovered | None:
    """Finish or undo a group that a crash has left open; harmless when repeated.

    Returns:
        What became of it; None where no journal of that owner is there. On a conflict
        nothing was changed and the journal stays.

    Raises:
        JournalDamaged: the journal is torn; nothing was changed.
        OSError: it could not be finished; the journal stays.
    """
    name = journal_name(owner)
    remove_staged(journal, owner)  # of a journal that was being written
    if journal.lookup(name) is None:
        return None
    group = _from_document(read_sealed(journal, name), owner)
    states = {
        replacement: _state_of(top, replacement) for replacement in group.replacements
    }
    strangers = tuple(r.destination for r, state in states.items() if state == "other")
    if strangers:
        return Recovered(outcome="conflict", destinations=strangers)
    if any(state == "torn" for state in states.values()):
        rollback(group, top, kept)
        outcome: Literal["finished", "undone"] = "undone"
    else:
        for replacement, state in states.items():
            if state == "old":
                _put_in_place(top, replacement)
            else:  # where old and new content are equal a staged file may be left
                _drop_staged(top, replacement)
        outcome = "finished"
    for parent in _parents(group):
        with contextlib.suppress(FileNotFoundError), top.reach(parent) as folder:
            folder.sync()
    _close(journal, name)
    destinations = tuple(r.destination for r in group.replacements)
    return Recovered(outcome=outcome, destinations=destinations)


def _close(journal: Folder, name: bytes) -> None:
    """Remove a journal whose work is done, if there is one."""
    if _unlink_if_there(journal, name):
        # Should it be back after a power cut, recovery finds nothing left to do.
        with contextlib.suppress(OSError):
            journal.sync()


def _unlink_if_there(folder: Folder, name: bytes) -> bool:
    try:
        folder.unlink(name)
    except FileNotFoundError:
        return False
    return True


def _parents(group: Group) -> tuple[RelPath, ...]:
    """The folders whose names change, each once, in a fixed order."""
    found = {replacement.destination.parent for replacement in group.replacements}
    found.update(path.parent for path in group.made_folders)
    return tuple(sorted(found))


def _content_of(folder: Folder, name: bytes) -> str | None:
    """The digest of what is there; None: nothing, "other": no file that holds still."""
    try:
        return hash_regular(folder, name).sha256
    except FileNotFoundError:
        return None
    except (NotRegular, Unstable):
        return "other"


def _require_unmoved(top: Folder, replacement: Replacement) -> None:
    with top.reach(replacement.destination.parent) as folder:
        now = _content_of(folder, replacement.destination.name)
    if now != replacement.before_sha256:
        raise Moved(0, "changed meanwhile", str(replacement.destination))


def _put_in_place(top: Folder, replacement: Replacement) -> None:
    with top.reach(replacement.destination.parent) as folder:
        folder.rename(replacement.staged, folder, replacement.destination.name)


def _drop_staged(top: Folder, replacement: Replacement) -> None:
    with (
        contextlib.suppress(FileNotFoundError),
        top.reach(replacement.destination.parent) as folder,
    ):
        folder.unlink(replacement.staged)


def _take_back(top: Folder, kept: Folder, replacement: Replacement, owner: str) -> bool:
    """Undo one replacement.

    Returns:
        Whether what was kept may go: the old file is in place, or was not ours to put
        back. False where somebody has edited the new one: the kept one is the last.
    """
    name = replacement.destination.name
    try:
        folder = top.reach(replacement.destination.parent)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return False
    with folder:
        if _unlink_if_there(folder, replacement.staged):
            return True  # it had not been put in place
        now = _content_of(folder, name)
        if now != replacement.after_sha256:
            return now == replacement.before_sha256
        if replacement.kept is None:
            folder.unlink(name)
        elif now != replacement.before_sha256 or _is_another(
            kept, replacement.kept, folder, name
        ):
            put_back_kept(kept, replacement.kept, folder, name, owner)
        folder.sync()
        return True


def _is_another(kept: Folder, kept_name: bytes, folder: Folder, name: bytes) -> bool:
    """Whether a kept file is there and is another than the one in place."""
    found = kept.lookup(kept_name)
    return found is not None and not os.path.samestat(found, folder.stat(name))


def _state_of(
    top: Folder, replacement: Replacement
) -> Literal["new", "old", "torn", "other"]:
    """Where one replacement stands after a crash; "torn": its staged file is gone."""
    now = staged = None
    try:
        with top.reach(replacement.destination.parent) as folder:
            now = _content_of(folder, replacement.destination.name)
            staged = _content_of(folder, replacement.staged)
    except FileNotFoundError:
        pass  # a made folder that has gone again holds nothing
    except OSError as error:
        if error.errno in _NO_FOLDER:
            return "other"
        raise
    if now == replacement.after_sha256:
        return "new"
    if now != replacement.before_sha256:
        return "other"
    return "old" if staged == replacement.after_sha256 else "torn"


def _to_document(group: Group) -> dict[str, object]:
    return {
        "schema": _SCHEMA,
        "owner": group.owner,
        "made_folders": [path_fields(bytes(path)) for path in group.made_folders],
        "replacements": [
            {
                **path_fields(bytes(r.destination), "destination"),
                "staged": os.fsdecode(r.staged),
                "before_sha256": r.before_sha256,
                "after_sha256": r.after_sha256,
                "kept": None if r.kept is None else os.fsdecode(r.kept),
            }
            for r in group.replacements
        ],
    }


def _from_document(document: dict[str, object], owner: str) -> Group:
    if document.get("schema") != _SCHEMA:
        raise JournalDamaged(f"journal of {owner}: schema {document.get('schema')!r}")
    # Sealed by its checksum: what it holds is what `_to_document` has written.
    rows = cast("list[dict[str, object]]", document["replacements"])
    folders = cast("list[dict[str, object]]", document["made_folders"])
    return Group(
        owner=owner,
        replacements=tuple(_replacement(row) for row in rows),
        made_folders=tuple(RelPath.of(path_from_fields(row)) for row in folders),
    )


def _replacement(row: dict[str, object]) -> Replacement:
    before, kept = row["before_sha256"], row["kept"]
    return Replacement(
        destination=RelPath.of(path_from_fields(row, "destination")),
        staged=os.fsencode(str(row["staged"])),
        before_sha256=None if before is None else str(before),
        after_sha256=str(row["after_sha256"]),
        kept=None if kept is None else os.fsencode(str(kept)),
    )
