"""The adaptive throttle: a lower rate stays only if it helps."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import pytest

from smartbatch.core.limits.throttle import AdaptiveThrottle
from tests.levels import sampled

LATENCY, WIDE = 0.05, 64


def run(calls: int, failing: Callable[[float, int, random.Random], bool]) -> tuple[AdaptiveThrottle, float]:
    """Make so many calls, 64 wide; ``failing`` is called with the time and the calls in flight."""
    throttle, rng, now = AdaptiveThrottle(), random.Random(1), 0.0
    flying: list[tuple[float, float, bool]] = []
    while calls or flying:
        while calls and len(flying) < WIDE and throttle.look(now) <= now:
            throttle.take(now)
            calls -= 1
            failed = failing(now, len(flying), rng)
            heapq.heappush(
                flying, (now + (0.002 if failed else LATENCY * rng.uniform(0.8, 1.2)), now, failed)
            )
        at = throttle.look(now) if calls and len(flying) < WIDE else float("inf")
        now = min(at, flying[0][0] if flying else at)
        while flying and flying[0][0] <= now:
            _, began, failed = heapq.heappop(flying)
            throttle.end(began, now, accepted=not failed)
    return throttle, now


@pytest.mark.parametrize("share", sampled([0.1, 0.3, 0.5], first=1))
def test_failures_at_random_do_not_lower_the_rate_for_long(share):
    """10,000 calls, 64 wide, 50 ms: at most a quarter longer than without a throttle."""
    _, seconds = run(10_000, lambda _, __, rng: rng.random() < share)
    assert seconds <= 1.25 * 10_000 * ((1.0 - share) * LATENCY + share * 0.002) / WIDE


def test_an_overloaded_provider_gets_fewer_calls():
    failures: list[float] = []

    def failing(now: float, under_way: int, _: random.Random) -> bool:
        if under_way >= 12:
            failures.append(now)
        return under_way >= 12

    run(20_000, failing)
    assert sum(at > 1.0 for at in failures) <= 10_000


def test_failures_that_end_during_a_trial_leave_no_low_rate():
    throttle, _ = run(8_000, lambda now, _, rng: now < 0.3 and rng.random() < 0.3)
    assert throttle.rate is None


def test_a_trial_may_begin_with_a_call_that_says_nothing():
    throttle = AdaptiveThrottle()
    for number in range(60):
        throttle.take(0.001 * number)
    for number in range(60):
        throttle.end(0.001 * number, 1.0 + 0.001 * number, accepted=number % 2 == 0)
    assert throttle.rate is not None, "a trial"
    began = throttle.look(2.0)
    throttle.take(began)
    throttle.end(began, began + 0.1, accepted=None)
    assert throttle.rate is not None
