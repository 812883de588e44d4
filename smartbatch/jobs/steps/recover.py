"""Recovery of a create whose outcome is unknown: search, verify, fence, and only then send again.

No provider has an idempotency key for batches, so a create whose answer was lost is never repeated. Its batch
is searched for: by its label where batches have one; by its size, and later by its results, where they have
none. When it was not found for long enough, its input file is deleted, so that a late create must fail (the
fence), and the list is read again. Only then its items go into a new shard, and the list is still searched
for the old nonce.
"""

from __future__ import annotations

import math

from attrs import evolve

from smartbatch.core.limits.cooldown import backoff
from smartbatch.jobs.records import JobState
from smartbatch.jobs.shard_records import RemoteProgress, ShardRow, ShardState
from smartbatch.jobs.steps import listing
from smartbatch.jobs.steps.collect import nonces_in
from smartbatch.jobs.steps.context import Step
from smartbatch.jobs.steps.create import adopt
from smartbatch.jobs.steps.listing import NewerBatches, has_label, newer_than_intent, unclaimed
from smartbatch.providers.batch_api import RemoteBatch

HELD = (
    "held: nobody knows whether a batch was created, and by its policy the job waits 26 hours, or until you "
    "looked at the provider's list and resume it"
)
_UNKNOWN = frozenset({ShardState.UNCERTAIN, ShardState.PROVISIONAL, ShardState.FENCED})
SEARCHED = (
    "nobody knows yet whether its batch was created: it is searched for, and nothing is sent again meanwhile"
)


def resume_if_known(step: Step) -> bool:
    """Resume a job that is held because of creates, once the outcome of each is known.

    Their shards are marked with ``held_job``. The marks are removed after the job is resumed, so that a job
    that is held later for another reason waits for a person.

    Returns:
        True when anything changed.
    """
    marked = [shard for shard in step.store.shards.of_job(step.job.id) if shard.remote.held_job]
    if not marked or any(shard.state in _UNKNOWN for shard in marked):
        return False
    if step.job.state is JobState.HELD:
        step.store.jobs.unhold(step.job.id)
    for shard in marked:
        remote = evolve(shard.remote, held_job=False)
        step.store.shards.advance(step.lease, shard, shard.state, remote=remote)
    return True


def mark_uncertain(step: Step, shard: ShardRow) -> ShardRow:
    """``SUBMITTING`` as it was found: the process that sent the create ended before it stored the outcome."""
    return step.advance(
        shard, ShardState.UNCERTAIN, "its sender was lost with the answer", uncertain_since=step.wall
    )


def search(step: Step, shard: ShardRow) -> ShardRow:
    """``UNCERTAIN`` or ``FENCED``: search the provider's list for the batch."""
    # 1. the list cannot be read: nothing is concluded, and it is read again later
    with step.provider_calls():
        newer = newer_than_intent(step, shard)
    # 2. batches have no labels: search by size
    if not step.api.abilities.labels:
        return _search_unlabelled(step, shard, newer)
    # 3. one or more batches have the shard's label: adopt the oldest
    mine = [batch for batch in newer.batches if has_label(batch, shard)]
    if mine:
        return _take_oldest(step, shard, mine)
    # 4. it was not absent for long enough: search again
    if (rest := _rest(step, shard, newer.at)) > 0:
        return _search_again(step, shard, rest, newer.at)
    # 5. it has an input file whose deletion makes a late create fail: the fence. A batch that was created
    # before it will be in the list
    if shard.state is ShardState.UNCERTAIN and _can_fence(step, shard):
        return _fence(step, shard, newer.at)
    # 6. it was absent for the settle time: the items go into a new shard
    return _send_again(step, shard)


def verify(step: Step, shard: ShardRow) -> ShardRow:
    """``PROVISIONAL``: a batch without a label could be the shard's; its results tell."""
    assert shard.candidate is not None
    with step.provider_calls():
        batch = step.api.get(shard.candidate, step.limits.call_timeout)
        # 1. it runs: later
        if batch is not None and not batch.state.ended:
            return step.reschedule(
                shard, step.limits.poll_interval, tries=0, note="its results will tell whose it is"
            )
        # 2. it is in the list, and not found by its id: back to UNCERTAIN
        if batch is None:
            return step.advance(
                shard,
                ShardState.UNCERTAIN,
                "the batch that looked like it is not there yet, or no more",
                candidate=None,
                due_at=step.wall + _search_pause(step, shard),
            )
        nonces = nonces_in(step, shard, batch)
    # 3. its results carry the shard's ids: adopt it
    if shard.nonce in nonces:
        return adopt(step, shard, batch, "its results carry this shard's ids")
    # 4. they do not: read them again a few times, as the download may be cut, too early or hold foreign lines
    if (pause := step.reread_pause(shard.tries)) is not None:
        return step.reschedule(shard, pause, tries=shard.tries + 1)
    # 5. no line can be read: an incident, since the requests may be paid twice
    if not nonces:
        tell_unreadable(step, shard, batch)
    # 6. the batch is foreign: back to UNCERTAIN, and it is remembered. Where it belongs to a dead shard
    # of the job, it is noted there
    for nonce in nonces:
        _note_orphan(step, nonce, shard.candidate)
    return step.advance(
        shard,
        ShardState.UNCERTAIN,
        "the batch that looked like it belongs to somebody else",
        candidate=None,
        foreign_batches=(*shard.foreign_batches, shard.candidate),
    )


def tell_unreadable(step: Step, shard: ShardRow, batch: RemoteBatch) -> None:
    """Write an incident: a batch that may be the shard's, and may have been paid for, cannot be read."""
    step.incident(
        "maybe_billed",
        f"batch {batch.id} may be this job's, but no line of its results can be read; {shard.size:,} "
        "requests go again and may be paid twice",
        shard,
    )


def _search_unlabelled(step: Step, shard: ShardRow, newer: NewerBatches) -> ShardRow:
    """Search by size for a batch without a label."""
    candidates = unclaimed(step, shard, newer.batches)
    if candidates:
        oldest = candidates[-1]
        # 1. one new batch of the shard's size belongs to no other shard, and the workspace is exclusive:
        # adopt it
        if len(candidates) == 1 and step.policy.exclusive_workspace:
            return adopt(step, shard, oldest, "the only new batch of a workspace nobody else uses")
        # 2. there are such batches: the oldest is the candidate, to be verified by its results
        reason, remote = "a batch of its size appeared", _dated(shard, newer.at)
        return step.advance(shard, ShardState.PROVISIONAL, reason, candidate=oldest.id, remote=remote)
    # 3. there was none for long enough: the items go into a new shard; otherwise search again
    rest = _rest(step, shard, newer.at)
    return _search_again(step, shard, rest, newer.at) if rest > 0 else _send_again(step, shard)


def _take_oldest(step: Step, shard: ShardRow, mine: list[RemoteBatch]) -> ShardRow:
    """Adopt the oldest batch with the label; others, made by a proxy that repeats creates, are cancelled."""
    oldest = min(reversed(mine), key=lambda batch: batch.created_at or math.inf)
    with step.provider_calls():
        listing.cancel_duplicates(step, shard, [batch for batch in mine if batch.id != oldest.id])
    return adopt(step, shard, oldest, "found in the list")


def _fence(step: Step, shard: ShardRow, listed: float | None) -> ShardRow:
    assert shard.file_id is not None
    before = step.wall
    with step.provider_calls():
        step.api.delete_file(shard.file_id, step.limits.call_timeout)
    now = step.wall
    told = None if listed is None else listed + now - before
    return step.advance(
        shard,
        ShardState.FENCED,
        "not found; its input file was deleted, so that a late create must fail",
        fenced_at=now,
        remote=evolve(shard.remote, fenced_since=told),
        due_at=now + step.limits.visibility,
    )


def _send_again(step: Step, shard: ShardRow) -> ShardRow:
    reason = "not found in time; its requests go again"
    return step.discard(shard, reason, maybe_billed=shard.fenced_at is None)


def _waited(step: Step, shard: ShardRow, listed: float | None) -> float:
    """Return the seconds for which the shard's batch has been searched for.

    Args:
        listed: the provider's clock when its list was read.
    """
    return _elapsed(step, shard.uncertain_since, shard.remote.searched_since, listed)


def _elapsed(step: Step, since: float | None, told: float | None, listed: float | None) -> float:
    """Return the seconds since a moment that another process may have written down: what our clock and the
    provider's agree on, as ours may have been set in between, and a server may tell a wrong date. Where ours
    was set back behind that moment, or the provider's tells nothing, the other one counts.

    Args:
        since: the moment by our clock.
        told: the moment by the provider's; ``None`` where its time is told now for the first time.
        listed: the provider's clock now, in whole seconds, so that one too many may seem to have passed.
    """
    ours = step.wall - (since or step.wall)
    if listed is None:
        return ours
    theirs = 0.0 if told is None else max(0.0, listed - told - 1.0)
    return theirs if ours < 0 else min(ours, theirs)


def _rest(step: Step, shard: ShardRow, listed: float | None) -> float:
    """Return the seconds that a batch must still be absent before anything follows from it."""
    waited = _waited(step, shard, listed)
    if shard.state is not ShardState.FENCED:
        return _until(step, shard) - waited
    fenced = _elapsed(step, shard.fenced_at, shard.remote.fenced_since, listed)
    return max(step.limits.visibility - fenced, step.settle_time - waited)


def _can_fence(step: Step, shard: ShardRow) -> bool:
    return step.api.abilities.fence and shard.file_id is not None


def _until(step: Step, shard: ShardRow) -> float:
    """Return the seconds that a batch must be absent in all while there is no fence."""
    # 1. the job is held because of it: until every batch that could exist has ended
    if _holds(step, shard):
        return step.limits.orphan_watch
    settle = step.settle_time
    # 2. there is a fence: until a batch that exists is visible, or the settle time where that is shorter, as
    # without a fence
    return min(settle, step.limits.visibility) if _can_fence(step, shard) else settle


def _holds(step: Step, shard: ShardRow) -> bool:
    """Whether the job's policy is to wait for a person, and nobody has resumed it since."""
    if step.policy.on_unknown != "hold" or shard.state is ShardState.FENCED:
        return False
    return not (shard.remote.held_job and step.job.state is JobState.ACTIVE)


def _search_again(step: Step, shard: ShardRow, rest: float, listed: float | None) -> ShardRow:
    remote = _dated(shard, listed)
    if _holds(step, shard) and not remote.held_job and _waited(step, shard, listed) > step.limits.visibility:
        step.store.jobs.note(step.lease, HELD, hold=True)
        remote = evolve(remote, held_job=True)
    pause = min(max(1.0, rest), _search_pause(step, shard))  # the provider's clock tells whole seconds
    return step.reschedule(shard, pause, tries=shard.tries + 1, note=SEARCHED, remote=remote)


def _dated(shard: ShardRow, listed: float | None) -> RemoteProgress:
    """Return what is known of a shard's batch, with the provider's time of the first search."""
    known = shard.remote
    return known if known.searched_since is not None else evolve(known, searched_since=listed)


def _note_orphan(step: Step, nonce: str | None, batch_id: str) -> None:
    """Note a batch on the dead shard of this job that it belongs to, if any; that shard's step handles it."""
    other = None if nonce is None else step.store.shards.with_nonce(nonce)
    if other is not None and other.state is ShardState.DEAD and other.job_id == step.job.id:
        step.reschedule(other, 0.0, candidate=batch_id)


def _search_pause(step: Step, shard: ShardRow) -> float:
    """Return the seconds to the next search: few at first, when a batch is likely to appear, then more."""
    return backoff(shard.tries + 1, step.runtime.rng, first=1.0, longest=max(1.0, step.limits.poll_interval))
