"""What accepted calls measure of a limit that was proven."""

from __future__ import annotations

import math

import pytest

from smartbatch.core.limits.accepted_calls import AcceptedCalls
from smartbatch.core.limits.header_limits import Reservation
from smartbatch.core.limits.lease import LimitLease


def measured(count: int, since: float = 10.0, *, alone: bool = True) -> AcceptedCalls:
    calls = AcceptedCalls()
    calls.restart(since)
    for _ in range(count):
        calls.accept(Reservation(since, 0.0, 0.0), alone=alone)
    return calls


@pytest.mark.parametrize(
    ("count", "now", "alone", "others"),
    [(1, 130.0, True, True), (1, 130.5, False, False), (0, 130.0, False, True), (0, 130.5, False, False)],
)
def test_for_two_minutes_they_measure_something_also_those_of_others(
    count: int, now: float, alone: bool, others: bool
) -> None:
    calls = measured(count)
    assert (calls.measures(now, alone=True), calls.measures(now, alone=False)) == (alone, others)


def test_before_a_limit_was_proven_they_measure_nothing() -> None:
    calls = AcceptedCalls()
    calls.accept(Reservation(0.0, 0.0, 0.0), alone=True)
    assert not calls.measures(1.0, alone=True)
    assert calls.since == -math.inf


@pytest.mark.parametrize(
    ("until", "under_way", "rate"), [(20.0, 0, 0.4), (20.0, 2, 0.6), (11.0, 0, 4.0), (10.25, 0, 4.0)]
)
def test_a_rate_is_that_of_a_second_at_least(until: float, under_way: int, rate: float) -> None:
    """A limit that is counted each second lets a second's worth through at once."""
    assert measured(4).rate(until, under_way, None, spaced=False) == rate


@pytest.mark.parametrize(("until", "rate"), [(12.0, 2.5), (10.2, 25.0), (10.1, 25.0)])
def test_where_a_burst_was_measured_before_one_call_more_may_have_been_accepted(
    until: float, rate: float
) -> None:
    calls = measured(4)
    calls.is_untried = True
    lease = LimitLease("one", lambda: None)
    assert calls.rate(until, 0, lease, spaced=True) == pytest.approx(rate)


def test_calls_that_were_sent_before_the_proof_count_only_for_one_that_is_alone() -> None:
    for alone, rate in ((True, 0.3), (False, 0.2)):
        calls = measured(2, alone=alone)
        calls.accept(Reservation(9.5, 0.0, 0.0), alone=alone)
        assert calls.rate(20.0, 0, None, spaced=False) == rate


def test_a_proof_before_the_first_answer_leaves_the_measurement_as_it_is() -> None:
    calls = measured(0)
    calls.proven(15.0)
    assert calls.since == 10.0
    calls.accept(Reservation(12.0, 0.0, 0.0), alone=True)
    calls.proven(16.0)
    assert calls.since == 16.0
    assert not calls.measures(16.0, alone=True)
