"""Completes the futures of stored requests with the results of their jobs, and combines several answers in
one future.
"""

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


UNDELIVERED_SECONDS = 7 * 86_400.0  # age at which a stored request is no longer shared


@define(eq=False)
class StoredRequest:
    request: Request
    name: ItemName | None  # None if it shares no answer
    future: ResultFuture
    deadline: float = math.inf  # monotonic seconds
    placed: bool = False


@define(eq=False)
class _Waiters:
    """The futures that wait for the same item of a job."""

    settle_all: Callable[[_Waiters, Result], None]
    place: NamedPlace
    durable: bool
    waiting: list[StoredRequest] = field(factory=list)
    paying: int = 1  # number of futures, counted from the first, that are charged the cost
    given: bool = False

    def complete(self, result: Result) -> None:
        self.settle_all(self, result)

    def abandon(self, error: WrongProcess) -> None:
        """Fail the copies of the parent's futures in a forked child."""
        for each in self.waiting:
            each.future.abandon(error)


@define(eq=False, repr=False)
class AwaitedPlaces:
    """Completes the futures of requests when their results are stored. Safe to use from any thread."""

    _clock: Clock
    _jobs: Callable[[], JobSubmission]
    _reading: Reading
    _threads: OwnThreads = field(init=False)
    _monitor: Monitor = field(init=False)
    _waiters: dict[tuple[str, int], _Waiters] = field(factory=dict, init=False)  # by job and position
    _awaited: dict[ResultFuture, _Waiters] = field(factory=dict, init=False)
    # delivered, but still named in the store
    _given: dict[tuple[str, int], _Waiters] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._threads = OwnThreads(self._clock)
        self._monitor = self._clock.monitor()

    def await_results(self, placed: Iterable[tuple[StoredRequest, NamedPlace]], *, durable: bool) -> None:
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

        1. A completed request, or one that is not stored yet, cannot be withdrawn.
        2. If other futures wait for the same answer, only this future is withdrawn.
        3. Otherwise the request is stored as cancelled, unless its call has started or another process runs
           its job.
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
        """Return the places of usable deferrable requests by name.

        A request cannot be used if it failed, is too old, was delivered in this process, or belongs to a
        cancelled job.
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
        """Delete the names of delivered deferrable requests. If this fails, another process may deliver their
        answers again.
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
        with self._monitor:
            self._monitor.wait_for(lambda: not self._awaited, timeout)

    def on_own_thread(self) -> bool:
        """Whether the calling thread completes futures and therefore must not wait for one."""
        return self._threads.has_current()

    def abandon(self, error: WrongProcess) -> None:
        """Fail the copies of the parent's futures in a forked child, without taking a lock inherited from the
        parent.
        """
        for future in list(self._awaited):
            future.abandon(error)

    # -- completion ------------------------------------------------------------------------------------------

    def _settle(self, waiters: _Waiters, result: Result) -> None:
        """Complete the futures that wait for one request.

        The first future is charged the cost, unless the answer of a durable request was stored earlier. The
        others share the answer at no cost.
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
    """Return the form in which a request is stored. It lacks the context, which may be any object, and the
    timeout of a deferrable request, which is stored with the job.
    """
    return evolve(request, context=None, timeout=request.timeout if durable else None)


def fail(
    group: Iterable[StoredRequest], error: BaseException, problem: str = "", *, sent: bool = False
) -> None:
    """Fail the futures that have no result yet.

    Args:
        problem: message for an error raised by other code; such an error is logged.
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
    def __init__(
        self,
        requests: Sequence[Request],
        submit: Callable[[Request, int], ResultFuture],
        run_later: Callable[[Callable[[], object]], None],
        on_interrupt: Callable[[], object],
    ) -> None:
        """Submit the requests; if one is rejected, cancel the earlier ones."""
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
            # a user's callback may block the callback thread while it waits for this future
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
    """Combine several answers to one prompt: the first successful one, the total cost and usage, and every
    answer in ``answers``. The result is a failure if no answer succeeded.
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
    error = RequestCancelled("the answer was cancelled before its call began", request_id=request.id)
    return Result(request.id or "", cost=0.0, error=error, context=request.context)


def _notify(future: ResultFuture) -> None:
    """Wake callers of ``concurrent.futures.wait``."""
    future.set_running_or_notify_cancel()
