"""Which failures are retried, and when."""

from __future__ import annotations

import random

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.limits.retry import Circumstances, Retry, RetryCount, RetryPolicy, decide
from smartbatch.errors import ErrorKind

SURE = RetryPolicy(jitter=False)
ALONE = Circumstances()
RNG = random.Random(1)
PASSING = Circumstances(unavailable=True, passing=True, failure_share=0.5, latency=0.05)
DOWN = Circumstances(unavailable=True, outage=True)


def retries(
    kind: ErrorKind, policy: RetryPolicy = SURE, asked: float | None = None, seen: Circumstances = ALONE
) -> list[Retry]:
    """The retries of a request that always fails in this way, 1,000 at most."""
    count, made = RetryCount(), list[Retry]()
    while len(made) < 1000 and (retry := decide(policy, kind, count, asked, RNG, seen)) is not None:
        made.append(retry)
    return made


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
def test_each_kind_of_failure_has_its_own_number_of_retries(kind, number):
    assert len(retries(kind)) == number


def test_every_kind_has_a_rule():
    assert all(len(retries(kind)) <= 30 for kind in ErrorKind)


def test_without_retries_only_limits_still_wait():
    none = RetryPolicy(retries=0)
    assert not any(retries(kind, none) for kind in (ErrorKind.SERVER_ERROR, ErrorKind.TIMEOUT))
    assert retries(ErrorKind.SERVER_ERROR, none, seen=PASSING) == []
    assert len(retries(ErrorKind.RATE_LIMIT, none)) == 30


def test_waits_follow_the_formula():
    assert retries(ErrorKind.SERVER_ERROR) == [Retry(1.0, True), Retry(2.0, True), Retry(4.0, True)]


def test_a_crowd_that_failed_together_does_not_return_together():
    """Of 1,000 requests that back off at the same moment, at most a third return within the same 100 ms."""
    rng = random.Random(7)
    at = [RetryPolicy().delay(0, rng) for _ in range(1000)]
    assert max(sum(t <= a < t + 0.1 for a in at) for t in at) < 333


@given(st.floats(0.5, 600.0), st.integers(), st.sampled_from([ErrorKind.SERVER_ERROR, ErrorKind.RATE_LIMIT]))
def test_retry_after_is_a_minimum(asked, seed, kind):
    for seen in (ALONE, PASSING):
        retry = decide(RetryPolicy(), kind, RetryCount(), asked, random.Random(seed), seen)
        assert retry is not None
        assert max(asked, 0.1) <= retry.delay <= max(asked + min(1.0, 0.1 * asked), 0.2)


@pytest.mark.parametrize("asked", [0.0, 0.5])
def test_a_server_that_names_too_short_a_time_again_meets_the_backoff(asked):
    """From the second refusal on the waits double, up to a minute; the tries of a request last 20 minutes."""
    delays = [retry.delay for retry in retries(ErrorKind.RATE_LIMIT, asked=asked)]
    assert all(2.0**n / 2.0 <= delay <= 2.0**n for n, delay in enumerate(delays[1:7]))
    assert all(30.0 <= delay <= 60.0 for delay in delays[7:])
    assert len(delays) == 30


def test_a_fault_that_names_no_wait_uses_up_no_try_at_once():
    """503 with Retry-After: 0, again and again: a moment, then the policy's backoff."""
    first, *others = retries(ErrorKind.SERVER_ERROR, asked=0.0)
    assert 0.1 <= first.delay <= 0.2
    assert others == [Retry(1.0, True), Retry(2.0, True)]


@pytest.mark.parametrize(("asked", "least", "most"), [(5.0, 5.0, 5.5), (None, 0.5, 1.0)])
def test_a_refusal_for_the_limit_costs_no_try(asked, least, most):
    count = RetryCount()
    retry = decide(SURE, ErrorKind.RATE_LIMIT, count, asked, RNG)
    assert retry is not None
    assert least <= retry.delay <= most
    assert (retry.counted, count.whole, count.partial) == (False, 0, 0)


def test_an_outage_costs_neither_a_try_nor_a_wait():
    """While the breaker is not closed, it delays the request."""
    assert retries(ErrorKind.SERVER_ERROR, seen=DOWN) == [Retry(0.0, False)] * 1000
    assert retries(ErrorKind.AUTH_ERROR, seen=DOWN) == []


@pytest.mark.parametrize(
    "bad", [{"retries": -1}, {"multiplier": 0.5}, {"initial": -1.0}, {"max_delay": -1.0}]
)
def test_a_policy_out_of_range_is_refused(bad):
    with pytest.raises(ValueError):
        RetryPolicy(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(("share", "failures"), [(0.0, 4), (0.1, 7), (0.3, 14), (0.5, 24), (0.9, 152)])
def test_failures_cost_less_than_a_try_if_many_calls_fail(share, failures):
    assert len(retries(ErrorKind.SERVER_ERROR, seen=evolve(PASSING, failure_share=share))) == failures - 1


@pytest.mark.parametrize("kind", [ErrorKind.SERVER_ERROR, ErrorKind.NETWORK_ERROR])
@pytest.mark.parametrize("outage", [False, True])
def test_a_failure_that_may_have_been_billed_is_a_whole_try(kind, outage):
    """A reset after sending, a 504, a web page: four calls, even if others fail as well, or in an outage."""
    made = retries(kind, seen=evolve(PASSING, maybe_billed=True, outage=outage, failure_share=0.9))
    assert [retry.counted for retry in made] == [True] * 3


def test_a_share_of_failures_that_rises_counts_for_the_failures_before_it():
    """Three failures while 2 % are known to fail, and more while half do: 21 in total, not 4."""
    count, number, seen = RetryCount(), 1, evolve(PASSING, failure_share=0.02)
    while decide(SURE, ErrorKind.SERVER_ERROR, count, None, RNG, seen) is not None:
        number += 1
        seen = evolve(seen, failure_share=0.5 if number > 3 else 0.02)
    assert number == 21


@pytest.mark.parametrize(("latency", "first"), [(0.05, 0.05), (30.0, 1.0)])
def test_while_others_pass_the_delays_follow_the_latency(latency, first):
    """At most twice the latency, or twice the policy's first delay if answers take longer."""
    made = retries(ErrorKind.SERVER_ERROR, seen=evolve(PASSING, latency=latency))
    assert 0.5 <= made[0].delay / first <= 1.0
    assert all(1.0 <= retry.delay / first <= 2.0 for retry in made[1:])
    assert retries(ErrorKind.SERVER_ERROR, seen=evolve(PASSING, passing=False))[0].delay == 1.0
