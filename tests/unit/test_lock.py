"""One holder for a workspace, and who it is; never a stale lock."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from capabilities import require
from oscalls import Call, each_call

import workspace_guard
from workspace_guard.errors import WorkspaceHeld
from workspace_guard.files import lock
from workspace_guard.files.lock import Holder as Named
from workspace_guard.files.lock import WorkspaceLock, living_holder
from workspace_guard.files.tree import Folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORKSPACE = b"/somewhere/workspace"
PACKAGES = Path(workspace_guard.__file__).parents[1]
DEADLINE_S = 20.0

HOLDER = """
import os, subprocess, sys
from workspace_guard.files.lock import WorkspaceLock
from workspace_guard.files.tree import Folder
with Folder.open(sys.argv[1]) as folder:
    with WorkspaceLock.acquire(folder, b"w", run_id=sys.argv[2]) as lock:
        heir = None
        if sys.argv[3] == "with-heir":
            heir = subprocess.Popen(["sleep", "60"], pass_fds=[lock.fd])
        print(heir.pid if heir else 0, flush=True)
        sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """The state folder of a workspace."""
    with Folder.open(tmp_path) as opened:
        yield opened


def take(
    folder: Folder,
    run_id: str = "mine",
    *,
    wait_s: float = 0.0,
    check: Callable[[], None] = lambda: None,
) -> WorkspaceLock:
    """Ask for the lock."""
    return WorkspaceLock.acquire(
        folder, WORKSPACE, run_id=run_id, wait_s=wait_s, check=check
    )


class Holder:
    """Another process that has the lock until it is told to let go, or killed."""

    def __init__(self, folder: Path, run_id: str, how: str = "alone") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, folder, run_id, how],
            env={**os.environ, "PYTHONPATH": str(PACKAGES)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self.heir = int(self._process.stdout.readline())

    def kill(self) -> None:
        """End the holder itself, at once."""
        self._process.kill()
        self._process.wait()

    def let_go(self) -> None:
        """Let it end by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def close(self) -> None:
        """End all that is left."""
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        if self.heir:
            kill(self.heir)


def kill(pid: int) -> None:
    """End a process that may have ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    """Another process that holds the lock."""
    process = Holder(tmp_path, "theirs")
    yield process
    process.close()


@pytest.fixture
def holder_with_heir(tmp_path: Path) -> Iterator[Holder]:
    """Another process that holds the lock, and one it started that has inherited it."""
    process = Holder(tmp_path, "theirs", "with-heir")
    yield process
    process.close()


# --- Holding --------------------------------------------------------------------------


def test_acquire_when_free_then_writes_who_holds_it(
    tmp_path: Path, folder: Folder
) -> None:
    """The lock file names the process and the run, for others to read."""
    with take(folder, "run-1"):
        text = (tmp_path / "lock").read_text("utf-8")
    assert json.loads(text) == {
        "pid": os.getpid(),
        "run_id": "run-1",
        "workspace": "/somewhere/workspace",
    }
    assert (tmp_path / "lock").stat().st_mode & 0o077 == 0


def test_acquire_when_another_process_holds_then_names_it(
    folder: Folder, holder: Holder
) -> None:
    """The refusal says which process and which run; it comes at once."""
    with pytest.raises(WorkspaceHeld) as caught:
        take(folder)
    assert caught.value.exit_status == 12
    assert caught.value.pid == holder.pid
    assert caught.value.run_id == "theirs"
    assert caught.value.message == (
        f"workspace /somewhere/workspace is held by process {holder.pid} (run theirs)"
    )
    assert caught.value.hint == "wait for it with --wait SECONDS, or end that run"


def test_acquire_when_another_thread_holds_then_is_refused(folder: Folder) -> None:
    """Two threads of one process are two runs."""
    refused: list[WorkspaceHeld] = []

    def second() -> None:
        try:
            take(folder, "second")
        except WorkspaceHeld as error:
            refused.append(error)

    with take(folder, "first"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(DEADLINE_S)
    assert [(error.pid, error.run_id) for error in refused] == [(os.getpid(), "first")]


def test_acquire_when_refused_then_the_holder_still_holds(
    folder: Folder, holder: Holder
) -> None:
    """A refused attempt neither frees the lock nor overwrites the holder's name."""
    for _ in range(3):
        with pytest.raises(WorkspaceHeld) as caught:
            take(folder)
        assert caught.value.pid == holder.pid


def test_acquire_when_let_go_then_is_free(folder: Folder) -> None:
    """One after the other is no conflict, in one process or in two."""
    with take(folder, "first"):
        pass
    with take(folder, "second"):
        pass


def test_acquire_when_the_holder_ends_in_time_then_has_waited(
    folder: Folder, holder: Holder
) -> None:
    """Waiting ends as soon as the lock is free."""
    asked: list[float] = []

    def check() -> None:
        asked.append(time.monotonic())
        if len(asked) == 2:
            holder.let_go()

    with take(folder, wait_s=DEADLINE_S, check=check):
        pass
    assert len(asked) >= 2
    assert time.monotonic() - asked[0] < DEADLINE_S


def test_acquire_when_the_wait_is_over_then_is_refused(
    folder: Folder, holder: Holder
) -> None:
    """Waiting has an end, and the refusal still names the holder."""
    began = time.monotonic()
    with pytest.raises(WorkspaceHeld) as caught:
        take(folder, wait_s=0.2)
    assert caught.value.pid == holder.pid
    assert 0.2 <= time.monotonic() - began < DEADLINE_S


def test_acquire_when_the_check_raises_then_waiting_is_given_up(
    folder: Folder, holder: Holder
) -> None:
    """A Ctrl-C ends the wait, with nothing left open."""

    def check() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take(folder, wait_s=DEADLINE_S, check=check)
    assert holder.pid


# --- Never stale ----------------------------------------------------------------------


@pytest.mark.case("S44")
def test_acquire_when_the_holder_was_killed_then_is_free(
    folder: Folder, holder: Holder
) -> None:
    """The kernel drops the lock with its process; the text in the file locks nobody."""
    holder.kill()
    with take(folder):
        pass


@pytest.mark.case("S44")
@pytest.mark.parametrize(
    "text", [b"", b"{", b"null", b"[]", b'{"pid": 1}', b"\xff\xfe", b'{"pid": "x"}']
)
def test_acquire_when_the_file_holds_nonsense_then_is_free(
    tmp_path: Path, folder: Folder, text: bytes
) -> None:
    """A torn text from a crash is no lock and no error."""
    (tmp_path / "lock").write_bytes(text)
    with take(folder, "run-1"):
        assert json.loads((tmp_path / "lock").read_text())["run_id"] == "run-1"


@pytest.mark.parametrize("text", [b"", b"{", b"null", b'{"pid": "x", "run_id": 1}'])
def test_acquire_when_held_and_the_text_tells_nothing_then_is_refused_all_the_same(
    tmp_path: Path, folder: Folder, text: bytes
) -> None:
    """Between taking the lock and writing its name a holder is nameless."""
    with take(folder):
        (tmp_path / "lock").write_bytes(text)
        with pytest.raises(WorkspaceHeld, match="is held by another process") as caught:
            take(folder, "second")
    assert (caught.value.pid, caught.value.run_id) == (None, None)


def test_acquire_when_the_disk_is_full_then_holds_without_its_text(
    tmp_path: Path, folder: Folder
) -> None:
    """The text is for messages only: `recover` must work on a full disk too."""

    def before(call: Call) -> None:
        if call.name == "write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with each_call(before), take(folder):
        assert (tmp_path / "lock").read_bytes() == b""
        with pytest.raises(WorkspaceHeld):
            take(folder, "second")


def test_acquire_when_the_lock_file_is_a_link_then_is_not_followed(
    tmp_path: Path, folder: Folder
) -> None:
    """No file is written by way of a link."""
    require("symlinks")
    (tmp_path / "precious").write_bytes(b"precious\n")
    (tmp_path / "lock").symlink_to("precious")
    with pytest.raises(OSError, match="lock") as caught:
        take(folder)
    assert caught.value.errno == errno.ELOOP
    assert (tmp_path / "precious").read_bytes() == b"precious\n"


# --- Heirs ----------------------------------------------------------------------------


def test_acquire_when_an_heir_holds_on_then_the_hint_says_so(
    folder: Folder, holder_with_heir: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock outlives the process that is named, and the refusal explains it."""
    monkeypatch.setattr(lock, "_DYING_S", 0.2)
    holder_with_heir.kill()
    began = time.monotonic()
    with pytest.raises(WorkspaceHeld) as caught:
        take(folder)
    assert time.monotonic() - began >= 0.2
    assert caught.value.pid == holder_with_heir.pid
    assert caught.value.hint == (
        f"process {holder_with_heir.pid} has ended; one that it started still holds "
        "on: end that"
    )


@pytest.mark.case("E56", "E59")
def test_acquire_when_an_heir_ends_then_it_was_waited_for(
    folder: Folder, holder_with_heir: Holder
) -> None:
    """Where the guard was killed, its supervisor gets the time to end its tree."""
    asked: list[float] = []

    def check() -> None:
        asked.append(time.monotonic())
        if len(asked) == 3:
            kill(holder_with_heir.heir)

    holder_with_heir.kill()
    with take(folder, check=check):
        pass
    assert len(asked) >= 3


def test_acquire_when_the_holder_ended_well_then_its_heir_still_holds(
    folder: Folder, holder_with_heir: Holder
) -> None:
    """Letting go is closing: what others have inherited is not unlocked for them."""
    holder_with_heir.let_go()
    with pytest.raises(WorkspaceHeld):
        take(folder)
    kill(holder_with_heir.heir)
    with take(folder, wait_s=DEADLINE_S):
        pass


def test_acquire_when_the_holder_lives_then_no_time_is_given(
    folder: Folder, holder_with_heir: Holder
) -> None:
    """Heirs of a living holder are no reason to wait."""
    asked: list[float] = []
    with pytest.raises(WorkspaceHeld):
        take(folder, check=lambda: asked.append(time.monotonic()))
    assert len(asked) == 1
    assert holder_with_heir.heir


# --- Who it is, without asking for it -------------------------------------------------


def test_living_holder_when_held_then_is_named_and_the_lock_not_tried(
    folder: Folder,
) -> None:
    """Whoever looks learns the workspace, the run and the process."""
    with take(folder, "run-1"):
        assert living_holder(folder) == Named(
            pid=os.getpid(), run_id="run-1", workspace=WORKSPACE
        )


@pytest.mark.case("E11")
def test_living_holder_when_the_workspace_is_no_utf8_then_is_exact(
    folder: Folder,
) -> None:
    """The path comes back byte for byte."""
    with WorkspaceLock.acquire(folder, b"/bad\xff\n", run_id="run-1"):
        found = living_holder(folder)
    assert found is not None
    assert found.workspace == b"/bad\xff\n"


def test_living_holder_when_let_go_or_never_held_then_is_nobody(folder: Folder) -> None:
    """A workspace that is free has no holder."""
    assert living_holder(folder) is None
    with take(folder):
        pass
    assert living_holder(folder) is None


def test_living_holder_when_it_was_killed_then_is_nobody(
    folder: Folder, holder: Holder
) -> None:
    """The name of a dead process in the file is no holder."""
    assert living_holder(folder) is not None
    holder.kill()
    assert living_holder(folder) is None


@pytest.mark.parametrize("text", [b"", b"{", b"null", b"[]", b'{"pid": 1}', b"\xff"])
def test_living_holder_when_the_text_tells_nothing_then_is_nobody(
    tmp_path: Path, folder: Folder, text: bytes
) -> None:
    """Nonsense in the file names nobody."""
    (tmp_path / "lock").write_bytes(text)
    assert living_holder(folder) is None
