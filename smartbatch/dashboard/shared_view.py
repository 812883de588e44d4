"""What the processes that share limits told last, and a client of this process as it is now."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, final

from attrs import evolve, field, frozen

from smartbatch._clock import Clock
from smartbatch._version import __version__
from smartbatch.errors import SmartbatchError
from smartbatch.observe.participants import Participant, Participants
from smartbatch.sharing.limit_leases import record_with
from smartbatch.sharing.published import participants

if TYPE_CHECKING:
    from smartbatch.client import BatchingClient

FRESH = 1.0
"""Seconds for which what the processes published is not read again: they publish every five."""


@frozen
class SharedView:
    """What is known of the processes that share limits.

    Attributes:
        found: what they published, with the client of this process; no other where nothing can be read.
        problem: why nothing could be read, for people; ``None`` where it could.
        is_off: whether nothing is shared, by the settings.
    """

    found: Participants = field(factory=lambda: Participants(place=""))
    problem: str | None = None
    is_off: bool = False


@frozen
class KindFailures:
    """Failures of one kind, of all processes that ever shared.

    Attributes:
        kind: see :class:`~smartbatch.ErrorKind`.
        calls: that failed.
        requests: that failed for good.
        age: seconds since the last, as far as processes still tell.
    """

    kind: str
    calls: float
    requests: float
    age: float | None


def failures_of(shared: SharedView) -> list[KindFailures]:
    """Return failed calls and requests by kind, the most frequent first."""
    counts: dict[str, list[float]] = {}
    for at, family in enumerate(("call_failures", "request_failures")):
        for name, count in shared.found.sums.items():
            known, _, kind = name.partition(":")
            if known == family:
                counts.setdefault(kind, [0.0, 0.0])[at] += count
    ages: dict[str, float] = {}
    for one in shared.found.processes:
        for kind, age in one.errors.items():
            ages[kind] = min(ages.get(kind, one.age + age), one.age + age)
    found = [KindFailures(kind, both[0], both[1], ages.get(kind)) for kind, both in counts.items()]
    return sorted(found, key=lambda each: -each.calls - each.requests)


@final
class SharedReader:
    """Reads what the processes published, once for all who look at the same time.

    Args:
        address: as the setting ``shared``.
        client: of this process; it is shown as it is now, and also where it shares nothing.
    """

    def __init__(self, address: str, client: BatchingClient | None, clock: Clock) -> None:
        self._address = address
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at = clock.now() - FRESH
        self._view = SharedView()

    def view(self) -> SharedView:
        """Return what is known, at most :data:`FRESH` seconds old."""
        with self._lock:
            if self._clock.now() - self._read_at >= FRESH:
                self._view, self._read_at = self._read(), self._clock.now()
            return self._view

    def _read(self) -> SharedView:
        view = SharedView(is_off=self._address == "off")
        if not view.is_off:
            try:
                view = SharedView(participants(self._address))
            except SmartbatchError as error:
                view = SharedView(problem=error.message)
        return view if self._client is None else evolve(view, found=_with_client(view.found, self._client))


def _with_client(found: Participants, client: BatchingClient) -> Participants:
    """Return the processes with the client as it is now: with all of its process, where that told of it."""
    own = record_with(client.metrics)
    if own is not None and any(one.member == own.member for one in found.processes):
        now = tuple(own if one.member == own.member else one for one in found.processes)
        return evolve(found, processes=now)
    alone = Participant(
        member="client",
        host=socket.gethostname(),
        pid=os.getpid(),
        library=__version__,
        started=0.0,
        sums=client.metrics.sums(),
        realtime=client.status,
    )
    return evolve(found, processes=(alone, *found.processes), sums=_added(found.sums, alone.sums))


def _added(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {*one, *other}}
