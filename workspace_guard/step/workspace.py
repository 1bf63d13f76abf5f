"""The public door: a workspace, and what can be done with it.

Room: step. Checks that a folder may be a workspace, holds it, sees that it is whole,
and sends a step down the street.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from workspace_guard.containment.base import Progress, Stdio
from workspace_guard.containment.choose import choose, survey
from workspace_guard.containment.detect import Detect
from workspace_guard.containment.interrupts import Interrupts
from workspace_guard.errors import (
    ContractError,
    GuardError,
    Interrupted,
    RecoveryConflict,
    RecoveryIncomplete,
    StateUnusable,
    WorkspaceHeld,
    WorkspaceUnusable,
)
from workspace_guard.files.layout import StateLayout, make_private
from workspace_guard.files.lock import WorkspaceLock, living_holder
from workspace_guard.files.mounts import remove_unmounted
from workspace_guard.files.tree import Folder
from workspace_guard.step.archive import find_run, new_run, read_record, runs_of
from workspace_guard.step.contract import Contract, Mode
from workspace_guard.step.openrun import open_runs
from workspace_guard.step.recover import Recovery, recover, sweep_unstarted
from workspace_guard.step.run import Site, run_step

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from workspace_guard.files.layout import RunFolder
    from workspace_guard.step.record import RunRecord


def state_layout(state_dir: str | os.PathLike[str] | None = None) -> StateLayout:
    """The state folder: the one given, or the platform's own.

    Args:
        state_dir: None takes what `platformdirs` says.

    Raises:
        StateUnusable: it can be no path, or this user has no place of its own.
    """
    if state_dir is not None:
        given = Path(state_dir)
        try:
            return StateLayout(given.absolute().resolve())
        except (OSError, RuntimeError, ValueError) as error:  # a loop, or NUL
            raise StateUnusable(given, f"cannot be reached: {error}") from error
    import platformdirs  # noqa: PLC0415  # only where no folder was given

    try:
        found = platformdirs.user_state_path("workspace-guard", appauthor=False)
    except RuntimeError:  # its newer versions say so, its older ones leave the `~`
        found = Path("~")
    if not found.is_absolute():
        raise StateUnusable(found, "this user has no home folder that is known")
    return StateLayout(found.resolve())


class Workspace:
    """A folder that stays as it is, except by promotion.

    Safe to share between threads: it holds no state of its own between calls, and the
    lock of a workspace keeps two runs in it apart.

    Args:
        path: the folder; links above its last part are resolved.
        state_dir: where records, journals and snapshots are kept; None takes the
            platform's folder.
        force: allow `/`, the home folder and a link as the workspace.

    Raises:
        WorkspaceUnusable: missing, no folder, a link, the state folder itself, or a
            place that must not be a workspace.
        StateUnusable: the state folder lies in the workspace.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        state_dir: str | os.PathLike[str] | None = None,
        *,
        force: bool = False,
    ) -> None:
        self.path = _lawful_workspace(Path(path), force=force)
        self.layout = state_layout(state_dir)
        _require_apart(self.path, self.layout.root)
        self.state = self.layout.of(self.path)

    def __repr__(self) -> str:
        return f"Workspace({os.fspath(self.path)!r})"

    def run_step(  # noqa: PLR0913  # keywords of one call, each with a default
        self,
        command: Sequence[str],
        contract: Contract | None = None,
        mode: Mode = "auto",
        on_event: Callable[[Progress], None] | None = None,
        *,
        wait_s: float = 0.0,
        environment: Mapping[str, str] | None = None,
        stdio: Stdio | None = None,
        interrupts: Interrupts | None = None,
    ) -> RunRecord:
        """Run a command as one contained step.

        Args:
            command: the program and its arguments; no shell is between.
            contract: what the step gets and must leave; None is `Contract()`.
            mode: the containment; `auto` takes the contract's, and then the strongest.
            on_event: told what is going on, in the thread that called.
            wait_s: how long to wait for a workspace that another run holds.
            environment: what the command's is made from; None takes this process's.
            stdio: where the command's streams go; None passes ours on.
            interrupts: how SIGINT and SIGTERM arrive; None listens for them where
                this is the main thread and nobody else has taken them, and passes
                them on once the parent is whole.

        Returns:
            The record of the run; a step that misbehaved is a verdict in it.

        Raises:
            GuardError: the step could not be run; nothing of it is left.
            KeyboardInterrupt: SIGINT ended the run; its record is written.
        """
        words = _lawful_command(command)
        contract = contract or Contract()
        chosen = choose(contract.mode if mode == "auto" else mode, survey())

        def run(arrivals: Interrupts) -> RunRecord:
            with self._held(wait_s, arrivals) as (run_folder, lock):
                recovery = self._recover_before_a_run()
                site = Site(
                    workspace=self.path,
                    state=self.state,
                    run=run_folder,
                    containment=Detect(self.state, lock),
                    mode=chosen,
                    interrupts=arrivals,
                    caller_environment=(
                        os.environ if environment is None else environment
                    ),
                    stdio=stdio or Stdio(),
                    on_event=on_event or _ignore,
                    warnings=tuple(run.shown for run in recovery.runs),
                )
                return run_step(site, words, contract)

        if interrupts is not None:
            return run(interrupts)
        return _with_own_signals(run) if _may_listen() else run(Interrupts())

    def recover(self, *, accept_current: bool = False, wait_s: float = 0.0) -> Recovery:
        """Finish or undo what a crash has left open.

        Args:
            accept_current: give up an open promotion whose destinations were edited
                meanwhile, leaving every file as it is now.
            wait_s: how long to wait for a workspace that another run holds.

        Returns:
            What was done; nothing where nothing was open.

        Raises:
            WorkspaceHeld: a run is going on.
            GuardError: the journal or the store is broken; what it names was not
                touched.
        """
        with self._held(wait_s, Interrupts()) as (run, _lock):
            _remove_run(run)
            return recover(self.path, self.state, accept_current=accept_current)

    def runs(self) -> list[str]:
        """The ids of this workspace's runs, oldest first."""
        return [run.run_id for run in runs_of(self.state)]

    def record(self, run_id: str = "latest") -> RunRecord:
        """Read the record of a run.

        Raises:
            RecordMissing: there is no such run, or it has no record yet.
            RecordDamaged: it does not agree with its digest.
        """
        return read_record(find_run(self.layout, self.state, run_id))

    @contextlib.contextmanager
    def _held(
        self, wait_s: float, interrupts: Interrupts
    ) -> Generator[tuple[RunFolder, WorkspaceLock]]:
        """Hold the workspace as a new run, whose folder goes if nothing comes of it."""
        self.state.make()
        run = new_run(self.state)
        try:
            with (
                Folder.open(self.state.path) as folder,
                WorkspaceLock.acquire(
                    folder,
                    os.fsencode(self.path),
                    run_id=run.run_id,
                    wait_s=wait_s,
                    check=interrupts.check,
                ) as lock,
            ):
                self._refuse_nested()
                sweep_unstarted(self.state)
                make_private(run.path)  # whoever held it may have swept it too
                yield run, lock
        except GuardError:
            if run.run_id not in open_runs(self.state):
                _remove_run(run)  # nothing has run; else it is all that tells of it
            raise

    def _refuse_nested(self) -> None:
        """Refuse a run beside one in a workspace that holds this one, or lies in it.

        Each would take the other's work for an escape and undo it. Both hold their own
        lock before they look, so that of two that begin at once at least one sees the
        other.

        Raises:
            WorkspaceHeld: naming the other run.
        """
        for state in self.layout.workspaces():
            if state.path == self.state.path:
                continue
            with contextlib.suppress(OSError), Folder.open(state.path) as folder:
                other = living_holder(folder)
                if other is not None and _overlap(other.workspace, bytes(self.path)):
                    raise WorkspaceHeld(
                        other.workspace, pid=other.pid, run_id=other.run_id
                    )

    def _recover_before_a_run(self) -> Recovery:
        try:
            recovery = recover(self.path, self.state)
        except GuardError as error:
            raise RecoveryIncomplete(error.message) from error
        if recovery.conflicts:
            names = ", ".join(
                path.decode(errors="replace") for path in recovery.conflicts
            )
            raise RecoveryConflict(f"changed since an earlier run was cut off: {names}")
        return recovery


def _overlap(one: bytes, other: bytes) -> bool:
    first, second = sorted((one.rstrip(b"/") + b"/", other.rstrip(b"/") + b"/"))
    return second.startswith(first)


def _ignore(_progress: Progress) -> None:
    """Nobody asked to be told."""


def _lawful_workspace(path: Path, *, force: bool) -> Path:
    if "\0" in os.fspath(path):
        raise WorkspaceUnusable(path, "its path holds a NUL character")
    try:
        is_link = path.is_symlink()
        real = path.resolve(strict=True)
        is_folder = real.is_dir()
    except FileNotFoundError as error:
        raise WorkspaceUnusable(
            path, "does not exist", hint="name a folder with -w/--workspace"
        ) from error
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop, before 3.13
        raise WorkspaceUnusable(path, f"cannot be reached: {error}") from error
    if not is_folder:
        raise WorkspaceUnusable(path, "is no folder")
    if force:
        return real
    if is_link:
        raise WorkspaceUnusable(
            path, f"is a link to {real}", hint="name that folder, or say --force"
        )
    _require_small(path, real)
    return real


def _require_small(path: Path, real: Path) -> None:
    """Refuse the places that hold far more than one document's work."""
    for place, name in (
        (Path(real.anchor), "the root of the file system"),
        (_home(), "the home folder"),
    ):
        if real == place:
            raise WorkspaceUnusable(
                path, f"is {name}", hint="name a folder in it, or say --force"
            )


def _home() -> Path | None:
    try:
        return Path.home().resolve()
    except (OSError, RuntimeError):  # an account without one, as containers have them
        return None


def _require_apart(workspace: Path, state: Path) -> None:
    if workspace.is_relative_to(state):
        raise WorkspaceUnusable(workspace, f"lies in the state folder {state}")
    if state.is_relative_to(workspace):
        raise StateUnusable(
            state, f"lies in the workspace {workspace}, where a step could reach it"
        )


def _lawful_command(command: Sequence[str]) -> tuple[str, ...]:
    if isinstance(command, str):
        raise ContractError(
            f"the command is one text: {command!r}",
            hint="give the program and its arguments as a list",
        )
    words = tuple(os.fspath(word) for word in command)
    if not words or not words[0]:
        raise ContractError("no command was given", hint="name it after --")
    if any("\0" in word for word in words):
        raise ContractError("the command holds a NUL character")
    return words


def _may_listen() -> bool:
    """Whether signals are ours to take: main thread, and nobody else has them."""
    return threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def _with_own_signals(run: Callable[[Interrupts], RunRecord]) -> RunRecord:
    """Take SIGINT and SIGTERM for the length of a run, then let them do what they do.

    Without this a KeyboardInterrupt could fall into the middle of putting the parent
    back.
    """
    try:
        with Interrupts.listening() as arrivals:
            record = run(arrivals)
    except Interrupted as error:
        signal.raise_signal(error.signum)
        raise
    if record.interrupted_by is not None:
        signal.raise_signal(record.interrupted_by)
    return record


def _remove_run(run: RunFolder) -> None:
    with contextlib.suppress(OSError), Folder.open(run.path.parent) as runs:
        remove_unmounted(runs, os.fsencode(run.run_id))
