"""The table of metrics, and the figures of one moment, with their plain form for JSON.

Each metric is declared once, as an attribute: its meaning, the events it counts with the amount it takes from
each, and its family in Prometheus. Counting, snapshots and Prometheus all read :data:`METRICS`.
"""

# ruff: noqa: RUF009 - metrics are declared by functions

from __future__ import annotations

import json
from operator import attrgetter
from typing import Any, Final

from attrs import asdict, frozen, has

from smartbatch.errors import ErrorKind
from smartbatch.events import (
    BreakerChanged,
    CallFinished,
    CallStarted,
    ClientStopped,
    CooldownStarted,
    ForecastMoved,
    JobAccepted,
    JobFinished,
    JobIncident,
    JobRescued,
    JobResultsStored,
    ParameterDropped,
    RequestFinished,
    RequestSubmitted,
    RetryScheduled,
    RouteChosen,
    RouteScored,
    ShardChanged,
    SharedLimitsLost,
    ThresholdMoved,
)
from smartbatch.observe.metric import (
    PRIORITIES,
    ROUTES,
    Events,
    Family,
    Metric,
    TimeStats,
    balance,
    breaker_state,
    counter,
    documented,
    failure_kind,
    gauge,
    largest,
    metric,
    metrics_of,
    shard_state,
    times,
)
from smartbatch.types import Route, Usage
from smartbatch.views.model import DataTable, Section, View
from smartbatch.views.notebook import in_cell

_LOCAL: Final = Route.LOCAL  # looking it up takes longer than all else that counts a request

# -- events that several metrics count ---------------------------------------------------------------------

_submitted = Events(RequestSubmitted)
_started = Events(CallStarted)
_started_shared = Events(CallStarted, lambda call: call.size > 1)
_call = Events(CallFinished)
_failed_call = Events(CallFinished, attrgetter("error"))
_finished = Events(RequestFinished)
_uncancelled = Events(RequestFinished, lambda request: not request.cancelled)
_failed = Events(RequestFinished, lambda request: not request.ok and not request.cancelled)
_called = Events(  # those with a call of their own
    RequestFinished,
    lambda request: request.attempts > 0 and not request.deduplicated and request.route is not _LOCAL,
)
_retry = Events(RetryScheduled)
_results = Events(JobResultsStored)
_batch_results = Events(JobResultsStored, lambda stored: not stored.in_realtime)
"""Of requests that told nothing of themselves."""
_choice = Events(RouteScored)


def _is_unpriced(request: RequestFinished) -> bool:
    used = request.ok or request.usage.total_tokens > 0
    return request.cost is None and not request.unconfirmed_cost and used


def _priority(request: RequestSubmitted | RequestFinished) -> str:
    return PRIORITIES[request.priority]


def _route(event: RequestFinished | JobResultsStored) -> str:
    return ROUTES[event.route]


# -- families that several metrics share -------------------------------------------------------------------

_PENDING = Family("requests_pending", "Requests not ended yet, by state.", "state", "Gauge", adds_up=False)
_ENDED = Family("requests_ended", "Requests that ended, by outcome.", "outcome")
_ROUTE_REQUESTS = Family("route_requests", "Requests that ended, by route.", "route")
_ROUTE_COST = Family("route_cost_usd", "USD of requests whose price is known, by route.", "route")
_ROUTE_TOKENS = Family("route_tokens", "Tokens of requests, by route.", "route")
_RETRIES = Family("retries", "Retries, by whether they cost a try.", "tries")
_TOKENS = Family("tokens", "Tokens of all calls and batches.", "type")
_DEADLINES = Family("deadlines", "Lists with a deadline, by whether it was met.", "outcome")
_FORECASTS = Family("forecasts", "Lists that ended, by what was forecast.", "within")


@documented
@frozen
class DecisionFigures:
    """The choices of routes of a session."""

    chosen: dict[str, int] = counter(
        "Lists and jobs, by the route that was chosen.",
        Events(RouteChosen)(label=lambda choice: choice.route.value),
        named="routes",
        label="route",
    )
    forecasts_moved: int = counter("Changes of forecasts by more than a quarter.", Events(ForecastMoved)())
    thresholds_moved: int = counter(
        "Changes of the number of requests from which lists go by batch.", Events(ThresholdMoved)()
    )
    scored: int = metric(
        "Lists and jobs whose end was seen, which the figures below are about.",
        _choice(),
        family=_FORECASTS,
        value="all",
    )
    saved_usd: float = balance(
        "USD less than the same tokens individually.",
        _choice(lambda choice: _difference(choice.individual_cost, choice.cost)),
    )
    extra_usd: float = balance(
        "USD more than the same tokens by batch.",
        _choice(lambda choice: _difference(choice.cost, choice.batch_cost)),
    )
    saved_seconds: float = balance(
        "Seconds sooner than always by batch, by the forecast.",
        _choice(lambda choice: _difference(choice.batch_seconds, choice.seconds)),
    )
    lost_seconds: float = balance(
        "Seconds later than always individually, by the forecast.",
        _choice(lambda choice: choice.seconds - choice.individual_seconds),
    )
    within_p50: int = metric(
        "Lists that ended within what was forecast for half.",
        _choice(lambda choice: choice.seconds <= choice.forecast_p50),
        family=_FORECASTS,
        value="p50",
    )
    within_p95: int = metric(
        "Lists that ended within what was forecast for 95 of 100.",
        _choice(lambda choice: choice.seconds <= choice.forecast_p95),
        family=_FORECASTS,
        value="p95",
    )
    deadlines_met: int = metric(
        "Lists with a deadline that was met.",
        _choice(lambda choice: choice.met is True),
        family=_DEADLINES,
        value="met",
    )
    deadlines_missed: int = metric(
        "Lists with a deadline that was missed.",
        _choice(lambda choice: choice.met is False),
        family=_DEADLINES,
        value="missed",
    )
    rescued: int = counter(
        "Batches taken back for a deadline.", Events(JobRescued)(), named="batches_rescued"
    )


def _difference(more: float | None, less: float | None) -> float | None:
    return None if more is None or less is None else more - less


@documented
@frozen
class RouteFigures:
    """The requests that ended by one route."""

    succeeded: int = metric(
        "Requests that were answered.",
        _finished(lambda request: request.ok and not request.cancelled, label=_route),
        _batch_results("succeeded", label=_route),
        family=_ROUTE_REQUESTS,
    )
    failed: int = metric(
        "Requests that failed for good.",
        _finished(lambda request: not request.ok and not request.cancelled, label=_route),
        _batch_results("failed", label=_route),
        family=_ROUTE_REQUESTS,
    )
    cancelled: int = metric(
        "Requests that were cancelled.",
        _finished("cancelled", label=_route),
        _batch_results("cancelled", label=_route),
        family=_ROUTE_REQUESTS,
    )
    input_tokens: int = metric(
        "Tokens in, of all their calls, as far as they are known.",
        _finished("usage.input_tokens", label=_route),
        _batch_results("usage.input_tokens", label=_route),
        family=_ROUTE_TOKENS,
    )
    output_tokens: int = metric(
        "Tokens out, likewise.",
        _finished("usage.output_tokens", label=_route),
        _batch_results("usage.output_tokens", label=_route),
        family=_ROUTE_TOKENS,
    )
    cost: float = metric(
        "USD of those whose price is known.",
        _finished("cost", label=_route),
        _batch_results("cost", label=_route),
        family=_ROUTE_COST,
    )

    @property
    def requests(self) -> int:
        """Requests that ended."""
        return self.succeeded + self.failed + self.cancelled


@documented
@frozen(kw_only=True)
class MetricsSnapshot:
    """All figures of a client at one moment; they belong together. Events are counted since its start or the
    last ``reset()``.

    ``submitted == waiting + in_flight + succeeded + failed + cancelled`` always holds.

    A request of a job that was not asked in real time counts when this process stores its result, as
    submitted and as ended. The routes are ``individual``, ``shared`` (packed ones, too), ``flex``, ``batch``,
    ``cached``, ``local``, or ``none`` for requests without an answer in real time and those of jobs that were
    not sent.
    """

    # requests
    submitted: int = metric("Requests taken, joined ones included.")
    waiting: int = metric(
        "Requests in no call now: queued, gathered, or due for a retry.", family=_PENDING, value="waiting"
    )
    in_flight: int = metric("Requests in a call now.", family=_PENDING, value="in_flight")
    succeeded: int = metric("Requests that were answered.", family=_ENDED, value="succeeded")
    failed: int = metric("Requests that failed for good.", family=_ENDED, value="failed")
    cancelled: int = metric("Requests that were cancelled.", family=_ENDED, value="cancelled")
    by_priority: dict[str, int] = counter(
        "Requests taken, by the priority's name; job for those of jobs that were not asked in real time.",
        _submitted(label=_priority),
        _batch_results(
            lambda stored: stored.succeeded + stored.failed + stored.cancelled, label=lambda _: "job"
        ),
        named="requests_submitted",
        label="priority",
    )
    pending_by_priority: dict[str, int] = gauge(
        "Requests not ended yet, by priority.",
        _submitted(label=_priority),
        _finished(lambda _: -1, label=_priority),
        label="priority",
    )
    by_route: dict[str, RouteFigures] = metric("Requests that ended, by route.", start=dict)
    deduplicated: int = counter(
        "Requests that joined an identical one in flight, or in their job.",
        _submitted("joined"),
        _results("deduplicated"),
    )
    local: int = counter(
        "Requests answered without a call, by preprocessing.",
        _finished(lambda request: request.route is _LOCAL),
    )
    request_failures: dict[str, int] = counter(
        "Requests that failed for good, by kind.",
        _failed(label=lambda request: failure_kind(request.error)),
        label="kind",
    )
    failed_at_stop: int = metric(
        "Requests failed because the time-out of stop ended.", Events(ClientStopped)("failed")
    )
    queue_time: TimeStats = times(
        "Submission to the start of the call that answered.", _called("queued"), named="queue_seconds"
    )
    response_time: TimeStats = times(
        "Submission to the end, cancelled ones left out.", _uncancelled("seconds"), named="response_seconds"
    )

    # calls
    batches: int = counter("Calls started, retries included; each carries one batch.", _started())
    shared_batches: int = counter("Batches of two requests or more.", _started_shared())
    failed_batches: int = counter("Calls that failed.", _failed_call())
    retried_batches: int = counter(
        "Calls whose most urgent request had been in a call before.", _started(lambda call: call.attempt > 0)
    )
    sent: int = counter("Requests in calls, once for each call.", _started("size"))
    batched: int = counter("Requests in calls that were shared, once for each call.", _started_shared("size"))
    largest_batch: int = metric("Requests of the largest call.", _started("size"), fold=largest)
    mean_batch_size: float = metric("Requests a call.")
    max_batch_size: int = metric("The most requests a call may have.", start=lambda: 1)
    efficiency: float = gauge(
        "Mean batch size by its maximum, times the share of requests that shared a call; 0 to 1."
    )
    batch_time: TimeStats = times(
        "Time of one call, failed ones included.", _call("seconds"), named="call_seconds"
    )
    call_failures: dict[str, int] = counter(
        "Calls that failed, by kind.",
        _failed_call(label=lambda call: failure_kind(call.error)),
        label="kind",
    )
    retries_counted: int = metric(
        "Retries that cost the request one of its tries.", _retry("counted"), family=_RETRIES, value="counted"
    )
    retries_uncounted: int = metric(
        "Retries after a limit or during an outage, which cost it none.",
        _retry(lambda retry: not retry.counted),
        family=_RETRIES,
        value="uncounted",
    )
    possible_double_bills: int = counter(
        "Retries after a call that may have been carried out.", _retry("maybe_billed")
    )

    # limits and outages
    rate_limits: int = counter(
        "Calls the provider refused for its limits.",
        _failed_call(lambda call: failure_kind(call.error) == ErrorKind.RATE_LIMIT.value),
    )
    cooldowns: int = counter("Pauses begun after a limit.", Events(CooldownStarted)())
    cooldown_seconds: float = counter("Announced length of the pauses, overlaps counted once.")
    shared_limits_lost: int = counter(
        "Times the place where processes share a limit was found unavailable.", Events(SharedLimitsLost)()
    )
    limits_unshared: int = gauge("Limits that are not shared now, because that place is unavailable.")
    breaker_changes: dict[str, int] = counter(
        "Circuit breaker changes, by state entered.",
        Events(BreakerChanged)(label=lambda change: breaker_state(change.after)),
        label="state",
    )
    parameters_dropped: int = counter(
        "Parameters left out because the provider does not take them.", Events(ParameterDropped)()
    )

    # tokens and money
    usage: Usage = metric(
        "Tokens of all calls and batches, failed ones as far as is known.",
        _call("usage"),
        _batch_results("usage"),
        start=Usage,
        family=_TOKENS,
    )
    cost: float = counter(
        "USD of all calls and batches whose price is known.",
        _call("cost"),
        _batch_results("cost"),
        named="cost_usd",
    )
    unpriced: int = counter(
        "Ended requests whose calls have no known price: the cost lacks them.",
        _called(_is_unpriced),
        _batch_results("unpriced"),
    )
    unconfirmed_cost: float = counter(
        "USD that calls may have cost whose answer was lost.", _called("unconfirmed_cost")
    )

    # jobs and routes
    jobs_accepted: int = counter("Jobs stored.", Events(JobAccepted)())
    jobs_finished: int = counter("Jobs whose last result was stored by this client.", Events(JobFinished)())
    shard_changes: dict[str, int] = counter(
        "Changes of jobs' batches, by state entered.",
        Events(ShardChanged, lambda change: change.before != change.after)(
            label=lambda change: shard_state(change.after)
        ),
        label="state",
    )
    job_incidents: int = counter("Things that should not have happened to jobs.", Events(JobIncident)())
    jobs_cost: float = counter("The part of the cost that is of jobs, USD.", _results("cost"))
    jobs_saved: float = balance(
        "USD that jobs cost less than the same tokens in real time.",
        _results(lambda stored: stored.realtime_cost - stored.cost),
    )
    decisions: DecisionFigures = metric("What the choices of routes brought.", start=DecisionFigures)

    # the client
    elapsed: float = metric("Seconds the client has been running.")
    workers: int = gauge("Threads that make calls.")
    busy_seconds: float = counter("Time workers spent in calls.")
    utilisation: float = gauge("Share of the workers' time spent in calls.")
    queue_utilisation: float = gauge("Requests that wait, as a share of the queue's capacity.")
    resets: int = metric("Times the figures were reset.")

    @property
    def total(self) -> int:
        """Requests that ended: ``succeeded + failed + cancelled``."""
        return self.succeeded + self.failed + self.cancelled

    @property
    def retries(self) -> int:
        """All retries, counted or not."""
        return self.retries_counted + self.retries_uncounted

    def __repr__(self) -> str:
        states = ("waiting", "in_flight", "succeeded", "failed", "cancelled")
        counts = ", ".join(f"{getattr(self, state):,} {state.replace('_', ' ')}" for state in states)
        return f"<MetricsSnapshot {self.submitted:,} submitted: {counts}; {self.cost:.6f} USD>"

    def _repr_html_(self) -> str:
        rows = [(one.name, getattr(self, one.name), one.help) for one in metrics_of(type(self))]
        told = [(name, _words(value), help) for name, value, help in rows if value]
        rows_shown = [row for row in told if row[1]]
        table = DataTable.of("Metrics", "figure, value, meaning", rows_shown)
        return in_cell(View(repr(self).strip("<>"), (Section("metrics", "Metrics", (table,)),)))

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain dicts, numbers and strings; ``total`` and ``retries`` included."""
        plain: dict[str, Any] = asdict(self, filter=lambda attribute, _: attribute.name != "octaves")
        return plain | {"total": self.total, "retries": self.retries}

    def to_json(self, indent: int | None = None) -> str:
        """Return :meth:`as_dict` as JSON text.

        Args:
            indent: spaces a level; one line when ``None``.
        """
        return json.dumps(self.as_dict(), indent=indent)


METRICS: Final[tuple[Metric, ...]] = (
    *metrics_of(MetricsSnapshot),
    *metrics_of(RouteFigures, "by_route", "route_"),
    *metrics_of(DecisionFigures, "decisions", "routes_"),
)
"""All metrics."""


def _words(figure: Any) -> str:
    """Return a figure for a table; empty where there is nothing to tell."""
    if isinstance(figure, TimeStats):
        return f"mean {figure.mean:.3g} s, 95 of 100 in {figure.p95:.3g} s" if figure.count else ""
    if isinstance(figure, dict):
        return ", ".join(f"{name}: {_words(value)}" for name, value in figure.items() if value)
    if has(type(figure)):
        plain = asdict(figure)
        return ", ".join(
            f"{name.replace('_', ' ')} {_words(value)}" for name, value in plain.items() if value
        )
    return f"{figure:,.6g}" if isinstance(figure, float) else f"{figure:,}"
