"""Several answers to one prompt: a request for each, and one future for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from attrs import evolve

from smartbatch._fork import on_fork
from smartbatch.errors import RequestCancelled
from smartbatch.realtime.ticket import ResultFuture, of_the_parent
from smartbatch.types import Request, Result, Usage


class AnswerFutures:
    """The futures of the answers to one prompt.

    Attributes:
        whole: the future of all; the thread that completes the last one completes it, too. Cancelling it
            cancels every answer whose call has not started; if that was all of them, it is cancelled itself.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        submit: Callable[[Request, int], ResultFuture],
        run_later: Callable[[Callable[[], object]], None],
        on_interrupt: Callable[[], object],
    ) -> None:
        """Submit the requests, each with its number; if one is refused, the earlier ones are cancelled.

        Raises:
            Exception: whatever ``submit`` raises.
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
            # not as users add theirs, which wait for the thread of callbacks: one of them may wait for this
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
            self.whole.settle(together([_outcome(future, request) for future, request in outcomes]))

    def after_fork(self) -> None:
        """In a forked child: end the copy of the parent's future, as those of single answers end."""
        self.whole.abandon(of_the_parent())

    def _cancel(self, _: ResultFuture) -> bool:
        cancelled = [future.cancel() for future in self._futures]
        return all(cancelled)


def together(answers: Sequence[Result]) -> Result:
    """Return the result of a prompt with several answers: that of the first that succeeded, with the totals
    of all and each of them in ``answers``. It failed if none succeeded."""
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
    """Tell those in ``concurrent.futures.wait`` that the future was cancelled."""
    future.set_running_or_notify_cancel()
