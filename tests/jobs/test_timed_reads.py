"""Reads of a store that may hang: in time or given up, and only so many left behind."""

from __future__ import annotations

import threading

import pytest

from smartbatch._clock import VirtualClock
from smartbatch.jobs.threads import MAX_HUNG_READS, TimedReads, run_within

NAME = "smartbatch-test-read"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def readers() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


def test_a_read_returns_what_was_read_or_raises_it(clock: VirtualClock) -> None:
    reads = TimedReads(clock)
    assert reads.read(lambda: "row", 1.0, NAME) == ["row"]
    with pytest.raises(ZeroDivisionError):
        reads.read(lambda: 1 // 0, 1.0, NAME)


def test_who_asks_again_and_again_leaves_few_threads(clock: VirtualClock) -> None:
    """Each question takes its time, and the first after the others were answered is answered."""
    reads = TimedReads(clock)

    def hang() -> str:
        clock.sleep(1_000.0)
        return "late"

    seen: list[float] = []

    def ask() -> None:
        answers = [reads.read(hang, 2.0, NAME) for _ in range(5 * MAX_HUNG_READS)]
        assert answers == [[]] * 5 * MAX_HUNG_READS
        seen.extend((readers(), clock.now()))
        clock.sleep(2_000.0)
        assert reads.read(lambda: "row", 1.0, NAME) == ["row"]

    assert run_within(ask, 1e6, clock, "smartbatch-test")
    left, now = seen
    assert left <= MAX_HUNG_READS
    assert now == 2.0 * 5 * MAX_HUNG_READS
