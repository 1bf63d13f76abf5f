"""What `detect` makes of odd places, other programs' help, and being cut off."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from capabilities import require
from listing import TreeState, changes, tree_state
from sample import FILES, build_workspace
from suite import exact_path, in_workspace

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from accounts import Account

pytestmark = [pytest.mark.slow, pytest.mark.mode("detect")]

DEADLINE_S = 20.0
PLAN = FILES[b"PLAN.md"][1]
STEP = b"tasks/odd"
GOOD = "open('output.md', 'w').write('good\\n'); "
WRITE_PLAN = GOOD + "open('../../PLAN.md', 'w').write('overwritten\\n'); "
WRITE_PLAN_AND_STAY = """
import signal
signal.signal(signal.SIGINT, lambda *_: open("interrupted", "w").close())
open("output.md", "w").write("good\\n")
open("../../PLAN.md", "w").write("overwritten\\n")
while True:
    signal.pause()
"""


def _look(workspace: Path) -> TreeState:
    """The parent but for the step; building that moves the time of `tasks`."""
    return tree_state(workspace, without=(STEP,), any_time=(b"tasks",))


def _arguments(workspace: Path, *options: str) -> list[str | Path]:
    return ["run", "-w", workspace, "--name", "odd", "--mode", "detect", *options]


def _run(
    user: Account, workspace: Path, state_dir: Path, program: str, *options: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a Python program as a step."""
    command = ["--", user.python, "-c", program]
    return user.wsguard(
        *_arguments(workspace, *options),
        *command,
        cwd=workspace.parent,
        env={"WORKSPACE_GUARD_STATE_DIR": str(state_dir)},
    )


def _record(done: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    assert done.stdout, done.stderr.decode(errors="replace")
    return json.loads(done.stdout)


def _escapes(record: dict[str, Any]) -> list[tuple[bytes, str]]:
    return [(exact_path(row), row["kind"]) for row in in_workspace(record)]


# --- Places ---------------------------------------------------------------------------


@pytest.mark.case("E11")
def test_workspace_when_its_name_is_no_utf8_then_is_guarded_like_any_other(
    user: Account, place: Path, state_dir: Path
) -> None:
    """Names are bytes, that of the workspace too."""
    require("undecodable-names")
    workspace = place / os.fsdecode(b"bad\xff,a:b")
    build_workspace(workspace)
    user.own(workspace)
    before = _look(workspace)
    done = _run(user, workspace, state_dir, WRITE_PLAN, "--json")
    assert (done.returncode, _escapes(_record(done))) == (30, [(b"PLAN.md", "changed")])
    assert changes(before, _look(workspace)) == {}


@pytest.mark.case("E50")
def test_workspace_when_reached_through_a_link_then_both_spellings_are_covered(
    user: Account, place: Path, workspace: Path, state_dir: Path
) -> None:
    """A link above the workspace is resolved once; a write by either name counts."""
    require("symlinks")
    (place / "alias").symlink_to(place)
    by_alias = place / "alias" / "workspace"
    program = WRITE_PLAN + f"open({str(by_alias / 'template.md')!r}, 'w').write('x')"
    before = _look(workspace)
    done = _run(user, by_alias, state_dir, program, "--json")
    assert (done.returncode, _escapes(_record(done))) == (
        30,
        [(b"PLAN.md", "changed"), (b"template.md", "changed")],
    )
    assert changes(before, _look(workspace)) == {}


@pytest.mark.case("E68")
def test_workspace_when_larger_than_the_snapshot_may_be_then_is_refused(
    user: Account, workspace: Path, state_dir: Path
) -> None:
    """What cannot be put back is not put at risk: nothing runs, nothing is built."""
    with open(workspace / "sparse.img", "wb") as file:
        file.truncate(50 << 30)
    user.own(workspace)
    before = tree_state(workspace / "tasks")
    done = _run(user, workspace, state_dir, WRITE_PLAN)
    assert done.returncode == 11
    assert b"--max-snapshot" in done.stderr
    assert (workspace / "PLAN.md").read_bytes() == PLAN
    assert set(tree_state(workspace / "tasks")) == set(before)


# --- Help from others -----------------------------------------------------------------


@pytest.fixture
def willing_daemon(place: Path, workspace: Path) -> Iterator[Path]:
    """A server outside the step that writes what it is asked to: its socket."""
    address = place / "daemon.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))
        address.chmod(0o666)
        server.listen()
        server.settimeout(DEADLINE_S)

        def serve() -> None:
            client, _ = server.accept()
            with client:
                (workspace / "by-proxy.md").write_bytes(client.recv(100))

        thread = threading.Thread(target=serve)
        thread.start()
        yield address
        thread.join()


@pytest.mark.case("E47")
def test_parent_when_another_program_writes_for_the_step_then_is_put_back(
    user: Account, workspace: Path, state_dir: Path, willing_daemon: Path
) -> None:
    """A write on request is no process of the step's, and is found all the same."""
    program = (
        GOOD + "import socket; c = socket.socket(socket.AF_UNIX); "
        f"c.connect({str(willing_daemon)!r}); c.send(b'for you'); c.recv(1)"
    )
    before = _look(workspace)
    done = _run(user, workspace, state_dir, program, "--json")
    assert (done.returncode, _escapes(_record(done))) == (
        30,
        [(b"by-proxy.md", "created")],
    )
    assert changes(before, _look(workspace)) == {}


@pytest.mark.case("S1")
def test_input_when_changed_through_an_old_mapping_then_is_found_by_its_hash(
    user: Account, workspace: Path, state_dir: Path
) -> None:
    """A store to a page that is dirty already moves no time, size or inode."""
    waits = GOOD + (
        "open('ready', 'w').close(); import os\n"
        "while not os.path.exists('go'): __import__('select').select([], [], [], .01)"
    )
    step = workspace / os.fsdecode(STEP)
    document = workspace / "output.md"
    with (
        document.open("r+b") as file,
        mmap.mmap(file.fileno(), 0) as memory,
    ):
        memory[:1] = b"!"
        before = _look(workspace)
        command = ["--", user.python, "-c", waits]
        guard = user.start(
            user.wsguard_command(*_arguments(workspace, "--json"), *command),
            cwd=workspace.parent,
            env={"WORKSPACE_GUARD_STATE_DIR": str(state_dir)},
        )
        with guard:
            _wait_until(guard, (step / "ready").exists)
            memory[1:2] = b"!"
            moved = os.stat(document).st_mtime_ns != before[b"output.md"].mtime_ns
            (step / "go").touch()
            out, _ = guard.communicate(timeout=DEADLINE_S)
    assert moved is False
    assert _escapes(json.loads(out)) == [(b"output.md", "changed")]
    assert changes(before, _look(workspace)) == {}


@pytest.mark.case("S38")
def test_project_when_snapshotted_then_none_of_its_programs_is_run(
    user: Account, place: Path, workspace: Path, state_dir: Path
) -> None:
    """A repository's filters and file system monitor are the project's, not ours."""
    require("git")
    canary = place / "canary"
    tool = f"{user.python} -c \"open('{canary}', 'w')\""
    (workspace / ".gitattributes").write_text("* filter=canary\n", "utf-8")
    user.own(workspace)
    for arguments in (
        ["init", "-q"],
        ["config", "filter.canary.clean", tool],
        ["config", "filter.canary.smudge", tool],
        ["config", "core.fsmonitor", tool],
    ):
        assert user.run(["git", *arguments], cwd=workspace).returncode == 0
    done = _run(user, workspace, state_dir, WRITE_PLAN)
    assert (done.returncode, canary.exists()) == (30, False)


@pytest.mark.case("S16")
def test_report_when_a_name_holds_control_characters_then_shows_them_escaped(
    user: Account, workspace: Path, state_dir: Path
) -> None:
    """A name can neither hide a line of the report nor move the cursor."""
    name = "new\nline\x1b[2K\rgone.md"
    program = GOOD + f"open('../../' + {name!r}, 'w').close()"
    done = _run(user, workspace, state_dir, program)
    said = done.stdout + done.stderr
    assert done.returncode == 30
    assert rb"new\nline\x1b[2K\rgone.md" in said
    assert (b"\x1b[2K" in said, b"\r" in said) == (False, False)


@pytest.mark.case("E32")
def test_report_when_much_was_created_then_no_deletion_is_lost_in_it(
    user: Account, workspace: Path, state_dir: Path
) -> None:
    """The record has every row; the text may cut a kind short, but tells its count."""
    program = GOOD + (
        "import os; os.chdir('../..')\n"
        "for n in range(200): open(f'new-{n:03}', 'w').close()\n"
        "for name in os.listdir('notes'): os.unlink(f'notes/{name}')"
    )
    done = _run(user, workspace, state_dir, program, "--record", "record.json")
    said = (done.stdout + done.stderr).decode()
    record = json.loads((workspace.parent / "record.json").read_bytes())
    kinds = [kind for _, kind in _escapes(record)]
    assert (kinds.count("created"), kinds.count("deleted")) == (200, 5)
    assert [said.count(f"deleted notes/{name}") for name in (".hidden", "-rf")] == [
        1,
        1,
    ]
    assert "200" in said


# --- Cut off --------------------------------------------------------------------------


def _start_and_wait_for_the_write(
    user: Account, workspace: Path, state_dir: Path
) -> subprocess.Popen[bytes]:
    """Start a guard whose command has written the parent and waits."""
    command = ["--", user.python, "-c", WRITE_PLAN_AND_STAY]
    guard = user.start(
        user.wsguard_command(*_arguments(workspace), *command),
        cwd=workspace.parent,
        env={"WORKSPACE_GUARD_STATE_DIR": str(state_dir)},
    )
    plan = workspace / "PLAN.md"
    _wait_until(guard, lambda: plan.read_bytes() == b"overwritten\n")
    return guard


def _wait_until(guard: subprocess.Popen[bytes], fact: Callable[[], bool]) -> None:
    """Wait for a fact while a guard lives."""
    deadline = time.monotonic() + DEADLINE_S
    while not fact():
        assert time.monotonic() < deadline, "it never came to be"
        assert guard.poll() is None, guard.communicate()
        threading.Event().wait(0.01)


@pytest.mark.case("E59")
def test_parent_when_the_guard_was_killed_then_recover_puts_it_back(
    user: Account, workspace: Path, state_dir: Path
) -> None:
    """SIGKILL in the middle of a run: the next `recover` makes the parent whole."""
    before = _look(workspace)
    with _start_and_wait_for_the_write(user, workspace, state_dir) as guard:
        guard.kill()
        guard.communicate(timeout=DEADLINE_S)
    env = {"WORKSPACE_GUARD_STATE_DIR": str(state_dir)}
    first = user.wsguard("recover", str(workspace), cwd=workspace.parent, env=env)
    again = user.wsguard("recover", str(workspace), cwd=workspace.parent, env=env)
    assert (first.returncode, again.returncode) == (0, 0), first.stderr
    assert changes(before, _look(workspace)) == {}
    kept = [path.read_bytes() for path in state_dir.glob("*/runs/*/quarantine/PLAN.md")]
    assert kept == [b"overwritten\n"]


def test_parent_when_the_guard_is_terminated_then_is_put_back_before_it_exits(
    user: Account, workspace: Path, state_dir: Path
) -> None:
    """SIGTERM ends the step's tree, and the parent is as it was when we exit."""
    before = _look(workspace)
    with _start_and_wait_for_the_write(user, workspace, state_dir) as guard:
        guard.terminate()
        guard.communicate(timeout=DEADLINE_S)
    assert guard.returncode == 143
    assert changes(before, _look(workspace)) == {}


def test_parent_when_interrupted_twice_then_is_put_back_before_the_guard_exits(
    user: Account, workspace: Path, state_dir: Path
) -> None:
    """The first Ctrl-C is the command's, which may live on; a second ends the run."""
    before = _look(workspace)
    with _start_and_wait_for_the_write(user, workspace, state_dir) as guard:
        guard.send_signal(signal.SIGINT)
        _wait_until(guard, (workspace / os.fsdecode(STEP) / "interrupted").exists)
        guard.send_signal(signal.SIGINT)
        guard.communicate(timeout=DEADLINE_S)
    assert guard.returncode == 130
    assert changes(before, _look(workspace)) == {}


def test_workspace_when_held_by_a_run_then_a_second_is_refused_and_names_it(
    user: Account, workspace: Path, state_dir: Path
) -> None:
    """Two runs cannot undo each other: the second is told who holds the workspace."""
    with _start_and_wait_for_the_write(user, workspace, state_dir) as guard:
        second = user.wsguard(
            *("run", "-w", workspace, "--name", "other", "--", "true"),
            cwd=workspace.parent,
            env={"WORKSPACE_GUARD_STATE_DIR": str(state_dir)},
        )
        guard.terminate()
        guard.communicate(timeout=DEADLINE_S)
    assert second.returncode == 12
    assert str(guard.pid).encode() in second.stderr
    assert (workspace / "tasks" / "odd").is_dir()
    assert not (workspace / "tasks" / "other").exists()
