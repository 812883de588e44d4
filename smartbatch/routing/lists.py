"""Routes lists: checks each as a whole, chooses a route, sends it, and scores the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from smartbatch._clock import Clock
from smartbatch.config import BatchingConfig, checked
from smartbatch.core.preparation.preparer import kind_of, prompt_list
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.outcome import ActualCost, ListDecision
from smartbatch.errors import InvalidRequest
from smartbatch.events import JobFinished
from smartbatch.jobs.job_options import JobOptions, batches_of
from smartbatch.keywords import JobParams, ReadingParams
from smartbatch.observe.list_progress import ListDisplay, ListDisplays, OnProgress, ProgressCounter
from smartbatch.observe.progress import new_display
from smartbatch.plan import Plan
from smartbatch.realtime.bounded_map import ListOptions
from smartbatch.realtime.engine import stored_stream
from smartbatch.realtime.realtime import Realtime
from smartbatch.realtime.text_stream import TextStream
from smartbatch.results import ReportFile, ResultList, as_interrupted, ended
from smartbatch.routing.advisor import AnnouncedPlan
from smartbatch.routing.list_planner import (
    CheckedList,
    ListPlanner,
    may_wait,
    prompts_of,
    refuse_skips,
    split_constraints,
    split_known,
)
from smartbatch.routing.list_results import (
    ListClient,
    ListFacts,
    ListResults,
    RoutedResults,
    RouteTaker,
    Taken,
    common_purpose,
    without_skipped,
)
from smartbatch.types import Kind, OnError, Prompt, Prompts, Request, Result, Route, Strategy

if TYPE_CHECKING:
    from smartbatch.jobs.job_submission import JobSubmission
    from smartbatch.jobs.records import ItemName, JobRow

_WHOLE_LIST_STRATEGIES = ("batch", "hybrid", "threshold")
MAX_DECISIONS = 1000  # decisions kept for unfinished jobs, which may finish in another process


@frozen
class ReaderOptions:
    """How the caller of a list reads its results; see :meth:`smartbatch.BatchingClient.map`."""

    on_error: OnError | None
    on_progress: OnProgress | None
    progress: bool | None
    ordered: bool = True
    whole: bool = False  # return all results together
    read_ahead: bool = True  # read an iterator on its own thread

    def with_params(self, params: Mapping[str, Any]) -> tuple[ReaderOptions, dict[str, Any]]:
        others, reading = split_constraints(params, ReadingParams.__optional_keys__)
        read_ahead = reading.get("read_ahead", self.read_ahead)
        if not isinstance(read_ahead, bool):
            raise InvalidRequest("read_ahead must be True or False", field="read_ahead")
        return evolve(self, read_ahead=read_ahead), others


@frozen(eq=False, repr=False)
class ListRouter:
    _config: BatchingConfig
    _clock: Clock
    _planner: ListPlanner
    _realtime: Realtime
    _jobs: Callable[[], JobSubmission]
    _routes: RouteTaker
    _decided: dict[str, AnnouncedPlan] = field(factory=dict, init=False)  # by job id
    displays: ListDisplays = field(factory=ListDisplays, init=False)

    # -- lists -----------------------------------------------------------------------------------------------

    def map_results(
        self,
        prompts: Prompts,
        params: Mapping[str, Any],
        client: ListClient,
        reader: ReaderOptions,
    ) -> ListResults:
        """Return the results of a list; see :meth:`smartbatch.BatchingClient.map`.

        A sequence is checked as a whole immediately, as is an iterable whose route depends on all prompts.
        Any other iterable is read lazily and sent in real time. The results keep ``client`` alive.
        """
        try:
            return self._opened(prompts, params, client, reader)
        except KeyboardInterrupt as error:
            raise as_interrupted(error) from None

    def _opened(
        self, given_prompts: Prompts, params: Mapping[str, Any], client: ListClient, reader: ReaderOptions
    ) -> ListResults:
        """Return the results of a list.

        1. An iterator that needs no choice of a route is read lazily and sent in real time.
        2. A list whose key has a job resumes that job.
        3. For any other list a route is chosen. It is sent when the first result is read.
        """
        reader, params = reader.with_params(params)
        prompts, params = prompts_of(given_prompts, params)
        prompts, skipped = without_skipped(prompts, self._planner.preparer.answers_each(params))
        plain, given = split_known(params)
        requests: Sequence[Request] = ()
        results: RoutedResults | Taken
        if not isinstance(prompts, Sequence) and not self._needs_all(given):
            total = None
            if isinstance(prompts, Sized):
                total = len(prompts) * self._planner.preparer.answers_each(plain)
            options, display = self._options(total, reader)
            ahead_of = given_prompts if reader.read_ahead else None
            results, again = self._routes.lazily(prompts, plain, given, options, ahead_of), self._again(None)
        else:
            asked = self._planner.checked(prompts, plain, given)
            requests = asked.requests
            options, display = self._options(len(requests), reader)
            resumed, again = self._routes.resumed(asked, options), self._again(asked.key)
            if resumed is not None:
                results = resumed
            else:
                decision = self._planner.considered(asked)
                results, again = (
                    self._routes.chosen(asked, decision, options),
                    self._again(asked.key, decision),
                )
        facts = ListFacts(requests, again, display, given_prompts, skipped, reader.ordered, given)
        return ListResults(client, results, facts)

    def collected(
        self,
        prompts: Prompts,
        params: Mapping[str, Any],
        client: ListClient,
        reader: ReaderOptions,
    ) -> ResultList:
        began = self._clock.now()
        return self._collect(self._opened(prompts, params, client, evolve(reader, whole=True)), began)

    def _collect(self, results: ListResults, began: float) -> ResultList:
        collected = ResultList[Any]()
        first = self._clock.wall() - (self._clock.now() - began)
        try:
            collected.extend(results)
        except KeyboardInterrupt as error:
            raise results.interrupted(error, collected) from None
        if results.decided is not None:
            collected.rescue = results.decided.rescue
        collected.reporter = partial(_report, self._planner.advisor.label, first, results.decided)
        collected.sent = results.sent(collected)
        return ended(collected, self._clock.now() - began, results.prompts)

    def _options(self, total: int | None, reader: ReaderOptions) -> tuple[ListOptions, ListDisplay]:
        count = None
        if reader.on_progress is not None:
            count = ProgressCounter(reader.on_progress, total, self._clock.now)
        show = partial(new_display, reader.progress, total, self._clock.now)
        display = ListDisplay(show, self.displays, count)
        chosen = self._config.on_error if reader.on_error is None else checked("on_error", reader.on_error)
        options = ListOptions(
            raising=chosen == "raise",
            ordered=reader.ordered,
            whole=reader.whole and chosen != "raise",
            display=display,
        )
        return options, display

    def _again(self, key: str | None, decision: Decision | None = None) -> str:
        """Return a note on which requests the same call would pay for again. Answers of a batch are cached
        when they are read.
        """
        if key is not None:
            return f"The same call with key={key!r} continues the list and pays for only what is missing"
        if self._config.cache is not None and not (decision is not None and decision.chosen.route.by_batch):
            return "Their answers are in the cache, so the same call pays for only what is missing"
        return (
            "The same call pays for all of them again; "
            'with key="..." or cache="..." it would pay only for what is missing'
        )

    def stream(self, prompt: Prompt, params: Mapping[str, Any]) -> TextStream:
        """Stream the answer to one request.

        If the client's strategy is batch, the stream has one piece, which arrives when the batch has
        finished. Requests that may not wait for a batch are streamed in real time, as are all requests of a
        provider without a Batch API.
        """
        asked = self._planner.preparer.request(prompt, params)
        request = self._planner.preparer.samples(asked)[0]
        if (asked.params.n or 1) > 1:
            raise InvalidRequest("n: a stream has one answer; use submit() for several", field="n")
        by_batch = self._config.strategy == Strategy.BATCH.value and request.embedding is None
        waits = may_wait(request) and not self._realtime.never_waits(request)
        api, _ = batches_of(self._config, self._planner.model, Kind.GENERATE)
        if not by_batch or not waits or api is None:
            return self._realtime.stream(request)
        job = self._jobs().handle(self._jobs().submit_by_batch([request], {}, JobOptions()))
        (future,) = job.futures()
        return stored_stream(self._clock, future, job.cancel)

    def plan(self, given: Prompts, params: Mapping[str, Any], client: ListClient) -> Plan:
        prompts, params = prompts_of(given, params)
        prompts, skipped = without_skipped(prompts, self._planner.preparer.answers_each(params))
        plain, constraints = split_known(params)
        asked = self._planner.checked(prompts, plain, constraints)
        carry_out = partial(self._carry_out, client, asked, given, skipped, constraints)
        return Plan(self._planner.considered(asked), carry_out)

    def job_finished(self, event: JobFinished) -> None:
        """Score the decision on a job of this process when its last result is stored."""
        plan = self._decided.pop(event.job_id, None)
        if plan is None:
            return
        paid = None if event.unpriced else event.cost
        by_batch = paid if plan.route is Route.BATCH else None
        actual = ActualCost(
            paid=paid, individual=event.realtime_cost, by_batch=by_batch, answered=event.succeeded
        )
        plan.score(event.seconds, actual)

    # -- jobs ------------------------------------------------------------------------------------------------

    def submit_batch(self, requests: Prompts, params: Mapping[str, Any], options: JobOptions) -> JobRow:
        refuse_skips(params)
        requests, params = prompts_of(requests, params)
        plain, given = split_known(params, JobParams.__optional_keys__)
        if not given:
            return self._jobs().submit_by_batch(requests, plain, options)
        asked = self._planner.checked(requests, plain, {"strategy": "batch", **given}, options.fallback)
        rows = self._planner.preparer.rows_for_job(asked.requests)
        return self._submit_decided(asked, rows, self._planner.considered(asked), options)

    def submit_gathered(
        self,
        requests: Sequence[Request],
        key: str,
        *,
        deadline: float | None,
        names: Sequence[ItemName | None],
    ) -> JobRow:
        """Store prepared requests of several callers as one batch job.

        Args:
            requests: at least one, all of the same kind.
            names: names of the requests in the store.
            deadline: seconds until all should have results.
        """
        kind = kind_of(requests[0])
        constraints = evolve(self._planner.constraints({"strategy": Strategy.BATCH.value}), deadline=deadline)
        # all requests have the same model
        params = {} if requests[0].model is None else {"model": requests[0].model}
        model = self._planner.model.of(requests[0])
        asked = CheckedList(list(requests), params, constraints, kind, batchable=True, model=model)
        decision = self._planner.considered(asked)
        if self._config.budget is not None:  # reserve no more of the client's budget than the job can cost
            ceilings = self._planner.advisor.for_model(asked.model).ceilings(requests, kind)
            constraints = evolve(constraints, budget=None if ceilings is None else sum(ceilings))
            decision = evolve(decision, constraints=constraints)
        return self._submit_decided(asked, iter(requests), decision, JobOptions(key), names)

    def _submit_decided(
        self,
        asked: CheckedList,
        rows: Iterator[Request],
        decision: Decision,
        options: JobOptions,
        names: Sequence[ItemName | None] = (),
    ) -> JobRow:
        """Publish the decision and store the job. The decision is scored when the job finishes."""
        plan = self._planner.advisor.for_model(asked.model).announce(decision, common_purpose(asked.requests))
        submit = self._jobs().submit_decided
        row = submit(rows, asked.params, decision, asked.kind, options, names)
        self._decided[row.id] = plan
        for earliest in list(self._decided)[:-MAX_DECISIONS]:
            self._decided.pop(earliest, None)
        if self._jobs().engine.is_done(row.id):
            self._decided.pop(row.id, None)  # the job is older, or has already finished
        return row

    def submit_by_count(self, requests: Prompts, params: Mapping[str, Any], options: JobOptions) -> JobRow:
        """Store requests as a job with the ``"threshold"`` strategy, which sends short lists in real time."""
        refuse_skips(params)
        requests, params = prompts_of(requests, params)
        plain, given = split_known(params, JobParams.__optional_keys__)
        if not given:
            return self._jobs().submit_by_count(requests, plain, options)
        return self.submit_batch(requests, {**plain, "strategy": "threshold", **given}, options)

    def submit_planned(self, requests: Prompts, plan: Plan, options: JobOptions) -> JobRow:
        """Store requests as a job with the planned route. Real-time requests are sent only while a process
        waits for the job.
        """
        return self._jobs().submit_planned(prompt_list(requests), plan.decision, options)

    def _carry_out(
        self,
        client: ListClient,
        asked: CheckedList,
        prompts: Prompts,
        skipped: dict[int, Result],
        constraints: Mapping[str, Any],
        decision: Decision,
        progress: bool | None,
    ) -> ResultList:
        """Run a plan within its budget or, without one, within the forecast cost."""
        budget = self._planner.constraints({"budget": decision.constraints.budget}).budget
        if budget is None:
            advisor = self._planner.advisor.for_model(asked.model)
            budget = advisor.limit(decision, asked.requests, asked.kind)
        decision = evolve(decision, constraints=evolve(decision.constraints, budget=budget))
        options, display = self._options(
            len(asked.requests), ReaderOptions("result", None, progress, whole=True)
        )
        again = self._again(asked.key, decision)
        facts = ListFacts(asked.requests, again, display, prompts, skipped, constraints=constraints)
        began = self._clock.now()
        return self._collect(ListResults(client, self._routes.chosen(asked, decision, options), facts), began)

    def _needs_all(self, given: Mapping[str, Any]) -> bool:
        if given.keys() & {"deadline", "prefer", "key"}:
            return True
        return given.get("strategy", self._config.strategy) in _WHOLE_LIST_STRATEGIES


def _report(model: str, began: float, decided: ListDecision | None, results: ResultList[Any]) -> ReportFile:
    from smartbatch.jobs.job_report import list_report  # imported late, because few programs use it

    return list_report(model, began, decided, results)
