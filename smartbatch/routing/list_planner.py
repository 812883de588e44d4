"""Checks the requests of a list as a whole and decides on its route."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from smartbatch._clock import Clock
from smartbatch._words import count_of
from smartbatch.config import BatchingConfig
from smartbatch.core.limits.budget import Budget
from smartbatch.core.prefixes.tree import in_windows, with_shared_prefixes
from smartbatch.core.preparation.preparer import RequestPreparer, kind_of, prompt_list
from smartbatch.core.preparation.validation import check_params
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.options import Constraints, seconds_until
from smartbatch.errors import InvalidRequest
from smartbatch.jobs.job_options import check_batches, check_priced, checked_key
from smartbatch.keywords import ConstraintParams, ListParams, ReadingParams, TableParams
from smartbatch.plan import Plan
from smartbatch.providers.registry import OpenedModel
from smartbatch.realtime.realtime import Realtime
from smartbatch.routing.advisor import Advisor
from smartbatch.shared_prefixes import CachingRules
from smartbatch.tables.file_cells import FILE_OPTIONS, FileColumns
from smartbatch.types import Kind, Priority, Prompt, Prompts, Request, Strategy

CONSTRAINTS = ConstraintParams.__optional_keys__  # arguments of list calls that affect the route


@frozen
class CheckedList:
    requests: list[Request]
    params: Mapping[str, Any]  # as given, without the constraints
    constraints: Constraints
    kind: Kind
    batchable: bool
    key: str | None = None  # key of its job; None if the list is not kept as a job
    model: OpenedModel = field(kw_only=True)  # model of most requests; determines the route


@frozen(eq=False, repr=False)
class ListPlanner:
    """Checks the lists of one client and decides on their routes, without sending or publishing anything.

    Args:
        fallback: model that answers while the breaker of ``model`` is open.
        realtime: determines which requests the cache can answer, and which may not wait for a batch.
    """

    _config: BatchingConfig
    _clock: Clock
    model: OpenedModel
    _fallback: OpenedModel | None
    preparer: RequestPreparer
    _realtime: Realtime
    advisor: Advisor

    def forecast(
        self,
        prompts: Prompts,
        params: Mapping[str, Any],
        count: int | None = None,
    ) -> Plan:
        count = None if count is None else count_of("count", count)
        prompts, params = prompts_of(prompts, params)
        plain, given = split_known(params, ListParams.__optional_keys__ - {"key"})
        constraints = self.constraints(given)
        if constraints.budget is not None:
            self.check_priced(self.model_of(plain))
        any_request = self.preparer.request("a text", plain)
        self.preparer.check(any_request)  # the list may be empty
        kind, batchable = kind_of(any_request), True
        self.check_forced(given, kind, None)
        advisor = self.advisor.for_model(self.model_of(plain))
        workload = advisor.workload(
            kind,
            constraints.at_once + 1 if count is None else count,
            constraints,
            batchable=True,
            flexible=self._flexible(()),
        )
        requests = self.preparer.admitted(prompts, plain)
        if self._config.prompt_caching == "auto" and self._caching_rules(any_request) is not None:
            requests = in_windows(requests, self._caching_rules, self._realtime.admission.shares)
        for request in requests:
            kind = kind_of(request)
            batchable = batchable and may_wait(request)
            if self._is_cached(request):
                workload.cached += 1
            else:
                workload.add_request(request, self._shared_key(request), advisor.other(request, kind))
        return Plan(advisor.consider(workload, constraints, kind, batchable=batchable))

    def checked(
        self,
        prompts: Iterable[Prompt],
        plain: Mapping[str, Any],
        given: Mapping[str, Any],
        fallback: str | None = None,
    ) -> CheckedList:
        """Check a whole list. ``plain`` and ``given`` come from :func:`split_constraints`.

        Raises:
            InvalidRequest: names the row.
            ConfigError: a constraint is invalid, or a batch was requested without a Batch API.
        """
        constraints = self.constraints(given)
        requests = self._with_prefixes(list(self.preparer.requests(list(prompts), plain)))
        kinds = {kind_of(request) for request in requests} or {Kind.GENERATE}
        kind = min(kinds, key=lambda kind: kind.value)
        self.check_forced(given, kind, fallback)
        urgent = [self._realtime.never_waits(request) for request in requests]
        batchable = len(kinds) == 1 and not all(urgent) and all(map(may_wait, requests))
        if constraints.strategy is Strategy.AUTO and requests and all(urgent):
            constraints = evolve(constraints, strategy=Strategy.INDIVIDUAL)
        key, model = checked_key(given.get("key")), self._most_named(plain, requests)
        return CheckedList(requests, plain, constraints, kind, batchable, key, model=model)

    def _with_prefixes(self, requests: list[Request]) -> list[Request]:
        if self._config.prompt_caching == "off" or self._caching_rules(Request()) is None:
            return requests
        return with_shared_prefixes(requests, self._caching_rules, self._realtime.admission.shares)

    def _caching_rules(self, request: Request) -> CachingRules | None:
        model = self.model.of(request)
        return model.provider.caching(model.name)

    def check_forced(self, given: Mapping[str, Any], kind: Kind, fallback: str | None) -> None:
        if given.get("strategy") in (Strategy.BATCH.value, Strategy.HYBRID.value):
            check_batches(self._config, self.model, kind, fallback)

    def constraints(self, given: Mapping[str, Any]) -> Constraints:
        config = self._config
        chosen = {name: value for name, value in given.items() if value is not None}
        deadline = chosen.pop("deadline", None)
        chosen.pop("key", None)
        checked = evolve(config, **chosen) if chosen else config
        return Constraints(
            strategy=Strategy(checked.strategy),
            prefer=checked.prefer,
            deadline=seconds_until(deadline, self._clock.wall()),
            budget=checked.budget if "budget" in chosen else None,
            time_value=checked.time_value,
            threshold=config.batch_threshold,
            keep_going=checked.keep_going,
        )

    def considered(self, asked: CheckedList) -> Decision:
        """Decide on the route of a list without publishing the decision.

        Raises:
            ConfigError: no route meets the constraints, or the budget cannot be enforced.
        """
        if asked.constraints.budget is not None:
            self.check_priced(asked.model, *map(self.model.of, asked.requests))
            for request in asked.requests:
                self._realtime.warn_of_unbounded(request)
        advisor = self.advisor.for_model(asked.model)
        keyed = asked.key is not None  # lists with a key do not use the cache
        requests = [request for request in asked.requests if keyed or not self._is_cached(request)]
        workload = advisor.workload(
            asked.kind,
            len(requests),
            asked.constraints,
            batchable=asked.batchable,
            flexible=asked.batchable and self._flexible(asked.requests),
        )
        workload.cached = len(asked.requests) - len(requests)
        for request in requests:
            workload.add_request(request, self._shared_key(request), advisor.other(request, asked.kind))
        return advisor.consider(workload, asked.constraints, asked.kind, batchable=asked.batchable)

    def _is_cached(self, request: Request) -> bool:
        admission = self._realtime.admission
        return admission.cache is not None and bool(
            admission.cached_result(request, admission.fingerprint(request))
        )

    def _shared_key(self, request: Request) -> bytes | None:
        return self._realtime.admission.keys(request)[0]

    def _flexible(self, requests: Sequence[Request]) -> bool:
        """Whether the provider has a flex tier and no request chooses a tier."""
        models = {request.model or self.model.name for request in requests} or {self.model.name}
        tiers = [self.model.provider.flex(name) for name in models]
        return all(tier is not None and all(map(tier.suits, requests)) for tier in tiers)

    def check_priced(self, *models: OpenedModel) -> None:
        for model in {model.name: model for model in models}.values():
            check_priced(self._config, self._clock, model, self._fallback)

    def budget(self, usd: float | None, *models: OpenedModel) -> Budget | None:
        """Return the budget of a list within the client's budget. The prices of its models must be known."""
        if usd is None:
            return None
        self.check_priced(*models)
        return Budget(usd, self._realtime.budget)

    def priced_as_read(self, requests: Iterable[Request]) -> Iterator[Request]:
        """Yield the requests of a list with a budget, rejecting requests for models without a known price."""
        known: set[str] = set()
        for request in requests:
            model = self.model.of(request)
            if model.name not in known:
                self.check_priced(model)
                known.add(model.name)
            yield request

    def model_of(self, params: Mapping[str, Any]) -> OpenedModel:
        """Return the model named in the arguments or, without one, the client's model."""
        given = params.get("model")
        return self.model.of(self.preparer.request("for its model", {"model": given}))

    def _most_named(self, params: Mapping[str, Any], requests: Sequence[Request]) -> OpenedModel:
        names = Counter(request.model for request in requests)
        if not names:
            return self.model_of(params)
        return self.model.of(Request(model=names.most_common(1)[0][0]))


def split_constraints(
    params: Mapping[str, Any], names: Collection[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate the arguments in ``names`` from the others; return the others first."""
    plain = {name: value for name, value in params.items() if name not in names}
    return plain, {name: params[name] for name in names if params.get(name) is not None}


def split_known(
    params: Mapping[str, Any], known: Collection[str] = ListParams.__optional_keys__
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check that all keywords are known, then split them as :func:`split_constraints` does.

    Raises:
        InvalidRequest: a keyword is unknown.
    """
    check_params(params, known)
    # parameters for reading apply only to lists that are read lazily
    params, _ = split_constraints(params, ReadingParams.__optional_keys__)
    return split_constraints(params, CONSTRAINTS | {"key"})


def prompts_of(prompts: Prompts, params: Mapping[str, Any]) -> tuple[Iterable[Prompt], dict[str, Any]]:
    """Make prompts from table rows if ``prompts`` is a table; return them with the other arguments."""
    others, of_table = split_constraints(params, TableParams.__optional_keys__)
    for name in ("examples", "files"):
        if name in of_table and others.get("embedding") is not None:
            raise InvalidRequest(f"{name} has no effect on embeddings: leave it out", field=name)
    files = FileColumns.given(**{name: of_table.pop(name) for name in FILE_OPTIONS if name in of_table})
    return prompt_list(prompts, files=files, **of_table), others


def refuse_skips(params: Mapping[str, Any]) -> None:
    """Reject ``on_missing='skip'`` for a job, which has one result per table row."""
    if params.get("on_missing") == "skip":
        raise InvalidRequest(
            "on_missing='skip' cannot be used for jobs, which have a result for every row: leave such rows "
            "out of the table, or use generate() with strategy='batch'",
            field="on_missing",
        )


def may_wait(request: Request) -> bool:
    """Whether a request may wait for a batch: it is not urgent, and a batch can contain it."""
    return request.call is None and request.timeout is None and request.priority <= Priority.NORMAL
