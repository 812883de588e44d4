"""The first signal asks for an orderly end, the second does not ask."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from smartbatch._clock import RealClock, VirtualClock
from smartbatch.cli.interrupts import Interrupts


def test_the_first_signal_is_marked_and_acted_upon_elsewhere() -> None:
    """The main thread is not torn out of what it does; the work is done on another thread."""
    acted = threading.Semaphore(0)
    threads: list[threading.Thread] = []

    def act() -> None:
        threads.append(threading.current_thread())
        acted.release()

    with Interrupts(RealClock(), on_first=act, on_late=lambda: None, grace=60.0) as interrupts:
        assert interrupts.caught == 0
        os.kill(os.getpid(), signal.SIGTERM)
        assert acted.acquire(timeout=10)
        assert interrupts.caught == signal.SIGTERM
    assert threads != [threading.main_thread()]


def test_the_second_signal_ends_at_once() -> None:
    """Whoever presses Ctrl-C twice is in a hurry."""
    with Interrupts(RealClock(), on_first=lambda: None, on_late=lambda: None, grace=60.0):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_when_the_grace_is_over_the_rest_is_given_up() -> None:
    """Calls that hang do not hold up the end for ever."""
    late = threading.Semaphore(0)
    with Interrupts(VirtualClock(), on_first=lambda: None, on_late=late.release, grace=10.0):
        signal.raise_signal(signal.SIGINT)
        assert late.acquire(timeout=10)


def test_an_end_within_the_grace_is_not_late() -> None:
    """Nothing is given up when the block ends by itself."""
    late: list[bool] = []
    with Interrupts(RealClock(), on_first=lambda: None, on_late=lambda: late.append(True), grace=60.0):
        signal.raise_signal(signal.SIGINT)
    assert late == []


def test_the_handlers_from_before_come_back() -> None:
    """After the block a signal means what it meant before, and nothing of ours runs on."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    threads = threading.active_count()
    with Interrupts(RealClock(), on_first=lambda: None, on_late=lambda: None, grace=60.0):
        assert signal.getsignal(signal.SIGINT) not in before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert threading.active_count() == threads


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    """Only the main thread can set handlers; elsewhere the block simply runs."""
    ran: list[int] = []

    def run() -> None:
        with Interrupts(RealClock(), on_first=lambda: None, on_late=lambda: None, grace=60.0) as interrupts:
            ran.append(interrupts.caught)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ran == [0]
