"""A budget is never exceeded, by one client or by several that share it while exchanges fail."""

from __future__ import annotations

import math
import random
from contextlib import suppress

import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.limits.budget import Budget, BudgetLease, SpendReservation
from smartbatch.core.limits.shared_limit import LateExchange, LeaseAsk, SharedRecord, exchange
from tests.levels import sampled


def test_a_call_dearer_than_its_reservation_is_booked_in_full():
    budget = Budget(1.0)
    budget.reconcile(budget.reserve(0.5), 0.75)
    assert (budget.spent, budget.left) == (0.75, 0.25)
    assert not budget.fits(0.3)


def test_a_call_waits_for_money_under_way_and_is_hopeless_without():
    budget = Budget(1.0)
    reservation = budget.reserve(0.9)
    assert not budget.fits(0.5)
    assert budget.short(0.5) is None
    budget.reconcile(reservation, 0.8)
    assert budget.short(0.5) is not None
    with pytest.raises(RuntimeError):
        budget.reserve(0.5)


def test_only_money_of_calls_in_flight_is_waited_for():
    outer = Budget(9.0)
    budget = Budget(10.0, outer)
    budget.reconcile(budget.reserve(1.0), 1.0)
    lasting, call = budget.reserve(2.0, lasting=True), budget.reserve(3.0)
    assert [budget.must_wait(cost) for cost in (4.0, 4.1, 7.0, 7.1)] == [False, True, True, False]
    assert not budget.fits(4.0)
    budget.release(call)
    assert not budget.must_wait(7.0)
    budget.release(lasting)
    assert not budget.must_wait(9.1)
    assert not Budget(None, outer).must_wait(100.0)


def test_without_a_limit_everything_fits_and_is_still_counted():
    budget = Budget()
    budget.reconcile(budget.reserve(1e6), 2.5)
    assert (budget.spent, budget.left, budget.short(1e9)) == (2.5, None, None)


def test_a_reservation_ends_once():
    budget = Budget(1.0)
    reservation = budget.reserve(0.5)
    budget.release(reservation)
    with pytest.raises(RuntimeError):
        budget.reconcile(reservation, 0.1)
    assert (budget.spent, budget.reserved) == (0.0, 0.0)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_amounts_that_are_no_money_are_refused(bad):
    budget = Budget(1.0)
    with pytest.raises(ValueError):
        Budget(bad)
    with pytest.raises(ValueError):
        budget.reserve(bad)
    reservation = budget.reserve(0.5)
    with pytest.raises(ValueError):
        budget.reconcile(reservation, bad)
    assert budget.reserved == 0.5


def test_lasting_reservations_are_not_waited_for():
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
    budget.reconcile(job, 0.0)
    budget.release(call)
    assert (budget.spent, budget.reserved, budget.left) == (4.5, 0.0, 5.5)


@given(st.floats(0.0, 1e6), st.lists(st.floats(0.0, 1.0), max_size=8))
def test_a_reservation_of_the_rest_can_be_spent_in_parts(limit, shares):
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


LIMIT = 1.0


@define
class Spender:
    """A client with calls in flight, and exchanges that were given up but not yet carried out."""

    budget: Budget
    lease: BudgetLease
    calls: list[SpendReservation] = field(factory=list)
    late: list[LeaseAsk] = field(factory=list)

    @property
    def holds(self) -> float:
        return self.budget.spent + self.budget.reserved + (self.budget.left or 0.0)


def spender(name: str, limit: float = LIMIT) -> Spender:
    budget = Budget(0.0)
    return Spender(budget, budget.share(limit, name, lambda: None))


def exchanged(
    record: SharedRecord, one: Spender, now: float, fate: str = "made", *, leaving: bool = False
) -> None:
    """Make an exchange whose answer is lost, or which is given up before it is carried out."""
    asked = one.lease.ask(now, leaving=leaving)
    if fate == "late":
        one.late.append(asked)
    elif fate != "never":
        grant = exchange(record, asked, now)
        if fate == "made":
            one.lease.adopt(grant, now)
            return
    one.lease.lose(now)


def wanted(record: SharedRecord, one: Spender, now: float, usd: float) -> None:
    """Make an exchange because a call of ``usd`` does not fit into the leased amount."""
    one.lease.lack(usd)
    exchanged(record, one, now)


def test_an_exchange_that_arrives_twice_counts_once():
    record, one = SharedRecord(), spender("one")
    wanted(record, one, 0.0, 0.5)
    asked = one.lease.ask(1.0)
    exchange(record, asked, 1.0)
    before = repr(record)
    with pytest.raises(LateExchange):
        exchange(record, asked, 1.1)
    assert repr(record) == before


def test_a_hopeless_cost_delays_no_smaller_one():
    record, one, large, small = SharedRecord(), *(spender(name) for name in ("one", "large", "small"))
    wanted(record, one, 0.0, 0.5)
    one.budget.reserve(0.5)
    wanted(record, large, 1.0, 0.6)
    wanted(record, small, 1.1, 0.1)
    assert small.budget.left == pytest.approx(0.1)


def test_returned_money_is_leased_to_those_who_wait():
    record, one, large, small = SharedRecord(), *(spender(name) for name in ("one", "large", "small"))
    wanted(record, one, 0.0, 0.5)
    call = one.budget.reserve(0.5)
    wanted(record, large, 1.0, 0.6)
    one.budget.release(call)
    exchanged(record, one, 1.1, leaving=True)
    wanted(record, small, 1.2, 0.5)
    assert small.budget.left == 0.0
    wanted(record, large, 1.5, 0.6)
    assert large.budget.left == pytest.approx(0.6)


def test_each_cost_waits_for_five_seconds_before_it_is_hopeless():
    record, one, other = SharedRecord(), spender("one"), spender("other")
    wanted(record, one, 0.0, 0.9)
    one.budget.reserve(0.9)
    for now in (1.0, 6.0):
        wanted(record, other, now, 0.5)
    assert other.lease.is_hopeless(0.5)
    wanted(record, other, 6.5, 0.3)
    assert not other.lease.is_hopeless(0.3)


@pytest.mark.parametrize("seed", sampled(range(200), keep=8))
def test_failures_neither_make_money_nor_eat_it(seed):
    rng = random.Random(seed)
    record, now, names = SharedRecord(), 0.0, iter(range(1000))
    living, dead = [spender(str(next(names))) for _ in range(4)], list[Spender]()
    for _ in range(200):
        now += rng.choice([0.0, 0.1, 0.6, 3.0, 20.0, 90.0])
        one, cost = rng.choice(living), rng.uniform(0.0, 0.1)
        act = rng.random()
        if act < 0.3:
            if one.budget.fits(cost):
                one.calls.append(one.budget.reserve(cost))
        elif act < 0.5 and one.calls:
            call = one.calls.pop()
            one.budget.reconcile(call, rng.uniform(0.0, call.nano / 1e9))
        elif act < 0.95:
            exchanged(record, one, now, rng.choice(["made", "made", "never", "late", "answer lost"]))
            while one.late and rng.random() < 0.7:
                with suppress(LateExchange):
                    exchange(record, one.late.pop(), now)
        elif act < 0.97:
            living.remove(one)
            dead.append(one)
            living.append(spender(str(next(names))))
        held = math.fsum(each.holds for each in [*living, *dead])
        assert held + record.levels[0] <= LIMIT + 1e-6, f"seed={seed}"
    for one in living:
        for call in one.calls:
            one.budget.reconcile(call, 0.0)
        exchanged(record, one, now, leaving=True)
    spent = math.fsum(one.budget.spent for one in living)
    for one in dead:  # where no account is left, nothing of it was in doubt
        holds = one.holds
        account = record.accounts.get(one.lease.ask(now).member)
        spent += holds if account is None else account.drawn - account.given
    assert record.levels[0] == pytest.approx(LIMIT - spent, abs=1e-6), f"seed={seed}"


def test_a_higher_budget_counts_beside_an_idle_lower_one():
    record = SharedRecord()
    before, after = spender("before"), spender("after", 2 * LIMIT)
    exchanged(record, before, 0.0)
    assert not before.budget.fits(LIMIT)
    exchanged(record, before, 1.0)
    before.budget.reconcile(before.budget.reserve(LIMIT), LIMIT)
    for now in (2.0, 3.0, 8.0):
        exchanged(record, before, now)
    exchanged(record, after, 9.0)
    assert not after.budget.fits(LIMIT)
    exchanged(record, after, 10.0)
    assert after.budget.fits(LIMIT)
    for now in (13.0, 14.0):
        exchanged(record, before, now)
        assert not before.budget.fits(0.01)
    assert record.levels[0] <= 0.0
