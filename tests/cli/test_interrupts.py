"""The first signal asks for an orderly end, the second ends at once."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from smartbatch.cli.interrupts import Interrupts


def test_the_first_signal_is_marked_and_acted_upon_elsewhere():
    acted = threading.Semaphore(0)
    threads: list[threading.Thread] = []

    def act() -> None:
        threads.append(threading.current_thread())
        acted.release()

    with Interrupts(on_first=act) as interrupts:
        assert interrupts.caught == 0
        os.kill(os.getpid(), signal.SIGTERM)
        assert acted.acquire(timeout=10)
        assert interrupts.caught == signal.SIGTERM
    assert threads != [threading.main_thread()]


def test_the_second_signal_ends_at_once():
    with Interrupts(on_first=lambda: None):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_the_handlers_from_before_come_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    threads = set(threading.enumerate())
    with Interrupts(on_first=lambda: None):
        assert signal.getsignal(signal.SIGINT) not in before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert set(threading.enumerate()) <= threads  # those of other tests may have ended


def test_outside_the_main_thread_signals_are_left_alone():
    ran: list[int] = []

    def run() -> None:
        with Interrupts(on_first=lambda: None) as interrupts:
            ran.append(interrupts.caught)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ran == [0]
