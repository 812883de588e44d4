"""One job, one step at a time: what is due, who does it, and when to come again.

The engine has no thread and never waits. Each call of :meth:`StepRunner.tend` does at most one step of one
shard: a remote call or two, and the commits around them. After a crash at any point the next process reads
the states and goes on; nothing that matters is kept in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from attrs import frozen

from smartbatch._clock import Clock
from smartbatch.core.preparation.tokens import Calibration
from smartbatch.core.routing.rescue import Speed, assumed_speed
from smartbatch.errors import RequestCancelled
from smartbatch.events import Event
from smartbatch.jobs.payload import encode_error
from smartbatch.jobs.records import (
    OPEN_SHARDS,
    UNSENT_SHARDS,
    ItemState,
    JobLease,
    JobRow,
    JobState,
    ShardRow,
    ShardState,
)
from smartbatch.jobs.steps import cleanup, collect, create, orphans, poll, recover, settle, take_back
from smartbatch.jobs.steps.context import StepContext, StepLimits, report, unlearned
from smartbatch.jobs.steps.shard import plan
from smartbatch.jobs.store import Store
from smartbatch.prices import PriceBook
from smartbatch.providers.batch_api import BatchApi

__all__ = ["StepLimits", "StepResult", "StepRunner"]

_S = ShardState
_STEPS: dict[ShardState, Callable[[StepContext, ShardRow], ShardRow]] = {
    _S.PLANNED: create.begin,
    _S.UPLOADING: create.upload,
    _S.READY: create.submit,
    _S.SUBMITTING: recover.doubt,
    _S.UNCERTAIN: recover.look,
    _S.PROVISIONAL: recover.prove,
    _S.FENCED: recover.fenced,
    _S.SUBMITTED: poll.poll,
    _S.ENDED: collect.fetch,
    _S.DEAD: orphans.watch_dead_shard,
    _S.SETTLED: cleanup.tidy,
}


@frozen
class StepResult:
    """What a job needs next.

    Attributes:
        next_at: Unix seconds when to tend it again; ``None`` when nothing comes due by itself.
        realtime: there are items to run in real time now.
        finished: everything is done and cleaned up; the job may be released.
    """

    next_at: float | None = None
    realtime: bool = False
    finished: bool = False


class StepRunner:
    """Moves jobs on. One thread at a time may tend a job; different jobs may be tended at the same time.

    Args:
        store: where the jobs are.
        api_of: the Batch API for a job, of the very scope it was submitted in; ``None`` when it has none or
            this process does not have its key: then only what needs no provider is done.
        clock, rng: time, and dice for nonces and pauses.
        tell: takes events.
        prices: for the cost of results.
        limits: how to wait, and how much goes into a batch.
        speed: says how fast requests of a job are answered in real time; what is assumed before any was, by
            default.
        calibration: says what was learned of the tokens of a job's model; nothing by default.
    """

    def __init__(
        self,
        store: Store,
        *,
        api_of: Callable[[JobRow], BatchApi | None],
        clock: Clock,
        rng: Random,
        tell: Callable[[Event], None],
        prices: PriceBook,
        limits: StepLimits,
        speed: Callable[[JobRow], Speed] = assumed_speed,
        calibration: Callable[[JobRow], Calibration] = unlearned,
    ) -> None:
        self._store = store
        self._api_of = api_of
        self._clock = clock
        self._rng = rng
        self._tell = tell
        self._prices = prices
        self._limits = limits
        self._speed = speed
        self._calibration = calibration

    def run_step(self, lease: JobLease) -> StepResult:
        """Do the most urgent step of a job that is due, if one is.

        Raises:
            LeaseLost: another process owns the job now.
            StoreError: the store cannot be used at the moment.
        """
        job = self._store.job(lease.job_id)
        if job is None:
            return StepResult(None, finished=True)
        if job.cancel_requested and job.state is not JobState.DONE:
            job = self._drop_unsent(lease, job)
        api = self._api_of(job)
        if api is None:
            return StepResult(None, realtime=self._has_realtime(job), finished=job.state is JobState.DONE)
        step = StepContext(
            store=self._store,
            api=api,
            job=job,
            lease=lease,
            clock=self._clock,
            rng=self._rng,
            limits=self._limits,
            prices=self._prices,
            tell=self._tell,
            speed=self._speed,
            calibration=self._calibration,
        )
        if recover.answered(step):
            self._store.unhold(job.id)
            return StepResult(step.wall)
        if job.state is JobState.ACTIVE and not job.cancel_requested and plan(step):
            return StepResult(step.wall, self._has_realtime(job))
        return self._step(step)

    def _step(self, step: StepContext) -> StepResult:
        shards = [shard for shard in step.store.shards(step.job.id) if _alive(shard)]
        look = take_back.in_time(step, shards)
        if look <= step.wall:
            return StepResult(step.wall, self._has_realtime(step.job))
        waiting = [shard for shard in shards if not self._waits(step, shard)]
        due = min(waiting, key=lambda shard: shard.due_at, default=None)
        direct = self._has_realtime(step.job)
        if due is None:
            finished = not shards and step.job.state is JobState.DONE
            return StepResult(None if look == math.inf else look, direct, finished)
        at = min(self._due_at(step, due), look)
        if at > step.wall:
            return StepResult(at, direct)
        self._do(step, due)
        return StepResult(step.wall, direct)

    def _do(self, step: StepContext, shard: ShardRow) -> None:
        if shard.state is _S.INGESTING:
            if collect.ingest(step, shard):
                settle.settle(step, shard)
            return
        if shard.state in UNSENT_SHARDS and step.job.cancel_requested:
            self._call_off(step, shard)
            return
        _STEPS[shard.state](step, shard)

    def _call_off(self, step: StepContext, shard: ShardRow) -> None:
        dead = step.store.discard(
            step.lease, shard, items=ItemState.OPEN, tried=False, note="the job was cancelled", at=step.wall
        )
        step.told(shard, dead, "the job was cancelled")

    def _drop_unsent(self, lease: JobLease, job: JobRow) -> JobRow:
        body = encode_error(RequestCancelled("the job was cancelled before this request was sent"))
        if self._store.drop_unsent(lease, body, at=self._clock.wall()):
            return report(self._store, job, self._tell, self._clock)
        return job

    def _waits(self, step: StepContext, shard: ShardRow) -> bool:
        """Nothing new is sent for a job that is held; what was sent is followed to its end."""
        return (
            step.job.state is JobState.HELD and shard.state in UNSENT_SHARDS and not step.job.cancel_requested
        )

    def _due_at(self, step: StepContext, shard: ShardRow) -> float:
        """A wall clock that was put back must not make hours of a pause: none is longer than these."""
        longest = max(
            step.limits.longest_pause,
            step.limits.poll_interval,
            step.limits.reread_pause,
            step.limits.visibility,
        )
        return -math.inf if shard.due_at > step.wall + 2 * longest else shard.due_at

    def _has_realtime(self, job: JobRow) -> bool:
        return job.state is JobState.ACTIVE and bool(
            self._store.open_items(job.id, state=ItemState.REALTIME, limit=1)
        )


def _alive(shard: ShardRow) -> bool:
    return shard.state in OPEN_SHARDS or not shard.cleaned_up
