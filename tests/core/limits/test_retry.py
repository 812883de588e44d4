"""Which failures are retried, and when."""

from __future__ import annotations

import random

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.limits.cooldown import exponential
from smartbatch.core.limits.retry import Circumstances, Retry, RetryCount, RetryPolicy, decide
from smartbatch.errors import ErrorKind

SURE = RetryPolicy(jitter=False)
RNG = random.Random(1)
DOWN = Circumstances(unavailable=True, outage=True)


def tries(kind: ErrorKind, policy: RetryPolicy = SURE) -> int:
    """Return how many retries a request gets that always fails with ``kind``."""
    count, number = RetryCount(), 0
    while decide(policy, kind, count, None, RNG) is not None:
        number += 1
        assert number < 1000
    return number


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (ErrorKind.NETWORK_ERROR, 3),
        (ErrorKind.SERVER_ERROR, 3),
        (ErrorKind.TIMEOUT, 1),
        (ErrorKind.UNKNOWN, 1),
        (ErrorKind.RATE_LIMIT, 30),
        (ErrorKind.AUTH_ERROR, 0),
        (ErrorKind.INVALID_RESPONSE, 0),
        (ErrorKind.CLIENT_ERROR, 0),
        (ErrorKind.NO_MONEY, 0),
        (ErrorKind.CONTEXT_TOO_LONG, 0),
    ],
)
def test_each_kind_of_failure_has_its_own_number_of_retries(kind: ErrorKind, number: int) -> None:
    assert tries(kind) == number


def test_every_kind_has_a_rule() -> None:
    assert all(tries(kind) <= 30 for kind in ErrorKind)


def test_without_retries_nothing_is_counted_again_but_limits_still_wait() -> None:
    """``retries=0`` gives up on faults; a refusal for the rate limit is not a fault of the request."""
    none = RetryPolicy(retries=0)
    assert [tries(k, none) for k in (ErrorKind.SERVER_ERROR, ErrorKind.TIMEOUT)] == [0, 0]
    assert tries(ErrorKind.RATE_LIMIT, none) == 30


def test_waits_follow_the_formula_up_to_the_longest() -> None:
    assert [exponential(n, 1.0, 2.0, 10.0) for n in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert exponential(100_000, 1.0, 2.0, 10.0) == 10.0
    count = RetryCount()
    delays = [decide(SURE, ErrorKind.SERVER_ERROR, count, None, RNG) for _ in range(4)]
    assert delays == [Retry(1.0, True), Retry(2.0, True), Retry(4.0, True), None]


def test_a_crowd_that_failed_together_does_not_return_together() -> None:
    """Of 1,000 requests that back off at the same moment, at most a third return within the same 100 ms."""
    rng = random.Random(7)
    at = [RetryPolicy().delay(0, rng) for _ in range(1000)]
    assert max(sum(t <= a < t + 0.1 for a in at) for t in at) < 333


@given(st.floats(0.0, 600.0), st.integers(), st.sampled_from([ErrorKind.SERVER_ERROR, ErrorKind.RATE_LIMIT]))
def test_retry_after_is_a_minimum(asked: float, seed: int, kind: ErrorKind) -> None:
    retry = decide(RetryPolicy(), kind, RetryCount(), asked, random.Random(seed))
    assert retry is not None
    assert max(asked, 0.1) <= retry.delay <= max(asked + min(1.0, 0.1 * asked), 0.2)


@pytest.mark.parametrize("asked", [0.0, 0.5])
def test_a_server_that_names_too_short_a_time_again_meets_the_backoff(asked: float) -> None:
    """From the second refusal on the waits double, up to a minute; the tries of a request last 20 minutes."""
    count, delays = RetryCount(), []
    while (retry := decide(SURE, ErrorKind.RATE_LIMIT, count, asked, RNG)) is not None:
        delays.append(retry.delay)
    assert all(2.0**n / 2.0 <= delay <= 2.0**n for n, delay in enumerate(delays[1:7]))
    assert all(30.0 <= delay <= 60.0 for delay in delays[7:])
    assert len(delays) == 30


def test_a_fault_that_names_no_wait_uses_up_no_try_at_once() -> None:
    """503 with Retry-After: 0, again and again: a moment, then the policy's backoff."""
    count = RetryCount()
    delays = [decide(SURE, ErrorKind.SERVER_ERROR, count, 0.0, RNG) for _ in range(4)]
    assert delays[0] is not None
    assert 0.1 <= delays[0].delay <= 0.2
    assert delays[1:] == [Retry(1.0, True), Retry(2.0, True), None]


def test_a_refusal_for_the_limit_costs_no_try() -> None:
    count = RetryCount()
    asked = decide(SURE, ErrorKind.RATE_LIMIT, count, 5.0, RNG)
    assert asked is not None
    assert 5.0 <= asked.delay <= 5.5
    own = decide(SURE, ErrorKind.RATE_LIMIT, RetryCount(), None, RNG)
    assert own is not None
    assert 0.5 <= own.delay <= 1.0
    assert (asked.counted, own.counted, count.whole, count.partial) == (False, False, 0, 0)


def test_an_outage_costs_neither_a_try_nor_a_wait() -> None:
    """While the breaker is not closed, it delays the request; 500 such failures use no try."""
    count = RetryCount()
    for _ in range(500):
        retry = decide(SURE, ErrorKind.SERVER_ERROR, count, None, RNG, DOWN)
        assert retry == Retry(0.0, False)
    assert (count.whole, count.partial) == (0, 0)


def test_an_outage_does_not_pardon_what_can_never_work() -> None:
    assert decide(SURE, ErrorKind.AUTH_ERROR, RetryCount(), None, RNG, DOWN) is None


@pytest.mark.parametrize(
    "bad", [{"retries": -1}, {"multiplier": 0.5}, {"initial": -1.0}, {"max_delay": -1.0}]
)
def test_a_policy_out_of_range_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        RetryPolicy(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(("share", "failures"), [(0.0, 4), (0.1, 7), (0.3, 14), (0.5, 24), (0.9, 152)])
def test_failures_cost_less_than_a_try_if_many_calls_fail(share: float, failures: int) -> None:
    seen, count, number = Circumstances(unavailable=True, passing=True, failure_share=share), RetryCount(), 1
    while decide(SURE, ErrorKind.SERVER_ERROR, count, None, RNG, seen) is not None:
        number += 1
    assert number == failures


@pytest.mark.parametrize("kind", [ErrorKind.SERVER_ERROR, ErrorKind.NETWORK_ERROR])
@pytest.mark.parametrize("outage", [False, True])
def test_a_failure_that_may_have_been_billed_is_a_whole_try(kind: ErrorKind, outage: bool) -> None:
    """A reset after sending, a 504, a web page: four calls, even if others fail as well, or in an outage."""
    seen = Circumstances(unavailable=True, maybe_billed=True, outage=outage, passing=True, failure_share=0.9)
    count, number = RetryCount(), 1
    while (retry := decide(SURE, kind, count, None, RNG, seen)) is not None:
        assert retry.counted
        number += 1
    assert number == 4


def test_a_share_of_failures_that_rises_counts_for_the_failures_before_it() -> None:
    """Three failures while 2 % are known to fail, and more while half do: 21 in total, not 4."""
    count, number = RetryCount(), 1
    seen = Circumstances(unavailable=True, passing=True, failure_share=0.02)
    while decide(SURE, ErrorKind.SERVER_ERROR, count, None, RNG, seen) is not None:
        number += 1
        seen = evolve(seen, failure_share=0.5 if number > 3 else 0.02)
    assert number == 21


def test_while_others_pass_the_delays_follow_the_latency() -> None:
    """50 ms and then 100 ms, each drawn between half and the whole; alone 1 s, 2 s, …"""
    seen = Circumstances(unavailable=True, passing=True, failure_share=0.5, latency=0.05)
    count, delays = RetryCount(), []
    for _ in range(6):
        retry = decide(SURE, ErrorKind.SERVER_ERROR, count, None, RNG, seen)
        assert retry is not None
        delays.append(retry.delay / 0.05)
    for delay, most in zip(delays, [1, 2, 2, 2, 2, 2], strict=True):
        assert most / 2 <= delay <= most
    others_fail = Circumstances(unavailable=True, failure_share=0.5, latency=0.05)
    alone = decide(SURE, ErrorKind.SERVER_ERROR, RetryCount(), None, RNG, others_fail)
    assert alone is not None
    assert alone.delay == 1.0
