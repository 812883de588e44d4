"""An unknown limit is approached, not hit: few calls first, and more with each answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import fmean

import pytest
from core.limits.limit_server import (
    Admit,
    Latency,
    Run,
    bucket,
    constant,
    fixed_windows,
    lognormal,
    noisy,
    run,
)
from core.limits.metered_server import Client, SecondMeter, Server, fill

from smartbatch.core.limits.header_limits import Reservation
from smartbatch.core.limits.quota import Quota
from smartbatch.types import LimitReport
from tests.levels import sampled


def unknown() -> Quota:
    quota = Quota()
    quota.approach()
    return quota


def take_all(quota: Quota, now: float, most: int = 64) -> list[Reservation]:
    """Take as many calls as may go at once."""
    calls: list[Reservation] = []
    while len(calls) < most and quota.look(now, 0.0) <= now:
        calls.append(quota.take(now, 0.0))
    return calls


def test_six_calls_go_first_and_half_as_many_more_with_their_answers() -> None:
    """Each answered one's successor, and one more with every other answer."""
    quota = unknown()
    calls = take_all(quota, 0.0)
    assert len(calls) == 6
    for number in range(6):
        quota.succeeded(calls[number], 0.1, 0.0)
        assert len(take_all(quota, 0.1)) == (2, 1)[number % 2]
    assert quota.in_flight == 9


def test_slow_answers_keep_no_call_waiting_for_long() -> None:
    """The calls in flight double in each quarter of a second: 64 after a second."""
    quota, now = unknown(), 0.0
    take_all(quota, now)
    while quota.in_flight < 64:
        now = quota.look(now, 0.0)
        take_all(quota, now)
    assert now == pytest.approx(0.85, abs=0.1)


def test_a_list_that_all_workers_can_take_at_once_goes_with_the_first_answer() -> None:
    """It loses less than a round trip; a longer list opens slowly."""
    for waiting, more in ((58, 60), (65, 2)):
        quota = unknown()
        first = take_all(quota, 0.0)[0]
        quota.lack(waiting, workers=64)
        quota.succeeded(first, 0.05, 0.0)
        assert len(take_all(quota, 0.05)) == more


def test_what_others_are_told_is_a_number_also_once_nothing_limits() -> None:
    """Answers take two seconds, and those that wait have a worker: each answer opens for all of them."""
    quota, now = unknown(), 0.0
    calls = take_all(quota, now)
    while quota.in_flight < 100:
        now = quota.look(now, 0.0)
        calls += take_all(quota, now, 100 - quota.in_flight)
    quota.lack(90, workers=100)
    told = []
    for call in calls:
        quota.succeeded(call, now + 1.0, 0.0)
        told.append(quota.facts(now + 1.0).opened)
    assert max(told) == 4_096.0


def test_an_answer_that_tells_the_limit_opens_at_once() -> None:
    quota = unknown()
    call = take_all(quota, 0.0)[0]
    quota.succeeded(call, 0.05, 0.0)
    quota.learn(LimitReport(requests_limit=6000, requests_remaining=5999), call, 0.05)
    assert len(take_all(quota, 0.05)) == 61 + 3


def test_a_told_limit_and_one_that_is_in_use_are_not_approached() -> None:
    """The burst of a told one is tested; clients that come later find what is known."""
    told = Quota()
    told.configure(600, None, 0.0)
    told.approach()
    assert not told.is_opening
    used = Quota()
    used.take(0.0, 0.0)
    used.approach()
    assert not used.is_opening


def test_after_a_refusal_one_call_finds_out_whether_it_is_a_lone_one() -> None:
    """No other goes meanwhile; answered, it goes on."""
    quota, rng = unknown(), random.Random(0)
    calls = take_all(quota, 0.0)
    assert quota.refused(calls[5], 0.01, None, rng) is None
    assert quota.look(0.02, 0.0) > 0.02
    for call in calls[:3]:
        quota.succeeded(call, 0.05, 0.0)
    [probe] = take_all(quota, 0.05)
    quota.succeeded(probe, 0.1, 0.0)
    assert len(take_all(quota, 0.1)) >= 3


def refused_together(quota: Quota) -> list[Reservation]:
    """Of six calls two are answered, and then the fourth is refused, and two of the three that were sent with
    the answers: that proves a limit. Return those that are still in flight.
    """
    rng = random.Random(0)
    calls = take_all(quota, 0.0)
    for call in calls[4:]:
        quota.succeeded(call, 0.05, 0.0)
    later = take_all(quota, 0.05)
    assert len(later) == 3
    assert quota.refused(calls[3], 0.06, 1.0, rng) is None
    assert quota.refused(later[0], 0.061, 1.0, rng) is None
    assert quota.refused(later[1], 0.062, 1.0, rng) is not None
    return [*calls[:3], later[2]]


def test_refusals_of_calls_sent_after_a_refused_one_prove_a_limit() -> None:
    """A pause for all, and then the rate that was accepted before it and in it: three calls were sent before
    the first refused one, in some 1.1 s. What is in flight and was sent after it may be refused, too."""
    quota = unknown()
    refused_together(quota)
    assert quota.spaced_rate == pytest.approx(3 / 1.1 * 0.98, abs=0.15)


def test_refusals_that_were_on_their_way_when_a_limit_was_proven_prove_nothing_more() -> None:
    """They had the next refusal, a lone one, pause all calls for as long again."""
    quota, rng = unknown(), random.Random(0)
    for late in refused_together(quota):
        quota.refused(late, 0.07, 1.0, rng)
    now = 1.1
    for _ in range(20):
        now = max(now, quota.look(now, 0.0))
        quota.succeeded(quota.take(now, 0.0), now + 0.05, 0.0)
    now = max(now, quota.look(now, 0.0))
    assert quota.refused(quota.take(now, 0.0), now + 0.05, 1.0, rng) is None


def test_the_first_refusal_holds_calls_back_also_where_there_are_fewer_workers() -> None:
    """Sixteen workers, and a window that is wider: half of the calls end before another one goes."""
    quota, rng = unknown(), random.Random(0)
    calls = take_all(quota, 0.0)
    for hundredth in range(5, 45):
        quota.succeeded(calls.pop(0), hundredth / 100, 0.0)
        calls += take_all(quota, hundredth / 100, 16 - len(calls))
    assert len(calls) == 16
    assert quota.refused(calls.pop(), 0.46, None, rng) is None
    for _ in range(8):
        assert take_all(quota, 0.5) == []
        quota.succeeded(calls.pop(0), 0.5, 0.0)
    assert len(take_all(quota, 0.5)) == 1


def test_a_probe_that_is_never_sent_holds_nobody_up() -> None:
    quota, rng = unknown(), random.Random(0)
    calls = take_all(quota, 0.0)
    quota.refused(calls[5], 0.01, None, rng)
    for call in calls[:5]:
        quota.succeeded(call, 0.05, 0.0)
    for call in take_all(quota, 0.05):
        quota.dropped(call, 0.06)
    assert quota.look(0.06, 0.0) == 0.06


Asked = Callable[[float], float] | None


def of_a_silent_server(seed: int, latency: Latency, asks: str = "one second") -> Run:
    """1,500 calls by 64 workers; twenty are let through in each second of the server's clock."""
    offset = random.Random(seed).random()
    asked: dict[str, Asked] = {
        "one second": lambda _: 1.0,
        "the rest of the second": lambda now: 1.002 - (now + offset) % 1.0,
        "nothing": None,
    }
    windows, after = fixed_windows(20, 1.0, offset), asked[asks]
    return run(unknown(), windows, 1500, latency=latency, seed=seed, quick_refusals=True, retry_after=after)


@pytest.mark.parametrize("latency", sampled(["50 ms", "around 50 ms"]))
def test_twenty_a_second_without_bursts_that_nobody_told(latency: str) -> None:
    """95 % used, and 22 refused at most; 70 without the approach."""
    how = constant(0.05) if latency == "50 ms" else lognormal(0.05, 0.3)
    for seed in range(3):
        outcome = of_a_silent_server(seed, how)
        assert outcome.refused <= 22, f"seed={seed}"
        assert 1500 / (20 * outcome.seconds) >= 0.95, f"seed={seed}"


@pytest.mark.parametrize("asks", sampled(["one second", "the rest of the second", "nothing"], keep=3))
def test_of_twenty_a_second_that_nobody_told_few_are_refused_in_the_mean_of_many_servers(asks: str) -> None:
    """0.5 %, and 98 % used, whatever refusals ask to wait."""
    outcomes = [of_a_silent_server(seed, lognormal(0.05, 0.3), asks) for seed in range(40)]
    assert fmean(outcome.refused for outcome in outcomes) <= 0.005 * 1500
    assert fmean(1500 / (20 * outcome.seconds) for outcome in outcomes) >= 0.98


SILENT: dict[str, Callable[[random.Random], Admit]] = {
    "twenty each second": lambda rng: fixed_windows(20, 1.0, rng.random()),
    "a bucket of twenty": lambda _: bucket(20, 20),
    "a bucket of five": lambda _: bucket(5, 20),
}
"""Servers that let twenty calls a second through, and say nothing."""


@pytest.mark.parametrize("seconds", sampled([1.0, 3.0], keep=2))
@pytest.mark.parametrize("server", sampled(SILENT, keep=2))
def test_slow_answers_do_not_make_a_rate_look_like_a_cap_on_calls_at_once(
    server: str, seconds: float
) -> None:
    """Calls are spaced at it by most clients, and 2 % are refused at most, in the mean. It was 4 %, and a few
    clients that spaced: the call that was to find out went when the limit had refilled."""
    outcomes, spaced = list[Run](), 0
    for seed in range(8):
        quota, admit = unknown(), SILENT[server](random.Random(seed))
        how = lognormal(seconds)
        outcomes.append(run(quota, admit, 1500, latency=how, seed=seed, quick_refusals=True, workers=160))
        spaced += quota.spaced_rate is not None
    assert spaced >= 6
    assert fmean(outcome.refused for outcome in outcomes) <= 0.02 * 1500


@pytest.mark.parametrize("style", sampled(["openai", "gemini"], keep=2))
@pytest.mark.parametrize("told", sampled([None, 1200]))
def test_twenty_a_second_without_bursts_that_answers_or_refusals_tell(style: str, told: int | None) -> None:
    """98 % used; 0.5 % refused at most, or 0.6 % where nothing but a refusal names the limit. What is left of
    a window says nothing of the next one."""
    server = Server(style, {"requests": 1200})
    server.meters = {"requests": SecondMeter(1200)}
    quota = Quota()
    quota.configure(told, None, 0.0)
    quota.approach()
    client = Client(quota, lognormal(0.05, 0.3))
    fill(server, client, seconds=75.0, jitter=0.002)
    assert server.meters["requests"].used(0.0, 75.0) >= 0.98
    assert client.counts.share <= (0.006 if style == "gemini" else 0.005)


def test_a_service_without_limits_is_at_full_width_within_a_few_round_trips() -> None:
    """640 calls of 50 ms on 64 workers: ten round trips, and four more."""
    outcome = run(unknown(), bucket(1e9, 1e9), 640, latency=constant(0.05))
    assert outcome.seconds <= 14 * 0.05 + 1e-6


def test_random_refusals_at_first_contact_cost_a_few_round_trips() -> None:
    """2 % of 2,000 calls, quicker than answers: 1.6 s without any."""
    for seed in range(3):
        quota = unknown()
        outcome = run(
            quota,
            noisy(0.02, random.Random(seed)),
            2000,
            latency=lognormal(0.05, 0.3),
            seed=seed,
            quick_refusals=True,
        )
        assert quota.spaced_rate is None, f"seed={seed}"
        assert outcome.seconds <= 3.2, f"seed={seed}"
