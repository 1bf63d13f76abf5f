"""A command's output: whole, in order, in the log, and nobody waits who must not."""

from __future__ import annotations

import os
import socket
import threading
import time
import tty
from typing import TYPE_CHECKING

import pytest
from capabilities import require
from supervised import (
    Pipe,
    events_until_end,
    launch,
    python,
    read_exactly,
    read_rest,
    run_whole,
    shell,
    until_started,
)

from workspace_guard.containment.base import Stdio
from workspace_guard.containment.launch import Drained
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

TALK = (
    "import os\n"
    "for n in range(2000):\n"
    "    os.write(1, b'%07d.' % n * 150)\n"
    "    os.write(2, b'ABCDEFG%c' % (65 + n % 16) * 150)\n"
)
SAID = b"".join(b"%07d." % n * 150 for n in range(2000))
SAID_ON_STDERR = b"".join(b"ABCDEFG%c" % (65 + n % 16) * 150 for n in range(2000))
LETTERS = bytes(range(65, 91))


@either
def test_output_when_it_is_large_then_is_whole_and_in_order(
    start: Start, tmp_path: Path
) -> None:
    """Every byte of both streams reaches its destination and, as it comes, the log."""
    with open(tmp_path / "out", "wb") as out, open(tmp_path / "err", "wb") as err:
        stdio = Stdio(stdout=out.fileno(), stderr=err.fileno())
        run_whole(launch(tmp_path, *python(TALK), stdio=stdio), start)
    log = (tmp_path / "execution.log").read_bytes()
    assert (tmp_path / "out").read_bytes() == SAID
    assert (tmp_path / "err").read_bytes() == SAID_ON_STDERR
    assert log.translate(None, LETTERS) == SAID
    assert len(log) == len(SAID) + len(SAID_ON_STDERR)


@either
def test_output_when_log_is_there_then_is_appended(
    start: Start, tmp_path: Path
) -> None:
    """A second command of one run (a check) goes on in the same log."""
    for word in ("one", "two"):
        run_whole(launch(tmp_path, "echo", word), start)
    assert (tmp_path / "execution.log").read_text() == "one\ntwo\n"


def test_log_when_made_then_only_its_owner_can_read_it(tmp_path: Path) -> None:
    """What an agent says may be secret."""
    run_whole(launch(tmp_path, "true"))
    assert (tmp_path / "execution.log").stat().st_mode & 0o777 == 0o600


@either
def test_output_when_its_reader_goes_away_then_the_command_and_the_log_go_on(
    start: Start, tmp_path: Path
) -> None:
    """A destination that is closed (`| head`) does not end the step."""
    with Pipe() as shown:
        shown.close_source()
        stdio = Stdio(stdout=shown.end, stderr=shown.end)
        course = run_whole(launch(tmp_path, *python(TALK), stdio=stdio), start)
    assert course.result.error is None
    log = (tmp_path / "execution.log").read_bytes()
    assert log.translate(None, LETTERS) == SAID


def test_output_when_its_terminal_is_closed_then_the_command_and_the_log_go_on(
    tmp_path: Path,
) -> None:
    """A terminal window that is closed does not end the step."""
    master, slave = os.openpty()
    os.close(master)
    try:
        stdio = Stdio(stdout=slave, stderr=slave)
        course = run_whole(launch(tmp_path, *python(TALK), stdio=stdio))
    finally:
        os.close(slave)
    assert course.result.error is None
    assert len((tmp_path / "execution.log").read_bytes()) == len(SAID) * 2


@pytest.mark.parametrize("kind", ["pipe", "socket", "terminal", "master"])
def test_output_when_its_reader_is_slow_then_all_of_it_arrives(
    kind: str, tmp_path: Path
) -> None:
    """The command waits for its reader as in any pipe; its end loses nothing."""
    program = python("import os; [os.write(1, b'%07d.' % n) for n in range(40000)]")
    if kind == "pipe":
        source, end = os.pipe()
    elif kind == "socket":
        source, end = (each.detach() for each in socket.socketpair())
    else:
        source, end = os.openpty()
        tty.setraw(end)
        if kind == "master":
            source, end = end, source
    try:
        asked = launch(tmp_path, *program, stdio=Stdio(stdout=end))
        with Supervision.start(asked) as supervised:
            until_started(supervised)
            got = read_exactly(source, 320_000)
            events_until_end(supervised)
            supervised.end_tree(0.0)
    finally:
        os.close(source)
        os.close(end)
    assert got == b"".join(b"%07d." % n for n in range(40000))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pipe", "socket", "terminal"])
def test_supervisor_when_a_destination_takes_nothing_then_is_not_lost(
    kind: str, tmp_path: Path
) -> None:
    """A reader that has stopped (`less`, Ctrl-S) stops the command, not the beat."""
    if kind == "pipe":
        source, end = os.pipe()
    elif kind == "socket":
        source, end = (each.detach() for each in socket.socketpair())
    else:
        source, end = os.openpty()
    program = python("import os; os.write(1, bytes(2 << 20))")
    try:
        asked = launch(tmp_path, *program, stdio=Stdio(stdout=end))
        with Supervision.start(asked) as supervised:
            until_started(supervised)
            assert supervised.next_event(2.5) is None
            supervised.stop("enough")
            result = events_until_end(supervised)[-1].result
            tree = supervised.end_tree(0.0)
            supervised.stop("and wait for nobody")
    finally:
        os.close(source)
        os.close(end)
    assert result.message == "enough"
    assert tree.lost is False


def test_output_when_command_has_ended_then_rest_waits_for_its_reader(
    tmp_path: Path,
) -> None:
    """The tree's end does not wait for a slow reader, and nothing is lost to him."""
    with Pipe() as shown:
        size = 120_000  # more than one pipe holds, less than two
        asked = launch(
            tmp_path,
            *python(f"import os; os.write(1, bytes({size}))"),
            stdio=Stdio(stdout=shown.end),
        )
        with Supervision.start(asked) as supervised:
            shown.close_end()
            events_until_end(supervised)
            tree = supervised.end_tree(0.0)
            log = (tmp_path / "execution.log").stat().st_size
            got = read_rest(shown.source)
            event = supervised.next_event(10.0)
    assert tree.leftovers == ()
    assert log == size
    assert len(got) == size
    assert isinstance(event, Drained)


def test_output_when_the_block_is_left_then_a_slow_reader_still_gets_it(
    tmp_path: Path,
) -> None:
    """Leaving in good order waits until all output has been taken."""
    got: list[bytes] = []
    with Pipe() as shown:
        source = shown.source
        reader = threading.Thread(
            target=lambda: got.extend(iter(lambda: os.read(source, 1), b""))
        )
        asked = launch(
            tmp_path, "head", "-c", "120000", "/dev/zero", stdio=Stdio(stdout=shown.end)
        )
        with Supervision.start(asked) as supervised:
            shown.close_end()
            events_until_end(supervised)
            supervised.end_tree(0.0)
            reader.start()
        reader.join()
    assert sum(map(len, got)) == 120_000


def test_output_when_a_leftover_holds_the_pipe_then_the_end_is_told_at_once(
    tmp_path: Path,
) -> None:
    """The command's end is its own, whoever holds its output open."""
    began = time.monotonic()
    with Supervision.start(
        launch(tmp_path, *shell("sleep 60 & echo done"))
    ) as supervised:
        events_until_end(supervised)
        supervised.end_tree(0.0)
    assert time.monotonic() - began < 5.0
    assert (tmp_path / "execution.log").read_text() == "done\n"


def test_output_when_a_leftover_speaks_in_its_grace_then_is_in_the_log(
    tmp_path: Path,
) -> None:
    """What leftovers say before they end belongs to the step as well."""
    script = "(read line < go; echo late) & echo early"
    os.mkfifo(tmp_path / "go")
    with Supervision.start(launch(tmp_path, *shell(script))) as supervised:
        events_until_end(supervised)
        go_on = os.open(tmp_path / "go", os.O_RDWR)
        os.write(go_on, b"on\n")
        supervised.end_tree(60.0)
        os.close(go_on)
    assert (tmp_path / "execution.log").read_text() == "early\nlate\n"


@either
def test_log_when_the_disk_is_full_then_that_is_told_and_the_command_goes_on(
    start: Start, tmp_path: Path
) -> None:
    """A log that is not whole is told; the destination gets all the same."""
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    require("root")  # to open it for writing anywhere
    with open(tmp_path / "out", "wb") as out:
        asked = launch(
            tmp_path,
            "echo",
            "words",
            log="/dev/full",
            stdio=Stdio(stdout=out.fileno()),
        )
        course = run_whole(asked, start)
    assert course.tree is not None
    assert course.tree.log_fault in (
        "No space left on device",
        "the log could not be written",
    )
    assert course.result.error is None
    assert (tmp_path / "out").read_text() == "words\n"
