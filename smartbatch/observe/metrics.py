"""The metrics of a client, gathered from its events in constant memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from smartbatch._clock import RealClock
from smartbatch._fork import PerProcess, notice_fork, on_fork
from smartbatch.events import CallFinished, CallStarted, Event, RequestFinished, RequestSubmitted
from smartbatch.observe.client_state import ClientState
from smartbatch.observe.families import sums_of
from smartbatch.observe.metric_values import MetricValues
from smartbatch.observe.metrics_snapshot import MetricsSnapshot
from smartbatch.observe.recent_calls import CallCounts, MinuteOfCalls

_PENDING = 256
"""Events that wait to be counted, at most for each thread that reports some more."""

_FREQUENT = frozenset({RequestSubmitted, CallStarted, CallFinished, RequestFinished})
"""The events of each request. Any other event has all that wait counted at once."""


class BatchMetrics:
    """MetricValues what happens in one client; an observer, safe from any thread.

    Efficiency is ``(mean batch size / max batch size) × (batched / total)``: how full the calls were, times
    the share of requests that shared a call. ``total`` are the requests sent and ``batched`` those of them
    sent in a call of two or more, both counted once for each call. A client that never shares calls has 0.

    The events of a request are only appended to a list where they happen, without a lock. They are counted
    together, which takes a fraction of the time, once there are many or when metrics are read. The lock is a
    leaf: no other lock is taken while it is held. A forked child starts with empty metrics.

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
        self._pending: deque[Event] = deque()
        self._state = ClientState(self._now())
        self._values = MetricValues()
        self._counting = False
        self._resets = 0
        self._before: dict[str, float] = {}  # the sums at the last reset, less what the values began with

    def after_fork(self) -> None:
        """In a forked child: empty figures."""
        self._clear()

    def __call__(self, event: Event) -> None:
        """Take one event. Events of unknown classes are ignored."""
        notice_fork()
        pending = self._pending
        pending.append(event)
        if type(event) not in _FREQUENT:
            with self._lock.get():
                self._count_pending()
            return
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
            return self._snapshot_locked()

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
            return self._state.recent.last_minute(now), self._state.recent.minutes(wall, now)

    def reset(self) -> None:
        """Begin again at zero, but for :meth:`sums`. Requests not ended yet stay, as if submitted anew, and
        so does what tells how things stand now."""
        with self._lock.get():
            sums = self.sums()
            self._values = self._values.after_reset()
            self._state.reset(self._now())
            self._resets += 1
            begun = sums_of(self._snapshot_locked())
            self._before = {name: value - begun.get(name, 0.0) for name, value in sums.items()}

    def _snapshot_locked(self) -> MetricsSnapshot:
        """Return the metrics of what is counted by now."""
        state, counted = self._state, self._values.values()
        now = max(self._now(), state.since)
        # two threads may report an end before its submission: who ended was submitted
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
        """Count the pending events."""
        if self._counting:  # a signal handler reads metrics on the thread that is counting
            return
        self._counting = True
        try:
            events = [self._pending.popleft() for _ in range(len(self._pending))]
            self._values.add(events)
            for event in events:
                if type(event) is not RequestSubmitted and type(event) is not RequestFinished:
                    self._state.update(event)
        finally:
            self._counting = False
