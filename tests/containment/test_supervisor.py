"""A command under supervision: its start, its end, its limits, what it inherits."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from capabilities import require
from supervised import (
    Pipe,
    events_until_end,
    gone,
    launch,
    python,
    run_whole,
    shell,
    until,
    until_started,
)

from workspace_guard.containment import supervision
from workspace_guard.containment.base import RunnerResult, Stdio
from workspace_guard.containment.launch import Ended
from workspace_guard.containment.plain import PlainSupervision
from workspace_guard.containment.supervision import Supervision

if TYPE_CHECKING:
    from pathlib import Path

    from supervised import Start

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

either = pytest.mark.parametrize(
    "start",
    [Supervision.start, PlainSupervision.start],
    ids=["supervisor", "plain"],
)

IGNORES_SIGTERM = shell("trap '' TERM; sleep 60")


# --- how it ends ----------------------------------------------------------------------


@either
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 0", (None, 0, None, "")),
        ("exit 3", ("exit", 3, None, "exited with status 3")),
        ("kill -KILL $$", ("signal", None, 9, "ended by SIGKILL")),
        ("kill -TERM $$", ("signal", None, 15, "ended by SIGTERM")),
    ],
)
def test_command_when_it_ends_then_its_status_is_told(
    start: Start, script: str, expected: tuple[object, ...], tmp_path: Path
) -> None:
    """An exit code stays a number and a signal stays a signal."""
    result = run_whole(launch(tmp_path, *shell(script)), start).result
    told = (result.error, result.exit_code, result.signal, result.message)
    assert expected == told
    assert result.timed_out is False


@either
@pytest.mark.parametrize("program", ["no-such-program", "./none", "none/of/this"])
def test_command_when_there_is_no_such_then_not_found(
    start: Start, program: str, tmp_path: Path
) -> None:
    """What is not there is told apart from what cannot be run."""
    result = run_whole(launch(tmp_path, program), start).result
    assert result == RunnerResult(
        error="not_found",
        exit_code=None,
        signal=None,
        timed_out=False,
        message=f"{program}: no such program",
    )


def test_command_when_its_name_is_empty_then_not_found(tmp_path: Path) -> None:
    """An empty name is no program, and not the first folder of the PATH either."""
    assert run_whole(launch(tmp_path, "")).result.error == "not_found"


def _file(place: Path, text: str, mode: int) -> str:
    path = place / "program"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("#!/bin/sh\n", 0o644, "Permission denied"),
        ("echo hi\n", 0o755, "it is no program, and no script with a #! line"),
        ("#!/no/such/interpreter\n", 0o755, "its interpreter is missing"),
    ],
)
def test_command_when_it_is_no_program_then_not_executable(
    text: str, mode: int, why: str, tmp_path: Path
) -> None:
    """A file that is there but cannot be run is named with the reason."""
    program = _file(tmp_path, text, mode)
    result = run_whole(launch(tmp_path, program)).result
    assert ("not_executable", f"{program}: {why}") == (result.error, result.message)


@either
def test_command_when_it_is_a_script_without_interpreter_line_then_not_executable(
    start: Start, tmp_path: Path
) -> None:
    """A script without #! is not given to a shell: nobody said which."""
    program = _file(tmp_path, "echo hi\n", 0o755)
    assert run_whole(launch(tmp_path, program), start).result.error == "not_executable"


def test_command_when_its_folder_is_gone_then_that_is_told(tmp_path: Path) -> None:
    """A working folder that is missing is not taken for a missing program."""
    asked = launch(tmp_path, "true", cwd=tmp_path / "none", log=tmp_path / "log")
    result = run_whole(asked).result
    assert result.error == "not_executable"
    assert result.message == (
        "true: its working folder cannot be entered: No such file or directory"
    )


def test_command_when_named_only_then_its_own_path_is_searched(tmp_path: Path) -> None:
    """The PATH of the command's environment counts, not that of the guard."""
    _file(tmp_path, "#!/bin/sh\nexit 7\n", 0o755)
    asked = launch(tmp_path, "program", environment={"PATH": f"/none:{tmp_path}"})
    assert run_whole(asked).result.exit_code == 7


def test_command_when_one_of_its_name_cannot_run_then_the_next_is_tried(
    tmp_path: Path,
) -> None:
    """A file without the right to run does not hide a program further on."""
    for name, mode in (("first", 0o644), ("second", 0o755)):
        (tmp_path / name).mkdir()
        _file(tmp_path / name, "#!/bin/sh\nexit 8\n", mode)
    path = f"{tmp_path / 'first'}:{tmp_path / 'second'}"
    asked = launch(tmp_path, "program", environment={"PATH": path})
    assert run_whole(asked).result.exit_code == 8


def test_command_when_environment_is_large_then_it_runs(tmp_path: Path) -> None:
    """A request larger than a socket holds arrives whole."""
    environment = {f"V{n}": "x" * 100_000 for n in range(8)}
    asked = launch(
        tmp_path,
        *python("import os; os._exit(len(os.environ['V7']) // 1000)"),
        environment=environment,
    )
    assert run_whole(asked).result.exit_code == 100


@pytest.mark.slow
@either
def test_command_when_it_outlasts_its_time_and_ignores_sigterm_then_is_killed(
    start: Start, tmp_path: Path
) -> None:
    """The time limit holds against a program that does not want to end."""
    asked = launch(tmp_path, *IGNORES_SIGTERM, timeout_s=0.3)
    began = time.monotonic()
    result = run_whole(asked, start).result
    assert (result.error, result.signal, result.timed_out) == ("timeout", 9, True)
    assert time.monotonic() - began < 3.0


def test_command_when_it_tidies_up_at_its_time_limit_then_it_has_timed_out_still(
    tmp_path: Path,
) -> None:
    """SIGTERM comes first; that the command then exits with 0 makes no success."""
    script = 'trap "echo tidy > tidied; exit 0" TERM; sleep 60 & wait'
    asked = launch(tmp_path, *shell(script), timeout_s=0.1)
    result = run_whole(asked).result
    assert (result.error, result.exit_code, result.timed_out) == ("timeout", 0, True)
    assert (tmp_path / "tidied").read_text() == "tidy\n"


@either
def test_command_when_stopped_then_it_was_interrupted_for_that_reason(
    start: Start, tmp_path: Path
) -> None:
    """Whoever stops a command says why, and is quoted."""
    with start(launch(tmp_path, "sleep", "60")) as supervised:
        until_started(supervised)
        supervised.stop("ended at its first escape")
        result = events_until_end(supervised)[-1].result
        supervised.end_tree(0.0)
    assert (result.error, result.signal) == ("interrupted", 15)
    assert result.message == "ended at its first escape"


def test_stop_when_the_command_has_ended_by_itself_then_its_own_end_counts(
    tmp_path: Path,
) -> None:
    """A stop that comes too late does not make a good run a bad one."""
    with Supervision.start(launch(tmp_path, "true")) as supervised:
        started = until_started(supervised)
        until(lambda: gone(started.pid))
        supervised.stop("too late")
        result = events_until_end(supervised)[-1].result
        supervised.end_tree(0.0)
    assert (result.error, result.exit_code) == (None, 0)


def test_stop_when_it_comes_with_the_start_then_the_command_ends_by_sigterm(
    tmp_path: Path,
) -> None:
    """A signal that arrives between fork and exec waits for the program."""
    with Supervision.start(launch(tmp_path, "sleep", "60")) as supervised:
        supervised.stop("at once")
        result = events_until_end(supervised)[-1].result
        supervised.end_tree(0.0)
    assert (result.error, result.signal) == ("interrupted", signal.SIGTERM)


@pytest.mark.slow
def test_command_when_nothing_ends_it_then_it_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that sits in the kernel does not hold up its own time limit."""
    powerless = (
        "import sys; sys.path.append(sys.argv[1]); "
        "from workspace_guard.containment import supervisor\n"
        "supervisor.KILL_S = 0.1\n"
        "supervisor.Supervisor._signal_command = lambda *_: None\n"
        "supervisor.main(int(sys.argv[2]))"
    )
    monkeypatch.setattr(supervision, "_PROGRAM", powerless)
    course = run_whole(launch(tmp_path, "sleep", "60", timeout_s=0.05))
    assert (course.result.error, course.result.timed_out) == ("timeout", True)
    assert (course.result.exit_code, course.result.signal) == (None, None)
    assert [each.command for each in course.tree.leftovers] == ["sleep 60"]


@either
def test_signal_when_sent_then_the_whole_group_gets_it(
    start: Start, tmp_path: Path
) -> None:
    """A signal goes where a terminal's key would: to the command and its children."""
    script = 'trap "exit 5" INT; echo > ready; sleep 60 & wait; echo no'
    with start(launch(tmp_path, *shell(script))) as supervised:
        until_started(supervised)
        until((tmp_path / "ready").exists)
        supervised.send_signal(signal.SIGINT)
        result = events_until_end(supervised)[-1].result
        supervised.end_tree(0.0)
    assert result.exit_code == 5


@either
def test_next_event_when_a_wake_descriptor_is_readable_then_it_returns(
    start: Start, tmp_path: Path
) -> None:
    """Whoever waits for a command can be woken by something else."""
    with Pipe() as pipe, start(launch(tmp_path, "sleep", "60")) as supervised:
        until_started(supervised)
        os.write(pipe.end, b"!")
        began = time.monotonic()
        assert supervised.next_event(60.0, (pipe.source,)) is None
        assert time.monotonic() - began < 5.0
        supervised.stop("enough")
        supervised.end_tree(0.0)


# --- what it inherits -----------------------------------------------------------------


@pytest.mark.case("E46")
@either
def test_command_when_guard_has_files_open_then_gets_none_of_them(
    start: Start, tmp_path: Path
) -> None:
    """No descriptor beyond 2 reaches the command, not even an inheritable one."""
    program = (
        "import os, sys\n"
        "print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1], flush=True)\n"
        "open('/proc/self/fd/' + sys.argv[1], 'w')"
    )
    with open(tmp_path / "held", "ab") as held:
        held.write(b"precious")
        held.flush()
        number = fcntl.fcntl(held, fcntl.F_DUPFD, 100)
        try:
            asked = launch(
                tmp_path, *python(program, str(number)), hold_fds=(held.fileno(),)
            )
            result = run_whole(asked, start).result
        finally:
            os.close(number)
    said = (tmp_path / "execution.log").read_text()
    assert "[0, 1, 2]\n" in said
    assert f"No such file or directory: '/proc/self/fd/{number}'" in said
    assert result.error == "exit"
    assert (tmp_path / "held").read_bytes() == b"precious"


def test_command_when_supervisor_ignores_signals_then_it_does_not(
    tmp_path: Path,
) -> None:
    """The command starts with default dispositions and nothing blocked."""
    require("procfs")

    run_whole(launch(tmp_path, "grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"))
    rows = (tmp_path / "execution.log").read_text().split()
    # The C library keeps 32 and 33 for itself: what a `make` has ignored of them nobody
    # can undo from outside it.
    own = 1 << 31 | 1 << 32
    assert [int(row, 16) & ~own for row in rows[1::2]] == [0, 0]


@pytest.mark.parametrize(
    ("own", "expected"), [(True, "own own"), (False, "shared shared")]
)
def test_command_when_started_then_session_is_its_own_unless_shared(
    own: bool, expected: str, tmp_path: Path
) -> None:
    """A command gets a session and group of its own, or stays in the guard's."""
    program = (
        "import os, sys\n"
        "say = lambda each: 'own' if each == os.getpid() else "
        "'shared' if str(each) in sys.argv[1:] else 'other'\n"
        "print(say(os.getsid(0)), say(os.getpgrp()))"
    )
    guards = (str(os.getsid(0)), str(os.getpgrp()))
    run_whole(launch(tmp_path, *python(program, *guards), own_session=own))
    assert (tmp_path / "execution.log").read_text() == f"{expected}\n"


@pytest.mark.parametrize("own", [True, False], ids=["own group", "shared group"])
def test_command_when_stopped_then_the_guards_own_group_is_not_touched(
    own: bool, tmp_path: Path
) -> None:
    """Ending a command that shares the guard's group ends only the command."""
    asked = launch(tmp_path, "sleep", "60", own_session=own, timeout_s=0.05)
    assert run_whole(asked).result.error == "timeout"


@pytest.mark.parametrize("closed", [(0,), (1,), (0, 1, 2)], ids=str)
def test_guard_when_its_own_streams_are_closed_then_the_command_runs(
    closed: tuple[int, ...], tmp_path: Path
) -> None:
    """A guard without streams (a daemon) gives the command the null device."""
    guard = (
        "import os, sys\n"
        "sys.path[:0] = sys.argv[1].split(':')\n"
        f"for fd in {closed!r}: os.close(fd)\n"
        "from pathlib import Path\n"
        "from supervised import launch, run_whole, shell\n"
        "place = Path(sys.argv[2])\n"
        "course = run_whole(launch(place, *shell('cat; echo out; echo err >&2')))\n"
        "os._exit(course.result.exit_code)\n"
    )
    path = ":".join(dict.fromkeys(sys.path))
    done = subprocess.run(
        [sys.executable, "-c", guard, path, tmp_path],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    assert (done.returncode, done.stderr.replace(b"err\n", b"")) == (0, b"")
    said = sorted((tmp_path / "execution.log").read_text().split())
    assert said == ["err", "out"]


def test_held_descriptor_when_tree_lives_then_keeps_its_lock(tmp_path: Path) -> None:
    """A lock is held until the tree is gone, and not until all output is read."""
    script = "head -c 120000 /dev/zero; sleep 60 & exit 0"
    with Pipe() as shown, open(tmp_path / "lock", "w") as other:

        def is_free() -> bool:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            fcntl.flock(other, fcntl.LOCK_UN)
            return True

        lock = os.open(tmp_path / "lock", os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)
        stdio = Stdio(stdout=shown.end)
        asked = launch(tmp_path, *shell(script), hold_fds=(lock,), stdio=stdio)
        with Supervision.start(asked) as supervised:
            os.close(lock)
            events_until_end(supervised)
            held = not is_free()
            supervised.end_tree(0.0)
            free = is_free()
            supervised.stop("nobody reads")
    assert (held, free) == (True, True)


@pytest.mark.case("E58")
def test_command_when_started_by_a_thread_that_ends_then_it_runs_on(
    tmp_path: Path,
) -> None:
    """The end of the thread that launched a command is not the death of the guard."""
    made: list[Supervision] = []
    script = "echo > ready; read line < go; exit 4"
    os.mkfifo(tmp_path / "go")
    thread = threading.Thread(
        target=lambda: made.append(Supervision.start(launch(tmp_path, *shell(script))))
    )
    thread.start()
    thread.join()
    with made[0] as supervised:
        until((tmp_path / "ready").exists)
        (tmp_path / "go").write_text("on\n")
        result = events_until_end(supervised)[-1].result
        supervised.end_tree(0.0)
    assert result.exit_code == 4


def test_commands_when_started_by_many_threads_at_once_then_each_has_its_own(
    tmp_path: Path,
) -> None:
    """Supervisors that start at one time do not hold each other's descriptors."""
    codes: dict[int, int | None] = {}

    def body(number: int) -> None:
        asked = launch(tmp_path, *shell(f"exit {number}"), log=tmp_path / str(number))
        codes[number] = run_whole(asked).result.exit_code

    threads = [threading.Thread(target=body, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: number for number in range(1, 7)} == codes


# --- the supervisor itself ------------------------------------------------------------

BEYOND_BARE = {
    "__future__",
    "_collections_abc",
    "_ctypes",
    "_socket",
    "_stat",
    "_struct",
    "ctypes",
    "ctypes._endian",
    "errno",
    "fcntl",
    "genericpath",
    "importlib",
    "importlib._bootstrap",
    "importlib._bootstrap_external",
    "os",
    "os.path",
    "posixpath",
    "resource",
    "select",
    "stat",
    "struct",
    "types",
    "warnings",
    "workspace_guard",
    "workspace_guard.containment",
    "workspace_guard.containment.child",
    "workspace_guard.containment.offspring",
    "workspace_guard.containment.relay",
    "workspace_guard.containment.supervisor",
    "workspace_guard.containment.terminal",
    "workspace_guard.containment.wire",
    "workspace_guard.kernel",
    "workspace_guard.kernel.calls",
}


def test_supervisor_when_loaded_then_has_nothing_heavy() -> None:
    """Each module of the supervisor's is named: one more costs every run its time."""
    report = (
        "import sys; before = set(sys.modules); sys.path.append(sys.argv[1]); "
        "from workspace_guard.containment import supervisor; import os; "
        "os.waitstatus_to_exitcode(os.wait4(os.posix_spawn('/bin/true', ['true'], {}),"
        " 0)[1]); print(*set(sys.modules) - before)"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", report, root],
        check=True,
        capture_output=True,
        text=True,
    )
    assert set() == set(done.stdout.split()) - BEYOND_BARE


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGQUIT, signal.SIGHUP])
def test_supervisor_when_terminal_signals_its_group_then_goes_on(
    signum: signal.Signals, tmp_path: Path
) -> None:
    """Ctrl-C, also in the supervisor's first millisecond, does not end it."""
    with Supervision.start(launch(tmp_path, *shell("exit 6"))) as supervised:
        os.kill(supervised.pid, signum)
        result = events_until_end(supervised)[-1].result
        supervised.end_tree(0.0)
    assert result.exit_code == 6


def test_supervisor_when_asked_to_terminate_then_ends_the_command(
    tmp_path: Path,
) -> None:
    """SIGTERM to the supervisor stops the run, and the guard hears of it."""
    with Supervision.start(launch(tmp_path, "sleep", "60")) as supervised:
        until_started(supervised)
        os.kill(supervised.pid, signal.SIGTERM)
        event = events_until_end(supervised)[-1]
        supervised.end_tree(0.0)
    assert isinstance(event, Ended)
    assert (
        event.result.error,
        event.result.message,
    ) == ("interrupted", "the supervisor was asked to stop")


def test_supervision_when_its_block_is_left_by_exception_then_ends_the_tree(
    tmp_path: Path,
) -> None:
    """An exception of the guard's leaves nobody behind."""
    script = "setsid sleep 60 & echo $! > pid; sleep 60"
    supervised = Supervision.start(launch(tmp_path, *shell(script)))
    with contextlib.suppress(KeyboardInterrupt), supervised:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        raise KeyboardInterrupt
    assert gone(supervised.pid)
    assert gone(int((tmp_path / "pid").read_text()))


def test_supervision_when_the_log_cannot_be_opened_then_nothing_is_started(
    tmp_path: Path,
) -> None:
    """A log that is a link is not followed: it could lead anywhere."""
    (tmp_path / "execution.log").symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        Supervision.start(launch(tmp_path, *shell("echo > ran")))
    assert os.listdir(tmp_path) == ["execution.log"]


def test_usage_when_told_then_counts_the_whole_tree(tmp_path: Path) -> None:
    """What children and daemons have used is part of the command's usage."""
    burn = (
        "import os, time\n"
        "if not os.fork(): os.fork(); [0 for _ in iter(lambda: time.process_time() "
        "< 0.06, False)]; big = bytearray(50 << 20)\n"
    )
    tree = run_whole(launch(tmp_path, *python(burn)), grace_s=5.0).tree
    assert 0.12 <= tree.usage.cpu_s < 5.0
    assert 50 << 20 <= tree.usage.max_rss_bytes < 500 << 20


def test_stdio_when_stdin_is_given_then_the_command_reads_it(tmp_path: Path) -> None:
    """The command's input is the descriptor that it was given."""
    with Pipe() as typed, Pipe() as shown:
        os.write(typed.end, b"words\n")
        typed.close_end()
        stdio = Stdio(stdin=typed.source, stdout=shown.end)
        run_whole(launch(tmp_path, "cat", stdio=stdio))
        shown.close_end()
        assert os.read(shown.source, 100) == b"words\n"
