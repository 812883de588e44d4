"""Submission of jobs. All rows are checked and stored in one transaction before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from functools import lru_cache, partial
from itertools import chain, islice
from typing import Any

from attrs import evolve, field, frozen

from smartbatch._clock import Clock
from smartbatch.config import BatchingConfig, checked
from smartbatch.core.limits.budget_reservations import NewReservation
from smartbatch.core.prefixes.tree import in_windows
from smartbatch.core.preparation.fingerprint import fingerprint
from smartbatch.core.preparation.preparer import RequestPreparer, kind_of
from smartbatch.core.routing.choice import Decision
from smartbatch.events import JobAccepted
from smartbatch.jobs.acceptance import Items, accept, checked_metadata
from smartbatch.jobs.batch_caching import marks_pay
from smartbatch.jobs.job import Job, interrupted
from smartbatch.jobs.job_budget import ClientBudget, CostCeiling
from smartbatch.jobs.job_options import (
    JobOptions,
    WaitOptions,
    batches_of,
    check_batches,
    check_priced,
    checked_key,
)
from smartbatch.jobs.job_wait import LAST_CALLBACKS_SECONDS
from smartbatch.jobs.jobs_engine import JobsEngine
from smartbatch.jobs.payload import Shared, encode_params
from smartbatch.jobs.records import Fallback, ItemName, JobPolicy, JobRow, JobState, NamedPlace, NewItem
from smartbatch.observe.opentelemetry import traceparent
from smartbatch.providers.batch_api import BatchApi
from smartbatch.providers.price_book import PriceBook
from smartbatch.providers.registry import OpenedModel
from smartbatch.results import ResultList, ended
from smartbatch.shared_prefixes import CachingRules
from smartbatch.types import Kind, Prompt, Prompts, Request, Strategy


@frozen
class _Draft:
    kind: Kind
    requests: Iterator[Request]  # in order, each checked when it is read
    params: Mapping[str, Any]
    policy: JobPolicy
    options: JobOptions
    # number of leading requests sent in real time; None for all, for example if there is no Batch API
    realtime: int | None = field(kw_only=True)
    decision: Decision | None = field(default=None, kw_only=True)
    names: Sequence[ItemName | None] = field(default=(), kw_only=True)  # in the order of the requests


@frozen(eq=False, repr=False)
class JobSubmission:
    _config: BatchingConfig
    _clock: Clock
    _model: OpenedModel = field(kw_only=True)
    _fallback_model: OpenedModel | None = field(kw_only=True)
    _preparer: RequestPreparer = field(kw_only=True)
    _engine: JobsEngine = field(kw_only=True)
    _budget: ClientBudget = field(kw_only=True)

    @property
    def engine(self) -> JobsEngine:
        return self._engine

    @property
    def unreserved(self) -> float:
        """USD spent by batches for which the client's budget has no reservation."""
        return self._budget.unreserved

    def handle(self, row: JobRow) -> Job:
        return Job(lambda: self._engine, row)

    # -- submitting ------------------------------------------------------------------------------------------

    def submit_by_batch(
        self, requests: Iterable[Prompt], params: Mapping[str, Any], options: JobOptions
    ) -> JobRow:
        """Store requests as a job for the Batch API.

        Raises:
            InvalidRequest: names the row and the field.
            ConfigError: the provider has no Batch API for these requests, or batches are switched off.
            JobConflict: the key belongs to a job with other requests.
            StoreError: the store cannot be used.
            ClientClosed: the client was stopped.
        """
        policy = self._policy(options.fallback)
        kind, _, rows = self._rows(requests, params)
        check_batches(self._config, self._model, kind, options.fallback)
        return self._accept(_Draft(kind, rows, params, policy, options, realtime=0))

    def submit_by_count(
        self, requests: Iterable[Prompt], params: Mapping[str, Any], options: JobOptions
    ) -> JobRow:
        """Store requests as a job that uses a batch unless there are too few requests."""
        policy = self._policy(options.fallback or "individual")
        few, requests = self._few(requests, params)
        kind, _, rows = self._rows(requests, params)
        return self._accept(_Draft(kind, rows, params, policy, options, realtime=None if few else 0))

    def submit_decided(
        self,
        requests: Iterator[Request],
        params: Mapping[str, Any],
        decision: Decision | None,
        kind: Kind,
        options: JobOptions,
        names: Sequence[ItemName | None] = (),
        *,
        attended: bool = False,
    ) -> JobRow:
        """Store prepared requests as a job with the given route.

        Args:
            decision: ``None`` for an attended job without a route decision.
            attended: send the requests in real time, and only while a process waits for the job, so that an
                interrupted run causes no further cost. Requests fail as they would without a job.
        """
        if decision is None or attended:
            policy = self._attended_policy(decision)
        else:
            policy = self._decided_policy(decision, options.fallback)
        chosen = None if decision is None else decision.chosen
        realtime = chosen.first if chosen is not None and chosen.route.by_batch else None
        return self._accept(
            _Draft(kind, requests, params, policy, options, realtime=realtime, decision=decision, names=names)
        )

    def submit_planned(self, requests: Iterable[Prompt], decision: Decision, options: JobOptions) -> JobRow:
        """Store unprepared requests of one kind as a job, attended if they are sent in real time."""
        attended = not decision.chosen.route.by_batch
        kind, common, rows = self._rows(requests, {}, attended=attended)
        return self.submit_decided(rows, common, decision, kind, options, attended=attended)

    def add_rows(
        self, requests: Iterator[Request], params: Mapping[str, Any], kind: Kind, job: JobRow
    ) -> JobRow:
        """Append rows to the job with the same key.

        ``requests`` are prepared and begin with the job's existing rows. Further rows are sent in real time,
        unless the job uses batches and there are enough rows for one.
        """
        rows = list(requests)
        by_batch = not job.policy.attended and len(rows) - job.total >= self._config.batch_threshold
        policy, options = evolve(self._policy(None), attended=job.policy.attended), JobOptions(job.key)
        return self._accept(
            _Draft(kind, iter(rows), params, policy, options, realtime=0 if by_batch else None)
        )

    def submit_named(
        self, kind: Kind, requests: Sequence[Request], names: Sequence[ItemName], *, join: str | None = None
    ) -> tuple[str | None, list[NamedPlace]]:
        """Store prepared requests of one kind under their names, in an attended job.

        Args:
            join: a running job of this client that takes the requests.

        Returns:
            the job with the requests whose names are new, ``None`` if there are none, and the place of each
                request.
        """
        policy = self._attended_policy(None)
        draft = _Draft(kind, iter(requests), {}, policy, JobOptions(), realtime=None, names=names)
        job, items = self._rows_of(draft, deduplicates=False)
        self._engine.check_open()
        jobs = self._engine.store.jobs
        items.kept_in = (job.id,) if join is None else (job.id, join)
        try:
            row, places = jobs.accept_named(job, list(items), join=join)
        finally:
            for job_id in items.kept_in:
                jobs.drop_files(job_id)
        if row is None:
            return None, places
        self._start(row, new=row.id == job.id)
        return row.id, places

    def digest_of(self, request: Request) -> str:
        """The digest covers content, model and account, and is the same in every process."""
        return fingerprint(request, self._model.of(request).label, self._model.provider.scope).hex()

    def adopt(self, id_or_key: str) -> JobRow:
        """Return the job of an earlier process, and reserve the amount that it can still spend.

        Raises:
            JobNotFound: the store has no such job.
        """
        row = self._engine.find(id_or_key)
        self._budget.adopt(row)
        return row

    def results_of(self, job: Job, options: WaitOptions, began: float, prompts: Prompts) -> ResultList:
        """Wait until a job has ended, and return all results in order.

        Args:
            began: monotonic seconds at which the call began.
            prompts: the prompts as the user gave them.

        Raises:
            JobTimeout, Interrupted: the time limit passed, or Ctrl-C was pressed; the job continues.
            AllRequestsFailed: no request was answered.
        """
        results = ResultList()
        timeout = self._longest_wait(job) if options.timeout is None else options.timeout
        try:
            if options.on_progress is not None:
                job.on_progress(options.on_progress)
            results.extend(job.results(timeout=timeout, progress=options.progress))
            if options.on_progress is not None:
                self._engine.finish_listening(job.id, LAST_CALLBACKS_SECONDS)
        except KeyboardInterrupt:
            raise interrupted(job) from None
        results.reporter = lambda _: job.report()
        return ended(results, self._clock.now() - began, prompts)

    # -- checks ----------------------------------------------------------------------------------------------

    def check_priced(self, *, by_batch: bool = False) -> None:
        """Raise ConfigError if a price that the budget needs is unknown."""
        check_priced(self._config, self._clock, self._model, self._fallback_model, by_batch=by_batch)

    # -- internals -------------------------------------------------------------------------------------------

    def _accept(self, draft: _Draft) -> JobRow:
        """Store a job within the client's budget."""
        key = draft.options.key
        # 1. the client has no budget, or the job's requests are charged to it directly
        if self._config.budget is None or draft.policy.attended:
            return self._stored(draft)
        self._budget.refresh()
        # 2. the key belongs to an existing job: reserve money for that job
        earlier = None if key is None else self._engine.store.jobs.get(key)
        if earlier is not None:
            self._budget.adopt(earlier)
            return self._stored(draft)
        reservations = self._budget.reservations
        # 3. reserve the maximum cost, which becomes the job's own budget. In a shared budget, a job without
        # its own budget reserves its maximum cost once all rows are read
        by_cost = self._config.budget_scope != "client" and draft.policy.budget is None

        def store(reservation: NewReservation) -> JobRow:
            def assign(job_id: str) -> None:
                reservations.assign(job_id, reservation, 0.0)

            policy = evolve(draft.policy, budget=reservation.usd, budget_account=reservations.account)
            row = self._stored(evolve(draft, policy=policy), assign, reservation if by_cost else None)
            if row.id != reservation.job_id:  # another submission with the same key came first
                assign(row.id)
            return row

        try:
            row = reservations.reserve(0.0 if by_cost else draft.policy.budget, store)
        except BaseException:
            self._budget.refresh()  # the job may have been stored despite the error
            raise
        self._budget.refresh(row.id)
        return row

    def _stored(
        self,
        draft: _Draft,
        named: Callable[[str], object] = lambda _: None,
        by_cost: NewReservation | None = None,
    ) -> JobRow:
        """``named`` gets the id before the job is stored; ``by_cost`` grows to the job's maximum cost."""
        within = None if by_cost is None else partial(self._budget.reservations.enlarge, by_cost)
        job, items = self._rows_of(draft, within, deduplicates=True)
        engine = self._engine
        engine.check_open()
        row, new = accept(
            engine.store, job, items, engine.wiring, named, new_id=engine.new_id, at=engine.wall()
        )
        self._start(row, new=new, carry_on=draft.options.carry_on)
        return row

    def _start(self, row: JobRow, *, new: bool, carry_on: bool = True) -> None:
        if new:
            self._engine.publish_event(
                JobAccepted(at=self._clock.now(), job_id=row.id, model=row.model, items=row.total)
            )
        if carry_on and row.state is not JobState.DONE:
            self._engine.carry_on(row.id)
            self._engine.notify(row.id)

    def _most_of(self, job: JobRow) -> Callable[[NewItem], float]:
        calibration = self._engine.wiring.calibration(job)
        ceiling = CostCeiling(job, PriceBook(self._config.prices), self._clock.wall(), calibration)
        return partial(ceiling.of_new, alone=job.policy.fallback == "individual")

    def _rows_of(
        self,
        draft: _Draft,
        within: Callable[[float], float] | None = None,
        *,
        deduplicates: bool,
    ) -> tuple[JobRow, Items]:
        """The items are created as they are read."""
        api, _ = batches_of(self._config, self._model, draft.kind)
        by_batch = api is not None
        if draft.policy.budget is not None:
            self.check_priced(by_batch=by_batch)
        model = self._model.of(self._preparer.request("for its model", {"model": draft.params.get("model")}))
        shared = Shared(self._preparer.defaults_of(draft.params), draft.params.get("embedding"))
        job = JobRow(
            id=self._engine.new_id(),
            key=checked_key(draft.options.key),
            scope=self._model.provider.scope,
            model=model.label,
            kind=draft.kind.value,
            params=encode_params(shared.params, shared.embedding),
            metadata=checked_metadata(draft.options.metadata),
            policy=draft.policy,
            created_at=self._engine.wall(),
        )
        purposes, files = self._config.prefer_individual_for, self._engine.store.files
        requests = self._with_models(draft, model, by_batch=by_batch)
        if draft.policy.caching and api is not None and api.caching(model=model.name) is not None:
            requests = in_windows(requests, self._caching_rules, self._engine.wiring.shares)
        items = Items(
            requests,
            job,
            shared,
            api=api,
            marks=lru_cache(partial(self._marks, api, job.scope)),
            realtime=draft.realtime,
            realtime_for=purposes,
            wiring=self._engine.wiring,
            deduplicates=deduplicates,
            priced=None if within is None else self._most_of(job),
            within=within,
            decision=draft.decision,
            names=draft.names,
            files=files if files.shared else None,
            file_api=self._model.provider.files,
        )
        return job, items

    def _caching_rules(self, request: Request) -> CachingRules | None:
        model = self._model.of(request)
        return model.provider.caching(model.name)

    def _marks(self, api: BatchApi | None, scope: str, label: str) -> bool:
        """Whether shared prefixes of a batch's requests are marked; ``label`` is ``provider:model``."""
        rules = None if api is None else api.caching(model=label.partition(":")[2])
        engine = self._engine
        return rules is not None and marks_pay(engine.store, scope, label, rules, engine.wall())

    def _with_models(self, draft: _Draft, model: OpenedModel, *, by_batch: bool) -> Iterator[Request]:
        """Set the model of each request that differs from the job's model.

        Raises:
            ConfigError: the job has a budget, and the price of a model is unknown.
        """
        priced = {self._model.name}
        for request in draft.requests:
            own = self._model.of(request)
            if draft.policy.budget is not None and own.name not in priced:
                check_priced(self._config, self._clock, own, None, by_batch=by_batch)
                priced.add(own.name)
            named = None if own.name == model.name else own.name
            yield request if request.model == named else evolve(request, model=named)

    def _policy(self, fallback: str | None) -> JobPolicy:
        config = self._config
        return JobPolicy(
            fallback=self._fallback_of(fallback),
            on_unknown=config.batch_on_unknown,
            timeout=config.batch_timeout,
            settle=config.batch_settle,
            max_requests=config.batch_max_requests,
            retention=config.batch_retention,
            exclusive_workspace=config.exclusive_workspace,
            keep_going=config.keep_going,
            traceparent=traceparent(),
            caching=config.prompt_caching == "auto",
        )

    def _attended_policy(self, decision: Decision | None) -> JobPolicy:
        """An attended job is paid from the client's budget; its own budget is only a tighter limit."""
        policy = evolve(self._policy(None), attended=True)
        if decision is None:
            return policy
        constraints = decision.constraints
        left, budget = constraints.deadline, constraints.budget
        if budget is not None and self._config.budget is not None and budget >= self._config.budget:
            budget = None
        return evolve(
            policy,
            keep_going=constraints.keep_going,
            route=decision.chosen.route,
            budget=budget,
            deadline=None if left is None else self._engine.wall() + left,
        )

    def _decided_policy(self, decision: Decision, fallback: Fallback | None) -> JobPolicy:
        constraints, piece = decision.constraints, decision.piece
        deadline = None if constraints.deadline is None else self._engine.wall() + constraints.deadline
        # requests that a batch did not process:
        # 1. with a deadline, there is no time for another batch
        # 2. otherwise, the caller's choice or the setting applies
        policy = self._policy(fallback if deadline is None else "individual")
        # 3. if smartbatch chose the batch, they are sent in real time once the batch takes longer than
        # planned
        route_was_chosen = fallback is None and constraints.strategy is not Strategy.BATCH
        if route_was_chosen and policy.fallback == "batch":
            policy = evolve(policy, fallback="individual", timeout=max(1.0, decision.chosen.p95))
        policy = evolve(
            policy,
            deadline=deadline,
            late_penalty=decision.late_penalty,
            budget=constraints.budget,
            route=decision.chosen.route,
            keep_going=constraints.keep_going,
        )
        if piece is not None:
            policy = evolve(policy, max_requests=min(piece, policy.max_requests or piece))
        return policy

    def _fallback_of(self, fallback: str | None) -> Fallback:
        chosen: Fallback
        chosen = checked("batch_fallback", self._config.batch_fallback if fallback is None else fallback)
        return chosen

    def _rows(
        self, requests: Iterable[Prompt], params: Mapping[str, Any], *, attended: bool = False
    ) -> tuple[Kind, dict[str, Any], Iterator[Request]]:
        """Take the kind and parameters from the first request. Requests are checked as they are read."""
        rows = self._preparer.rows_for_job(self._preparer.admitted(requests, params), attended=attended)
        first = next(rows, None)
        if first is None:
            return Kind.GENERATE, {}, rows
        common = {} if first.embedding is None else {"embedding": first.embedding}
        return kind_of(first), common, chain((first,), rows)

    def _few(self, requests: Iterable[Prompt], params: Mapping[str, Any]) -> tuple[bool, Iterable[Prompt]]:
        """Return whether there are too few rows for a batch, and the rows."""
        least = -(-self._config.batch_threshold // self._preparer.answers_each(params))
        if isinstance(requests, Sized):
            return len(requests) < least, requests
        rows = iter(requests)
        head = list(islice(rows, least))
        return len(head) < least, chain(head, rows)

    def _longest_wait(self, job: Job) -> float:
        """Return the default timeout in seconds."""
        row = self._engine.store.jobs.get(job.id)
        deadline = None if row is None else row.policy.deadline
        left = 0.0 if deadline is None else deadline - self._engine.wall()
        return max(self._config.batch_timeout, left)
