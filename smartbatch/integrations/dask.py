"""Dask: sends a list, bag or dataframe from all workers of a cluster, through a shared store.

Bags and dataframes are recognized by the modules of their classes, so nothing is imported that is not loaded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any, TypeAlias

import distributed
from attrs import define, field, frozen

from smartbatch._clock import RealClock
from smartbatch.client import BatchingClient
from smartbatch.cluster import UNIT_ROWS, Cluster, Options, Unit, digest, one_budget, shared_config
from smartbatch.config import BatchingConfig, changed
from smartbatch.core.preparation.preparer import prompt_list
from smartbatch.errors import InvalidRequest, JobNotFound, RequestCancelled
from smartbatch.keywords import ConstraintParams
from smartbatch.observe.list_progress import OnProgress, ProgressCounter
from smartbatch.observe.progress import new_display
from smartbatch.plan import Plan
from smartbatch.results import ResultList, ended
from smartbatch.types import Prompt, Result, TemplateSource

COLUMNS = ("answer", "error", "cost")
"""Columns added to a dataframe: the answer's text, the name of the error, and the cost in USD. A missing
value leaves its cell empty.
"""
Template: TypeAlias = "TemplateSource | Callable[[Any], Prompt]"
Compute: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
"""Loads the partitions of a collection into this process."""


@frozen
class Collection:
    """Prompts in order, and the collection they came from."""

    prompts: Sequence[Prompt]
    rebuilt: Callable[[ResultList[Any]], Any]  # turns results, in order, into a collection of the same kind


def collection(given: Any, template: Template | None, compute: Compute) -> Collection:
    module = type(given).__module__
    if module.startswith("dask.bag"):
        parts = compute(given.to_delayed())
        rows = [row for part in parts for row in part]
        return Collection(_prompts(rows, template), lambda results: _bag(parts, results))
    if module.startswith("dask.dataframe"):
        frames = compute(given.to_delayed())
        return Collection(_of_frames(frames, template), lambda results: _dataframe(given, frames, results))
    if module.startswith("pandas") and hasattr(given, "columns"):
        return Collection(_of_frames([given], template), lambda results: _with_results(given, iter(results)))
    return Collection(_prompts(prompt_list(given), template), lambda results: results)


def _prompts(rows: Iterable[Any], template: Template | None) -> list[Prompt]:
    if template is None:
        return list(rows)
    if callable(template):
        return [template(row) for row in rows]
    return list(prompt_list(list(rows), template=template))


def _of_frames(frames: Sequence[Any], template: Template | None) -> list[Prompt]:
    columns = [str(name) for name in frames[0].columns] if frames else []
    if taken := [name for name in COLUMNS if name in columns]:
        raise InvalidRequest(f"the dataframe already has a column {taken[0]!r}: rename it", field="prompts")
    if template is None and "prompt" not in columns:
        raise InvalidRequest(
            "the dataframe has no column 'prompt': give template='… {column} …'", field="template"
        )
    if template is None:
        return [prompt for frame in frames for prompt in frame["prompt"]]
    return _prompts((row for frame in frames for row in frame.to_dict("records")), template)


def _with_results(frame: Any, results: Iterable[Result[Any]]) -> Any:
    own = list(islice(results, len(frame)))
    values = (
        [result.text for result in own],
        [None if result.error is None else type(result.error).__name__ for result in own],
        [result.cost for result in own],
    )
    kinds = ("object", "object", "float64")
    made = frame.copy()
    for name, column, kind in zip(COLUMNS, values, kinds, strict=True):
        made[name] = column
        made[name] = made[name].astype(kind)
    return made


def _bag(parts: Sequence[Any], results: ResultList[Any]) -> Any:
    import dask
    from dask import bag

    each = iter(results)
    return bag.from_delayed(
        [dask.delayed(list(islice(each, len(part)))) for part in [list(part) for part in parts]]
    )


def _dataframe(given: Any, frames: Sequence[Any], results: ResultList[Any]) -> Any:
    """Keep the original partitions and index."""
    import dask
    from dask import dataframe

    each = iter(results)
    made = [_with_results(frame, each) for frame in frames]
    return dataframe.from_delayed(
        [dask.delayed(frame) for frame in made], meta=made[0].iloc[:0], divisions=given.divisions
    )


__all__ = ["map"]

UNITS_AHEAD_PER_THREAD = 4  # units stored and sent ahead of the one being read


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
    """Send all prompts from the workers of a cluster, and return the results in order, in the same kind of
    collection.

    The route is chosen once, in this process. A list sent by batch is one job of this process. In real time,
    rows are stored in units of 100. The worker processes run these units, each with one client per call of
    this function, and this process reads the results from the store. Repeat the call with the same key to
    resume: answered prompts are not sent again.

    Args:
        prompts: a list or any iterable of strings, chats or requests; a Dask bag; or a Dask or pandas
            dataframe, to which the columns ``answer``, ``error`` and ``cost`` are added.
        model: ``provider:model``. Workers read the API key from their own environment.
        scheduler: a client of the cluster or the scheduler's address; Dask's default client if ``None``.
        store: where rows and answers are kept, reachable by all workers: ``postgresql://…``, or a file if
            they are all on one machine; the setting if ``None``.
        shared: where workers share limits and the budget; the setting if ``None``; a PostgreSQL store if the
            setting is ``"auto"``.
        key: your name for this list; derived from its contents if ``None``.
        template: makes the prompt of a row: a string with ``{field}`` placeholders, the path of a template,
            or a function.
        provider_options: as for :class:`BatchingClient <smartbatch.BatchingClient>`.
        on_progress: called with a :class:`~smartbatch.ListProgress` for each result as it is read.
        progress: as for :meth:`BatchingClient.map <smartbatch.BatchingClient.map>`.
        settings: settings of :class:`~smartbatch.BatchingConfig` for each worker's client (``parallelism`` is
            per worker; ``budget`` is shared by all), generation parameters, and ``deadline``.

    Returns:
        a :class:`~smartbatch.ResultList`, a bag of results, or the dataframe with the added columns.

    Raises:
        ConfigError: a setting is invalid, there is no store, or a worker has no key for the account.
        InvalidRequest: a request is invalid; the message names the row.
        JobConflict: the key belongs to a list with other prompts, another model or other parameters.
        AllRequestsFailed: no request was answered.
        distributed.KilledWorker: several workers died while running a unit.
        ConnectionError: the connection to the scheduler was lost; repeat the call with another scheduler to
            resume.
    """
    began = RealClock.now()
    call = _ListCall.of(model, settings, store, shared, provider_options)
    with Cluster(scheduler) as cluster:
        given = collection(prompts, template, cluster.compute)
        results = call.collected(given.prompts, key, cluster, progress, on_progress)
    return given.rebuilt(ended(results, RealClock.now() - began))


@frozen
class _ListCall:
    model: str
    config: BatchingConfig  # for each worker's client
    params: Options  # generation parameters
    constraints: Options  # constraints of the list
    options: Options | None

    @classmethod
    def of(
        cls, model: str, given: Options, store: str | None, shared: str | None, options: Options | None
    ) -> _ListCall:
        """Separate settings from parameters and constraints."""
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
        """Read all results and report progress; raise the first error if ``on_error`` is ``"raise"``."""
        counter = None if on_progress is None else ProgressCounter(on_progress, len(rows), RealClock.now)
        read: ResultList[Any] = ResultList()
        for result in self.results(
            rows, key, cluster, progress
        ):  # the only reference, so an error closes the generator
            if counter is not None:
                counter(result)
            if self.config.on_error == "raise" and result.error is not None:
                raise result.error
            read.append(result)
        return read

    def results(
        self, rows: Sequence[Prompt], key: str | None, cluster: Cluster, progress: bool | None
    ) -> Iterator[Result[Any]]:
        key = key or self._key_of(rows)
        config = one_budget(self.config, key)
        cluster.add_clients(self.model, config, self.options)
        at_once = changed(config, parallelism=min(1024, config.parallelism * cluster.processes))
        with BatchingClient(self.model, at_once, provider_options=self.options, **self.params) as client:
            yield from _ListRun(cluster, client, key, self.constraints, progress).results(rows)

    def _key_of(self, rows: Sequence[Prompt]) -> str:
        known = {name: value for name, value in (self.options or {}).items() if name != "api_key"}
        return f"dask-{digest([self.model, known, self.params, rows])}"


@define(eq=False)
class _ListRun:
    _cluster: Cluster
    _client: BatchingClient
    _key: str
    _constraints: Options
    _progress: bool | None
    _units: deque[tuple[Unit, Sequence[Prompt]]] = field(factory=deque)

    def results(self, rows: Sequence[Prompt]) -> Iterator[Result[Any]]:
        """Yield the results in order. If the caller stops early, unsent units are cancelled in the store."""
        # 1. The store has the list as a batch job.
        batch = f"{self._key}/batch"
        if self._is_stored(batch):
            yield from self._client.submit_batch(rows, key=batch).results(progress=self._progress)
            return
        # 2. The store has it as units. Otherwise, choose the route.
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
        """Store some units in advance, and yield the results of each unit after it has ended."""
        begun = (
            self._begin(rows[at : at + UNIT_ROWS], self._key_of_unit(number), plan)
            for number, at in enumerate(range(0, len(rows), UNIT_ROWS))
        )
        waiting = self._units
        waiting.extend(islice(begun, UNITS_AHEAD_PER_THREAD * self._cluster.threads))
        with new_display(self._progress, len(rows), RealClock.now) or nullcontext() as shown:
            while waiting:
                for result in self._end(*waiting[0], plan):
                    if shown is not None:
                        shown.advance(result)
                    yield result
                waiting.popleft()
                waiting.extend(islice(begun, 1))

    def _begin(self, rows: Sequence[Prompt], key: str, plan: Plan) -> tuple[Unit, Sequence[Prompt]]:
        """Store rows as a unit, or find them in the store, and send it to a worker."""
        return self._cluster.begin(self._client.submit_run(rows, plan, key=key, carry_on=False)), rows

    def _end(self, unit: Unit, rows: Sequence[Prompt], plan: Plan) -> list[Result[Any]]:
        """Wait for a unit and return its results. Rows cancelled by an earlier call are sent again as another
        unit.
        """
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
