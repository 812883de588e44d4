"""The money of a job's batches: which open items its budget has room for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from smartbatch.jobs.job_budget import (
    SENT,
    TINY,
    CostCeiling,
    exceeded,
    is_under_way,
    pages,
    remaining_budget,
)
from smartbatch.jobs.records import OpenItem, ShardRow
from smartbatch.jobs.steps.context import StepContext


def affordable(step: StepContext, items: Sequence[OpenItem]) -> dict[int, float]:
    """Return the open items that the budget has room for, with the most each can cost.

    None while batches are under way: when they have ended below their reservations there is room for more,
    and few large batches are done sooner than many small ones.
    """
    if step.store.shards.of_job(step.job.id, states=SENT):
        return {}
    left = remaining_budget(step.store.jobs.get(step.job.id) or step.job)
    chosen: dict[int, float] = {}
    for item, most in _priced(step, items):
        if most <= left + TINY:
            chosen[item.ix] = most
            left -= most
    return chosen


def end_unaffordable(step: StepContext, items: Sequence[OpenItem]) -> bool:
    """End open items for which there is no room and never will be; return whether anything changed.

    Room comes when something under way costs less than its reservation, so everything else has to end first.
    """
    row = step.store.jobs.get(step.job.id)
    if row is None or is_under_way(step.store, row):
        return False
    least = min(most for _, most in _priced(step, items))
    if least <= remaining_budget(row) + TINY:
        return True  # there is room since just now
    step.fail_open([item.ix for item in items], exceeded(row, len(items), least))
    return True


def lost_cost(step: StepContext, shard: ShardRow, ixs: Sequence[int]) -> float:
    """Return the most that items of a shard can have cost whose answers are lost, USD."""
    if not shard.reserved:
        return 0.0
    ceiling, most = CostCeiling.of(step.runtime, step.job), 0.0
    for page in pages(ixs):
        most += sum(ceiling.in_batch(body) for body in step.store.items.bodies(step.job.id, page).values())
    return min(shard.reserved, most)


def _priced(step: StepContext, items: Sequence[OpenItem]) -> Iterator[tuple[OpenItem, float]]:
    ceiling = CostCeiling.of(step.runtime, step.job)
    for page in pages(items):
        bodies = step.store.items.bodies(step.job.id, [item.ix for item in page])
        for item in page:
            yield item, ceiling.in_batch(bodies[item.ix])
