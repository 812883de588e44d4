"""Whose items are claimed next, and how many: turns of the jobs that run in real time in one process."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from attrs import define, field, frozen

from smartbatch.config import BatchingConfig
from smartbatch.jobs.realtime_items import TURN, ItemLimit, RealtimeItems
from smartbatch.jobs.records import JobRow, StoredItem
from smartbatch.providers.base import Provider
from smartbatch.types import Kind, Route


@frozen
class Turn:
    """A job, and how many of its items may be claimed."""

    job: RealtimeItems
    room: int


@define(eq=False)
class ClaimTurns:
    """The jobs whose items run in real time. Not thread-safe: a lock of its user's guards it.

    A job keeps its turn for :data:`TURN` items, so that results of few jobs are stored at a time; a new job
    whose items all have room comes before it, but never two of them in a row.

    Attributes:
        jobs: by id, in the order of their turns.
        under_way: items that are claimed and whose results are not stored yet, by the limit of their jobs:
            the jobs of one limit share it.
    """

    jobs: dict[str, RealtimeItems] = field(factory=dict)
    under_way: Counter[ItemLimit] = field(factory=Counter)
    _taken: Counter[ItemLimit] = field(factory=Counter)
    _overtaken: bool = False

    def following(self, now: float, *, ended: RealtimeItems | None = None, count: int = 0) -> Turn | float:
        """Return the next turn, or else until when jobs are paused, which may be for ever.

        Args:
            ended: a job, ``count`` of whose items free their room in the transaction that claims.
        """
        first: Turn | None = None
        resumes_at = math.inf
        for job in self.jobs.values():
            room = job.limit() - self.under_way[job.limit] - self._taken[job.limit]
            room += count if ended is not None and ended.limit == job.limit else 0
            if room <= 0 or not job.wanting or job.withdrawn:
                continue
            if job.resumes_at > now:
                resumes_at = min(resumes_at, job.resumes_at)
                continue
            turn = Turn(job, min(room, job.turn))
            if not self._overtaken and not job.begun and job.row.total <= room:
                return turn
            if room >= min(job.limit() // 4, TURN // 2):  # calls have enough to do until then
                first = first or turn
        return first or resumes_at

    def begin(self, turn: Turn) -> None:
        """Keep the room of a turn while its items are claimed."""
        turn.job.wanting = False  # before the claim: an offer that comes after it is a new one
        self._taken[turn.job.limit] += turn.room

    def end(self, turn: Turn, items: Sequence[StoredItem]) -> None:
        """Note which items were claimed; where it has no more, or had enough, it is the others' turn."""
        job = turn.job
        self._taken -= Counter({job.limit: turn.room})
        self.under_way[job.limit] += len(items)
        job.under_way.update(dict.fromkeys(item.ix for item in items))
        job.wanting = job.wanting or len(items) == turn.room
        if items:
            self._overtaken = not job.begun and next(iter(self.jobs.values()), job) is not job
            job.begun = True
        job.turn -= len(items)
        if job.turn <= 0 or not job.wanting:
            job.turn = TURN
            if self.jobs.get(job.lease.job_id) is job:
                self.jobs[job.lease.job_id] = self.jobs.pop(job.lease.job_id)

    def stored(self, job: RealtimeItems, count: int) -> None:
        """Note that results of items of a job were stored, or are another process's."""
        self.under_way -= Counter({job.limit: count})


def is_capped(row: JobRow, config: BatchingConfig) -> bool:
    """Whether the setting ``max_parallel_individual`` limits the items of a job that are in flight."""
    return config.max_parallel_individual is not None and row.policy.route is Route.INDIVIDUAL


def item_limits(
    config: BatchingConfig, parallelism: Callable[[], int], provider_of: Callable[[JobRow], Provider | None]
) -> Callable[[JobRow], ItemLimit]:
    """Return what says which limit of items under way a job shares. The cases, in order:

    1. Its calls in flight are limited by themselves: as many as may be in flight.
    2. Its items share calls in the queue: as many as that takes.
    3. Otherwise as many as can be in flight, and as many that come next: what is claimed is uncertain when
       this process dies.
    """

    def capped() -> int:
        return min(config.max_parallel_individual or 1, parallelism())

    def queued() -> int:
        return config.queue_capacity

    def called() -> int:
        return 2 * parallelism()

    def limit_of(row: JobRow) -> ItemLimit:
        if is_capped(row, config):
            return capped
        return queued if _gathers_in_queue(row, provider_of(row), config) else called

    return limit_of


def _gathers_in_queue(row: JobRow, provider: Provider | None, config: BatchingConfig) -> bool:
    apart = row.policy.on_unknown == "hold" or row.policy.route in (Route.INDIVIDUAL, Route.FLEX)
    if not row.policy.attended or provider is None or apart:
        return False
    able = provider.capabilities
    together = able.max_texts if row.kind == Kind.EMBED.value else able.max_shared
    return config.packing or together > 1
