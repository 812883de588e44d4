"""A cap on calls at once that nobody names: when it is supposed, tried, lowered and left again."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from smartbatch.core.limits.concurrency_cap import ConcurrencyCap
from smartbatch.core.limits.header_limits import Reservation


def sent(order: int, in_flight: int, now: float = 0.0) -> Reservation:
    """A call that makes so many in flight."""
    call = Reservation(now, 0.0, 0.0)
    call.order, call.held = order, (in_flight, 0.0, 0.0)
    return call


def met(levels: Sequence[int], now: float = 0.0) -> ConcurrencyCap:
    """Calls were refused, a quarter of a second after they were sent, with so many in flight."""
    cap = ConcurrencyCap()
    for level in levels:
        assert not cap.refused(sent(level, level, now - 0.25), now, 20)
    return cap


def capped(limit: int) -> ConcurrencyCap:
    """A supposed cap that an answer has confirmed, of calls up to the twentieth."""
    cap = met([limit + 1, limit + 2])
    assert cap.suppose(0.0, 20, None, 2)
    cap.accepted(sent(21, limit), 0.0)
    return cap


@pytest.mark.parametrize(
    ("levels", "limit"),
    [
        ([6, 7, 8], 5.0),
        ([3, 9, 10], 8.0),
        ([3, 5, 9], 2.0),
        ([3, 6, 9], 2.0),
        ([3], 2.0),
        ([2, 3], math.inf),
        ([2], math.inf),
    ],
)
def test_it_is_just_below_the_lowest_refusal_that_others_are_near_and_two_at_least(
    levels: list[int], limit: float
) -> None:
    cap = met(levels)
    assert cap.suppose(0.0, 20, None, 2) is (limit < math.inf)
    assert cap.limit == limit


@pytest.mark.parametrize(
    ("answered", "later", "supposed"),
    [(10, 60.0, True), (11, 60.0, False), (11, 60.5, True), (100, 0.0, False)],
)
def test_it_is_not_below_four_fifths_of_what_was_answered_within_a_minute(
    answered: int, later: float, supposed: bool
) -> None:
    cap = ConcurrencyCap()
    cap.accepted(sent(1, answered), 0.0)
    cap.accepted(sent(2, 3), 1.0)  # fewer say nothing
    for level in (9, 10):
        cap.refused(sent(level, level), later, 20)
    assert cap.suppose(later, 20, None, 2) is supposed


@pytest.mark.parametrize(("later", "supposed"), [(59.0, False), (60.0, True)])
def test_where_there_was_none_it_is_supposed_again_after_a_minute(later: float, supposed: bool) -> None:
    cap = capped(5)
    cap.leave(1.0)
    assert cap.limit == math.inf
    for level in (9, 10):
        cap.refused(sent(level, level), 1.0, 20)
    assert cap.suppose(1.0 + later, 20, None, 2) is supposed


def test_two_calls_probe_it_and_pass_in_four_times_what_a_refusal_took() -> None:
    cap = met([6, 7])
    cap.suppose(0.0, 20, None, 2)
    for order in (21, 22):
        assert cap.look(1.0, 3) == 1.0
        cap.take(sent(order, 4, 1.0), 1.0)
    assert cap.look(1.0, 3) == 2.0
    assert not cap.has_passed(1.5)
    assert cap.look(1.5, 3) == 2.0
    assert not cap.has_passed(2.0)
    assert cap.look(2.0, 3) == 2.0


def test_a_probe_that_ends_otherwise_is_replaced_and_two_that_are_refused_disprove_it() -> None:
    cap = met([6, 7])
    cap.suppose(0.0, 20, None, 2)
    probes = [sent(order, 4, 1.0) for order in (21, 22, 23)]
    for probe in probes[:2]:
        cap.take(probe, 1.0)
    cap.ended(probes[0])
    assert cap.look(1.0, 3) == 1.0
    cap.take(probes[2], 1.0)
    assert not cap.refused(probes[1], 1.25, 23)
    assert cap.limit == 5.0
    assert not cap.refused(probes[2], 1.25, 23)
    assert cap.limit == math.inf


def test_one_call_more_is_tried_ever_later_while_it_is_refused() -> None:
    cap, now, gaps = capped(5), 0.0, []
    for order in range(22, 30):
        at = cap.look(now, 5)
        gaps.append(at - now)
        extra = sent(order, 6, at)
        cap.take(extra, at)
        assert cap.look(at, 5) == math.inf  # one at a time
        now = at + 0.25
        assert cap.refused(extra, now, order)
    assert gaps == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0]
    assert cap.limit == 5.0


@pytest.mark.parametrize(("asked", "gap"), [(None, 1.0), (0.5, 1.0), (7.0, 7.0)])
def test_it_is_tried_first_after_what_the_server_asked_to_wait(asked: float | None, gap: float) -> None:
    cap = met([6, 7])
    cap.suppose(0.0, 20, asked, 2)
    assert cap.look(0.0, 5) == gap


def test_two_calls_beyond_it_that_pass_show_that_there_is_none() -> None:
    """By an answer, or in twice the time that a refusal took."""
    cap = capped(5)
    answered, silent = sent(22, 6, 1.0), sent(23, 7, 2.0)
    cap.take(answered, 1.0)
    cap.accepted(answered, 1.25)
    assert (cap.limit, cap.has_passed(1.25), cap.look(1.25, 6)) == (6.0, False, 2.25)
    cap.take(silent, 2.25)
    assert not cap.has_passed(2.7)
    assert cap.has_passed(2.75)
    assert cap.limit == 7.0


def test_a_call_beyond_it_that_ends_otherwise_leaves_it_as_it_is() -> None:
    cap = capped(5)
    extra = sent(22, 6, 1.0)
    cap.take(extra, 1.0)
    cap.ended(extra)
    assert (cap.limit, cap.look(1.0, 5)) == (5.0, 1.5)


def test_refusals_within_it_lower_it_once_and_the_third_disproves_it() -> None:
    """Fewer calls than four fifths of it, and those sent before it was known, say nothing."""
    cap = capped(10)
    assert not cap.refused(sent(22, 7), 1.0, 30)
    assert cap.refused(sent(20, 10), 1.0, 30)
    assert cap.refused(sent(23, 8), 1.0, 30)
    assert (cap.limit, cap.look(1.0, 10)) == (10.0, 1.0)  # the one beyond it goes at once
    assert cap.refused(sent(24, 9), 1.0, 30)
    assert cap.limit == 8.0
    assert cap.refused(sent(30, 9), 1.0, 31)  # of the same event
    assert not cap.refused(sent(31, 9), 1.0, 31)
    assert cap.limit == math.inf


@pytest.mark.parametrize(("answers", "limit"), [(12, 9.0), (13, 10.0)])
def test_a_dozen_answers_outweigh_a_refusal_within_it(answers: int, limit: float) -> None:
    cap = capped(10)
    cap.refused(sent(22, 10), 1.0, 30)
    for order in range(23, 23 + answers):
        cap.accepted(sent(order, 10), 1.0)
    cap.refused(sent(40, 10), 1.0, 50)
    assert cap.limit == limit
