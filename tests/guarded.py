"""What the tests of whole steps share: a workspace, its state, the public command.

`House` is a workspace with a state folder of its own. It runs the installed `wsguard`
or opens the Python door, and tells what has changed in the parent since a moment.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from listing import TreeState, changes, tree_state

from workspace_guard import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

WSGUARD = str(Path(sys.executable).with_name("wsguard"))
DEADLINE_S = 20.0
STEP = b"tasks/run_1"
GOOD = "echo done > output.md"
"""A command that does what a step without a contract asks for."""


def until(fact: Callable[[], object], what: str = "what was waited for") -> None:
    """Wait until something is so; fail where it does not come to be."""
    limit = time.monotonic() + DEADLINE_S
    while not fact():
        assert time.monotonic() < limit, f"not so within {DEADLINE_S} s: {what}"
        threading.Event().wait(0.005)


@dataclass(frozen=True, slots=True)
class Done:
    """What came of one call of the command."""

    status: int
    out: bytes
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on standard output."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    @property
    def error(self) -> tuple[int, str]:
        """The exit status and the id of the error in the document."""
        return self.status, str(self.document["error"]["id"])

    @property
    def said(self) -> tuple[str, str]:
        """Message and hint of the error in the document."""
        error = self.document["error"]
        return str(error["message"]), str(error["hint"])


@dataclass(frozen=True, slots=True)
class House:
    """A workspace with a state folder of its own."""

    workspace: Path
    state: Path

    @property
    def temporary(self) -> Path:
        """The system's temporary folder, as the command sees it."""
        folder = self.state.with_name("temporary")
        folder.mkdir(exist_ok=True)
        return folder

    # --- the public command -----------------------------------------------------------

    def _options(self, env: Mapping[str, str]) -> dict[str, Any]:
        own = {
            "WORKSPACE_GUARD_STATE_DIR": str(self.state),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(self.temporary),
        }
        return {
            "cwd": self.workspace.parent,
            "env": {**os.environ, **own, **env},
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }

    def start(
        self,
        *arguments: str | bytes | Path,
        env: Mapping[str, str] | None = None,
        before: Iterable[str] = (),
        **more: Any,  # noqa: ANN401  # whatever Popen takes
    ) -> subprocess.Popen[bytes]:
        """Start `wsguard ARGUMENTS…`, perhaps by way of another program."""
        command = [*before, WSGUARD, *arguments]
        return subprocess.Popen(command, **{**self._options(env or {}), **more})

    def call(
        self,
        *arguments: str | bytes | Path,
        env: Mapping[str, str] | None = None,
        before: Iterable[str] = (),
        **more: Any,  # noqa: ANN401  # whatever Popen takes
    ) -> Done:
        """Run `wsguard ARGUMENTS…` to its end."""
        with self.start(*arguments, env=env, before=before, **more) as process:
            return finish(process)

    def run(
        self, script: str, *options: str | bytes | Path, env: Mapping[str, str] = {}
    ) -> Done:
        """Run a script of the shell as a step, with the record as JSON."""
        words = ["run", "-w", self.workspace, "--json", *options]
        return self.call(*words, "--", "sh", "-c", script, env=env)

    def call_here(
        self, *arguments: str | bytes | Path, cwd: Path | None = None
    ) -> Done:
        """Do what `wsguard ARGUMENTS…` does in this process: a third of a second less.

        For what runs no command.
        """
        from workspace_guard.cli.main import cli  # noqa: PLC0415  # click, for few

        os.environ["WORKSPACE_GUARD_STATE_DIR"] = str(self.state)
        os.chdir(cwd or self.workspace.parent)
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
        words = [os.fsdecode(word) for word in arguments]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                cli.main(words, prog_name="wsguard")
            except SystemExit as ended:
                status = int(str(ended.code))
        texts = [stream.detach().getvalue() for stream in (out, err)]
        return Done(status, texts[0], texts[1].decode())

    # --- the Python door --------------------------------------------------------------

    @property
    def door(self) -> Workspace:
        """The workspace by the Python API."""
        return Workspace(self.workspace, self.state)

    # --- looking ----------------------------------------------------------------------

    def look(self, *, without: tuple[bytes, ...] = (STEP,)) -> TreeState:
        """List the parent, without the step."""
        return tree_state(self.workspace, without=without)

    @contextlib.contextmanager
    def unchanged(self, *, without: tuple[bytes, ...] = (STEP,)) -> Generator[None]:
        """See that a block changes nothing in the parent."""
        before = self.look(without=without)
        yield
        assert changes(before, self.look(without=without)) == {}

    @property
    def folder(self) -> Path:
        """The state of this workspace."""
        [found] = self.state.glob(f"{self.workspace.name}-*")
        return found

    @property
    def journal(self) -> list[str]:
        """What is open."""
        return sorted(os.listdir(self.folder / "journal"))

    @property
    def snapshots(self) -> list[str]:
        """What lies in the store."""
        return sorted(os.listdir(self.folder / "snapshots"))

    @property
    def runs(self) -> list[str]:
        """The ids of the runs that have a folder."""
        return sorted(os.listdir(self.folder / "runs"))

    @property
    def steps(self) -> list[str]:
        """The folders of the steps."""
        return sorted(os.listdir(self.workspace / "tasks"))

    def kept(self, record: Mapping[str, Any], path: str) -> bytes:
        """The bytes in quarantine of one escape."""
        [row] = [row for row in record["escapes"] if row["path"] == path]
        return (
            self.folder / "runs" / record["run_id"] / row["quarantine"]
        ).read_bytes()


def finish(process: subprocess.Popen[bytes]) -> Done:
    """See a call of the command to its end."""
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
    except BaseException:
        process.kill()
        raise
    return Done(process.returncode, out, err.decode(errors="replace"))


def nobody_runs(run_id: str) -> bool:
    """Whether no process that was started by a run is alive."""
    wanted = f"WSGUARD_RUN={run_id}".encode()
    return not any(wanted in _environment(pid) for pid in psutil.pids())


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has ended, or is not ours
        return b""
