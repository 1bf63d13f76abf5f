"""Every way in which the guard itself can fail, with its exit status.

Room: the ground. A step that misbehaves is a verdict, a value; what stands here is
raised when the guard cannot do its work. The table in `docs/reference/exit-status.md`
is made from these classes.
"""

from __future__ import annotations

import os
from typing import ClassVar

PathLike = str | bytes | os.PathLike[str]


def show_path(path: PathLike) -> str:
    r"""Spell a path for a message: exact where printable, escaped elsewhere.

    Control characters and bytes that are no UTF-8 become `\xNN` (or `\n`), so that a
    hostile name can neither hide a line nor move the cursor.
    """
    text = os.fsdecode(path)
    return "".join(_show_char(char) for char in text)


_STRAY_BYTES = range(0xDC80, 0xDD00)  # where surrogateescape keeps undecoded bytes


def _show_char(char: str) -> str:
    if ord(char) in _STRAY_BYTES:
        return f"\\x{ord(char) & 0xFF:02x}"
    if char.isprintable():
        return char
    return char.encode("unicode_escape").decode("ascii")


class GuardError(Exception):
    """The root of all errors of this package.

    Args:
        message: the path and the fact, without the next step.
        hint: the next step; the class has a usual one.
    """

    exit_status: ClassVar[int] = 70
    msgid: ClassVar[str] = "internal"
    usual_hint: ClassVar[str] = "this is a bug; please report what led to it"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = self.usual_hint if hint is None else hint

    def __reduce__(self) -> tuple[object, ...]:
        """Come back from another process with the same facts and notes."""
        return _revived, (type(self), *self.args), self.__dict__


def _revived(kind: type[GuardError], *args: object) -> GuardError:
    return kind.__new__(kind, *args)  # its constructor takes facts, not the message


class ContractError(GuardError):
    """The contract contradicts itself or names something that cannot be."""

    exit_status = 10
    msgid = "contract-invalid"
    usual_hint = "`wsguard run --help` says what each option takes"


class TargetPathError(ContractError):
    """A target or destination path that no step may have."""

    msgid = "target-path-invalid"
    usual_hint = (
        "name it relative to the step; another place in the workspace goes after ="
    )

    def __init__(self, path: PathLike, fact: str, *, hint: str | None = None) -> None:
        super().__init__(f"target {show_path(path)!r}: {fact}", hint=hint)


class InputError(GuardError):
    """An input is missing, no regular file, outside, or would not hold still."""

    exit_status = 10
    msgid = "input-unusable"
    usual_hint = "an input is a regular file, named relative to the workspace"

    def __init__(self, path: PathLike, fact: str, *, hint: str | None = None) -> None:
        super().__init__(f"input {show_path(path)}: {fact}", hint=hint)


class StepNameTaken(GuardError):
    """The folder of the step is there already, or cannot bear that name."""

    exit_status = 10
    msgid = "step-name"
    usual_hint = "choose another --name"


class WorkspaceUnusable(GuardError):
    """The workspace is missing, no folder, a link, or a place that must not be one."""

    exit_status = 11
    msgid = "workspace-unusable"
    usual_hint = "name another folder with -w/--workspace"

    def __init__(self, path: PathLike, fact: str, *, hint: str | None = None) -> None:
        super().__init__(f"workspace {show_path(path)}: {fact}", hint=hint)


class SnapshotTooLarge(WorkspaceUnusable):
    """The content of the workspace is more than a snapshot may hold."""

    msgid = "snapshot-too-large"
    usual_hint = "allow more with --max-snapshot BYTES, or name a smaller folder"


class WorkspaceHeld(GuardError):
    """Another run holds the workspace.

    Args:
        path: the workspace.
        pid: the holder's process, or None where the lock file could not tell.
        run_id: the holder's run, or None.
        hint: where waiting is not the usual next step.
    """

    exit_status = 12
    msgid = "workspace-held"
    usual_hint = "wait for it with --wait SECONDS, or end that run"

    def __init__(
        self,
        path: PathLike,
        *,
        pid: int | None,
        run_id: str | None,
        hint: str | None = None,
    ) -> None:
        holder = f"process {pid}" if pid is not None else "another process"
        run = f" (run {run_id})" if run_id else ""
        text = f"workspace {show_path(path)} is held by {holder}{run}"
        super().__init__(text, hint=hint)
        self.pid = pid
        self.run_id = run_id


class ModeUnavailable(GuardError):
    """The containment mode that was asked for by name is not to be had here."""

    exit_status = 13
    msgid = "mode-unavailable"
    usual_hint = "`wsguard doctor` lists what this machine can enforce"


class StateUnusable(GuardError):
    """The state folder cannot be made, read or written."""

    exit_status = 14
    msgid = "state-unusable"
    usual_hint = "choose another with --state-dir or WORKSPACE_GUARD_STATE_DIR"

    def __init__(self, path: PathLike, fact: str, *, hint: str | None = None) -> None:
        super().__init__(f"state folder {show_path(path)}: {fact}", hint=hint)


class RecoveryIncomplete(GuardError):
    """Nothing ran: what an earlier crash left open could not be closed first."""

    exit_status = 15
    msgid = "recovery-incomplete"
    usual_hint = "run `wsguard recover` on the workspace and read what it names"


class RecoveryConflict(GuardError):
    """Recovery met an edit that is newer than the crash, and left it alone."""

    exit_status = 44
    msgid = "recovery-conflict"
    usual_hint = (
        "look at the named paths; `wsguard recover` again once they are settled"
    )


class RecordMissing(GuardError):
    """No run of that id is in the state folder."""

    exit_status = 50
    msgid = "record-missing"
    usual_hint = "`wsguard runs list` shows the runs that are kept"


class RecordDamaged(GuardError):
    """A run record does not agree with its digest, or cannot be read."""

    exit_status = 51
    msgid = "record-damaged"
    usual_hint = "nothing is done by it; the run's other files are beside it"


class StoreDamaged(GuardError):
    """A snapshot's manifest or content does not agree with its digest."""

    exit_status = 52
    msgid = "store-damaged"
    usual_hint = (
        "nothing was restored from it; `wsguard recover --accept-current` gives it up"
    )


class StoreIncomplete(GuardError):
    """A snapshot was never finished; nothing is restored from such a one."""

    exit_status = 53
    msgid = "store-incomplete"
    usual_hint = (
        "nothing was restored from it; `wsguard recover --accept-current` gives it up"
    )


class JournalDamaged(GuardError):
    """A journal of this workspace is torn or has been changed."""

    exit_status = 54
    msgid = "journal-damaged"
    usual_hint = (
        "nothing was changed; `wsguard recover --accept-current` gives the run up"
    )


class StateWriteFailed(GuardError):
    """A record or the store could not be written: disk full, quota, I/O error."""

    exit_status = 55
    msgid = "state-write-failed"
    usual_hint = "make room, or choose another place with --state-dir"


class RunNotClosed(GuardError):
    """A run is over, but its record or its journal could not be brought up to date."""

    exit_status = 56
    msgid = "run-not-closed"
    usual_hint = "mend the cause, then `wsguard recover` closes the run"


class NotPutBack(GuardError):
    """Recovery could not put back all that a run which was cut off had changed."""

    exit_status = 57
    msgid = "not-put-back"
    usual_hint = "what it had written is in the run's quarantine; look at the paths"


class PromotionFailed(GuardError):
    """The targets could not be put in place; each destination is the old one again."""

    exit_status = 45
    msgid = "promotion-failed"
    usual_hint = "the step still holds its targets; mend the cause and run it again"


class Interrupted(GuardError):
    """A signal asked the guard to stop before the command had run.

    Args:
        signum: the signal, SIGINT or SIGTERM.
    """

    exit_status = 130
    msgid = "interrupted"
    usual_hint = "nothing has run and nothing has changed; start it again"

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by signal {signum} before the command ran")
        self.signum = signum
        self.exit_code = 128 + signum


class Terminated(Interrupted):
    """SIGTERM asked the guard to stop before the command had run."""

    exit_status = 143
    msgid = "terminated"
