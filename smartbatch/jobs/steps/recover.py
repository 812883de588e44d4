"""A create whose outcome is unknown: look, fence, and only then give up.

No provider knows an idempotency key for batches, so a create whose answer was lost is never repeated. It is
looked for: by its label where batches have one, by size and later by its results where they have none. When
it was not found for long enough, its input file is deleted, so that a late create must fail (the fence), and
the list is read again. Only then its items are free for a new shard, and the old nonce stays watched.
"""

from __future__ import annotations

import math
from typing import Any

from attrs import evolve

from smartbatch.core.limits.backoff import backoff
from smartbatch.errors import StoreError
from smartbatch.jobs.records import ItemState, JobState, LeaseLost, ShardRow, ShardState
from smartbatch.jobs.steps import duplicates
from smartbatch.jobs.steps.collect import nonces_in
from smartbatch.jobs.steps.context import StepContext
from smartbatch.jobs.steps.create import adopt
from smartbatch.jobs.steps.listing import has_label, newer_than_intent, unclaimed
from smartbatch.providers.batch_api import RemoteBatch

__all__ = ["READINGS", "answered", "doubt", "fenced", "look", "prove", "tell_unreadable"]

READINGS = 4
"""How often the results of a batch that could be ours are read before they count as unreadable: a first
reading may be cut, or find them not there yet."""


HELD = (
    "held: nobody knows whether a batch was created, and by its policy the job waits 26 hours, or until you "
    "looked at the provider's list and resume it"
)
SOUGHT = (
    "nobody knows yet whether its batch was created: it is looked for, and nothing is sent again meanwhile"
)


def answered(step: StepContext) -> bool:
    """Whether a job waits for a person because of creates whose outcome is known by now."""
    if step.job.state is not JobState.HELD or step.job.note != HELD:
        return False
    states = (ShardState.UNCERTAIN, ShardState.PROVISIONAL, ShardState.FENCED)
    return not any(shard.remote.held_job for shard in step.store.shards(step.job.id, states=states))


def doubt(step: StepContext, shard: ShardRow) -> ShardRow:
    """``SUBMITTING`` as it was found: whoever sent the create did not live to say what came of it."""
    return step.move(
        shard, ShardState.UNCERTAIN, "its sender was lost with the answer", uncertain_since=step.wall
    )


def look(step: StepContext, shard: ShardRow) -> ShardRow:
    """``UNCERTAIN``: search the provider's list for it."""
    try:
        newer = newer_than_intent(step, shard)
    except Exception as error:
        return step.stumbled(shard, step.api.classify(error))
    if not step.api.abilities.labels:
        return _look_unlabelled(step, shard, newer)
    mine = [batch for batch in newer if has_label(batch, shard)]
    if mine:
        return _take_oldest(step, shard, mine)
    if _waited(step, shard) < _until(step, shard):
        return _look_again(step, shard)
    return _fence(step, shard) if _can_fence(step, shard) else _give_up(step, shard)


def fenced(step: StepContext, shard: ShardRow) -> ShardRow:
    """``FENCED``: its input file is gone; whatever landed before that is in the list by now."""
    since = shard.fenced_at or step.wall
    settled = (shard.uncertain_since or since) + step.settle_time
    rest = max(since + step.limits.visibility, settled) - step.wall
    try:
        mine = [batch for batch in newer_than_intent(step, shard) if has_label(batch, shard)]
    except Exception as error:
        return step.stumbled(shard, step.api.classify(error))
    if mine:
        return _take_oldest(step, shard, mine)
    if rest > 0:
        return step.later(shard, min(rest, _step(step, shard)), tries=shard.tries + 1, note=SOUGHT)
    return _give_up(step, shard)


def prove(step: StepContext, shard: ShardRow) -> ShardRow:
    """``PROVISIONAL``: a batch without a label that could be ours; once it has ended, its results tell."""
    assert shard.candidate is not None
    try:
        batch = step.api.get(shard.candidate, step.limits.call_timeout)
        if batch is not None and not batch.state.ended:
            return step.later(
                shard, step.limits.poll_interval, tries=0, note="its results will tell whose it is"
            )
        if batch is None:  # seen in the list, and not by its id: one of the two is late
            return step.move(
                shard,
                ShardState.UNCERTAIN,
                "the batch that looked like it is not there yet, or no more",
                candidate=None,
                due_at=step.wall + _step(step, shard),
            )
        nonces = nonces_in(step, batch)
    except Exception as error:
        return step.stumbled(shard, step.api.classify(error))
    if shard.nonce in nonces:
        return adopt(step, shard, batch, "its results carry this shard's ids")
    if shard.tries + 1 < READINGS:  # what came may have been cut, or strayed in from a stranger's
        return step.later(shard, step.limits.reread_pause, tries=shard.tries + 1)
    if not nonces:
        tell_unreadable(step, shard, batch)
    for nonce in nonces:
        _tell_orphan(step, nonce, shard.candidate)
    return step.move(
        shard,
        ShardState.UNCERTAIN,
        "the batch that looked like it belongs to somebody else",
        candidate=None,
        foreign_batches=(*shard.foreign_batches, shard.candidate),
    )


def tell_unreadable(step: StepContext, shard: ShardRow, batch: RemoteBatch) -> None:
    """A batch that could be the shard's tells nobody whose it is: it may have been paid for."""
    step.incident(
        "maybe_billed",
        f"batch {batch.id} may be this job's, but no line of its results can be read; {shard.size:,} "
        "requests go again and may be paid twice",
        shard,
    )


def _look_unlabelled(step: StepContext, shard: ShardRow, newer: list[RemoteBatch]) -> ShardRow:
    """Without labels, a new batch of the same size that no shard claims may be it."""
    candidates = unclaimed(step, shard, newer)
    if candidates:
        oldest = candidates[-1]
        if len(candidates) == 1 and step.policy.exclusive_workspace:
            return adopt(step, shard, oldest, "the only new batch of a workspace nobody else uses")
        return step.move(shard, ShardState.PROVISIONAL, "a batch of its size appeared", candidate=oldest.id)
    if _waited(step, shard) >= _until(step, shard):
        return _give_up(step, shard)
    return _look_again(step, shard)


def _take_oldest(step: StepContext, shard: ShardRow, mine: list[RemoteBatch]) -> ShardRow:
    """Adopt one; the others, made by something that repeats requests, are cancelled first."""
    oldest = min(reversed(mine), key=lambda batch: batch.created_at or math.inf)
    try:
        duplicates.stop(step, shard, [batch for batch in mine if batch.id != oldest.id])
    except (LeaseLost, StoreError):
        raise
    except Exception as error:
        return step.stumbled(shard, step.api.classify(error))
    return adopt(step, shard, oldest, "found in the list")


def _fence(step: StepContext, shard: ShardRow) -> ShardRow:
    assert shard.file_id is not None
    try:
        step.api.delete_file(shard.file_id, step.limits.call_timeout)
    except Exception as error:
        return step.stumbled(shard, step.api.classify(error))
    now = step.wall
    return step.move(
        shard,
        ShardState.FENCED,
        "not found; its input file was deleted, so that a late create must fail",
        fenced_at=now,
        due_at=now + step.limits.visibility,
    )


def _give_up(step: StepContext, shard: ShardRow) -> ShardRow:
    reason = "not found in time; its requests go again"
    dead = step.store.discard(
        step.lease,
        shard,
        items=ItemState.OPEN,
        tried=False,
        note=reason,
        at=step.wall,
        maybe_billed=shard.fenced_at is None,
    )
    step.told(shard, dead, reason)
    return dead


def _waited(step: StepContext, shard: ShardRow) -> float:
    return step.wall - (shard.uncertain_since or step.wall)


def _can_fence(step: StepContext, shard: ShardRow) -> bool:
    return step.api.abilities.fence and shard.file_id is not None


def _until(step: StepContext, shard: ShardRow) -> float:
    """How long absence must last before something is done: until a batch that exists must be in the list (and
    the fence sees to the rest), for the settle time, or until every batch that could exist has ended."""
    if _holds(step, shard):
        return step.limits.orphan_watch
    settle = step.settle_time
    return min(settle, step.limits.visibility) if _can_fence(step, shard) else settle


def _holds(step: StepContext, shard: ShardRow) -> bool:
    """Whether the job's policy is to wait for a person, and no person has resumed it since."""
    if step.policy.on_unknown != "hold":
        return False
    return not (shard.remote.held_job and step.job.state is JobState.ACTIVE)


def _look_again(step: StepContext, shard: ShardRow) -> ShardRow:
    rest = max(0.0, _until(step, shard) - _waited(step, shard))
    changes: dict[str, Any] = {"tries": shard.tries + 1, "note": SOUGHT}
    if _holds(step, shard) and not shard.remote.held_job and _waited(step, shard) > step.limits.visibility:
        step.store.note(step.lease, HELD, hold=True)
        changes["remote"] = evolve(shard.remote, held_job=True)
    return step.later(shard, min(rest, _step(step, shard)), **changes)


def _tell_orphan(step: StepContext, nonce: str | None, batch_id: str) -> None:
    """The batch is another shard's, which was given up: its own step deals with it."""
    other = None if nonce is None else step.store.shard_with_nonce(nonce)
    if other is not None and other.state is ShardState.DEAD and other.job_id == step.job.id:
        step.later(other, 0.0, candidate=batch_id)


def _step(step: StepContext, shard: ShardRow) -> float:
    """Looks come thick at first, when a batch is likely to appear, and thin out."""
    return backoff(shard.tries + 1, step.rng, first=1.0, longest=max(1.0, step.limits.poll_interval))
