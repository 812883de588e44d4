"""Events: what happened, as frozen classes made by keyword. Metrics, logs, progress and observers use them.

Events carry ids, counts, seconds, tokens and USD; never a key, a prompt or an answer.
Observers are called after locks are released, on the thread that caused the event. What concerns a request is
told under the context variables of whoever submitted it; those that an observer sets when a call starts hold
for the call.
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
"""Anything that takes an event. An exception it raises is logged and has no other effect."""


@frozen(kw_only=True)
class Event:
    """Root of all events, which are values.

    Attributes:
        at: monotonic seconds of the client's clock.
    """

    at: float

    @property
    def name(self) -> str:
        """The event's name as logs and metrics spell it, such as ``call_finished``."""
        return snake_case(type(self).__name__)

    def fields(self) -> dict[str, Any]:
        """The event as plain values, fit for JSON; without the objects that are the user's own, and without
        the texts of providers."""
        return asdict(self, value_serializer=_plain, filter=lambda each, _: each.name not in _LEFT_OUT)


def _plain(_event: Any, _field: Any, value: Any) -> Any:
    if isinstance(value, Priority):
        return value.name.lower()
    return value.value if isinstance(value, Enum) else value


_LEFT_OUT = frozenset({"context", "requests", "message"})


@frozen(kw_only=True)
class RequestEvent(Event):
    """Root of the events that concern one request.

    Attributes:
        context: the object that its caller gave it.
    """

    request_id: str
    purpose: str | None = None
    context: Any = field(default=None, eq=False, repr=brief)


@frozen(kw_only=True, eq=False)
class CalledRequest:
    """One of the requests that a call is made for.

    Attributes:
        context: the object that its caller gave it.
        submitted: monotonic seconds.
        variables: the context variables of whoever submitted it.
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
    """True when it joined an identical request in flight and no call of its own follows."""


@frozen(kw_only=True)
class CallStarted(Event):
    batch_id: str
    model: str
    size: int
    attempt: int
    in_flight: int
    waited: float
    """Seconds from the oldest request's submission (or due time) to the start."""
    kind: Kind = Kind.GENERATE
    own_code: bool = False
    """True for a function or a provider of the user's, which may tell of its calls itself."""
    requests: tuple[CalledRequest, ...] = field(default=(), eq=False, repr=False)
    """Those it is made for and that somebody waits for."""


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
    """True when the answer was lost on its way, so the call may have been billed all the same."""
    route: Route | None = None
    """``None`` for a call that sends no prompts, but runs a function of the user's."""
    requests: tuple[CalledRequest, ...] = field(default=(), eq=False, repr=False)
    """As in :class:`CallStarted`."""


@frozen(kw_only=True)
class RetryScheduled(RequestEvent):
    model: str
    kind: str
    attempt: int
    delay: float
    counted: bool
    """False when the failure was the provider's state (a limit, an outage) and did not use up a retry."""
    maybe_billed: bool = False
    """True when the failed call may have been carried out, so that the retry may be paid a second time."""


@frozen(kw_only=True)
class RequestFinished(RequestEvent):
    priority: Priority
    model: str
    ok: bool
    cancelled: bool
    error: str | None
    """The error's :class:`~smartbatch.errors.ErrorKind` value, or its class name where no call failed."""
    attempts: int
    queued: float
    seconds: float
    """Seconds from submission to the end."""
    usage: Usage
    cost: float | None
    route: Route | None
    deduplicated: bool
    of_job: bool = False
    """True for a request of a job, whose result is counted where it is stored."""
    message: str | None = field(default=None, repr=False)
    """The error's own text, which may be a provider's: without keys, cut, and no part of :meth:`fields`."""
    unconfirmed_cost: float = 0.0
    """USD that it may have cost besides, see :class:`~smartbatch.Result`."""


@frozen(kw_only=True)
class CooldownStarted(Event):
    scope: str
    model: str
    seconds: float
    consecutive: int


@frozen(kw_only=True)
class SharedLimitsLost(Event):
    """The place where processes share a limit cannot be used; told once, until it can be again."""

    place: str
    scope: str
    model: str
    reason: str
    processes: int
    """Those that shared the limit when it was seen last, this one included; 0 where none was ever seen."""


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
    """What is known of the limits lets no call go for more than a minute; once, until that is over."""

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
    """Seconds until the next probe may go, where the breaker opened."""


@frozen(kw_only=True)
class PackingChanged(Event):
    """Packing was suspended for a model, as too many requests had to be sent again; or it was resumed."""

    model: str
    enabled: bool
    reason: str


@frozen(kw_only=True)
class FlexChanged(Event):
    """A model's slower tier was suspended, as it refused requests; or it is tried again."""

    model: str
    enabled: bool
    reason: str


@frozen(kw_only=True)
class PauseChanged(Event):
    """Somebody paused a model, or ended its pause: this process sends nothing new to it, or does again."""

    model: str
    """``provider:*`` for every model of a provider."""
    paused: bool
    reason: str | None
    by: str | None
    """Who paused it; ``None`` where the pause ended."""


@frozen(kw_only=True)
class LimitChanged(Event):
    """Somebody set limits of a model, or took them back; those of the settings hold where there are none."""

    model: str
    requests_per_minute: float | None
    tokens_per_minute: float | None
    by: str | None
    """Who set them; ``None`` where they were taken back."""


@frozen(kw_only=True)
class ParameterDropped(RequestEvent):
    """A parameter the provider does not take was left out."""

    field: str
    reason: str


@frozen(kw_only=True)
class ClientStarted(Event):
    workers: int


@frozen(kw_only=True)
class ClientStopped(Event):
    failed: int
    """Requests that had to be failed because the time-out of ``stop`` ended."""


@frozen(kw_only=True)
class JobAccepted(Event):
    """A job is in the store; from now on it cannot be lost."""

    job_id: str
    model: str
    items: int


@frozen(kw_only=True)
class ShardChanged(Event):
    """A shard of a job, which is one batch at the provider, moved to another state."""

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
    """A batch of a job has ended at the provider. What it took is learned from at once."""

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
    """Unix seconds at which this client saw the end."""
    seconds: float
    """From its creation to that moment."""
    cancelling: float | None
    """Of these, the seconds since it was asked to cancel; ``None`` where it was not."""
    traceparent: str | None = None
    """The span of whoever submitted the job, as W3C Trace Context writes it; ``None`` for none."""


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
    """Items the provider says it has done but whose results are not stored yet."""
    cost: float
    realtime_cost: float


@frozen(kw_only=True)
class JobResultsStored(Event):
    """Results of a job were stored by this process: those of one transaction that came by one route."""

    job_id: str
    model: str
    route: Route | None
    """``None`` for requests that were not sent."""
    in_realtime: bool
    """True for requests in real time, of which :class:`RequestFinished` told before."""
    succeeded: int
    failed: int
    cancelled: int
    deduplicated: int
    """The part of these that got the answer of an equal request of the job."""
    usage: Usage
    """Tokens of the results, and of answers that were billed and end no request; ``cost`` likewise."""
    cost: float
    realtime_cost: float
    unpriced: int
    truncated: int = 0
    """Answers with this defect, see :class:`Result`; ``empty`` and ``refused`` likewise."""
    empty: int = 0
    refused: int = 0


@frozen(kw_only=True)
class JobRescued(Event):
    """A batch was taken back so that its requests are answered before the job's deadline."""

    job_id: str
    shard_id: str
    model: str
    requests: int
    left: float
    """Seconds to the deadline."""
    needs: float
    """Seconds that all that is not answered needs in real time, with the cancelling."""


@frozen(kw_only=True)
class JobHeld(Event):
    """A job is held, and a caller of this process waits for it; sent once."""

    job_id: str
    model: str
    reason: str
    remedy: str
    """What lets it continue."""


@frozen(kw_only=True)
class JobIncident(Event):
    """Something that should not have happened; it is kept in the store as well."""

    job_id: str
    shard_id: str | None
    kind: str
    detail: str
    money: float | None


@frozen(kw_only=True)
class ClockStepped(Event):
    """The wall clock was set while jobs were carried on; their waits and deadlines go on as they were."""

    seconds: float
    """For how many it was set ahead; negative where it was set back."""


@frozen(kw_only=True)
class CacheUnavailable(Event):
    """The response cache could not be written: answers are not kept for a while. Told once, until one is.

    Or one of its entries cannot be read, so that its request is sent again. Told once.
    """

    path: str
    reason: str


@frozen(kw_only=True)
class StoreUnavailable(Event):
    """Answers of jobs cannot be stored: they are kept in memory, and no job asks anything in real time."""

    reason: str
    unstored: int
    """Answers that are kept in memory, by now."""


@frozen(kw_only=True)
class StoreAvailable(Event):
    """The answers that were kept in memory are stored, and jobs go on."""

    seconds: float
    """Since :class:`StoreUnavailable`."""


@frozen(kw_only=True)
class AnswersLost(Event):
    """The client ended while answers could not be stored: they may be paid for, and are not there."""

    answers: int
    """Those that came; ``cost`` is theirs, as far as prices are known."""
    cost: float
    awaited: int
    """Requests under way whose answers would have come."""
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
    """A list, or a job, was given its route."""

    decision_id: str
    model: str
    purpose: str | None
    requests: int
    route: Route
    first: int
    """Requests of a hybrid that go individually at once."""
    reason: str
    p50: float
    """Seconds until the last answer, forecast; ``p95`` likewise."""
    p95: float
    cost: float | None
    options: tuple[tuple[str, float, float, float | None, bool], ...]
    """Every open route: name, p50, p95, expected cost in USD, whether it met the constraints."""


@frozen(kw_only=True)
class ThresholdMoved(Event):
    """The number of requests from which lists like the latest one go by batch has changed."""

    model: str
    before: int | None
    """Requests; ``None`` for a list of any length that goes in real time. ``after`` likewise."""
    after: int | None
    reason: str


@frozen(kw_only=True)
class RouteScored(Event):
    """What a decision really took, with its forecast, and with what the two plain routes would have: their
    seconds by the forecast, their cost by their prices for the tokens that were really used."""

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
    """What always-individual was expected to take."""
    individual_cost: float | None
    """USD of the same tokens in real time; ``None`` where it is unknown. ``batch_cost`` likewise."""
    batch_seconds: float | None
    """What always-batch was expected to take; ``None`` where there is no Batch API, or it was left out."""
    batch_cost: float | None
    met: bool | None
    """Whether the deadline was met; ``None`` without one."""


@frozen(kw_only=True)
class ForecastMoved(Event):
    """The forecast of calls or batches changed by more than a quarter.

    That of calls is told when chance does not explain it; that of batches with each batch that changes it, as
    the choice of a route follows it at once.
    """

    model: str
    route: Route
    """:attr:`~smartbatch.Route.INDIVIDUAL` also stands for calls that several requests share."""
    before: float
    """Seconds that half of them stay within; ``after`` likewise."""
    after: float
    observations: int
    """How many the new forecast rests on."""
    reason: str
