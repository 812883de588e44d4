"""What this process tells of itself: one record, made every few seconds by the thread that leases."""

from __future__ import annotations

import math
import os
import socket
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TypeAlias

from attrs import define, evolve, field

from smartbatch._clock import Clock
from smartbatch._version import __version__
from smartbatch.observe.metrics import BatchMetrics
from smartbatch.observe.participants import RECORD_SECONDS, Participant, RealtimeStatus, merged, with_figures

Hide: TypeAlias = Callable[[str], str]
"""Returns a name that says nothing to who reads the place."""

Look: TypeAlias = "Callable[[Hide], RealtimeStatus | None]"
"""Returns how a client's requests stand now; ``None`` once it has nothing running."""

_FAILURES = ("call_failures", "request_failures")


@define(eq=False)
class _Client:
    """A client that tells, or told before it was stopped.

    Attributes:
        metrics: its figures; held weakly, so that a client that nobody holds ends.
        look: the latest way to see its requests; ``None`` while it is stopped.
        seen: the sums at the last look.
    """

    metrics: weakref.ref[BatchMetrics]
    look: Look | None
    seen: dict[str, float] = field(factory=dict)


class Publication:
    """The record of one process at one place, safe from any thread.

    Its sums grow as long as the process lives: what a client counted stays in them when the client ends, and
    when its figures are reset.

    Args:
        member: this process, by a name that no other has.
        clock: time.

    Attributes:
        told: the sums of the last record that arrived.
    """

    def __init__(self, member: str, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # a leaf, but for that of a client's figures
        self._clients: dict[int, _Client] = {}
        self._sums: dict[str, float] = {}
        self._failed_at: dict[str, float] = {}
        self._next = math.inf
        self._own = Participant(
            member=member,
            host=socket.gethostname(),
            pid=os.getpid(),
            library=__version__,
            started=clock.wall(),
        )
        self.told: Mapping[str, float] = {}

    def add(self, metrics: BatchMetrics, look: Look) -> None:
        """Tell of a client from now on. Takes no lock of a client but that of its figures."""
        with self._lock:
            known = self._clients.get(id(metrics))
            if known is None or known.metrics() is not metrics:
                known = self._clients[id(metrics)] = _Client(weakref.ref(metrics), look)
            known.look = look
            self._next = -math.inf

    def remove(self, metrics: BatchMetrics) -> None:
        """Of a client that is stopped, tell only what it counted."""
        with self._lock:
            known = self._clients.get(id(metrics))
            if known is not None and known.metrics() is metrics and known.look is not None:
                self._add_up(known)
                known.look = None
                if not self._has_clients:
                    self._next = -math.inf

    def due(self) -> float:
        """Return when the next record is due; infinity for never."""
        return self._next

    @property
    def _has_clients(self) -> bool:
        return any(client.look is not None for client in self._clients.values())

    def tells_of(self, metrics: BatchMetrics) -> bool:
        """Whether the record has what a client with these figures counts, or counted until it was stopped."""
        with self._lock:
            known = self._clients.get(id(metrics))
            return known is not None and known.metrics() is metrics

    def record(self, counted: Mapping[str, float], hide: Hide) -> Participant:
        """Return the record that is due; after the last client's end it is the last one.

        Args:
            counted: further sums, which the thread itself counted.
        """
        with self._lock:
            looks = self._looks_locked()
            self._next = self._clock.now() + RECORD_SECONDS if self._has_clients else math.inf
        return self._record(looks, counted, hide)

    def current(self, counted: Mapping[str, float], hide: Hide) -> Participant:
        """Return the record of this moment, which is not told to others; arguments as of :meth:`record`."""
        with self._lock:
            looks = self._looks_locked()
        return self._record(looks, counted, hide)

    def _looks_locked(self) -> list[tuple[Look, BatchMetrics]]:
        """Add up what all clients counted; return how to see those that run."""
        looks = []
        for key, client in list(self._clients.items()):
            metrics = self._add_up(client)
            if metrics is None:
                del self._clients[key]
            elif client.look is not None:
                looks.append((client.look, metrics))
        return looks

    def _record(
        self, looks: list[tuple[Look, BatchMetrics]], counted: Mapping[str, float], hide: Hide
    ) -> Participant:
        now = self._clock.now()
        with self._lock:
            sums = {**self._sums, **counted}
            errors = {kind: round(now - at, 1) for kind, at in self._failed_at.items()}
        statuses = []
        for look, metrics in looks:  # takes locks of a client: not under the own one
            status = look(hide)
            if status is not None:
                recent = metrics.recent(self._clock.wall())
                statuses.append(with_figures(status, metrics.counted(), recent))
        return evolve(self._own, ended=not looks, sums=sums, errors=errors, realtime=merged(statuses))

    def put_off(self, seconds: float) -> None:
        """The place is unavailable: try again later, while there is somebody who tells."""
        with self._lock:
            self._next = self._clock.now() + seconds if self._has_clients else math.inf

    def _add_up(self, client: _Client) -> BatchMetrics | None:
        """Add what a client counted since the last look; ``None`` where it is gone."""
        metrics = client.metrics()
        if metrics is None:
            return None
        before, client.seen = client.seen, metrics.sums()
        for key, value in client.seen.items():
            more = value - before.get(key, 0.0)
            if more:
                self._sums[key] = self._sums.get(key, 0.0) + more
                family, _, kind = key.partition(":")
                if family in _FAILURES:
                    self._failed_at[kind] = self._clock.now()
        return metrics
