"""Where things lie in the state folder; the one module that spells these paths.

Room: files. Knows names and owner-only folders; knows nothing of what is written there.

    <state>/<workspace name>-<hash of its real path>/
      lock       who holds the workspace
      journal/   open runs and open promotions; empty when all is well
      runs/<run id>/   record.json record.sha256 execution.log quarantine/ previous/
      snapshots/       manifests, and packs of content
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workspace_guard.errors import StateUnusable
from workspace_guard.files.tree import Folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class RunFolder:
    """What one run keeps."""

    path: Path

    @property
    def run_id(self) -> str:
        """The run's id, which is the folder's name."""
        return self.path.name

    @property
    def record(self) -> Path:
        """The account of the run."""
        return self.path / "record.json"

    @property
    def record_digest(self) -> Path:
        """The record's SHA-256, written after it."""
        return self.path / "record.sha256"

    @property
    def log(self) -> Path:
        """All that the command has written to its standard output and error."""
        return self.path / "execution.log"

    @property
    def quarantine(self) -> Path:
        """What was written in the wrong place."""
        return self.path / "quarantine"

    @property
    def previous(self) -> Path:
        """The content that a promotion has replaced."""
        return self.path / "previous"

    @property
    def scratch(self) -> Path:
        """The command's private TMPDIR; gone when the run has ended."""
        return self.path / "tmp"


@dataclass(frozen=True, slots=True)
class WorkspaceState:
    """The state of one workspace."""

    path: Path

    @property
    def journal(self) -> Path:
        """Open runs and open promotions."""
        return self.path / "journal"

    @property
    def runs(self) -> Path:
        """One folder a run."""
        return self.path / "runs"

    @property
    def snapshots(self) -> Path:
        """The snapshot store."""
        return self.path / "snapshots"

    def run(self, run_id: str) -> RunFolder:
        """The folder of one run."""
        return RunFolder(self.runs / run_id)

    def make(self) -> None:
        """Make the folders of this workspace, owner-only.

        Raises:
            StateUnusable: one cannot be made, or is no folder of ours.
        """
        # A root that somebody chose (/tmp, a share) keeps the rights that it has.
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StateUnusable(self.path.parent, _fact(error)) from error
        for folder in (self.path, self.journal, self.runs, self.snapshots):
            make_private(folder)


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The state folder as a whole."""

    root: Path

    def of(self, workspace: Path) -> WorkspaceState:
        """The state of a workspace, by its real path."""
        real = os.fsencode(workspace)
        key = hashlib.sha256(real).hexdigest()[:12]
        name = os.fsdecode(os.path.basename(real)) or "root"
        # A name from disk may be as long as a file system allows; leave room for ours.
        return WorkspaceState(self.root / f"{_shorten(name)}-{key}")

    def workspaces(self) -> Iterator[WorkspaceState]:
        """All workspaces that have a state here, in the order of their names.

        Raises:
            StateUnusable: the state folder is no folder, or cannot be read.
        """
        try:
            names = sorted(os.listdir(self.root))
        except FileNotFoundError:
            return
        except OSError as error:
            raise StateUnusable(self.root, _fact(error)) from error
        for name in names:
            state = WorkspaceState(self.root / name)
            if state.runs.is_dir():
                yield state


_LONGEST_NAME_BYTES = 200


def _shorten(name: str) -> str:
    raw = os.fsencode(name)
    if len(raw) <= _LONGEST_NAME_BYTES:
        return name
    return raw[:_LONGEST_NAME_BYTES].decode("utf-8", "ignore")


def make_private(folder: Path) -> None:
    """Make a folder that only its owner can enter, or see that it is one.

    Raises:
        StateUnusable: it cannot be made, is no folder, is a link, belongs to somebody
            else, or cannot be closed to others. Nothing else was touched.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        with Folder.open(folder) as opened:
            found = opened.own_stat()
            if not hasattr(os, "geteuid"):  # Windows: the profile's own rights hold
                return
            if found.st_uid != os.geteuid():
                raise StateUnusable(folder, f"belongs to uid {found.st_uid}, not to us")
            if found.st_mode & _OTHERS and opened.fd is not None:
                os.fchmod(opened.fd, 0o700)
    except OSError as error:
        raise StateUnusable(folder, _fact(error)) from error


def _fact(error: OSError) -> str:
    return error.strerror or str(error)
