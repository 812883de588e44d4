"""An unknown limit is approached, measured and kept: the quota against simulated servers."""

from __future__ import annotations

import random
from statistics import fmean
from typing import Any

import pytest
from core.limits.limit_server import (
    Admit,
    Run,
    bucket,
    constant,
    fixed_windows,
    lognormal,
    noisy,
    run,
)
from core.limits.metered_server import Client, SecondMeter, Server, fill

from smartbatch.core.limits.adaptive_limit import FIRST_CALLS
from smartbatch.core.limits.quota import Quota
from smartbatch.core.limits.reported_limits import Reservation
from smartbatch.types import LimitReport
from tests.levels import sampled

SETTLED_S = 5.0  # first contact is over
AROUND_50_MS = lognormal(0.05, 0.3)


def unknown() -> Quota:
    quota = Quota()
    quota.approach()
    return quota


def send(quota: Quota, admit: Admit = lambda at: True, calls: int = 1500, **more: Any) -> Run:
    """Send calls until all are answered; refusals arrive within 2 ms."""
    return run(quota, admit, calls, **{"latency": AROUND_50_MS, "quick_refusals": True, **more})


def take_all(quota: Quota, now: float, most: int = 64) -> list[Reservation]:
    """Take as many calls as may be sent at once."""
    calls: list[Reservation] = []
    while len(calls) < most and quota.look(now, 0.0) <= now:
        calls.append(quota.take(now, 0.0))
    return calls


# -- a rate --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latency", sampled([constant(0.005), AROUND_50_MS, lognormal(0.4, 0.3)], first=2))
@pytest.mark.parametrize("asked", sampled([None, 1.0]))
def test_twenty_a_second_without_bursts_are_used_to_95_percent(latency, asked):
    """Over several servers, at most 2 % are refused after first contact; before it at most 64 calls."""
    retry_after = None if asked is None else lambda at: asked
    runs = [
        send(
            unknown(),
            fixed_windows(20, 1.0, random.Random(seed).random()),
            latency=latency,
            retry_after=retry_after,
            seed=seed,
        )
        for seed in range(8)
    ]
    assert fmean(1500 / 20 / one.seconds for one in runs) >= (0.95 if asked is None else 0.92)
    assert fmean(one.late_share(SETTLED_S) for one in runs) <= 0.02
    assert max(sum(at <= SETTLED_S for at in one.refusals) for one in runs) <= 64


@pytest.mark.parametrize("latency", sampled([constant(0.005), AROUND_50_MS, lognormal(0.4, 0.3)], first=2))
def test_a_bucket_with_a_burst_is_used_whole(latency):
    """600 at once and then ten per second: about 2 % are refused, one per probe."""
    runs = [send(unknown(), bucket(600, 10), latency=latency, seed=seed) for seed in range(4)]
    assert min(90 / one.seconds for one in runs) >= 0.98
    assert fmean(one.late_share(SETTLED_S) for one in runs) <= 0.022
    assert max(sum(at <= SETTLED_S for at in one.refusals) for one in runs) <= 96


@pytest.mark.parametrize(("size", "error"), [(2, 0.12), (20, 0.04), (600, 0.04)])
def test_what_is_admitted_between_two_refusals_measures_the_rate(size, error):
    quota = unknown()
    send(quota, bucket(size, 20), calls=1500 + size)
    assert quota.spaced_rate == pytest.approx(20, rel=error)


@pytest.mark.parametrize("server", ["bucket", "windows"])
def test_a_limit_that_rises_is_used_within_ten_seconds(server):
    """From 10 to 40 per second: 90 %, on average over the moments at which it rises."""
    used = []
    for seed in range(4):
        rises = 30.0 + 0.7 * seed
        admits = [bucket(n, n) if server == "bucket" else fixed_windows(n, 1.0) for n in (10, 40)]
        outcome = send(
            unknown(),
            lambda at, admits=admits, rises=rises: admits[at >= rises](at),
            calls=10**6,
            until=rises + 15.0,
            seed=seed,
        )
        used.append(outcome.rate(rises + 10.0, rises + 15.0) / 40.0)
    assert fmean(used) >= (0.9 if server == "bucket" else 0.8)


def test_a_limit_that_falls_is_found_again():
    admits = [bucket(40, 40), bucket(10, 10)]
    outcome = send(unknown(), lambda at: admits[at >= 20.0](at), calls=10**6, until=60.0)
    assert outcome.rate(30.0, 60.0) == pytest.approx(10.0, rel=0.03)
    assert sum(20.0 < at <= 30.0 for at in outcome.refusals) <= 20


def test_a_limit_that_is_removed_is_forgotten():
    quota, limit = unknown(), bucket(20, 20)
    outcome = send(quota, lambda at: at >= 20.0 or limit(at), calls=10**6, until=35.0)
    assert quota.spaced_rate is None
    assert outcome.rate(33.0, 35.0) >= 900.0


def test_slow_answers_do_not_make_a_rate_look_like_a_cap():
    """20 per second, answers of two seconds: 40 are in flight."""
    quotas = [unknown() for _ in range(4)]
    runs = [
        send(quota, fixed_windows(20, 1.0, seed / 4), latency=lognormal(2.0), workers=160, seed=seed)
        for seed, quota in enumerate(quotas)
    ]
    assert all(quota.spaced_rate is not None for quota in quotas)
    assert fmean(75 / one.seconds for one in runs) >= 0.82
    assert fmean(one.late_share(SETTLED_S) for one in runs) <= 0.025


# -- calls in flight -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("median", [0.05, 0.4])
@pytest.mark.parametrize("cap", [8, 30])
def test_a_cap_on_calls_in_flight_is_used_to_95_percent(cap, median):
    """No rate is assumed, and at most 2 % are refused."""
    for seed in range(3):
        quota = unknown()
        outcome = send(quota, cap=lambda at: cap, latency=lognormal(median, 0.3), seed=seed)
        mean = median * 1.046  # of the lognormal latency
        assert 1500 * mean / cap / outcome.seconds >= 0.94, f"seed={seed}"
        assert outcome.refused <= 0.02 * 1500, f"seed={seed}"
        assert quota.spaced_rate is None, f"seed={seed}"


@pytest.mark.parametrize(("before", "after"), [(8, 32), (32, 8)])
def test_a_cap_that_rises_or_falls_is_followed(before, after):
    def cap(at: float) -> float:
        return before if at < 20.0 else after

    outcome = send(unknown(), calls=10**6, cap=cap, latency=constant(0.5), until=60.0)
    assert outcome.rate(50.0, 60.0) >= 0.9 * after / 0.5


def test_a_slow_probe_of_a_cap_delays_no_other_call():
    """Refusals arrive within 2 ms; the call that tests a cap of 20 takes 100 s."""
    answers: list[float] = []

    def slow(rng: random.Random) -> float:
        answers.append(0.0)
        return 100.0 if len(answers) == 100 else 0.2

    assert send(unknown(), calls=2000, cap=lambda at: 20, latency=slow).seconds <= 101.0


# -- refusals at random --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "share"), sampled([(Quota, 0.02), (Quota, 0.04), (unknown, 0.02), (unknown, 0.04)])
)
def test_refusals_at_random_change_nothing(make, share):
    """6,400 calls take at most 1.3 times the 5.2 s without refusals."""
    for seed in range(3):
        outcome = send(make(), noisy(share, random.Random(seed)), calls=6400, seed=seed)
        assert outcome.seconds <= 1.3 * 5.2, f"seed={seed}"


def test_single_refusals_and_a_few_of_many_prove_nothing():
    """Seven of the last 32 calls; the eighth makes a quarter of them."""
    quota = Quota()
    calls = [quota.take(0.0, 0.0) for _ in range(32)]
    said = [quota.refused(call, 0.01, 5.0, random.Random(0)) for call in calls[::4][:7]]
    assert said == [None] * 7
    assert quota.look(0.01, 0.0) == 0.01
    assert quota.refused(calls[30], 0.01, 5.0, random.Random(0)) is not None


def test_four_calls_in_a_row_prove_a_limit():
    quota = Quota()
    for order in range(4):
        assert quota.spaced_rate is None
        said = quota.refused(quota.take(float(order), 0.0), order + 0.5, None, random.Random(0))
        assert (said is not None) == (order == 3)


# -- slow start ----------------------------------------------------------------------------------------------


def test_ten_calls_go_first_and_twice_as_many_with_their_answers():
    quota = unknown()
    calls = take_all(quota, 0.0)
    assert len(calls) == FIRST_CALLS
    for call in calls:
        quota.succeeded(call, 0.02, 0.0)
    assert len(take_all(quota, 0.02)) == 2 * FIRST_CALLS


def test_slow_answers_keep_no_call_waiting_for_long():
    """Calls in flight double every 50 ms: 64 after 0.14 s."""
    quota, now = unknown(), 0.0
    take_all(quota, now)
    while quota.in_flight < 64:
        now = quota.look(now, 0.0)
        take_all(quota, now, 1)
    assert now == pytest.approx(0.134, abs=0.01)


@pytest.mark.parametrize(("calls", "seconds", "wide", "most"), [(400, 0.4, 32, 1.05), (640, 0.05, 64, 1.2)])
def test_first_contact_with_a_service_without_limits_costs_little(calls, seconds, wide, most):
    outcome = send(unknown(), calls=calls, latency=constant(seconds), workers=wide)
    assert outcome.seconds <= most * -(-calls // wide) * seconds


def test_a_reported_limit_ends_the_slow_start():
    quota = unknown()
    call = take_all(quota, 0.0)[0]
    quota.succeeded(call, 0.04, 0.0)
    quota.learn(LimitReport(requests_limit=6000, requests_remaining=5999), call, 0.04)
    assert len(take_all(quota, 0.04)) == 64


def test_configured_limits_and_limits_in_use_are_not_approached():
    configured = Quota()
    configured.configure(600, None, 0.0)
    configured.approach()
    assert len(take_all(configured, 0.0)) == 4
    used = Quota()
    used.take(0.0, 0.0)
    used.approach()
    assert len(take_all(used, 0.0)) == 64


@pytest.mark.parametrize(
    ("style", "configured"), sampled([("openai", None), ("gemini", None), ("openai", 1200), ("gemini", 1200)])
)
def test_twenty_per_second_without_bursts_named_by_the_provider(style, configured):
    """98 % used: the remainder of one window says nothing about the next."""
    server = Server(style, {"requests": 1200})
    server.meters = {"requests": SecondMeter(1200)}
    quota = Quota()
    quota.configure(configured, None, 0.0)
    quota.approach()
    client = Client(quota, AROUND_50_MS)
    fill(server, client, seconds=75.0, jitter=0.002)
    assert server.meters["requests"].used(0.0, 75.0) >= 0.98
    assert client.counts.share <= (0.012 if style == "gemini" else 0.01)


def test_no_call_is_lost_to_a_probe_that_is_never_sent():
    limit, rng = unknown(), random.Random(0)
    calls = take_all(limit, 0.0)
    for call in calls[6:]:
        limit.refused(call, 0.001, None, rng)
    later = limit.look(0.001, 0.0)
    assert later == pytest.approx(1.001)
    limit.dropped(take_all(limit, later, 1)[0], later)
    assert limit.look(later, 0.0) == later
