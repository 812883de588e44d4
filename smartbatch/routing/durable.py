"""Single requests that outlive the process: they are stored before ``submit`` returns, and their futures are
completed from the store.

Requests that arrive from any threads while others are being stored share the next transaction. They are
added to an attended job of this client while it is running. A request whose key the store knows is not stored
again: its future waits for the result of the first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from attrs import define, evolve

from smartbatch._clock import Clock
from smartbatch.core.preparation.preparer import kind_of
from smartbatch.errors import ClientClosed, InvalidRequest, JobConflict, WrongProcess
from smartbatch.jobs.threads import OwnThreads
from smartbatch.realtime.realtime import stored_future
from smartbatch.realtime.ticket import ResultFuture
from smartbatch.results import as_kept
from smartbatch.routing.gathered import GatheredWaiters, SingleRequestParts, fail
from smartbatch.routing.keyed_lists import check_storable
from smartbatch.types import Answer, Kind, Request, Result

if TYPE_CHECKING:
    from smartbatch.jobs.records import NamedPlace

NOT_STORED = "the request could not be stored"
NOT_AWAITED = "the request is stored, but its result could not be waited for; submit it again"
LAST_STORE = 5.0
"""Seconds for what is being stored at a stop without a time of its own."""


@define(eq=False)
class _Waiting:
    """A request on its way to the store.

    Attributes:
        request: as the hooks left it.
        name: its key, or one made of what is sent.
        digest: of what is sent.
        stored: whether the store has it.
    """

    request: Request
    name: str
    digest: str
    future: ResultFuture
    stored: bool = False


_Waiters: TypeAlias = "GatheredWaiters[_Waiting, NamedPlace]"


class DurableRequests:
    """Has requests stand in the store; one thread runs while some wait for that. Safe from any thread."""

    def __init__(self, clock: Clock, parts: SingleRequestParts) -> None:
        self._clock = clock
        self._parts = parts
        self._threads = OwnThreads(clock)
        self._monitor = clock.monitor()
        self._waiting: list[_Waiting] = []
        self._stored: dict[ResultFuture, _Waiters] = {}
        self._open_jobs: dict[Kind, str] = {}
        self._waiters: dict[tuple[str, int], _Waiters] = {}
        self._running = self._closing = False

    # -- submitting ------------------------------------------------------------------------------------------

    def submit(self, request: Request, key: str | None, *, durable: bool | None) -> ResultFuture:
        """Store a request, and return its future; see :meth:`smartbatch.BatchingClient.submit`."""
        if key is None and not durable:
            return self._parts.realtime.submit(request)
        if durable is False:
            raise InvalidRequest("key needs durable: leave durable=False out", field="key")
        check_storable(request)
        _ = self._parts.jobs().service.store  # it is refused here where there is none
        prepared = self._parts.preparer.hooked(request)
        if isinstance(prepared, Answer):
            return self._parts.realtime.submit_prepared(request, prepared)
        self._parts.preparer.check(prepared)
        digest = self._parts.jobs().digest_of(prepared)
        future = stored_future(self._parts.callbacks)
        future.withdraw = self._withdrawn
        self._put(_Waiting(prepared, digest if key is None else f"key {key}", digest, future))
        return future

    def _put(self, waiting: _Waiting) -> None:
        """Wait until a request is stored.

        Raises:
            JobConflict: its key belongs to another request.
            StoreError: it could not be stored.
            ClientClosed: the client was stopped.
        """
        with self._monitor:
            if self._closing:
                raise ClientClosed("the client was stopped; the request was not taken")
            if not self._running:
                self._threads.start(self._run, "smartbatch-durable")
                self._running = True
            self._waiting.append(waiting)
            self._monitor.notify_all()
            self._monitor.wait_for(lambda: waiting.stored or waiting.future.done())
        if not waiting.stored:
            waiting.future.result()

    def _withdrawn(self, future: ResultFuture) -> bool:
        """Withdraw a request that is to be cancelled, and return whether that worked. The cases, in order:

        1. Its future is completed: no.
        2. Others wait for the same answer: they keep it.
        3. Its call has not started, and no other process runs its job: it ends in the store as cancelled.
        """
        with self._monitor:
            waiters = self._stored.get(future)
            if waiters is None:
                return False
            if len(waiters.waiting) > 1:
                waiters.waiting = [each for each in waiters.waiting if each.future is not future]
                del self._stored[future]
                return True
        return self._parts.jobs().service.cancel_item(waiters.place.job_id, waiters.place.ix)

    # -- storing ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while group := self._next():
            for kind in Kind:
                of_kind = [each for each in group if kind_of(each.request) is kind]
                try:
                    if of_kind:
                        self._store(kind, of_kind)
                except BaseException as error:  # every caller must be released
                    fail(of_kind, error, NOT_STORED)
            with self._monitor:
                self._monitor.notify_all()

    def _next(self) -> list[_Waiting]:
        """Take the requests that wait to be stored; an empty list ends the thread."""
        with self._monitor:
            group, self._waiting = self._waiting, []
            if not group:
                self._running = False
                self._monitor.notify_all()
            return group

    def _store(self, kind: Kind, group: Sequence[_Waiting]) -> None:
        """Store requests, or find them in the store, and have their futures receive the results."""
        named: dict[str, _Waiting] = {}
        for each in group:
            named.setdefault(each.name, each)  # of one name, the first that came
        # a context may be any object, and stays here
        requests = {name: evolve(each.request, context=None) for name, each in named.items()}
        digests = [each.digest for each in named.values()]
        opened, places = self._parts.jobs().submit_named(
            kind, requests, digests, join=self._open_jobs.get(kind)
        )
        if opened is not None:
            self._open_jobs[kind] = opened
        found: dict[str, dict[int, _Waiters]] = {}
        conflicting: list[_Waiting] = []
        with self._monitor:
            for each in group:
                place = places[each.name]
                if place.digest != each.digest:
                    conflicting.append(each)
                    continue
                waiters = self._waiters.get((place.job_id, place.ix))
                if waiters is None:
                    waiters = self._waiters[place.job_id, place.ix] = GatheredWaiters(self._settle, place)
                    found.setdefault(place.job_id, {})[place.ix] = waiters
                waiters.waiting.append(each)
                self._stored[each.future] = waiters
                each.stored = True
        for job_id, of_job in found.items():
            try:
                self._parts.jobs().service.carry_on(job_id)
                after = min(waiters.place.after for waiters in of_job.values())
                self._parts.jobs().service.deliver(job_id, of_job, after=after)
            except BaseException as raised:
                self._fail(of_job.values(), raised)
        for each in conflicting:
            text = f"the {each.name:.80} belongs to a request with another prompt or other parameters"
            error = JobConflict(f"{text}: choose another key")
            fail([each], error, NOT_STORED)

    # -- settling --------------------------------------------------------------------------------------------

    def _settle(self, waiters: _Waiters, result: Result) -> None:
        """Settle the futures of those who wait for one request. The first has its cost, unless the answer was
        there before; the others took part in it."""
        with self._monitor:
            self._forget_locked(waiters)
        reading, own = self._parts.reading, 1
        if waiters.place.answered:
            result, own = as_kept(result), len(waiters.waiting)
        with self._threads.counted():  # a hook of the user's could stop the client
            waiters.hand_out(
                reading, result, own=own, key_of=lambda each: reading.admission.fingerprint(each.request)
            )
        with self._monitor:
            self._monitor.notify_all()

    def _fail(self, group: Iterable[_Waiters], error: BaseException) -> None:
        """Fail the futures of those who wait for requests whose results nobody delivers."""
        for waiters in group:
            with self._monitor:
                self._forget_locked(waiters)
            fail(waiters.waiting, error, NOT_AWAITED, sent=True)
        with self._monitor:
            self._monitor.notify_all()

    def _forget_locked(self, waiters: _Waiters) -> None:
        del self._waiters[waiters.place.job_id, waiters.place.ix]
        for each in waiters.waiting:
            self._stored.pop(each.future, None)

    # -- life ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take requests, again after a stop."""
        with self._monitor:
            self._closing = False

    def finish(self, timeout: float | None, *, wait: bool) -> None:
        """Take nothing more, store what waits, and with ``wait``, wait for the answers up to ``timeout``
        seconds; the others stay in the store."""
        with self._monitor:
            self._closing = True
            self._monitor.notify_all()
            until = None if timeout is None else self._clock.now() + timeout
            self._monitor.wait_for(lambda: not self._running, LAST_STORE if timeout is None else timeout)
            if wait:
                left = None if until is None else until - self._clock.now()
                self._monitor.wait_for(lambda: not self._waiters, left)

    def on_own_thread(self) -> bool:
        """Whether the caller runs on a thread that stores or settles, where it must not wait for the end."""
        return self._threads.has_current()

    def abandon(self, error: WrongProcess) -> None:
        """In a forked child: end the copies of the parent's futures. Takes no inherited lock."""
        for waiters in list(self._waiters.values()):
            waiters.abandon(error)
