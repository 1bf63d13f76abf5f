"""What is left of a command's tree: found, named, ended, also when somebody dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from supervised import (
    Pipe,
    events_until_end,
    gone,
    launch,
    nobody_of,
    python,
    read_rest,
    run_whole,
    shell,
    until,
    until_started,
)

from workspace_guard.containment import supervision
from workspace_guard.containment.base import Leftover, Stdio
from workspace_guard.containment.launch import Ended
from workspace_guard.containment.plain import PlainSupervision
from workspace_guard.containment.processes import holders
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


def _daemon(body: str, after: str = "") -> tuple[str, ...]:
    """A command that leaves a daemon: forked twice, in a session of its own."""
    return python(
        "import _signal, os, time\n"
        "if not os.fork():\n"
        "    os.setsid()\n"
        "    if not os.fork():\n"
        f"        {body}\n"
        "    os._exit(0)\n"
        f"os.wait(); {after}"
    )


def _ends(leftovers: tuple[Leftover, ...]) -> list[tuple[str, str]]:
    return sorted((each.command, each.ended) for each in leftovers)


# --- what is left ---------------------------------------------------------------------


@pytest.mark.case("S45")
@either
def test_daemon_when_command_has_ended_then_is_found_named_and_ended(
    start: Start, tmp_path: Path
) -> None:
    """Forking twice into a session of its own gets no process away."""
    asked = launch(tmp_path, *_daemon("os.execvp('sleep', ['sleep', '61'])"))
    with start(asked) as supervised:
        events_until_end(supervised)
        until(lambda: [each.command for each in supervised.leftovers()] == ["sleep 61"])
        left = supervised.leftovers()
        tree = supervised.end_tree(0.0)
    assert _ends(tree.leftovers) == [("sleep 61", "terminated")]
    assert [each.pid for each in tree.leftovers] == [each.pid for each in left]
    assert gone(left[0].pid)


@pytest.mark.case("E56")
def test_leftover_when_it_ends_within_its_grace_then_is_waited_for(
    tmp_path: Path,
) -> None:
    """Work that comes to its end by itself is not cut off, nor waited for too long."""
    script = "(read line < go; echo late > late) & exit 0"
    os.mkfifo(tmp_path / "go")
    with Supervision.start(launch(tmp_path, *shell(script))) as supervised:
        events_until_end(supervised)
        go_on = os.open(tmp_path / "go", os.O_RDWR)
        os.write(go_on, b"on\n")
        began = time.monotonic()
        tree = supervised.end_tree(60.0)
        os.close(go_on)
    assert [each.ended for each in tree.leftovers] in ([], ["exited"])
    assert (tmp_path / "late").read_text() == "late\n"
    assert time.monotonic() - began < 5.0


def test_leftover_when_named_before_then_its_end_is_told(tmp_path: Path) -> None:
    """Whoever was there when the command ended stands in the account."""
    os.mkfifo(tmp_path / "go")
    asked = launch(tmp_path, *shell("cat go & exit 0"))
    with Supervision.start(asked) as supervised:
        events_until_end(supervised)
        until(lambda: [each.command for each in supervised.leftovers()] == ["cat go"])
        (tmp_path / "go").write_text("")
        tree = supervised.end_tree(60.0)
    assert _ends(tree.leftovers) == [("cat go", "exited")]


@pytest.mark.slow
@either
def test_leftover_when_it_ignores_sigterm_then_is_killed(
    start: Start, tmp_path: Path
) -> None:
    """A leftover that does not want to end is ended, and that is told."""
    body = (
        "_signal.signal(_signal.SIGTERM, _signal.SIG_IGN); "
        "open('ready', 'w').close(); time.sleep(60)"
    )
    with start(launch(tmp_path, *_daemon(body))) as supervised:
        events_until_end(supervised)
        until((tmp_path / "ready").exists)
        tree = supervised.end_tree(0.0)
    assert [each.ended for each in tree.leftovers] == ["killed"]
    assert gone(tree.leftovers[0].pid)


@pytest.mark.slow
def test_leftover_when_asked_to_end_then_is_asked_once(tmp_path: Path) -> None:
    """A program that tidies up on SIGTERM is not disturbed at it by a second one."""
    body = (
        "_signal.pthread_sigmask(_signal.SIG_BLOCK, {_signal.SIGTERM}); "
        "open('ready', 'w').close(); terms = open('terms', 'w', 1)\n"
        "        while _signal.sigwait({_signal.SIGTERM}): terms.write('once\\n')"
    )
    with Supervision.start(launch(tmp_path, *_daemon(body))) as supervised:
        events_until_end(supervised)
        until((tmp_path / "ready").exists)
        tree = supervised.end_tree(0.0)
    assert [each.ended for each in tree.leftovers] == ["killed"]
    assert (tmp_path / "terms").read_text() == "once\n"


def test_leftovers_when_there_are_many_then_all_are_ended(tmp_path: Path) -> None:
    """A hundred daemons, each with a session of its own, are all found."""
    program = (
        "import os, time\n"
        "for _ in range(100):\n"
        " if not os.fork():\n"
        "  os.setsid(); time.sleep(60)\n"
    )
    asked = launch(tmp_path, *python(program))
    with Supervision.start(asked) as supervised:
        events_until_end(supervised)
        tree = supervised.end_tree(0.0)
    assert [each.ended for each in tree.leftovers].count("terminated") == 100
    assert nobody_of(asked)


@pytest.mark.slow
def test_leftover_when_it_forks_for_ever_then_is_ended(tmp_path: Path) -> None:
    """A process that is another one at every look is caught all the same."""
    program = (
        "import _signal, os\n"
        "_signal.signal(_signal.SIGTERM, _signal.SIG_IGN)\n"
        "if os.fork(): os._exit(0)\n"
        "while True:\n"
        " if os.fork(): os._exit(0)\n"
    )
    asked = launch(tmp_path, *python(program))
    with Supervision.start(asked) as supervised:
        events_until_end(supervised)
        tree = supervised.end_tree(0.0)
    assert "alive" not in {each.ended for each in tree.leftovers}
    assert nobody_of(asked)


def test_leftover_when_it_has_a_target_open_then_that_is_told(tmp_path: Path) -> None:
    """A process that can still write a target is told from one that only lives."""
    script = "sleep 61 >> target & sleep 62 < target & exit 0"
    (tmp_path / "target").write_text("")
    with Supervision.start(launch(tmp_path, *shell(script))) as supervised:
        events_until_end(supervised)
        until(
            lambda: (
                {each.command for each in supervised.leftovers()}
                == {"sleep 61", "sleep 62"}
            )
        )
        pids = [each.pid for each in supervised.leftovers()]
        writing = holders([os.fsencode(tmp_path / "target")], pids)
        tree = supervised.end_tree(0.0, writing)
    told = {each.command: each.target_open for each in tree.leftovers}
    assert told == {"sleep 61": True, "sleep 62": False}


@either
def test_end_tree_when_the_command_still_runs_then_ends_that_first(
    start: Start, tmp_path: Path
) -> None:
    """A guard that has seen enough may end everything at once."""
    asked = launch(tmp_path, "sleep", "60")
    with start(asked) as supervised:
        until_started(supervised)
        tree = supervised.end_tree(5.0)
        event = events_until_end(supervised)[-1]
    assert tree.leftovers == ()
    assert isinstance(event, Ended)
    assert event.result.message == "the run was broken off"
    assert nobody_of(asked)


@pytest.mark.slow
def test_tree_when_nobody_adopts_orphans_then_its_group_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a subreaper the process group is what can be ended; that is said."""
    elsewhere = "import sys; sys.platform = 'freebsd14'; " + supervision._PROGRAM
    monkeypatch.setattr(supervision, "_PROGRAM", elsewhere)
    asked = launch(tmp_path, *shell("(sleep 61 &) ; exit 0"))
    with Supervision.start(asked) as supervised:
        started = until_started(supervised)
        events_until_end(supervised)
        supervised.end_tree(0.0)
    assert started.whole_tree is False
    until(lambda: nobody_of(asked))


def test_tree_when_held_then_that_is_said(tmp_path: Path) -> None:
    """On Linux every descendant is held, daemons too."""
    assert run_whole(launch(tmp_path, "true")).started.whole_tree is True


# --- the heartbeat --------------------------------------------------------------------


def test_heartbeat_when_tree_lives_and_when_it_is_gone_then_says_so(
    tmp_path: Path,
) -> None:
    """One line of one length: the state, and who holds the tree."""
    heartbeat = tmp_path / "heartbeat"
    asked = launch(tmp_path, *shell("sleep 60 & exit 0"), heartbeat=heartbeat)
    with Supervision.start(asked) as supervised:
        events_until_end(supervised)
        while_leftover_lives = heartbeat.read_bytes()
        supervised.end_tree(0.0)
        pid = supervised.pid
        after = heartbeat.read_bytes()
    assert while_leftover_lives == b"running %10d\n" % pid
    assert after == b"ended   %10d\n" % pid


@pytest.mark.slow
@either
def test_heartbeat_when_the_command_runs_on_then_its_time_moves(
    start: Start, tmp_path: Path
) -> None:
    """The file's time is the last moment at which the tree was known to live."""
    heartbeat = tmp_path / "heartbeat"
    asked = launch(tmp_path, "sleep", "60", heartbeat=heartbeat)
    with start(asked) as supervised:
        until_started(supervised)
        until(lambda: heartbeat.exists() and heartbeat.read_bytes())
        first = heartbeat.stat().st_mtime_ns
        until(lambda: heartbeat.stat().st_mtime_ns > first)
        supervised.end_tree(0.0)
    assert heartbeat.read_bytes().startswith(b"ended")


# --- when the supervisor is lost ------------------------------------------------------

WITH_DAEMON = _daemon(
    "open('daemon', 'w').write(str(os.getpid())); time.sleep(60)",
    after="time.sleep(60)",
)


def _daemon_of(place: Path) -> int:
    path = place / "daemon"
    until(lambda: path.exists() and path.read_text())
    return int(path.read_text())


def test_supervisor_when_killed_then_whole_tree_is_ended_and_it_is_lost(
    tmp_path: Path,
) -> None:
    """Without its supervisor nobody of the run lives on, daemons neither."""
    heartbeat = tmp_path / "heartbeat"
    asked = launch(tmp_path, *WITH_DAEMON, heartbeat=heartbeat)
    with Supervision.start(asked) as supervised:
        started = until_started(supervised)
        daemon = _daemon_of(tmp_path)
        os.kill(supervised.pid, signal.SIGKILL)
        event = events_until_end(supervised)[-1]
        tree = supervised.end_tree(0.0)
    assert isinstance(event, Ended)
    assert event.lost is True
    assert event.result.message == "supervisor_lost: it has ended"
    assert tree.lost is True
    assert daemon in {each.pid for each in tree.leftovers}
    assert gone(daemon)
    assert gone(started.pid)
    assert heartbeat.read_bytes().startswith(b"ended")


def test_supervisor_when_killed_then_the_command_dies_with_it(tmp_path: Path) -> None:
    """The command itself needs no mark to be found: the kernel ends it."""
    environment = {"PATH": os.environ["PATH"]}
    asked = launch(tmp_path, "sleep", "60", environment=environment)
    with Supervision.start(asked) as supervised:
        started = until_started(supervised)
        os.kill(supervised.pid, signal.SIGKILL)
        events_until_end(supervised)
        supervised.end_tree(0.0)
    until(lambda: gone(started.pid))


@pytest.mark.slow
def test_supervisor_when_stopped_then_is_lost_within_three_seconds(
    tmp_path: Path,
) -> None:
    """A supervisor that does not answer is as good as dead, and so is its tree."""
    asked = launch(tmp_path, *WITH_DAEMON)
    with Supervision.start(asked) as supervised:
        until_started(supervised)
        _daemon_of(tmp_path)
        os.kill(supervised.pid, signal.SIGSTOP)
        began = time.monotonic()
        event = events_until_end(supervised)[-1]
        seconds = time.monotonic() - began
        tree = supervised.end_tree(0.0)
    assert isinstance(event, Ended)
    assert event.result.message == "supervisor_lost: it has not answered for 2 s"
    assert (event.lost, tree.lost) == (True, True)
    assert 1.5 < seconds < 3.0
    assert [each.ended for each in tree.leftovers] == ["killed", "killed"]
    assert nobody_of(asked)


def test_supervisor_when_killed_after_the_command_ended_then_the_tree_is_lost(
    tmp_path: Path,
) -> None:
    """The command's own end is known, that of its leftovers is not."""
    asked = launch(tmp_path, *shell("setsid sleep 60 & exit 0"))
    with Supervision.start(asked) as supervised:
        event = events_until_end(supervised)[-1]
        until(lambda: len(supervised.leftovers()) == 1)
        os.kill(supervised.pid, signal.SIGKILL)
        tree = supervised.end_tree(0.0)
    assert isinstance(event, Ended)
    assert (event.lost, event.result.error) == (False, None)
    assert (tree.lost, [each.ended for each in tree.leftovers]) == (True, ["killed"])
    assert nobody_of(asked)


def test_supervision_when_over_then_says_nothing_to_a_reused_descriptor(
    tmp_path: Path,
) -> None:
    """What comes too late for the supervisor must not land in another file."""
    with Supervision.start(launch(tmp_path, "sleep", "60")) as supervised:
        until_started(supervised)
        control = supervised._control.fileno()
        os.kill(supervised.pid, signal.SIGKILL)
        events_until_end(supervised)
        other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
        os.dup2(other, control)
        supervised.send_signal(signal.SIGINT)
        supervised.resize(1, 1)
        supervised.stop("too late")
        supervised.end_tree(0.0)
        os.close(other)
        if other != control:
            os.close(control)
    assert (tmp_path / "other").read_bytes() == b""


def test_supervisor_when_it_cannot_start_then_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interpreter that ends at once is told, with nothing left behind."""
    monkeypatch.setattr(supervision, "_PROGRAM", "raise SystemExit(3)")
    course = run_whole(launch(tmp_path, "true"))
    assert course.ended.lost is True
    assert course.result.message == "supervisor_lost: it has ended"


def test_supervisor_when_it_breaks_then_ends_its_tree_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A bug of the supervisor's ends the tree, and its words reach the guard."""
    broken = (
        "import sys; sys.path.append(sys.argv[1]); "
        "from workspace_guard.containment import supervisor\n"
        "def fail(*_): raise LookupError('a bug')\n"
        "supervisor.Supervisor._signal_foreground = fail\n"
        "supervisor.main(int(sys.argv[2]))"
    )
    monkeypatch.setattr(supervision, "_PROGRAM", broken)
    asked = launch(tmp_path, "sleep", "60")
    with Supervision.start(asked) as supervised:
        until_started(supervised)
        supervised.send_signal(signal.SIGINT)
        event = events_until_end(supervised)[-1]
        supervised.end_tree(0.0)
    assert isinstance(event, Ended)
    assert event.result.message == "supervisor_lost: LookupError('a bug')"
    assert "LookupError: a bug" in capfd.readouterr().err
    assert nobody_of(asked)


# --- when the guard dies --------------------------------------------------------------

GUARD = """
import os, sys, time
sys.path[:0] = sys.argv[1].split(":")
from pathlib import Path
from supervised import launch, until_started
from workspace_guard.containment.supervision import Supervision
place = Path(sys.argv[2])
asked = launch(place, *sys.argv[3:], heartbeat=place / "heartbeat")
supervised = Supervision.start(asked)
until_started(supervised)
{more}
(place / "supervisor").write_text(str(supervised.pid))
time.sleep(60)
"""


def _kill_guard(place: Path, more: str = "") -> tuple[int, int]:
    """Start a guard with a daemon in its tree and kill it; supervisor and daemon."""
    path = ":".join(dict.fromkeys(sys.path))
    program = GUARD.format(more=more)
    guard = subprocess.Popen([sys.executable, "-c", program, path, place, *WITH_DAEMON])
    told = place / "supervisor"
    until(lambda: told.exists() and told.read_text())
    daemon = _daemon_of(place)
    guard.kill()
    guard.wait()
    return int(told.read_text()), daemon


@pytest.mark.slow
@pytest.mark.case("E59")
def test_guard_when_killed_then_nobody_is_alive_and_heartbeat_says_so(
    tmp_path: Path,
) -> None:
    """After a SIGKILL of the guard its supervisor ends the tree and says so."""
    supervisor, daemon = _kill_guard(tmp_path)
    until(lambda: gone(supervisor))
    assert gone(daemon)
    assert (tmp_path / "heartbeat").read_bytes() == b"ended   %10d\n" % supervisor


@pytest.mark.slow
def test_guard_when_killed_while_its_child_has_its_socket_then_tree_is_ended(
    tmp_path: Path,
) -> None:
    """A process that the guard has forked does not keep the dead guard's run alive."""
    fork = (
        "if not os.fork():\n"
        "    (place / 'child').write_text(str(os.getpid()))\n"
        "    time.sleep(60)\n"
    )
    supervisor, daemon = _kill_guard(tmp_path, fork)
    until(lambda: gone(supervisor))
    until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text())
    child = int((tmp_path / "child").read_text())
    assert not gone(child)
    os.kill(child, signal.SIGKILL)
    assert gone(daemon)


def test_guard_when_it_leaves_while_a_destination_is_stuck_then_nothing_hangs(
    tmp_path: Path,
) -> None:
    """An exception does not wait for somebody who does not read."""
    program = "import os; os.write(1, bytes(1 << 20))"
    with Pipe() as shown:
        stdio = Stdio(stdout=shown.end)
        asked = launch(tmp_path, *python(program), stdio=stdio)
        supervised = Supervision.start(asked)
        with supervised:
            until_started(supervised)
            supervised.stop("enough")
            events_until_end(supervised)
            supervised.end_tree(0.0)
            supervised.stop("and wait for nobody")
        shown.close_end()
        assert len(read_rest(shown.source)) < 1 << 20
    assert gone(supervised.pid)
