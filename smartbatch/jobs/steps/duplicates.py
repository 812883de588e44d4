"""Duplicates: a second batch of one shard, made by a proxy that repeats creates.

A shard's create is sent once, and nothing of ours repeats it. A proxy or a gateway might: the answer to the
first is lost on the way, the second is answered, and both run. So the list is searched once after each
create. A second batch with the shard's label is cancelled; without labels one of its size is examined when it
has ended. An incident says what it cost.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve

from smartbatch.errors import ProviderError
from smartbatch.jobs.records import ShardRow
from smartbatch.jobs.steps import collect
from smartbatch.jobs.steps.context import StepContext
from smartbatch.jobs.steps.listing import has_label, newer_than_intent, unclaimed
from smartbatch.jobs.versioned_records import RemoteProgress
from smartbatch.providers.batch_api import RemoteBatch


def search_once(step: StepContext, shard: ShardRow, batch: RemoteBatch) -> RemoteProgress:
    """Search once for duplicates of a shard's batch: when all are in the list by now, or it has ended.

    Returns:
        What the shard is to remember. A list that cannot be read delays nothing: it is tried again as long
        as the batch runs.
    """
    known = shard.remote
    age = step.wall - (shard.submitted_at or step.wall)
    if known.checked_for_duplicates or not (batch.state.ended or age >= step.limits.visibility):
        return known
    try:
        with step.provider_calls():
            found = _found(step, shard, batch)
    except ProviderError as error:
        step.ignored("list of batches", error)
        return known
    return evolve(known, checked_for_duplicates=True, suspected_duplicates=[other.id for other in found])


def _found(step: StepContext, shard: ShardRow, batch: RemoteBatch) -> list[RemoteBatch]:
    """Return the duplicates of a shard's batch, cancelled; without labels those that could be some."""
    others = [other for other in newer_than_intent(step, shard).batches if other.id != batch.id]
    if not step.api.abilities.labels:
        return unclaimed(step, shard, others)
    labelled = [other for other in others if has_label(other, shard)]
    cancel_all(step, shard, labelled)
    return labelled


def cancel_all(step: StepContext, shard: ShardRow, duplicates: Iterable[RemoteBatch]) -> None:
    """Cancel duplicates of a shard's batch, and write an incident for each.

    Raises:
        Exception: whatever the provider's adapter raised.
    """
    for duplicate in duplicates:
        if not duplicate.state.ended:
            step.api.cancel(duplicate.id, step.limits.call_timeout)
        step.incident(
            "double_submission",
            f"batch {duplicate.id} was created a second time for the same requests and cancelled; something "
            "between here and the provider repeats requests",
            shard,
        )


def examine_suspect(step: StepContext, shard: ShardRow) -> ShardRow:
    """``SETTLED``, with suspects: examine the first of them. The cases, in order:

    1. It runs: later.
    2. It has results of which none can be read: read again a few times, then nothing can be found out.
    3. Its results carry the shard's ids: it is a duplicate, and an incident says what it cost.
    4. It, or its results, are gone, unreadable, or foreign: nothing more is to be done.
    """
    suspect, *others = shard.remote.suspected_duplicates
    twice = 0.0
    with step.provider_calls():
        batch = step.api.get(suspect, step.limits.call_timeout)
        if batch is not None and not batch.state.ended:
            return step.reschedule(shard, step.limits.poll_interval, tries=0)
        gone = batch is None or collect.are_gone(step, shard, batch)
        nonces = set() if batch is None or gone else collect.nonces_in(step, shard, batch)
        pause = step.reread_pause(shard.tries)
        if not (nonces or gone) and batch is not None and batch.outputs and pause is not None:
            return step.reschedule(shard, pause, tries=shard.tries + 1)
        if batch is not None and shard.nonce in nonces:
            twice = _tell_cost(step, shard, batch)
    remote = evolve(shard.remote, suspected_duplicates=others)
    return step.reschedule(shard, 0.0, tries=0, remote=remote, reserved=shard.reserved + twice)


def _tell_cost(step: StepContext, shard: ShardRow, duplicate: RemoteBatch) -> float:
    """Say what a second batch cost, and return it, USD; what is not known counts nothing."""
    money = collect.cost_of(step, shard, duplicate)
    if money.billed:
        step.incident(
            "double_submission",
            f"batch {duplicate.id} was created a second time for the same requests: {money.billed:,} of "
            f"them were run by it, for {money.price}; something between here and the provider repeats "
            "requests",
            shard,
            money.usd,
        )
    return money.usd or 0.0
