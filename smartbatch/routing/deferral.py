"""Single requests that may wait for the Batch API: gathered, sent together as a job, settled one by one."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from attrs import define, evolve, field

from smartbatch._clock import Clock
from smartbatch.config import BatchingConfig
from smartbatch.core.batching.window import GatherWindow
from smartbatch.core.preparation.preparer import kind_of
from smartbatch.errors import (
    ClientClosed,
    ConfigError,
    JobNotFound,
    SmartbatchError,
    StoreError,
    WrongProcess,
)
from smartbatch.jobs.preconditions import batches_of
from smartbatch.jobs.threads import OwnThreads
from smartbatch.observe import logs
from smartbatch.providers.registry import OpenedModel
from smartbatch.realtime.ticket import ResultFuture
from smartbatch.routing.gathered import GatheredWaiters, SingleRequestParts, fail
from smartbatch.routing.lists import ListRouter
from smartbatch.types import Answer, Priority, Request, Result

if TYPE_CHECKING:
    from smartbatch.jobs.deferred_jobs import Place, Storable
    from smartbatch.jobs.records import JobRow

LAST_SEND = 5.0
"""Seconds for what is being stored, or handed to real time, at a stop without a time of its own."""
LATE_SEND = 0.2
"""The same at a stop whose time is over."""
SHORTEST = 0.001
"""Seconds of a time-out that is over, for a request that then fails with it."""


@define(eq=False)
class _Deferred:
    """A request that waits for others, or is in a job.

    Attributes:
        request: as the hooks left it, with an id.
        storable: as a job keeps it.
        cache_key: where the cache keeps its answer; ``None`` where it does not.
        deadline: the moment at which its time-out is over; infinity for never.
    """

    request: Request
    storable: Storable
    cache_key: bytes | None
    future: ResultFuture
    deadline: float


@define(eq=False)
class _Group:
    """Requests that may go in one job, by their futures; times are monotonic seconds."""

    opened: float
    newest: float
    waiting: dict[ResultFuture, _Deferred] = field(factory=dict)
    flushed: bool = False


_Waiters: TypeAlias = "GatheredWaiters[_Deferred, Place]"


class Deferral:
    """Has requests of priority deferrable wait for the Batch API.

    A request waits until no further one has come for a while, and goes in a job with the others. What a
    batch cannot take, and too few for a batch, go in real time. One thread runs while requests wait.
    """

    def __init__(
        self,
        config: BatchingConfig,
        clock: Clock,
        parts: SingleRequestParts,
        model: OpenedModel,
        routing: ListRouter,
    ) -> None:
        self._config = config
        self._clock = clock
        self._parts = parts
        self._model = model
        self._routing = routing
        self._window = GatherWindow(config.batch_max_requests)
        self._threads = OwnThreads(clock)
        self._monitor = clock.monitor()
        self._groups: dict[Hashable, _Group] = {}
        self._sending: list[_Deferred] = []  # the group that was taken last
        self._under_way: set[ResultFuture] = set()
        self._running = False
        self._closing = False
        self._no_store: SmartbatchError | None = None

    # -- submitting ------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> ResultFuture:
        """Queue one normalised request, or have it wait for a batch, and return its future.

        Raises:
            InvalidRequest, QueueFull, ClientClosed: as :meth:`.Realtime.submit`.
        """
        realtime = self._parts.realtime
        prepared = self._parts.preparer.preprocessed(request)
        deferred = None if isinstance(prepared, Answer) else self._deferred(prepared)
        if deferred is None:
            return realtime.submit_prepared(request, prepared)
        if realtime.engine is None:
            realtime.start()
        self._put(deferred)
        return deferred.future

    def _deferred(self, request: Request) -> _Deferred | None:
        """Return a request as one that waits; ``None`` where it does not, or its answer is there."""
        if not self._may_wait(request):
            return None
        self._parts.preparer.check(request)
        admission = self._parts.realtime.admission
        key = admission.fingerprint(request)
        if admission.recalled(request, key) is not None:
            return None
        request = evolve(request, id=admission.id_of(request))
        storable = self._parts.jobs().deferred.storable(request)
        if storable is None:
            return None
        future = ResultFuture(self._parts.callbacks.run_later, self._cancelled, self.cancel_pending)
        deadline = math.inf if request.timeout is None else self._clock.now() + request.timeout
        kept = key if admission.cache is not None else None
        return _Deferred(request, storable, kept, future, deadline)

    def _may_wait(self, request: Request) -> bool:
        """Whether a request may wait for a batch, as far as can be said of it alone."""
        return (
            request.priority is Priority.DEFERRABLE
            and request.call is None
            and not self._parts.realtime.never_waits(request)
            and (request.timeout is None or request.timeout >= self._config.batch_timeout)
            and batches_of(self._config, self._model, kind_of(request))[0] is not None
            and self._has_store()
        )

    def _has_store(self) -> bool:
        """Whether there is a store; one that cannot be opened is told once, and left alone until a start."""
        if self._no_store is None:
            try:
                _ = self._parts.jobs().service.store
            except SmartbatchError as error:
                self._no_store = error
                logs.job_error(None, error)
        return self._no_store is None

    def _put(self, deferred: _Deferred) -> None:
        request, now = deferred.request, self._clock.now()
        lane = (kind_of(request), request.model, deferred.deadline < math.inf)
        with self._monitor:
            if self._closing:
                raise ClientClosed("the client was stopped; the request was not taken")
            if not self._running:
                self._threads.start(self._run, "smartbatch-deferral")
                self._running = True
            group = self._groups.setdefault(lane, _Group(now, now))
            group.newest = now
            group.waiting[deferred.future] = deferred
            self._monitor.notify_all()

    # -- acting ----------------------------------------------------------------------------------------------

    def cancel_pending(self) -> int:
        """Cancel every request that is not under way, in real time as well; return how many."""
        with self._monitor:
            waiting = [future for group in self._groups.values() for future in group.waiting]
            waiting += [each.future for each in self._sending if not each.future.done()]
        return sum(future.cancel() for future in waiting) + self._parts.realtime.cancel_pending()

    def flush(self) -> None:
        """Send what waits for others now, in real time as well."""
        with self._monitor:
            for group in self._groups.values():
                group.flushed = True
            self._monitor.notify_all()
        self._parts.realtime.flush()

    def _cancelled(self, future: ResultFuture) -> None:
        """Take a cancelled request out. One that is taken from its group is noticed by who took it."""
        with self._monitor:
            found = [lane for lane, group in self._groups.items() if group.waiting.pop(future, None)]
            for lane in found:
                if not self._groups[lane].waiting:
                    del self._groups[lane]
            self._monitor.notify_all()
        if found:
            future.set_running_or_notify_cancel()
        else:
            self._parts.realtime.cancelled(future)

    # -- sending ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (group := self._next()) is not None:
            try:
                self._send(group)
            except BaseException as error:  # no future may be left behind
                self._fail(group, error)

    def _next(self) -> list[_Deferred] | None:
        """Wait for the next group that is to go, and take it; ``None``, and no thread, where none waits."""
        with self._monitor:
            self._sending = []
            while self._groups:
                closes, lane = min(
                    ((self._closes(group), lane) for lane, group in self._groups.items()),
                    key=lambda pair: pair[0],
                )
                left = closes - self._clock.now()
                if left <= 0:
                    self._sending = list(self._groups[lane].waiting.values())
                    del self._groups[lane]  # last: a forked child finds them in one of the two
                    return self._sending
                self._monitor.wait(left)
            self._running = False
            self._monitor.notify_all()
            return None

    def _closes(self, group: _Group) -> float:
        if group.flushed or self._closing:
            return -math.inf
        deadline = min(each.deadline for each in group.waiting.values())
        leave_by = deadline - self._config.batch_timeout  # after it a batch has less time than it may take
        return self._window.closes(len(group.waiting), group.opened, group.newest, leave_by)

    def _send(self, group: Sequence[_Deferred]) -> None:
        """Send a group. The cases, in order:

        1. The store has an equal request that waits, or its answer, which nobody was given: take that.
        2. Fewer are left than a batch is considered for: real time.
        3. A job is stored. What is cancelled up to then is left out, and what is not is under way.
        4. No batch would be in time, or it could not be stored: real time.
        """
        group = self._join(group)
        if len(group) < self._config.batch_threshold:
            self._ask(group)
            return
        group = [each for each in group if each.future.set_running_or_notify_cancel()]
        if group and not self._store(group):
            self._ask(group)

    def _join(self, group: Sequence[_Deferred]) -> list[_Deferred]:
        """Let requests join equal ones; return the others."""
        keys = {key for each in group if (key := each.storable.key) is not None}
        try:
            found = self._parts.jobs().deferred.find(keys)
        except StoreError as error:
            logs.job_error(None, error)
            return list(group)
        others: list[_Deferred] = []
        joined: dict[str, dict[int, _Waiters]] = {}
        for each in group:
            known = None if each.storable.key is None else found.get(each.storable.key)
            if known is None:
                others.append(each)
            elif each.future.set_running_or_notify_cancel():
                place = known.place
                of_job = joined.setdefault(place.job_id, {})
                waiters = of_job.setdefault(place.ix, GatheredWaiters(self._settle, place, first=known.first))
                waiters.waiting.append(each)
        for job_id, of_job in joined.items():
            self._parts.jobs().service.carry_on(job_id)
            self._deliver(job_id, of_job)
        return others

    def _store(self, group: Sequence[_Deferred]) -> bool:
        """Store requests as a job, and have them take its answers; False where nothing was stored."""
        requests = [each.storable.request for each in group]
        deadline = min(each.deadline for each in group) - self._clock.now()
        key = None
        try:
            key = self._parts.jobs().deferred.new_key()
            row = self._routing.submit_gathered(
                requests, key, deadline=None if deadline == math.inf else deadline
            )
        except ConfigError:
            return False
        except Exception as error:
            logs.job_error(None, error)
            stored = None if key is None else self._stored(key)
            if stored is None:
                return False
            row = stored  # all the same: sending its requests in real time would pay them twice
        places = self._parts.jobs().deferred.add(row, [each.storable.key for each in group])
        waiting = zip(places, group, strict=True)
        self._deliver(row.id, {at.ix: GatheredWaiters(self._settle, at, [each]) for at, each in waiting})
        return True

    def _stored(self, key: str) -> JobRow | None:
        try:
            return self._parts.jobs().service.store.jobs.get(key)
        except StoreError:
            return None

    def _deliver(self, job_id: str, waiters: Mapping[int, _Waiters]) -> None:
        with self._monitor:
            self._under_way.update(each.future for group in waiters.values() for each in group.waiting)
        self._parts.jobs().service.deliver(job_id, waiters)

    def _ask(self, group: Iterable[_Deferred]) -> None:
        """Send requests in real time, each with the time that is left to it."""
        for each in group:
            request = each.request
            if each.deadline < math.inf:
                request = evolve(request, timeout=max(SHORTEST, each.deadline - self._clock.now()))
            try:
                self._parts.realtime.submit_prepared(request, request, each.future)
            except Exception as error:
                self._fail([each], error)

    def _fail(self, group: Sequence[_Deferred], error: BaseException) -> None:
        fail(group, error, "the request could not be sent")
        self._ended(group)

    def _ended(self, group: Iterable[_Deferred]) -> None:
        with self._monitor:
            self._under_way.difference_update(each.future for each in group)
            self._monitor.notify_all()

    # -- settling --------------------------------------------------------------------------------------------

    def _settle(self, waiters: _Waiters, result: Result) -> None:
        """Settle the futures of those who wait for one request of a job."""
        stored = not isinstance(result.error, ClientClosed | JobNotFound | StoreError)
        with self._threads.counted():  # a hook of the user's could stop the client
            waiters.hand_out(
                self._parts.reading, result, own=int(waiters.first), key_of=lambda each: each.cache_key
            )
        if stored:
            try:
                self._parts.jobs().deferred.given(waiters.place)
            except SmartbatchError as error:
                logs.job_error(waiters.place.job_id, error)
        self._ended(waiters.waiting)

    # -- life ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take requests, again after a stop."""
        with self._monitor:
            self._closing = False
            self._no_store = None

    def finish(self, timeout: float | None, *, wait: bool) -> None:
        """Take nothing more and send what waits; with ``wait``, wait for the answers.

        What was not sent in time fails with ``ClientClosed``.

        Args:
            timeout: seconds for both; ``None`` for as long as it takes.
        """
        with self._monitor:
            self._closing = True
            self._monitor.notify_all()
            until = None if timeout is None else self._clock.now() + timeout
            self._monitor.wait_for(lambda: not self._running, timeout)
            unsent = [each for group in self._groups.values() for each in group.waiting.values()]
            self._groups.clear()
            self._monitor.notify_all()
        self._fail(unsent, ClientClosed("the client was stopped before the request was sent"))
        with self._monitor:
            left = None if until is None else max(0.0, until - self._clock.now())
            self._monitor.wait_for(
                lambda: not self._running, LAST_SEND if left is None else min(LAST_SEND, left + LATE_SEND)
            )
            if wait:
                left = None if until is None else until - self._clock.now()
                self._monitor.wait_for(lambda: not self._under_way, left)

    def on_own_thread(self) -> bool:
        """Whether the caller runs on a thread that settles or sends, where it must not wait for the end."""
        return self._threads.has_current()

    def abandon(self, error: WrongProcess) -> None:
        """In a forked child: end the copies of the parent's futures. Takes no inherited lock."""
        for group in list(self._groups.values()):
            for future in list(group.waiting):
                future.abandon(error)
        for future in (*(each.future for each in self._sending), *self._under_way):
            future.abandon(error)
