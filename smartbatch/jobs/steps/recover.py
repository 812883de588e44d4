"""A create whose outcome is unknown: look, fence, and only then give up.

No provider knows an idempotency key for batches, so a create whose answer was lost is never repeated. It is
looked for: by its label where batches have one, by size and later by its results where they have none. When
it was not found for long enough, its input file is deleted, so that a late create must fail (the fence), and
the list is read again. Only then its items are free for a new shard, and the old nonce stays watched.
"""

from __future__ import annotations

import math
from typing import Any

from smartbatch.core.limits.backoff import pause
from smartbatch.errors import StoreError
from smartbatch.jobs.records import ItemState, JobState, ShardRow, ShardState
from smartbatch.jobs.steps import duplicates
from smartbatch.jobs.steps.collect import nonces_in
from smartbatch.jobs.steps.context import Work
from smartbatch.jobs.steps.create import adopt
from smartbatch.jobs.steps.listing import newer_than_intent
from smartbatch.jobs.steps.orphan_watch import labelled
from smartbatch.jobs.store.base import LostGrip
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


def answered(work: Work) -> bool:
    """Whether a job waits for a person because of creates whose outcome is known by now."""
    if work.job.state is not JobState.HELD or work.job.note != HELD:
        return False
    states = (ShardState.UNCERTAIN, ShardState.PROVISIONAL, ShardState.FENCED)
    return not any(shard.remote.get("held") for shard in work.store.shards(work.job.id, states=states))


def doubt(work: Work, shard: ShardRow) -> ShardRow:
    """``SUBMITTING`` as it was found: whoever sent the create did not live to say what came of it."""
    return work.move(
        shard, ShardState.UNCERTAIN, "its sender was lost with the answer", uncertain_since=work.wall
    )


def look(work: Work, shard: ShardRow) -> ShardRow:
    """``UNCERTAIN``: search the provider's list for it."""
    try:
        newer = newer_than_intent(work, shard)
    except Exception as error:
        return work.stumbled(shard, work.api.classify(error))
    if not work.api.abilities.labels:
        return _look_unlabelled(work, shard, newer)
    mine = [batch for batch in newer if labelled(batch, shard)]
    if mine:
        return _take_oldest(work, shard, mine)
    if _waited(work, shard) < _until(work, shard):
        return _look_again(work, shard)
    return _fence(work, shard) if _can_fence(work, shard) else _give_up(work, shard)


def fenced(work: Work, shard: ShardRow) -> ShardRow:
    """``FENCED``: its input file is gone; whatever landed before that is in the list by now."""
    since = shard.fenced_at or work.wall
    settled = (shard.uncertain_since or since) + work.policy("settle", work.limits.settle)
    rest = max(since + work.limits.visibility, settled) - work.wall
    try:
        mine = [batch for batch in newer_than_intent(work, shard) if labelled(batch, shard)]
    except Exception as error:
        return work.stumbled(shard, work.api.classify(error))
    if mine:
        return _take_oldest(work, shard, mine)
    if rest > 0:
        return work.later(shard, min(rest, _step(work, shard)), tries=shard.tries + 1, note=SOUGHT)
    return _give_up(work, shard)


def prove(work: Work, shard: ShardRow) -> ShardRow:
    """``PROVISIONAL``: a batch without a label that could be ours; once it has ended, its results tell."""
    assert shard.candidate is not None
    try:
        batch = work.api.get(shard.candidate, work.limits.call_timeout)
        if batch is not None and not batch.state.ended:
            return work.later(
                shard, work.limits.poll_interval, tries=0, note="its results will tell whose it is"
            )
        if batch is None:  # seen in the list, and not by its id: one of the two is late
            return work.move(
                shard,
                ShardState.UNCERTAIN,
                "the batch that looked like it is not there yet, or no more",
                candidate=None,
                due_at=work.wall + _step(work, shard),
            )
        nonces = nonces_in(work, batch)
    except Exception as error:
        return work.stumbled(shard, work.api.classify(error))
    if shard.nonce in nonces:
        return adopt(work, shard, batch, "its results carry this shard's ids")
    if shard.tries + 1 < READINGS:  # what came may have been cut, or strayed in from a stranger's
        return work.later(shard, work.limits.reread_pause, tries=shard.tries + 1)
    if not nonces:
        tell_unreadable(work, shard, batch)
    for nonce in nonces:
        _tell_ghost(work, nonce, shard.candidate)
    return work.move(
        shard,
        ShardState.UNCERTAIN,
        "the batch that looked like it belongs to somebody else",
        candidate=None,
        foreign=(*shard.foreign, shard.candidate),
    )


def tell_unreadable(work: Work, shard: ShardRow, batch: RemoteBatch) -> None:
    """A batch that could be the shard's tells nobody whose it is: it may have been paid for."""
    work.incident(
        "maybe_billed",
        f"batch {batch.id} may be this job's, but no line of its results can be read; {shard.size:,} "
        "requests go again and may be paid twice",
        shard,
    )


def _look_unlabelled(work: Work, shard: ShardRow, newer: list[RemoteBatch]) -> ShardRow:
    """Without labels, a new batch of the same size that no shard claims may be it."""
    claimed = work.store.claimed_batches(shard.scope, [batch.id for batch in newer])
    unknown = [batch for batch in newer if batch.id not in claimed and batch.id not in shard.foreign]
    candidates = [batch for batch in unknown if batch.total in (None, shard.size)]
    if candidates:
        oldest = candidates[-1]
        if len(candidates) == 1 and work.policy("exclusive", False):
            return adopt(work, shard, oldest, "the only new batch of a workspace nobody else uses")
        return work.move(shard, ShardState.PROVISIONAL, "a batch of its size appeared", candidate=oldest.id)
    if _waited(work, shard) >= _until(work, shard):
        return _give_up(work, shard)
    return _look_again(work, shard)


def _take_oldest(work: Work, shard: ShardRow, mine: list[RemoteBatch]) -> ShardRow:
    """Adopt one; the others, made by something that repeats requests, are cancelled first."""
    oldest = min(reversed(mine), key=lambda batch: batch.created_at or math.inf)
    try:
        duplicates.stop(work, shard, [batch for batch in mine if batch.id != oldest.id])
    except (LostGrip, StoreError):
        raise
    except Exception as error:
        return work.stumbled(shard, work.api.classify(error))
    return adopt(work, shard, oldest, "found in the list")


def _fence(work: Work, shard: ShardRow) -> ShardRow:
    assert shard.file_id is not None
    try:
        work.api.delete_file(shard.file_id, work.limits.call_timeout)
    except Exception as error:
        return work.stumbled(shard, work.api.classify(error))
    now = work.wall
    return work.move(
        shard,
        ShardState.FENCED,
        "not found; its input file was deleted, so that a late create must fail",
        fenced_at=now,
        due_at=now + work.limits.visibility,
    )


def _give_up(work: Work, shard: ShardRow) -> ShardRow:
    reason = "not found in time; its requests go again"
    dead = work.store.bury(
        work.grip,
        shard,
        items=ItemState.OPEN,
        tried=False,
        note=reason,
        at=work.wall,
        maybe_billed=shard.fenced_at is None,
    )
    work.told(shard, dead, reason)
    return dead


def _waited(work: Work, shard: ShardRow) -> float:
    return work.wall - (shard.uncertain_since or work.wall)


def _can_fence(work: Work, shard: ShardRow) -> bool:
    return work.api.abilities.fence and shard.file_id is not None


def _until(work: Work, shard: ShardRow) -> float:
    """How long absence must last before something is done: until a batch that exists must be in the list (and
    the fence sees to the rest), for the settle time, or until every batch that could exist has ended."""
    if _holds(work, shard):
        return work.limits.ghost_watch
    settle: float = work.policy("settle", work.limits.settle)
    return min(settle, work.limits.visibility) if _can_fence(work, shard) else settle


def _holds(work: Work, shard: ShardRow) -> bool:
    """Whether the job's policy is to wait for a person, and no person has resumed it since."""
    if work.policy("on_unknown", "settle") != "hold":
        return False
    return not (shard.remote.get("held") and work.job.state is JobState.ACTIVE)


def _look_again(work: Work, shard: ShardRow) -> ShardRow:
    rest = max(0.0, _until(work, shard) - _waited(work, shard))
    changes: dict[str, Any] = {"tries": shard.tries + 1, "note": SOUGHT}
    if _holds(work, shard) and not shard.remote.get("held") and _waited(work, shard) > work.limits.visibility:
        work.store.note(work.grip, HELD, hold=True)
        changes["remote"] = {**shard.remote, "held": True}
    return work.later(shard, min(rest, _step(work, shard)), **changes)


def _tell_ghost(work: Work, nonce: str | None, batch_id: str) -> None:
    """The batch is another shard's, which was given up: its own step deals with it."""
    other = None if nonce is None else work.store.shard_of(nonce)
    if other is not None and other.state is ShardState.DEAD and other.job_id == work.job.id:
        work.later(other, 0.0, candidate=batch_id)


def _step(work: Work, shard: ShardRow) -> float:
    """Looks come thick at first, when a batch is likely to appear, and thin out."""
    return pause(shard.tries + 1, work.rng, first=1.0, longest=max(1.0, work.limits.poll_interval))
