"""Sends a list when its caller reads the first result, displays its progress, and keeps its results on
Ctrl-C.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias, Unpack

from attrs import evolve, field, frozen

from smartbatch._clock import Clock
from smartbatch._fork import run_after_collection
from smartbatch.config import BatchingConfig
from smartbatch.core.limits.failures import EqualFailures
from smartbatch.core.preparation.preparer import row_named
from smartbatch.core.preparation.validation import check_params, normalise
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.outcome import ListDecision, Measured, rescue_in_words
from smartbatch.errors import AllRequestsFailed, ClientClosed, RequestCancelled, RowSkipped
from smartbatch.keywords import ConstraintParams, ListParams
from smartbatch.observe.list_progress import ListDisplay
from smartbatch.observe.listeners import warn_of_batch
from smartbatch.realtime.bounded_map import BoundedMap, ListOptions, ReadAhead
from smartbatch.realtime.realtime import Realtime
from smartbatch.results import Interrupted, ResultList, RetryParams, SentRequests, of_prompts
from smartbatch.routing.advisor import AnnouncedPlan, individual_calls
from smartbatch.routing.list_planner import CheckedList, ListPlanner
from smartbatch.routing.stored_lists import JobResults, StoredLists
from smartbatch.tables.row_prompts import SkippedRow
from smartbatch.types import OnError, Prompt, Prompts, Request, Result, Route, Strategy

Taken: TypeAlias = JobResults | BoundedMap


@frozen(eq=False, repr=False)
class RouteTaker:
    """Sends the lists of one client by the chosen routes.

    Args:
        stored: stores lists that are sent as a batch, and lists with a key.
        note: stores the decision on a list without a job; called again with the actual time and cost.
    """

    _config: BatchingConfig
    clock: Clock
    planner: ListPlanner
    _realtime: Realtime
    _stored: StoredLists
    note: Callable[[ListDecision], object]

    def chosen(self, asked: CheckedList, decision: Decision, options: ListOptions) -> RoutedResults:
        return RoutedResults(self, asked, decision, options)

    def resumed(self, asked: CheckedList, options: ListOptions) -> JobResults | None:
        if asked.key is None or self._stored.earlier(asked.key) is None:
            return None
        return self._stored.stored_results(asked, None, options)

    def lazily(
        self,
        prompts: Iterable[Prompt],
        plain: Mapping[str, Any],
        given: Mapping[str, Any],
        options: ListOptions,
        ahead_of: object | None,
    ) -> BoundedMap:
        """Return the results of a list that is read while its requests are sent in real time.

        Args:
            plain: arguments of the requests.
            given: constraints.
            ahead_of: the prompts as given, if a thread should read them in advance.
        """
        planner = self.planner
        constraints = planner.constraints(given)
        budget = planner.budget(constraints.budget, planner.model_of(plain))
        requests: Iterable[Request] = planner.preparer.requests(prompts, plain)
        if budget is not None:
            requests = planner.priced_as_read(requests)
        if ahead_of is not None:
            requests = ReadAhead(iter(requests), ahead_of, self.clock)
        route = Route.INDIVIDUAL if constraints.strategy is Strategy.INDIVIDUAL else None
        abilities = planner.model.provider.capabilities
        shared = abilities.max_texts if plain.get("embedding") is not None else abilities.max_shared
        ahead = None
        if route is not None or (shared <= 1 and not self._config.packing):  # one request per call
            ahead = individual_calls(self._config, constraints.strategy)
        stop = None if constraints.keep_going else EqualFailures(None)
        options = evolve(options, own_budget=budget, route=route, ahead=ahead, stop=stop)
        return self._realtime.map(requests, options)

    def take(self, asked: CheckedList, decision: Decision, options: ListOptions) -> Taken:
        """Send a list by the chosen route.

        1. A batch is stored as a job. Its caller may wait for hours, so this is logged immediately.
        2. A list with a key is stored as a job.
        3. Any other list is sent in real time within its budget.
        """
        chosen, constraints = decision.chosen, decision.constraints
        if chosen.route.by_batch:
            results = self._stored.stored_results(asked, decision, options)
            if results.job_id is not None:
                again = f"smartbatch.job({results.job_id!r}).results()"
                if asked.key is not None:
                    again = f"the same call with key={asked.key!r}"
                rest, times = decision.load.by_job - chosen.first, (chosen.p50, chosen.p95)
                warn_of_batch(self.planner.advisor.label, rest, chosen.first, times, again)
            return results
        if asked.key is not None:
            return self._stored.stored_results(asked, decision, options)
        budget = None
        if constraints.budget is not None:
            models = map(self.planner.model.of, asked.requests)
            budget = self.planner.budget(constraints.budget, asked.model, *models)
        stop = None if constraints.keep_going else EqualFailures(len(asked.requests))
        alone = chosen.route is Route.INDIVIDUAL
        ahead = individual_calls(self._config, constraints.strategy) if alone else None
        options = evolve(options, own_budget=budget, route=chosen.route, ahead=ahead, stop=stop)
        return self._realtime.map(asked.requests, options)


class RoutedResults(Iterator[Result]):
    """The results of a list with a chosen route, for one reading thread.

    Reading the first result publishes the decision and sends the list; the plan is scored after the last.
    This is not a generator, because the finalizer of a generator must not wait for a lock.
    """

    def __init__(
        self, routes: RouteTaker, asked: CheckedList, decision: Decision, options: ListOptions
    ) -> None:
        self._routes = routes
        self._asked = asked
        self._decision = decision
        self._options = options
        self._has_job = asked.key is not None or decision.chosen.route.by_batch  # the job stores the decision
        self._plan: AnnouncedPlan | None = None
        self._results: Taken | None = None
        self._ended = False
        self.decided: ListDecision | None = None

    def __next__(self) -> Result:
        if self._ended:
            raise StopIteration
        try:
            plan = self._plan or self._announce()
            if self._results is None:
                self._results = self._routes.take(self._asked, self._decision, self._options)
            result = next(self._results)
        except StopIteration:
            self._ended = True
            if self._plan is not None and self.decided is not None:
                self._score(self._plan, self.decided)
            raise
        except BaseException:
            self.close()
            raise
        plan.add_result(result)
        return result

    def _announce(self) -> AnnouncedPlan:
        routes = self._routes
        advisor = routes.planner.advisor.for_model(self._asked.model)
        self._plan = advisor.announce(self._decision, common_purpose(self._asked.requests))
        self._began = routes.clock.now()
        self.decided = ListDecision(routes.clock.wall(), advisor.label, self._decision)
        if not self._has_job:
            routes.note(self.decided)
        return self._plan

    def _score(self, plan: AnnouncedPlan, decided: ListDecision) -> None:
        seconds = self._routes.clock.now() - self._began
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
            if not self._has_job:
                self._routes.note(decided)

    def unread(self) -> dict[int, Result]:
        return {} if self._results is None else self._results.unread()

    def was_sent(self, position: int) -> bool:
        """Whether a request without a result may have been sent. Call :meth:`close` first."""
        return self._results is not None and self._results.was_sent(position)

    def arrived(self) -> int:
        """Return the number of results that have arrived, read or not."""
        return 0 if self._results is None else self._results.arrived()

    def close(self) -> None:
        """Cancel requests that have not started."""
        self._ended = True
        if self._results is not None:
            self._results.close()


class ListClient(Protocol):
    """The client that sends a list."""

    def generate(
        self,
        prompts: Prompts,
        *,
        on_error: OnError | None = None,
        progress: bool | None = None,
        **params: Unpack[ListParams[Any]],
    ) -> ResultList[Any]: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def send_again(
    client: ListClient,
    given: Mapping[str, Any],
    requests: Mapping[int, Request],
    changes: Mapping[str, Any],
    progress: bool | None,
) -> tuple[Sequence[Request], ResultList[Any]]:
    """Send requests of a list again; return them with the changes, and their results.

    Args:
        given: the constraints of the list, and its key, which is not used again.
        requests: by position in the list.
        changes: parameters and constraints that replace those of the list.
        progress: see :meth:`smartbatch.BatchingClient.generate`.

    Raises:
        InvalidRequest: a change is invalid; the message names the row.
    """
    check_params(changes, RetryParams.__optional_keys__ - {"n", "id"})
    constraints = ConstraintParams.__optional_keys__
    changed = []
    for row, request in requests.items():
        own = {name: value for name, value in changes.items() if name not in constraints}
        own |= {"row": row} if request.embedding is not None else {"row": row, "n": 1}
        changed.append(row_named(row, partial(normalise, request, **own)))
    limits = {name: value for name, value in {**given, **changes}.items() if name in constraints}
    send: Callable[[], ResultList[Any]] = partial(
        client.generate, changed, on_error="result", progress=progress, **limits
    )
    try:
        try:
            return changed, send()
        except ClientClosed:
            with client:
                return changed, send()
    except AllRequestsFailed as error:
        return changed, error.results


@frozen
class ListFacts:
    requests: Sequence[Request]  # empty if they are read lazily
    again: str  # note for the user about requests that the same call would send and pay for again
    display: ListDisplay
    prompts: object  # as given
    skipped: dict[int, Result]  # by position
    ordered: bool = True
    constraints: Mapping[str, Any] = field(factory=dict)  # as given


class ListResults(Iterator[Result]):
    """The results of a list, which keep its client alive. Not a generator; see :class:`RoutedResults`."""

    def __init__(self, client: ListClient, results: RoutedResults | Taken, facts: ListFacts) -> None:
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
        """Close the display on another thread, because the current thread may hold any lock."""
        if self._facts.display.is_open:
            run_after_collection(self._facts.display.close)

    def close(self) -> None:
        self._results.close()
        self._facts.display.close()

    @property
    def decided(self) -> ListDecision | None:
        return self._results.decided if isinstance(self._results, RoutedResults) else None

    def sent(self, results: ResultList) -> SentRequests:
        """Return the requests that can be sent again, of all results in order; none if they were read
        lazily.
        """
        positions = (at for at in count() if at not in self._facts.skipped)
        requests = dict(zip(positions, self._facts.requests, strict=False))
        return SentRequests.of(results, requests, partial(send_again, self._client, self._facts.constraints))

    def interrupted(self, error: KeyboardInterrupt, read: Sequence[Result] | None) -> Interrupted:
        """Close the list and return the exception that replaces the interrupt.

        Args:
            read: the results read so far, if the caller collects them.
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
            for at, row in zip(range(total), rows, strict=False):  # only the requested rows
                request = requests[at] if at < len(requests) else Request()
                found.setdefault(row, came.get(at) or unanswered(request, sent=was_sent(at)))
            listed = ResultList(found[row] for row in sorted(found))
            listed.sent = self.sent(listed)
            return of_prompts(listed, self.prompts)

        of = f" of {len(requests):,}" if requests else ""
        those = "them" if read is not None else "the unread ones"
        shown = Interrupted(
            f"interrupted; {self._results.arrived():,}{of} results had arrived. The attribute .results of "
            f"this exception (sys.last_value, if it was not caught) contains {those}. {self._facts.again}",
            results,
        )
        for note in getattr(error, "__notes__", ()):
            shown.add_note(note)
        return shown


def unanswered(request: Request, *, sent: bool) -> Result:
    """Return the result of a request whose list was interrupted before its answer arrived."""
    error = RequestCancelled("the list was interrupted before its answer arrived", request_id=request.id)
    return Result(
        request.id or "",
        error=error,
        cost=None if sent else 0.0,
        context=request.context,
        row=request.row,
        sample=request.sample,
    )


def common_purpose(requests: Sequence[Request]) -> str | None:
    purposes = {request.purpose for request in requests}
    return purposes.pop() if len(purposes) == 1 else None


def without_skipped(prompts: Iterable[Any], answers: int) -> tuple[Iterable[Any], dict[int, Result]]:
    """Separate skipped rows from prompts; return the prompts and the results of skipped rows by position.

    Prompts keep their positions. If they are read lazily, results of skipped rows are added while they are
    read.

    Args:
        answers: results per row that is not skipped.
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
    """Inserts the results of skipped rows at their positions.

    Args:
        skipped: results of skipped rows by position, each added before the results of later rows.
        ordered: whether results are in row order. Otherwise skipped rows come first.
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
