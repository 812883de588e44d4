"""What a client's budget holds back for its jobs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

import pytest
from ctrl_c import interrupted_at_every_moment

from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.budget_reservations import JobReservations, NewReservation
from smartbatch.core.limits.shared_limit import SharedRecord, exchange

_T = TypeVar("_T")


def unguarded(work: Callable[[], _T]) -> _T:
    """A guard for a single thread."""
    return work()


def begun(limit: float, job: float | None, *, cost: float = 0.0) -> tuple[Budget, JobReservations]:
    """A client with one job, for which ``job`` USD are held back."""
    budget = Budget(limit)
    reservations = JobReservations(budget, unguarded, "account")
    reservations.reserve(job, lambda held: reservations.assign("job-1", held, cost))
    return budget, reservations


def stand(budget: Budget) -> tuple[float, float]:
    return budget.spent, budget.reserved


def test_a_job_that_is_not_kept_gives_everything_back() -> None:
    budget = Budget(10.0)
    reservations = JobReservations(budget, unguarded, "account")

    def fails(_: object) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk"):
        reservations.reserve(4.0, fails)
    assert stand(budget) == (0.0, 0.0)
    assert not reservations.jobs


def test_a_job_without_a_constraint_of_its_own_gets_all_there_is_and_nobody_more() -> None:
    budget, reservations = begun(10.0, None)
    assert budget.left == 0.0
    assert reservations.reserve(3.0, lambda held: held.usd) == 0.0


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


def test_money_is_held_back_for_a_job_or_not_at_all_whenever_ctrl_c_comes() -> None:
    """What is held back for nobody would be out of reach until the process ends."""
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
def test_a_cost_is_counted_once_whenever_ctrl_c_comes(ended: bool, still: float | None) -> None:
    """It is told again afterwards, and the sums are those of a telling that nothing interrupted."""
    budget, reservations = begun(1.0, 0.5)

    def charge() -> None:
        reservations.charge("job-1", 0.25, ended=ended, still=still)

    for _ in interrupted_at_every_moment(charge):
        charge()
        assert stand(budget) == (0.25, 0.0 if ended else still or 0.25)
        budget, reservations = begun(1.0, 0.5)


def test_a_job_after_one_that_cost_more_than_there_was_has_nothing_to_spend() -> None:
    """It is refused by its own budget of 0, as any other without money, and not by an error of ours."""
    budget, reservations = begun(4.0, 3.0)
    reservations.charge("job-1", 4.5, ended=True)
    reservations.reserve(None, lambda held: reservations.assign("job-2", held, 0.0))
    assert budget.left == 0.0
    assert reservations.jobs == ["job-2"]
    assert stand(budget) == (4.5, 0.0)


# -- requests that are asked again ---------------------------------------------------------------------------


def test_what_a_job_that_ended_can_spend_again_is_held_back_once_more() -> None:
    budget, reservations = begun(10.0, 8.0)
    reservations.charge("job-1", 3.0, ended=True)
    assert reservations.renew("job-1", 5.0, 3.0, lambda held: (held, stand(budget))) == (5.0, (3.0, 5.0))
    reservations.charge("job-1", 4.0, ended=False)
    assert stand(budget) == (4.0, 4.0)
    reservations.charge("job-1", 4.0, ended=True)
    assert stand(budget) == (4.0, 0.0)


def test_what_is_still_held_back_for_a_job_counts_when_more_is() -> None:
    """What it cost since that was told is spent first."""
    budget, reservations = begun(10.0, 8.0)
    reservations.charge("job-1", 3.0, ended=False, still=1.5)
    assert reservations.renew("job-1", 4.5, 3.5, lambda held: held) == 4.5
    assert stand(budget) == (3.5, 4.5)
    assert reservations.renew("job-1", 99.0, 3.5, lambda held: held) == 6.5
    assert budget.left == 0.0


def test_for_a_job_that_wants_nothing_more_what_is_held_back_stays() -> None:
    budget, reservations = begun(10.0, 8.0)
    assert reservations.renew("job-1", 0.0, 0.0, lambda held: held) == 8.0
    assert reservations.renew("job-2", 0.0, 0.0, lambda held: held) == 0.0
    assert (reservations.jobs, stand(budget)) == (["job-1"], (0.0, 8.0))


def test_an_end_that_was_seen_before_requests_were_asked_again_releases_nothing() -> None:
    """Whoever looks while they are, by two who ask, sees nothing to release."""
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


def test_money_is_held_back_again_for_a_job_or_not_at_all_whenever_ctrl_c_comes() -> None:
    """The end of the job that is told afterwards releases it."""
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
    """A client of a budget of ten dollars that processes share; its exchanges come while a job waits."""

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


def test_a_job_leases_what_it_wants_of_a_shared_budget_however_little_is_leased() -> None:
    record = SharedRecord()
    one, other = Sharer(record, "one"), Sharer(record, "other")
    assert one.budget.left == 0.0
    assert one.hold_back("job-1", 6.0) == 6.0
    assert other.hold_back("job-2", 3.0) == 3.0
    assert record.levels[0] == pytest.approx(1.0)


def test_a_job_gets_the_rest_of_a_shared_budget_once_nobody_gives_any_back() -> None:
    """It waits for that for five seconds; alone, for nothing."""
    record = SharedRecord()
    one, other = Sharer(record, "one"), Sharer(record, "other")
    assert one.hold_back("job-1", 6.0) == 6.0
    assert other.hold_back("job-2", 6.0) == 4.0
    assert 5.0 <= other.now <= 7.0
    assert Sharer(record, "third").hold_back("job-3", 1.0) == 0.0


def test_a_job_whose_cost_is_known_late_holds_back_that() -> None:
    """Its rows are priced as they are read; what others leased meanwhile is not there."""
    record = SharedRecord()
    one, other = Sharer(record, "one"), Sharer(record, "other")
    assert one.jobs.reserve(0.0, lambda held: one.jobs.enlarge(held, 6.0)) == 6.0
    assert one.budget.reserved == 0.0
    assert other.jobs.reserve(0.0, lambda held: other.jobs.enlarge(held, 12.0)) == pytest.approx(4.0)


def test_a_job_of_a_client_that_spent_more_than_it_leased_gets_what_is_left() -> None:
    record = SharedRecord()
    one = Sharer(record, "one")
    assert one.hold_back("job-1", 6.0) == 6.0
    one.jobs.charge("job-1", 7.0, ended=True)
    assert one.hold_back("job-2", 8.0) == pytest.approx(3.0)


def test_a_job_whose_requests_are_asked_again_leases_what_it_wants_of_a_shared_budget() -> None:
    record = SharedRecord()
    one, other = Sharer(record, "one"), Sharer(record, "other")
    assert other.hold_back("job-2", 3.0) == 3.0
    assert one.jobs.renew("job-1", 6.0, 1.0, lambda held: held) == 6.0
    assert one.budget.reserved == 6.0


def test_a_job_whose_requests_are_asked_again_for_weeks_keeps_nothing_of_the_times_before() -> None:
    """Only a change that goes on is known, also where it began amid another one."""
    _, reservations = begun(10.0, 4.0)

    def again(depth: int) -> None:
        reservations.renew("job-1", 0.0, 0.0, lambda _: again(depth - 1) if depth else None)

    for _ in range(100):
        again(2)
    gc.collect()
    assert sum(type(one) is NewReservation for one in gc.get_objects()) <= 1 + 2
    assert reservations.jobs == ["job-1"]
