"""Workers of a Dask cluster that run jobs of a store.

A worker is sent the id of a unit: some rows, stored as a job. Prompts and answers are only in the store, and
a unit's lease decides which worker sends its rows.
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

UNIT = 100
"""Rows of a unit. It is the same in every call, so that a call with the same key finds its units."""
TIMES = 3
"""How often a unit is sent whose worker died or was closed; Dask by itself sends it to three others."""
GRACE = 5.0
"""Seconds for calls under way when a worker closes, and for workers to hear that a call has ended."""
AGAIN = "nothing is lost: the same call again goes on"
STEP = 0.5
"""Seconds between looks whether a wait was interrupted."""
NO_WORKERS_SECONDS = 5.0
"""Seconds without a worker after which a warning says that nothing is sent."""
_LOGGER = logging.getLogger("smartbatch")
_LOST = (CommClosedError, distributed.CancelledError)
"""What a task ends with whose worker was closed, or whose scheduler is lost."""
Options: TypeAlias = Mapping[str, Any]


@define(eq=False)
class Unit:
    """Some rows of a list.

    Attributes:
        job: the rows, as they are stored.
        future: of the worker's task; ``None`` where the unit had ended before.
        sent: how often it was sent.
    """

    job: Job
    future: distributed.Future | None = None
    sent: int = 0


# -- the side of the workers ---------------------------------------------------------------------------------


@final
class _WorkerClient(WorkerPlugin):  # type: ignore[misc]
    """The client of one call in a worker process, made by its first unit and stopped when the call ends, or
    the worker closes.

    Each call has its own: one that is found by its settings would have the key, or the budget, of an earlier
    call, or nobody would know when to end it.
    """

    def __init__(self, model: str, config: BatchingConfig, options: Options | None) -> None:
        self._made = model, config, options
        self.name = f"smartbatch-{uuid4().hex}"
        self._client: BatchingClient | None = None
        self._has_ended = False

    def setup(self, worker: distributed.Worker) -> None:  # noqa: ARG002 (its name is Dask's)
        """Begin with no client: this must not block the worker's loop."""
        self._lock = threading.Lock()

    async def teardown(self, worker: distributed.Worker) -> None:
        """Give jobs back, once calls under way have ended; a worker that goes on is not held up by them."""
        with self._lock:
            self._has_ended = True
            client = self._client
        if client is None:
            return
        if worker.status in (distributed.Status.running, distributed.Status.paused):
            threading.Thread(target=client.stop, name="smartbatch-end", daemon=True).start()
        else:
            await asyncio.to_thread(client.stop, GRACE)

    def client(self) -> BatchingClient:
        """Return the client of this process.

        Raises:
            ClientClosed: the call has ended, or the worker closes.
        """
        model, config, options = self._made
        with self._lock:
            if self._has_ended:
                raise ClientClosed("the call has ended, or the worker closes")
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


class Cluster:
    """The workers of a cluster.

    Args:
        scheduler: a client, or an address; the default client when ``None``. A client that is made here is
            closed here.
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
        """Have each worker end the client that it made; waits for :data:`GRACE` seconds at most."""
        if not self._plugin or self._dask.status != "running":
            return
        unregister = self._dask.scheduler.unregister_worker_plugin
        with suppress(OSError, ValueError):  # workers or the scheduler are gone: the results are there
            self._dask.sync(unregister, name=self._plugin, callback_timeout=GRACE)

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
        futures = self._dask.compute(list(parts))
        for future in futures:
            while not future.done():
                with suppress(TimeoutError):
                    future.exception(timeout=STEP)
                self._warn_without_workers()
        computed: Sequence[Any] = self._dask.gather(futures)
        return computed

    def _warn_without_workers(self) -> None:
        """Log a warning once there have been no workers for a while; more may still join the scheduler."""
        with suppress(OSError, *_LOST):  # the scheduler is lost, which the next wait reports
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
                AGAIN,
            )

    def add_clients(self, model: str, config: BatchingConfig, options: Options | None) -> None:
        """Have each worker make a client when it needs one; so do workers that come later."""
        plugin = _WorkerClient(model, config, options)
        self._dask.register_plugin(plugin)
        self._plugin = plugin.name

    def begin(self, job: Job) -> Unit:
        """Have some worker carry a job on, unless it has ended."""
        unit = Unit(job)
        if not job.is_done():
            self._send(unit)
        return unit

    def _send(self, unit: Unit) -> None:
        unit.future = self._dask.submit(_carry_on, self._plugin, unit.job.id, pure=False, retries=0)
        unit.sent += 1

    def await_end(self, unit: Unit, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Wait until a unit has ended; False where ``stopped`` became true before. The cases, in order:

        1. Its worker has carried it on to its end, or another process has.
        2. The scheduler is lost: nothing more comes through it.
        3. Its worker was closed, or several died: it is sent again.

        Raises:
            ConnectionError: the scheduler is lost.
            distributed.KilledWorker: several workers died of it.
        """
        while unit.future is not None:
            try:
                # unlike result() it brings nothing here, for which Dask asks scheduler and worker
                unit.future.exception(timeout=STEP)
                if unit.future.status != "finished":
                    unit.future.result(timeout=STEP)  # raises why
                return True
            except TimeoutError:
                if stopped():
                    return False
                self._warn_without_workers()
            except (*_LOST, distributed.KilledWorker, ClientClosed) as error:
                if unit.job.is_done():
                    return True
                if isinstance(error, CommClosedError) or self._dask.status != "running":
                    raise ConnectionError(
                        f"the scheduler is lost: {AGAIN}, with another scheduler"
                    ) from error
                if unit.sent == TIMES:
                    error.add_note(AGAIN)
                    raise
                self._send(unit)
        return True


# -- settings -----------------------------------------------------------------------------------------------


def shared_config(
    config: BatchingConfig, place: str | None = None, shared: str | None = None
) -> BatchingConfig:
    """Return the settings of each worker's client.

    Args:
        place: of the store, rather than the setting.
        shared: where they share limits and the budget, rather than the setting, or where that is ``"auto"`` a
            store on a server.

    Raises:
        ConfigError: there is no store.
    """
    place = place or config.store
    if place is None:
        raise ConfigError("store is none, and workers need one that all reach: set store='postgresql://…'")
    remote = place.startswith(("postgresql://", "postgres://"))
    if not remote:
        place = os.path.abspath(os.path.expanduser(place))
    if shared is None:
        shared = place if remote and config.shared == "auto" else config.shared
    return changed(config, store=place, shared=shared)


def one_budget(config: BatchingConfig, key: str) -> BatchingConfig:
    """Return settings by which all processes that ask the list of a key have one budget."""
    if config.budget is None or config.budget_scope != "client":
        return config
    return changed(config, budget_scope=f"shared:{key}")


def digest(value: Any) -> str:
    """Return a short digest of values as they are written."""
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
    """The units of one run.

    Args:
        stopped: once true, nothing more is waited for, and what was not asked is cancelled.
    """

    _cluster: Cluster
    _stopped: Callable[[], bool]
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
        """Have the workers make clients for a run.

        Args:
            options: of the provider.
            key: of the run; its budget is one for all workers.
        """
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
        """Store rows as units, and return their jobs."""
        jobs: list[Job] = []
        while rows := list(islice(requests, UNIT)):
            name = f"{key}/{len(jobs)}"
            jobs.append(client.submit_run(rows, plan, key=name, metadata=metadata, carry_on=False))
        return jobs

    def begin(self, job: Job) -> None:
        """Have some worker carry a unit on."""
        self._units[job.id] = self._cluster.begin(job)

    def results(self, job: Job) -> Iterator[Result]:
        """Wait for the end of a unit and yield its results; once interrupted, those that there are."""
        if not self._cluster.await_end(self._units[job.id], self._stopped):
            job.cancel()
        for result in job.results(wait=False):
            if not isinstance(result.error, RequestCancelled):
                yield result
