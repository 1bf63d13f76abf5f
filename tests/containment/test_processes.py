"""Who is running and what they have open, told from outside."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from capabilities import require
from supervised import DEADLINE_S, python, until

from workspace_guard.containment.base import ProcessName
from workspace_guard.containment.processes import (
    alive,
    descendants,
    describe,
    end,
    holders,
    show_command,
    with_variable,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

WAIT = "import sys; print('ready', flush=True); sys.stdin.read()"


@contextlib.contextmanager
def _running(
    *command: str, environment: Mapping[str, str] | None = None
) -> Generator[subprocess.Popen[bytes]]:
    """A process that has said `ready` and lives until the block is left."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().rstrip() == b"ready"
            yield process
        finally:
            process.kill()
            process.wait(DEADLINE_S)


def test_command_line_when_shown_then_can_not_move_the_cursor() -> None:
    """Control characters and stray bytes are spelled out; nothing is cut."""
    words = ["sh", "-c", "echo \x1b[2J\n", b"bad\xff", "附" * 300]
    shown = "sh -c echo \\x1b[2J\\n bad\\xff " + "附" * 300
    assert show_command(words) == shown


def test_process_when_described_then_has_its_whole_command_line() -> None:
    """A process is named as it was called."""
    with _running(*python(WAIT, "one two")) as process:
        expected = f"{sys.executable} -I -S -c {WAIT} one two"
        assert describe(process.pid) == ProcessName(pid=process.pid, command=expected)


def test_process_when_it_has_gone_then_is_described_as_unknown() -> None:
    """A process that ended meanwhile is no error."""
    process = subprocess.Popen(["true"])
    process.wait()
    assert describe(process.pid) == ProcessName(pid=process.pid, command="[unknown]")


def test_zombie_when_looked_at_then_is_not_alive() -> None:
    """Who has ended does not count as alive, reaped or not."""
    with subprocess.Popen(["true"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read()
        until(lambda: not alive(process.pid))
        assert process.returncode is None
    assert not alive(process.pid)
    assert alive(os.getpid())


def test_descendants_when_looked_for_then_are_found_at_any_depth() -> None:
    """Children of children count, in other sessions too; siblings do not."""
    require("procfs")
    script = "setsid sh -c 'echo ready; sleep 61; :' ; :"
    with _running("sh", "-c", script) as process, _running(*python(WAIT)):
        until(lambda: len(descendants(process.pid)) == 2)
        found = descendants(process.pid)
        end([each.pid for each in found], forced=True)
    assert [each.command for each in found] == [
        "sh -c echo ready; sleep 61; :",
        "sleep 61",
    ]


def test_processes_when_named_by_variable_then_only_those_that_have_its_value() -> None:
    """A run's processes are known by the id in their environment."""
    value = f"test-{os.getpid()}"
    with (
        _running(*python(WAIT), environment={"WSGUARD_RUN": value}) as one,
        _running(*python(WAIT), environment={"WSGUARD_RUN": value + "0"}),
        _running(*python(WAIT), environment={"OTHER": value}),
    ):
        found = with_variable("WSGUARD_RUN", value)
    assert found == (one.pid,)


@pytest.mark.parametrize(
    ("open_it", "holds"),
    [
        ("f = open(p, 'r+b')", True),
        ("f = open(p, 'ab')", True),
        ("f = open(p + '.other-name', 'r+b')", True),
        ("f = open(p, 'rb')", False),
        ("f = open(p + '.else', 'wb')", False),
        ("g = open(p, 'r+b'); m = mmap.mmap(g.fileno(), 4); g.close()", True),
        (
            "g = open(p, 'rb'); m = mmap.mmap(g.fileno(), 4, prot=mmap.PROT_READ)",
            False,
        ),
        ("g = open(p, 'rb'); m = mmap.mmap(g.fileno(), 4, mmap.MAP_PRIVATE)", False),
    ],
)
def test_file_when_open_or_mapped_for_writing_then_is_held(
    open_it: str, holds: bool, tmp_path: Path
) -> None:
    """A process that can still change the file is told from one that reads it."""
    require("procfs")
    target = tmp_path / "target 附\nnew line"
    target.write_bytes(b"text")
    os.link(target, f"{target}.other-name")
    program = f"import mmap, sys\np = sys.argv[1]; {open_it}\n{WAIT}"
    with _running(*python(program, str(target))) as process:
        missing = os.fsencode(tmp_path / "missing")
        found = holders([missing, os.fsencode(target)], [process.pid, os.getpid()])
    assert found == (frozenset({process.pid}) if holds else frozenset())


def test_file_when_its_holder_has_gone_then_nobody_holds_it(tmp_path: Path) -> None:
    """Who cannot be looked at any more is left out."""
    target = tmp_path / "target"
    target.write_bytes(b"text")
    process = subprocess.Popen(["true"])
    process.wait()
    assert holders([os.fsencode(target)], [process.pid]) == frozenset()


@pytest.mark.parametrize("forced", [True, False], ids=["forced", "asked"])
def test_process_when_ended_then_is_gone(forced: bool) -> None:
    """Ending reaches who is there and skips who is not."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    with _running(*python(WAIT)) as process:
        end([gone.pid, process.pid], forced=forced)
        assert process.wait(DEADLINE_S) == (-9 if forced else -15)
