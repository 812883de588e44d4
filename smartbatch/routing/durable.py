"""Single requests that outlive the process: they stand in the store, and their futures are settled from it.

Requests of any threads that arrive within some milliseconds are stored in one transaction, as one attended
job. A request whose key the store knows is not stored again: its future waits for what the first one gets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from attrs import define, evolve

from smartbatch._clock import Clock
from smartbatch._values import fields_repr
from smartbatch.core.preparation.preparer import kind_of
from smartbatch.errors import ClientClosed, InvalidRequest, JobConflict, WrongProcess
from smartbatch.jobs.job_options import checked_key
from smartbatch.jobs.threads import OwnThreads
from smartbatch.realtime.realtime import stored_future
from smartbatch.realtime.ticket import ResultFuture
from smartbatch.results import as_kept
from smartbatch.routing.gathered import GatheredWaiters, SingleRequestParts, fail
from smartbatch.routing.keyed_lists import check_storable
from smartbatch.types import Answer, Kind, Prompt, Request, Result

if TYPE_CHECKING:
    from smartbatch.jobs.records import NamedPlace

GATHER = 0.005
"""Seconds for which the first request of a group waits for others, times one more than groups under way: each
group is a job, which has a lease and a thread that watches it."""
LONGEST_GATHER = 0.25
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
    """

    __repr__ = fields_repr

    request: Request
    name: str
    digest: str
    future: ResultFuture


_Waiters: TypeAlias = "GatheredWaiters[_Waiting, NamedPlace]"


class DurableRequests:
    """Has requests stand in the store; one thread runs while some wait for that. Safe from any thread."""

    def __init__(self, clock: Clock, parts: SingleRequestParts) -> None:
        self._clock = clock
        self._parts = parts
        self._threads = OwnThreads(clock)
        self._monitor = clock.monitor()
        self._waiting: dict[ResultFuture, _Waiting] = {}
        self._storing: list[_Waiting] = []  # the group that was taken last
        self._stored: dict[ResultFuture, _Waiters] = {}
        self._opened = 0.0
        self._waiters: dict[tuple[str, int], _Waiters] = {}
        self._running = self._closing = False

    # -- submitting ------------------------------------------------------------------------------------------

    def submit(self, prompt: Prompt, params: Mapping[str, Any]) -> ResultFuture:
        """Have a request stored, and return its future; see :meth:`smartbatch.BatchingClient.submit`."""
        given = dict(params)
        durable, key = given.pop("durable", None), checked_key(given.pop("key", None))
        request = self._parts.preparer.request(prompt, given)
        if key is None and not durable:
            return self._parts.realtime.submit(request)
        if durable is False:
            raise InvalidRequest("key needs durable: leave durable=False out", field="key")
        check_storable(request)
        _ = self._parts.jobs.service.store  # it is refused here where there is none
        prepared = self._parts.preparer.hooked(request)
        if isinstance(prepared, Answer):
            return self._parts.realtime.submit_prepared(request, prepared)
        self._parts.preparer.check(prepared)
        digest = self._parts.jobs.submission.digest_of(prepared)
        future = stored_future(self._parts.callbacks)
        future.withdraw = self._withdrawn
        self._put(_Waiting(prepared, digest if key is None else f"key {key}", digest, future))
        return future

    def _put(self, waiting: _Waiting) -> None:
        with self._monitor:
            if self._closing:
                raise ClientClosed("the client was stopped; the request was not taken")
            if not self._running:
                self._threads.start(self._run, "smartbatch-durable")
                self._running = True
            if not self._waiting:
                self._opened = self._clock.now()
                self._monitor.notify_all()
            self._waiting[waiting.future] = waiting

    def _withdrawn(self, future: ResultFuture) -> bool:
        """Take a request back that is to be cancelled, and say whether that worked. The cases, in order:

        1. It is not stored yet: it never will be.
        2. It is being stored at this moment: no.
        3. Others wait for the same answer: it is theirs alone from now on.
        4. It is ended in the store, unless its call has started, or another process carries it on.
        """
        with self._monitor:
            if self._waiting.pop(future, None) is not None:
                return True
            waiters = self._stored.get(future)
            if waiters is None:
                return False
            if len(waiters.waiting) > 1:
                waiters.waiting = [each for each in waiters.waiting if each.future is not future]
                del self._stored[future]
                return True
        return self._parts.jobs.service.cancel_item(waiters.place.job_id, waiters.place.ix)

    # -- storing ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while group := self._next():
            for kind in Kind:
                of_kind = [each for each in group if kind_of(each.request) is kind]
                try:
                    if of_kind:
                        self._store(kind, of_kind)
                except BaseException as error:  # no future may be left behind
                    fail(of_kind, error, NOT_STORED)

    def _next(self) -> list[_Waiting]:
        """Wait for the group that is to be stored next, and take it; an empty one ends the thread."""
        with self._monitor:
            while self._waiting and not self._closing:
                under_way = len({job_id for job_id, _ in self._waiters})
                left = self._opened + min(LONGEST_GATHER, GATHER * (1 + under_way)) - self._clock.now()
                if left <= 0:
                    break
                self._monitor.wait(left)
            self._storing = group = list(self._waiting.values())
            self._waiting.clear()
            if not group:
                self._running = False
                self._monitor.notify_all()
            return group

    def _store(self, kind: Kind, group: Sequence[_Waiting]) -> None:
        """Store requests, or find them in the store, and have their futures take the results."""
        named: dict[str, _Waiting] = {}
        for each in group:
            named.setdefault(each.name, each)  # of one name, the first that came
        # a context may be any object, and stays here
        requests = {name: evolve(each.request, context=None) for name, each in named.items()}
        digests = [each.digest for each in named.values()]
        places = self._parts.jobs.submission.submit_named(kind, requests, digests)
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
        for job_id, of_job in found.items():
            try:
                self._parts.jobs.service.carry_on(job_id)
                self._parts.jobs.service.deliver(job_id, of_job)
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
            fail(waiters.waiting, error, NOT_AWAITED)
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
        for future in (*self._waiting, *(each.future for each in self._storing)):
            future.abandon(error)
        for waiters in list(self._waiters.values()):
            waiters.abandon(error)
