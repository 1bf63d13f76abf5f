"""The one contract that every containment mode keeps, and the values it speaks in.

Room: containment. Knows what a contained run is asked and what it answers; knows
neither verdicts nor promotion.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from workspace_guard.errors import show_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from workspace_guard.containment.interrupts import Interrupts
    from workspace_guard.files.relpath import RelPath

EscapeKind = Literal["created", "changed", "deleted", "replaced", "renamed", "metadata"]
EscapeEffect = Literal[
    "refused", "absorbed", "restored", "unrestored", "reported", "foreign"
]
RunnerFault = Literal[
    "not_found", "not_executable", "exit", "signal", "timeout", "interrupted"
]
OnEscape = Literal["fail", "fail-on-attempt", "stop", "report"]
EntryType = Literal[
    "file", "folder", "link", "fifo", "socket", "block_device", "character_device"
]


class Enforcement(enum.Enum):
    """How strongly one aspect of a run was held, in fact and not by intention."""

    FULL = "full"
    PARTIAL = "partial"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strength:
    """What was enforced, aspect by aspect."""

    content: Enforcement
    metadata: Enforcement
    processes: Enforcement
    evidence: Enforcement


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Something that the evidence of a run does not cover."""

    kind: str
    path: bytes | None
    """Relative to the workspace; None where the gap has no place."""
    could_hide_escape: bool
    message: str

    @property
    def shown(self) -> str:
        """The gap for people, with its place."""
        return f"{show_path(self.path)}: {self.message}" if self.path else self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryState:
    """What one name was, before or after: enough to tell a person what changed."""

    type: EntryType
    mode: int
    """Permission bits."""
    size_bytes: int | None
    """Of regular files only."""
    sha256: str | None
    """Of regular files whose content was read."""
    target: bytes | None
    """The text of a link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessName:
    """A process, as far as it could be told."""

    pid: int
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Escape:
    """A change outside the step that its command made or tried to make."""

    path: bytes
    """Relative to the workspace; absolute where it lies outside."""
    kind: EscapeKind
    effect: EscapeEffect
    before: EntryState | None
    after: EntryState | None
    quarantine: bytes | None
    """Where what was written is kept, relative to the run's folder."""
    process: ProcessName | None = None
    at: str | None = None
    """When it was first seen (RFC 3339, UTC); None where nothing saw it happen."""
    message: str | None = None
    """Why it could not be put back, or what else a person should know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A process of the command's tree that was there when the command had ended."""

    pid: int
    command: str
    ended: Literal["exited", "terminated", "killed", "alive"]
    target_open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the whole tree has used."""

    cpu_s: float
    max_rss_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerResult:
    """How the command itself ended."""

    error: RunnerFault | None
    exit_code: int | None
    signal: int | None
    timed_out: bool
    message: str = ""
    """For people: which signal, which program was not found, who was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stdio:
    """Where the command's streams go; None inherits the guard's own."""

    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None
    terminal: tuple[int, int] | None = None
    """Rows and columns of a terminal of the command's own; None gives it pipes."""
    size_of: int | None = None
    """The terminal whose size the command's follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds the run."""

    timeout_s: float | None = None
    grace_s: float = 1.0
    """How long what is left of the tree may go on once the command has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosure:
    """Where a command runs and what of it must be watched."""

    workspace: Path
    """Absolute, resolved."""
    step: RelPath | None
    """The one folder where the command may write, relative to the workspace."""
    step_path: Path
    """The same, absolute; it may lie outside the workspace, then `step` is None."""
    run_id: str
    log: Path
    """Where all output of the command is kept; appended to."""
    quarantine: Path
    """A folder that need not be there yet; escapes name paths in its parent."""
    environment: Mapping[str, str]
    selections: tuple[RelPath, ...] = ()
    """The tops below the step whose files must hold still once the command ended."""
    hashed: frozenset[RelPath] = frozenset()
    """Parent files that are hashed in any case: inputs and destinations."""
    on_escape: OnEscape = "fail"
    verify_content: bool = False
    max_snapshot_bytes: int | None = None
    keep_snapshot: bool = False
    stdio: Stdio = field(default_factory=Stdio)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is going on, for a person who waits."""

    stage: Literal[
        "staging",
        "snapshot",
        "running",
        "ending",
        "comparing",
        "restoring",
        "judging",
        "promoting",
    ]
    files: int = 0
    """Files captured, or written in the parent so far, as the stage has it."""
    escapes: int = 0
    interrupted: bool = False
    """Whether Ctrl-C went to the command, so that a second one ends the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainedRun:
    """What came of it. The parent is as it was, but for what the escapes say."""

    runner: RunnerResult
    escapes: tuple[Escape, ...]
    processes: tuple[Leftover, ...]
    moved_targets: tuple[bytes, ...]
    """Files of `selections` that changed after the command had ended."""
    strength: Strength
    gaps: tuple[Gap, ...]
    usage: Usage
    stopped_for_escape: bool = False
    """Whether the tree was ended at the first escape (`on_escape="stop"`)."""
    interrupted_by: int | None = None
    """The signal to the guard that ended the run."""
    snapshot_id: str | None = None
    """The snapshot that was kept."""


class Containment(Protocol):
    """A way to run a command so that its writes stay in, or are undone."""

    @property
    def name(self) -> Literal["deny", "absorb", "detect"]:
        """The mode, as the record spells it."""
        ...

    def contain(
        self,
        enclosure: Enclosure,
        command: tuple[str, ...],
        limits: Limits,
        interrupts: Interrupts,
        on_progress: Callable[[Progress], None],
    ) -> ContainedRun:
        """Run the command to its end and account for every change outside the step.

        Returns:
            When this returns no process of the command is alive (or a gap says so),
            and the parent is as it was (or an escape with effect `unrestored` says
            where not).

        Raises:
            GuardError: the command was not started, and the parent is untouched.
        """
        ...
