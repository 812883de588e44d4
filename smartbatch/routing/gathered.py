"""What single requests that go into jobs have in common: who takes an item's result, and how they fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from attrs import define, evolve, field, frozen

from smartbatch.core.preparation.preparer import RequestPreparer
from smartbatch.errors import SmartbatchError, WrongProcess
from smartbatch.observe import logs
from smartbatch.realtime.callbacks import CallbackThread
from smartbatch.realtime.realtime import Realtime
from smartbatch.realtime.ticket import ResultFuture
from smartbatch.routing.list_job import Reading
from smartbatch.types import Request, Result

if TYPE_CHECKING:
    from smartbatch.jobs.job_submission import JobSubmission


@frozen(eq=False, repr=False)
class SingleRequestParts:
    """The parts of a client that its single requests of jobs need.

    Attributes:
        jobs: returns what stores them as jobs.
        reading: makes of a stored result what the caller asked for.
    """

    preparer: RequestPreparer
    realtime: Realtime
    jobs: Callable[[], JobSubmission]
    callbacks: CallbackThread
    reading: Reading


class GatheredRequest(Protocol):
    """A request on its way into a job, and who waits for it."""

    @property
    def request(self) -> Request: ...

    @property
    def future(self) -> ResultFuture: ...


G = TypeVar("G", bound=GatheredRequest)
P = TypeVar("P")


@define(eq=False)
class GatheredWaiters(Generic[G, P]):
    """Those in this process who wait for one item of a job; its result is handed to them together.

    Attributes:
        settle_all: settles every future; called once, by one thread.
        place: where the item stands in the store.
        first: whether the first of them is told what the item cost; the others took part in it.
    """

    settle_all: Callable[[GatheredWaiters[G, P], Result], None]
    place: P
    waiting: list[G] = field(factory=list)
    first: bool = True

    def settle(self, result: Result) -> None:
        """Settle every future."""
        self.settle_all(self, result)

    def hand_out(
        self, reading: Reading, result: Result, *, own: int, key_of: Callable[[G], bytes | None]
    ) -> None:
        """Settle every future with a stored result.

        Args:
            own: how many of the first have it as their own, with its cost; the others took part in it.
            key_of: says under which key the cache keeps the answer to a request.
        """
        for number, each in enumerate(self.waiting):
            if number < own:
                named = evolve(result, request_id=each.request.id or result.request_id)
                made = reading.own(each.request, named, key_of(each))
            else:
                made = reading.follower(each.request, result)
            each.future.settle(made)

    def abandon(self, error: WrongProcess) -> None:
        """In a forked child: end the copies of the parent's futures."""
        for each in self.waiting:
            each.future.abandon(error)


def fail(group: Iterable[GatheredRequest], error: BaseException, problem: str, *, sent: bool = False) -> None:
    """Fail the futures that have no result yet.

    Args:
        problem: what the users read of an error that is none of the library's; that one is logged.
        sent: whether the requests may have been sent, so that their cost is unknown.
    """
    if not isinstance(error, SmartbatchError):
        logs.job_error(None, error)
        error = SmartbatchError(f"{problem}: {type(error).__name__}")
    for each in group:
        if not each.future.done():
            request, cost = each.request, None if sent else 0.0
            each.future.settle(Result(request.id or "", error=error, cost=cost, context=request.context))
