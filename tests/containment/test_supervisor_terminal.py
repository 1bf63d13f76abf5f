"""A command on a terminal of its own, as a person sits at it."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from supervised import (
    Pipe,
    dialogue,
    events_until_end,
    launch,
    python,
    read_exactly,
    run_whole,
    shell,
)

from workspace_guard.containment.base import Stdio
from workspace_guard.containment.supervision import Supervision

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs openpty")

PROMPT = b"> "


def test_terminal_when_given_then_all_three_streams_are_it(tmp_path: Path) -> None:
    """An interactive program finds a terminal of the size that was asked for."""
    program = (
        "import os\n"
        "print([os.isatty(fd) for fd in (0, 1, 2)], os.get_terminal_size())\n"
        "print(os.getsid(0) == os.tcgetpgrp(0) == os.getpid())\n"
        "os.close(os.open('/dev/tty', os.O_RDWR))"
    )
    with dialogue(tmp_path, *python(program), size=(31, 97)) as talk:
        ended = talk.expect_end()
        talk.expect(b"True\r\n")
    assert ended.result.error is None
    assert (tmp_path / "execution.log").read_bytes() == (
        b"[True, True, True] os.terminal_size(columns=97, lines=31)\r\nTrue\r\n"
    )


def test_terminal_when_its_size_changes_then_the_command_is_told(
    tmp_path: Path,
) -> None:
    """A window that is made larger is larger for the command too."""
    program = (
        "import os, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})\n"
        "print('ready', flush=True)\n"
        "signal.sigwait({signal.SIGWINCH})\n"
        "print(os.get_terminal_size())"
    )
    with dialogue(tmp_path, *python(program)) as talk:
        talk.expect(b"ready\r\n")
        talk.supervised.resize(50, 132)
        talk.expect(b"os.terminal_size(columns=132, lines=50)\r\n")
        talk.expect_end()


def test_terminal_when_interrupt_key_is_typed_then_foreground_and_guard_get_it(
    tmp_path: Path,
) -> None:
    """Ctrl-C reaches the command by its terminal, and the guard as an event."""
    script = "trap 'exit 5' INT; sh -c 'echo ready; exec sleep 60'; exit 6"
    with dialogue(tmp_path, *shell(script)) as talk:
        talk.expect(b"ready\r\n")
        talk.say(b"\x03")
        ended = talk.expect_end()
        assert ended.result.exit_code == 5
        talk.expect_keys(1)


def test_terminal_when_interrupt_key_is_typed_twice_then_each_is_told(
    tmp_path: Path,
) -> None:
    """A program that takes Ctrl-C as a key gets both, and so does the guard."""
    script = "stty raw -echo; echo ready; head -c 3 | od -An -tx1; sleep 60"
    with dialogue(tmp_path, *shell(script)) as talk:
        talk.expect(b"ready\n")
        talk.say(b"\x03x\x03")
        talk.expect(b" 03 78 03\n")
        talk.expect_keys(2)
        talk.supervised.stop("enough")
        talk.expect_end()


def test_shell_when_interactive_then_has_job_control(tmp_path: Path) -> None:
    """Ctrl-Z, jobs, fg and Ctrl-C work in a shell as in any terminal."""
    job = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})\n"
        "print('runs', flush=True)\n"
        "signal.sigwait({signal.SIGCONT})\n"
        "print('goes on', flush=True)\n"
        "signal.pause()\n"
    )
    (tmp_path / "job").write_text(job)
    environment = {"PATH": os.environ["PATH"], "PS1": "> ", "TERM": "dumb"}
    with dialogue(tmp_path, "sh", "-i", environment=environment) as talk:
        talk.expect(PROMPT)
        talk.say(os.fsencode(sys.executable) + b" -I -S job\n")
        talk.expect(b"runs\r\n")
        talk.say(b"\x1a")
        talk.expect(b"Stopped")
        talk.expect(PROMPT)
        talk.say(b"jobs\n")
        assert b"-I -S job" in talk.expect(PROMPT)
        talk.say(b"fg\n")
        talk.expect(b"goes on\r\n")
        talk.supervised.send_signal(signal.SIGINT)
        talk.expect(PROMPT)
        talk.say(b"exit 9\n")
        ended = talk.expect_end()
    assert ended.result.exit_code == 9


def test_terminal_when_input_ends_then_the_command_reads_its_end(
    tmp_path: Path,
) -> None:
    """The end of a piped input is the end of what is typed."""
    with dialogue(tmp_path, "cat") as talk:
        talk.say(b"words\n")
        talk.hang_up()
        ended = talk.expect_end()
    assert ended.result.error is None
    assert (tmp_path / "execution.log").read_bytes() == b"words\r\nwords\r\n"


def test_terminal_when_the_command_has_ended_then_typed_keys_are_left_alone(
    tmp_path: Path,
) -> None:
    """What is typed for the next command is not swallowed by the last one's relay."""
    script = "sleep 60 & exit 0"
    with Pipe() as typed, open(tmp_path / "out", "wb") as out:
        stdio = Stdio(stdin=typed.source, stdout=out.fileno(), terminal=(24, 80))
        with Supervision.start(launch(tmp_path, *shell(script), stdio=stdio)) as one:
            events_until_end(one)
            os.write(typed.end, b"ls\n")
            one.end_tree(0.2)
        assert read_exactly(typed.source, 3) == b"ls\n"


def test_terminal_when_much_is_typed_ahead_then_all_of_it_arrives(
    tmp_path: Path,
) -> None:
    """More than a terminal's own buffer holds is kept until it has room."""
    script = "stty raw -echo; echo ready; read go < go; head -c 100000 | wc -c"
    os.mkfifo(tmp_path / "go")
    with dialogue(tmp_path, *shell(script)) as talk:
        talk.expect(b"ready\n")
        for _ in range(10):
            talk.say(b"0123456789" * 600)
        (tmp_path / "go").write_text("on\n")
        talk.say(b"0123456789" * 4000)
        talk.expect(b"100000\n")
        talk.expect_end()


def test_terminal_when_output_is_large_then_its_end_is_not_lost(tmp_path: Path) -> None:
    """What was written just before the end comes out of the terminal too."""
    program = "import os; [os.write(1, b'%07d\\n' % n) for n in range(20000)]"
    with (
        open(tmp_path / "out", "wb") as out,
        Pipe() as typed,
    ):
        stdio = Stdio(stdin=typed.source, stdout=out.fileno(), terminal=(24, 80))
        run_whole(launch(tmp_path, *python(program), stdio=stdio))
    expected = b"".join(b"%07d\r\n" % n for n in range(20000))
    assert (tmp_path / "out").read_bytes() == expected
    assert (tmp_path / "execution.log").read_bytes() == expected


SHARING_GUARD = """
import os, sys
sys.path[:0] = sys.argv[1].split(":")
from pathlib import Path
from supervised import launch, python, run_whole
take = (
    "import _signal, os\\n"
    "_signal.signal(_signal.SIGTTOU, _signal.SIG_IGN)\\n"
    "os.setpgid(0, 0); os.tcsetpgrp(0, os.getpid())\\n"
    "print(os.tcgetpgrp(0) == os.getpid(), os.getsid(0) == os.getppid())"
)
place = Path(sys.argv[2])
asked = launch(place, *python(take), own_session=False, log=place / "inner.log")
run_whole(asked)
print("given back", os.tcgetpgrp(0) == os.getpgrp())
"""


def test_terminal_when_shared_and_kept_by_a_shell_then_is_given_back(
    tmp_path: Path,
) -> None:
    """A shell that ends in the terminal's foreground does not leave the guard out."""
    path = ":".join(dict.fromkeys(sys.path))
    guard = (sys.executable, "-c", SHARING_GUARD, path, str(tmp_path))
    with dialogue(tmp_path, *guard) as talk:
        talk.expect(b"given back True\r\n")
        talk.expect_end()
    assert (tmp_path / "inner.log").read_text() == "True False\n"
