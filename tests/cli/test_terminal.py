"""`wsguard run` at a real terminal: keys, sizes, the live line, and how it is left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import pytest
from guarded import DEADLINE_S, GOOD, WSGUARD, House, nobody_runs, until
from listing import changes

if TYPE_CHECKING:
    from pathlib import Path

if not hasattr(os, "openpty"):
    pytest.skip("needs openpty", allow_module_level=True)

import fcntl
import struct
import termios

pytestmark = [pytest.mark.mode("detect"), pytest.mark.slow]
SIT_DOWN = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
CTRL_C = b"\x03"
LIVE = b"wsguard: "


@pytest.fixture
def house(workspace: Path, state_dir: Path) -> House:
    """The sample workspace and a state folder."""
    return House(workspace, state_dir)


class Terminal:
    """A terminal, a program that was started at it, and a person who reads and types.

    Args:
        house: where the program runs.
        arguments: of `wsguard`.
        rows: of the window.
        columns: of the window.
        streams: of the program that are not the terminal.
    """

    def __init__(
        self,
        house: House,
        *arguments: str | Path,
        rows: int = 30,
        columns: int = 100,
        env: dict[str, str] | None = None,
        **streams: int,
    ) -> None:
        self._master, self._slave = os.openpty()
        os.set_blocking(self._master, False)
        self.resize(rows, columns)
        self.before = self.settings
        self.text = b""
        command = [sys.executable, "-I", "-S", "-c", SIT_DOWN, WSGUARD, *arguments]
        environment = {
            **os.environ,
            "TERM": "xterm",
            "WORKSPACE_GUARD_STATE_DIR": str(house.state),
            **(env or {}),
        }
        ends: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), self._slave)
        self.process = subprocess.Popen(
            command, cwd=house.workspace.parent, env=environment, **{**ends, **streams}
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    @property
    def settings(self) -> list[Any]:
        """What the terminal does with keys and lines."""
        return termios.tcgetattr(self._slave)

    def resize(self, rows: int, columns: int) -> None:
        """Make the window another size, and tell who sits at it."""
        size = struct.pack("4H", rows, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def say(self, keys: bytes) -> None:
        """Type something."""
        os.write(self._master, keys)

    def expect(self, words: bytes) -> bytes:
        """Wait until something is shown; all before it, which is forgotten."""
        limit = time.monotonic() + DEADLINE_S
        while words not in self.text:
            self._look()
            assert time.monotonic() < limit, f"no {words!r} in {self.text!r}"
        before, _, self.text = self.text.partition(words)
        return before

    def expect_end(self) -> tuple[int, bytes]:
        """Wait until the program has ended: its exit status, and the last words."""
        limit = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            self._look()
            assert time.monotonic() < limit, f"it goes on, and shows {self.text!r}"
        self._look()
        return self.process.returncode, self.text

    def _look(self) -> None:
        select.select([self._master], [], [], 0.02)
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._master, 1 << 16):
                self.text += chunk


def at_terminal(
    house: House, script: str, *options: str, rows: int = 30, columns: int = 100
) -> Terminal:
    """Run a script of the shell as a step, at a terminal."""
    words = ["run", "-w", house.workspace, *options, "--", "sh", "-c", script]
    return Terminal(house, *words, rows=rows, columns=columns)


# --- What the command sees ------------------------------------------------------------

SIZES = """
import os, signal, sys
def show(*_):
    print([tuple(os.get_terminal_size(fd)) for fd in (0, 1, 2)], flush=True)
signal.signal(signal.SIGWINCH, show)
show()
while sys.stdin.readline() != "enough\\n": pass
"""


def test_command_when_at_a_terminal_then_has_its_size_and_follows_it(
    house: House,
) -> None:
    """All three streams are a terminal, as large as the one where the guard sits."""
    words = ["run", "-w", house.workspace, "--no-target", "--"]
    command = [sys.executable, "-I", "-S", "-c", SIZES]
    with Terminal(house, *words, *command, rows=31, columns=97) as terminal:
        terminal.expect(b"[(97, 31), (97, 31), (97, 31)]")
        terminal.resize(50, 132)
        terminal.expect(b"[(132, 50), (132, 50), (132, 50)]")
        terminal.say(b"enough\n")
        status, _ = terminal.expect_end()

    assert status == 0


def test_keys_when_typed_then_are_echoed_and_read_as_lines(house: House) -> None:
    """Typing into a command is as typing at it without a guard."""
    script = f"printf 'name? '; read name; echo \"hello $name\"; {GOOD}"
    with at_terminal(house, script, "--quiet") as terminal:
        terminal.expect(b"name? ")
        terminal.say(b"Adx\x7fa\n")
        assert b"Adx\x08 \x08a" in terminal.expect(b"hello Ada")
        status, _ = terminal.expect_end()

    assert status == 0
    log = (house.workspace / "tasks/run_1/execution.log").read_bytes()
    assert log.endswith(b"hello Ada\r\n")


def test_command_when_it_reads_single_keys_then_gets_each_at_once(
    house: House,
) -> None:
    """A program that takes its terminal raw gets every key, Ctrl-C as well."""
    script = (
        "stty raw -echo; echo ready; head -c 4 | od -An -tx1; stty sane;"
        f" {GOOD}; exit 0"
    )
    with at_terminal(house, script, "--quiet") as terminal:
        terminal.expect(b"ready")
        for key in (b"\x1b", b"q", b"\x04", b"\x03"):
            terminal.say(key)
        terminal.expect(b"1b 71 04 03")
        status, _ = terminal.expect_end()

    assert status == 0


# --- The live line --------------------------------------------------------------------


def test_live_line_when_at_a_terminal_then_shows_time_and_escapes(
    house: House,
) -> None:
    """It says what is going on, and that edits may be undone."""
    script = "echo mine > ../../PLAN.md; read line"
    with at_terminal(house, script) as terminal:
        terminal.expect(LIVE)
        terminal.expect(b"1 change outside the step, edits made in the workspace now")
        terminal.say(b"\n")
        status, rest = terminal.expect_end()

    assert status == 30
    # The line is taken away again before the report stands there.
    report = rest.rpartition(b"\x1b[2K")[2]
    assert b"escaped" in report
    assert LIVE not in report


def test_live_line_when_a_line_is_not_finished_then_waits(house: House) -> None:
    """A prompt is never written over."""
    with at_terminal(house, f"printf 'name? '; read name; {GOOD}") as terminal:
        terminal.expect(b"name? ")
        until(lambda: house.journal != [])
        terminal.say(b"Ada\n")
        shown = terminal.expect(b"Ada\r\n")
        terminal.expect_end()

    assert LIVE not in shown


def test_live_line_when_a_program_takes_the_screen_then_is_off(house: House) -> None:
    """Nothing is drawn into a full-screen program, nor afterwards."""
    script = (
        "echo ready; printf '\\033[?1049h'; sleep 1.4; printf 'menu\\n';"
        f" printf '\\033[?1049l'; sleep 1.2; echo last; {GOOD}"
    )
    with at_terminal(house, script) as terminal:
        terminal.expect(b"\x1b[?1049h")
        shown = terminal.expect(b"last")
        status, _ = terminal.expect_end()

    assert (status, LIVE in shown) == (0, False)


def test_live_line_when_quiet_or_in_a_pipe_then_is_absent(house: House) -> None:
    """A log of a pipeline holds no drawing."""
    script = f"sleep 0.6; {GOOD}"
    with at_terminal(house, script, "--quiet") as terminal:
        status, shown = terminal.expect_end()
    piped = house.call("run", "-w", house.workspace, "--", "sh", "-c", script)

    assert (status, shown) == (0, b"")
    assert piped.status == 0
    assert "\x1b" not in piped.err
    assert "wsguard:" not in piped.err


def test_live_line_when_only_stderr_is_a_terminal_then_is_there(house: House) -> None:
    """`wsguard run --json | jq` shows what is going on, and pipes one document."""
    script = f"echo spoken; sleep 0.6; {GOOD}"
    words = ["run", "-w", house.workspace, "--json", "--", "sh", "-c", script]
    piped = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    with Terminal(house, *words, **piped) as terminal:
        terminal.expect(b"spoken\r\n")
        terminal.expect(LIVE)
        assert terminal.process.stdout is not None
        document = json.loads(terminal.process.stdout.read())
        terminal.process.stdout.close()
        terminal.expect_end()

    assert document["verdict"] == "promoted"


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_report_when_at_a_terminal_then_is_coloured_unless_unwanted(
    house: House, env: dict[str, str], *, coloured: bool
) -> None:
    """NO_COLOR is respected."""
    words = ["run", "-w", house.workspace, "--", "sh", "-c", GOOD]
    with Terminal(house, *words, env=env) as terminal:
        _, shown = terminal.expect_end()
    report = shown.rpartition(b"\x1b[2K")[2]

    assert b"promoted" in report
    assert (re.search(rb"\x1b\[[0-9;]*3[0-9]m", report) is not None) == coloured


# --- Ctrl-C ---------------------------------------------------------------------------


def test_interrupt_key_when_typed_once_then_is_the_commands(house: House) -> None:
    """An interactive agent makes of it what it wants."""
    loop = "while :; do sleep 0.05; done"
    script = f"trap 'echo caught; {GOOD}; exit 0' INT; echo ready; {loop}"
    with at_terminal(house, script) as terminal:
        terminal.expect(b"ready")
        terminal.say(CTRL_C)
        terminal.expect(b"caught")
        status, _ = terminal.expect_end()

    assert status == 0
    assert house.door.record().verdict.value == "promoted"


def test_interrupt_key_when_typed_once_and_not_taken_then_130(house: House) -> None:
    """A command that does not care for it ends by it, as without a guard."""
    before = house.look()
    script = "echo mine > ../../PLAN.md; echo ready; sleep 60"
    with at_terminal(house, script) as terminal:
        terminal.expect(b"ready")
        terminal.say(CTRL_C)
        status, _ = terminal.expect_end()

    assert status == 130
    assert changes(before, house.look()) == {}


def test_interrupt_key_when_typed_twice_then_ends_the_run_with_130(
    house: House,
) -> None:
    """Whoever cannot be interrupted is ended, and the parent is whole."""
    before = house.look()
    script = (
        "echo mine > ../../PLAN.md; trap 'echo not now' INT; sleep 61 & echo ready;"
        " while :; do sleep 0.1; done"
    )
    with at_terminal(house, script) as terminal:
        terminal.expect(b"ready")
        terminal.say(CTRL_C)
        terminal.expect(b"not now")
        terminal.say(CTRL_C)
        status, shown = terminal.expect_end()
        settings = terminal.settings
    record = house.door.record()

    assert (status, record.verdict.value) == (130, "runner_failed")
    assert b"runner_failed" in shown
    assert changes(before, house.look()) == {}
    assert nobody_runs(record.run_id)
    assert settings == terminal.before
    assert house.journal == []


def test_interrupt_key_when_the_command_has_not_begun_then_130(house: House) -> None:
    """Before the command runs the keys are the guard's own."""
    house.door.run_step(["true"])
    lock = os.open(house.folder / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    words = ["run", "-w", house.workspace, "--wait", "60", "--", "true"]
    with house.unchanged(without=()), Terminal(house, *words) as terminal:
        until(lambda: len(house.runs) == 2)
        terminal.say(CTRL_C)
        status, shown = terminal.expect_end()
        settings = terminal.settings
    os.close(lock)

    assert status == 130
    assert b"stopped by" in shown
    assert settings == terminal.before


# --- How it is left -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "status"),
    [
        (GOOD, 0),
        ("kill -SEGV $$", 20),
        ("stty raw -echo; exit 3", 20),
        ("printf '\\033[?1049h'; kill -9 $$", 20),
    ],
)
def test_terminal_when_the_run_is_over_then_is_as_it_was(
    house: House, script: str, status: int
) -> None:
    """Whatever the command did with its own terminal, ours is not touched."""
    with at_terminal(house, script) as terminal:
        found, _ = terminal.expect_end()
        settings = terminal.settings

    assert found == status
    assert settings == terminal.before


def test_terminal_when_it_is_closed_then_the_next_run_puts_the_parent_back(
    house: House,
) -> None:
    """A window that is closed ends the guard by SIGHUP: a crash like any other."""
    before = house.look()
    with at_terminal(house, "echo mine > ../../PLAN.md; echo ready; sleep 60") as it:
        it.expect(b"ready")
        it.process.send_signal(signal.SIGHUP)
        it.expect_end()
        [run_id] = house.runs
        until(lambda: nobody_runs(run_id))
    done = house.call("recover", house.workspace)

    assert done.status == 0
    assert changes(before, house.look()) == {}
