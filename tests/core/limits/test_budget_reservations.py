"""What a client's budget holds back for its jobs."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.budget_reservations import JobReservations


def begun(limit: float, job: float | None, *, cost: float = 0.0) -> tuple[Budget, JobReservations]:
    """A client with one job, for which ``job`` USD are held back."""
    budget = Budget(limit)
    reservations = JobReservations(budget, nullcontext, "account")
    with reservations.reserved(job) as reservation:
        reservations.assign("job-1", reservation, cost)
    return budget, reservations


def stand(budget: Budget) -> tuple[float, float]:
    return budget.spent, budget.reserved


def test_a_job_that_is_not_kept_gives_everything_back() -> None:
    budget = Budget(10.0)
    reservations = JobReservations(budget, nullcontext, "account")
    with pytest.raises(OSError, match="disk"), reservations.reserved(4.0):
        raise OSError("disk full")
    assert stand(budget) == (0.0, 0.0)
    assert not reservations.jobs


def test_a_job_without_a_constraint_of_its_own_gets_all_there_is_and_nobody_more() -> None:
    budget, reservations = begun(10.0, None)
    assert budget.left == 0.0
    with reservations.reserved(3.0) as reservation:
        assert reservation.usd == 0.0


def test_what_a_job_costs_is_spent_of_what_is_held_back_for_it() -> None:
    budget, reservations = begun(10.0, 8.0)
    reservations.charge("job-1", 3.0, ended=False)
    assert stand(budget) == (3.0, 5.0)
    reservations.charge("job-1", 3.0, ended=False)
    assert stand(budget) == (3.0, 5.0)  # the same cost twice is counted once


def test_what_a_job_had_cost_before_is_not_spent_of_this_budget() -> None:
    budget, reservations = begun(10.0, 8.0, cost=2.0)
    reservations.charge("job-1", 3.0, ended=False)
    assert stand(budget) == (1.0, 7.0)


def test_a_job_with_all_its_results_keeps_no_more_than_it_can_still_cost() -> None:
    """Its last batch is not settled yet: until then what may have been billed there is held back."""
    budget, reservations = begun(10.0, 8.0)
    reservations.charge("job-1", 3.0, ended=False, still=1.5)
    assert stand(budget) == (3.0, 1.5)
    assert reservations.has("job-1")
    reservations.charge("job-1", 3.5, ended=False, still=0.5)
    assert stand(budget) == (3.5, 0.5)
    reservations.charge("job-1", 3.5, ended=True)
    assert stand(budget) == (3.5, 0.0)
    assert not reservations.jobs


def test_a_job_that_can_still_cost_more_than_there_is_holds_back_what_there_is() -> None:
    budget, reservations = begun(10.0, 8.0)
    budget.settle(budget.reserve(2.0), 4.0)  # another call that cost more than it reserved
    reservations.charge("job-1", 3.0, ended=False, still=5.0)
    assert stand(budget) == (7.0, 3.0)


def test_a_job_that_ended_is_not_booked_again() -> None:
    budget, reservations = begun(10.0, 8.0)
    reservations.charge("job-1", 3.0, ended=True)
    reservations.charge("job-1", 9.0, ended=False, still=1.0)
    assert stand(budget) == (3.0, 0.0)
