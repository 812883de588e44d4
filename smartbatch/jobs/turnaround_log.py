"""The turnaround log: how long batches took, under which names in the store.

Batches that ended by themselves are kept under their model's name. Those that were cancelled or expired would
have taken longer (censored observations); without them, forecasts would be too short.
"""

from __future__ import annotations

from smartbatch.jobs.records import ShardRow
from smartbatch.jobs.steps.context import StepContext
from smartbatch.providers.batch_api import RemoteBatch, RemoteState

__all__ = ["cancelling", "late", "learn"]


def late(model: str) -> str:
    """Return the name for batches of a model that were given up: seconds until then."""
    return f"late {model}"


def cancelling(provider: str) -> str:
    """Return the name for cancels at a provider: seconds until the batch had ended."""
    return f"cancel {provider}"


def learn(step: StepContext, shard: ShardRow, batch: RemoteBatch) -> None:
    """Store how long a batch took when it has ended."""
    if shard.submitted_at is None:
        return
    now, model, store = step.wall, step.job.model, step.store
    cancelled_at = shard.remote.cancel_sent_at
    if cancelled_at is not None and cancelled_at <= now:
        provider = model.partition(":")[0]
        store.facts.observe_turnarounds(cancelling(provider), [(shard.size, now - cancelled_at, now)])
        ran = max(0.0, cancelled_at - shard.submitted_at)
        # its time tells when the batch began, too
        store.facts.observe_turnarounds(late(model), [(shard.size, ran, cancelled_at)])
    elif batch.state is RemoteState.EXPIRED:
        store.facts.observe_turnarounds(late(model), [(shard.size, max(0.0, now - shard.submitted_at), now)])
    elif batch.state is RemoteState.COMPLETED and not shard.cancelled:
        store.facts.observe_turnarounds(model, [(shard.size, max(0.0, now - shard.submitted_at), now)])
