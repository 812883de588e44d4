"""Rows of a run that workers of a Dask cluster ask.

They stand in the store as units, each a job in real time that this process does not carry on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from attrs import define, field

from smartbatch.client import BatchingClient
from smartbatch.cluster import UNIT, Cluster, Unit, one_budget, shared_config
from smartbatch.config import BatchingConfig
from smartbatch.errors import RequestCancelled
from smartbatch.jobs.job import Job
from smartbatch.plan import Plan
from smartbatch.types import Request, Result


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
