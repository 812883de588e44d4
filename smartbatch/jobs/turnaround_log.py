"""The turnaround log: how long batches took, under which names in the store.

Batches that ended by themselves are kept under their model's name. Those that were cancelled or expired would
have taken longer (censored observations); without them, forecasts would be too short.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve, frozen

from smartbatch.events import BatchEnded
from smartbatch.providers.batch_api import RemoteState
from smartbatch.types import Route

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
