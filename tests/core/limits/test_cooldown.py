"""Pauses after failures: of requests and of features that are tried again later."""

from __future__ import annotations

import random

import pytest
from core.limits.limit_server import Top

from smartbatch.core.limits.cooldown import (
    FlexHealth,
    Suspension,
    backoff,
    exponential,
    jittered,
    jittered_minimum,
)


def test_waits_double_up_to_the_longest_however_many_failures_there_were():
    waits = [backoff(failures, Top(), first=2.0, longest=60.0) for failures in (1, 2, 3, 6, 7, 5000)]
    assert waits == pytest.approx([2.0, 4.0, 8.0, 60.0, 60.0, 60.0])
    assert exponential(5000, 1.0, 10.0, 7.0) == 7.0


def test_a_requested_wait_is_a_minimum_up_to_the_maximum():
    assert backoff(1, Top(), first=2.0, longest=60.0, asked=30.0) == 30.0
    assert backoff(1, Top(), first=2.0, longest=60.0, asked=300.0) == 60.0
    assert backoff(5, Top(), first=2.0, longest=60.0, asked=3.0) == pytest.approx(32.0)


def test_jitter_stays_within_its_bounds():
    rng = random.Random(1)
    for _ in range(20):
        assert 5.0 <= jittered(10.0, rng) <= 10.0
        assert 5.0 <= jittered_minimum(5.0, rng) <= 5.5
        assert 90.0 <= jittered_minimum(90.0, rng) <= 91.0


def test_suspensions_double_up_to_the_longest_until_one_trial_succeeds():
    suspension, now, lengths = Suspension(), 0.0, []
    for _ in range(8):
        lengths.append(suspension.begin(now))
        now = suspension.until(now)
        assert not suspension.end(now - 1.0)
        assert suspension.end(now)
        assert not suspension.end(now)
    assert lengths == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    suspension.proven()
    assert not suspension.trial
    assert suspension.begin(now) == Suspension.FIRST_SECONDS


WHY = "no capacity"


def refused(health: FlexHealth, now: float, times: int = 1) -> str | None:
    """Refuse so many times, and return the result of the last refusal."""
    return [health.refused(now, WHY) for _ in range(times)][-1]


def test_three_consecutive_refusals_suspend_the_tier_with_a_reason():
    health = FlexHealth()
    for _ in range(10):
        assert refused(health, 10.0, 2) is None
        health.answered()
    assert health.is_open(10.0)
    assert refused(health, 10.0, 3) == "no capacity; the tier is not used for 60 s"
    assert not health.is_open(69.9)
    assert health.is_open(70.0)


def test_half_of_a_wave_in_a_row_is_enough():
    health, refusals = FlexHealth(), 0
    while health.is_open(0.0):
        refusals += 1
        health.refused(0.0, WHY, in_flight=40)
    assert refusals == 20


def test_calls_in_flight_at_a_suspension_change_nothing():
    health = FlexHealth()
    assert refused(health, 0.0, 3)
    assert refused(health, 5.0, 50) is None
    health.answered()
    assert not health.is_open(59.0)
    assert health.is_open(60.0)


def test_a_trial_begins_once_and_a_single_refusal_ends_it():
    health = FlexHealth()
    assert health.resume(0.0) is None
    refused(health, 0.0, 3)
    assert health.resume(59.0) is None
    assert health.resume(60.0) == "the pause is over; the next request is a trial"
    assert health.resume(60.0) is None
    assert refused(health, 60.0)
    assert not health.is_open(179.0)
    assert health.is_open(180.0)


def test_a_model_without_the_tier_is_suspended_by_one_refusal():
    health = FlexHealth()
    assert health.refused(0.0, "refused", permanent=True) == "refused; the tier is not used for 60 min"
    assert not health.is_open(3599.0)
    assert health.is_open(3600.0)
