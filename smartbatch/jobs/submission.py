"""What a client does about jobs: checks every row, stores them, waits, and asks single items in real time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from functools import partial
from itertools import chain, islice
from typing import Any

from attrs import evolve, field, frozen

from smartbatch.core.routing.constraints import Constraints
from smartbatch.errors import ConfigError, InvalidRequest
from smartbatch.jobs.acceptance import (
    Items,
    checked_metadata,
    head_of,
    kind_of,
    new_job,
    policy_of,
    row_named,
)
from smartbatch.jobs.client_jobs import LAST_STEP, ClientJobs
from smartbatch.jobs.job import Job
from smartbatch.jobs.job_budget import budget_of
from smartbatch.jobs.payload import Shared
from smartbatch.jobs.records import Fallback, JobPolicy, JobRow, JobState
from smartbatch.jobs.status import JobStatus
from smartbatch.observe.progress import Progress
from smartbatch.prices import PriceBook, Processing
from smartbatch.providers.base import Provider
from smartbatch.providers.batch_api import BatchApi
from smartbatch.results import ResultList
from smartbatch.types import Answer, Kind, Prompt, Request, Result, Route

__all__ = ["Fallback", "JobSubmission"]

OnProgress = Callable[[JobStatus], object]
KEY = 512
"""Letters of a job's key."""


@frozen
class _Draft:
    """A job before it is stored.

    Attributes:
        kind: what all of its requests ask for.
        requests: in order, each checked as it is read.
        params, key, metadata: as they were given.
        policy: see :func:`~smartbatch.jobs.acceptance.policy_of`.
        realtime: how many, counted from the first, are asked alone, in real time, from the beginning; all
            are where that is ``None`` or there is no Batch API.
    """

    kind: Kind
    requests: Iterator[Request]
    params: Mapping[str, Any]
    policy: JobPolicy
    key: str | None
    metadata: Mapping[str, str] | None
    realtime: int | None = field(kw_only=True)


class JobSubmission(ClientJobs):
    """The part of a client that is about jobs; see :class:`~smartbatch.BatchingClient`."""

    # -- for users -------------------------------------------------------------------------------------------

    def submit_batch(
        self,
        requests: Iterable[Prompt],
        *,
        key: str | None = None,
        metadata: Mapping[str, str] | None = None,
        fallback: Fallback | None = None,
        **params: Any,
    ) -> Job:
        """Store all requests as a job for the provider's Batch API, and return it; nothing is sent before.

        Every row is checked first, one after the other, so an iterator of any length will do; a bad one
        raises, and nothing of the job is kept. When this returns, the job is on disk: it is carried on by
        this process and, should it die, by any other that works on the store.

        Args:
            requests: texts, chats or requests; one kind, texts or vectors.
            key: your own name for the job. The same requests under the same key are the same job, so a script
                may be run again: nothing is sent twice.
            metadata: labels, as texts by name.
            fallback: where requests go that an expired, failed or late batch has not run: ``"batch"`` or
                ``"individual"`` for real time; ``batch_fallback`` when ``None``. ``"individual"`` also
                takes jobs when batches are switched off, or the provider has none.
            params: as in :meth:`~smartbatch.BatchingClient.submit`, for all of them.

        Raises:
            InvalidRequest: names the row and the field.
            ConfigError: the provider has no Batch API for this, or batches are switched off.
            JobConflict: the key belongs to a job with other requests.
            StoreError: the store cannot be used.
            ClientClosed: the client was stopped.
        """
        policy = policy_of(self.config, self._fallback_of(fallback))
        kind, rows = self._rows(requests, params)
        self._check_batches(kind, fallback)
        return self._accept(_Draft(kind, rows, params, policy, key, metadata, realtime=0))

    def submit_and_wait(
        self,
        requests: Iterable[Prompt],
        *,
        timeout: float | None = None,
        key: str | None = None,
        metadata: Mapping[str, str] | None = None,
        fallback: Fallback | None = None,
        on_progress: OnProgress | None = None,
        progress: bool = False,
        **params: Any,
    ) -> ResultList:
        """Submit a job, wait for its end, and return all results in order.

        Fewer than ``batch_threshold`` requests, and all where there are no batches, are asked in real time:
        as a job all the same, so that they too outlive the process. With any of the constraints that is the
        ``"threshold"`` strategy, unless ``strategy`` says otherwise.

        Args:
            requests, key, metadata, fallback, params: as in :meth:`submit_batch`, constraints included.
            timeout: seconds; when ``None``, ``batch_timeout``, or until the deadline where that is later.
            on_progress: called with the :class:`~smartbatch.jobs.status.JobStatus` after each change.
            progress: show a bar, or lines where there is no terminal.

        Raises:
            JobTimeout: the time is over. The job goes on, and so it does after Ctrl-C.
            AllRequestsFailed: when not one request was answered.
            Exception: as :meth:`submit_batch`.
        """
        began = self._clock.now()
        job = self._submit_by_count(requests, params, key=key, metadata=metadata, fallback=fallback)
        results = ResultList()
        with Progress(job.total, mode="auto" if progress else "quiet", now=self._clock.now) as bar:
            if progress:
                job.on_progress(bar.show)
            if on_progress is not None:
                job.on_progress(on_progress)
            results.extend(_all_of(job, self._patience(job) if timeout is None else timeout))
            if progress or on_progress is not None:
                self._service.watcher_of(job.id).finish(LAST_STEP)  # the end is told before this returns
            bar.show(job.status())
        results.wall = self._clock.now() - began
        results.raise_if_all_failed()
        return results

    def jobs(self, limit: int = 1000) -> list[Job]:
        """Return the jobs of the store, newest first, those of other models and processes included.

        Raises:
            StoreError: the store cannot be used.
        """
        return self._service.jobs(limit)

    def job(self, id_or_key: str) -> Job:
        """Return a job by its id or its key.

        Raises:
            JobNotFound: the store has none.
            StoreError: the store cannot be used.
        """
        return self._service.find(id_or_key)

    # -- accepting -------------------------------------------------------------------------------------------

    def _submit_by_count(
        self,
        requests: Iterable[Prompt],
        params: Mapping[str, Any],
        *,
        key: str | None,
        metadata: Mapping[str, str] | None,
        fallback: Fallback | None,
    ) -> Job:
        """Store requests as a job: for real time where they are few, else for a batch."""
        policy = policy_of(self.config, self._fallback_of(fallback))
        few, requests = self._few(requests)
        kind, rows = self._rows(requests, params)
        realtime = None if few else 0
        return self._accept(_Draft(kind, rows, params, policy, key, metadata, realtime=realtime))

    def _patience(self, job: Job) -> float:
        """Return the seconds that waiting for a job lasts by default."""
        row = self._service.store.job(job.id)
        deadline = None if row is None else row.policy.deadline
        left = 0.0 if deadline is None else deadline - self._clock.wall()
        return max(self.config.batch_timeout, left)

    def _submit_rows(
        self,
        requests: Iterator[Request],
        kind: Kind,
        params: Mapping[str, Any],
        *,
        realtime: int | None,
        constraints: Constraints,
        late_penalty: float | None = None,
        route: Route | None = None,
        most: int | None = None,
        key: str | None = None,
        metadata: Mapping[str, str] | None = None,
        fallback: Fallback | None = None,
    ) -> Job:
        """Store checked requests of one kind as a job whose route was chosen.

        Args:
            realtime: see :class:`_Draft`.
            late_penalty: what missing its deadline counts as.
            route: that was chosen for all of them.
            most: most requests of one batch, where that is fewer than the settings allow.
        """
        policy = self._policy(fallback, constraints, late_penalty, route)
        if most is not None:
            policy = evolve(policy, max_requests=min(most, policy.max_requests or most))
        return self._accept(_Draft(kind, requests, params, policy, key, metadata, realtime=realtime))

    def _check_batches(self, kind: Kind, fallback: str | None) -> None:
        """Check that there is a Batch API, or that a job may do without.

        Raises:
            ConfigError: neither.
        """
        _, problem = self._batches(kind)
        if problem is not None and self._fallback_of(fallback) != "individual":
            raise ConfigError(f"{problem}, or allow real time with fallback='individual'")

    def _policy(
        self,
        fallback: Fallback | None,
        constraints: Constraints,
        late_penalty: float | None,
        route: Route | None,
    ) -> JobPolicy:
        """Return a job's policy. What is left over at its deadline has no time for a further batch."""
        deadline = None if constraints.deadline is None else self._clock.wall() + constraints.deadline
        chosen: Fallback = "individual" if deadline is not None else self._fallback_of(fallback)
        return policy_of(
            self.config,
            chosen,
            deadline=deadline,
            late_penalty=late_penalty,
            budget=constraints.budget,
            route=route,
        )

    def _submit_attended(
        self, requests: Iterable[Prompt], *, key: str, metadata: Mapping[str, str], route: Route | None = None
    ) -> Job:
        """Store requests as a job that is asked in real time while somebody sits before it, and only then.

        Such a job is carried on by a process that submits it or names it, and by no other: a run that was
        interrupted costs nothing more by itself. Its requests fail as they would without a job.
        """
        kind, rows = self._rows(requests, {})
        policy = policy_of(self.config, self.config.batch_fallback, attended=True, route=route)
        return self._accept(_Draft(kind, rows, {}, policy, key, metadata, realtime=None))

    def _accept(self, draft: _Draft) -> Job:
        if self.config.budget is None or draft.policy.attended:  # asked within the client's
            return self._stored(draft)
        for job_id in self._reservations.jobs:  # they may have ended elsewhere
            self._refresh_reservation(job_id)
        if draft.key is not None and self._service.store.job(draft.key) is not None:
            self._take_up(draft.key)
            return self._stored(draft)
        with self._reservations.reserved(draft.policy.budget) as reservation:
            policy = evolve(draft.policy, budget=reservation.usd, budget_account=self._reservations.account)
            job = self._stored(evolve(draft, policy=policy))
            self._reservations.assign(job.id, reservation, 0.0)
        self._refresh_reservation(job.id)
        return job

    def _take_up(self, id_or_key: str) -> None:
        """Hold back in the client's budget what a job of earlier can still spend."""
        row = self._service.store.job(id_or_key)
        if self.config.budget is None or row is None or row.policy.attended:
            return
        if row.state is JobState.DONE or self._reservations.has(row.id):
            return
        with self._reservations.reserved(_still(row)) as reservation:
            self._reservations.assign(row.id, reservation, row.cost)

    def _check_priced(self, *, by_batch: bool) -> None:
        """Check that a budget can be kept.

        Raises:
            ConfigError: a price is unknown.
        """
        if self.config.allow_unknown_price:
            return
        book, wall = PriceBook(self.config.prices), self._clock.wall()
        asked: list[tuple[Provider, str, Processing]] = [(self._provider, self.model, "standard")]
        asked += [(self._provider, self.model, "batch")] if by_batch else []
        asked += [] if self._second is None else [(*self._second, "standard")]
        for provider, model, way in asked:
            if provider.capabilities.priced and book.rates(provider.name, model, wall, way) is None:
                where = " in batches" if way == "batch" else ""
                raise ConfigError(
                    f"a budget is set, but the price of {provider.name}:{model}{where} is "
                    "unknown, so it could not be kept: give a price under prices, or set allow_unknown_price"
                )

    def _stored(self, draft: _Draft) -> Job:
        api, _ = self._batches(draft.kind)
        if draft.policy.budget is not None:
            self._check_priced(by_batch=api is not None)
        shared = Shared(self._admission.defaults_of(draft.params), draft.params.get("embedding"))
        model = f"{self._provider.name}:{self.model}"
        row = new_job(
            id=self._service.new_id(),
            key=_checked_key(draft.key),
            scope=self._provider.scope,
            model=model,
            kind=draft.kind,
            shared=shared,
            metadata=checked_metadata(draft.metadata),
            policy=draft.policy,
            at=self._clock.wall(),
        )
        items = Items(
            draft.requests,
            shared,
            api=api,
            realtime=draft.realtime,
            alone_for=self.config.prefer_individual_for,
            model=self.model,
            kind=draft.kind,
            head=head_of(model, row.params),
        )
        return self._service.accept(row, items)

    def _fallback_of(self, fallback: str | None) -> Fallback:
        chosen = fallback or self.config.batch_fallback
        if chosen not in ("batch", "individual"):
            raise ConfigError(f"fallback = {chosen!r:.40} is out of range: 'batch' or 'individual'")
        return "individual" if chosen == "individual" else "batch"

    def _rows(self, requests: Iterable[Prompt], params: Mapping[str, Any]) -> tuple[Kind, Iterator[Request]]:
        """Return what the first request asks for, and all of them, checked as they are read."""
        admission = self._admission

        def checked() -> Iterator[Request]:
            for row, request in enumerate(admitted):
                yield row_named(row, partial(self._prepared, request))

        admitted = admission.admitted(requests, params)
        rows = checked()
        first = next(rows, None)
        return (Kind.GENERATE, rows) if first is None else (kind_of(first), chain((first,), rows))

    def _prepared(self, request: Request) -> Request:
        prepared = self._admission.preprocessed(request)
        if isinstance(prepared, Answer):
            raise InvalidRequest(
                "prompt was answered by a preprocess hook; a job takes what is to be sent only: leave such "
                "rows out, or use generate()",
                field="prompt",
            )
        self._admission.check(prepared)
        return prepared

    def _batches(self, kind: Kind) -> tuple[BatchApi | None, str | None]:
        """Return the Batch API, or ``None`` and why there is none, with what to do."""
        name = self._provider.name
        if not self.config.batch_enabled:
            return None, "batches are switched off: set batch_enabled"
        api = self._provider.batches()
        if api is None:
            return None, f"{name} has no Batch API: choose another provider"
        if kind not in api.abilities.kinds:
            what = "vectors" if kind is Kind.EMBED else "texts"
            return None, f"{name} has no Batch API for {what}: choose another provider"
        return api, None

    def _few(self, requests: Iterable[Prompt]) -> tuple[bool, Iterable[Prompt]]:
        """Return whether there are too few rows for a batch, and the rows."""
        least = self.config.batch_threshold
        if isinstance(requests, Sized):
            return len(requests) < least, requests
        rows = iter(requests)
        head = list(islice(rows, least))
        return len(head) < least, chain(head, rows)


def _still(row: JobRow) -> float | None:
    """Return what a job can still spend, USD; ``None`` where nothing limits it."""
    budget = budget_of(row)
    return None if budget is None else max(0.0, budget - row.cost)


def _all_of(job: Job, timeout: float) -> Iterator[Result]:
    try:
        yield from job.results(timeout=timeout)
    except KeyboardInterrupt as error:
        error.add_note(
            f"job {job.id} is not lost: it goes on with the next process on its store; take it up again "
            f"with smartbatch.job({job.id!r}), or cancel it with smartbatch.job({job.id!r}).cancel()"
        )
        raise


def _checked_key(key: str | None) -> str | None:
    if key is None:
        return None
    if not isinstance(key, str) or not key.strip() or len(key) > KEY or not key.isprintable():
        raise InvalidRequest(f"key must be a printable text of 1 to {KEY} letters", field="key")
    if key.startswith("job-"):
        raise InvalidRequest("key must not begin with job-, as the ids of jobs do", field="key")
    return key
