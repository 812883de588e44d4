"""All metrics, and a snapshot of their figures, which can be converted to JSON.

Each metric is declared once, as an attribute: its meaning, the events it counts with their amounts, and its
family in Prometheus. Counting, snapshots and Prometheus all read :data:`METRICS`.
"""

# ruff: noqa: RUF009 - metrics are declared by functions

from __future__ import annotations

import json
from operator import attrgetter
from typing import Any, Final

from attrs import asdict, frozen, has

from smartbatch._words import duration, known_money
from smartbatch.errors import ErrorKind
from smartbatch.events import (
    BreakerChanged,
    CachingStopped,
    CallFinished,
    CallStarted,
    ClientStopped,
    CooldownStarted,
    ExplicitCacheEnded,
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

_LOCAL: Final = Route.LOCAL  # looking it up takes longer than counting a request

# -- events that several metrics count ---------------------------------------------------------------------

_submitted = Events(RequestSubmitted)
_started = Events(CallStarted)
_started_shared = Events(CallStarted, lambda call: call.size > 1)
_call = Events(CallFinished)
_cache_end = Events(ExplicitCacheEnded)
_failed_call = Events(CallFinished, attrgetter("error"))
_finished = Events(RequestFinished)
_uncancelled = Events(RequestFinished, lambda request: not request.cancelled)
_failed = Events(RequestFinished, lambda request: not request.ok and not request.cancelled)
_called = Events(  # sent in a call, not answered by the call of an identical request
    RequestFinished,
    lambda request: request.attempts > 0 and not request.deduplicated and request.route is not _LOCAL,
)
_retry = Events(RetryScheduled)
_results = Events(JobResultsStored)
_batch_results = Events(JobResultsStored, lambda stored: not stored.in_realtime)
"""Results of requests that have no separate events."""
_choice = Events(RouteScored)


def _is_unpriced(request: RequestFinished) -> bool:
    used = request.ok or request.usage.total_tokens > 0
    return request.cost is None and not request.unconfirmed_cost and used


def _priority(request: RequestSubmitted | RequestFinished) -> str:
    return PRIORITIES[request.priority]


def _route(event: RequestFinished | JobResultsStored) -> str:
    return ROUTES[event.route]


# -- families that several metrics share -------------------------------------------------------------------

_PENDING = Family("requests_pending", "Unfinished requests, by state.", "state", "Gauge", adds_up=False)
_ENDED = Family("requests_ended", "Finished requests, by outcome.", "outcome")
_ROUTE_REQUESTS = Family("route_requests", "Finished requests, by route.", "route")
_ROUTE_COST = Family("route_cost_usd", "USD of requests with a known price, by route.", "route")
_ROUTE_TOKENS = Family("route_tokens", "Tokens of requests, by route.", "route")
_RETRIES = Family("retries", "Retries, by whether they count as an attempt.", "tries")
_TOKENS = Family("tokens", "Tokens of all calls and batches.", "type")
_DEADLINES = Family("deadlines", "Lists with a deadline, by whether it was met.", "outcome")
_FORECASTS = Family("forecasts", "Finished lists, by the forecast they met.", "within")


@documented
@frozen
class DecisionFigures:
    """Routes chosen by a client, and their outcome."""

    chosen: dict[str, int] = counter(
        "Lists and jobs, by the chosen route.",
        Events(RouteChosen)(label=lambda choice: choice.route.value),
        named="routes",
        label="route",
    )
    forecasts_moved: int = counter("Forecast changes of more than 25 %.", Events(ForecastMoved)())
    thresholds_moved: int = counter(
        "Changes in the number of requests from which a batch pays off.", Events(ThresholdMoved)()
    )
    scored: int = metric(
        "Finished lists and jobs, the basis of the figures below.", _choice(), family=_FORECASTS, value="all"
    )
    saved_usd: float = balance(
        "USD saved compared with the same tokens sent individually.",
        _choice(lambda choice: _difference(choice.individual_cost, choice.cost)),
    )
    extra_usd: float = balance(
        "USD spent in excess of the cost of the same tokens in a batch.",
        _choice(lambda choice: _difference(choice.cost, choice.batch_cost)),
    )
    saved_seconds: float = balance(
        "Seconds saved compared with the forecast of a batch.",
        _choice(lambda choice: _difference(choice.batch_seconds, choice.seconds)),
    )
    lost_seconds: float = balance(
        "Seconds lost compared with the forecast of individual calls.",
        _choice(lambda choice: choice.seconds - choice.individual_seconds),
    )
    within_p50: int = metric(
        "Lists that finished within the median forecast.",
        _choice(lambda choice: choice.seconds <= choice.forecast_p50),
        family=_FORECASTS,
        value="p50",
    )
    within_p95: int = metric(
        "Lists that finished within the 95 % forecast.",
        _choice(lambda choice: choice.seconds <= choice.forecast_p95),
        family=_FORECASTS,
        value="p95",
    )
    deadlines_met: int = metric(
        "Lists that met their deadline.",
        _choice(lambda choice: choice.met is True),
        family=_DEADLINES,
        value="met",
    )
    deadlines_missed: int = metric(
        "Lists that missed their deadline.",
        _choice(lambda choice: choice.met is False),
        family=_DEADLINES,
        value="missed",
    )
    rescued: int = counter(
        "Batches withdrawn to meet a deadline.", Events(JobRescued)(), named="batches_rescued"
    )


def _difference(more: float | None, less: float | None) -> float | None:
    return None if more is None or less is None else more - less


@documented
@frozen
class RouteFigures:
    """The finished requests of one route."""

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
        "Input tokens of all their calls, if known.",
        _finished("usage.input_tokens", label=_route),
        _batch_results("usage.input_tokens", label=_route),
        family=_ROUTE_TOKENS,
    )
    output_tokens: int = metric(
        "Output tokens of all their calls, if known.",
        _finished("usage.output_tokens", label=_route),
        _batch_results("usage.output_tokens", label=_route),
        family=_ROUTE_TOKENS,
    )
    cost: float = metric(
        "USD of requests with a known price.",
        _finished("cost", label=_route),
        _batch_results("cost", label=_route),
        family=_ROUTE_COST,
    )

    @property
    def requests(self) -> int:
        """Finished requests."""
        return self.succeeded + self.failed + self.cancelled


@documented
@frozen(kw_only=True)
class MetricsSnapshot:
    """A consistent snapshot of all figures of a client. Events are counted since its start or the last
    ``reset()``.

    ``submitted == waiting + in_flight + succeeded + failed + cancelled`` always holds.

    A job's request that was not sent in real time is counted, both as submitted and as finished, when this
    process stores its result. The routes are ``individual``, ``shared`` (including packed calls), ``flex``,
    ``batch``, ``cached``, ``local``, or ``none`` for requests that were never sent or not answered in real
    time.
    """

    # requests
    submitted: int = metric("Requests accepted, including joined ones.")
    waiting: int = metric(
        "Requests that are queued, gathered, or due for a retry.", family=_PENDING, value="waiting"
    )
    in_flight: int = metric("Requests in a call.", family=_PENDING, value="in_flight")
    succeeded: int = metric("Requests that were answered.", family=_ENDED, value="succeeded")
    failed: int = metric("Requests that failed for good.", family=_ENDED, value="failed")
    cancelled: int = metric("Requests that were cancelled.", family=_ENDED, value="cancelled")
    by_priority: dict[str, int] = counter(
        "Requests accepted, by priority; job: requests of jobs that were not sent in real time.",
        _submitted(label=_priority),
        _batch_results(
            lambda stored: stored.succeeded + stored.failed + stored.cancelled, label=lambda _: "job"
        ),
        named="requests_submitted",
        label="priority",
    )
    pending_by_priority: dict[str, int] = gauge(
        "Unfinished requests, by priority.",
        _submitted(label=_priority),
        _finished(lambda _: -1, label=_priority),
        label="priority",
    )
    by_route: dict[str, RouteFigures] = metric("Finished requests, by route.", start=dict)
    deduplicated: int = counter(
        "Requests that joined an identical one, in flight or in their job.",
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
        "Requests that failed because stop() timed out.", Events(ClientStopped)("failed")
    )
    queue_time: TimeStats = times(
        "Time from submission to the start of the call that answered.",
        _called("queued"),
        named="queue_seconds",
    )
    response_time: TimeStats = times(
        "Time from submission to the end, excluding cancelled requests.",
        _uncancelled("seconds"),
        named="response_seconds",
    )

    # calls
    batches: int = counter("Calls started, including retries; each call sends one batch.", _started())
    shared_batches: int = counter("Batches of two requests or more.", _started_shared())
    failed_batches: int = counter("Calls that failed.", _failed_call())
    retried_batches: int = counter(
        "Calls whose most urgent request was retried.", _started(lambda call: call.attempt > 0)
    )
    sent: int = counter("Requests in calls, counted once per call.", _started("size"))
    batched: int = counter("Requests in shared calls, counted once per call.", _started_shared("size"))
    largest_batch: int = metric("Requests in the largest call.", _started("size"), fold=largest)
    mean_batch_size: float = metric("Requests per call.")
    max_batch_size: int = metric("Maximum requests per call.", start=lambda: 1)
    efficiency: float = gauge(
        "Mean batch size divided by its maximum, times the share of requests in shared calls; 0 to 1."
    )
    batch_time: TimeStats = times(
        "Duration of a call, including failed calls.", _call("seconds"), named="call_seconds"
    )
    call_failures: dict[str, int] = counter(
        "Calls that failed, by kind.", _failed_call(label=lambda call: failure_kind(call.error)), label="kind"
    )
    retries_counted: int = metric(
        "Retries that count as one of the request's attempts.",
        _retry("counted"),
        family=_RETRIES,
        value="counted",
    )
    retries_uncounted: int = metric(
        "Retries after a limit or during an outage, which do not count as attempts.",
        _retry(lambda retry: not retry.counted),
        family=_RETRIES,
        value="uncounted",
    )
    possible_double_bills: int = counter(
        "Retries after a call that may have been executed.", _retry("maybe_billed")
    )

    # limits and outages
    rate_limits: int = counter(
        "Calls that the provider refused because of its limits.",
        _failed_call(lambda call: failure_kind(call.error) == ErrorKind.RATE_LIMIT.value),
    )
    cooldowns: int = counter("Pauses after a limit.", Events(CooldownStarted)())
    cooldown_seconds: float = counter("Announced length of the pauses, with overlaps counted once.")
    shared_limits_lost: int = counter(
        "Number of times the store of a shared limit became unavailable.", Events(SharedLimitsLost)()
    )
    limits_unshared: int = gauge("Limits that are not shared because their store is unavailable.")
    breaker_changes: dict[str, int] = counter(
        "Circuit breaker changes, by new state.",
        Events(BreakerChanged)(label=lambda change: breaker_state(change.after)),
        label="state",
    )
    caching_stopped: int = counter(
        "Shared prefixes of prompts that are no longer marked for the provider's cache.",
        Events(CachingStopped)(),
    )
    parameters_dropped: int = counter(
        "Parameters omitted because the provider does not accept them.", Events(ParameterDropped)()
    )

    # tokens and money
    usage: Usage = metric(
        "Tokens of all calls and batches, including failed ones if known, and of explicit caches.",
        _call("usage"),
        _cache_end("usage"),
        _batch_results("usage"),
        start=Usage,
        family=_TOKENS,
    )
    cost: float = counter(
        "USD of all calls and batches with a known price, and of explicit caches.",
        _call("cost"),
        _cache_end("cost"),
        _batch_results("cost"),
        named="cost_usd",
    )
    unpriced: int = counter(
        "Finished requests whose calls have no known price; not included in the cost.",
        _called(_is_unpriced),
        _batch_results("unpriced"),
    )
    unconfirmed_cost: float = counter(
        "USD that calls with a lost answer may have cost.", _called("unconfirmed_cost")
    )

    # jobs and routes
    jobs_accepted: int = counter("Jobs stored.", Events(JobAccepted)())
    jobs_finished: int = counter("Jobs finished by this client.", Events(JobFinished)())
    shard_changes: dict[str, int] = counter(
        "State changes of jobs' batches, by new state.",
        Events(ShardChanged, lambda change: change.before != change.after)(
            label=lambda change: shard_state(change.after)
        ),
        label="state",
    )
    job_incidents: int = counter("Incidents of jobs.", Events(JobIncident)())
    jobs_cost: float = counter("Part of the cost incurred by jobs, in USD.", _results("cost"))
    jobs_saved: float = balance(
        "USD that jobs saved compared with the same tokens in real time.",
        _results(lambda stored: stored.realtime_cost - stored.cost),
    )
    decisions: DecisionFigures = metric("Outcomes of the chosen routes.", start=DecisionFigures)

    # the client
    elapsed: float = metric("Seconds the client has been running.")
    workers: int = gauge("Threads that make calls.")
    busy_seconds: float = counter("Time that workers spent in calls.")
    utilisation: float = gauge("Share of the workers' time spent in calls.")
    queue_utilisation: float = gauge("Waiting requests as a share of the queue's capacity.")
    resets: int = metric("Number of resets.")

    @property
    def total(self) -> int:
        """Finished requests: ``succeeded + failed + cancelled``."""
        return self.succeeded + self.failed + self.cancelled

    @property
    def retries(self) -> int:
        """All retries, counted or not."""
        return self.retries_counted + self.retries_uncounted

    def __repr__(self) -> str:
        states = ("waiting", "in_flight", "succeeded", "failed", "cancelled")
        counts = ", ".join(f"{getattr(self, state):,} {state.replace('_', ' ')}" for state in states)
        cost = known_money(self.cost, self.unpriced)
        return f"<MetricsSnapshot {self.submitted:,} submitted: {counts}; cost {cost}>"

    def _repr_html_(self) -> str:
        from smartbatch.views.html import notebook

        # imported late, because only a notebook needs it
        from smartbatch.views.model import DataTable, Section, View

        rows = [(one.name, getattr(self, one.name), one.help) for one in metrics_of(type(self))]
        shown = [(name, _words(value), help) for name, value, help in rows if value]
        rows_shown = [row for row in shown if row[1]]
        table = DataTable.of("Metrics", "figure, value, meaning", rows_shown)
        return notebook(View(repr(self).strip("<>"), (Section("metrics", "Metrics", (table,)),)))

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain dicts, numbers and strings, including ``total`` and ``retries``."""
        plain: dict[str, Any] = asdict(self, filter=lambda attribute, _: attribute.name != "octaves")
        return plain | {"total": self.total, "retries": self.retries}

    def to_json(self, indent: int | None = None) -> str:
        """Return :meth:`as_dict` as JSON text.

        Args:
            indent: spaces per level; ``None`` for a single line.
        """
        return json.dumps(self.as_dict(), indent=indent)


METRICS: Final[tuple[Metric, ...]] = (
    *metrics_of(MetricsSnapshot),
    *metrics_of(RouteFigures, "by_route", "route_"),
    *metrics_of(DecisionFigures, "decisions", "routes_"),
)


def _words(figure: Any) -> str:
    if isinstance(figure, TimeStats):
        return f"mean {duration(figure.mean)}, p95 {duration(figure.p95)}" if figure.count else ""
    if isinstance(figure, dict):
        return ", ".join(f"{name}: {_words(value)}" for name, value in figure.items() if value)
    if has(type(figure)):
        plain = asdict(figure)
        return ", ".join(
            f"{name.replace('_', ' ')} {_words(value)}" for name, value in plain.items() if value
        )
    return f"{figure:,.6g}" if isinstance(figure, float) else f"{figure:,}"
