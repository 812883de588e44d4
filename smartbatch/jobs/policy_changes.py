"""What a job was submitted with is changed: its deadline and its budget."""

from __future__ import annotations

import sys

from attrs import evolve

from smartbatch._settings import usd
from smartbatch.core.routing.options import seconds_until
from smartbatch.errors import InvalidRequest
from smartbatch.jobs.job_budget import remaining_budget
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.versioned_records import JobPolicy
from smartbatch.observe.text import duration
from smartbatch.prices import dollars
from smartbatch.types import Deadline


def change_deadline(store: SqlStore, job_id: str, deadline: Deadline | None, by: str) -> None:
    """Change when the last result of a job has to be there; see :meth:`smartbatch.Job.set_deadline`."""
    now = store.acts.db.now()
    left = seconds_until(deadline, now)
    until = None if left is None else now + left
    detail = "none" if left is None else f"in {duration(left)}"

    def change(policy: JobPolicy) -> JobPolicy:
        return evolve(policy, deadline=until, fallback="batch" if until is None else "individual")

    store.acts.change_policy(job_id, change, "set_deadline", detail, by)


def change_budget(store: SqlStore, job_id: str, budget: float | str | None, by: str) -> float:
    """Change what may be spent on a job, and return what is left of it; see
    :meth:`smartbatch.Job.set_budget`.
    """
    most = None if budget is None else usd(budget)
    number = isinstance(most, int | float) and not isinstance(most, bool)
    if most is not None and not (number and 0 <= most <= sys.float_info.max):
        raise InvalidRequest(f"budget = {budget!r:.60} is no amount of USD", field="budget")
    limit = None if most is None else float(most)
    detail = "none" if limit is None else dollars(limit)
    row = store.acts.change_policy(
        job_id, lambda policy: evolve(policy, budget=limit), "set_budget", detail, by
    )
    return remaining_budget(row)
