"""The results of a list as its caller reads them: by the route that was chosen, shown, and kept on Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import TypeAlias

from attrs import frozen

from smartbatch._clock import Clock
from smartbatch._fork import run_after_collection
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.outcome import ListDecision, Measured, rescue_in_words
from smartbatch.errors import RequestCancelled
from smartbatch.events import RouteScored
from smartbatch.interrupted import Interrupted
from smartbatch.realtime.bounded_map import BoundedMap
from smartbatch.results import ResultList, of_prompts
from smartbatch.routing.advisor import Advisor
from smartbatch.routing.job_results import JobResults
from smartbatch.routing.list_progress import ListDisplay
from smartbatch.routing.skipped_rows import Merged
from smartbatch.routing.stored_lists import CheckedList
from smartbatch.types import Request, Result

Taken: TypeAlias = JobResults | BoundedMap
"""The results of a route that was taken."""


class RoutedResults(Iterator[Result]):
    """The results of a list whose route was chosen; one thread reads it. The choice is told and its route
    taken with the first result that is asked for; it is scored after the last.

    Attributes:
        decided: the choice, once it was told, and what it took, once that is known.

    No generator: one that is collected cleans up in a finaliser, which must not wait for a lock.
    """

    def __init__(
        self,
        advisor: Advisor,
        clock: Clock,
        asked: CheckedList,
        decision: Decision,
        take: Callable[[], Taken],
        note: Callable[[ListDecision], object] | None,
    ) -> None:
        self._advisor = advisor
        self._clock = clock
        self._decision = decision
        self._purpose = common_purpose(asked.requests)
        self._take = take
        self._note = note
        self._actual = advisor.actual_cost()
        self._results: Taken | None = None
        self._ended = False
        self.decided: ListDecision | None = None

    def __next__(self) -> Result:
        if self._ended:
            raise StopIteration
        try:
            if self._results is None:
                self._number = self._advisor.tell(self._decision, self._purpose)
                self._began = self._clock.now()
                self.decided = ListDecision(self._clock.wall(), self._advisor.label, self._decision)
                if self._note is not None:
                    self._note(self.decided)
                self._results = self._take()
            result = next(self._results)
        except StopIteration:
            self._ended = True
            seconds = self._clock.now() - self._began
            self._explain_rescue()
            self._scored(self._advisor.score(self._number, self._decision, seconds, self._actual))
            raise
        except BaseException:
            self.close()
            raise
        self._actual.add(result)
        return result

    def _explain_rescue(self) -> None:
        if self.decided is None or rescue_in_words(self._decision, self._actual, None) is None:
            return
        reason = self._results.rescue() if isinstance(self._results, JobResults) else None
        self.decided.rescue = rescue_in_words(self._decision, self._actual, reason)

    def _scored(self, event: RouteScored | None) -> None:
        if event is not None and self.decided is not None:
            self.decided.measured = Measured(
                seconds=event.seconds,
                cost=event.cost,
                individual_cost=event.individual_cost,
                batch_cost=event.batch_cost,
            )
            if self._note is not None:
                self._note(self.decided)

    def unread(self) -> dict[int, Result]:
        """Return, after :meth:`close`, the results that came and were not taken, by position."""
        return {} if self._results is None else self._results.unread()

    def was_sent(self, position: int) -> bool:
        """Whether, after :meth:`close`, a request without a result may have been sent."""
        return self._results is not None and self._results.was_sent(position)

    def came(self) -> int:
        """Return how many results came, taken ones included."""
        return 0 if self._results is None else self._results.came()

    def close(self) -> None:
        """Cancel what has not started and read no further."""
        self._ended = True
        if self._results is not None:
            self._results.close()


@frozen
class ListFacts:
    """What is known of a list that is read.

    Attributes:
        requests: all of them; empty where they are read lazily.
        again: what asking the list again asks and pays, in words.
        display: shows how far it is.
        prompts: as they were given.
        skipped: the results of skipped rows, by position.
        ordered: whether results come in the order of the rows.
    """

    requests: Sequence[Request]
    again: str
    display: ListDisplay
    prompts: object
    skipped: dict[int, Result]
    ordered: bool = True


class ListResults(Iterator[Result]):
    """The results of a list of a client, which is kept alive as long as they are. No generator, see above."""

    def __init__(self, client: object, results: RoutedResults | Taken, facts: ListFacts) -> None:
        self._client = client
        self._results = results
        self._merged = Merged(results, facts.skipped, ordered=facts.ordered)
        self._facts = facts
        self.prompts = facts.prompts

    def __next__(self) -> Result:
        try:
            self._facts.display.begin()
            return next(self._merged)
        except KeyboardInterrupt as error:
            raise self.interrupted(error, None) from None
        except BaseException:
            self._facts.display.close()
            raise

    def __del__(self) -> None:
        """End what is shown; on another thread, as this one may hold any lock."""
        if self._facts.display.is_open:
            run_after_collection(self._facts.display.close)

    def close(self) -> None:
        """Cancel what has not started and read no further."""
        self._results.close()
        self._facts.display.close()

    @property
    def decided(self) -> ListDecision | None:
        """By what its route was chosen; ``None`` where none was chosen for all of it."""
        return self._results.decided if isinstance(self._results, RoutedResults) else None

    def interrupted(self, error: KeyboardInterrupt, read: Sequence[Result] | None) -> Interrupted:
        """Close, and return what the interrupt raises.

        Args:
            read: the results that were read before, where the caller collects them: then the list is told as
                a whole; ``None`` for a reader that has those.
        """
        self.close()
        unread, requests = self._results.unread, self._facts.requests
        before = [] if read is None else read

        def results() -> ResultList:
            came, was_sent = unread(), self._results.was_sent
            if read is None:
                return ResultList(came[at] for at in sorted(came))
            skipped = self._facts.skipped
            total = max(len(requests), *(at + 1 for at in came), len(before) - len(skipped), 0)
            rows = (row for row in count() if row not in skipped)
            found = skipped | dict(enumerate(before))
            for at, row in zip(range(total), rows, strict=False):  # the rows of the requests
                request = requests[at] if at < len(requests) else Request()
                found.setdefault(row, came.get(at) or _unanswered(request, sent=was_sent(at)))
            return of_prompts(ResultList(found[row] for row in sorted(found)), self.prompts)

        of = f" of {len(requests):,}" if requests else ""
        those = "them" if read is not None else "those that the loop was not given"
        told = Interrupted(
            f"interrupted; {self._results.came():,}{of} results had come: .results of this exception has "
            f"{those} (sys.last_value, where nobody caught it). {self._facts.again}",
            results,
        )
        for note in getattr(error, "__notes__", ()):
            told.add_note(note)
        return told


def _unanswered(request: Request, *, sent: bool) -> Result:
    """Return the result of a request without an answer; if it may have been sent, its cost is unknown."""
    error = RequestCancelled("the list was interrupted before its answer came", request_id=request.id)
    return Result(
        request.id or "",
        error=error,
        cost=None if sent else 0.0,
        context=request.context,
        row=request.row,
        sample=request.sample,
    )


def common_purpose(requests: Sequence[Request]) -> str | None:
    """Return the purpose of all of them; ``None`` where they differ."""
    purposes = {request.purpose for request in requests}
    return purposes.pop() if len(purposes) == 1 else None
