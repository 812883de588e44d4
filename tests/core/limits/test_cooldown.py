"""Waits between retries."""

from __future__ import annotations

import random

import pytest

from smartbatch.core.limits.cooldown import backoff, exponential, jittered, jittered_minimum


class Most:
    """A random source that always returns nearly the most."""

    def random(self) -> float:
        return 1.0 - 1e-12


def test_waits_double_up_to_the_longest_however_many_failures_there_were() -> None:
    waits = [backoff(failures, Most(), first=2.0, longest=60.0) for failures in (1, 2, 3, 6, 7, 5000)]
    assert waits == pytest.approx([2.0, 4.0, 8.0, 60.0, 60.0, 60.0])
    assert exponential(5000, 1.0, 10.0, 7.0) == 7.0


def test_the_wait_a_server_asked_for_is_a_minimum_up_to_the_longest() -> None:
    assert backoff(1, Most(), first=2.0, longest=60.0, asked=30.0) == 30.0
    assert backoff(1, Most(), first=2.0, longest=60.0, asked=300.0) == 60.0
    assert backoff(5, Most(), first=2.0, longest=60.0, asked=3.0) == pytest.approx(32.0)


@pytest.mark.parametrize("seed", range(20))
def test_jitter_takes_at_most_half_off_and_adds_at_most_a_tenth_or_a_second(seed: int) -> None:
    rng = random.Random(seed)
    assert 5.0 <= jittered(10.0, rng) <= 10.0
    assert 5.0 <= jittered_minimum(5.0, rng) <= 5.5
    assert 90.0 <= jittered_minimum(90.0, rng) <= 91.0
