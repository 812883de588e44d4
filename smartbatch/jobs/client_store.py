"""Opens the store of a client, reads it within a time limit, and saves request totals to it."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import TypeAlias

from smartbatch._clock import Clock
from smartbatch.core.routing.outcome import ListDecision
from smartbatch.errors import SmartbatchError, snake_case
from smartbatch.events import ExplicitCacheEnded, RequestFinished
from smartbatch.failure_groups import OTHER_MESSAGES, pattern_of
from smartbatch.jobs.records import StoredCounts
from smartbatch.jobs.store import SqlStore, open_store
from smartbatch.jobs.summary_records import Failures, Spending
from smartbatch.jobs.threads import OwnThreads, TimedReads
from smartbatch.observe import logs
from smartbatch.types import Route, T, Usage


class ClientStore:
    """Opens a store once, even if several threads need it. Thread-safe.

    Args:
        place: path or address of the store.
        counted: called with a job's id and the totals stored by a transaction.
    """

    def __init__(
        self,
        place: str | None,
        clock: Clock,
        *,
        rng: Random,
        counted: Callable[[str, StoredCounts], None],
    ) -> None:
        self._place = place
        self._clock = clock
        self._rng = rng
        self._counted = counted
        self._monitor = clock.monitor()
        self._reads = TimedReads(clock)
        self._opening = False
        self.opened: SqlStore | None = None

    def get(self) -> SqlStore:
        """Return the store, opening it if necessary.

        Raises:
            StoreError, ConfigError: the store cannot be used.
        """
        if (store := self.opened) is not None:
            return store
        with self._monitor:
            self._monitor.wait_for(lambda: not self._opening)
            if self.opened is not None:
                return self.opened
            self._opening = True
        opened: SqlStore | None = None
        try:  # without the lock, because opening may hang
            opened = open_store(self._place, wall=self._clock.wall, rng=self._rng, counted=self._counted)
        finally:
            with self._monitor:
                self._opening, self.opened = False, opened
                self._monitor.notify_all()
        return opened

    def detach(self) -> SqlStore | None:
        """Hand the open store to the caller, who closes it. The next use opens the store again."""
        with self._monitor:
            store, self.opened = self.opened, None
            return store

    def read_within(
        self, read: Callable[[], T], seconds: float | None, error: Callable[[str], SmartbatchError]
    ) -> T:
        """Call ``read`` with the store.

        Raises:
            SmartbatchError: the read takes longer than ``seconds``; ``error`` creates the exception.
        """
        if seconds is None:
            return read()
        if found := self._reads.read(read, seconds, "smartbatch-look"):
            return found[0]
        place = "of the client" if self.opened is None else self.opened.place
        raise error(
            f"the store {place} has not answered for {seconds:.3g} s: another process may have locked it, or "
            "its server may be hanging; nothing is lost, try again later"
        )


MAX_UNFOLDED_REQUESTS = 2_000
"""Maximum number of finished requests kept before they are added to the totals."""
MAX_ERROR_GROUPS = 100
"""Maximum number of error groups per save; errors beyond them are counted by kind only."""
MAX_DECISIONS = 100
"""Maximum number of decisions per save; the latest are kept."""
SAVE_SECONDS = 15.0
"""A list that finishes later than this after the last save triggers another save."""


_Ended: TypeAlias = "tuple[str, Route | None, float | None, Usage, str | None, str | None, str]"
"""Model, route, USD, usage, error kind, error message and id. A tuple, because one is made per request."""


class SummaryLog:
    """Observes a client, and saves totals of its real-time requests and its decisions. Thread-safe.

    A thread that completes a request only records it in memory. A jobs thread writes the totals every few
    seconds. Nothing is recorded while no store is open. Requests of jobs are counted when their results are
    stored.

    Args:
        store: returns the client's store if it is open.
        part: a random number that identifies this process.
    """

    def __init__(self, clock: Clock, store: Callable[[], SqlStore | None], *, part: int) -> None:
        self._clock = clock
        self._store = store
        self._part = part
        self._ended: deque[_Ended] = deque()
        self._decided: deque[ListDecision] = deque(maxlen=MAX_DECISIONS)
        self._lock = threading.Lock()
        self._spent: dict[tuple[str, str], Spending] = {}
        self._failed: dict[tuple[str, str], Failures] = {}
        self._saved_at = -math.inf

    @property
    def is_stored(self) -> bool:
        return self._store() is not None

    def __call__(self, event: RequestFinished) -> None:
        """Record a finished request without waiting for a lock."""
        if event.of_job or not self.is_stored:
            return
        error = None if event.ok or event.cancelled else event.error
        self._ended.append(
            (event.model, event.route, event.cost, event.usage, error, event.message, event.request_id)
        )
        if len(self._ended) >= MAX_UNFOLDED_REQUESTS and self._lock.acquire(blocking=False):
            try:
                self._fold_locked()
            finally:
                self._lock.release()

    def cache_ended(self, event: ExplicitCacheEnded) -> None:
        """Record the cost of a cache that no request was charged for."""
        usd, route = event.cost or 0.0, Route.INDIVIDUAL.value
        if usd and self.is_stored:
            with self._lock:
                self._spent_locked(event.model, route).merge(
                    Spending(event.model, route, usd=usd, realtime_usd=usd)
                )

    def decided(self, one: ListDecision) -> None:
        """Record the decision on a list that has no job. Called again with the outcome."""
        if not self.is_stored:
            return
        self._decided.append(one)
        now = self._clock.now()
        if now - self._saved_at > SAVE_SECONDS:
            self._saved_at = now
            try:
                OwnThreads(self._clock).start(self._save_now, "smartbatch-summaries")
            except RuntimeError:  # the interpreter is exiting and saves the rest itself
                return

    def save(self, store: SqlStore) -> None:
        """Save everything recorded. Never raises: what cannot be saved is kept for the next call."""
        self._saved_at = self._clock.now()
        with self._lock:
            self._fold_locked()
            spent, self._spent = self._spent, {}
            failed, self._failed = self._failed, {}
            decided = list(dict.fromkeys(self._decided))
            self._decided.clear()
        if not (spent or decided):
            return
        try:
            store.summaries.write(
                decided, failed.values(), spent.values(), at=self._clock.wall(), part=self._part
            )
        except Exception as error:
            logs.warn("summaries_not_stored", error=type(error).__name__)
            with self._lock:
                self._decided.extendleft(reversed(decided))
                for each in spent.values():
                    self._spent_locked(each.model, each.route).merge(each)
                self._fail_locked(failed.values())

    def _save_now(self) -> None:
        store = self._store()
        if store is not None:
            self.save(store)

    def _fold_locked(self) -> None:
        while self._ended:
            model, route, cost, usage, error, message, request_id = self._ended.popleft()
            spent = self._spent_locked(model, "" if route is None else route.value)
            spent.count(cost, usage, failed=error is not None)
            if error is not None:
                pattern = pattern_of(message or "")
                self._fail_locked([Failures(snake_case(error), pattern, model, 1, request_id=request_id)])

    def _spent_locked(self, model: str, route: str) -> Spending:
        known = self._spent.get((model, route))
        if known is None:
            known = self._spent[model, route] = Spending(model, route)
        return known

    def _fail_locked(self, failures: Iterable[Failures]) -> None:
        for more in failures:
            key = (more.kind, more.message)
            if key not in self._failed and len(self._failed) >= MAX_ERROR_GROUPS:
                key = (more.kind, OTHER_MESSAGES)
            known = self._failed.setdefault(key, Failures(*key, more.model))
            known.count += more.count
            known.model, known.request_id = more.model, more.request_id
