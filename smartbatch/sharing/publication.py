"""The record that this process publishes about itself every few seconds, on the thread that makes leases."""

from __future__ import annotations

import math
import os
import socket
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TypeAlias

from attrs import define, evolve, field

from smartbatch._clock import Clock, RealClock
from smartbatch._version import __version__
from smartbatch.config import BatchingConfig
from smartbatch.errors import ConfigError
from smartbatch.observe.metrics import BatchMetrics
from smartbatch.observe.participants import (
    RECORD_SECONDS,
    Participant,
    Participants,
    RealtimeStatus,
    merged,
    participant_of,
    with_figures,
)
from smartbatch.sharing.addresses import full_address, open_back_end

Hide: TypeAlias = Callable[[str], str]
"""Returns a name that reveals nothing to readers of the back end."""

Look: TypeAlias = "Callable[[Hide], RealtimeStatus | None]"
"""Returns the current state of a client's requests; ``None`` if nothing is running."""

_FAILURES = ("call_failures", "request_failures")


@define(eq=False)
class _Client:
    metrics: weakref.ref[BatchMetrics]  # weak, so that an unused client is collected
    look: Look | None  # reads its state; None while it is stopped
    seen: dict[str, float] = field(factory=dict)  # its sums when they were last added


class Publication:
    """The record of one process at one back end. Thread-safe.

    Its sums never decrease while the process is alive: they include what a client counted even after the
    client is stopped or its figures are reset.
    """

    def __init__(self, member: str, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # while it is held, only the locks of clients' figures are taken
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
        self.published_sums: Mapping[str, float] = {}  # those of the last stored record

    def add(self, metrics: BatchMetrics, look: Look) -> None:
        """Start publishing a client. Takes only the lock of its figures."""
        with self._lock:
            known = self._clients.get(id(metrics))
            if known is None or known.metrics() is not metrics:
                known = self._clients[id(metrics)] = _Client(weakref.ref(metrics), look)
            known.look = look
            self._next = -math.inf

    def remove(self, metrics: BatchMetrics) -> None:
        """Publish only the sums of a stopped client from now on."""
        with self._lock:
            known = self._clients.get(id(metrics))
            if known is not None and known.metrics() is metrics and known.look is not None:
                self._add_up(known)
                known.look = None
                if not self._has_clients:
                    self._next = -math.inf

    def due(self) -> float:
        """Return when the next record is due; infinity if none is."""
        return self._next

    @property
    def _has_clients(self) -> bool:
        return any(client.look is not None for client in self._clients.values())

    def includes(self, metrics: BatchMetrics) -> bool:
        with self._lock:
            known = self._clients.get(id(metrics))
            return known is not None and known.metrics() is metrics

    def record(self, counted: Mapping[str, float], hide: Hide) -> Participant:
        """Return the record that is due; the final one if the last client has stopped.

        Args:
            counted: additional sums, counted by the publishing thread.
        """
        with self._lock:
            looks = self._looks_locked()
            self._next = self._clock.now() + RECORD_SECONDS if self._has_clients else math.inf
        return self._record(looks, counted, hide)

    def current(self, counted: Mapping[str, float], hide: Hide) -> Participant:
        with self._lock:
            looks = self._looks_locked()
        return self._record(looks, counted, hide)

    def _looks_locked(self) -> list[tuple[Look, BatchMetrics]]:
        """Update the sums of all clients; return the functions that read the state of running clients."""
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
        for look, metrics in looks:  # outside the lock, because it takes locks of a client
            status = look(hide)
            if status is not None:
                recent = metrics.recent(self._clock.wall())
                statuses.append(with_figures(status, metrics.counted(), recent))
        return evolve(self._own, ended=not looks, sums=sums, errors=errors, realtime=merged(statuses))

    def put_off(self, seconds: float) -> None:
        """Postpone the next record, because the back end is unavailable."""
        with self._lock:
            self._next = self._clock.now() + seconds if self._has_clients else math.inf

    def _add_up(self, client: _Client) -> BatchMetrics | None:
        """Add what a client has counted since the last call; return ``None`` if the client is gone."""
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


def participants(shared: str | None = None) -> Participants:
    """Return the processes that share limits, as last published by each of them, and the totals of all
    processes, including those that have ended.

    Works in any process, even one without a client, so one worker of a web server can report on all of them.
    No connection is kept open.

    Args:
        shared: where limits are shared, as in the setting ``shared``; ``None`` uses the setting.

    Raises:
        ConfigError: nothing is shared (``"off"``), the address is invalid, or a package is missing.
        SmartbatchError: the back end is unavailable, or is used by another version.
    """
    address = BatchingConfig.load().shared if shared is None else shared
    if address == "off":
        raise ConfigError(
            "shared = 'off': processes that share nothing publish nothing; set 'auto' or an address"
        )
    back_end = open_back_end(full_address(address), RealClock.now)
    try:
        back_end.prepare()
        found = back_end.published()
    finally:
        back_end.close()
    read = [participant_of(text, age) for age, text in found.records]
    known = tuple(one for one in read if one is not None)
    return Participants(
        place=back_end.place, processes=known, sums=found.sums, unreadable=len(read) - len(known)
    )
