"""The results of a list as its caller reads them: by the route that was chosen, shown, and kept on Ctrl-C."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, TypeAlias

from attrs import frozen

from smartbatch._clock import Clock
from smartbatch._fork import run_after_collection
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.outcome import ListDecision, Measured, rescue_in_words
from smartbatch.errors import RequestCancelled, RowSkipped
from smartbatch.interrupted import Interrupted
from smartbatch.realtime.bounded_map import BoundedMap
from smartbatch.results import ResultList, of_prompts
from smartbatch.routing.advisor import Advisor
from smartbatch.routing.announced_plan import AnnouncedPlan
from smartbatch.routing.job_results import JobResults
from smartbatch.routing.list_progress import ListDisplay
from smartbatch.routing.stored_lists import CheckedList
from smartbatch.tables.row_prompts import SkippedRow
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
        self._plan: AnnouncedPlan | None = None
        self._results: Taken | None = None
        self._ended = False
        self.decided: ListDecision | None = None

    def __next__(self) -> Result:
        if self._ended:
            raise StopIteration
        try:
            if self._plan is None:
                self._plan = self._advisor.announce(self._decision, self._purpose)
                self._began = self._clock.now()
                self.decided = ListDecision(self._clock.wall(), self._advisor.label, self._decision)
                if self._note is not None:
                    self._note(self.decided)
            if self._results is None:
                self._results = self._take()
            result = next(self._results)
        except StopIteration:
            self._ended = True
            if self._plan is not None and self.decided is not None:
                self._score(self._plan, self.decided)
            raise
        except BaseException:
            self.close()
            raise
        self._plan.add(result)
        return result

    def _score(self, plan: AnnouncedPlan, decided: ListDecision) -> None:
        seconds = self._clock.now() - self._began
        if rescue_in_words(self._decision, plan.actual, None) is not None:
            reason = self._results.rescue() if isinstance(self._results, JobResults) else None
            decided.rescue = rescue_in_words(self._decision, plan.actual, reason)
        event = plan.score(seconds)
        if event is not None:
            decided.measured = Measured(
                seconds=event.seconds,
                cost=event.cost,
                individual_cost=event.individual_cost,
                batch_cost=event.batch_cost,
            )
            if self._note is not None:
                self._note(decided)

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


def without_skipped(prompts: Iterable[Any], answers: int) -> tuple[Iterable[Any], dict[int, Result]]:
    """Return prompts, and the results of those rows among them that are skipped, by their position in the
    list of results.

    The prompts keep their positions: whoever makes requests of them leaves out the skipped rows. If they are
    read lazily, their results are there as soon as they have been read.

    Args:
        answers: results of each row that is not skipped.
    """
    skipped: dict[int, Result] = {}

    def read() -> Iterator[Any]:
        for at, prompt in enumerate(prompts):
            if isinstance(prompt, SkippedRow):
                before = len(skipped)
                skipped[(at - before) * answers + before] = _skipped(at, prompt)
            yield prompt

    if isinstance(prompts, Sequence):
        deque(read(), maxlen=0)
        return prompts, skipped
    return read(), skipped


def _skipped(at: int, row: SkippedRow) -> Result:
    error = RowSkipped(f"row {at} (counted from 0) was skipped: {row.reason}")
    return Result("", error=error, cost=0.0, row=at)


class Merged(Iterator[Result]):
    """The results of requests with those of skipped rows among them, at their positions.

    Args:
        results: of the requests.
        skipped: results of skipped rows by position; there before the result of any later row.
        ordered: whether the results come in the order of the rows. If not, those of skipped rows come first.
    """

    def __init__(self, results: Iterator[Result], skipped: dict[int, Result], *, ordered: bool) -> None:
        self._results = results
        self._skipped = skipped
        self._ordered = ordered
        self._position = 0
        self._held: Result | None = None
        self._ended = False

    def __next__(self) -> Result:
        if not self._ordered:
            return self._next_unordered()
        if self._position not in self._skipped and self._held is None and not self._ended:
            try:
                self._held = next(self._results)
            except StopIteration:
                self._ended = True
        at = self._position
        self._position += 1
        if at in self._skipped:
            return self._skipped[at]
        held, self._held = self._held, None
        if held is None:
            raise StopIteration
        return held

    def _next_unordered(self) -> Result:
        while True:
            if self._skipped:
                return self._skipped.popitem()[1]
            if self._ended:
                raise StopIteration
            try:
                return next(self._results)
            except StopIteration:
                self._ended = True
