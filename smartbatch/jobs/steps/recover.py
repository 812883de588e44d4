"""Recovery from a create call with an unknown outcome: search, verify, fence, and only then send again.

No provider has an idempotency key for batches, so a create call whose response was lost is never repeated.
Its batch is searched for by label or, if batches have no labels, by size and then verified by its results. If
it is not found in time, its input file is deleted so that a late create call must fail (the fence), and the
list is read again. Only then are its items put into a new shard; later lists are still searched for the old
nonce.
"""

from __future__ import annotations

import math

from attrs import evolve

from smartbatch.core.limits.cooldown import backoff
from smartbatch.jobs.records import JobState
from smartbatch.jobs.shard_records import RemoteProgress, ShardRow, ShardState
from smartbatch.jobs.steps import orphans
from smartbatch.jobs.steps.collect import nonces_in
from smartbatch.jobs.steps.create import adopt
from smartbatch.jobs.steps.orphans import NewerBatches, has_label, newer_than_intent, unclaimed
from smartbatch.jobs.steps.step import Step

HELD_NOTE = (
    "held: it is unknown whether a batch was created. According to its policy, the job waits 26 h, or until "
    "you have checked the provider's list of batches and resumed it"
)
_UNKNOWN = frozenset({ShardState.UNCERTAIN, ShardState.PROVISIONAL, ShardState.FENCED})
SEARCH_NOTE = (
    "it is unknown whether its batch was created: searching for it; nothing is sent again in the meantime"
)


def resume_if_known(step: Step) -> bool:
    """Resume a job held because of uncertain create calls, once the outcome of each is known.

    Their shards are marked with ``held_job``. The marks are removed after the job is resumed, so that a job
    held later for another reason is not resumed automatically.

    Returns:
        True if anything changed.
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
    """Mark a shard whose process ended before it stored the outcome of the create call."""
    return step.advance(
        shard,
        ShardState.UNCERTAIN,
        "its process ended before the response arrived",
        uncertain_since=step.wall,
    )


def search_batch(step: Step, shard: ShardRow) -> ShardRow:
    # 1. the list cannot be read: conclude nothing, and read it again later
    with step.provider_calls():
        newer = newer_than_intent(step, shard)
    # 2. batches have no labels: search by size
    if not step.api.abilities.labels:
        return _search_unlabelled(step, shard, newer)
    # 3. one or more batches have the shard's label: adopt the oldest, and cancel the others, which a proxy
    # created by repeating the request
    mine = [batch for batch in newer.batches if has_label(batch, shard)]
    if mine:
        oldest = min(reversed(mine), key=lambda batch: batch.created_at or math.inf)
        with step.provider_calls():
            orphans.cancel_duplicates(step, shard, [batch for batch in mine if batch.id != oldest.id])
        return adopt(step, shard, oldest, "found in the list")
    # 4. it has not been absent for long enough: search again
    if (rest := _remaining_absence(step, shard, newer.at)) > 0:
        return _search_again(step, shard, rest, newer.at)
    # 5. if deleting the input file makes a late create call fail, delete it (the fence); a batch created
    # before that will be in the list afterwards
    if shard.state is ShardState.UNCERTAIN and _can_fence(step, shard):
        return _fence(step, shard, newer.at)
    # 6. it has been absent for the settle time: put the items into a new shard
    return _send_again(step, shard)


def verify(step: Step, shard: ShardRow) -> ShardRow:
    """Check by its results whether a batch without a label is the shard's."""
    assert shard.candidate is not None
    with step.provider_calls():
        batch = step.api.get(shard.candidate, step.limits.call_timeout)
        # 1. it is running: wait
        if batch is not None and not batch.state.ended:
            return step.reschedule(
                shard,
                step.limits.poll_interval,
                tries=0,
                note="waiting for the results of a batch of its size",
            )
        # 2. it is in the list but not found by its id: go back to UNCERTAIN
        if batch is None:
            return step.advance(
                shard,
                ShardState.UNCERTAIN,
                "the candidate batch cannot be found",
                candidate=None,
                due_at=step.wall + _search_pause(step, shard),
            )
        nonces = nonces_in(step, shard, batch)
    # 3. its results have the shard's ids: adopt it
    if shard.nonce in nonces:
        return adopt(step, shard, batch, "its results carry this shard's ids")
    # 4. they do not: read them again a few times. The download may have been cut off or made too early, or it
    # may contain lines of other batches
    if (pause := step.reread_pause(shard.tries)) is not None:
        return step.reschedule(shard, pause, tries=shard.tries + 1)
    # 5. no line can be read: record an incident, because the requests may be paid for twice
    if not nonces:
        orphans.report_unreadable(step, shard, batch)
    # 6. the batch is foreign: remember that, and go back to UNCERTAIN. If it belongs to a dead shard of the
    # job, note it there, so that the shard's next step handles it
    for nonce in nonces:
        other = None if nonce is None else step.store.shards.with_nonce(nonce)
        if other is not None and other.state is ShardState.DEAD and other.job_id == step.job.id:
            step.reschedule(other, 0.0, candidate=shard.candidate)
    return step.advance(
        shard,
        ShardState.UNCERTAIN,
        "the candidate batch does not belong to this shard",
        candidate=None,
        foreign_batches=(*shard.foreign_batches, shard.candidate),
    )


def _search_unlabelled(step: Step, shard: ShardRow, newer: NewerBatches) -> ShardRow:
    candidates = unclaimed(step, shard, newer.batches)
    if candidates:
        oldest = candidates[-1]
        # 1. exactly one new batch has the shard's size and belongs to no other shard, and the workspace is
        # exclusive: adopt it
        if len(candidates) == 1 and step.policy.exclusive_workspace:
            return adopt(step, shard, oldest, "the only new batch of an exclusive workspace")
        # 2. there are such batches: the oldest becomes the candidate, to be verified by its results
        reason, remote = "a batch of its size appeared", _dated(shard, newer.at)
        return step.advance(shard, ShardState.PROVISIONAL, reason, candidate=oldest.id, remote=remote)
    # 3. there has been none for long enough: put the items into a new shard; otherwise search again
    rest = _remaining_absence(step, shard, newer.at)
    return _search_again(step, shard, rest, newer.at) if rest > 0 else _send_again(step, shard)


def _fence(step: Step, shard: ShardRow, listed: float | None) -> ShardRow:
    assert shard.file_id is not None
    before = step.wall
    with step.provider_calls():
        step.api.delete_file(shard.file_id, step.limits.call_timeout)
    now = step.wall
    fenced = None if listed is None else listed + now - before
    return step.advance(
        shard,
        ShardState.FENCED,
        "not found; its input file was deleted so that a late create call must fail",
        fenced_at=now,
        remote=evolve(shard.remote, fenced_since=fenced),
        due_at=now + step.limits.visibility,
    )


def _send_again(step: Step, shard: ShardRow) -> ShardRow:
    reason = "not found in time; its requests are sent again"
    return step.discard(shard, reason, maybe_billed=shard.fenced_at is None)


def _search_again(step: Step, shard: ShardRow, rest: float, listed: float | None) -> ShardRow:
    remote = _dated(shard, listed)
    if (
        _waits_for_person(step, shard)
        and not remote.held_job
        and _search_seconds(step, shard, listed) > step.limits.visibility
    ):
        step.store.jobs.note(step.lease, HELD_NOTE, hold=True)
        remote = evolve(remote, held_job=True)
    pause = min(max(1.0, rest), _search_pause(step, shard))  # the provider's clock reports whole seconds
    return step.reschedule(shard, pause, tries=shard.tries + 1, note=SEARCH_NOTE, remote=remote)


def _search_pause(step: Step, shard: ShardRow) -> float:
    """Pauses are short at first, when a batch is likely to appear."""
    return backoff(shard.tries + 1, step.runtime.rng, first=1.0, longest=max(1.0, step.limits.poll_interval))


def _dated(shard: ShardRow, listed: float | None) -> RemoteProgress:
    known = shard.remote
    return known if known.searched_since is not None else evolve(known, searched_since=listed)


# -- how long a batch must be absent -------------------------------------------------------------------------


def _remaining_absence(step: Step, shard: ShardRow, listed: float | None) -> float:
    """Return the seconds for which a batch must still be absent before its shard advances."""
    waited = _search_seconds(step, shard, listed)
    if shard.state is not ShardState.FENCED:
        return _required_absence(step, shard) - waited
    fenced = _elapsed(step, shard.fenced_at, shard.remote.fenced_since, listed)
    return max(step.limits.visibility - fenced, step.settle_time - waited)


def _search_seconds(step: Step, shard: ShardRow, listed: float | None) -> float:
    """Return the seconds since the search for the shard's batch began.

    ``listed`` is the time by the provider's clock when its list was read.
    """
    return _elapsed(step, shard.uncertain_since, shard.remote.searched_since, listed)


def _elapsed(step: Step, since: float | None, recorded: float | None, listed: float | None) -> float:
    """Return the seconds since a moment that another process may have recorded.

    Both clocks may be wrong: this machine's may have been set since then, and a server may report a wrong
    date. The result is therefore the shorter of the times that they measure. If this machine's clock was set
    back to before that moment, only the provider's is used; if the provider reports no time, only this
    machine's.

    Args:
        since: the moment by this machine's clock.
        recorded: the moment by the provider's clock; ``None`` if the provider reported no time then.
        listed: the provider's clock now; it reports whole seconds, so the difference may be one second too
            long.
    """
    local = step.wall - (since or step.wall)
    if listed is None:
        return local
    remote = 0.0 if recorded is None else max(0.0, listed - recorded - 1.0)
    return remote if local < 0 else min(local, remote)


def _can_fence(step: Step, shard: ShardRow) -> bool:
    return step.api.abilities.fence and shard.file_id is not None


def _required_absence(step: Step, shard: ShardRow) -> float:
    # 1. the job is held because of the batch: until any existing batch must have ended
    if _waits_for_person(step, shard):
        return step.limits.orphan_watch
    settle = step.settle_time
    # 2. otherwise for the settle time; with a fence, at most until an existing batch must be listed
    return min(settle, step.limits.visibility) if _can_fence(step, shard) else settle


def _waits_for_person(step: Step, shard: ShardRow) -> bool:
    """Whether the job's policy is to wait for a user, and no user has resumed it since."""
    if step.policy.on_unknown != "hold" or shard.state is ShardState.FENCED:
        return False
    return not (shard.remote.held_job and step.job.state is JobState.ACTIVE)
