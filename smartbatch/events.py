"""Events: what happened, as frozen classes. Metrics, logs, progress displays and observers use them.

Events contain IDs, counts, seconds, tokens and USD, but never a key, a prompt or an answer. Observers are
called after locks are released, on the thread that caused the event. An event about a request is delivered in
the context variables of its submitter; variables set by an observer when a call starts apply to the call.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from enum import Enum
from typing import Any, TypeAlias

from attrs import asdict, field, frozen

from smartbatch._words import brief
from smartbatch.errors import snake_case
from smartbatch.types import Kind, Priority, Route, Usage

Observer: TypeAlias = "Callable[[Event], None]"
"""A callable that accepts an event. Its exceptions are logged and have no other effect."""


@frozen(kw_only=True)
class Event:
    """Base class of all events.

    Attributes:
        at: monotonic seconds of the client's clock.
    """

    at: float

    @property
    def name(self) -> str:
        """The event's name in logs and metrics, such as ``call_finished``."""
        return snake_case(type(self).__name__)

    def fields(self) -> dict[str, Any]:
        """Return the event as plain JSON values, without user objects and text from providers."""
        return asdict(self, value_serializer=_plain, filter=lambda each, _: each.name not in _LEFT_OUT)


def _plain(_event: Any, _field: Any, value: Any) -> Any:
    if isinstance(value, Priority):
        return value.name.lower()
    return value.value if isinstance(value, Enum) else value


_LEFT_OUT = frozenset({"context", "requests", "message"})


@frozen(kw_only=True)
class RequestEvent(Event):
    """Base class of events about one request.

    Attributes:
        context: the object passed by its caller.
    """

    request_id: str
    purpose: str | None = None
    context: Any = field(default=None, eq=False, repr=brief)


@frozen(kw_only=True, eq=False)
class CalledRequest:
    """A request of a call.

    Attributes:
        context: the object passed by its caller.
        submitted: monotonic seconds.
        variables: the context variables of its submitter.
    """

    request_id: str
    purpose: str | None
    context: Any = field(repr=brief)
    submitted: float
    variables: Context = field(repr=False)


@frozen(kw_only=True)
class RequestSubmitted(RequestEvent):
    priority: Priority
    model: str
    joined: bool
    """Whether the request joined an identical one in flight, so that no separate call follows."""


@frozen(kw_only=True)
class CallStarted(Event):
    batch_id: str
    model: str
    size: int
    attempt: int
    in_flight: int
    waited: float
    """Seconds from the submission or due time of the oldest request to the start."""
    kind: Kind = Kind.GENERATE
    own_code: bool = False
    """Whether the call runs a user's function or provider, which may report its calls itself."""
    requests: tuple[CalledRequest, ...] = field(default=(), eq=False, repr=False)
    """The requests of the call whose results are still awaited."""


@frozen(kw_only=True)
class CallFinished(Event):
    batch_id: str
    model: str
    size: int
    seconds: float
    usage: Usage
    cost: float | None
    error: str | None
    """The :class:`~smartbatch.errors.ErrorKind` value of a failed call."""
    maybe_billed: bool = False
    """Whether the answer was lost, so that the call may have been billed anyway."""
    route: Route | None = None
    """``None`` for a call of a user's function, which sends no prompts."""
    requests: tuple[CalledRequest, ...] = field(default=(), eq=False, repr=False)
    """See :class:`CallStarted`."""


@frozen(kw_only=True)
class RetryScheduled(RequestEvent):
    model: str
    kind: str
    attempt: int
    delay: float
    counted: bool
    """False if the provider's state (a limit, an outage) was the cause: then no retry is used up."""
    maybe_billed: bool = False
    """Whether the failed call may have been executed, so that the retry may be billed again."""


@frozen(kw_only=True)
class RequestFinished(RequestEvent):
    priority: Priority
    model: str
    ok: bool
    cancelled: bool
    error: str | None
    """The error's :class:`~smartbatch.errors.ErrorKind` value; its class name if no call failed."""
    attempts: int
    queued: float
    seconds: float
    """Seconds from submission to completion."""
    usage: Usage
    cost: float | None
    route: Route | None
    deduplicated: bool
    of_job: bool = False
    """Whether the request belongs to a job, whose result is counted when it is stored."""
    message: str | None = field(default=None, repr=False)
    """The error's message, possibly from a provider: shortened, without keys, and not in :meth:`fields`."""
    unconfirmed_cost: float = 0.0
    """USD that may have been billed in addition, see :class:`~smartbatch.Result`."""


@frozen(kw_only=True)
class CachingStopped(Event):
    """A shared prefix of prompts is no longer marked for the provider's cache; reported once for each.

    For batches, it reports that later batches will not be marked.
    """

    model: str
    prefix: str
    """Digest of the prefix; empty for batches."""
    tokens: int
    """Its estimated length; 0 for batches."""
    reason: str
    batch: bool


@frozen(kw_only=True)
class ExplicitCacheEnded(Event):
    """An explicit cache of a shared prefix was deleted, or left to housekeeping if its deletion failed."""

    model: str
    usage: Usage
    """Its creation and storage as far as no request was charged for them, as ``explicit_cache_tokens``."""
    cost: float | None
    """USD of ``usage``; ``None`` if the price is unknown."""


@frozen(kw_only=True)
class CooldownStarted(Event):
    scope: str
    model: str
    seconds: float
    consecutive: int


@frozen(kw_only=True)
class SharedLimitsLost(Event):
    """The place where processes share a limit is unavailable; reported once per outage."""

    place: str
    scope: str
    model: str
    reason: str
    processes: int
    """Processes that last shared the limit, including this one; 0 if unknown."""


@frozen(kw_only=True)
class SharedLimitsRestored(Event):
    """The limit is shared again."""

    place: str
    scope: str
    model: str
    seconds: float
    """Seconds since :class:`SharedLimitsLost`."""


@frozen(kw_only=True)
class LongWait(Event):
    """Known limits block all calls for more than a minute; reported once, until that time has passed."""

    scope: str
    model: str
    seconds: float


@frozen(kw_only=True)
class BreakerChanged(Event):
    model: str
    before: str
    after: str
    reason: str
    pause: float = 0.0
    """Seconds until the next probe, if the breaker opened."""


@frozen(kw_only=True)
class PackingChanged(Event):
    """Packing was suspended for a model, because too many requests had to be sent again, or was resumed."""

    model: str
    enabled: bool
    reason: str


@frozen(kw_only=True)
class FlexChanged(Event):
    """A model's slower tier was suspended because it refused requests, or is used again."""

    model: str
    enabled: bool
    reason: str


@frozen(kw_only=True)
class PauseChanged(Event):
    """A user paused a model or ended its pause: this process stops or resumes sending requests to it."""

    model: str
    """``provider:*`` for all models of a provider."""
    paused: bool
    reason: str | None
    by: str | None
    """The user who paused the model; ``None`` if the pause ended."""


@frozen(kw_only=True)
class LimitChanged(Event):
    """A user set or removed limits of a model; without them the settings apply."""

    model: str
    requests_per_minute: float | None
    tokens_per_minute: float | None
    by: str | None
    """The user who set the limits; ``None`` if they were removed."""


@frozen(kw_only=True)
class ParameterDropped(RequestEvent):
    """A parameter was omitted, because the provider does not accept it."""

    field: str
    reason: str


@frozen(kw_only=True)
class PriceUnknown(Event):
    """The cost of requests is unknown, because no table has the price of their model; reported once per model
    for requests in real time, and once for batches. The setting ``prices`` supplies the price.
    """

    model: str
    batch: bool
    """Whether the requests were sent in a batch."""


@frozen(kw_only=True)
class ClientStarted(Event):
    workers: int


@frozen(kw_only=True)
class ClientStopped(Event):
    failed: int
    """Requests that failed because ``stop`` timed out."""


@frozen(kw_only=True)
class JobAccepted(Event):
    """A job was stored; from now on it cannot be lost."""

    job_id: str
    model: str
    items: int


@frozen(kw_only=True)
class ShardChanged(Event):
    """A shard of a job, which is one batch at the provider, changed its state."""

    job_id: str
    shard_id: str
    batch_id: str | None
    model: str
    before: str
    after: str
    size: int
    reason: str = ""


@frozen(kw_only=True)
class BatchEnded(Event):
    """A batch of a job ended at the provider. Forecasts use its duration immediately."""

    job_id: str
    shard_id: str
    batch_id: str | None
    model: str
    kind: Kind
    size: int
    tokens: int
    """Estimated input tokens of its requests."""
    state: str
    """``completed``, ``cancelled``, ``expired`` or ``failed``."""
    ended_at: float
    """Unix seconds at which this client noticed the end."""
    seconds: float
    """Seconds from its creation to that time."""
    cancelling: float | None
    """Seconds from the request to cancel the batch until it finished; ``None`` without such a request."""
    traceparent: str | None = None
    """The span of the job's submitter in the W3C Trace Context format; ``None`` if there is none."""


@frozen(kw_only=True)
class JobProgress(Event):
    """The state of a job after a poll, or after results were stored."""

    job_id: str
    model: str
    total: int
    succeeded: int
    failed: int
    cancelled: int
    running: int
    """Items that the provider reports as done, but whose results are not stored yet."""
    cost: float
    realtime_cost: float


@frozen(kw_only=True)
class JobResultsStored(Event):
    """This process stored results of a job in one transaction, all of one route."""

    job_id: str
    model: str
    route: Route | None
    """``None`` for requests that were not sent."""
    in_realtime: bool
    """Whether the requests were sent in real time, and so already reported by :class:`RequestFinished`."""
    succeeded: int
    failed: int
    cancelled: int
    deduplicated: int
    """The number of these results that came from an identical request of the job."""
    usage: Usage
    """Tokens of the results, and of billed answers that complete no request. ``cost`` covers the same
    answers.
    """
    cost: float
    realtime_cost: float
    unpriced: int
    truncated: int = 0
    """The number of answers with this defect, see :class:`Result`; ``empty`` and ``refused`` likewise."""
    empty: int = 0
    refused: int = 0


@frozen(kw_only=True)
class JobRescued(Event):
    """A batch was withdrawn so that its requests are answered before the job's deadline."""

    job_id: str
    shard_id: str
    model: str
    requests: int
    left: float
    """Seconds until the deadline."""
    needs: float
    """Seconds that the unanswered requests need in real time, including the cancellation."""


@frozen(kw_only=True)
class JobHeld(Event):
    """A job is held while a caller in this process waits for it; reported once."""

    job_id: str
    model: str
    reason: str
    remedy: str
    """How to continue the job."""


@frozen(kw_only=True)
class JobIncident(Event):
    """A problem occurred in a job; the incident is also stored."""

    job_id: str
    shard_id: str | None
    kind: str
    detail: str
    money: float | None


@frozen(kw_only=True)
class ClockStepped(Event):
    """The wall clock was changed while jobs were running; their waits and deadlines are not affected."""

    seconds: float
    """Seconds by which the clock was set ahead; negative if it was set back."""


@frozen(kw_only=True)
class CacheUnavailable(Event):
    """The response cache cannot be written, so answers are not stored for a while; reported once per outage.

    Also reported once if an entry cannot be read, so that its request is sent again.
    """

    path: str
    reason: str


@frozen(kw_only=True)
class StoreUnavailable(Event):
    """Answers of jobs cannot be stored: they stay in memory, and jobs send nothing in real time."""

    reason: str
    unstored: int
    """Answers in memory."""


@frozen(kw_only=True)
class StoreAvailable(Event):
    """The answers held in memory were stored, and jobs continue."""

    seconds: float
    """Seconds since :class:`StoreUnavailable`."""


@frozen(kw_only=True)
class AnswersLost(Event):
    """The client stopped while answers could not be stored. The answers are lost, and may have been
    billed.
    """

    answers: int
    """Answers that arrived; ``cost`` is their cost, if prices are known."""
    cost: float
    awaited: int
    """Requests in flight whose answers had not arrived."""
    reason: str


@frozen(kw_only=True)
class JobFinished(Event):
    job_id: str
    model: str
    succeeded: int
    failed: int
    cancelled: int
    seconds: float
    """Wall-clock seconds from acceptance to the last result."""
    cost: float
    realtime_cost: float
    unpriced: int
    traceparent: str | None = None
    """See :class:`BatchEnded`."""


@frozen(kw_only=True)
class RouteChosen(Event):
    """The route of a list or a job was chosen."""

    decision_id: str
    model: str
    purpose: str | None
    requests: int
    route: Route
    first: int
    """Requests of a hybrid that are sent in real time first."""
    reason: str
    p50: float
    """Forecast seconds until the last answer (median); ``p95`` is the 95th percentile."""
    p95: float
    cost: float | None
    options: tuple[tuple[str, float, float, float | None, bool], ...]
    """Each available route: name, p50, p95, expected cost in USD, whether it met the constraints."""


@frozen(kw_only=True)
class ThresholdMoved(Event):
    """The minimum number of requests for a batch changed, for lists like the latest one."""

    model: str
    before: int | None
    """Requests; ``None`` if such lists are always sent in real time. ``after`` likewise."""
    after: int | None
    reason: str


@frozen(kw_only=True)
class RouteScored(Event):
    """The actual cost and duration of a list or job, its forecast, and the two simple routes for comparison:
    their forecast duration, and their cost for the tokens actually used.
    """

    decision_id: str
    model: str
    requests: int
    route: Route
    seconds: float
    cost: float | None
    forecast_p50: float
    forecast_p95: float
    forecast_cost: float | None
    individual_seconds: float
    """Expected seconds if everything is sent in real time."""
    individual_cost: float | None
    """USD of the same tokens in real time; ``None`` if unknown. ``batch_cost`` is their cost in a batch."""
    batch_seconds: float | None
    """Expected seconds if everything is sent as a batch; ``None`` without a Batch API, or if it was ruled
    out.
    """
    batch_cost: float | None
    met: bool | None
    """Whether the deadline was met; ``None`` without one."""


@frozen(kw_only=True)
class ForecastMoved(Event):
    """The forecast for calls or batches changed by more than a quarter.

    For calls, the change is reported only if it is statistically significant; for batches, whenever a batch
    causes it, because route choices use it immediately.
    """

    model: str
    route: Route
    """:attr:`~smartbatch.Route.INDIVIDUAL` includes calls shared by several requests."""
    before: float
    """Median seconds; ``after`` likewise."""
    after: float
    observations: int
    """Number of calls or batches behind the new forecast."""
    reason: str
