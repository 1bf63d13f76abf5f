"""What this machine offers to the modes, found out by trying it.

Room: containment. Each probe does the thing in a place of its own and undoes it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workspace_guard.files.tree import BY_DESCRIPTOR
from workspace_guard.files.xattrs import read_xattrs, write_xattrs

if TYPE_CHECKING:
    from collections.abc import Generator

_FEW_WATCHES = 65_536
_PROBE = ((b"user.wsguard.probe", b"1"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facility:
    """One thing that a mode rests on."""

    name: str
    available: bool
    detail: str
    """What was seen, in a few words."""
    advice: str | None = None
    """What to change on this machine; None where nothing has to be."""


def facilities(state_root: Path) -> tuple[Facility, ...]:
    """Try what the modes need.

    Args:
        state_root: the state folder; where it is not there yet, its nearest parent
            that is, is tried.
    """
    return (
        _descriptors(),
        _subreaper(),
        _watches(),
        *_of_the_state_folder(state_root),
    )


def _descriptors() -> Facility:
    return Facility(
        name="files by folder descriptor",
        available=BY_DESCRIPTOR,
        detail="openat and its kin" if BY_DESCRIPTOR else "by path, with a look first",
    )


def _subreaper() -> Facility:
    linux = sys.platform == "linux"
    return Facility(
        name="child subreaper",
        available=linux,
        detail=(
            "daemons of a step are found and ended"
            if linux
            else "a daemon that leaves its session is not held"
        ),
    )


def _watches() -> Facility:
    try:
        limit = int(Path("/proc/sys/fs/inotify/max_user_watches").read_text())
        queue = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    except (OSError, ValueError):
        return Facility(
            name="live watch", available=True, detail="by this platform's own means"
        )
    few = limit < _FEW_WATCHES
    return Facility(
        name="live watch (inotify)",
        available=True,
        detail=f"{limit:,} folders, {queue:,} events in its queue",
        advice="sysctl fs.inotify.max_user_watches=524288" if few else None,
    )


def _of_the_state_folder(root: Path) -> tuple[Facility, ...]:
    place = root
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with _probe_folder(place) as folder:
            file = folder / "probe"
            file.write_bytes(b"probe")
            return (
                Facility(name="state folder", available=True, detail="can be written"),
                _attributes(file),
                _links(file),
            )
    except OSError as error:
        return (
            Facility(
                name="state folder",
                available=False,
                detail=f"{error.filename}: {error.strerror}",
                advice="choose another with --state-dir or WORKSPACE_GUARD_STATE_DIR",
            ),
        )


@contextlib.contextmanager
def _probe_folder(place: Path) -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix=".wsguard-probe-", dir=place) as folder:
        yield Path(folder)


def _attributes(file: Path) -> Facility:
    with contextlib.suppress(OSError):
        write_xattrs(os.fsencode(file), _PROBE)
    there = read_xattrs(os.fsencode(file)) != ()
    detail = "kept in quarantine too" if there else "not kept in quarantine"
    return Facility(name="extended attributes", available=there, detail=detail)


def _links(file: Path) -> Facility:
    try:
        os.link(file, file.with_name("second"))
    except OSError as error:
        fact = f"{error.strerror}; old content is kept as copies"
        return Facility(name="hard links", available=False, detail=fact)
    return Facility(
        name="hard links", available=True, detail="old content costs no copy"
    )
