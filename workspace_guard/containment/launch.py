"""What is asked of a supervised command, and what is told of it.

Room: containment. Values, and the interface that two ways of supervising share:
`supervision` with a process of its own that holds the tree, `plain` without.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, Self

from workspace_guard.containment.base import (
    RunnerResult,
    Stdio,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path
    from types import TracebackType

    from workspace_guard.containment.base import (
        Leftover,
        ProcessName,
        RunnerFault,
        Usage,
    )

RUN_VARIABLE = "WSGUARD_RUN"
"""The environment variable by which a run's processes are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A command and all that it is started with."""

    command: tuple[str, ...]
    cwd: Path
    """Absolute."""
    environment: Mapping[str, str]
    """All of it. With WSGUARD_RUN in it the tree is found even if its holder dies."""
    log: Path
    """Gets all output; made if it is not there, appended to if it is."""
    stdio: Stdio = field(default_factory=Stdio)
    timeout_s: float | None = None
    hold_fds: tuple[int, ...] = ()
    """Kept open until the tree is gone, out of the command's reach: locks."""
    heartbeat: Path | None = None
    """Written every half second while the tree lives, and once when it is gone."""
    own_session: bool = True
    """False: the command stays in the guard's session and process group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The program runs."""

    pid: int
    whole_tree: bool
    """Whether daemons that leave their parent and session are held as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptKey:
    """Ctrl-C was typed; the command's terminal has got it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The command has ended, or could not be started; its tree may live on."""

    result: RunnerResult
    lost: bool = False
    """The supervisor died or stopped answering: how the command ended is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """All output is where it goes; nothing more will come."""


How = Literal["exited", "terminated", "killed", "alive"]
Event = Started | InterruptKey | Ended | Drained


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeEnd:
    """What became of the tree."""

    leftovers: tuple[Leftover, ...]
    usage: Usage
    log_fault: str | None = None
    """Why the log does not hold all output."""
    lost: bool = False
    """The supervisor was lost, so that somebody may have got away."""


class Supervised(Protocol):
    """A command under supervision. One thread uses it, any thread."""

    @property
    def pid(self) -> int:
        """The process that holds the tree."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End what still lives; wait for slow destinations only if all went well."""
        ...

    def next_event(
        self, timeout_s: float | None, wake_fds: Collection[int] = ()
    ) -> Event | None:
        """Wait for what happens next.

        Args:
            timeout_s: how long to wait; None: for ever.
            wake_fds: descriptors that end the wait when they can be read.

        Returns:
            None where the time is up, or a descriptor of `wake_fds` may be readable.
        """
        ...

    def send_signal(self, signum: int) -> None:
        """Signal the command's foreground group, as the terminal's keys would."""
        ...

    def resize(self, rows: int, columns: int) -> None:
        """Give the command's terminal another size."""
        ...

    def stop(self, reason: str) -> None:
        """End the command; `Ended` will say `interrupted`, with this reason."""
        ...

    def leftovers(self) -> tuple[ProcessName, ...]:
        """Who of the tree is alive now."""
        ...

    def end_tree(self, grace_s: float, holders: Collection[int] = ()) -> TreeEnd:
        """See the whole tree to its end: grace, SIGTERM, SIGKILL.

        Args:
            grace_s: how long what is left may go on by itself.
            holders: pids that had a target open for writing.
        """
        ...


def runner_result(
    code: int | None, *, timed_out: bool = False, stopped: str | None = None
) -> RunnerResult:
    """Say how the command ended, the strongest reason first.

    Args:
        code: its exit code; negative: the signal that ended it; None: nothing could.
        timed_out: whether it was ended because its time was up.
        stopped: why it was ended, where somebody asked for that.
    """
    signum = -code if code is not None and code < 0 else None
    fault: RunnerFault | None = None
    message = ""
    if stopped is not None:
        fault, message = "interrupted", stopped
    elif timed_out:
        fault, message = "timeout", "ran longer than its time limit"
    elif signum is not None:
        fault, message = "signal", f"ended by {_signal_name(signum)}"
    elif code is not None and code > 0:
        fault, message = "exit", f"exited with status {code}"
    return RunnerResult(
        error=fault,
        exit_code=code if signum is None else None,
        signal=signum,
        timed_out=timed_out,
        message=message,
    )


def unknown_result(fault: RunnerFault, message: str) -> RunnerResult:
    """Say why there is no exit status: the command never ran, or was lost."""
    return RunnerResult(
        error=fault, exit_code=None, signal=None, timed_out=False, message=message
    )


def _signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # a real-time signal between the two that have names
        return f"signal {signum}"
