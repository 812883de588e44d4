"""How a client answers a list: it considers the routes, takes one, and scores the choice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve as changed
from attrs import frozen

from smartbatch.core.limits.budget import Budget
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.constraints import Wishes, seconds_until
from smartbatch.core.routing.rescue import Speed
from smartbatch.jobs.acceptance import kind_of
from smartbatch.jobs.records import JobRow
from smartbatch.jobs.submission import BatchJobs
from smartbatch.prices import PriceBook
from smartbatch.realtime.text_stream import ChunkBox
from smartbatch.realtime.ticket import ResultFuture
from smartbatch.results import ResultList, Stream
from smartbatch.routing.advisor import Advisor
from smartbatch.routing.budget_rounds import Outline
from smartbatch.routing.history import Experience
from smartbatch.routing.list_job import JobResults, sort
from smartbatch.types import Kind, Priority, Prompt, Request, Result, Route, Strategy

__all__ = ["WISHES", "ListRoutes", "common_purpose", "parted", "whole"]

_PATIENT = ("batch", "hybrid", "threshold")
"""Strategies that need to know the whole list."""
WISHES = frozenset({"strategy", "deadline", "budget", "prefer", "time_value"})
"""Arguments of list calls that are about the route."""


@frozen
class _Asked:
    """A list as it was asked for, checked.

    Attributes:
        requests: in order.
        params: as they were given, without the wishes.
        wishes: what the route has to meet.
        kind: texts or vectors.
        batchable: whether a batch may be considered at all.
    """

    requests: list[Request]
    params: Mapping[str, Any]
    wishes: Wishes
    kind: Kind
    batchable: bool


class ListRoutes(BatchJobs):
    """The part of a client that finds lists their routes; see :class:`~smartbatch.BatchingClient`."""

    _advisor: Advisor
    _experience: Experience
    _budget: Budget

    def _new_advisor(self) -> Advisor:
        return Advisor(
            self._provider,
            self.model,
            self.config,
            clock=self._clock,
            prices=PriceBook(self.config.prices),
            experience=self._experience,
            batches=lambda kind: self._batches(kind)[0],
            waiting=lambda: 0 if self._engine is None else self._engine.queue.books.waiting,
            tell=self._tell,
        )

    def _speed_of(self, row: JobRow) -> Speed:
        """Return how fast requests of a job are answered in real time, for its rescue."""
        self._experience.refresh()
        return self._advisor.speed(Kind(row.kind), row)

    # -- what is asked ---------------------------------------------------------------------------------------

    def _answered(
        self, prompts: Iterable[Prompt], params: Mapping[str, Any], on_error: str, *, ordered: bool
    ) -> Iterator[Result]:
        plain, wished = parted(params)
        if not isinstance(prompts, Sequence) and not self._needs_all(wished):
            wishes = self._wishes(wished)
            route = Route.INDIVIDUAL if wishes.strategy is Strategy.INDIVIDUAL else None
            requests, purse = self._intake.requests(prompts, plain), self._purse(wishes.budget)
            return self._stream(requests, purse, on_error == "raise", ordered, route=route)
        asked = self._asked(whole(prompts), plain, wished)
        return self._take(asked, self._considered(asked), on_error == "raise", ordered)

    def _needs_all(self, wished: Mapping[str, Any]) -> bool:
        """Whether an iterator must be read to its end, before its route can be chosen."""
        if "deadline" in wished or "prefer" in wished:
            return True
        return wished.get("strategy", self.config.batching_strategy) in _PATIENT

    def _asked(
        self,
        prompts: Sequence[Prompt],
        plain: Mapping[str, Any],
        wished: Mapping[str, Any],
        fallback: str | None = None,
    ) -> _Asked:
        """Check a list as a whole; its arguments are :func:`parted`.

        Raises:
            InvalidRequest: names the row.
            ConfigError: for a wish that is none, and where a batch was asked for and there is no Batch API.
        """
        wishes = self._wishes(wished)
        requests = list(self._intake.requests(prompts, plain))
        kinds = {kind_of(request) for request in requests} or {Kind.GENERATE}
        if wished.get("strategy") in (Strategy.BATCH.value, Strategy.HYBRID.value):
            self._check_batches(min(kinds, key=lambda kind: kind.value), fallback)
        hurried = [self._alone(request) for request in requests]
        batchable = len(kinds) == 1 and not all(hurried) and all(map(_patient, requests))
        if wishes.strategy is Strategy.AUTO and requests and all(hurried):
            wishes = changed(wishes, strategy=Strategy.INDIVIDUAL)
        return _Asked(requests, plain, wishes, min(kinds, key=lambda kind: kind.value), batchable)

    def _wishes(self, given: Mapping[str, Any]) -> Wishes:
        config = self.config
        chosen = {name: value for name, value in given.items() if value is not None}
        deadline = chosen.pop("deadline", None)
        if "strategy" in chosen:
            chosen["batching_strategy"] = chosen.pop("strategy")
        checked = changed(config, **chosen) if chosen else config
        return Wishes(
            strategy=Strategy(checked.batching_strategy),
            prefer=checked.prefer,
            deadline=seconds_until(deadline, self._clock.wall()),
            budget=checked.budget if "budget" in chosen else None,
            time_value=checked.time_value,
            threshold=config.batch_threshold,
        )

    def _alone(self, request: Request) -> bool:
        """Whether a request never waits for others or for a batch."""
        return request.purpose in self.config.prefer_individual_for

    def _considered(self, asked: _Asked) -> Decision:
        """Return the decision for a list; nobody is told.

        Raises:
            ConfigError: no route meets the wishes, or the budget could not be kept.
        """
        if asked.wishes.budget is not None:
            self._check_priced(by_batch=False)
        return self._advisor.consider(
            self._sketch(asked),
            asked.wishes,
            asked.kind,
            batchable=asked.batchable,
            room=self._budget.left,
        )

    def _sketch(self, asked: _Asked) -> Outline:
        intake, requests = self._intake, asked.requests
        if intake.cache is not None:
            requests = [each for each in requests if not intake.recalled(each, intake.fingerprint(each))]
        sketch = self._advisor.sketch(
            asked.kind,
            len(requests),
            asked.wishes,
            batchable=asked.batchable,
            flexible=asked.batchable and self._flexible(asked.requests),
        )
        sketch.cached = len(asked.requests) - len(requests)
        for request in requests:
            sketch.add(request)
        return sketch

    def _flexible(self, requests: Sequence[Request]) -> bool:
        """Whether the provider has a slower tier, and no request names one by itself."""
        tier = self._provider.flex(self.model)
        return tier is not None and all(map(tier.is_open_to, requests))

    # -- taking a route --------------------------------------------------------------------------------------

    def _take(self, asked: _Asked, decision: Decision, raising: bool, ordered: bool) -> Iterator[Result]:
        """Yield the results by the route that was chosen, and score it at the end."""
        chosen, purpose = decision.chosen, common_purpose(asked.requests)
        number = self._advisor.tell(decision, purpose)
        began = self._clock.now()
        results: JobResults | Stream
        if chosen.route in (Route.BATCH, Route.HYBRID):
            results = self._by_job(asked, decision, raising, ordered)
        else:
            results = self._in_real_time(asked, decision, raising, ordered)
        cost: float | None = 0.0
        try:
            for result in results:
                cost = None if cost is None or result.cost is None else cost + result.cost
                yield result
        finally:
            results.close()
        self._advisor.score(number, decision, self._clock.now() - began, cost)

    def _carried_out(self, asked: _Asked, decision: Decision) -> ResultList:
        """Execute a plan within its budget, which is checked here.

        Raises:
            ConfigError: the budget is none.
            AllRequestsFailed: when not one request was answered.
        """
        wishes = changed(decision.wishes, budget=self._wishes({"budget": decision.wishes.budget}).budget)
        decision = changed(decision, wishes=wishes)
        began = self._clock.now()
        results = ResultList(self._take(asked, decision, False, True))
        results.wall = self._clock.now() - began
        results.raise_if_all_failed()
        return results

    def _in_real_time(self, asked: _Asked, decision: Decision, raising: bool, ordered: bool) -> Stream:
        wishes, route = decision.wishes, decision.chosen.route
        threshold = wishes.strategy is Strategy.THRESHOLD
        most = self.config.max_parallel_individual if threshold else None
        return self._stream(
            asked.requests, self._purse(wishes.budget), raising, ordered, route=route, ahead=most
        )

    def _by_job(self, asked: _Asked, decision: Decision, raising: bool, ordered: bool) -> JobResults:
        """Store what has to be sent as a job; positions travel as contexts, which a store can keep."""
        config = self.config
        rows = sort(
            asked.requests,
            self._intake,
            deduplicate=config.deduplicate,
            hurried=config.prefer_individual_for,
        )
        job = None
        if rows.sent:
            job = self._submit_rows(
                (changed(rows.requests[position], context=position) for position in rows.sent),
                asked.kind,
                asked.params,
                realtime=decision.chosen.first,
                wishes=decision.wishes,
                missed=decision.missed,
                most=decision.piece,
            )
        cache = self._intake.cache
        return JobResults(
            job,
            rows,
            ordered=ordered,
            raising=raising,
            keep=None if cache is None else cache.put,
            process=self._process,
        )

    def _purse(self, budget: float | None) -> Budget | None:
        """Return what a list may spend, within the client's own budget; refuse it where no price is known."""
        if budget is None:
            return None
        self._check_priced(by_batch=False)
        return Budget(budget, self._budget)

    def _stream(
        self,
        requests: Iterable[Request],
        purse: Budget | None,
        raising: bool,
        ordered: bool,
        *,
        route: Route | None = None,
        ahead: int | None = None,
    ) -> Stream:
        def submit(request: Request, sink: Callable[[Result], None]) -> ResultFuture:
            alone = route is Route.INDIVIDUAL or self._alone(request)
            return self._submit(request, sink, purse=purse, alone=alone, flex=route is Route.FLEX)

        return Stream(
            requests,
            submit,
            self._clock,
            ahead=ahead or self.config.queue_capacity,
            ordered=ordered,
            raising=raising,
            forsake=self._forsake,
        )

    def _submit(
        self,
        request: Request,
        sink: Callable[[Result], None] | None,
        stream: ChunkBox | None = None,
        *,
        purse: Budget | None = None,
        alone: bool = False,
        flex: bool = False,
    ) -> ResultFuture:
        raise NotImplementedError

    def _forsake(self, futures: Iterable[ResultFuture]) -> None:
        raise NotImplementedError


def parted(
    params: Mapping[str, Any], names: Collection[str] = WISHES
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments that are none of the wishes ``names``, and the wishes that were given."""
    plain = {name: value for name, value in params.items() if name not in names}
    return plain, {name: params[name] for name in names if params.get(name) is not None}


def whole(prompts: Iterable[Prompt]) -> Sequence[Prompt]:
    """Return all prompts; what is no list of prompts is left as it is, to be refused as that."""
    return prompts if isinstance(prompts, Sequence | Mapping) else list(prompts)  # type: ignore[return-value]


def _patient(request: Request) -> bool:
    """Whether a request may wait for a batch: it is in no hurry, and a batch can carry it."""
    return request.call is None and request.timeout is None and request.priority <= Priority.NORMAL


def common_purpose(requests: Sequence[Request]) -> str | None:
    """Return the purpose of all of them; ``None`` where they differ."""
    purposes = {request.purpose for request in requests}
    return purposes.pop() if len(purposes) == 1 else None
