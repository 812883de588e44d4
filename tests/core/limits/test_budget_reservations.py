"""What a client's budget reserves for its jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
from ctrl_c import interrupted_at_every_moment

from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.budget_reservations import JobReservations
from smartbatch.core.limits.shared_limit import SharedRecord, exchange

_T = TypeVar("_T")


def unguarded(work: Callable[[], _T]) -> _T:
    """A guard for a single thread."""
    return work()


def begun(limit: float, job: float | None, *, cost: float = 0.0) -> tuple[Budget, JobReservations]:
    """A client with one job, for which ``job`` USD are reserved."""
    budget = Budget(limit)
    reservations = JobReservations(budget, unguarded, "account")
    reservations.reserve(job, lambda held: reservations.assign("job-1", held, cost))
    return budget, reservations


def stand(budget: Budget) -> tuple[float, float]:
    return budget.spent, budget.reserved


def test_a_job_that_is_not_stored_releases_everything():
    budget = Budget(10.0)
    reservations = JobReservations(budget, unguarded, "account")

    def fails(_: object) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk"):
        reservations.reserve(4.0, fails)
    assert stand(budget) == (0.0, 0.0)
    assert not reservations.jobs


def test_a_job_without_a_budget_reserves_all_that_is_left():
    budget, reservations = begun(10.0, None)
    assert budget.left == 0.0
    assert reservations.reserve(3.0, lambda held: held.usd) == 0.0


def test_a_job_keeps_no_more_than_it_can_still_cost():
    budget, reservations = begun(10.0, 8.0)
    for _ in range(2):  # the same cost twice is counted once
        reservations.charge("job-1", 3.0, ended=False)
        assert stand(budget) == (3.0, 5.0)
    reservations.charge("job-1", 3.0, ended=False, still=1.5)
    assert stand(budget) == (3.0, 1.5)
    assert reservations.has("job-1")
    reservations.charge("job-1", 3.5, ended=False, still=0.5)
    assert stand(budget) == (3.5, 0.5)
    reservations.charge("job-1", 3.5, ended=True)
    assert stand(budget) == (3.5, 0.0)
    assert not reservations.jobs


def test_ctrl_c_leaves_a_reservation_with_a_job_or_none():
    budget, reservations = Budget(1.0), JobReservations(Budget(1.0), unguarded, "account")

    def submit() -> None:
        nonlocal budget, reservations
        budget = Budget(1.0)
        reservations = JobReservations(budget, unguarded, "account")
        reservations.reserve(0.25, lambda held: reservations.assign("job-1", held, 0.0))

    for _ in interrupted_at_every_moment(submit):
        assert stand(budget) == ((0.0, 0.25) if reservations.has("job-1") else (0.0, 0.0))


@pytest.mark.parametrize("still", [None, 0.125])
@pytest.mark.parametrize("ended", [False, True])
def test_a_cost_is_counted_once_despite_ctrl_c(ended, still):
    budget, reservations = begun(1.0, 0.5)

    def charge() -> None:
        reservations.charge("job-1", 0.25, ended=ended, still=still)

    for _ in interrupted_at_every_moment(charge):
        charge()
        assert stand(budget) == (0.25, 0.0 if ended else still or 0.25)
        budget, reservations = begun(1.0, 0.5)


# -- requests that are asked again ---------------------------------------------------------------------------


def test_a_retried_job_that_ended_gets_a_new_reservation():
    budget, reservations = begun(10.0, 8.0)
    reservations.charge("job-1", 3.0, ended=True)
    assert reservations.renew("job-1", 5.0, 3.0, lambda held: (held, stand(budget))) == (5.0, (3.0, 5.0))
    reservations.charge("job-1", 4.0, ended=False)
    assert stand(budget) == (4.0, 4.0)
    reservations.charge("job-1", 4.0, ended=True)
    assert stand(budget) == (4.0, 0.0)


def test_a_renewed_reservation_includes_the_old_one():
    budget, reservations = begun(10.0, 8.0)
    reservations.charge("job-1", 3.0, ended=False, still=1.5)
    assert reservations.renew("job-1", 4.5, 3.5, lambda held: held) == 4.5
    assert stand(budget) == (3.5, 4.5)
    assert reservations.renew("job-1", 99.0, 3.5, lambda held: held) == 6.5
    assert budget.left == 0.0


def test_an_end_read_before_a_retry_releases_nothing():
    budget, reservations = begun(10.0, 8.0)
    before = reservations.seen("job-1")

    def again(_: float) -> None:
        assert reservations.seen("job-1") is None
        assert reservations.jobs == []

    reservations.renew(
        "job-1", 0.0, 0.0, lambda _: (reservations.renew("job-1", 8.0, 0.0, again), again(0.0))
    )
    assert before is not None
    reservations.charge("job-1", 3.0, ended=True, seen=before)
    assert stand(budget) == (0.0, 8.0)
    reservations.charge("job-1", 3.0, ended=True, seen=reservations.seen("job-1"))
    assert stand(budget) == (3.0, 0.0)


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize(("still", "more"), [(3.5, 1.5), (2.0, 0.0), (1.0, 0.0)])
def test_the_cost_of_lost_answers_is_reserved_once(ended, still, more):
    budget, reservations = begun(10.0, 8.0)
    reservations.charge("job-1", 3.0, ended=True, still=2.0)
    left = budget.left
    assert (stand(budget), left) == ((3.0, 0.0), 5.0)
    reservations.renew("job-1", 4.0, 3.0, lambda _: None, lost=2.0)
    reservations.charge("job-1", 3.0, ended=ended, still=still)
    assert budget.left == left - more


def test_ctrl_c_renews_a_reservation_fully_or_not_at_all():
    budget, reservations = begun(1.0, 0.5)

    def renew() -> None:
        nonlocal budget, reservations
        budget, reservations = begun(1.0, 0.5)
        reservations.charge("job-1", 0.25, ended=True)
        reservations.renew("job-1", 0.25, 0.25, lambda held: held)

    for _ in interrupted_at_every_moment(renew):
        if reservations.has("job-1"):
            seen = reservations.seen("job-1")
            assert seen is not None
            reservations.charge("job-1", 0.25, ended=True, seen=seen)
        assert budget.reserved == 0.0


# -- a budget that processes share ---------------------------------------------------------------------------


class Sharer:
    """A client of a shared budget of $10; its exchanges take place while a job waits."""

    def __init__(self, record: SharedRecord, name: str) -> None:
        self.record, self.now = record, 0.0
        self.budget = Budget(0.0)
        self.lease = self.budget.share(10.0, name, lambda: None)
        self.jobs = JobReservations(self.budget, unguarded, "shared:team", self.until)
        self.exchanged()

    def until(self, work: Callable[[], bool]) -> None:
        while not work():
            self.now = max(self.now, self.lease.due(self.now))
            self.exchanged()

    def exchanged(self) -> None:
        self.lease.adopt(exchange(self.record, self.lease.ask(self.now), self.now), self.now)

    def hold_back(self, job: str, wanted: float) -> float:
        self.jobs.reserve(wanted, lambda held: self.jobs.assign(job, held, 0.0))
        return self.budget.reserved


def test_a_job_gets_the_rest_of_a_shared_budget_in_the_end():
    record = SharedRecord()
    one, other = Sharer(record, "one"), Sharer(record, "other")
    assert one.hold_back("job-1", 6.0) == 6.0
    assert other.hold_back("job-2", 6.0) == 4.0
    assert 5.0 <= other.now <= 7.0
    assert Sharer(record, "third").hold_back("job-3", 1.0) == 0.0


def test_a_job_can_enlarge_its_reservation_later():
    record = SharedRecord()
    one, other = Sharer(record, "one"), Sharer(record, "other")
    assert one.jobs.reserve(0.0, lambda held: one.jobs.enlarge(held, 6.0)) == 6.0
    assert one.budget.reserved == 0.0
    assert other.jobs.reserve(0.0, lambda held: other.jobs.enlarge(held, 12.0)) == pytest.approx(4.0)
