"""The turnaround log: how long batches took, under which names in the store.

Batches that ended by themselves are kept under their model's name. Those that were cancelled or expired would
have taken longer (censored observations); without them, forecasts would be too short.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve, frozen

from smartbatch.events import BatchEnded
from smartbatch.jobs.records import ShardRow
from smartbatch.jobs.steps.context import StepContext
from smartbatch.providers.batch_api import RemoteBatch, RemoteState
from smartbatch.types import Kind, Route

_ROUTES = frozenset(route.value for route in Route)


def late(model: str) -> str:
    """Return the name for batches of a model that were given up: seconds until then."""
    return f"late {model}"


def cancelling(provider: str) -> str:
    """Return the name for cancels at a provider: seconds until the batch had ended."""
    return f"cancel {provider}"


@frozen
class Topic:
    """What a name in the store is about.

    Attributes:
        model: ``provider:model``; of cancels the provider.
        route: of calls; ``BATCH`` for batches, ``None`` for cancels.
        ended: False for what was given up: it would have taken longer.
    """

    model: str
    route: Route | None
    ended: bool = True


def topic_of(name: str) -> Topic | None:
    """Return what a name in the store is about; ``None`` for a name that is not known here."""
    if name.startswith("late "):
        topic = topic_of(name.removeprefix("late "))
        return None if topic is None else evolve(topic, ended=False)
    if name.startswith("cancel "):
        return Topic(name.removeprefix("cancel "), None)
    if name.startswith("latency "):
        route, _, model = name.removeprefix("latency ").partition(" ")
        return Topic(model, Route(route)) if model and route in _ROUTES else None
    return Topic(name, Route.BATCH) if ":" in name else None


def learn(step: StepContext, shard: ShardRow, batch: RemoteBatch) -> None:
    """Tell how long a batch took when it has ended, and store it: who hears of it may read the store before
    it learns from it.
    """
    if shard.submitted_at is None:
        return
    now, cancelled_at = step.wall, shard.remote.cancel_sent_at
    ended = BatchEnded(
        at=step.now,
        job_id=step.job.id,
        shard_id=shard.id,
        batch_id=shard.batch_id,
        model=step.job.model,
        traceparent=step.job.policy.traceparent,
        kind=Kind(step.job.kind),
        size=shard.size,
        tokens=shard.tokens,
        state=batch.state.value,
        ended_at=now,
        seconds=max(0.0, now - shard.submitted_at),
        cancelling=None if cancelled_at is None else max(0.0, now - cancelled_at),
    )
    step.runtime.tell(ended)
    for name, row in rows_of(ended):
        step.store.facts.observe_turnarounds(name, [row])


def rows_of(ended: BatchEnded) -> Iterator[tuple[str, tuple[int, float, float]]]:
    """Yield the rows of the store that the end of a batch makes: name, and size, seconds and Unix seconds.

    1. It was asked to cancel: how long the cancel took, and that it would have taken longer than until then.
    2. It expired: that it would have taken longer.
    3. It was completed: how long it took.
    """
    size, at = ended.size, ended.ended_at
    if ended.cancelling is not None:
        provider = ended.model.partition(":")[0]
        yield cancelling(provider), (size, ended.cancelling, at)
        # its time tells when the batch began, too
        ran = max(0.0, ended.seconds - ended.cancelling)
        yield late(ended.model), (size, ran, at - ended.cancelling)
    elif ended.state == RemoteState.EXPIRED.value:
        yield late(ended.model), (size, ended.seconds, at)
    elif ended.state == RemoteState.COMPLETED.value:
        yield ended.model, (size, ended.seconds, at)
