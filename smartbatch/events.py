"""Events: what happened, as frozen classes made by keyword. Metrics, logs, progress and observers use them.

Events contain ids, counts, seconds, tokens and USD; never a key, a prompt or an answer. Observers are called
after locks are released, on the thread that caused the event. An event about a request is passed on in the
context variables of its submitter; variables that an observer sets when a call starts apply to the call.
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
"""Any callable that accepts an event. Exceptions it raises are logged and have no other effect."""


@frozen(kw_only=True)
class Event:
    """Root of all events, which are values.

    Attributes:
        at: monotonic seconds of the client's clock.
    """

    at: float

    @property
    def name(self) -> str:
        """The event's name in logs and metrics, such as ``call_finished``."""
        return snake_case(type(self).__name__)

    def fields(self) -> dict[str, Any]:
        """The event as plain values, fit for JSON, without objects of the user and without text from
        providers.
        """
        return asdict(self, value_serializer=_plain, filter=lambda each, _: each.name not in _LEFT_OUT)


def _plain(_event: Any, _field: Any, value: Any) -> Any:
    if isinstance(value, Priority):
        return value.name.lower()
    return value.value if isinstance(value, Enum) else value


_LEFT_OUT = frozenset({"context", "requests", "message"})


@frozen(kw_only=True)
class RequestEvent(Event):
    """Root of the events about one request.

    Attributes:
        context: the object its caller passed.
    """

    request_id: str
    purpose: str | None = None
    context: Any = field(default=None, eq=False, repr=brief)


@frozen(kw_only=True, eq=False)
class CalledRequest:
    """One of the requests of a call.

    Attributes:
        context: the object its caller passed.
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
    """Whether it joined an identical request in flight, so that no separate call follows."""


@frozen(kw_only=True)
class CallStarted(Event):
    batch_id: str
    model: str
    size: int
    attempt: int
    in_flight: int
    waited: float
    """Seconds from the submission (or due time) of the oldest request to the start."""
    kind: Kind = Kind.GENERATE
    own_code: bool = False
    """Whether it is a function or provider of the user's, which may report its calls itself."""
    requests: tuple[CalledRequest, ...] = field(default=(), eq=False, repr=False)
    """The requests of the call that still have a waiter."""


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
    """As in :class:`CallStarted`."""


@frozen(kw_only=True)
class RetryScheduled(RequestEvent):
    model: str
    kind: str
    attempt: int
    delay: float
    counted: bool
    """False if the cause was the provider's state (a limit, an outage), which uses up no retry."""
    maybe_billed: bool = False
    """Whether the failed call may have been executed, so that the retry may be billed a second time."""


@frozen(kw_only=True)
class RequestFinished(RequestEvent):
    priority: Priority
    model: str
    ok: bool
    cancelled: bool
    error: str | None
    """The error's :class:`~smartbatch.errors.ErrorKind` value, or its class name if no call failed."""
    attempts: int
    queued: float
    seconds: float
    """Seconds from submission to the end."""
    usage: Usage
    cost: float | None
    route: Route | None
    deduplicated: bool
    of_job: bool = False
    """Whether it is a request of a job, whose result is counted when it is stored."""
    message: str | None = field(default=None, repr=False)
    """The error's message, possibly a provider's: shortened, without keys, and not in :meth:`fields`."""
    unconfirmed_cost: float = 0.0
    """USD that it may have cost in addition, see :class:`~smartbatch.Result`."""


@frozen(kw_only=True)
class CooldownStarted(Event):
    scope: str
    model: str
    seconds: float
    consecutive: int


@frozen(kw_only=True)
class SharedLimitsLost(Event):
    """The place where processes share a limit cannot be used; reported once, until it works again."""

    place: str
    scope: str
    model: str
    reason: str
    processes: int
    """Processes that shared the limit when last seen, including this one; 0 if it was never seen."""


@frozen(kw_only=True)
class SharedLimitsRestored(Event):
    """The limit is shared again."""

    place: str
    scope: str
    model: str
    seconds: float
    """Since :class:`SharedLimitsLost`."""


@frozen(kw_only=True)
class LongWait(Event):
    """The known limits block all calls for more than a minute; reported once, until that time has passed."""

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
    """Packing was suspended for a model, because too many requests had to be sent again, or resumed."""

    model: str
    enabled: bool
    reason: str


@frozen(kw_only=True)
class FlexChanged(Event):
    """A model's slower tier was suspended, because it refused requests, or is tried again."""

    model: str
    enabled: bool
    reason: str


@frozen(kw_only=True)
class PauseChanged(Event):
    """A user paused a model or ended its pause: this process stops or resumes sending requests to it."""

    model: str
    """``provider:*`` for every model of a provider."""
    paused: bool
    reason: str | None
    by: str | None
    """The user who paused it; ``None`` if the pause ended."""


@frozen(kw_only=True)
class LimitChanged(Event):
    """A user set or removed limits of a model; without them the settings apply."""

    model: str
    requests_per_minute: float | None
    tokens_per_minute: float | None
    by: str | None
    """The user who set them; ``None`` if they were removed."""


@frozen(kw_only=True)
class ParameterDropped(RequestEvent):
    """A parameter that the provider does not accept was omitted."""

    field: str
    reason: str


@frozen(kw_only=True)
class ClientStarted(Event):
    workers: int


@frozen(kw_only=True)
class ClientStopped(Event):
    failed: int
    """Requests that were failed because ``stop`` timed out."""


@frozen(kw_only=True)
class JobAccepted(Event):
    """A job is stored; from now on it cannot be lost."""

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
    """A batch of a job has ended at the provider. Forecasts learn from its duration at once."""

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
    """The part of these since its cancellation was requested; ``None`` if it was not."""
    traceparent: str | None = None
    """The span of the job's submitter in W3C Trace Context form; ``None`` if there is none."""


@frozen(kw_only=True)
class JobProgress(Event):
    """The state of a job after a poll or after results were stored."""

    job_id: str
    model: str
    total: int
    succeeded: int
    failed: int
    cancelled: int
    running: int
    """Items the provider reports as done whose results are not stored yet."""
    cost: float
    realtime_cost: float


@frozen(kw_only=True)
class JobResultsStored(Event):
    """This process stored results of a job: those of one transaction and route."""

    job_id: str
    model: str
    route: Route | None
    """``None`` for requests that were not sent."""
    in_realtime: bool
    """Whether they were sent in real time, and already reported by :class:`RequestFinished`."""
    succeeded: int
    failed: int
    cancelled: int
    deduplicated: int
    """The part of these that got the answer of an equal request of the job."""
    usage: Usage
    """Tokens of the results, and of billed answers that complete no request; ``cost`` likewise."""
    cost: float
    realtime_cost: float
    unpriced: int
    truncated: int = 0
    """Answers with this defect, see :class:`Result`; ``empty`` and ``refused`` likewise."""
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
    """A job is held while a caller of this process waits for it; sent once."""

    job_id: str
    model: str
    reason: str
    remedy: str
    """How to continue it."""


@frozen(kw_only=True)
class JobIncident(Event):
    """Something went wrong; the incident is also stored."""

    job_id: str
    shard_id: str | None
    kind: str
    detail: str
    money: float | None


@frozen(kw_only=True)
class ClockStepped(Event):
    """The wall clock was set while jobs were running; their waits and deadlines are not affected."""

    seconds: float
    """Seconds it was set ahead; negative if it was set back."""


@frozen(kw_only=True)
class CacheUnavailable(Event):
    """The response cache could not be written, so answers are not stored for a while; reported once per
    outage.

    Or an entry cannot be read, so that its request is sent again; reported once.
    """

    path: str
    reason: str


@frozen(kw_only=True)
class StoreUnavailable(Event):
    """Answers of jobs cannot be stored: they stay in memory, and jobs send nothing in real time."""

    reason: str
    unstored: int
    """Answers in memory now."""


@frozen(kw_only=True)
class StoreAvailable(Event):
    """The answers held in memory are stored, and jobs continue."""

    seconds: float
    """Since :class:`StoreUnavailable`."""


@frozen(kw_only=True)
class AnswersLost(Event):
    """The client stopped while answers could not be stored: they may have been billed, and are lost."""

    answers: int
    """Answers that arrived; ``cost`` is theirs, as far as prices are known."""
    cost: float
    awaited: int
    """Requests under way whose answers were still to arrive."""
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
    """As in :class:`BatchEnded`."""


@frozen(kw_only=True)
class RouteChosen(Event):
    """The route of a list or a job was chosen."""

    decision_id: str
    model: str
    purpose: str | None
    requests: int
    route: Route
    first: int
    """Requests of a hybrid that are sent in real time at once."""
    reason: str
    p50: float
    """Forecast seconds until the last answer; ``p95`` likewise."""
    p95: float
    cost: float | None
    options: tuple[tuple[str, float, float, float | None, bool], ...]
    """Every open route: name, p50, p95, expected cost in USD, whether it met the constraints."""


@frozen(kw_only=True)
class ThresholdMoved(Event):
    """The number of requests from which lists like the latest one are sent as a batch has changed."""

    model: str
    before: int | None
    """Requests; ``None`` if lists of any length are sent in real time. ``after`` likewise."""
    after: int | None
    reason: str


@frozen(kw_only=True)
class RouteScored(Event):
    """The actual cost and duration of a decision, next to its forecast and the two plain routes: their
    duration as forecast, their cost for the tokens actually used.
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
    """Expected seconds with always-individual."""
    individual_cost: float | None
    """USD of the same tokens in real time; ``None`` if unknown. ``batch_cost`` likewise."""
    batch_seconds: float | None
    """Expected seconds with always-batch; ``None`` if there is no Batch API, or it was ruled out."""
    batch_cost: float | None
    met: bool | None
    """Whether the deadline was met; ``None`` without one."""


@frozen(kw_only=True)
class ForecastMoved(Event):
    """The forecast of calls or batches changed by more than a quarter.

    For calls it is reported when chance does not explain it; for batches with each batch that changes it,
    since the choice of a route follows it at once.
    """

    model: str
    route: Route
    """:attr:`~smartbatch.Route.INDIVIDUAL` includes calls that several requests share."""
    before: float
    """Median seconds; ``after`` likewise."""
    after: float
    observations: int
    """Number of calls or batches behind the new forecast."""
    reason: str
