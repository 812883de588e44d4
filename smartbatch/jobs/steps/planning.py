"""Open items become shards: cut by the provider's limits, each with a nonce of its own."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from smartbatch.core.batching.sharding import cut
from smartbatch.errors import InvalidRequest, SmartbatchError
from smartbatch.jobs.job_budget import (
    SENT,
    TINY,
    CostCeiling,
    exceeded,
    is_under_way,
    pages,
    remaining_budget,
)
from smartbatch.jobs.payload import encode_error, model_of
from smartbatch.jobs.records import ItemState, OpenItem, OverJobBudget
from smartbatch.jobs.shard_records import OPEN_SHARDS, NewShard, new_nonce
from smartbatch.jobs.steps import enqueued_quota, refusals
from smartbatch.jobs.steps.context import Step
from smartbatch.jobs.steps.result_lines import PAGE

PORTION = 100_000
"""Items cut at a time: some 10 MB of numbers."""


def plan_shards(step: Step) -> bool:
    """Put the job's open items into shards, as far as its budget reaches; return whether anything changed.

    Each shard is one transaction with all its wire ids, before anything of it is sent. Where batches have no
    label (Anthropic), sizes of shards that are not settled differ pairwise, so that a size tells them apart.
    """
    items = step.store.items.in_state(step.job.id, state=ItemState.OPEN, limit=PORTION)
    # 1. there are no open items: nothing
    if not items:
        return False
    costs: dict[int, float] = {}
    if step.policy.budget is not None:
        costs = _affordable(step, items)
        # 2. the job's budget has no room for any of them: they end, or wait for room
        if not costs:
            return _end_unaffordable(step, items)
        items = [item for item in items if item.ix in costs]
    # 3. they are cut into shards within what the API, the server and the settings allow, which are stored one
    # by one; where items in real time took the room meanwhile, the rest is cut anew in the next step
    for label, members in _by_model(step, items).items():
        if not _plan_model(step.for_model(label), members, costs):
            break
    return True


def _affordable(step: Step, items: Sequence[OpenItem]) -> dict[int, float]:
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


def _end_unaffordable(step: Step, items: Sequence[OpenItem]) -> bool:
    """End open items for which there is no room and never will be; return whether anything changed.

    Room comes when something under way costs less than its reservation, so everything else has to end first.
    """
    row = step.store.jobs.get(step.job.id)
    if row is None or is_under_way(step.store, row):
        return False
    least = min(most for _, most in _priced(step, items))
    if least <= remaining_budget(row) + TINY:
        return True  # there is room since just now
    _fail_open(step, [item.ix for item in items], exceeded(row, len(items), least))
    return True


def _priced(step: Step, items: Sequence[OpenItem]) -> Iterator[tuple[OpenItem, float]]:
    ceiling = CostCeiling.of(step.runtime, step.job)
    for page in pages(items):
        bodies = step.store.items.bodies(step.job.id, [item.ix for item in page])
        for item in page:
            yield item, ceiling.in_batch(bodies[item.ix])


def _by_model(step: Step, items: Sequence[OpenItem]) -> dict[str, Sequence[OpenItem]]:
    """Return items by the model of their requests: a batch is for one model."""
    if not step.policy.models:
        return {step.job.model: items}
    provider = step.job.model.partition(":")[0]
    groups: dict[str, list[OpenItem]] = {}
    for start in range(0, len(items), PAGE):
        page = items[start : start + PAGE]
        bodies = step.store.items.bodies(step.job.id, [item.ix for item in page])
        for item in page:
            name = model_of(bodies[item.ix])
            groups.setdefault(step.job.model if name is None else f"{provider}:{name}", []).append(item)
    return dict(groups)


def _plan_model(step: Step, items: Sequence[OpenItem], costs: Mapping[int, float]) -> bool:
    """Cut items of one model into shards and store these; False where the job's budget had no room left, so
    that the rest is cut anew."""
    abilities, server = step.api.abilities, refusals.limits_met(step)
    most = min(
        step.policy.max_requests or step.limits.max_requests,
        abilities.max_requests,
        int(min(server.requests, abilities.max_requests)),
        enqueued_quota.known_most(step, abilities.max_requests),
    )
    taken = (
        ()
        if abilities.labels
        else {shard.size for shard in step.store.shards.in_scope(step.job.scope, states=OPEN_SHARDS)}
    )
    pieces = cut(
        items,
        max_requests=most,
        max_bytes=abilities.max_bytes - step.api.overhead(most),
        max_tokens=enqueued_quota.known_limit(step),
        shared_bytes=server.bytes,
        shared_tokens=server.tokens,
        taken_sizes=taken,
        distinct=not abilities.labels,
    )
    by_ix = {item.ix: item for item in items}
    for ixs in pieces.shards:
        members = [by_ix[ix] for ix in ixs]
        nonce = new_nonce(step.runtime.rng)
        new = NewShard(
            f"shard-{nonce}",
            nonce,
            tuple(ixs),
            bytes=sum(item.size + 1 for item in members),
            tokens=sum(item.tokens for item in members),
            due_at=step.wall,
            reserved=sum(costs.get(ix, 0.0) for ix in ixs),
            model=step.job.model,
        )
        try:
            step.store.shards.plan(step.lease, new)
        except OverJobBudget:  # items in real time took the room meanwhile
            return False
    # 4. items that are too big for any batch end, or go in real time
    if pieces.too_big:
        _refuse_too_big(step, pieces.too_big)
    return True


def _refuse_too_big(step: Step, ixs: tuple[int, ...]) -> None:
    """End items that are too big for a batch, or run them in real time where the job allows that."""
    if step.falls_back:
        step.store.items.move_to_realtime(step.lease, ixs)
        return
    limit = enqueued_quota.known_limit(step)
    tokens = "" if math.isinf(limit) else f" and {limit:,.0f} enqueued tokens"
    error = InvalidRequest(
        f"the request alone is above what a batch may have ({step.api.abilities.max_bytes:,} bytes{tokens}); "
        "shorten it or send it in real time"
    )
    _fail_open(step, ixs, error)


def _fail_open(step: Step, ixs: Collection[int], error: SmartbatchError) -> None:
    """End open items, of which no batch is made, as failed with ``error``."""
    step.store.items.fail_open(step.lease, ixs, encode_error(error), at=step.wall)
    step.runtime.tell_progress(step.job)
