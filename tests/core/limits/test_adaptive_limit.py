"""An unknown limit is approached, measured and kept: the quota against simulated servers."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count
from statistics import fmean

import pytest
from attrs import define, field
from core.limits.limit_server import UPLINK, Admit, Latency, bucket, constant, fixed_windows, lognormal, noisy
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


@define
class Outcome:
    """The outcome of a run: when calls were sent, answered and refused."""

    sent: list[float] = field(factory=list)
    answered: list[float] = field(factory=list)
    refused: list[float] = field(factory=list)

    @property
    def seconds(self) -> float:
        return self.answered[-1]

    @property
    def early_refusals(self) -> int:
        return sum(at <= SETTLED_S for at in self.refused)

    @property
    def late_share(self) -> float:
        """The share of calls refused after first contact."""
        return sum(at > SETTLED_S for at in self.refused) / max(1, sum(at > SETTLED_S for at in self.sent))

    def rate(self, begin: float, end: float) -> float:
        return sum(begin < at <= end for at in self.answered) / (end - begin)


def send(
    quota: Quota,
    admit: Callable[[float, int], bool],
    calls: int = 1500,
    *,
    latency: Latency = AROUND_50_MS,
    workers: int = 64,
    asks: float | None = None,
    until: float = float("inf"),
    seed: int = 0,
) -> Outcome:
    """Send calls until all are answered; refusals arrive within 2 ms.

    Args:
        admit: decides by the time and the number of calls that the server is processing.
    """
    rng, order, outcome, now, works, waiting = random.Random(seed), count(), Outcome(), 0.0, 0, calls
    flying: list[tuple[float, int, Reservation, bool]] = []
    while len(outcome.answered) < calls and now < until:
        while waiting and len(flying) < workers and quota.look(now, 0.0) <= now:
            call, waiting = quota.take(now, 0.0), waiting - 1
            admitted = admit(now + UPLINK, works)
            works += admitted
            heapq.heappush(flying, (now + (latency(rng) if admitted else 0.002), next(order), call, admitted))
            outcome.sent.append(now)
        moments = [flying[0][0]] if flying else []
        if waiting and len(flying) < workers:
            moments.append(quota.look(now, 0.0))
        now = min(moments)
        while flying and flying[0][0] <= now:
            _, _, call, admitted = heapq.heappop(flying)
            if admitted:
                works -= 1
                outcome.answered.append(now)
                quota.succeeded(call, now, 0.0)
            else:
                waiting += 1
                outcome.refused.append(now)
                quota.refused(call, now, asks, rng)
    return outcome


def by_rate(admit: Admit) -> Callable[[float, int], bool]:
    return lambda at, _: admit(at)


def take_all(quota: Quota, now: float, most: int = 64) -> list[Reservation]:
    """Take as many calls as may be sent at once."""
    calls: list[Reservation] = []
    while len(calls) < most and quota.look(now, 0.0) <= now:
        calls.append(quota.take(now, 0.0))
    return calls


# -- a rate --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latency", sampled([constant(0.005), AROUND_50_MS, lognormal(0.4, 0.3)], first=2))
@pytest.mark.parametrize("asks", [None, 1.0])
def test_twenty_a_second_without_bursts_are_used_to_95_percent(latency: Latency, asks: float | None) -> None:
    """On average over several servers, at most 2 % are refused after first contact; before it at most 64
    calls."""
    outcomes = [
        send(
            unknown(),
            by_rate(fixed_windows(20, 1.0, random.Random(seed).random())),
            latency=latency,
            asks=asks,
            seed=seed,
        )
        for seed in range(8)
    ]
    assert fmean(1500 / 20 / one.seconds for one in outcomes) >= (0.95 if asks is None else 0.92)
    assert fmean(one.late_share for one in outcomes) <= 0.02
    assert max(one.early_refusals for one in outcomes) <= 64


@pytest.mark.parametrize("latency", sampled([constant(0.005), AROUND_50_MS, lognormal(0.4, 0.3)], first=2))
def test_a_bucket_with_a_burst_is_used_whole(latency: Latency) -> None:
    """600 at once and then ten per second: about 2 % are refused, one per probe."""
    outcomes = [send(unknown(), by_rate(bucket(600, 10)), latency=latency, seed=seed) for seed in range(6)]
    assert min(90 / one.seconds for one in outcomes) >= 0.98
    assert fmean(one.late_share for one in outcomes) <= 0.022
    assert max(one.early_refusals for one in outcomes) <= 96


def test_what_is_admitted_between_two_refusals_measures_the_rate() -> None:
    """Within 4 %, whatever the capacity of the bucket."""
    for size in (2, 20, 600):
        quota = unknown()
        send(quota, by_rate(bucket(size, 20)), calls=1500 + size)
        assert quota.spaced_rate == pytest.approx(20, rel=0.12 if size == 2 else 0.04), size


@pytest.mark.parametrize("server", ["bucket", "windows"])
def test_a_limit_that_rises_is_used_within_ten_seconds(server: str) -> None:
    """From 10 to 40 per second: 90 %, on average over the moments at which it rises."""
    used = []
    for seed in range(6):
        rises = 30.0 + 0.7 * seed
        before, after = (
            (bucket(10, 10), bucket(40, 40))
            if server == "bucket"
            else (fixed_windows(10, 1.0), fixed_windows(40, 1.0))
        )
        outcome = send(
            unknown(),
            lambda at, _, rises=rises, before=before, after=after: (before if at < rises else after)(at),
            calls=10**6,
            until=rises + 15.0,
            seed=seed,
        )
        used.append(outcome.rate(rises + 10.0, rises + 15.0) / 40.0)
    assert fmean(used) >= (0.9 if server == "bucket" else 0.8)


def test_a_limit_that_falls_is_found_again() -> None:
    before, after = bucket(40, 40), bucket(10, 10)
    outcome = send(unknown(), lambda at, _: (before if at < 20.0 else after)(at), calls=10**6, until=60.0)
    assert outcome.rate(30.0, 60.0) == pytest.approx(10.0, rel=0.03)
    assert sum(20.0 < at <= 30.0 for at in outcome.refused) <= 20


def test_a_limit_that_is_removed_is_forgotten() -> None:
    quota, limit = unknown(), bucket(20, 20)
    outcome = send(quota, lambda at, _: at >= 20.0 or limit(at), calls=10**6, until=35.0)
    assert quota.spaced_rate is None
    assert outcome.rate(33.0, 35.0) >= 900.0


def test_slow_answers_do_not_make_a_rate_look_like_a_cap() -> None:
    """20 per second, answers of two seconds: 40 are in flight."""
    quotas = [unknown() for _ in range(6)]
    outcomes = [
        send(quota, by_rate(fixed_windows(20, 1.0, seed / 6)), latency=lognormal(2.0), workers=160, seed=seed)
        for seed, quota in enumerate(quotas)
    ]
    assert all(quota.spaced_rate is not None for quota in quotas)
    assert fmean(75 / one.seconds for one in outcomes) >= 0.82
    assert fmean(one.late_share for one in outcomes) <= 0.025


# -- calls in flight -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("median", [0.05, 0.4])
@pytest.mark.parametrize("cap", [8, 30])
def test_a_cap_on_calls_in_flight_is_used_to_95_percent(cap: int, median: float) -> None:
    """No rate is assumed, and at most 2 % are refused."""
    for seed in range(3):
        quota = unknown()
        outcome = send(quota, lambda _, works: works < cap, latency=lognormal(median, 0.3), seed=seed)
        mean = median * 1.046  # of the lognormal latency
        assert 1500 * mean / cap / outcome.seconds >= 0.94, f"seed={seed}"
        assert len(outcome.refused) <= 0.02 * 1500, f"seed={seed}"
        assert quota.spaced_rate is None, f"seed={seed}"


def test_a_cap_that_rises_or_falls_is_followed() -> None:
    for before, after in ((8, 32), (32, 8)):
        quota = unknown()
        outcome = send(
            quota,
            lambda at, works, before=before, after=after: works < (before if at < 20.0 else after),
            calls=10**6,
            latency=constant(0.5),
            until=60.0,
        )
        assert outcome.rate(50.0, 60.0) >= 0.9 * after / 0.5


def test_a_removed_cap_delays_nothing() -> None:
    outcome = send(
        unknown(), lambda at, works: at >= 10.0 or works < 8, calls=10**6, latency=constant(0.5), until=30.0
    )
    assert outcome.rate(25.0, 30.0) >= 0.95 * 64 / 0.5


# -- refusals at random --------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.02, 0.04])
@pytest.mark.parametrize("make", [Quota, unknown])
def test_refusals_at_random_change_nothing(share: float, make: Callable[[], Quota]) -> None:
    """6,400 calls take at most 1.3 times the 5.2 s without refusals."""
    for seed in range(9):
        outcome = send(make(), by_rate(noisy(share, random.Random(seed))), calls=6400, seed=seed)
        assert outcome.seconds <= 1.3 * 5.2, f"seed={seed}"


def test_single_refusals_and_a_few_of_many_prove_nothing() -> None:
    """Seven of the last 32 calls; the eighth makes a quarter of them."""
    quota = Quota()
    calls = [quota.take(0.0, 0.0) for _ in range(32)]
    said = [quota.refused(call, 0.01, 5.0, random.Random(0)) for call in calls[::4][:7]]
    assert said == [None] * 7
    assert quota.look(0.01, 0.0) == 0.01
    assert quota.refused(calls[30], 0.01, 5.0, random.Random(0)) is not None


def test_four_calls_in_a_row_prove_a_limit() -> None:
    quota = Quota()
    for order in range(4):
        assert quota.spaced_rate is None
        said = quota.refused(quota.take(float(order), 0.0), order + 0.5, None, random.Random(0))
        assert (said is not None) == (order == 3)


# -- slow start ----------------------------------------------------------------------------------------------


def test_ten_calls_go_first_and_twice_as_many_with_their_answers() -> None:
    quota = unknown()
    calls = take_all(quota, 0.0)
    assert len(calls) == FIRST_CALLS
    for call in calls:
        quota.succeeded(call, 0.02, 0.0)
    assert len(take_all(quota, 0.02)) == 2 * FIRST_CALLS


def test_slow_answers_keep_no_call_waiting_for_long() -> None:
    """Calls in flight double every 50 ms: 64 after 0.14 s."""
    quota, now = unknown(), 0.0
    take_all(quota, now)
    while quota.in_flight < 64:
        now = quota.look(now, 0.0)
        take_all(quota, now, 1)
    assert now == pytest.approx(0.134, abs=0.01)


@pytest.mark.parametrize(("calls", "seconds", "wide", "most"), [(400, 0.4, 32, 1.05), (640, 0.05, 64, 1.2)])
def test_first_contact_with_a_service_without_limits_costs_little(
    calls: int, seconds: float, wide: int, most: float
) -> None:
    outcome = send(unknown(), lambda *_: True, calls, latency=constant(seconds), workers=wide)
    assert outcome.seconds <= most * -(-calls // wide) * seconds


def test_a_reported_limit_ends_the_slow_start() -> None:
    quota = unknown()
    call = take_all(quota, 0.0)[0]
    quota.succeeded(call, 0.04, 0.0)
    quota.learn(LimitReport(requests_limit=6000, requests_remaining=5999), call, 0.04)
    assert len(take_all(quota, 0.04)) == 64


def test_configured_limits_and_limits_in_use_are_not_approached() -> None:
    told = Quota()
    told.configure(600, None, 0.0)
    told.approach()
    assert len(take_all(told, 0.0)) == 4
    used = Quota()
    used.take(0.0, 0.0)
    used.approach()
    assert len(take_all(used, 0.0)) == 64


@pytest.mark.parametrize("style", sampled(["openai", "gemini"], keep=2))
@pytest.mark.parametrize("told", sampled([None, 1200]))
def test_twenty_per_second_without_bursts_named_by_the_provider(style: str, told: int | None) -> None:
    """98 % used: the remainder of one window says nothing about the next."""
    server = Server(style, {"requests": 1200})
    server.meters = {"requests": SecondMeter(1200)}
    quota = Quota()
    quota.configure(told, None, 0.0)
    quota.approach()
    client = Client(quota, AROUND_50_MS)
    fill(server, client, seconds=75.0, jitter=0.002)
    assert server.meters["requests"].used(0.0, 75.0) >= 0.98
    assert client.counts.share <= (0.012 if style == "gemini" else 0.01)


def test_no_call_is_lost_to_a_probe_that_is_never_sent() -> None:
    limit, rng = unknown(), random.Random(0)
    calls = take_all(limit, 0.0)
    for call in calls[6:]:
        limit.refused(call, 0.001, None, rng)
    later = limit.look(0.001, 0.0)
    assert later == pytest.approx(1.001)
    limit.dropped(take_all(limit, later, 1)[0], later)
    assert limit.look(later, 0.0) == later
