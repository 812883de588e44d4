"""Dask: one list for all workers of a cluster, through a store that they share."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any

import distributed
from attrs import define, field, frozen

from smartbatch._clock import RealClock
from smartbatch.client import BatchingClient
from smartbatch.cluster import UNIT, Cluster, Options, Unit, digest, one_budget, shared_config
from smartbatch.config import BatchingConfig, changed
from smartbatch.errors import JobNotFound, RequestCancelled
from smartbatch.integrations.dask_collections import Template, collection
from smartbatch.observe.list_progress import OnProgress, ProgressCounter
from smartbatch.observe.progress import new_display
from smartbatch.plan import Plan
from smartbatch.results import ResultList, ended
from smartbatch.types import ConstraintParams, Prompt, Result

__all__ = ["map"]

AHEAD = 4
"""Units that are stored and sent ahead, for each thread of the workers."""


def map(
    prompts: Any,
    *,
    model: str,
    scheduler: distributed.Client | str | None = None,
    store: str | None = None,
    shared: str | None = None,
    key: str | None = None,
    template: Template | None = None,
    provider_options: Options | None = None,
    on_progress: OnProgress | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Any:
    """Ask all prompts on the workers of a cluster, and return the results in order, as what they came in.

    The route is chosen once, here. A list that goes by batch is one job of this process. In real time its
    rows are stored as units of 100; workers carry them on, each process with one client for the call, and
    this process reads the results from the store. The same call again, with the same key, goes on: what is
    answered is not asked again.

    Args:
        prompts: a list or any iterable of texts, chats or requests; a bag of Dask; or a dataframe, of Dask or
            pandas, which gets the columns ``answer``, ``error`` and ``cost``.
        model: ``provider:model``. Workers take its key from their own environment.
        scheduler: a client of the cluster, or the scheduler's address; Dask's default client when ``None``.
        store: where rows and answers are kept, reached by all workers: ``postgresql://…``, or on one machine
            a file; the setting when ``None``.
        shared: where workers share limits and the budget; when ``None``, the setting, or where that is
            ``"auto"`` a PostgreSQL store.
        key: your name for this list; made from its contents when ``None``.
        template: makes the prompt of a row: a text with ``{field}`` placeholders, or a function.
        provider_options: as of :class:`BatchingClient <smartbatch.BatchingClient>`.
        on_progress: called with a :class:`~smartbatch.ListProgress` for each result, as it is read.
        progress: as for :meth:`BatchingClient.map <smartbatch.BatchingClient.map>`.
        settings: of :class:`~smartbatch.BatchingConfig`, by name, for each worker's client (``parallelism``
            is that of one worker; ``budget`` is one for all); parameters of all generations; and
            ``deadline``.

    Returns:
        a :class:`~smartbatch.ResultList`; a bag of results; or a dataframe as it was given, with the columns.

    Raises:
        ConfigError: for settings, no store, or a worker that has no key for the account.
        InvalidRequest: names the row.
        JobConflict: the key belongs to a list of other prompts, or of another model or parameters.
        AllRequestsFailed: when not one request was answered.
        distributed.KilledWorker: several workers died of a unit.
        ConnectionError: the scheduler is lost; the same call with another one goes on.
    """
    began = RealClock.now()
    call = _ListCall.of(model, settings, store, shared, provider_options)
    with Cluster(scheduler) as cluster:
        given = collection(prompts, template, cluster.compute)
        results = call.collected(given.prompts, key, cluster, progress, on_progress)
    return given.rebuilt(ended(results, RealClock.now() - began))


@frozen
class _ListCall:
    """How a list is asked.

    Attributes:
        config: of each worker's client.
        params: parameters of all generations.
        constraints: of the list.
    """

    model: str
    config: BatchingConfig
    params: Options
    constraints: Options
    options: Options | None

    @classmethod
    def of(
        cls, model: str, given: Options, store: str | None, shared: str | None, options: Options | None
    ) -> _ListCall:
        """Tell settings from what is of this list only.

        Raises:
            ConfigError: there is no store, or a setting is out of its range.
        """
        known = {setting.name for setting in BatchingConfig().describe()}
        settings: dict[str, Any] = {name: value for name, value in given.items() if name in known}
        config = shared_config(BatchingConfig.load(**settings), store, shared)
        own = {name: value for name, value in given.items() if name not in known}
        constraints = {name: own.pop(name) for name in ConstraintParams.__optional_keys__ if name in own}
        return cls(model, config, own, constraints, options)

    def collected(
        self,
        rows: Sequence[Prompt],
        key: str | None,
        cluster: Cluster,
        progress: bool | None,
        on_progress: OnProgress | None,
    ) -> ResultList[Any]:
        """Read all results and tell of each; raise the first error where the settings say so."""
        told = None if on_progress is None else ProgressCounter(on_progress, len(rows), RealClock.now)
        read: ResultList[Any] = ResultList()
        for result in self.results(rows, key, cluster, progress):  # nobody else holds it: ends with this
            if told is not None:
                told(result)
            if self.config.on_error == "raise" and result.error is not None:
                raise result.error
            read.append(result)
        return read

    def results(
        self, rows: Sequence[Prompt], key: str | None, cluster: Cluster, progress: bool | None
    ) -> Iterator[Result[Any]]:
        """Yield all results in order, and show how far they are."""
        key = key or self._key_of(rows)
        config = one_budget(self.config, key)
        cluster.add_clients(self.model, config, self.options)
        at_once = changed(config, parallelism=min(1024, config.parallelism * cluster.processes))
        with BatchingClient(self.model, at_once, provider_options=self.options, **self.params) as client:
            yield from _ListRun(cluster, client, key, self.constraints, progress).results(rows)

    def _key_of(self, rows: Sequence[Prompt]) -> str:
        """Return a key for a list: the same for the same prompts, model and parameters."""
        known = {name: value for name, value in (self.options or {}).items() if name != "api_key"}
        return f"dask-{digest([self.model, known, self.params, rows])}"


@define(eq=False)
class _ListRun:
    """One list on its way."""

    _cluster: Cluster
    _client: BatchingClient
    _key: str
    _constraints: Options
    _progress: bool | None
    _units: deque[tuple[Unit, Sequence[Prompt]]] = field(factory=deque)

    def results(self, rows: Sequence[Prompt]) -> Iterator[Result[Any]]:
        """Yield all results in order. Left early, what has not been sent is cancelled in the store.

        The cases, in order: the list stands in the store as one job for a batch; as units; in neither way,
        and the route is chosen.
        """
        batch = f"{self._key}/batch"
        if self._is_stored(batch):
            yield from self._client.submit_batch(rows, key=batch).results(progress=self._progress)
            return
        constraints = {**self._constraints}
        if self._is_stored(self._key_of_unit(0)):
            constraints["strategy"] = "individual"
        plan = self._client.forecast(rows, count=len(rows), **constraints)
        if plan.route.by_batch:
            job = self._client.submit_run(rows, plan, key=batch)
            yield from job.results(progress=self._progress)
            return
        try:
            yield from self._in_real_time(rows, plan)
        except BaseException:
            for unit, _ in self._units:
                unit.job.cancel()
            raise

    def _in_real_time(self, rows: Sequence[Prompt], plan: Plan) -> Iterator[Result[Any]]:
        """Store units ahead of those that are read, and yield the results of each when it has ended."""
        begun = (
            self._begin(rows[at : at + UNIT], self._key_of_unit(number), plan)
            for number, at in enumerate(range(0, len(rows), UNIT))
        )
        waiting = self._units
        waiting.extend(islice(begun, AHEAD * self._cluster.threads))
        with new_display(self._progress, len(rows), RealClock.now) or nullcontext() as shown:
            while waiting:
                for result in self._end(*waiting[0], plan):
                    if shown is not None:
                        shown.advance(result)
                    yield result
                waiting.popleft()
                waiting.extend(islice(begun, 1))

    def _begin(self, rows: Sequence[Prompt], key: str, plan: Plan) -> tuple[Unit, Sequence[Prompt]]:
        """Store rows as a unit, or find them, and have a worker carry it on."""
        return self._cluster.begin(self._client.submit_run(rows, plan, key=key, carry_on=False)), rows

    def _end(self, unit: Unit, rows: Sequence[Prompt], plan: Plan) -> list[Result[Any]]:
        """Wait for the end of a unit and return its results. Rows that a call of earlier cancelled are asked
        as a unit of their own."""
        self._cluster.await_end(unit)
        results = list(unit.job.results(wait=False))
        again = [at for at, result in enumerate(results) if isinstance(result.error, RequestCancelled)]
        if again:
            rest = self._begin([rows[at] for at in again], f"{unit.job.key}+", plan)
            for at, result in zip(again, self._end(*rest, plan), strict=True):
                results[at] = result
        return results

    def _key_of_unit(self, number: int) -> str:
        return f"{self._key}/{number}"

    def _is_stored(self, key: str) -> bool:
        try:
            self._client.job(key)
        except JobNotFound:
            return False
        return True
