"""Dask: one list for all workers of a cluster, through a store that they share.

What goes to a worker is the id of a unit: some rows of the list, stored as a job. Prompts and answers stand
in the store only, and a unit's lease decides which worker asks its rows.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Self, TypeAlias, final

import distributed
from attrs import asdict, define, evolve, has
from distributed.diagnostics.plugin import WorkerPlugin

from smartbatch._clock import RealClock
from smartbatch.client import BatchingClient
from smartbatch.config import BatchingConfig
from smartbatch.errors import ClientClosed, ConfigError, JobNotFound, RequestCancelled
from smartbatch.integrations.dask_collections import Template, collection
from smartbatch.jobs.job import Job
from smartbatch.plan import Plan
from smartbatch.results import ResultList, ended
from smartbatch.routing.list_progress import OnProgress, ProgressCounter
from smartbatch.types import ConstraintParams, Prompt, Result, Route

__all__ = ["map"]

UNIT = 100
"""Rows of a unit. It is the same in every call, so that a call with the same key finds its units."""
AHEAD = 4
"""Units that are stored and sent ahead, for each thread of the workers."""
TIMES = 3
"""How often a unit is sent whose worker died or was closed; Dask by itself sends it to three others."""
GRACE = 5.0
"""Seconds for calls under way when a worker closes."""
_Options: TypeAlias = Mapping[str, Any]


def map(
    prompts: Any,
    *,
    model: str,
    scheduler: distributed.Client | str | None = None,
    store: str | None = None,
    shared: str | None = None,
    key: str | None = None,
    template: Template | None = None,
    provider_options: _Options | None = None,
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> Any:
    """Ask all prompts on the workers of a cluster, and return the results in order, as what they came in.

    The route is chosen once, here. A list that goes by batch is one job of this process. In real time its
    rows are stored as units of 100; workers carry them on, each process with one client, and this process
    reads the results from the store. The same call again, with the same key, goes on: what is answered is not
    asked again.

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
        settings: of :class:`~smartbatch.BatchingConfig`, by name, for each worker's client (``parallelism``
            is that of one worker; ``budget`` is one for all); parameters of all generations; and
            ``deadline``.

    Returns:
        a :class:`~smartbatch.ResultList`; a bag of results; or a dataframe as it was given, with the columns.

    Raises:
        ConfigError: for settings, no store, or a worker that has no key for the account.
        InvalidRequest: names the row.
        AllRequestsFailed: when not one request was answered.
        distributed.KilledWorker: several workers died of a unit.
    """
    began = RealClock.now()
    config, own = _split(settings, store, shared)
    with _Cluster(scheduler) as cluster:
        given = collection(prompts, template, cluster.compute)
        rows = given.prompts
        key = key or _key_of(rows, model, provider_options, own)
        if config.budget is not None and config.budget_scope == "client":
            config = _with(config, budget_scope=f"shared:{key}")
        constraints = {name: own.pop(name) for name in ConstraintParams.__optional_keys__ if name in own}
        told = None if on_progress is None else ProgressCounter(on_progress, len(rows), RealClock.now)
        results: ResultList[Any] = ResultList()
        cluster.add_clients(model, config, provider_options)
        at_once = _with(config, parallelism=min(1024, config.parallelism * cluster.processes))
        with BatchingClient(model, at_once, provider_options=provider_options, **own) as client:
            for result in _ListRun(cluster, client, key, constraints).results(rows):
                if told is not None:
                    told(result)
                if config.on_error == "raise" and result.error is not None:
                    raise result.error
                results.append(result)
    return given.rebuilt(ended(results, RealClock.now() - began))


# -- the side of the workers ---------------------------------------------------------------------------------


@final
class _WorkerClient(WorkerPlugin):  # type: ignore[misc]
    """The client of a worker process, made by its first unit and stopped when the worker closes."""

    idempotent = True

    def __init__(self, model: str, config: BatchingConfig, options: _Options | None) -> None:
        self._made = model, config, options
        known = {name: value for name, value in (options or {}).items() if name != "api_key"}
        self.name = f"smartbatch-{_digest([model, config, known])}"
        self._client: BatchingClient | None = None

    def setup(self, worker: distributed.Worker) -> None:  # noqa: ARG002 (its name is Dask's)
        """Begin with no client: this must not block the worker's loop."""
        self._lock = threading.Lock()

    async def teardown(self, worker: distributed.Worker) -> None:  # noqa: ARG002 (its name is Dask's)
        """Give jobs back, once calls under way have ended."""
        with self._lock:
            client = self._client
        if client is not None:
            await asyncio.to_thread(client.stop, GRACE)

    def client(self) -> BatchingClient:
        """Return the client of this process."""
        model, config, options = self._made
        with self._lock:
            if self._client is None:
                self._client = BatchingClient(model, config, provider_options=options)
            return self._client


def _carry_on(plugin: str, key: str) -> int:
    """Carry a unit on in this worker until it has ended; return how many rows it has.

    Where another worker has its lease, wait for its end, or for the end of that lease.
    """
    job = distributed.get_worker().plugins[plugin].client().job(key)
    if not job.has_account() and not job.is_done():
        raise ConfigError(
            f"the worker {distributed.get_worker().name} has another account for {job.model} than the "
            "caller: set the same key in the environment of every worker"
        )
    return int(job.wait().total)


# -- the side of the caller ----------------------------------------------------------------------------------


class _Cluster:
    """The workers of a cluster.

    Args:
        scheduler: as of :func:`map`; a client that is made here is closed here.
    """

    def __init__(self, scheduler: distributed.Client | str | None) -> None:
        self._own = isinstance(scheduler, str)
        self._dask: Any = scheduler or distributed.default_client()
        if self._own:
            self._dask = distributed.Client(scheduler, set_as_default=False)
        self._plugin = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._own:
            self._dask.close()

    @property
    def processes(self) -> int:
        """Workers, at least one: others may come."""
        return max(1, len(self._dask.nthreads()))

    @property
    def threads(self) -> int:
        """Units that the workers carry on at a time."""
        threads: int = sum(self._dask.nthreads().values())
        return max(1, threads)

    def compute(self, parts: Sequence[Any]) -> Sequence[Any]:
        """Bring partitions of a collection here."""
        computed: Sequence[Any] = self._dask.gather(self._dask.compute(list(parts)))
        return computed

    def add_clients(self, model: str, config: BatchingConfig, options: _Options | None) -> None:
        """Have each worker make a client when it needs one; so do workers that come later."""
        plugin = _WorkerClient(model, config, options)
        self._dask.register_plugin(plugin)
        self._plugin = plugin.name

    def send(self, job_id: str) -> distributed.Future:
        """Have some worker carry a unit on."""
        return self._dask.submit(_carry_on, self._plugin, job_id, pure=False, retries=0)


@define
class _Unit:
    """Rows of the list.

    Attributes:
        job: the rows, as they are stored.
        future: of the worker's task; ``None`` where the unit had ended before.
        sent: how often it was sent.
    """

    rows: Sequence[Prompt]
    job: Job
    future: distributed.Future | None = None
    sent: int = 0


class _ListRun:
    """One list on its way."""

    def __init__(self, cluster: _Cluster, client: BatchingClient, key: str, constraints: _Options) -> None:
        self._cluster = cluster
        self._client = client
        self._key = key
        self._constraints = constraints
        self._units: list[_Unit] = []

    def results(self, rows: Sequence[Prompt]) -> Iterator[Result[Any]]:
        """Yield all results in order. Left early, what has not been sent is cancelled in the store.

        The cases, in order: the list stands in the store as one job for a batch; as units; in neither way,
        and the route is chosen.
        """
        batch = f"{self._key}/batch"
        if self._is_stored(batch):
            yield from self._client.adopt_job(batch).results()
            return
        constraints = {**self._constraints}
        if self._is_stored(self._key_of_unit(0)):
            constraints["strategy"] = "individual"
        plan = self._client.forecast(rows, count=len(rows), **constraints)
        if plan.route in (Route.BATCH, Route.HYBRID):
            yield from self._client.submit_run(rows, plan, key=batch).results()
            return
        try:
            yield from self._in_real_time(rows, plan)
        except BaseException:
            for unit in self._units:
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
        while waiting:
            yield from self._end(waiting[0], plan)
            del waiting[0]
            waiting.extend(islice(begun, 1))

    def _begin(self, rows: Sequence[Prompt], key: str, plan: Plan) -> _Unit:
        """Store rows as a unit, or find them, and have a worker carry it on."""
        unit = _Unit(rows, self._client.submit_run(rows, plan, key=key, carry_on=False))
        if not unit.job.is_done():
            self._send(unit)
        return unit

    def _send(self, unit: _Unit) -> None:
        unit.future = self._cluster.send(unit.job.id)
        unit.sent += 1

    def _end(self, unit: _Unit, plan: Plan) -> list[Result[Any]]:
        """Wait for the end of a unit and return its results. Rows that a call of earlier cancelled are asked
        as a unit of their own."""
        while unit.future is not None:
            try:
                unit.future.result()
                break
            except (distributed.KilledWorker, distributed.CancelledError, ClientClosed) as error:
                if unit.job.is_done():
                    break
                if unit.sent == TIMES:
                    error.add_note("nothing is lost: the same call again goes on")
                    raise
                self._send(unit)
        results = list(unit.job.results(wait=False))
        again = [at for at, result in enumerate(results) if isinstance(result.error, RequestCancelled)]
        if again:
            rest = self._begin([unit.rows[at] for at in again], f"{unit.job.key}+", plan)
            for at, result in zip(again, self._end(rest, plan), strict=True):
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


# -- what was given ------------------------------------------------------------------------------------------


def _split(given: _Options, store: str | None, shared: str | None) -> tuple[BatchingConfig, dict[str, Any]]:
    """Return the settings of each client, and what is of this list only.

    Raises:
        ConfigError: there is no store, or a setting is out of its range.
    """
    known = {setting.name for setting in BatchingConfig().describe()}
    settings: dict[str, Any] = {name: value for name, value in given.items() if name in known}
    config = BatchingConfig.load(**settings)
    place = store or config.store
    if place is None:
        raise ConfigError("store is none, and workers need one that all reach: set store='postgresql://…'")
    remote = place.startswith(("postgresql://", "postgres://"))
    if not remote:
        place = os.path.abspath(os.path.expanduser(place))
    if shared is None:
        shared = place if remote and config.shared == "auto" else config.shared
    own = {name: value for name, value in given.items() if name not in known}
    return _with(config, store=place, shared=shared), own


def _with(config: BatchingConfig, **changes: Any) -> BatchingConfig:
    return evolve(config, **changes)


def _key_of(rows: Sequence[Prompt], model: str, options: _Options | None, params: _Options) -> str:
    """Return a key for a list: the same for the same prompts, model and parameters."""
    known = {name: value for name, value in (options or {}).items() if name != "api_key"}
    plain = {name: value for name, value in params.items() if name not in ConstraintParams.__optional_keys__}
    return f"dask-{_digest([model, known, plain, rows])}"


def _digest(value: Any) -> str:
    """Return a short digest of values as they are written."""
    written = json.JSONEncoder(default=_plain, sort_keys=True).iterencode(value)
    digest = hashlib.blake2b(digest_size=16)
    for piece in written:
        digest.update(piece.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    plain = partial(asdict, recurse=False)
    return plain(value) if has(type(value)) else repr(value)
