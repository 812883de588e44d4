"""Single requests that are stored, because they must outlive the process or wait for a batch.

Requests are collected for a moment, stored together in a job, and completed when the job's results are
stored. A *durable* request is stored before ``submit`` returns and sent in real time. A *deferrable* request
waits until no other one has arrived for a while and is sent with the others as a batch. Each has a name in
the store, by which an identical request in any process shares its answer: a durable request permanently, a
deferrable one until its answer is delivered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from attrs import define, evolve, field, frozen

from smartbatch._clock import Clock, Monitor
from smartbatch.config import BatchingConfig
from smartbatch.core.batching.request_batch import GatherWindow
from smartbatch.core.preparation.preparer import RequestPreparer, kind_of
from smartbatch.errors import (
    ClientClosed,
    ConfigError,
    InvalidRequest,
    JobConflict,
    SmartbatchError,
    StoreError,
    WrongProcess,
)
from smartbatch.jobs.job_options import batches_of
from smartbatch.jobs.threads import OwnThreads
from smartbatch.observe import logs
from smartbatch.providers.registry import OpenedModel
from smartbatch.realtime.engine import CallbackThread, stored_future
from smartbatch.realtime.realtime import Realtime
from smartbatch.realtime.ticket import ResultFuture
from smartbatch.routing.awaited_places import AwaitedPlaces, StoredRequest, fail, kept_request
from smartbatch.routing.lists import ListRouter
from smartbatch.routing.stored_lists import check_storable
from smartbatch.types import Answer, Kind, Priority, Request

if TYPE_CHECKING:
    from smartbatch.jobs.job_submission import JobSubmission
    from smartbatch.jobs.records import ItemName, JobRow, NamedPlace

STOP_SECONDS = 5.0
"""Time for requests that are being stored or sent in real time when the client stops without a timeout."""
LATE_STOP_SECONDS = 0.2
"""Time for the same requests if the timeout of the stop has already passed."""
EXPIRED_TIMEOUT_SECONDS = 0.001
"""Timeout of a request whose own timeout has expired, so that it fails with a timeout error."""


@frozen
class _GatheringLane:
    """Properties that requests share if they are stored together."""

    durable: bool
    kind: Kind
    model: str | None = None
    timed: bool = False


@define(eq=False)
class _Group:
    opened: float
    newest: float
    waiting: dict[ResultFuture, StoredRequest] = field(factory=dict)
    flushed: bool = False


@define(eq=False, repr=False)
class StoredRequests:
    """Collects single requests, stores them in jobs and completes their futures. Safe to use from any thread.

    One thread runs while requests wait to be stored.
    """

    _config: BatchingConfig
    _clock: Clock
    _model: OpenedModel = field(kw_only=True)
    _preparer: RequestPreparer = field(kw_only=True)
    _realtime: Realtime = field(kw_only=True)
    _jobs: Callable[[], JobSubmission] = field(kw_only=True)
    _callbacks: CallbackThread = field(kw_only=True)
    _places: AwaitedPlaces = field(kw_only=True)
    _routing: ListRouter = field(kw_only=True)
    _window: GatherWindow = field(init=False)
    _threads: OwnThreads = field(init=False)
    _monitor: Monitor = field(init=False)
    _groups: dict[_GatheringLane, _Group] = field(factory=dict, init=False)
    _sending: list[StoredRequest] = field(factory=list, init=False)  # the group taken last
    _open_jobs: dict[Kind, str] = field(factory=dict, init=False)  # jobs that durable requests may join
    _running: bool = field(default=False, init=False)
    _closing: bool = field(default=False, init=False)
    _no_store: SmartbatchError | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._window = GatherWindow(self._config.batch_max_requests)
        self._threads = OwnThreads(self._clock)
        self._monitor = self._clock.monitor()

    # -- submitting ------------------------------------------------------------------------------------------

    def submit_durable(self, request: Request, key: str | None, *, durable: bool | None) -> ResultFuture:
        """Store a request and return its future; see :meth:`smartbatch.BatchingClient.submit`.

        Raises:
            JobConflict: its key belongs to another request.
            StoreError: it could not be stored.
            ClientClosed: the client was stopped.
        """
        if key is None and not durable:
            return self._realtime.submit_request(request)
        if durable is False:
            raise InvalidRequest("a key requires a durable request: omit durable=False", field="key")
        check_storable(request)
        _ = self._jobs().engine.store  # raises if there is no store
        prepared = self._preparer.hooked(request)
        if isinstance(prepared, Answer):
            return self._realtime.submit_prepared(request, prepared)
        self._preparer.check(prepared)
        future = stored_future(self._callbacks)
        future.withdraw = self._places.withdraw
        stored = StoredRequest(prepared, self._name_of(prepared, key, durable=True), future)
        self._put(_GatheringLane(True, kind_of(prepared)), stored)
        with self._monitor:
            self._monitor.wait_for(lambda: stored.placed or future.done())
        if not stored.placed:
            future.result()
        return future

    def defer(self, request: Request) -> ResultFuture:
        """Send a request in real time, or let it wait for a batch, and return its future."""
        prepared = self._preparer.preprocessed(request)
        if isinstance(prepared, Answer) or not self._may_wait(prepared):
            return self._realtime.submit_prepared(request, prepared)
        self._preparer.check(prepared)
        admission = self._realtime.admission
        is_known = admission.cached_result(prepared, admission.fingerprint(prepared)) is not None
        if is_known or not self._fits_a_batch(prepared):
            return self._realtime.submit_prepared(request, prepared)
        prepared = evolve(prepared, id=admission.id_of(prepared))
        if self._realtime.engine is None:
            self._realtime.start()
        future = ResultFuture(self._callbacks.run_later, self._cancelled, self.cancel_pending)
        deadline = math.inf if prepared.timeout is None else self._clock.now() + prepared.timeout
        name = self._name_of(prepared, None, durable=False) if admission.shares(prepared) else None
        lane = _GatheringLane(False, kind_of(prepared), prepared.model, timed=deadline < math.inf)
        self._put(lane, StoredRequest(prepared, name, future, deadline))
        return future

    def _name_of(self, request: Request, key: str | None, *, durable: bool) -> ItemName:
        from smartbatch.jobs.records import ItemName

        digest = self._jobs().digest_of(request)
        if not durable:
            return ItemName(f"deferred {digest}", digest)
        return ItemName(digest if key is None else f"key {key}", digest)

    def _may_wait(self, request: Request) -> bool:
        return (
            request.priority is Priority.DEFERRABLE
            and request.call is None
            and not self._realtime.never_waits(request)
            and (request.timeout is None or request.timeout >= self._config.batch_timeout)
            and batches_of(self._config, self._model, kind_of(request))[0] is not None
            and self._has_store()
        )

    def _has_store(self) -> bool:
        """Whether the store can be opened. A failure is reported once; the store is not used until the next
        start.
        """
        if self._no_store is None:
            try:
                _ = self._jobs().engine.store
            except SmartbatchError as error:
                self._no_store = error
                logs.job_error(None, error)
        return self._no_store is None

    def _fits_a_batch(self, request: Request) -> bool:
        from smartbatch.jobs.payload import Shared, encode_request
        from smartbatch.jobs.shard_records import wire_id

        api, _ = batches_of(self._config, self._model, kind_of(request))
        kept = kept_request(request, durable=False)
        keeps = self._jobs().engine.store.files.shared
        with suppress(InvalidRequest):
            encode_request(kept, Shared(), keep=(lambda media: media.sha256) if keeps else None)
            if api is not None:
                api.encode(kept, model=self._model.of(kept).name, wire_id=wire_id("0" * 22, 99_999))
                return True
        return False

    def _put(self, lane: _GatheringLane, stored: StoredRequest) -> None:
        now = self._clock.now()
        with self._monitor:
            if self._closing:
                raise ClientClosed("the client was stopped; the request was not accepted")
            if not self._running:
                self._threads.start(self._run, "smartbatch-stored")
                self._running = True
            group = self._groups.setdefault(lane, _Group(now, now))
            group.newest = now
            group.waiting[stored.future] = stored
            self._monitor.notify_all()

    # -- cancelling ------------------------------------------------------------------------------------------

    def cancel_pending(self) -> int:
        """Cancel every request that is neither stored nor sent in real time; return their number."""
        with self._monitor:
            waiting = [future for group in self._groups.values() for future in group.waiting]
            waiting += [each.future for each in self._sending if not each.future.done()]
        return sum(future.cancel() for future in waiting) + self._realtime.cancel_pending()

    def flush(self) -> None:
        """Send waiting requests now."""
        with self._monitor:
            for group in self._groups.values():
                group.flushed = True
            self._monitor.notify_all()
        self._realtime.flush()

    def _cancelled(self, future: ResultFuture) -> None:
        """Remove a cancelled deferrable request. A thread that already took its group notices the
        cancellation.
        """
        with self._monitor:
            found = [lane for lane, group in self._groups.items() if group.waiting.pop(future, None)]
            for lane in found:
                if not self._groups[lane].waiting:
                    del self._groups[lane]
            self._monitor.notify_all()
        if found:
            future.set_running_or_notify_cancel()
        else:
            self._realtime.cancelled(future)

    # -- collecting ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (taken := self._next()) is not None:
            lane, group = taken
            try:
                if lane.durable:
                    self._store(lane.kind, group)
                else:
                    self._send(group)
            except BaseException as error:  # every future must be completed
                problem = (
                    "the request could not be stored" if lane.durable else "the request could not be sent"
                )
                fail(group, error, problem)

    def _next(self) -> tuple[_GatheringLane, list[StoredRequest]] | None:
        """Wait until a group is due and take it; ``None`` ends the thread."""
        with self._monitor:
            self._sending = []
            while self._groups:
                closes, lane = min(
                    ((self._closes(lane, group), lane) for lane, group in self._groups.items()),
                    key=lambda pair: pair[0],
                )
                left = closes - self._clock.now()
                if left <= 0:
                    self._sending = list(self._groups[lane].waiting.values())
                    # deleted last, so that a forked child finds each request in a group or in _sending
                    del self._groups[lane]
                    return lane, self._sending
                self._monitor.wait(left)
            self._running = False
            self._monitor.notify_all()
            return None

    def _closes(self, lane: _GatheringLane, group: _Group) -> float:
        if lane.durable or group.flushed or self._closing:
            return -math.inf
        deadline = min(each.deadline for each in group.waiting.values())
        leave_by = deadline - self._config.batch_timeout  # sent later, a batch may not finish in time
        return self._window.closes(len(group.waiting), group.opened, group.newest, leave_by)

    # -- storing ---------------------------------------------------------------------------------------------

    def _store(self, kind: Kind, group: Sequence[StoredRequest]) -> None:
        """Store durable requests or find them in the store, and await their results."""
        named = _by_name(group)
        requests = [kept_request(each.request, durable=True) for each, _ in named.values()]
        names = [name for _, name in named.values()]
        opened, places = self._jobs().submit_named(kind, requests, names, join=self._open_jobs.get(kind))
        if opened is not None:
            self._open_jobs[kind] = opened
        place_of = dict(zip(named, places, strict=True))
        placed: list[tuple[StoredRequest, NamedPlace]] = []
        for each in group:
            assert each.name is not None
            place = place_of[each.name.text]
            if place.digest == each.name.digest:
                placed.append((each, place))
                continue
            text = f"the {each.name.text:.80} belongs to a request with another prompt or other parameters"
            fail([each], JobConflict(f"{text}: choose another key"))
        self._places.await_results(placed, durable=True)

    def _send(self, group: Sequence[StoredRequest]) -> None:
        """Send deferrable requests.

        1. The store has an identical request that is waiting or has an undelivered answer: share its answer.
        2. Too few requests are left for a batch: send them in real time.
        3. Otherwise store them as a job, except for cancelled ones. They can no longer be cancelled.
        4. If no batch would finish in time, or the job could not be stored: send them in real time.
        """
        found = self._places.find(list(_by_name(group)))
        new: list[StoredRequest] = []
        known: list[tuple[StoredRequest, NamedPlace]] = []
        for each in group:
            place = None if each.name is None else found.get(each.name.text)
            if place is None:
                new.append(each)
            elif each.future.set_running_or_notify_cancel():
                known.append((each, place))
        self._places.await_results(known, durable=False)
        if len(new) >= self._config.batch_threshold:
            new = [each for each in new if each.future.set_running_or_notify_cancel()]
            if not new or self._store_for_batch(new):
                return
        for each in new:
            self._ask(each)

    def _store_for_batch(self, group: Sequence[StoredRequest]) -> bool:
        """Store requests as a job and await its results. Identical ones share an item. Return false if
        nothing was stored.
        """
        from smartbatch.jobs.records import NamedPlace

        items: dict[object, StoredRequest] = {}
        for each in group:
            items.setdefault(each if each.name is None else each.name, each)
        order = {item: ix for ix, item in enumerate(items)}
        requests = [kept_request(each.request, durable=False) for each in items.values()]
        names = [each.name for each in items.values()]
        deadline = min(each.deadline for each in group) - self._clock.now()
        key = None
        try:
            key = self._new_key()
            row = self._routing.submit_gathered(
                requests, key, deadline=None if deadline == math.inf else deadline, names=names
            )
        except ConfigError:
            return False
        except Exception as error:
            logs.job_error(None, error)
            stored = None if key is None else self._job_of(key)
            if stored is None:
                return False
            row = stored  # use it anyway: requests sent in real time would be paid for twice
        placed: list[tuple[StoredRequest, NamedPlace]] = []
        for each in group:
            ix = order[each if each.name is None else each.name]
            digest = "" if each.name is None else each.name.digest
            placed.append((each, NamedPlace(row.id, ix, digest)))
        self._places.await_results(placed, durable=False)
        return True

    def _new_key(self) -> str:
        while True:
            key = "deferred-" + self._jobs().engine.new_id().removeprefix("job-")
            if self._jobs().engine.store.jobs.get(key) is None:
                return key

    def _job_of(self, key: str) -> JobRow | None:
        try:
            return self._jobs().engine.store.jobs.get(key)
        except StoreError:
            return None

    def _ask(self, each: StoredRequest) -> None:
        """Send a request in real time with what is left of its timeout."""
        request = each.request
        if each.deadline < math.inf:
            request = evolve(request, timeout=max(EXPIRED_TIMEOUT_SECONDS, each.deadline - self._clock.now()))
        try:
            self._realtime.submit_prepared(request, request, each.future)
        except Exception as error:
            fail([each], error, "the request could not be sent")

    # -- start and stop --------------------------------------------------------------------------------------

    def open(self) -> None:
        """Accept requests, including after a stop."""
        with self._monitor:
            self._closing = False
            self._no_store = None

    def finish(self, timeout: float | None, *, wait: bool) -> None:
        """Accept no more requests; store or send those that wait and, with ``wait``, wait for their answers.

        Requests that were neither stored nor sent in time fail with ``ClientClosed``.

        Args:
            timeout: seconds for all of this; ``None`` for no limit.
        """
        with self._monitor:
            self._closing = True
            self._monitor.notify_all()
            until = None if timeout is None else self._clock.now() + timeout
            self._monitor.wait_for(lambda: not self._running, timeout)
            unsent = [each for group in self._groups.values() for each in group.waiting.values()]
            self._groups.clear()
            self._monitor.notify_all()
        fail(unsent, ClientClosed("the client was stopped before the request was sent"))
        with self._monitor:
            left = None if until is None else max(0.0, until - self._clock.now())
            last = STOP_SECONDS if left is None else min(STOP_SECONDS, left + LATE_STOP_SECONDS)
            self._monitor.wait_for(lambda: not self._running, last)
        if wait:
            self._places.wait_until_settled(None if until is None else until - self._clock.now())
        self._places.release()

    def on_own_thread(self) -> bool:
        """Whether the calling thread stores or completes requests and therefore must not wait for one."""
        return self._threads.has_current() or self._places.on_own_thread()

    def abandon(self, error: WrongProcess) -> None:
        """Fail the copies of the parent's futures in a forked child, without taking a lock inherited from the
        parent.
        """
        for group in list(self._groups.values()):
            for future in list(group.waiting):
                future.abandon(error)
        for each in self._sending:
            each.future.abandon(error)
        self._places.abandon(error)


def _by_name(group: Iterable[StoredRequest]) -> dict[str, tuple[StoredRequest, ItemName]]:
    named: dict[str, tuple[StoredRequest, ItemName]] = {}
    for each in group:
        if each.name is not None:
            named.setdefault(each.name.text, (each, each.name))
    return named
