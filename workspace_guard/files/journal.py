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
import hashlib
import json
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from workspace_guard.errors import JournalDamaged
from workspace_guard.files.digest import hash_regular
from workspace_guard.files.relpath import RelPath, path_fields, path_from_fields
from workspace_guard.files.replace import (
    staged_file,
    staged_name,
    to_json,
    write_file,
)
from workspace_guard.files.tree import write_all

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workspace_guard.files.tree import Folder

_SCHEMA = "workspace-guard/promotion-journal/1"


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
    where = os.fsdecode(os.path.join(folder.path, name))
    if hashlib.sha256(body).hexdigest().encode() != seal:
        raise JournalDamaged(f"journal {where}: its checksum does not agree")
    return cast("dict[str, object]", json.loads(body))


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
            again and no staged file is left, unless the error carries a note that
            undoing failed too: then the journal stays and `recover` finishes the work.
    """
    name = journal_name(group.owner)
    many = len(group.replacements) > 1
    try:
        # Kept names must be there for good before anything rests on them.
        kept.sync()
        for replacement in group.replacements:
            _require_unmoved(top, replacement)
        if many:
            write_sealed(journal, name, _to_document(group), owner=group.owner)
        for replacement in group.replacements:
            _put_in_place(top, replacement)
        for parent in _parents(group):
            with top.reach(parent) as folder:
                folder.sync()
    except OSError as error:
        if _undo_after(error, group, top, kept) and many:
            with contextlib.suppress(FileNotFoundError):
                journal.unlink(name)
        raise
    if many:
        journal.unlink(name)


def rollback(group: Group, top: Folder, kept: Folder) -> None:
    """Make every destination the old one again and remove what was staged.

    Does nothing to a destination that holds neither the old nor the new content: that
    is somebody else's edit.

    Raises:
        OSError: of the first destination that could not be put back; the others were
            tried all the same.
    """
    first: OSError | None = None
    for replacement in group.replacements:
        try:
            _take_back(top, kept, replacement, group.owner)
        except OSError as error:
            first = first or error
    for path in reversed(group.made_folders):
        # It may hold something by now that is not ours; then it stays.
        with contextlib.suppress(OSError), top.reach(path.parent) as parent:
            parent.remove_folder(path.name)
    if first is not None:
        raise first
    for replacement in group.replacements:
        # A kept file may be a second name of the one that is in place again.
        if replacement.kept is not None:
            with contextlib.suppress(FileNotFoundError):
                kept.unlink(replacement.kept)


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
                _remove_staged(top, replacement)
        outcome = "finished"
    for parent in _parents(group):
        with contextlib.suppress(FileNotFoundError), top.reach(parent) as folder:
            folder.sync()
    journal.unlink(name)
    journal.sync()
    destinations = tuple(r.destination for r in group.replacements)
    return Recovered(outcome=outcome, destinations=destinations)


def _undo_after(error: OSError, group: Group, top: Folder, kept: Folder) -> bool:
    try:
        rollback(group, top, kept)
    except OSError as second:
        error.add_note(f"and undoing it failed too: {second}")
        return False
    return True


def _parents(group: Group) -> tuple[RelPath, ...]:
    """The folders whose names change, each once, in a fixed order."""
    found = {replacement.destination.parent for replacement in group.replacements}
    found.update(path.parent for path in group.made_folders)
    return tuple(sorted(found))


def _content_of(folder: Folder, name: bytes) -> str | None:
    """The digest of what is there; None for nothing, "other" for no regular file."""
    found = folder.lookup(name)
    if found is None:
        return None
    if not stat.S_ISREG(found.st_mode):
        return "other"
    return hash_regular(folder, name).sha256


def _require_unmoved(top: Folder, replacement: Replacement) -> None:
    with top.reach(replacement.destination.parent) as folder:
        now = _content_of(folder, replacement.destination.name)
    if now != replacement.before_sha256:
        raise Moved(0, "changed meanwhile", str(replacement.destination))


def _put_in_place(top: Folder, replacement: Replacement) -> None:
    with top.reach(replacement.destination.parent) as folder:
        folder.rename(replacement.staged, folder, replacement.destination.name)


def _remove_staged(top: Folder, replacement: Replacement) -> None:
    with (
        contextlib.suppress(FileNotFoundError),
        top.reach(replacement.destination.parent) as folder,
    ):
        folder.unlink(replacement.staged)


def _take_back(top: Folder, kept: Folder, replacement: Replacement, owner: str) -> None:
    with top.reach(replacement.destination.parent) as folder:
        name = replacement.destination.name
        with contextlib.suppress(FileNotFoundError):
            folder.unlink(replacement.staged)
        now = _content_of(folder, name)
        if now != replacement.after_sha256 or now == replacement.before_sha256:
            return
        if replacement.kept is None:
            folder.unlink(name)
        else:
            put_back_kept(kept, replacement.kept, folder, name, owner)
        folder.sync()


def put_back_kept(
    kept: Folder, kept_name: bytes, folder: Folder, name: bytes, owner: str
) -> None:
    """Put a kept file back under its old name, as the file that it was if possible.

    The kept file stays. Where it is a second name of the old file, that file returns
    with all that it had; a copy has to be given its mode, owner and times.
    """
    staged = staged_name(owner)
    try:
        kept.link(kept_name, folder, staged)
    except OSError:
        copy_as_is(kept, kept_name, folder, staged)
    folder.rename(staged, folder, name)


def copy_as_is(source: Folder, name: bytes, to: Folder, new_name: bytes) -> None:
    """Copy a regular file with its mode, its times and, where we may, its owner."""
    from_fd = source.open_regular(name)
    try:
        found = os.fstat(from_fd)
        with staged_file(to, new_name) as fd:
            while chunk := os.read(from_fd, 1 << 20):
                write_all(fd, chunk)
            take_over_attributes(from_fd, fd)
            os.utime(fd, ns=(found.st_atime_ns, found.st_mtime_ns))
    finally:
        os.close(from_fd)


def take_over_attributes(from_fd: int, to_fd: int) -> None:
    """Give a new file the owner, mode, ACL and attributes of the one it replaces.

    Owner first, since a change of owner clears setuid bits and capabilities.

    Source: chown(2), S35.
    """
    from workspace_guard.files.xattrs import carry_over  # noqa: PLC0415  # rarely used

    found = os.fstat(from_fd)
    if hasattr(os, "fchown"):
        with contextlib.suppress(PermissionError):
            os.fchown(to_fd, found.st_uid, found.st_gid)
    if hasattr(os, "fchmod"):
        os.fchmod(to_fd, stat.S_IMODE(found.st_mode))
    carry_over(from_fd, to_fd)


def _state_of(
    top: Folder, replacement: Replacement
) -> Literal["new", "old", "torn", "other"]:
    """Where one replacement stands after a crash; "torn": its staged file is gone."""
    try:
        with top.reach(replacement.destination.parent) as folder:
            now = _content_of(folder, replacement.destination.name)
            if now == replacement.after_sha256:
                return "new"
            if now != replacement.before_sha256:
                return "other"
            staged = _content_of(folder, replacement.staged)
            return "old" if staged == replacement.after_sha256 else "torn"
    except OSError:
        return "other"


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
