"""Webhook events about the batches of a run: in time, late, lost, repeated, early, or about other batches."""

from __future__ import annotations

import heapq
import itertools
import math
from random import Random

from smartbatch.emulator.batches.backend import BatchBackend
from smartbatch.jobs.store import SqlStore
from tests.faults.simulation.clock import SimClock
from tests.faults.simulation.scenario import HOUR, MINUTE, Plan

NOTICE_SECONDS = 1.0  # from an event's arrival until a supervisor notices it


class Webhooks:
    """Sends the events of one run.

    Attributes:
        arrived: number of events that were stored; ``repeated`` counts those with a known id.
    """

    def __init__(self, plan: Plan, backend: BatchBackend, clock: SimClock) -> None:
        self._rng = Random(f"webhooks {plan.flavour} {plan.seed}")
        self._backend = backend
        self._clock = clock
        self._planned: set[str] = set()
        self._numbers = itertools.count(1)
        self._due: list[tuple[float, str, str]] = []  # moment, id of the event, id of the batch
        self.arrived = self.repeated = 0

    @property
    def next_at(self) -> float:
        return self._due[0][0] if self._due else math.inf

    def plan(self) -> None:
        """Decide which events the new batches of the backend cause, and when they arrive."""
        now = self._clock.now()
        for batch in list(self._backend._unfinished):
            if batch.id in self._planned:
                continue
            self._planned.add(batch.id)
            if self._rng.random() < 0.5:
                self._add(now, batch.id)
            if self._rng.random() < 0.1:
                self._add(now, f"{batch.id}-of-others")
            if math.isfinite(batch.ended_at) and self._rng.random() < 0.9:
                late = self._rng.choice((0.0, 0.0, 0.0, 2.0, 10 * MINUTE, HOUR))
                self._add(batch.ended_at + late, batch.id)

    def _add(self, at: float, batch_id: str) -> None:
        event_id = f"event-{next(self._numbers)}"
        heapq.heappush(self._due, (at, event_id, batch_id))
        if self._rng.random() < 0.3:
            heapq.heappush(self._due, (at + self._rng.uniform(0, HOUR), event_id, batch_id))

    def deliver(self, store: SqlStore) -> bool:
        """Store the events that have arrived; return whether one names a running batch."""
        arrived = False
        while self.next_at <= self._clock.now():
            _, event_id, batch_id = heapq.heappop(self._due)
            new = store.webhook_events.add(event_id, batch_id, at=self._clock.wall())
            self.arrived += new
            self.repeated += not new
            arrived = True
        return arrived and bool(store.webhook_events.named_jobs(0))
