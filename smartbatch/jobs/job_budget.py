"""The budget of a job: what its requests can cost at most, and which of them it has room for.

What is booked and what is pledged never exceed it together (see
:meth:`smartbatch.jobs.store.base.Store.pledge`). A shard is pledged with the most it can cost when it is
planned, an item that is asked alone before it is asked. What may have been billed and whose answer is lost
stays pledged for good.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from attrs import frozen

from smartbatch.core.preparation.tokens import Calibration, estimate_request
from smartbatch.errors import BudgetExceeded
from smartbatch.jobs.payload import decode_params, decode_request, encode_error
from smartbatch.jobs.records import (
    OPEN_SHARDS,
    ItemState,
    JobRow,
    JobState,
    NewShard,
    OpenItem,
    ShardRow,
    ShardState,
)
from smartbatch.jobs.steps.context import StepContext, report
from smartbatch.jobs.store.base import Store
from smartbatch.jobs.wire_ids import new_nonce
from smartbatch.prices import PriceBook
from smartbatch.types import Request, Usage

__all__ = ["Bill", "Meter", "affordable", "bill", "budget_of", "end_unaffordable", "exceeded", "lost", "room"]

PAGE = 500
"""Requests that are read at a time."""
_TINY = 1e-9
"""USD by which sums of floats may miss."""
_SENT = OPEN_SHARDS - {ShardState.PLANNED}
_T = TypeVar("_T")


class Meter:
    """Says what requests of a job can cost at most, USD; 0 where no price is known.

    Counted as for a request outside a job: the input as far as the provider's count of it was learned, and
    :meth:`~smartbatch.core.preparation.tokens.Calibration.most_output`.

    Args:
        calibration: what was learned of the tokens of the job's model.
        wall: Unix seconds, for prices.
    """

    def __init__(self, row: JobRow, prices: PriceBook, calibration: Calibration, wall: float) -> None:
        provider, _, model = row.model.partition(":")
        self._standard = prices.rates(provider, model, wall)
        self._batch = prices.rates(provider, model, wall, "batch") or self._standard
        self._calibration = calibration
        self._shared = decode_params(row.params)

    def in_batch(self, payload: bytes, tokens: int | None = None) -> float:
        """Return the most a request can cost in a batch.

        Args:
            tokens: its estimated input tokens, where they are known.
        """
        request = decode_request(payload, self._shared, id=None)
        return 0.0 if self._batch is None else self._batch.cost(self._usage(request, tokens))

    def alone(self, payload: bytes) -> float:
        """Return the most one call for a request can cost in real time."""
        request = decode_request(payload, self._shared, id=None)
        return 0.0 if self._standard is None else self._standard.cost(self._usage(request, None))

    def _usage(self, request: Request, tokens: int | None) -> Usage:
        given = self._calibration.input(estimate_request(request) if tokens is None else tokens)
        if request.embedding is not None:
            return Usage(given, 0)
        return Usage(given, self._calibration.most_output(request.params.max_tokens))


def budget_of(row: JobRow) -> float | None:
    """Return what may be spent on a job, USD; ``None`` where nobody set a limit."""
    budget = row.policy.get("budget")
    return None if budget is None else float(budget)


def room(row: JobRow) -> float:
    """Return the USD of a job's budget that are neither spent nor pledged; below 0 when it cost too much."""
    budget = budget_of(row)
    assert budget is not None
    return budget - row.cost - row.pledged


@frozen
class Bill:
    """What a job has cost by now, USD.

    Attributes:
        cost: what it has spent; at its end also what may have been billed and whose answers are lost.
        ended: whether it can cost nothing more.
        open: what it can still cost, where all its requests have their results; else ``None``.
    """

    cost: float
    ended: bool
    open: float | None


def bill(store: Store, job_id: str) -> Bill:
    """Return what a job has cost; one that is not there any more, nothing.

    Nothing is opened for a job that is done. So when none of its batches was open after it was, it is
    over, and only what is read then is all.
    """
    row = store.job(job_id)
    if row is None:
        return Bill(0.0, True, None)
    if row.state is not JobState.DONE:
        return Bill(row.cost, False, None)
    ended = not store.shards(job_id, states=OPEN_SHARDS)
    row = store.job(job_id) or row
    pledged = max(0.0, row.pledged)
    return Bill(row.cost + (pledged if ended else 0.0), ended, pledged)


def exceeded(row: JobRow, count: int, least: float) -> BudgetExceeded:
    """Return the error of requests that are not sent.

    Args:
        count: how many they are.
        least: the most that the cheapest of them can cost, USD.
    """
    several = f"{count:,} requests were not sent: the cheapest of them" if count > 1 else "not sent: it"
    return BudgetExceeded(
        f"{several} could cost up to {least:.6f} USD, and {max(0.0, room(row)):.6f} USD are left of the "
        f"job's budget of {budget_of(row):g} USD; raise the budget and submit what was not answered again"
    )


def affordable(step: StepContext, items: Sequence[OpenItem]) -> dict[int, float]:
    """Return the open items that the budget has room for, with the most each can cost.

    None while batches are under way: when they have ended at less than was pledged for them there is room for
    more, and few large batches do it sooner than many small ones.
    """
    if step.store.shards(step.job.id, states=_SENT):
        return {}
    left = room(step.store.job(step.job.id) or step.job)
    chosen: dict[int, float] = {}
    for item, most in _priced(step, items):
        if most <= left + _TINY:
            chosen[item.ix] = most
            left -= most
    return chosen


def end_unaffordable(step: StepContext, items: Sequence[OpenItem]) -> bool:
    """End open items for which there is no room and never will be; return whether they were.

    Room comes when something under way costs less than it could, so everything else has to end first.
    """
    row = step.store.job(step.job.id)
    if row is None or _something_goes_on(step.store, row):
        return False
    least = min(most for _, most in _priced(step, items))
    if least <= room(row) + _TINY:
        return True  # it came just now
    error = exceeded(row, len(items), least)
    nonce = new_nonce(step.rng)
    ixs = tuple(item.ix for item in items)
    shard = step.store.plan(step.lease, NewShard(f"shard-{nonce}", nonce, ixs, 0, 0, step.wall))
    step.store.fail_shard(step.lease, shard, encode_error(error), note="beyond the budget", at=step.wall)
    report(step.store, step.job, step.tell, step.clock)
    return True


def _something_goes_on(store: Store, row: JobRow) -> bool:
    """Whether anything of a job may still cost less than was pledged for it."""
    if store.shards(row.id, states=OPEN_SHARDS):
        return True
    return any(store.open_items(row.id, state=s, limit=1) for s in (ItemState.DIRECT, ItemState.ASKING))


def lost(step: StepContext, shard: ShardRow, ixs: Sequence[int]) -> float:
    """Return the most that items of a shard have cost whose answers are lost, USD."""
    if not shard.most:
        return 0.0
    meter, most = meter_of(step), 0.0
    for page in _pages(ixs):
        most += sum(meter.in_batch(body) for body in step.store.bodies(step.job.id, page).values())
    return min(shard.most, most)


def meter_of(step: StepContext) -> Meter:
    """Return the meter of the job."""
    return Meter(step.job, step.prices, step.calibration(step.job), step.wall)


def _priced(step: StepContext, items: Sequence[OpenItem]) -> Iterator[tuple[OpenItem, float]]:
    meter = meter_of(step)
    for page in _pages(items):
        bodies = step.store.bodies(step.job.id, [item.ix for item in page])
        for item in page:
            yield item, meter.in_batch(bodies[item.ix], item.tokens)


def _pages(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    return (items[start : start + PAGE] for start in range(0, len(items), PAGE))
