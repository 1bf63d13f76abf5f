"""How signals reach a run: noted, never as an exception in the middle of things."""

from __future__ import annotations

import select
import signal
import threading

import pytest

from workspace_guard.containment.interrupts import Answer, Interrupts, Patience
from workspace_guard.errors import Interrupted, Terminated

FORWARD, END = Answer.FORWARD, Answer.END
INT, TERM = signal.SIGINT, signal.SIGTERM


def _is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def test_interrupts_when_made_then_are_inert() -> None:
    """A library does not touch the handlers of the program that uses it."""
    before = signal.getsignal(INT), signal.getsignal(TERM)
    interrupts = Interrupts()
    interrupts.check()
    assert interrupts.fd is None
    assert interrupts.take() == ()
    assert (signal.getsignal(INT), signal.getsignal(TERM)) == before


def test_signal_when_it_comes_then_is_noted_and_wakes_whoever_waits() -> None:
    """Nothing is raised; the descriptor can be read until the signals are taken."""
    with Interrupts.listening() as interrupts:
        assert interrupts.fd is not None
        quiet = _is_readable(interrupts.fd)
        signal.raise_signal(INT)
        signal.raise_signal(TERM)
        woken = _is_readable(interrupts.fd)
        taken = interrupts.take()
        quiet_again = _is_readable(interrupts.fd)
        assert interrupts.take() == ()
    assert (quiet, woken, quiet_again) == (False, True, False)
    assert taken == (INT, TERM)


def test_signals_when_more_come_than_the_pipe_holds_then_none_is_lost() -> None:
    """A key that is held down neither blocks nor breaks the handler."""
    with Interrupts.listening() as interrupts:
        for _ in range(70_000):
            interrupts._note(INT, None)
        assert len(interrupts.take()) == 70_000
        assert interrupts.fd is not None
        assert not _is_readable(interrupts.fd)


@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.SIG_DFL, lambda *_: None])
def test_listening_when_it_ends_then_old_handlers_hold(before: object) -> None:
    """The program's own handling comes back, whatever it was."""
    first = signal.signal(INT, before)
    try:
        with pytest.raises(LookupError), Interrupts.listening() as interrupts:
            raise LookupError
        assert signal.getsignal(INT) == before
        assert interrupts.fd is None
    finally:
        signal.signal(INT, first)


def test_listening_when_in_another_thread_then_is_refused_and_changes_nothing() -> None:
    """Only the main thread can have handlers; the others are told so."""
    before = signal.getsignal(INT), signal.getsignal(TERM)
    raised: list[ValueError] = []

    def body() -> None:
        try:
            with Interrupts.listening():
                pass
        except ValueError as error:
            raised.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert len(raised) == 1
    assert (signal.getsignal(INT), signal.getsignal(TERM)) == before


@pytest.mark.parametrize(
    ("signals", "error", "exit_status"),
    [
        ((INT,), Interrupted, 130),
        ((TERM,), Terminated, 143),
        ((INT, TERM), Terminated, 143),
        ((TERM, INT), Terminated, 143),
    ],
)
def test_check_when_a_signal_has_come_then_stops_there(
    signals: tuple[int, ...], error: type[Interrupted], exit_status: int
) -> None:
    """Between two stages a signal becomes the error with its exit status, once."""
    with Interrupts.listening() as interrupts:
        for signum in signals:
            signal.raise_signal(signum)
        with pytest.raises(error) as raised:
            interrupts.check()
        interrupts.check()
    assert raised.type is error
    assert raised.value.exit_status == exit_status


@pytest.mark.parametrize(
    ("came", "expected"),
    [
        ([(INT, 10.0)], [FORWARD]),
        ([(INT, 10.0), (INT, 12.0)], [FORWARD, END]),
        ([(INT, 10.0), (INT, 12.001)], [FORWARD, FORWARD]),
        ([(INT, 0.0), (INT, 0.0)], [FORWARD, END]),
        ([(INT, 10.0), (INT, 13.0), (INT, 14.5)], [FORWARD, FORWARD, END]),
        ([(INT, 10.0), (INT, 11.5), (INT, 13.0)], [FORWARD, END, END]),
        ([(TERM, 10.0)], [END]),
        ([(INT, 10.0), (TERM, 60.0)], [FORWARD, END]),
    ],
)
def test_patience_when_signals_come_then_first_is_forwarded_and_second_ends(
    came: list[tuple[int, float]], expected: list[Answer]
) -> None:
    """Ctrl-C twice within two seconds, or SIGTERM at any time, ends the run."""
    patience = Patience()
    answers = [patience.answer(signum, at_s) for signum, at_s in came]
    assert answers == expected
