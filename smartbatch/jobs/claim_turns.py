"""Jobs whose items run in real time in one process: whose items are claimed next, and how many."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeAlias

from attrs import define, field, frozen

from smartbatch.config import BatchingConfig
from smartbatch.core.limits.equal_failures import EqualFailures
from smartbatch.errors import BudgetExceeded, ConfigError, RequestCancelled
from smartbatch.jobs.job_budget import JobBudget
from smartbatch.jobs.payload import Shared
from smartbatch.jobs.records import JobLease, JobNote, JobRow, StoredItem
from smartbatch.jobs.verdicts import Verdict, verdict_of
from smartbatch.jobs.wiring import RealtimeItem
from smartbatch.providers.base import Provider
from smartbatch.types import Kind, Request, Result, Route

TURN = 100
"""Items of a job that are claimed before it is another job's turn."""


ItemLimit: TypeAlias = Callable[[], int]
"""Returns how many items may be under way of all jobs that have this very limit."""


@define(eq=False)
class RealtimeItems:
    """A job whose items run in real time, and those of its items that are under way.

    Attributes:
        limit: most items under way, of it and of the other jobs with the same limit.
        timeout: seconds for items that have none of their own.
        capped: whether never more than ``limit`` may be under way.
        under_way: items that are claimed and whose results are not stored yet, by position.
        wanting: there may be more to claim.
        turn: how many are claimed before it is another job's turn.
        begun: some were claimed.
        goes_on: nobody acted on it since its row was read last; else what is claimed is not sent.
        resumes_at: when more is claimed, by the clock.
        noted: the store has a note what the job waits for.
        failures: claims in a row that failed.
        budget: what its items spend from; ``None`` without a budget.
        short: items wait for what others leave of the budget.
        cancelled: positions of items that are not to be sent any more.
        stop: says whether the job stops, as its first items fail alike; ``None`` to send all in any case.
        withdrawn: nothing more of it is asked, and it is given back once nothing is under way.
    """

    lease: JobLease
    row: JobRow
    shared: Shared
    limit: ItemLimit
    timeout: float | None
    capped: bool = field(default=False, kw_only=True)
    under_way: dict[int, Future[Result] | None] = field(factory=dict)
    wanting: bool = True
    turn: int = TURN
    begun: bool = False
    goes_on: bool = False
    resumes_at: float = -math.inf
    noted: bool = False
    failures: int = 0
    budget: JobBudget | None = None
    short: bool = False
    cancelled: set[int] = field(factory=set)
    withdrawn: bool = False
    stop: EqualFailures | None = field(init=False)

    def __attrs_post_init__(self) -> None:
        row = self.row
        answered = row.succeeded > 0
        left = row.total - row.finished
        self.stop = None if row.policy.keep_going else EqualFailures(left, decided=answered)

    @property
    def sends(self) -> bool:
        """Whether items that are claimed may be sent."""
        return self.goes_on and not self.withdrawn

    @property
    def settled(self) -> bool:
        """Whether nothing of it is under way, and nothing more is to be asked."""
        return not self.under_way and (self.withdrawn or not self.wanting)

    def item(
        self, request: Request, sink: Callable[[Result], None], provider: Provider | None
    ) -> RealtimeItem:
        """Return an item as it is asked; its request was checked and preprocessed when its job was stored.

        Raises:
            ConfigError: this process has lost the account of the job.
        """
        row = self.row
        if provider is None:
            raise ConfigError(f"the account of job {row.id} is no longer at hand in this process")
        return RealtimeItem(
            request,
            provider,
            model=row.model.partition(":")[2],
            sink=sink,
            own_budget=None if self.budget is None else self.budget.calls,
            alone=row.policy.route is Route.INDIVIDUAL,
            flex=row.policy.route is Route.FLEX,
            keeps_going=row.policy.keep_going,
            traceparent=row.policy.traceparent,
        )

    def verdict_of(self, ix: int, result: Result) -> Verdict:
        """Return what becomes of an item: one that costs more than was reserved for it is sent again, and one
        that was cancelled is not."""
        if ix in self.cancelled and isinstance(result.error, RequestCancelled):
            return Verdict("cancelled", result, asked=False)
        if isinstance(result.error, BudgetExceeded) and self.budget and self.budget.fell_short(ix):
            return Verdict("unrun", result)
        policy = self.row.policy
        return verdict_of(result, attended=policy.attended, keeps_going=policy.keep_going)

    def note_of(self, verdicts: Sequence[Verdict]) -> JobNote | None:
        """Return what is to be noted of what the job waits for, or that it waits no more."""
        for verdict in verdicts:
            if verdict.note is not None:
                return JobNote(verdict.note, hold=verdict.hold)
        return JobNote(None) if self.noted else None


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
