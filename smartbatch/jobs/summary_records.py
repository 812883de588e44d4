"""Records of summaries: route decisions, groups of errors, hourly spending, and durations of batches."""

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
    """A route decision with its forecast and, later, its outcome. Costs are in USD, ``None`` if unknown."""

    no: int  # increases with every decision in the store; used for paging
    at: float  # Unix seconds
    model: str  # provider:model
    job_id: str | None  # None for a real-time list
    route: str
    requests: int
    deadline: float | None  # seconds from the decision
    p50: float  # forecast seconds until the last answer by the chosen route
    p95: float
    cost: float | None
    individual_p50: float  # forecast seconds if every request were sent individually
    individual_cost: float | None
    batch_p50: float | None  # forecast seconds for batches only; None if impossible or not allowed
    batch_cost: float | None
    measured: Measured | None  # None until the last answer has arrived
    decision: Decision | None = field(repr=False)  # None if written by a newer release or not requested


@define
class Failures:
    """Failed requests with the same kind of error and the same message."""

    kind: str  # an ErrorKind, or the error's class
    message: str  # shared part of the messages; see ``failure_groups.pattern_of``
    model: str  # of one request
    count: int = 0
    item: int | None = None  # item number of one request in the store, if it belongs to a job
    request_id: str | None = None  # id of one request, if it belongs to no job


@frozen(kw_only=True)
class ErrorGroup:
    """Stored errors of the same kind and message. Identical requests that share an answer count once."""

    kind: str  # an ErrorKind, or the error's class
    message: str  # shared part of the messages, with "#" for numbers and ids
    count: int
    first_at: float  # Unix seconds
    last_at: float
    model: str  # provider:model of the latest error
    job_id: str | None  # job of the latest error, if it is still stored
    row: int | None  # position in that job
    request_id: str | None  # request of the latest error; None if its job was deleted


@define
class Spending:
    """Totals for a model and a route within an hour or part of it."""

    model: str  # provider:model
    route: str  # a Route's value; empty for requests that were not sent
    requests: int = 0
    failed: int = 0
    usd: float = 0.0  # as far as prices are known
    realtime_usd: float = 0.0  # USD for the same tokens in real time
    unpriced: int = 0  # requests with an unknown price
    input_tokens: int = 0
    output_tokens: int = 0
    hour: float = 0.0  # Unix seconds at which the hour began

    def count(self, cost: float | None, usage: Usage, *, failed: bool) -> None:
        """``cost`` is in USD, ``None`` if unknown."""
        unpriced = cost is None and (not failed or usage.total_tokens > 0)
        usd, tokens = cost or 0.0, (usage.input_tokens, usage.output_tokens)
        self.merge(Spending(self.model, self.route, 1, int(failed), usd, usd, int(unpriced), *tokens))

    def merge(self, more: Spending) -> None:
        self.requests += more.requests
        self.failed += more.failed
        self.usd += more.usd
        self.realtime_usd += more.realtime_usd
        self.unpriced += more.unpriced
        self.input_tokens += more.input_tokens
        self.output_tokens += more.output_tokens


# -- durations of batches ------------------------------------------------------------------------------------
#
# Durations of completed batches are stored under the model's name. Batches that were cancelled or expired
# would have taken longer (censored observations). Without them, forecasts would be too short.

_ROUTES = frozenset(route.value for route in Route)


def late_name(model: str) -> str:
    """Return the name under which running times of batches that did not complete are stored."""
    return f"late {model}"


def cancel_name(provider: str) -> str:
    """Return the name under which the seconds from the cancellation of a batch to its end are stored."""
    return f"cancel {provider}"


@frozen
class DurationTopic:
    """What the durations stored under a name measure."""

    model: str  # provider:model; for cancellations, the provider
    route: Route | None  # BATCH for batches; None for cancellations
    ended: bool = True  # False for batches that were given up and would have taken longer


def topic_of(name: str) -> DurationTopic | None:
    """Return ``None`` for an unknown name."""
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
    # 1. it was cancelled: store the duration of the cancellation, and the running time before it as a lower
    # bound
    if ended.cancelling is not None:
        provider = ended.model.partition(":")[0]
        yield cancel_name(provider), (size, ended.cancelling, at)
        ran = max(0.0, ended.seconds - ended.cancelling)
        yield late_name(ended.model), (size, ran, at - ended.cancelling)
    # 2. it expired: store the running time as a lower bound
    elif ended.state == RemoteState.EXPIRED.value:
        yield late_name(ended.model), (size, ended.seconds, at)
    # 3. it was completed: store its duration
    elif ended.state == RemoteState.COMPLETED.value:
        yield ended.model, (size, ended.seconds, at)
