"""Summary records: route decisions, groups of errors, hourly spending, and durations of batches."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define, evolve, field, frozen

from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.outcome import Measured
from smartbatch.events import BatchEnded
from smartbatch.providers.batch_api import RemoteState
from smartbatch.types import Route, Usage


@frozen(kw_only=True)
class StoredDecision:
    """A route decision with its forecast and, once known, the outcome. Costs are USD, ``None`` if unknown."""

    no: int  # increases with every decision in the store; used for paging
    at: float  # Unix seconds
    model: str  # provider:model
    job_id: str | None  # None for a real-time list
    route: str  # the chosen route
    requests: int
    deadline: float | None  # seconds from the decision
    p50: float  # forecast seconds until the last answer, by the chosen route
    p95: float
    cost: float | None
    individual_p50: float  # forecast if every request were sent individually
    individual_cost: float | None
    batch_p50: float | None  # forecast if all were sent by batch; None if not possible or not allowed
    batch_cost: float | None
    measured: Measured | None  # None until the last answer has arrived
    decision: Decision | None = field(
        repr=False
    )  # in full; None if written by a newer release or not requested


@define
class Failures:
    """Requests that failed with the same kind of error and the same message."""

    kind: str  # an ErrorKind, or the error's class
    message: str  # common to all; see ``error_patterns.pattern_of``
    model: str  # of one of them
    count: int = 0
    item: int | None = None  # number of one of them in the store, if it belongs to a job
    request_id: str | None = None  # id of one of them, if it belongs to no job


@frozen(kw_only=True)
class ErrorGroup:
    """Stored errors of the same kind and message; identical requests that share an answer count once."""

    kind: str  # an ErrorKind, or the error's class
    message: str  # common to all; "#" stands for numbers and ids
    count: int
    first_at: float  # Unix seconds
    last_at: float
    model: str  # of the latest one, as provider:model
    job_id: str | None  # of the latest one, if its job is still stored
    row: int | None  # its position in the job
    request_id: str | None  # of the latest one; None if its job was forgotten


@define
class Spending:
    """Totals of one model's requests by one route, within an hour or part of it."""

    model: str  # provider:model
    route: str  # a Route's value; empty for requests that were not sent
    requests: int = 0  # finished
    failed: int = 0
    usd: float = 0.0  # as far as prices are known
    realtime_usd: float = 0.0  # price of the same tokens in real time
    unpriced: int = 0  # requests whose price is unknown
    input_tokens: int = 0
    output_tokens: int = 0
    hour: float = 0.0  # Unix seconds at which the hour began

    def count(self, cost: float | None, usage: Usage, *, failed: bool) -> None:
        """Count a finished real-time request; ``cost`` is in USD, ``None`` if unknown."""
        unpriced = cost is None and (not failed or usage.total_tokens > 0)
        usd, tokens = cost or 0.0, (usage.input_tokens, usage.output_tokens)
        self.merge(Spending(self.model, self.route, 1, int(failed), usd, usd, int(unpriced), *tokens))

    def merge(self, more: Spending) -> None:
        """Add the totals of further requests with the same model and route."""
        self.requests += more.requests
        self.failed += more.failed
        self.usd += more.usd
        self.realtime_usd += more.realtime_usd
        self.unpriced += more.unpriced
        self.input_tokens += more.input_tokens
        self.output_tokens += more.output_tokens


# -- durations of batches ------------------------------------------------------------------------------------
#
# Batches that completed are stored under their model's name. Those that were cancelled or expired would have
# taken longer (censored observations); without them, forecasts would be too short.

_ROUTES = frozenset(route.value for route in Route)


def late_name(model: str) -> str:
    """Return the name under which the seconds until a batch was given up are stored."""
    return f"late {model}"


def cancel_name(provider: str) -> str:
    """Return the name under which the seconds between cancelling a batch and its end are stored."""
    return f"cancel {provider}"


@frozen
class DurationTopic:
    """What the durations stored under a name measure."""

    model: str  # provider:model; for cancellations the provider
    route: Route | None  # of calls; BATCH for batches, None for cancellations
    ended: bool = True  # False for batches that were given up: they would have taken longer


def topic_of(name: str) -> DurationTopic | None:
    """Return what the durations under a name measure; ``None`` for an unknown name."""
    if name.startswith("late "):
        topic = topic_of(name.removeprefix("late "))
        return None if topic is None else evolve(topic, ended=False)
    if name.startswith("cancel "):
        return DurationTopic(name.removeprefix("cancel "), None)
    if name.startswith("latency "):
        route, _, model = name.removeprefix("latency ").partition(" ")
        return DurationTopic(model, Route(route)) if model and route in _ROUTES else None
    return DurationTopic(name, Route.BATCH) if ":" in name else None


def durations_of(ended: BatchEnded) -> Iterator[tuple[str, tuple[int, float, float]]]:
    """Yield the rows to store when a batch has ended: name, and size, seconds and Unix seconds."""
    size, at = ended.size, ended.ended_at
    # 1. it was cancelled: store how long the cancellation took, and how long the batch had run before, as it
    # would have taken longer
    if ended.cancelling is not None:
        provider = ended.model.partition(":")[0]
        yield cancel_name(provider), (size, ended.cancelling, at)
        ran = max(0.0, ended.seconds - ended.cancelling)
        yield late_name(ended.model), (size, ran, at - ended.cancelling)
    # 2. it expired: store that it would have taken longer
    elif ended.state == RemoteState.EXPIRED.value:
        yield late_name(ended.model), (size, ended.seconds, at)
    # 3. it was completed: store how long it took
    elif ended.state == RemoteState.COMPLETED.value:
        yield ended.model, (size, ended.seconds, at)
