"""What is under way in a client, and how long it has been running."""

from __future__ import annotations

from typing import Literal

from attrs import define, field

from smartbatch.events import (
    CallFinished,
    CallStarted,
    ClientStarted,
    ClientStopped,
    CooldownStarted,
    Event,
    SharedLimitsLost,
    SharedLimitsRestored,
)
from smartbatch.observe.recent_calls import RecentCalls
from smartbatch.types import NO_USAGE

_SCOPES = 1024
"""Maximum number of quotas for which overlapping pauses count once; pauses of further quotas are summed."""


@define
class ClientState:
    """What depends on several events at once, not only on the sum of each; not thread-safe.

    Attributes:
        since: monotonic seconds of the last reset, start or stop.
        calls: under way.
        requests: in these calls.
        workers: threads that make calls.
        unshared: limits that are not shared now.
        cooldown_seconds: length of the pauses since the last reset, overlaps counted once.
        recent: calls of the last half hour.
    """

    since: float
    calls: int = 0
    requests: int = 0
    workers: int = 0
    unshared: int = 0
    cooldown_seconds: float = 0.0
    recent: RecentCalls = field(factory=RecentCalls)
    _phase: Literal["new", "running", "stopped"] = "new"
    _runs: int = 0  # that go on: one may be started while another still stops
    _busy: float = 0.0  # Σ ends - Σ starts of calls since the last reset
    _running: float = 0.0  # seconds of the running periods that are over, since the last reset
    _capacity: float = 0.0  # worker seconds of these
    _pauses: dict[tuple[str, str], float] = field(factory=dict)

    def update(self, event: Event) -> None:
        """Update the state from an event of other than one request, all of which the table counts. Events of
        two threads may arrive out of order."""
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
        """Begin again with what accumulates; what is under way stays."""
        self.since = now
        self._busy = -self.calls * now
        self._running = self._capacity = self.cooldown_seconds = 0.0

    def busy_seconds(self, now: float) -> float:
        """Return the seconds that workers have spent in calls since the last reset."""
        return max(0.0, self._busy + self.calls * now)

    def elapsed(self, now: float) -> float:
        """Return the seconds for which the client has been running since the last reset."""
        return self._running + self._period(now)

    def utilisation(self, now: float) -> float:
        """Return the share of the workers' time that was spent in calls."""
        capacity = self._capacity + self._period(now) * self.workers
        return min(1.0, self.busy_seconds(now) / capacity) if capacity > 0 else 0.0

    def _period(self, now: float) -> float:
        return max(0.0, now - self.since) if self._phase != "stopped" else 0.0

    def _call_finished(self, event: CallFinished) -> None:
        if self.calls:
            self.calls -= 1
            self._busy += event.at
        else:  # its start was not seen: the listener joined later
            self._busy += event.seconds
        self.requests = max(0, self.requests - event.size)
        if event.usage is not NO_USAGE:
            self.recent.ended(event.at, event.model, event.usage)

    def _cooldown_started(self, event: CooldownStarted) -> None:
        scope, end = (event.scope, event.model), event.at + event.seconds
        begin = max(event.at, self._pauses.get(scope, event.at))
        self.cooldown_seconds += max(0.0, end - begin)
        if scope in self._pauses or len(self._pauses) < _SCOPES:
            self._pauses[scope] = max(begin, end)

    def _change_runs(self, by: int, at: float) -> None:
        """A run of the client has begun, or ended."""
        if self._phase == "running":
            self._running += self._period(at)
            self._capacity += self._period(at) * self.workers
        self._runs += by
        self._phase, self.since = "running" if self._runs > 0 else "stopped", at
        if self._runs <= 0:
            self.unshared = 0  # it shares none, and hears no more of any
