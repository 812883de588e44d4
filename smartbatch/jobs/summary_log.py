"""What requests in real time came to, and the decisions on lists, on their way to the store's summaries."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias

from smartbatch._clock import Clock
from smartbatch.core.limits.failures import OTHER_MESSAGES, pattern_of
from smartbatch.core.routing.outcome import ListDecision
from smartbatch.errors import snake_case
from smartbatch.events import RequestFinished
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.summary_records import Failures, Spending
from smartbatch.jobs.threads import OwnThreads
from smartbatch.observe import logs
from smartbatch.types import Route, Usage

FOLDED_AT = 2_000
"""Requests after which those that ended are added up before they are written."""
GROUPS = 100
"""Groups of errors between two writes; errors of further ones are counted by their kind."""
DECISIONS = 100
"""Decisions between two writes: the latest."""
LATEST = 15.0
"""Seconds after the last write from which the end of a list has one made, where no supervisor does it."""


_Ended: TypeAlias = "tuple[str, Route | None, float | None, Usage, str | None, str | None, str]"
"""A request that ended, without anything of its caller's: model, route, USD, tokens, kind and text of the
error, id. No record: it is made where every request ends."""


class SummaryLog:
    """An observer of one client's events. Safe from any thread.

    The thread that ends a request only notes it; adding up and writing is done every few seconds by a thread
    of jobs. Nothing is kept while no store is in use. Requests of jobs are counted where their results are
    stored.

    Args:
        store: returns the client's, if it is open.
        part: a number of this process.
    """

    def __init__(self, clock: Clock, store: Callable[[], SqlStore | None], *, part: int) -> None:
        self._clock = clock
        self._store = store
        self._part = part
        self._ended: deque[_Ended] = deque()
        self._decided: deque[ListDecision] = deque(maxlen=DECISIONS)
        self._lock = threading.Lock()
        self._spent: dict[tuple[str, str], Spending] = {}
        self._failed: dict[tuple[str, str], Failures] = {}
        self._saved_at = -math.inf

    @property
    def is_stored(self) -> bool:
        """Whether what is noted goes into a store, as one is in use; otherwise nothing is noted."""
        return self._store() is not None

    def __call__(self, event: RequestFinished) -> None:
        """Note a request that ended; takes no lock."""
        if event.of_job or not self.is_stored:
            return
        error = None if event.ok or event.cancelled else event.error
        self._ended.append(
            (event.model, event.route, event.cost, event.usage, error, event.message, event.request_id)
        )
        if len(self._ended) >= FOLDED_AT and self._lock.acquire(blocking=False):
            try:
                self._fold_locked()
            finally:
                self._lock.release()

    def decided(self, one: ListDecision) -> None:
        """Note a decision on a list that is no job; once more when it is measured."""
        if not self.is_stored:
            return
        self._decided.append(one)
        now = self._clock.now()
        if now - self._saved_at > LATEST:
            self._saved_at = now
            try:
                OwnThreads(self._clock).start(self._save_now, "smartbatch-summaries")
            except RuntimeError:  # the interpreter ends, and writes what is left
                return

    def save(self, store: SqlStore) -> None:
        """Write what was noted since the last time. Never raises: what cannot be written is kept."""
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
            if key not in self._failed and len(self._failed) >= GROUPS:
                key = (more.kind, OTHER_MESSAGES)
            known = self._failed.setdefault(key, Failures(*key, more.model))
            known.count += more.count
            known.model, known.request_id = more.model, more.request_id
