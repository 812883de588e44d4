"""Money: spent and reserved never pass the limit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.limits.budget import Budget, SpendReservation

usd = st.floats(0.0, 10.0)


@pytest.mark.full
@given(usd, st.lists(st.tuples(st.sampled_from(["call", "settle", "release"]), usd, st.floats(0.0, 1.0))))
def test_spent_and_reserved_never_pass_the_limit(limit: float, steps: list[tuple[str, float, float]]) -> None:
    """Whatever the order of calls and their ends, as long as none costs more than it reserved."""
    budget, held = Budget(limit), list[tuple[SpendReservation, float]]()
    for step, cost, share in steps:
        if step == "call":
            if budget.fits(cost):
                held.append((budget.reserve(cost), cost))
        elif held and step == "settle":
            reservation, reserved = held.pop()
            budget.settle(reservation, share * reserved)
        elif held:
            budget.release(held.pop()[0])
        assert budget.spent + budget.reserved <= limit + 1e-12
    for reservation, _ in held:
        budget.release(reservation)
    assert budget.reserved == 0.0


@pytest.mark.full
def test_a_million_small_costs_add_up_exactly() -> None:
    """Sums of floats drift; billionths of a USD do not."""
    budget = Budget(100.0)
    for _ in range(100_000):
        budget.settle(budget.reserve(0.000_001), 0.000_000_1)
    assert budget.spent == 0.01


def test_roundings_never_favour_spending() -> None:
    """A cost is rounded up and a limit down, to the billionth of a USD."""
    assert not Budget(1.9e-9).fits(1.1e-9)
    assert Budget(1.9e-9).fits(1e-9)


def test_a_call_dearer_than_its_reservation_is_booked_in_full() -> None:
    """The next call sees what is really left."""
    budget = Budget(1.0)
    budget.settle(budget.reserve(0.5), 0.75)
    assert (budget.spent, budget.left) == (0.75, 0.25)
    assert not budget.fits(0.3)


def test_a_call_waits_for_money_under_way_and_is_hopeless_without() -> None:
    """What does not fit now may fit once a call turns out cheaper; what was spent does not come back."""
    budget = Budget(1.0)
    reservation = budget.reserve(0.9)
    assert not budget.fits(0.5)
    assert budget.short(0.5) is None
    budget.settle(reservation, 0.8)
    assert budget.short(0.5) is not None
    with pytest.raises(RuntimeError):
        budget.reserve(0.5)


def test_only_money_of_calls_in_flight_is_waited_for() -> None:
    """Not what fits now, nor what is hopeless, nor what the outer budget lacks."""
    outer = Budget(9.0)
    budget = Budget(10.0, outer)
    budget.settle(budget.reserve(1.0), 1.0)
    lasting, call = budget.reserve(2.0, lasting=True), budget.reserve(3.0)
    assert [budget.must_wait(cost) for cost in (4.0, 4.1, 7.0, 7.1)] == [False, True, True, False]
    assert not budget.fits(4.0)
    budget.release(call)
    assert not budget.must_wait(7.0)
    budget.release(lasting)
    assert not budget.must_wait(9.1)
    assert not Budget(None, outer).must_wait(100.0)


def test_without_a_limit_everything_fits_and_is_still_counted() -> None:
    """The account is kept for the summary."""
    budget = Budget()
    budget.settle(budget.reserve(1e6), 2.5)
    assert (budget.spent, budget.left, budget.short(1e9)) == (2.5, None, None)


def test_a_reservation_ends_once() -> None:
    """A second ending is a mistake of the caller and loud."""
    budget = Budget(1.0)
    reservation = budget.reserve(0.5)
    budget.release(reservation)
    with pytest.raises(RuntimeError):
        budget.settle(reservation, 0.1)
    assert (budget.spent, budget.reserved) == (0.0, 0.0)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_amounts_that_are_no_money_are_refused(bad: float) -> None:
    """Negative, endless and undefined amounts would break the account for good."""
    budget = Budget(1.0)
    with pytest.raises(ValueError):
        Budget(bad)
    with pytest.raises(ValueError):
        budget.reserve(bad)
    reservation = budget.reserve(0.5)
    with pytest.raises(ValueError):
        budget.settle(reservation, bad)
    assert budget.reserved == 0.5


def test_what_is_held_back_for_long_is_not_waited_for() -> None:
    """A call under way may leave something in a moment, a job in a day."""
    budget = Budget(10.0)
    call, job = budget.reserve(4.0), budget.reserve(4.0, lasting=True)
    assert not budget.fits(3.0)
    assert budget.short(6.0) is None
    assert budget.short(6.1) is not None
    assert (budget.reserved, budget.left) == (8.0, 2.0)
    budget.spend(job, 1.5)
    assert (budget.spent, budget.reserved, budget.left) == (1.5, 6.5, 2.0)
    budget.spend(job, 3.0)  # more than was held back
    assert (budget.spent, budget.reserved) == (4.5, 4.0)
    budget.settle(job, 0.0)
    budget.release(call)
    assert (budget.spent, budget.reserved, budget.left) == (4.5, 0.0, 5.5)


@given(st.floats(0.0, 1e6), st.lists(st.floats(0.0, 1.0), max_size=8))
def test_all_that_is_left_can_be_held_back_and_spent_part_by_part(limit: float, shares: list[float]) -> None:
    outer = Budget(limit)
    budget = Budget(limit, outer)
    assert budget.left is not None
    held = budget.reserve(budget.left, lasting=True)
    assert budget.left == 0.0
    for share in shares:
        budget.spend(held, share * budget.reserved)
        for each in (budget, outer):
            assert each.spent + each.reserved <= limit + 1e-9
    budget.release(held)
    assert outer.reserved == budget.reserved == 0.0
    assert outer.spent == budget.spent


def test_a_limit_can_be_moved() -> None:
    budget = Budget(0.0)
    assert budget.short(0.3) is not None
    budget.widen(0.3)
    assert budget.fits(0.3)
    budget.widen(-0.1)
    assert budget.fits(0.2)
    assert not budget.fits(0.2001)
