"""The metrics of a client, counted from its events in constant memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, Literal

from attrs import define, field, frozen

from smartbatch._clock import RealClock
from smartbatch._fork import PerProcess, notice_fork, on_fork
from smartbatch.events import (
    CallFinished,
    CallStarted,
    ClientStarted,
    ClientStopped,
    CooldownStarted,
    Event,
    RequestFinished,
    RequestSubmitted,
    SharedLimitsLost,
    SharedLimitsRestored,
)
from smartbatch.observe.families import sums_of
from smartbatch.observe.metric import PRIORITIES, Histogram, Metric
from smartbatch.observe.metrics_snapshot import METRICS, DecisionFigures, MetricsSnapshot, RouteFigures
from smartbatch.observe.participants import CallCounts, MinuteOfCalls, RecentCalls
from smartbatch.types import NO_USAGE

_MAX_QUOTAS = 1024
"""Maximum number of quotas for which overlapping pauses count once; for other quotas, pauses are summed."""


@define
class ClientState:
    """Figures that are not sums over events. Not thread-safe."""

    since: float
    calls: int = 0
    requests: int = 0
    workers: int = 0
    unshared: int = 0
    cooldown_seconds: float = 0.0
    recent: RecentCalls = field(factory=RecentCalls)
    _phase: Literal["new", "running", "stopped"] = "new"
    _runs: int = 0  # active runs; one may start while another is still stopping
    _busy: float = 0.0  # Σ ends - Σ starts of calls since the last reset
    _running: float = 0.0  # seconds of finished running periods since the last reset
    _capacity: float = 0.0  # worker seconds of these periods
    _pauses: dict[tuple[str, str], float] = field(factory=dict)

    def update(self, event: Event) -> None:
        """Update the state. Events of single requests are ignored: :class:`MetricValues` counts them.

        Events from two threads may arrive out of order.
        """
        match event:
            case CallStarted():
                self.calls += 1
                self.requests += event.size
                self._busy -= event.at
                self.recent.started(event.at, event.model, event.size)
            case CallFinished():
                self._call_finished(event)
            case CooldownStarted():
                self._cooldown_started(event)
            case SharedLimitsLost():
                self.unshared += 1
            case SharedLimitsRestored():
                self.unshared = max(0, self.unshared - 1)
            case ClientStarted():
                self._change_runs(1, event.at)
                self.workers = event.workers
            case ClientStopped():
                self._change_runs(-1, event.at)

    def reset(self, now: float) -> None:
        """Reset totals; calls in progress remain."""
        self.since = now
        self._busy = -self.calls * now
        self._running = self._capacity = self.cooldown_seconds = 0.0

    def busy_seconds(self, now: float) -> float:
        return max(0.0, self._busy + self.calls * now)

    def elapsed(self, now: float) -> float:
        return self._running + self._period(now)

    def utilisation(self, now: float) -> float:
        capacity = self._capacity + self._period(now) * self.workers
        return min(1.0, self.busy_seconds(now) / capacity) if capacity > 0 else 0.0

    def _period(self, now: float) -> float:
        return max(0.0, now - self.since) if self._phase != "stopped" else 0.0

    def _call_finished(self, event: CallFinished) -> None:
        if self.calls:
            self.calls -= 1
            self._busy += event.at
        else:  # the call started before this listener was registered
            self._busy += event.seconds
        self.requests = max(0, self.requests - event.size)
        if event.usage is not NO_USAGE:
            self.recent.ended(event.at, event.model, event.usage)

    def _cooldown_started(self, event: CooldownStarted) -> None:
        scope, end = (event.scope, event.model), event.at + event.seconds
        begin = max(event.at, self._pauses.get(scope, event.at))
        self.cooldown_seconds += max(0.0, end - begin)
        if scope in self._pauses or len(self._pauses) < _MAX_QUOTAS:
            self._pauses[scope] = max(begin, end)

    def _change_runs(self, by: int, at: float) -> None:
        if self._phase == "running":
            self._running += self._period(at)
            self._capacity += self._period(at) * self.workers
        self._runs += by
        self._phase, self.since = "running" if self._runs > 0 else "stopped", at
        if self._runs <= 0:
            self.unshared = 0  # a stopped client shares no limits


_COUNTED = {metric.name: metric for metric in METRICS if metric.counts}


@frozen
class _MetricRow:
    metric: Metric
    amount: Callable[[Any], Any] | None


@frozen
class _EventGroup:
    only: Callable[[Any], Any] | None
    by_label: dict[Callable[[Any], str] | None, list[_MetricRow]] = field(factory=dict)


def _groups() -> dict[type[Event], list[_EventGroup]]:
    found: dict[type[Event], dict[Any, _EventGroup]] = {}
    for metric in _COUNTED.values():
        for count in metric.counts:
            group = found.setdefault(count.event, {}).setdefault(count.only, _EventGroup(count.only))
            group.by_label.setdefault(count.label, []).append(_MetricRow(metric, count.amount))
    return {event: list(groups.values()) for event, groups in found.items()}


_GROUPS = _groups()


def _parts(events: Sequence[Event], label: Callable[[Any], str] | None) -> dict[str, Sequence[Event]]:
    if label is None:
        return {"": events}
    parts: dict[str, Any] = {}
    for event, key in zip(events, map(label, events), strict=True):
        parts.setdefault(key, []).append(event)
    return parts


class MetricValues:
    """Values of metrics since the last reset. Not thread-safe.

    Events are added in groups, which is many times faster than adding them one by one.
    """

    def __init__(self) -> None:
        self._values = {
            name: {} if metric.is_table else {"": metric.start()} for name, metric in _COUNTED.items()
        }
        self._values["by_priority"] = dict.fromkeys(PRIORITIES.values(), 0)
        self._values["pending_by_priority"] = self._values["by_priority"].copy()

    def after_reset(self) -> MetricValues:
        """Return new values that contain the unfinished requests, as if they had just been submitted."""
        fresh = MetricValues()
        for name in ("by_priority", "pending_by_priority"):
            # below 0 if an end was reported first
            fresh._values[name] = self._values["pending_by_priority"].copy()
        return fresh

    def add_events(self, events: Iterable[Event]) -> None:
        """Count events. Unknown classes are ignored."""
        by_class: dict[type[Event], list[Event]] = {}
        for event in events:
            by_class.setdefault(type(event), []).append(event)
        for kind, alike in by_class.items():
            for group in _GROUPS.get(kind, ()):
                selected = alike if group.only is None else [*filter(group.only, alike)]
                if selected:
                    self._add_group(group, selected)

    def _add_group(self, group: _EventGroup, events: Sequence[Event]) -> None:
        for by, rows in group.by_label.items():
            for label, part in _parts(events, by).items():
                for row in rows:
                    self._add(row, label, part)

    def _add(self, row: _MetricRow, label: str, events: Sequence[Event]) -> None:
        amounts: Iterable[Any] = repeat(1, len(events)) if row.amount is None else map(row.amount, events)
        metric = row.metric
        values = self._values[metric.name]
        values[label] = metric.fold(values[label] if label in values else metric.start(), amounts)

    def values(self) -> dict[str, Any]:
        """Return the values by snapshot attribute; tables are copies."""
        whole: dict[str, Any] = {}
        parts: dict[str, dict[str, Any]] = {"by_route": {}, "decisions": {}}
        for name, metric in _COUNTED.items():
            part, _, attribute = name.rpartition(".")
            value = self._values[name] if metric.is_table else self._values[name][""]
            (parts[part] if part else whole)[attribute] = _copied(value)
        columns = parts["by_route"]
        whole["by_route"] = {
            route: RouteFigures(**{name: column[route] for name, column in columns.items()})
            for route in columns["cost"]
        }
        return whole | {"decisions": DecisionFigures(**parts["decisions"])}


def _copied(value: Any) -> Any:
    if isinstance(value, Histogram):
        return value.stats()
    return value.copy() if isinstance(value, dict) else value


_MAX_PENDING_EVENTS = 256
_FREQUENT = frozenset({RequestSubmitted, CallStarted, CallFinished, RequestFinished})
"""Events that occur for each request. After any other event, all pending events are counted immediately."""


class BatchMetrics:
    """Counts the events of one client; an observer, safe from any thread.

    Efficiency is ``(mean batch size / max batch size) × (batched / total)``: how full the calls were, times
    the share of requests that shared a call. ``total`` is the number of requests sent and ``batched`` the
    number of those sent in a call of two or more, both counted once per call. A client that never shares
    calls has 0.

    Events of requests are appended to a list without a lock. They are counted in groups, when many are
    pending or when metrics are read, which is faster than counting them one by one. The lock is a leaf: no
    other lock is taken while it is held. A forked child starts with empty metrics.

    Args:
        max_batch_size: maximum requests per call, for the efficiency score.
        queue_capacity: maximum waiting requests, for the queue's utilisation; 0 if unknown.
        now: returns monotonic seconds, from the clock of the events.
        prepare: called before figures are read; it may report events and must not raise.
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
        # re-entrant, so that a signal handler or finalizer that reads figures cannot block its own thread
        self._lock = PerProcess(threading.RLock)
        self._clear()
        on_fork(self)

    def __repr__(self) -> str:
        return repr(self.snapshot()).replace("MetricsSnapshot", "BatchMetrics", 1)

    def _repr_html_(self) -> str:
        return self.snapshot()._repr_html_()

    def _clear(self) -> None:
        self._pending: deque[Event] = deque()
        self._state = ClientState(self._now())
        self._values = MetricValues()
        self._counting = False
        self._resets = 0
        self._before: dict[str, float] = {}  # sums at the last reset, minus the values after it

    def after_fork(self) -> None:
        """In a forked child, clear the figures."""
        self._clear()

    def __call__(self, event: Event) -> None:
        """Count one event. Unknown classes are ignored."""
        notice_fork()
        pending = self._pending
        pending.append(event)
        if type(event) not in _FREQUENT:
            with self._lock.get():
                self._count_pending()
            return
        # not on the main thread, where an exception raised by a signal handler would lose the events being
        # counted
        if len(pending) >= _MAX_PENDING_EVENTS and threading.current_thread() is not threading.main_thread():
            lock = self._lock.get()
            if lock.acquire(blocking=False):  # otherwise another thread counts them
                try:
                    self._count_pending()
                finally:
                    lock.release()

    def snapshot(self) -> MetricsSnapshot:
        """Return all current figures."""
        self._prepare()
        return self.counted()

    def counted(self) -> MetricsSnapshot:
        """Return the figures counted so far: :meth:`snapshot` without its preparation."""
        with self._lock.get():
            self._count_pending()
            return self._snapshot_locked()

    def sums(self) -> dict[str, float]:
        """Return the sums, with the keys of :func:`sums_of`; a reset does not change them."""
        with self._lock.get():
            sums = self._before.copy()
            for name, value in sums_of(self.counted()).items():
                sums[name] = sums.get(name, 0.0) + value
            return sums

    def recent(self, wall: float) -> tuple[dict[str, CallCounts], tuple[MinuteOfCalls, ...]]:
        """Return the calls of the last minute by model, and those of the last half hour by minute. A reset
        does not change them.

        Args:
            wall: Unix seconds now.
        """
        with self._lock.get():
            self._count_pending()
            now = self._now()
            return self._state.recent.last_minute(now), self._state.recent.minutes(wall, now)

    def reset(self) -> None:
        """Set all figures except :meth:`sums` to zero. Unfinished requests remain, as if they had just been
        submitted, and so do the figures that describe the current state.
        """
        with self._lock.get():
            sums = self.sums()
            self._values = self._values.after_reset()
            self._state.reset(self._now())
            self._resets += 1
            begun = sums_of(self._snapshot_locked())
            self._before = {name: value - begun.get(name, 0.0) for name, value in sums.items()}

    def _snapshot_locked(self) -> MetricsSnapshot:
        state, counted = self._state, self._values.values()
        now = max(self._now(), state.since)
        # ends may be reported before submissions, but every ended request was submitted
        pending = counted["pending_by_priority"]
        for priority, count in pending.items():
            counted["by_priority"][priority] += max(0, -count)
            pending[priority] = max(0, count)
        submitted = sum(counted["by_priority"].values())
        ended = {
            outcome: sum(getattr(route, outcome) for route in counted["by_route"].values())
            for outcome in ("succeeded", "failed", "cancelled")
        }
        unfinished = submitted - sum(ended.values())
        in_flight = min(state.requests, unfinished)
        waiting = unfinished - in_flight
        batches, sent = counted["batches"], counted["sent"]
        mean = sent / batches if batches else 0.0
        share = counted["batched"] / sent if sent else 0.0
        return MetricsSnapshot(
            submitted=submitted,
            waiting=waiting,
            in_flight=in_flight,
            mean_batch_size=mean,
            max_batch_size=self._max_batch_size,
            efficiency=min(1.0, mean / self._max_batch_size) * share,
            cooldown_seconds=state.cooldown_seconds,
            limits_unshared=state.unshared,
            elapsed=state.elapsed(now),
            workers=state.workers,
            busy_seconds=state.busy_seconds(now),
            utilisation=state.utilisation(now),
            queue_utilisation=min(1.0, waiting / self._queue_capacity) if self._queue_capacity else 0.0,
            resets=self._resets,
            **ended,
            **counted,
        )

    def _count_pending(self) -> None:
        if self._counting:  # a signal handler interrupted this thread while it was counting
            return
        self._counting = True
        try:
            events = [self._pending.popleft() for _ in range(len(self._pending))]
            self._values.add_events(events)
            for event in events:
                if type(event) is not RequestSubmitted and type(event) is not RequestFinished:
                    self._state.update(event)
        finally:
            self._counting = False
