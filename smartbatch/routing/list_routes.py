"""How a client answers a list: it considers the routes, takes one, and scores the choice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve as changed
from attrs import frozen

from smartbatch.core.limits.budget import Budget
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.constraints import Constraints, seconds_until
from smartbatch.core.routing.rescue import Speed
from smartbatch.core.routing.workload import Workload
from smartbatch.jobs.acceptance import kind_of
from smartbatch.jobs.records import JobRow
from smartbatch.jobs.submission import JobSubmission
from smartbatch.prices import PriceBook
from smartbatch.realtime.text_stream import ChunkBox
from smartbatch.realtime.ticket import ResultFuture
from smartbatch.results import BoundedMap, ResultList
from smartbatch.routing.advisor import Advisor
from smartbatch.routing.history import ForecastHistory
from smartbatch.routing.list_job import JobResults, sort
from smartbatch.types import Kind, Priority, Prompt, Request, Result, Route, Strategy

__all__ = ["CONSTRAINTS", "ListRoutes", "common_purpose", "parted", "whole"]

_PATIENT = ("batch", "hybrid", "threshold")
"""Strategies that need to know the whole list."""
CONSTRAINTS = frozenset({"strategy", "deadline", "budget", "prefer", "time_value"})
"""Arguments of list calls that are about the route."""


@frozen
class _Asked:
    """A list as it was asked for, checked.

    Attributes:
        requests: in order.
        params: as they were given, without the constraints.
        constraints: what the route has to meet.
        kind: texts or vectors.
        batchable: whether a batch may be considered at all.
    """

    requests: list[Request]
    params: Mapping[str, Any]
    constraints: Constraints
    kind: Kind
    batchable: bool


class ListRoutes(JobSubmission):
    """The part of a client that finds lists their routes; see :class:`~smartbatch.BatchingClient`."""

    _advisor: Advisor
    _history: ForecastHistory
    _budget: Budget

    def _new_advisor(self) -> Advisor:
        return Advisor(
            self._provider,
            self.model,
            self.config,
            clock=self._clock,
            prices=PriceBook(self.config.prices),
            history=self._history,
            batches=lambda kind: self._batches(kind)[0],
            waiting=lambda: 0 if self._engine is None else self._engine.queue.counts.waiting,
            tell=self._tell,
        )

    def _speed_of(self, row: JobRow) -> Speed:
        """Return how fast requests of a job are answered in real time, for its rescue."""
        self._history.refresh()
        return self._advisor.speed(Kind(row.kind), row)

    # -- what is asked ---------------------------------------------------------------------------------------

    def _answered(
        self, prompts: Iterable[Prompt], params: Mapping[str, Any], on_error: str, *, ordered: bool
    ) -> Iterator[Result]:
        plain, constrained = parted(params)
        if not isinstance(prompts, Sequence) and not self._needs_all(constrained):
            constraints = self._constraints(constrained)
            route = Route.INDIVIDUAL if constraints.strategy is Strategy.INDIVIDUAL else None
            requests, own_budget = (
                self._admission.requests(prompts, plain),
                self._own_budget(constraints.budget),
            )
            return self._stream(requests, own_budget, on_error == "raise", ordered, route=route)
        asked = self._asked(whole(prompts), plain, constrained)
        return self._take(asked, self._considered(asked), on_error == "raise", ordered)

    def _needs_all(self, constrained: Mapping[str, Any]) -> bool:
        """Whether an iterator must be read to its end, before its route can be chosen."""
        if "deadline" in constrained or "prefer" in constrained:
            return True
        return constrained.get("strategy", self.config.batching_strategy) in _PATIENT

    def _asked(
        self,
        prompts: Sequence[Prompt],
        plain: Mapping[str, Any],
        constrained: Mapping[str, Any],
        fallback: str | None = None,
    ) -> _Asked:
        """Check a list as a whole; its arguments are :func:`parted`.

        Raises:
            InvalidRequest: names the row.
            ConfigError: for a constraint that is none, and where a batch was asked for and there is no Batch
            API.
        """
        constraints = self._constraints(constrained)
        requests = list(self._admission.requests(prompts, plain))
        kinds = {kind_of(request) for request in requests} or {Kind.GENERATE}
        if constrained.get("strategy") in (Strategy.BATCH.value, Strategy.HYBRID.value):
            self._check_batches(min(kinds, key=lambda kind: kind.value), fallback)
        hurried = [self._alone(request) for request in requests]
        batchable = len(kinds) == 1 and not all(hurried) and all(map(_patient, requests))
        if constraints.strategy is Strategy.AUTO and requests and all(hurried):
            constraints = changed(constraints, strategy=Strategy.INDIVIDUAL)
        return _Asked(requests, plain, constraints, min(kinds, key=lambda kind: kind.value), batchable)

    def _constraints(self, given: Mapping[str, Any]) -> Constraints:
        config = self.config
        chosen = {name: value for name, value in given.items() if value is not None}
        deadline = chosen.pop("deadline", None)
        if "strategy" in chosen:
            chosen["batching_strategy"] = chosen.pop("strategy")
        checked = changed(config, **chosen) if chosen else config
        return Constraints(
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
            ConfigError: no route meets the constraints, or the budget could not be kept.
        """
        if asked.constraints.budget is not None:
            self._check_priced(by_batch=False)
        return self._advisor.consider(
            self._workload(asked),
            asked.constraints,
            asked.kind,
            batchable=asked.batchable,
            room=self._budget.left,
        )

    def _workload(self, asked: _Asked) -> Workload:
        admission, requests = self._admission, asked.requests
        if admission.cache is not None:
            requests = [
                each for each in requests if not admission.recalled(each, admission.fingerprint(each))
            ]
        workload = self._advisor.workload(
            asked.kind,
            len(requests),
            asked.constraints,
            batchable=asked.batchable,
            flexible=asked.batchable and self._flexible(asked.requests),
        )
        workload.cached = len(asked.requests) - len(requests)
        for request in requests:
            workload.add(request)
        return workload

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
        results: JobResults | BoundedMap
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
        constraints = changed(
            decision.constraints, budget=self._constraints({"budget": decision.constraints.budget}).budget
        )
        decision = changed(decision, constraints=constraints)
        began = self._clock.now()
        results = ResultList(self._take(asked, decision, False, True))
        results.wall = self._clock.now() - began
        results.raise_if_all_failed()
        return results

    def _in_real_time(self, asked: _Asked, decision: Decision, raising: bool, ordered: bool) -> BoundedMap:
        constraints, route = decision.constraints, decision.chosen.route
        threshold = constraints.strategy is Strategy.THRESHOLD
        most = self.config.max_parallel_individual if threshold else None
        return self._stream(
            asked.requests, self._own_budget(constraints.budget), raising, ordered, route=route, ahead=most
        )

    def _by_job(self, asked: _Asked, decision: Decision, raising: bool, ordered: bool) -> JobResults:
        """Store what has to be sent as a job; positions travel as contexts, which a store can keep."""
        config = self.config
        rows = sort(
            asked.requests,
            self._admission,
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
                constraints=decision.constraints,
                late_penalty=decision.late_penalty,
                most=decision.piece,
            )
        cache = self._admission.cache
        return JobResults(
            job,
            rows,
            ordered=ordered,
            raising=raising,
            keep=None if cache is None else cache.put,
            process=self._process,
        )

    def _own_budget(self, budget: float | None) -> Budget | None:
        """Return what a list may spend, within the client's own budget; refuse it where no price is known."""
        if budget is None:
            return None
        self._check_priced(by_batch=False)
        return Budget(budget, self._budget)

    def _stream(
        self,
        requests: Iterable[Request],
        own_budget: Budget | None,
        raising: bool,
        ordered: bool,
        *,
        route: Route | None = None,
        ahead: int | None = None,
    ) -> BoundedMap:
        def submit(request: Request, sink: Callable[[Result], None]) -> ResultFuture:
            alone = route is Route.INDIVIDUAL or self._alone(request)
            return self._submit(request, sink, own_budget=own_budget, alone=alone, flex=route is Route.FLEX)

        return BoundedMap(
            requests,
            submit,
            self._clock,
            ahead=ahead or self.config.queue_capacity,
            ordered=ordered,
            raising=raising,
            abandon_futures=self._abandon_futures,
        )

    def _submit(
        self,
        request: Request,
        sink: Callable[[Result], None] | None,
        stream: ChunkBox | None = None,
        *,
        own_budget: Budget | None = None,
        alone: bool = False,
        flex: bool = False,
    ) -> ResultFuture:
        raise NotImplementedError

    def _abandon_futures(self, futures: Iterable[ResultFuture]) -> None:
        raise NotImplementedError


def parted(
    params: Mapping[str, Any], names: Collection[str] = CONSTRAINTS
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments that are none of the constraints ``names``, and the constraints that were
    given."""
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
