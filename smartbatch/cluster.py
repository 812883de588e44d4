"""Workers of a Dask cluster that run jobs of a store.

A worker receives only the ID of a unit, which is a set of rows stored as a job. Prompts and answers stay in
the store, and the lease of a unit decides which worker sends its rows.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Self, TypeAlias, final
from uuid import uuid4

import distributed
from attrs import asdict, define, field, has
from distributed.comm import CommClosedError
from distributed.diagnostics.plugin import WorkerPlugin

from smartbatch._clock import RealClock
from smartbatch.client import BatchingClient
from smartbatch.config import BatchingConfig, changed
from smartbatch.errors import ClientClosed, ConfigError, RequestCancelled
from smartbatch.jobs.job import Job
from smartbatch.plan import Plan
from smartbatch.types import Request, Result

UNIT_ROWS = 100  # constant, so that repeating a call with the same key finds its units
MAX_SENDS = 3  # per unit, if its workers close; if a worker dies, Dask tries three others each time
GRACE_SECONDS = 5.0  # time for calls in progress when a worker closes, and for workers to stop their clients
RESUME_ADVICE = "nothing is lost: repeat the same call to resume"
POLL_SECONDS = 0.5  # time between checks for an interrupt
NO_WORKERS_SECONDS = 5.0  # time before a warning that there are no workers
_LOGGER = logging.getLogger("smartbatch")
_LOST = (CommClosedError, distributed.CancelledError)
"""Errors of a task whose worker closed or whose scheduler is unreachable."""
Options: TypeAlias = Mapping[str, Any]


@define(eq=False)
class Unit:
    """Some rows of a list."""

    job: Job  # the stored rows
    future: distributed.Future | None = None  # the worker's task; ``None`` once the unit has finished
    sent: int = 0  # number of times it was sent


# -- in the workers ------------------------------------------------------------------------------------------


@final
class _WorkerClient(WorkerPlugin):  # type: ignore[misc]
    """The client of one call in a worker process, created by its first unit and stopped when the call ends or
    the worker closes.

    Each call has its own client, because a client shared by several calls could have the wrong key or budget,
    and it would be unclear when to stop it.
    """

    def __init__(self, model: str, config: BatchingConfig, options: Options | None) -> None:
        self._made = model, config, options
        self.name = f"smartbatch-{uuid4().hex}"
        self._client: BatchingClient | None = None
        self._has_ended = False

    def setup(self, worker: distributed.Worker) -> None:  # noqa: ARG002 (its name is Dask's)
        """Start without a client: creating one would block the worker's event loop."""
        self._lock = threading.Lock()

    async def teardown(self, worker: distributed.Worker) -> None:
        """Release the jobs once calls in progress have completed, without blocking a worker that
        continues."""
        with self._lock:
            self._has_ended = True
            client = self._client
        if client is None:
            return
        if worker.status in (distributed.Status.running, distributed.Status.paused):
            threading.Thread(target=client.stop, name="smartbatch-end", daemon=True).start()
        else:
            await asyncio.to_thread(client.stop, GRACE_SECONDS)

    def client(self) -> BatchingClient:
        model, config, options = self._made
        with self._lock:
            if self._has_ended:
                raise ClientClosed("the call has ended, or the worker is closing")
            if self._client is None:
                self._client = BatchingClient(model, config, provider_options=options)
            return self._client


def _run_unit(plugin: str, key: str) -> int:
    """Run a unit in this worker until it has finished, and return its number of rows.

    If another worker holds its lease, wait until the unit has finished or the lease is released.
    """
    job = distributed.get_worker().plugins[plugin].client().job(key)
    if not job.has_account() and not job.is_done():
        raise ConfigError(
            f"the worker {distributed.get_worker().name} uses a different account for {job.model} than the "
            "caller: set the same key in the environment of every worker"
        )
    return int(job.wait().total)


# -- in the caller -------------------------------------------------------------------------------------------


class Cluster:
    """The workers of a cluster.

    Args:
        scheduler: a client, or an address, whose client is closed with this object; ``None`` for Dask's
            default.
    """

    def __init__(self, scheduler: distributed.Client | str | None) -> None:
        self._own = isinstance(scheduler, str)
        self._dask: Any = scheduler or distributed.default_client()
        if self._own:
            self._dask = distributed.Client(scheduler, set_as_default=False)
        self._plugin = ""
        self._no_workers_since: float | None = None
        self._has_warned = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._end_clients()
        finally:
            if self._own:
                self._dask.close()

    def _end_clients(self) -> None:
        """Stop the client of each worker, within :data:`GRACE_SECONDS`."""
        if not self._plugin or self._dask.status != "running":
            return
        unregister = self._dask.scheduler.unregister_worker_plugin
        with suppress(OSError, ValueError):  # workers or the scheduler are gone, but the results are stored
            self._dask.sync(unregister, name=self._plugin, callback_timeout=GRACE_SECONDS)

    @property
    def processes(self) -> int:
        """The number of workers, but at least one, because more may join."""
        return max(1, len(self._dask.nthreads()))

    @property
    def threads(self) -> int:
        """The number of units that the workers run concurrently."""
        threads: int = sum(self._dask.nthreads().values())
        return max(1, threads)

    def compute(self, parts: Sequence[Any]) -> Sequence[Any]:
        futures = self._dask.compute(list(parts))
        for future in futures:
            while not future.done():
                with suppress(TimeoutError):
                    future.exception(timeout=POLL_SECONDS)
                self._warn_without_workers()
        computed: Sequence[Any] = self._dask.gather(futures)
        return computed

    def _warn_without_workers(self) -> None:
        with suppress(OSError, *_LOST):  # the scheduler is unreachable, which the next wait reports
            if self._dask.nthreads():
                self._no_workers_since, self._has_warned = None, False
                return
        now = RealClock.now()
        if self._no_workers_since is None:
            self._no_workers_since = now
        elif now - self._no_workers_since >= NO_WORKERS_SECONDS and not self._has_warned:
            self._has_warned = True
            _LOGGER.warning(
                "no Dask worker is connected to %s, so nothing is sent: start workers, or interrupt the call "
                "(%s)",
                self._dask.scheduler.address,
                RESUME_ADVICE,
            )

    def add_clients(self, model: str, config: BatchingConfig, options: Options | None) -> None:
        """Let each worker, including those that join later, create a client at first use."""
        plugin = _WorkerClient(model, config, options)
        self._dask.register_plugin(plugin)
        self._plugin = plugin.name

    def begin(self, job: Job) -> Unit:
        """Send a job to a worker, unless it has finished."""
        unit = Unit(job)
        if not job.is_done():
            self._send(unit)
        return unit

    def _send(self, unit: Unit) -> None:
        unit.future = self._dask.submit(_run_unit, self._plugin, unit.job.id, pure=False, retries=0)
        unit.sent += 1

    def await_end(self, unit: Unit, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Wait until a unit has finished; return False if ``stopped`` becomes true first.

        Raises:
            ConnectionError: the scheduler is unreachable.
            distributed.KilledWorker: several workers died while running the unit.
        """
        while unit.future is not None:
            try:
                # unlike result(), this transfers no value, so it needs neither the scheduler nor the worker
                unit.future.exception(timeout=POLL_SECONDS)
                if unit.future.status != "finished":
                    unit.future.result(timeout=POLL_SECONDS)  # raises the reason
                return True
            except TimeoutError:
                if stopped():
                    return False
                self._warn_without_workers()
            except (*_LOST, distributed.KilledWorker, ClientClosed) as error:
                # 1. Another process has finished it.
                if unit.job.is_done():
                    return True
                # 2. The scheduler is unreachable.
                if isinstance(error, CommClosedError) or self._dask.status != "running":
                    raise ConnectionError(
                        f"the scheduler cannot be reached; {RESUME_ADVICE}, with another scheduler"
                    ) from error
                # 3. Its worker closed, or several died: send it again, up to a limit.
                if unit.sent == MAX_SENDS:
                    error.add_note(RESUME_ADVICE)
                    raise
                self._send(unit)
        return True


# -- settings -----------------------------------------------------------------------------------------------


def shared_config(
    config: BatchingConfig, place: str | None = None, shared: str | None = None
) -> BatchingConfig:
    """Return the settings for each worker's client.

    Args:
        place: the store; overrides the setting.
        shared: where clients share limits and the budget; overrides the setting. With ``"auto"`` they share
            them in a store on a server.

    Raises:
        ConfigError: there is no store.
    """
    place = place or config.store
    if place is None:
        raise ConfigError("the workers need a store that all of them reach: set store='postgresql://…'")
    remote = place.startswith(("postgresql://", "postgres://"))
    if not remote:
        place = os.path.abspath(os.path.expanduser(place))
    if shared is None:
        shared = place if remote and config.shared == "auto" else config.shared
    return changed(config, store=place, shared=shared)


def one_budget(config: BatchingConfig, key: str) -> BatchingConfig:
    """Let all processes that run the list with this key share one budget."""
    if config.budget is None or config.budget_scope != "client":
        return config
    return changed(config, budget_scope=f"shared:{key}")


def digest(value: Any) -> str:
    written = json.JSONEncoder(default=_plain, sort_keys=True).iterencode(value)
    digest = hashlib.blake2b(digest_size=16)
    for piece in written:
        digest.update(piece.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    plain = partial(asdict, recurse=False)
    return plain(value) if has(type(value)) else repr(value)


@define(eq=False)
class ClusterUnits:
    """The units of one run."""

    _cluster: Cluster
    _stopped: Callable[[], bool]  # once true, stop waiting and cancel unsent requests
    _units: dict[str, Unit] = field(factory=dict, init=False)

    @classmethod
    def of(
        cls,
        cluster: Cluster,
        model: str,
        config: BatchingConfig,
        options: Mapping[str, Any] | None,
        key: str,
        *,
        stopped: Callable[[], bool],
    ) -> ClusterUnits:
        """Let the workers create clients for the run with this key, which share its budget."""
        cluster.add_clients(model, one_budget(shared_config(config), key), options)
        return cls(cluster, stopped)

    def submit(
        self,
        client: BatchingClient,
        requests: Iterator[Request],
        plan: Plan,
        key: str,
        metadata: Mapping[str, str],
    ) -> list[Job]:
        """Store rows as units and return their jobs."""
        jobs: list[Job] = []
        while rows := list(islice(requests, UNIT_ROWS)):
            name = f"{key}/{len(jobs)}"
            jobs.append(client.submit_run(rows, plan, key=name, metadata=metadata, carry_on=False))
        return jobs

    def begin(self, job: Job) -> None:
        self._units[job.id] = self._cluster.begin(job)

    def results(self, job: Job) -> Iterator[Result]:
        """Wait until a unit has finished and yield its results; after an interrupt, yield those available."""
        if not self._cluster.await_end(self._units[job.id], self._stopped):
            job.cancel()
        for result in job.results(wait=False):
            if not isinstance(result.error, RequestCancelled):
                yield result
