"""Futures of stored requests, completed by the results of their jobs; and one future for several answers."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from attrs import define, evolve, field

from smartbatch._clock import Clock, Monitor
from smartbatch._fork import on_fork
from smartbatch.errors import (
    ClientClosed,
    JobNotFound,
    RequestCancelled,
    SmartbatchError,
    StoreError,
    WrongProcess,
)
from smartbatch.jobs.threads import OwnThreads
from smartbatch.observe import logs
from smartbatch.realtime.ticket import ResultFuture, wrong_process_error
from smartbatch.results import as_kept
from smartbatch.routing.stored_lists import Reading
from smartbatch.types import Request, Result, Usage

if TYPE_CHECKING:
    from smartbatch.jobs.job_submission import JobSubmission
    from smartbatch.jobs.records import ItemName, NamedPlace


UNDELIVERED_SECONDS = 7 * 86_400.0
"""How long an undelivered answer can be used for an identical request."""


@define(eq=False)
class StoredRequest:
    """A request that is or will be part of a job."""

    request: Request  # after the hooks
    name: ItemName | None  # None if it does not share its answer
    future: ResultFuture
    deadline: float = math.inf  # when its timeout expires
    placed: bool = False  # whether it is in the store


@define(eq=False)
class _Waiters:
    """The futures that wait for one item of a job; they receive its result together."""

    settle_all: Callable[[_Waiters, Result], None]
    place: NamedPlace
    durable: bool
    waiting: list[StoredRequest] = field(factory=list)
    paying: int = 1  # number of futures, counted from the first, that are charged the cost
    given: bool = False  # whether all of them have the result

    def complete(self, result: Result) -> None:
        self.settle_all(self, result)

    def abandon(self, error: WrongProcess) -> None:
        """In a forked child, fail the copies of the parent's futures."""
        for each in self.waiting:
            each.future.abandon(error)


@define(eq=False, repr=False)
class AwaitedPlaces:
    """Completes futures of requests with the stored results at their places. Safe from any thread."""

    _clock: Clock
    _jobs: Callable[[], JobSubmission]
    _reading: Reading
    _threads: OwnThreads = field(init=False)
    _monitor: Monitor = field(init=False)
    _waiters: dict[tuple[str, int], _Waiters] = field(factory=dict, init=False)  # by job and position
    _awaited: dict[ResultFuture, _Waiters] = field(factory=dict, init=False)
    _given: dict[tuple[str, int], _Waiters] = field(factory=dict, init=False)  # with names in the store

    def __attrs_post_init__(self) -> None:
        self._threads = OwnThreads(self._clock)
        self._monitor = self._clock.monitor()

    def await_results(self, placed: Iterable[tuple[StoredRequest, NamedPlace]], *, durable: bool) -> None:
        """Complete the futures of requests when results are stored at these places."""
        found: dict[str, dict[int, _Waiters]] = {}
        with self._monitor:
            for each, place in placed:
                at = (place.job_id, place.ix)
                waiters = self._waiters.get(at)
                if waiters is None:
                    waiters = self._waiters[at] = _Waiters(self._settle, place, durable)
                    waiters.paying = 0 if at in self._given else 1
                    found.setdefault(place.job_id, {})[place.ix] = waiters
                waiters.waiting.append(each)
                self._awaited[each.future] = waiters
                each.placed = True
        for job_id, of_job in found.items():
            try:
                self._jobs().engine.carry_on(job_id)
                after = min(waiters.place.after for waiters in of_job.values())
                self._jobs().engine.deliver(job_id, of_job, after=after)
            except BaseException as raised:
                problem = "the request is stored, but its result could not be waited for; submit it again"
                for waiters in of_job.values():
                    self._take_out(waiters)
                    fail(waiters.waiting, raised, problem, sent=True)
                    self._end(waiters)

    def withdraw(self, future: ResultFuture) -> bool:
        """Withdraw a durable request that is being cancelled; return whether that worked.

        1. If its future is completed, or it is not stored yet, it cannot be withdrawn.
        2. If other futures wait for the same answer, only this one is withdrawn.
        3. If its call has not started, and no other process runs its job, it is stored as cancelled.
        """
        with self._monitor:
            waiters = self._awaited.get(future)
            if waiters is None:
                return False
            if len(waiters.waiting) > 1:
                waiters.waiting = [each for each in waiters.waiting if each.future is not future]
                del self._awaited[future]
                return True
        return self._jobs().engine.cancel_item(waiters.place.job_id, waiters.place.ix)

    def find(self, names: Sequence[str]) -> dict[str, NamedPlace]:
        """Return the places of usable deferrable requests by name. A request is not usable if it failed, is
        too old, was delivered in this process, or belongs to a cancelled job.
        """
        self.release()
        try:
            jobs = self._jobs().engine.store.jobs
            found = jobs.find_named(names)
            rows = {job_id: jobs.get(job_id) for job_id in {place.job_id for place in found.values()}}
        except StoreError as error:
            logs.job_error(None, error)
            return {}
        since = self._jobs().engine.wall() - UNDELIVERED_SECONDS
        of_use = {
            job_id
            for job_id, row in rows.items()
            if row is not None and row.created_at >= since and not row.cancel_requested
        }
        with self._monitor:
            return {
                name: place
                for name, place in found.items()
                if place.job_id in of_use
                and place.outcome in (None, "succeeded")
                and (place.job_id, place.ix) not in self._given
            }

    def release(self) -> None:
        """Delete the names of deferrable requests whose answers were delivered. If that fails, another
        process may deliver the answers again.
        """
        with self._monitor:
            given = {at: waiters for at, waiters in self._given.items() if waiters.given}
        places = {
            each.name.text: waiters.place
            for waiters in given.values()
            for each in waiters.waiting
            if each.name is not None
        }
        try:
            if places:
                self._jobs().engine.store.jobs.release(places)
        except SmartbatchError as error:
            logs.job_error(None, error)
            return
        with self._monitor:
            for at in given:
                self._given.pop(at, None)

    def wait_until_settled(self, timeout: float | None) -> None:
        """Wait up to ``timeout`` seconds until no future waits for a result."""
        with self._monitor:
            self._monitor.wait_for(lambda: not self._awaited, timeout)

    def on_own_thread(self) -> bool:
        """Whether the caller runs on a thread that completes futures, so it must not wait for that thread."""
        return self._threads.has_current()

    def abandon(self, error: WrongProcess) -> None:
        """In a forked child, fail the copies of the parent's futures. Must not take an inherited lock."""
        for future in list(self._awaited):
            future.abandon(error)

    # -- settling --------------------------------------------------------------------------------------------

    def _settle(self, waiters: _Waiters, result: Result) -> None:
        """Complete the futures that wait for one request. The first is charged the cost, unless the answer of
        a durable request was already stored; the others share the answer at no cost.
        """
        stored = not isinstance(result.error, ClientClosed | JobNotFound | StoreError)
        self._take_out(waiters, given=stored and not waiters.durable)
        paying = waiters.paying
        if waiters.durable and waiters.place.outcome is not None:
            result, paying = as_kept(result), len(waiters.waiting)
        with self._threads.counted():  # a user's hook could stop the client
            for number, each in enumerate(waiters.waiting):
                if number < paying:
                    named = evolve(result, request_id=each.request.id or result.request_id)
                    made = self._reading.own(each.request, named, self._reading.key_of(each.request))
                else:
                    made = self._reading.follower(each.request, result)
                each.future.complete(made)
        self._end(waiters)

    def _take_out(self, waiters: _Waiters, *, given: bool = False) -> None:
        at = (waiters.place.job_id, waiters.place.ix)
        with self._monitor:
            self._waiters.pop(at, None)
            if given:
                self._given[at] = waiters

    def _end(self, waiters: _Waiters) -> None:
        waiters.given = True
        if not self._waiters:
            self.release()
        with self._monitor:
            for each in waiters.waiting:
                self._awaited.pop(each.future, None)
            self._monitor.notify_all()


def kept_request(request: Request, *, durable: bool) -> Request:
    """Return the stored form of a request: without its context, which may be any object and stays in this
    process, and, if the request is deferrable, without its timeout, which is stored with its job.
    """
    return evolve(request, context=None, timeout=request.timeout if durable else None)


def fail(
    group: Iterable[StoredRequest], error: BaseException, problem: str = "", *, sent: bool = False
) -> None:
    """Fail the futures that have no result yet.

    Args:
        problem: message for an error that is not the library's own; such an error is logged.
        sent: whether the requests may have been sent, so that their cost is unknown.
    """
    if not isinstance(error, SmartbatchError):
        logs.job_error(None, error)
        error = SmartbatchError(f"{problem}: {type(error).__name__}")
    for each in group:
        if not each.future.done():
            request, cost = each.request, None if sent else 0.0
            each.future.complete(Result(request.id or "", error=error, cost=cost, context=request.context))


class AnswerFutures:
    """The futures of several answers to one prompt."""

    def __init__(
        self,
        requests: Sequence[Request],
        submit: Callable[[Request, int], ResultFuture],
        run_later: Callable[[Callable[[], object]], None],
        on_interrupt: Callable[[], object],
    ) -> None:
        """Submit the requests, each with its number; if one is rejected, the earlier ones are cancelled.

        Raises:
            Exception: any error of ``submit``.
        """
        self._requests = requests
        self._lock = threading.Lock()
        self._left = len(requests)
        self._futures: list[ResultFuture] = []
        self.whole = ResultFuture(run_later, _notify, on_interrupt)
        self.whole.withdraw = self._cancel
        on_fork(self)
        try:
            for number, request in enumerate(requests):
                self._futures.append(submit(request, number))
        except BaseException:
            for future in self._futures:
                future.cancel()
            raise
        for future in self._futures:
            # not on the callback thread, where a user's callback may be waiting for this
            Future.add_done_callback(future, self._completed)

    def _completed(self, _: Future[Result]) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        if all(future.cancelled() for future in self._futures):
            self.whole.withdraw = None
            self.whole.cancel()
        elif self.whole.set_running_or_notify_cancel():
            outcomes = zip(self._futures, self._requests, strict=True)
            self.whole.complete(combined_answers([_outcome(future, request) for future, request in outcomes]))

    def after_fork(self) -> None:
        self.whole.abandon(wrong_process_error())

    def _cancel(self, _: ResultFuture) -> bool:
        cancelled = [future.cancel() for future in self._futures]
        return all(cancelled)


def combined_answers(answers: Sequence[Result]) -> Result:
    """Return the result of a prompt with several answers: the first successful one, with the totals of all,
    and each of them in ``answers``. It fails if none succeeded.
    """
    first = next((answer for answer in answers if answer.ok), answers[0])
    known = [answer.cost for answer in answers if answer.cost is not None]
    return evolve(
        first,
        request_id=answers[0].request_id,
        usage=sum((answer.usage for answer in answers), Usage()),
        cost=sum(known) if len(known) == len(answers) else None,
        attempts=sum(answer.attempts for answer in answers),
        answers=tuple(answers),
    )


def _outcome(future: ResultFuture, request: Request) -> Result:
    if future.outcome is not None:
        return future.outcome
    error = RequestCancelled("the answer was cancelled before its call", request_id=request.id)
    return Result(request.id or "", cost=0.0, error=error, context=request.context)


def _notify(future: ResultFuture) -> None:
    """Wake callers of ``concurrent.futures.wait`` after the future was cancelled."""
    future.set_running_or_notify_cancel()
