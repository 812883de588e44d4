"""Which failures are tried again, when, and how many retries a struggling provider gets."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.limits.backoff import exponential
from smartbatch.core.limits.retry import Retry, RetryBudget, RetryCount, RetryPolicy, decide
from smartbatch.errors import ErrorKind

SURE = RetryPolicy(jitter=False)
RNG = random.Random(1)


def tries(kind: ErrorKind, policy: RetryPolicy = SURE) -> int:
    """How many retries a request gets that always fails with ``kind``."""
    count, number = RetryCount(), 0
    while decide(policy, kind, count, None, outage=False, rng=RNG) is not None:
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
    """Passing faults are tried again, what may be billed twice once, what cannot change never."""
    assert tries(kind) == number


def test_every_kind_has_a_rule() -> None:
    """A kind that is added to the errors cannot be retried for ever by accident."""
    assert all(tries(kind) <= 30 for kind in ErrorKind)


def test_without_retries_nothing_is_counted_again_but_limits_still_wait() -> None:
    """``retries=0`` gives up on faults; a refusal for the rate limit is not a fault of the request."""
    none = RetryPolicy(retries=0)
    assert [tries(k, none) for k in (ErrorKind.SERVER_ERROR, ErrorKind.TIMEOUT)] == [0, 0]
    assert tries(ErrorKind.RATE_LIMIT, none) == 30


def test_waits_follow_the_formula_up_to_the_longest() -> None:
    """min(initial × multiplier^attempt, max)."""
    assert [exponential(n, 1.0, 2.0, 10.0) for n in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert exponential(100_000, 1.0, 2.0, 10.0) == 10.0
    count = RetryCount()
    delays = [decide(SURE, ErrorKind.SERVER_ERROR, count, None, outage=False, rng=RNG) for _ in range(4)]
    assert delays == [Retry(1.0, True), Retry(2.0, True), Retry(4.0, True), None]


@given(st.integers(0, 50), st.integers())
def test_jitter_keeps_at_least_half_of_the_wait(attempt: int, seed: int) -> None:
    """The wait is drawn between 50 % and 100 % of the formula."""
    full = exponential(attempt, 1.0, 2.0, 10.0)
    assert full / 2 <= RetryPolicy().delay(attempt, random.Random(seed)) <= full


def test_a_crowd_that_failed_together_does_not_return_together() -> None:
    """Of 1,000 requests that back off at the same moment at most a third come in the same 100 ms."""
    rng = random.Random(7)
    at = [RetryPolicy().delay(0, rng) for _ in range(1000)]
    assert max(sum(t <= a < t + 0.1 for a in at) for t in at) < 333


@given(st.floats(0.0, 600.0), st.integers())
def test_retry_after_is_a_minimum(asked: float, seed: int) -> None:
    """What the server asks for wins over the backoff, shorter or longer, with a little on top."""
    retry = decide(
        RetryPolicy(), ErrorKind.SERVER_ERROR, RetryCount(), asked, outage=False, rng=random.Random(seed)
    )
    assert retry is not None
    assert asked <= retry.delay <= asked + min(1.0, 0.1 * asked)


def test_a_refusal_for_the_limit_costs_no_try() -> None:
    """The request returns with the shared cooldown, and its tries are still all there."""
    count = RetryCount()
    assert decide(SURE, ErrorKind.RATE_LIMIT, count, 5.0, outage=False, rng=RNG) == Retry(5.0, False)
    assert decide(SURE, ErrorKind.RATE_LIMIT, count, None, outage=False, rng=RNG) == Retry(0.0, False)
    assert count.counted == 0


def test_an_outage_costs_no_try_and_no_wait_of_its_own() -> None:
    """While the breaker is not closed it holds the request; 500 such failures leave the tries untouched."""
    count = RetryCount()
    for _ in range(500):
        retry = decide(SURE, ErrorKind.SERVER_ERROR, count, None, outage=True, rng=RNG)
        assert retry == Retry(0.0, False)
    assert count.counted == 0


def test_an_outage_does_not_pardon_what_can_never_work() -> None:
    """A wrong key is final, whatever state the breaker is in."""
    assert decide(SURE, ErrorKind.AUTH_ERROR, RetryCount(), None, outage=True, rng=RNG) is None


@pytest.mark.parametrize(
    "bad", [{"retries": -1}, {"multiplier": 0.5}, {"initial": -1.0}, {"max_delay": -1.0}]
)
def test_a_policy_out_of_range_is_refused(bad: dict[str, float]) -> None:
    """A negative wait or a shrinking one is a mistake."""
    with pytest.raises(ValueError):
        RetryPolicy(**bad)  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.sampled_from(["call", "ok", "fail", "drop"]), st.floats(0.0, 20.0)), max_size=300)
)
def test_failed_retries_stay_within_the_budget(steps: list[tuple[str, float]]) -> None:
    """Failed retries <= 10 % of first calls + 3 + successful retries + elapsed / 5 s, and one trickle."""
    budget, now, calls, failed, succeeded = RetryBudget(), 0.0, 0, 0, 0
    for step, passed in steps:
        now += passed
        if step == "call":
            calls += 1
            budget.called()
            continue
        if budget.look(now) > now:
            continue
        budget.take(now)
        if step == "ok":
            succeeded += 1
            budget.succeeded()
        elif step == "drop":
            budget.dropped()
        else:
            failed += 1
        assert failed <= 0.1 * calls + 3 + succeeded + now / 5.0 + 1 + 1e-6


def test_success_is_not_saved_up() -> None:
    """However many retries succeeded in good times, a new outage gets three and one trickle."""
    budget = RetryBudget()
    for _ in range(60):
        budget.take(0.0)
        budget.succeeded()
    went = 0
    while budget.look(0.0) <= 0.0:
        budget.take(0.0)
        went += 1
        assert went <= 3
    assert budget.look(0.0) == 5.0


def test_an_outage_lets_few_retries_through_and_never_none() -> None:
    """1,000 first calls fail, and then their retries: 103 go at once, then one each 5 s."""
    budget = RetryBudget()
    for _ in range(1000):
        budget.called()
    went = 0
    while budget.look(0.0) <= 0.0 and went < 200:
        budget.take(0.0)
        went += 1
    assert went == 103
    assert budget.look(0.0) == 5.0
    budget.take(5.0)
    assert budget.look(5.0) == 10.0


def test_recovery_opens_exponentially() -> None:
    """After an outage one success lets two retries go, these four: 60 waiting ones need six rounds."""
    budget, now = RetryBudget(), 0.0
    for _ in range(1000):
        budget.called()
    for _ in range(103):
        budget.take(now)
    now, waiting, rounds = 5.0, 60, 0
    while waiting > 0:
        went = 0
        while waiting > 0 and budget.look(now) <= now:
            budget.take(now)
            went, waiting = went + 1, waiting - 1
        for _ in range(went):
            budget.succeeded()
        now, rounds = now + 0.1, rounds + 1
    assert rounds <= 7


def test_two_percent_of_mixed_faults_never_wait_for_the_budget() -> None:
    """1,319 requests, 64 in flight, 2 % faults: in none of 200 runs is a retry held back."""
    for seed in range(200):
        rng, budget, delayed = random.Random(seed), RetryBudget(), 0
        flying: deque[bool] = deque()
        retries, sent = 0, 0
        while sent < 1319 or retries or flying:
            while len(flying) < 64 and (retries or sent < 1319):
                if retries:
                    delayed += budget.look(0.0) > 0.0
                    budget.take(0.0)
                    retries -= 1
                    flying.append(True)
                else:
                    budget.called()
                    sent += 1
                    flying.append(False)
            retried = flying.popleft()
            if rng.random() < 0.02:
                retries += 1
            elif retried:
                budget.succeeded()
        assert delayed == 0, f"seed={seed}"
