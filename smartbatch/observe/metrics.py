"""The figures of a client, gathered from its events in constant memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from attrs import asdict, define, evolve, field

from smartbatch import errors
from smartbatch._clock import RealClock
from smartbatch._fork import PerProcess, notice_fork, on_fork
from smartbatch.events import (
    BreakerChanged,
    CallFinished,
    CallStarted,
    ClientStarted,
    ClientStopped,
    CooldownStarted,
    Event,
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
    SharedLimitsRestored,
    ThresholdMoved,
)
from smartbatch.observe.families import sums_of
from smartbatch.observe.histogram import Histogram
from smartbatch.observe.metrics_snapshot import DecisionFigures, EventCounts, MetricsSnapshot, RouteFigures
from smartbatch.observe.recent_calls import CallCounts, MinuteOfCalls, RecentCalls
from smartbatch.types import NO_USAGE, Priority, Route, Usage

__all__ = ["KINDS", "BatchMetrics", "MetricsSnapshot"]

_RATE_LIMIT = errors.ErrorKind.RATE_LIMIT.value


def _failure_names() -> dict[str, str]:
    """Map every text an event may carry as its error to the one name it is counted under."""
    names = {kind.value: kind.value for kind in errors.ErrorKind}
    for cls in vars(errors).values():
        if isinstance(cls, type) and issubclass(cls, errors.SmartbatchError):
            names[cls.__name__] = names[errors.snake_case(cls.__name__)] = errors.snake_case(cls.__name__)
    return names


_NAMES = _failure_names()
KINDS = (*dict.fromkeys(_NAMES.values()), "other")
"""All names a failure is counted under: a closed set, so neither memory nor label sets grow."""

_ROUTES: dict[Route | None, str] = {None: "none"} | {route: route.value for route in Route}

_STATES = frozenset({"closed", "open", "half_open", "stopped"})
"""Breaker states counted under their own name."""

_SHARDS = frozenset(
    (
        *("planned", "uploading", "ready", "submitting", "uncertain", "provisional", "fenced", "submitted"),
        *("ended", "ingesting", "settled", "dead"),
    )
)
"""States of a job's batches counted under their own name."""

_PENDING = 256
"""Events that wait to be counted, at most for each thread that tells some more."""

_SCOPES = 1024
"""Quotas whose overlapping pauses are counted once; pauses of further ones are added up."""


_FREQUENT: dict[type[Event], Callable[[Any], tuple[Any, ...]]] = {
    RequestSubmitted: attrgetter("priority", "joined"),
    CallStarted: attrgetter("at", "model", "size", "attempt"),
    CallFinished: attrgetter("at", "model", "size", "seconds", "error", "usage", "cost"),
    RequestFinished: attrgetter(
        *("priority", "route", "usage", "cost", "ok", "cancelled"),
        *("error", "seconds", "queued", "attempts", "deduplicated", "unconfirmed_cost"),
    ),
}
"""What is put down of the events that each request has."""


@define
class _TokenSums:
    """Sums of the fields of :class:`Usage`, which would be made anew with each addition."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    unknown: bool = False

    def add(self, usage: Usage) -> None:
        """Add the tokens of a call. Most have but the first two kinds: the others are looked at only."""
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        if usage.cached_tokens:
            self.cached_tokens += usage.cached_tokens
        if usage.reasoning_tokens:
            self.reasoning_tokens += usage.reasoning_tokens
        if usage.estimated:
            self.estimated = True
        if usage.unknown:
            self.unknown = True
        if usage.cache_write_tokens:
            self.cache_write_tokens += usage.cache_write_tokens
        if usage.cache_write_1h_tokens:
            self.cache_write_1h_tokens += usage.cache_write_1h_tokens

    def sum(self) -> Usage:
        """Return the sums as one usage."""
        return Usage(**asdict(self))


@define
class _Totals:
    """Everything counted since the last reset; not thread-safe."""

    counts: EventCounts = field(factory=EventCounts)
    """But for the tokens, which are in ``used``."""
    used: _TokenSums = field(factory=_TokenSums)
    submitted: dict[Priority, int] = field(factory=lambda: dict.fromkeys(Priority, 0))
    ended: dict[Priority, int] = field(factory=lambda: dict.fromkeys(Priority, 0))
    stored: int = 0
    """Requests of jobs that were not asked in real time, and whose results were stored."""
    queue_time: Histogram = field(factory=Histogram)
    batch_time: Histogram = field(factory=Histogram)
    response_time: Histogram = field(factory=Histogram)
    busy: float = 0.0
    """Σ ends − Σ starts of calls; with ``open calls × now`` added, the seconds workers spent in calls."""
    running: float = 0.0
    """Seconds of the running periods that are over."""
    capacity: float = 0.0
    """Worker seconds of the running periods that are over."""


class BatchMetrics:
    """Counts what happens in one client; an observer, safe from any thread.

    Efficiency is ``(mean batch size / max batch size) × (batched / total)``: how full the calls were, times
    the share of requests that shared a call. ``total`` are the requests sent and ``batched`` those of them
    sent in a call of two or more, both counted once for each call. A client that never shares calls has 0.

    An event is only put down where it happens, which takes less than 1 µs and no lock. All are counted when
    figures are read, and some as soon as they are :data:`_PENDING`, so the memory does not grow. The lock is
    a leaf: no other lock is taken while it is held. A forked child starts with empty figures.

    Args:
        max_batch_size: most requests a call, for the efficiency score.
        queue_capacity: most requests that wait, for the queue's utilisation; 0 where it is unknown.
        now: monotonic seconds, of the same clock as the events'.
        prepare: called before figures are read; what it tells is counted. It must not raise.
    """

    def __init__(
        self,
        *,
        max_batch_size: int = 10,
        queue_capacity: int = 0,
        now: Callable[[], float] = RealClock.now,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        self._max_batch_size = max(1, max_batch_size)
        self._queue_capacity = queue_capacity
        self._now = now
        self._prepare = prepare
        # re-entrant, so that a signal handler or finaliser that reads figures cannot block its own thread
        self._lock = PerProcess(threading.RLock)
        self._clear()
        on_fork(self)

    def __repr__(self) -> str:
        return repr(self.snapshot()).replace("MetricsSnapshot", "BatchMetrics", 1)

    def _repr_html_(self) -> str:
        return self.snapshot()._repr_html_()

    def _clear(self) -> None:
        self._pending: deque[tuple[type[Event], tuple[Any, ...]]] = deque()
        self._totals = _Totals()
        self._recent = RecentCalls()
        self._open_calls = 0
        self._open_requests = 0
        self._workers = 0
        self._since = self._now()
        self._resets = 0
        self._before: dict[str, float] = {}  # the sums at the last reset, less what the totals began with
        self._state = "new"
        self._runs = 0  # that go on: one may be started while another still stops
        self._pauses: dict[tuple[str, str], float] = {}

    def after_fork(self) -> None:
        """In a forked child: empty figures."""
        self._clear()

    def __call__(self, event: Event) -> None:
        """Take one event. Events of unknown classes are ignored.

        Of the frequent ones only the figures are put down: what they refer to is not held.
        """
        kind = type(event)
        figures = _FREQUENT.get(kind)
        if figures is None:
            with self._lock.get():
                self._count_pending()
                self._count(event)
            return
        notice_fork()
        pending = self._pending
        pending.append((kind, figures(event)))
        # not on the main thread: a signal's handler that raises there would lose what is being counted
        if len(pending) >= _PENDING and threading.current_thread() is not threading.main_thread():
            lock = self._lock.get()
            if lock.acquire(blocking=False):  # else another thread counts them
                try:
                    self._count_pending()
                finally:
                    lock.release()

    def snapshot(self) -> MetricsSnapshot:
        """Return all figures of this moment."""
        self._prepare()
        return self.counted()

    def counted(self) -> MetricsSnapshot:
        """Return the figures of what was told: :meth:`snapshot` without what prepares it."""
        with self._lock.get():
            self._count_pending()
            return self._figures_locked()

    def sums(self) -> dict[str, float]:
        """Return the sums of what was told, as :func:`sums_of` names them; a reset leaves them."""
        with self._lock.get():
            sums = self._before.copy()
            for name, value in sums_of(self.counted()).items():
                sums[name] = sums.get(name, 0.0) + value
            return sums

    def recent(self, wall: float) -> tuple[dict[str, CallCounts], tuple[MinuteOfCalls, ...]]:
        """Return the calls of the last minute by model, and those of the last half hour by minute; a reset
        leaves them.

        Args:
            wall: Unix seconds now.
        """
        with self._lock.get():
            self._count_pending()
            now = self._now()
            return self._recent.last_minute(now), self._recent.minutes(wall, now)

    def reset(self) -> None:
        """Begin again at zero, but for :meth:`sums`. Requests not ended yet stay, as if submitted anew, and
        so does what tells how things stand now."""
        with self._lock.get():
            sums = self.sums()
            now = self._now()
            before, self._totals = self._totals, _Totals()
            for priority, count in before.submitted.items():
                # below 0 where an end was told before its submission
                self._totals.submitted[priority] = count - before.ended[priority]
            self._totals.busy = -self._open_calls * now
            self._totals.counts.limits_unshared = before.counts.limits_unshared
            self._since = now
            self._resets += 1
            begun = sums_of(self._figures_locked())
            self._before = {name: value - begun.get(name, 0.0) for name, value in sums.items()}

    def _figures_locked(self) -> MetricsSnapshot:
        """Return the figures of what is counted by now."""
        totals, counts, workers = self._totals, self._totals.counts, self._workers
        now = max(self._now(), self._since)
        period = now - self._since if self._state != "stopped" else 0.0
        busy = max(0.0, totals.busy + self._open_calls * now)
        capacity = totals.capacity + period * workers
        # two threads may report an end before its submission: who ended was submitted
        by_priority = {p.name.lower(): max(n, totals.ended[p]) for p, n in totals.submitted.items()}
        if totals.stored:
            by_priority["job"] = totals.stored
        submitted = sum(by_priority.values())
        ended = {
            how: sum(getattr(figures, how) for figures in counts.by_route.values())
            for how in ("succeeded", "failed", "cancelled")
        }
        pending = submitted - sum(ended.values())
        in_flight = min(self._open_requests, pending)
        full = (pending - in_flight) / self._queue_capacity if self._queue_capacity else 0.0
        mean = counts.sent / counts.batches if counts.batches else 0.0
        share = counts.batched / counts.sent if counts.sent else 0.0
        return MetricsSnapshot(
            elapsed=totals.running + period,
            workers=workers,
            submitted=submitted,
            waiting=pending - in_flight,
            in_flight=in_flight,
            by_priority=by_priority,
            pending_by_priority={
                p.name.lower(): max(0, n - totals.ended[p]) for p, n in totals.submitted.items()
            },
            resets=self._resets,
            mean_batch_size=mean,
            max_batch_size=self._max_batch_size,
            queue_time=totals.queue_time.stats(),
            batch_time=totals.batch_time.stats(),
            response_time=totals.response_time.stats(),
            busy_seconds=busy,
            efficiency=min(1.0, mean / self._max_batch_size) * share,
            utilisation=min(1.0, busy / capacity) if capacity > 0 else 0.0,
            queue_utilisation=min(1.0, full),
            **ended,
            **(_copied(counts) | {"usage": totals.used.sum()}),
        )

    def _count_pending(self) -> None:
        """Count what was told until now, in its order."""
        pending = self._pending
        for _ in range(len(pending)):
            try:
                kind, figures = pending.popleft()
            except IndexError:  # a signal handler on this thread has read figures meanwhile
                return
            if kind is RequestFinished:
                self._request_finished(*figures)
            elif kind is CallStarted:
                self._call_started(*figures)
            elif kind is CallFinished:
                self._call_finished(*figures)
            else:
                priority, joined = figures
                self._totals.submitted[priority] += 1
                self._totals.counts.deduplicated += joined

    def _count(self, event: Event) -> None:
        """Count one event that is not frequent."""
        counts = self._totals.counts
        match event:
            case RetryScheduled():
                counts.retries_counted += event.counted
                counts.retries_uncounted += not event.counted
                counts.possible_double_bills += event.maybe_billed
            case SharedLimitsLost():
                counts.shared_limits_lost += 1
                counts.limits_unshared += 1
            case SharedLimitsRestored():
                counts.limits_unshared = max(0, counts.limits_unshared - 1)
            case CooldownStarted():
                self._cooldown_started(event)
            case BreakerChanged():
                _add(counts.breaker_changes, event.after if event.after in _STATES else "other")
            case ParameterDropped():
                counts.parameters_dropped += 1
            case ClientStarted():
                self._change_runs(1, event.at)
                self._workers = event.workers
            case ClientStopped():
                counts.failed_at_stop += event.failed
                self._change_runs(-1, event.at)
            case JobAccepted():
                counts.jobs_accepted += 1
            case ShardChanged(before=before, after=after) if before != after:
                _add(counts.shard_changes, after if after in _SHARDS else "other")
            case JobIncident():
                counts.job_incidents += 1
            case JobFinished():
                counts.jobs_finished += 1
            case JobResultsStored():
                self._job_results_stored(event)
            case JobRescued():
                counts.decisions.rescued += 1
            case RouteChosen():
                _add(counts.decisions.chosen, event.route.value)
            case RouteScored():
                _score(counts.decisions, event)
            case ForecastMoved():
                counts.decisions.forecasts_moved += 1
            case ThresholdMoved():
                counts.decisions.thresholds_moved += 1

    def _request_finished(  # the figures of a RequestFinished, in the order in which they are put down
        self,
        priority: Priority,
        route: Route | None,
        usage: Usage,
        cost: float | None,
        ok: bool,
        cancelled: bool,
        error: str | None,
        seconds: float,
        queued: float,
        attempts: int,
        deduplicated: bool,
        unconfirmed_cost: float,
    ) -> None:
        totals, counts = self._totals, self._totals.counts
        totals.ended[priority] += 1
        figures = self._route_locked(route, usage, cost or 0.0)
        if cancelled:
            figures.cancelled += 1
        else:
            totals.response_time.record(seconds)
            figures.succeeded += ok
            figures.failed += not ok
            if not ok:
                _add(counts.request_failures, _NAMES.get(error or "unknown", "other"))
        if route is Route.LOCAL:
            counts.local += 1
        elif attempts and not deduplicated:
            totals.queue_time.record(queued)
            counts.unconfirmed_cost += unconfirmed_cost
            if cost is None and not unconfirmed_cost and (ok or usage.total_tokens):
                counts.unpriced += 1

    def _route_locked(self, route: Route | None, usage: Usage, cost: float) -> RouteFigures:
        """Add tokens and USD to the figures of a route, and return these."""
        by_route, name = self._totals.counts.by_route, _ROUTES[route]
        figures = by_route.get(name)
        if figures is None:
            figures = by_route[name] = RouteFigures()
        figures.input_tokens += usage.input_tokens
        figures.output_tokens += usage.output_tokens
        figures.cost += cost
        return figures

    def _call_started(self, at: float, model: str, size: int, attempt: int) -> None:
        counts = self._totals.counts
        self._recent.started(at, model, size)
        counts.batches += 1
        counts.sent += size
        counts.retried_batches += attempt > 0
        if size > 1:
            counts.shared_batches += 1
            counts.batched += size
        counts.largest_batch = max(counts.largest_batch, size)
        self._open_calls += 1
        self._open_requests += size
        self._totals.busy -= at

    def _call_finished(  # the figures of a CallFinished, as above
        self,
        at: float,
        model: str,
        size: int,
        seconds: float,
        error: str | None,
        usage: Usage,
        cost: float | None,
    ) -> None:
        totals, counts = self._totals, self._totals.counts
        if self._open_calls:
            self._open_calls -= 1
            totals.busy += at
        else:  # its start was not seen: the listener joined later
            totals.busy += seconds
        self._open_requests = self._open_requests - size if self._open_requests > size else 0
        totals.batch_time.record(seconds)
        if error is not None:
            counts.failed_batches += 1
            kind = _NAMES.get(error, "other")
            _add(counts.call_failures, kind)
            counts.rate_limits += kind == _RATE_LIMIT
        if usage is not NO_USAGE:
            totals.used.add(usage)
            self._recent.ended(at, model, usage)
        counts.cost += cost or 0.0

    def _cooldown_started(self, event: CooldownStarted) -> None:
        self._totals.counts.cooldowns += 1
        scope, end = (event.scope, event.model), event.at + event.seconds
        begin = max(event.at, self._pauses.get(scope, event.at))
        self._totals.counts.cooldown_seconds += max(0.0, end - begin)
        if scope in self._pauses or len(self._pauses) < _SCOPES:
            self._pauses[scope] = max(begin, end)

    def _job_results_stored(self, event: JobResultsStored) -> None:
        totals, counts = self._totals, self._totals.counts
        counts.jobs_cost += event.cost
        counts.jobs_saved += event.realtime_cost - event.cost
        counts.deduplicated += event.deduplicated
        if event.in_realtime:  # its requests told of themselves
            return
        totals.stored += event.succeeded + event.failed + event.cancelled
        counts.unpriced += event.unpriced
        totals.used.add(event.usage)
        counts.cost += event.cost
        figures = self._route_locked(event.route, event.usage, event.cost)
        figures.succeeded += event.succeeded
        figures.failed += event.failed
        figures.cancelled += event.cancelled

    def _change_runs(self, by: int, at: float) -> None:
        """A run of the client has begun, or ended; two threads may tell of its end first."""
        self._end_period(at)
        self._runs += by
        self._state, self._since = "running" if self._runs > 0 else "stopped", at
        if self._runs <= 0:
            self._totals.counts.limits_unshared = 0  # it shares none, and is told no more

    def _end_period(self, at: float) -> None:
        """End the running period, if there is one."""
        period = max(0.0, at - self._since) if self._state == "running" else 0.0
        self._totals.running += period
        self._totals.capacity += period * self._workers


def _add(table: dict[str, int], key: str) -> None:
    table[key] = table.get(key, 0) + 1


def _copied(counts: EventCounts) -> dict[str, Any]:
    """Return the counts by their names; tables are copies, so that they stay as they are."""
    copied = asdict(counts, recurse=False)
    copied["by_route"] = {name: evolve(figures) for name, figures in counts.by_route.items()}
    copied["decisions"] = evolve(counts.decisions, chosen=counts.decisions.chosen.copy())
    return {name: value.copy() if isinstance(value, dict) else value for name, value in copied.items()}


def _score(figures: DecisionFigures, event: RouteScored) -> None:
    """Add what a decision brought; a difference that is not known counts as 0."""
    figures.scored += 1
    if event.cost is not None:
        figures.saved_usd += 0.0 if event.individual_cost is None else event.individual_cost - event.cost
        figures.extra_usd += 0.0 if event.batch_cost is None else event.cost - event.batch_cost
    if event.batch_seconds is not None:
        figures.saved_seconds += event.batch_seconds - event.seconds
    figures.lost_seconds += event.seconds - event.individual_seconds
    figures.within_p50 += event.seconds <= event.forecast_p50
    figures.within_p95 += event.seconds <= event.forecast_p95
    figures.deadlines_met += event.met is True
    figures.deadlines_missed += event.met is False
