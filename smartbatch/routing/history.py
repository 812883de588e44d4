"""Records how long calls, batches and cancellations take and how many tokens they use, and forecasts from it.

A topic is a subject of forecasts: the calls of a route to a model, the batches of a model, or a provider's
cancellations. The forecasts include observations of other processes, which are read from the store at most
once a minute. If there is no store, or if it fails or hangs, only observations of this process are used.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from attrs import define, field

from smartbatch._clock import Clock
from smartbatch._fork import PerProcess
from smartbatch.core.forecast import (
    DOCUMENTED_TIMES,
    ForecastAt,
    ForecastChange,
    Forecaster,
    Observation,
    Prior,
)
from smartbatch.core.prefixes.batch_reads import BatchReads
from smartbatch.core.preparation.calibration import Calibration
from smartbatch.errors import ErrorKind
from smartbatch.events import BatchEnded, CallFinished, ForecastMoved
from smartbatch.jobs import summary_records
from smartbatch.jobs.batch_caching import reads_of
from smartbatch.jobs.threads import TimedReads
from smartbatch.observe import logs
from smartbatch.types import Kind, Route

if TYPE_CHECKING:
    from smartbatch.jobs.store import SqlStore

_LATE = ErrorKind.TIMEOUT.value
CALL_PRIOR = Prior.of(2.0, 10.0, growth=0.3)
"""A call that generates text. In the Azure 2023 conversation trace, half of the answers have up to 129
tokens, and 95 % up to 451. At an assumed 60 tokens per second, these take 2 and 8 seconds. A call with
eight requests is assumed to take twice as long.
"""
VECTORS_PRIOR = Prior.of(0.3, 1.0, growth=0.3)
"""A call that returns vectors. Nothing is generated, so the call is assumed to take little more than a round
trip.
"""
PACKED_PRIOR = Prior.of(2.0, 10.0, growth=0.9)
"""A call with several prompts packed into one. Their answers are generated one after another."""
FLEX_PRIOR = Prior.of(6.0, 30.0)
"""A call on the half-price tier. OpenAI documents slower answers without a figure; three times the latency is
assumed.
"""
BATCH_PRIOR = Prior(DOCUMENTED_TIMES, fade=86_400.0, together=0.03, only_when_sure=False)
"""The time from the creation of a batch until it finishes. Batches are rare, so each one changes the
forecast.
"""
CANCEL_PRIOR = Prior.of(60.0, 300.0, fade=7 * 86_400.0)
"""The time from the cancellation of a batch until it finishes. OpenAI documents at most ten minutes,
which 99 % of batches meet with this prior. Other providers document nothing.
"""

REFRESH_SECONDS = 60.0
MAX_SAMPLE_CALLS = 64
"""Maximum calls of a topic that are written to the store at a time. They are spread evenly over all calls
since the previous write.
"""
STORE_WAIT_SECONDS = 5.0
MAX_LOADED_ROWS = 300  # the store keeps 500
MAX_OWN_ROWS = 2 * MAX_LOADED_ROWS
"""Observations of this process that are remembered, so that they are not learned again when they are read
from the store.
"""
MAX_CALLS_PER_SECOND = 100
"""Maximum calls per topic and second that are learned. More would take time and add little information."""
MAX_UNLEARNED_CALLS = 256
"""Latest calls of a topic that are kept until a forecast is needed. Learning them takes about 10 ms."""

_TOPICS = {
    Route.INDIVIDUAL: (CALL_PRIOR, "latency individual"),
    Route.SHARED: (CALL_PRIOR, "latency individual"),  # with more requests per call
    Route.PACKED: (PACKED_PRIOR, "latency packed"),
    Route.FLEX: (FLEX_PRIOR, "latency flex"),
}


@define(eq=False)
class _Topic:
    name: str  # of its rows in the store
    prior: Prior
    route: Route | None  # None if no events are published
    model: str
    forecaster: Forecaster
    late: str  # name of its rows for abandoned calls and batches
    loaded: int = 0  # number of the store read that loaded it
    known: frozenset[Observation] = frozenset()  # stored observations that are already learned
    own: deque[Observation] = field(factory=lambda: deque(maxlen=MAX_OWN_ROWS))  # written by this process
    # requests, seconds, Unix time and whether it was abandoned, for each recorded call
    noted: deque[tuple[int, float, float, bool]] = field(factory=lambda: deque(maxlen=MAX_UNLEARNED_CALLS))
    unlearned: deque[Observation] = field(factory=lambda: deque(maxlen=MAX_UNLEARNED_CALLS))
    # observations that other clients of the process do not have yet
    untold: deque[Observation] = field(factory=lambda: deque(maxlen=MAX_UNLEARNED_CALLS))
    pending: list[Observation] = field(factory=list)  # to be written, one in every ``stride``
    stride: int = 1
    passed: int = 0
    second: int = 0
    in_second: int = 0

    def note(self, size: int, seconds: float, at: float, *, late: bool) -> None:
        """Record a call, up to a maximum per second. Takes no lock, so concurrent threads may exceed the
        maximum slightly.
        """
        second = int(at)
        if second != self.second:
            self.second, self.in_second = second, 0
        self.in_second += 1
        if self.in_second <= MAX_CALLS_PER_SECOND:
            self.noted.append((size, seconds, at, late))

    @property
    def can_learn(self) -> bool:
        return bool(self.noted or self.unlearned)

    def take(self) -> list[Observation]:
        self._note_taken()
        taken = list(self.untold)
        self.untold.clear()
        return taken

    def _note_taken(self) -> None:
        while self.noted:
            size, seconds, at, late = self.noted.popleft()
            seen = Observation(size, seconds, at, not late)
            self.unlearned.append(seen)
            self.untold.append(seen)
            self.keep(seen)

    def learn(self) -> list[ForecastChange]:
        """Learn from the recorded calls and return the changes of the forecast."""
        self._note_taken()
        moved = []
        while self.unlearned:
            change = self.forecaster.observe(self.unlearned.popleft())
            if change is not None:
                moved.append(change)
        return moved

    def keep(self, seen: Observation) -> None:
        self.passed += 1
        if self.passed % self.stride == 0:
            self.pending.append(seen)
            if len(self.pending) >= 2 * MAX_SAMPLE_CALLS:
                self.pending = self.pending[1::2]
                self.stride *= 2

    def sample(self) -> list[Observation]:
        """Return the observations to be written, and start a new sample."""
        self._note_taken()
        taken = self.pending if len(self.pending) <= MAX_SAMPLE_CALLS else self.pending[1::2]
        self.pending, self.stride, self.passed = [], 1, 0
        self.own.extend(taken)
        return taken


@define(eq=False)
class _Tokens:
    name: str
    calibration: Calibration
    loaded: int = 0


class ProcessMemory:
    """The observations of this process, which later clients reuse with or without a store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens: dict[tuple[str, Kind], Calibration] = {}
        self._times: dict[str, deque[Observation]] = {}

    def calibration(self, model: str, kind: Kind) -> Calibration:
        with self._lock:
            return self._tokens.setdefault((model, kind), Calibration(model=model))

    def keep(self, name: str, seen: Iterable[Observation]) -> None:
        with self._lock:
            self._times.setdefault(name, deque(maxlen=MAX_LOADED_ROWS)).extend(seen)

    def times(self, name: str) -> list[Observation]:
        with self._lock:
            return list(self._times.get(name, ()))


_memory = PerProcess(ProcessMemory)


def process_memory() -> ProcessMemory:
    return _memory.get()


def forget_all() -> None:
    """Forget the observations of this process, for tests."""
    _memory.take()


class ForecastHistory:
    """The forecasts and token calibrations of one client; observes its events. Safe to use from any thread.

    Args:
        clock: its wall clock dates observations.
        publish_event: called with changed forecasts, without holding a lock.
        store: opens the store or returns the open one; ``None`` for no store.
        memory: observations of other clients in this process.
    """

    def __init__(
        self,
        clock: Clock,
        publish_event: Callable[[ForecastMoved], None],
        *,
        store: Callable[[], SqlStore] | None = None,
        memory: ProcessMemory | None = None,
    ) -> None:
        self._memory = memory or ProcessMemory()
        self._clock = clock
        self._publish_event = publish_event
        self._opener = store
        self._lock = threading.Lock()
        self._reads = TimedReads(clock)
        self._store: SqlStore | None = None
        self._looked = -math.inf
        self._look = 0
        self._topics: dict[str, _Topic] = {}
        self._of_calls: dict[tuple[Route, str], _Topic] = {}
        self._tokens: dict[tuple[str, Kind], _Tokens] = {}

    # -- learning --------------------------------------------------------------------------------------------

    def __call__(self, event: CallFinished) -> None:
        """Record a call that was answered or timed out. Takes no lock, because the thread that made the call
        runs it.
        """
        if event.route is None:
            return
        late = event.error == _LATE
        if event.error is not None and not late:
            return  # a rejection is fast and says nothing about answers
        topic = self._latency(event.route, event.model)
        if topic is not None:
            topic.note(event.size, event.seconds, self._clock.wall(), late=late)

    def learn(self) -> None:
        """Learn from the recorded calls before forecasts are read.

        If another thread holds the lock, it learns from them. The caller may be a signal handler, which must
        not wait.
        """
        if not any(topic.can_learn for topic in list(self._topics.values())):
            return
        if self._lock.acquire(blocking=False):
            try:
                moved = [(topic, topic.learn()) for topic in self._topics.values()]
            finally:
                self._lock.release()
            for topic, changes in moved:
                self._publish_changes(topic, *changes)

    def batch_ended(self, event: BatchEnded) -> None:
        """Learn from a batch of a job that this process runs. The job stores the observation afterwards."""
        batches, cancels = self._batches(event.model), self._cancels(event.model.partition(":")[0])
        for name, (size, seconds, at) in summary_records.durations_of(event):
            topic = cancels if name == cancels.name else batches
            seen = Observation(size, seconds, at, ended=name != batches.late)
            with self._lock:
                topic.own.append(seen)
                moved = topic.forecaster.observe(seen)
                self._memory.keep(topic.name, (seen,))
            self._publish_changes(topic, moved)

    def _publish_changes(self, topic: _Topic, *changes: ForecastChange | None) -> None:
        for moved in changes:
            if moved is None or topic.route is None:
                continue
            self._publish_event(
                ForecastMoved(
                    at=self._clock.now(),
                    model=topic.model,
                    route=topic.route,
                    before=moved.before,
                    after=moved.after,
                    observations=moved.seen,
                    reason=moved.why,
                )
            )

    # -- forecasts -------------------------------------------------------------------------------------------

    def latency(self, route: Route, model: str) -> ForecastAt:
        """Return the forecast for calls to a model, such as ``openai:gpt-5-mini``.

        ``SHARED`` uses the forecast of ``INDIVIDUAL``.

        Raises:
            ValueError: the route does not consist of calls.
        """
        topic = self._latency(route, model)
        if topic is None:
            raise ValueError(f"the route {route.value} does not consist of calls")
        return self._view(topic)

    def turnaround(self, model: str) -> ForecastAt:
        """Return the forecast for the time from the creation of a batch until it finishes."""
        return self._view(self._batches(model))

    def cancelling(self, provider: str) -> ForecastAt:
        """Return the forecast for the time from the cancellation of a batch until it finishes."""
        return self._view(self._cancels(provider))

    def calibration(self, model: str, kind: Kind) -> Calibration:
        """Return the token calibration of a model. Lanes update it; texts and vectors have separate ones."""
        with self._lock:
            known = self._tokens.get((model, kind))
            if known is None:
                known = _Tokens(f"tokens {kind.value} {model}", self._memory.calibration(model, kind))
                self._tokens[model, kind] = known
            store = self._store_to_read(known)
        if store is not None:
            self._timed(lambda: known.calibration.restore(store.facts.recall(known.name)))
        return known.calibration

    def batch_reads(self, scope: str, model: str) -> BatchReads:
        """Return the tokens that batches of an account and model wrote to the provider's cache and read."""
        store, found = self._store, [BatchReads()]
        if store is not None:
            self._timed(lambda: found.append(reads_of(store, scope, model)))
        return found[-1]

    def _batches(self, model: str) -> _Topic:
        return self._topic(model, BATCH_PRIOR, Route.BATCH, model)

    def _cancels(self, provider: str) -> _Topic:
        return self._topic(summary_records.cancel_name(provider), CANCEL_PRIOR, None, provider)

    def _latency(self, route: Route, model: str) -> _Topic | None:
        known = self._of_calls.get((route, model))
        if known is None and route in _TOPICS:
            known = self._of_calls[route, model] = self._topic_of_calls(route, model)
        return known

    def _topic_of_calls(self, route: Route, model: str) -> _Topic:
        prior, name = _TOPICS[route]
        if prior is CALL_PRIOR and "embed" in model:  # the names of all embedding models contain this
            prior = VECTORS_PRIOR
        reported_route = Route.INDIVIDUAL if route is Route.SHARED else route
        return self._topic(f"{name} {model}", prior, reported_route, model)

    def _topic(self, name: str, prior: Prior, route: Route | None, model: str) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            with self._lock:
                fresh = _Topic(name, prior, route, model, Forecaster(prior), summary_records.late_name(name))
                topic = self._topics.setdefault(name, fresh)
                if topic is fresh:
                    for seen in self._memory.times(name):
                        topic.own.append(seen)
                        topic.forecaster.observe(seen)
        return topic

    def _view(self, topic: _Topic) -> ForecastAt:
        with self._lock:
            first = topic.loaded == 0
            store = self._store_to_read(topic)
            changes = topic.learn()
        self._publish_changes(topic, *changes)
        if store is not None:
            self._timed(lambda: self._load(store, topic, first=first))
        with self._lock:
            return topic.forecaster.at(self._clock.wall())

    def _store_to_read(self, known: _Topic | _Tokens) -> SqlStore | None:
        """Return the store unless ``known`` has been read since the last refresh. The lock must be held."""
        stale = known.loaded < self._look
        known.loaded = self._look
        return self._store if stale else None

    # -- the store -------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Write the observations of this process, and mark those of other processes to be read when needed.

        Does nothing if the last refresh was less than a minute ago. Opens the store, so call this only if the
        store will be used anyway.
        """
        now = self._clock.now()
        with self._lock:
            opener = self._opener
            if opener is None or now - self._looked < REFRESH_SECONDS:
                return
            self._looked = now
        self._timed(lambda: self._open(opener))
        self._timed(self.save)

    @property
    def stored(self) -> bool:
        return self._store is not None

    def hand_over(self) -> None:
        """Pass new observations to other clients of this process."""
        with self._lock:
            for topic in self._topics.values():
                self._memory.keep(topic.name, topic.take())

    def save(self) -> None:
        """Write a sample of the new observations if a store is in use. Never raises."""
        store = self._store
        if store is not None:
            self._safely(lambda: self._write(store))

    def _open(self, opener: Callable[[], SqlStore]) -> None:
        store = opener()
        with self._lock:
            self._store = store
            self._look += 1

    def _load(self, store: SqlStore, topic: _Topic, *, first: bool) -> None:
        """Learn from the rows of a topic that other processes wrote.

        1. First read: the stored rows are older than the observations of this process, so the forecaster
           starts afresh and learns the stored rows first. Changes are not reported.
        2. Later reads: the forecaster learns from the new rows and reports changes.
        """
        rows = [*_rows(store, topic.name, ended=True), *_rows(store, topic.late, ended=False)]
        changes: list[ForecastChange | None] = []
        with self._lock:
            mine = {*topic.own, *topic.pending}
            new = [seen for seen in rows if seen not in topic.known and seen not in mine]
            topic.known = frozenset(rows)
            if first:  # observations of this process are later than the stored ones
                new += topic.forecaster.seen
                topic.forecaster = Forecaster(topic.prior)
            for seen in sorted(new, key=lambda each: each.at):
                moved = topic.forecaster.observe(seen)
                if not first:
                    changes.append(moved)
        self._publish_changes(topic, *changes)

    def _write(self, store: SqlStore) -> None:
        with self._lock:
            written = [(topic, topic.sample()) for topic in self._topics.values()]
            tokens = list(self._tokens.values())
        for topic, sample in written:
            for name, ended in ((topic.name, True), (topic.late, False)):
                rows = [(seen.size, seen.seconds, seen.at) for seen in sample if seen.ended is ended]
                if rows:
                    store.facts.observe_turnarounds(name, rows)
        for known in tokens:
            if known.calibration.unsaved:  # adds to the counts of other processes
                known.calibration.restore(store.facts.recall(known.name))
                state = known.calibration.state()
                store.facts.remember(known.name, state)
                known.calibration.saved(state)

    def _timed(self, act: Callable[[], object]) -> None:
        """Run a store operation while a caller waits. If it hangs, do without the store until the next
        refresh.
        """
        if not self._reads.read(lambda: self._safely(act), STORE_WAIT_SECONDS, "smartbatch-history"):
            with self._lock:
                self._store = None
            logs.warn("forecasts_not_stored", error="the store has not answered")

    def _safely(self, act: Callable[[], object]) -> None:
        """Run a store operation. If it fails, continue in memory and try again at the next refresh."""
        try:
            act()
        except Exception as error:
            logs.warn("forecasts_not_stored", error=type(error).__name__)


def _rows(store: SqlStore, name: str, *, ended: bool) -> Iterable[Observation]:
    for size, seconds, at in store.facts.turnarounds(name, limit=MAX_LOADED_ROWS):
        if 0 <= seconds < math.inf and math.isfinite(at):
            yield Observation(size, seconds, at, ended)
