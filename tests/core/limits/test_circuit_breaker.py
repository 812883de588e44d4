"""The circuit breaker: what opens it, how it probes, and its table of transitions."""

from __future__ import annotations

import heapq
import itertools
import random
from itertools import pairwise

import pytest
from core.limits.limit_server import Top

from smartbatch.core.limits.circuit_breaker import (
    LEGAL_CHANGES,
    BreakerPermit,
    BreakerState,
    CircuitBreaker,
    Outcome,
)
from tests.levels import sampled

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
OK, FAIL, IGNORED = Outcome.SUCCESS, Outcome.FAILURE, Outcome.IGNORED


def call(breaker: CircuitBreaker, now: float, outcome: Outcome) -> None:
    breaker.end(breaker.take(now), now, outcome, Top())


def opened() -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(5):
        call(breaker, 0.0, FAIL)
    assert breaker.state is OPEN
    return breaker


def busy(calls_a_second: float) -> CircuitBreaker:
    """A breaker that saw answers for a minute, and then an outage."""
    breaker, now = CircuitBreaker(), 0.0
    while now < 60.0:
        call(breaker, now, OK)
        now += 1.0 / calls_a_second
    while breaker.state is CLOSED:
        call(breaker, 60.0, FAIL)
    return breaker


def probes(breaker: CircuitBreaker, start: float, end: float) -> list[float]:
    """When probes are sent between two moments, if each fails at once."""
    now, moments = max(start, breaker.look(start)), []
    while now < end:
        moments.append(now)
        call(breaker, now, FAIL)
        now = breaker.look(now)
    return moments


def test_five_failures_in_a_row_open_it_and_say_so():
    breaker = CircuitBreaker()
    for _ in range(4):
        call(breaker, 0.0, FAIL)
    assert breaker.look(0.0) == 0.0
    change = breaker.end(breaker.take(0.0), 0.0, FAIL, Top())
    assert change is not None
    assert (change.before, change.after, change.reason) == (CLOSED, OPEN, "5 failures in a row")
    assert breaker.look(0.0) == 1.0
    assert breaker.changes() == []


@pytest.mark.parametrize("share", sampled([0.1, 0.3, 0.5], first=1))
def test_failures_of_a_part_of_the_calls_never_open_it(share):
    """10,000 calls, 64 at once; failures come back in 2 ms and answers in 50 ms."""
    breaker, rng, now, numbers = CircuitBreaker(), random.Random(7), 0.0, itertools.count()
    flying: list[tuple[float, int, BreakerPermit, Outcome]] = []
    for _ in range(10_000):
        while len(flying) < 64:
            outcome = FAIL if rng.random() < share else OK
            end = now + (0.002 if outcome is FAIL else 0.05)
            heapq.heappush(flying, (end, next(numbers), breaker.take(now), outcome))
        now, _, permit, outcome = heapq.heappop(flying)
        breaker.end(permit, now, outcome, rng)
        assert breaker.state is CLOSED
    assert breaker.failure_share == pytest.approx(share, abs=0.2)


def test_more_failures_open_it_if_half_of_the_calls_fail():
    """Five in a row are nothing special then; 22 are."""
    breaker = CircuitBreaker()
    for _ in range(500):
        call(breaker, 0.0, FAIL)
        call(breaker, 0.0, OK)
    failures = 0
    while breaker.state is CLOSED:
        call(breaker, 0.0, FAIL)
        failures += 1
    assert 18 <= failures <= 26


def test_calls_of_an_earlier_time_have_no_say_later():
    breaker = CircuitBreaker()
    old = [breaker.take(0.0) for _ in range(20)]
    for permit in old[:16]:
        breaker.end(permit, 0.0, FAIL, Top())
    assert breaker.state is OPEN
    probe = breaker.take(breaker.look(0.0))
    assert breaker.end(old[16], 1.5, OK, Top()) is None
    assert breaker.state is HALF_OPEN
    breaker.end(probe, 2.0, OK, Top())
    for permit in old[17:]:
        breaker.end(permit, 2.5, FAIL, Top())
    assert breaker.state is CLOSED


def test_a_probe_goes_and_its_success_closes():
    breaker = opened()
    assert 0.0 < breaker.look(0.0) <= 1.0
    probe = breaker.take(1.0)
    assert [change.after for change in breaker.changes()] == [HALF_OPEN]
    change = breaker.end(probe, 2.0, OK, Top())
    assert change is not None
    assert change.after is CLOSED
    assert breaker.look(2.0) == 2.0


def test_probes_go_at_two_percent_of_the_rate_before():
    """With 600 calls a second that is twelve a second, so 500 failing ones are over within a minute."""
    assert 450 <= len(probes(busy(600.0), 60.0, 120.0)) <= 650


def test_at_least_one_probe_goes_in_five_seconds():
    moments = probes(busy(1.0), 60.0, 660.0)
    assert all(after - before <= 5.0 for before, after in pairwise(moments))
    assert len(moments) <= 130


def test_probes_become_rare_in_a_long_outage():
    moments = probes(busy(600.0), 60.0, 3660.0)
    assert len(moments) <= 5_000
    assert moments[-1] - moments[-2] >= 2.0


def test_probes_that_hang_do_not_keep_others_from_going():
    breaker, now, began = opened(), 0.0, []
    for _ in range(12):
        now = breaker.look(now)
        began.append(now)
        breaker.take(now)
    assert all(sum(0 <= at - other < 5.0 for other in began) <= 4 for at in began)
    assert began[-1] <= 60.0


def test_a_probe_of_an_earlier_outage_takes_no_place_in_a_later_one():
    breaker = CircuitBreaker(probes=1)
    breaker.open("down", 0.0, Top())
    lost = breaker.take(1.0)
    breaker.stop(RuntimeError("no money"), 2.0, 3.0)
    assert breaker.look(3.0) == 3.0 < lost.overdue


def test_a_permanent_error_stops_calls_and_is_then_probed():
    breaker, error = CircuitBreaker(), RuntimeError("key refused")
    change = breaker.stop(error, 0.0, 60.0)
    assert change is not None
    assert (breaker.stopped(59.0), breaker.look(0.0)) == (error, 60.0)
    assert breaker.stopped(60.0) is None
    probe = breaker.take(60.0)
    assert breaker.look(60.0) > 60.0
    breaker.end(probe, 61.0, OK, Top())
    assert breaker.state is CLOSED


def test_a_permit_ends_once_and_is_only_given_when_look_said_go():
    breaker = CircuitBreaker()
    permit = breaker.take(0.0)
    breaker.end(permit, 0.0, OK, Top())
    with pytest.raises(RuntimeError):
        breaker.end(permit, 0.0, OK, Top())
    with pytest.raises(RuntimeError):
        opened().take(0.5)


@pytest.mark.parametrize("seed", range(3))
def test_all_changes_are_legal_and_an_admitted_call_may_be_sent(seed):
    """Calls end in random order, while the provider is down for every second hundred steps."""
    breaker, now, rng, made = (
        CircuitBreaker(),
        0.0,
        random.Random(seed),
        set[tuple[BreakerState, BreakerState]](),
    )
    flying: list[tuple[BreakerPermit, BreakerState]] = []
    for step in range(4000):
        now += rng.choice([0.0, 0.0, 0.1, 1.0])
        at, before = breaker.look(now), breaker.state
        assert now <= at <= now + 5.0, "a call may go within five seconds, whatever happened"
        assert at == now or before is not CLOSED
        changes = []
        if at == now and len(flying) < 8:
            permit = breaker.take(now)
            assert breaker.state is not OPEN
            flying.append((permit, breaker.state))
        elif flying:
            permit, sent_in = flying.pop(rng.randrange(len(flying)))
            outcome = rng.choice([FAIL if step // 100 % 2 else OK, IGNORED])
            change = breaker.end(permit, now, outcome, Top())
            assert (change is not None) == (before is not breaker.state)
            if change is not None:
                assert change.before is sent_in, "a call has a say only in the state it was sent in"
                assert outcome is (OK if change.after is CLOSED else FAIL)
                changes.append(change)
        made |= {(change.before, change.after) for change in [*breaker.changes(), *changes]}
    assert made == {(CLOSED, OPEN), (OPEN, HALF_OPEN), (HALF_OPEN, CLOSED)} <= set(LEGAL_CHANGES)


def test_failed_retries_count_once_their_request_is_answered():
    breaker = CircuitBreaker()
    for _ in range(300):
        call(breaker, 0.0, OK)
    for _ in range(30):
        breaker.end(breaker.take(1.0), 1.0, OK, Top(), first=False)
        breaker.end(breaker.take(1.0), 1.0, FAIL, Top(), first=False)
    assert breaker.failure_share == 0.0
    for _ in range(30):
        breaker.end(breaker.take(2.0), 2.0, OK, Top(), first=False, failures=1)
    assert 0.3 <= breaker.failure_share <= 0.5


def test_a_call_despite_a_permanent_error_is_no_probe():
    breaker = CircuitBreaker()
    breaker.stop(ValueError("wrong key"), 0.0, 30.0)
    assert breaker.end(breaker.take_despite(), 1.0, IGNORED, Top()) is None
    assert (breaker.state, breaker.look(1.0)) == (OPEN, 30.0)
    assert isinstance(breaker.permanent_error, ValueError)
    assert breaker.end(breaker.take_despite(), 2.0, OK, Top()) is None
    assert (breaker.state, breaker.look(2.0)) == (OPEN, 2.0)
    call(breaker, 2.0, OK)
    assert breaker.state is CLOSED
    assert breaker.permanent_error is None
