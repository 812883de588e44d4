"""Job items sent in real time: the order of the jobs, and the effect of each result on its item."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Self, TypeAlias

from attrs import asdict, define, field, frozen

from smartbatch._clock import Clock
from smartbatch._words import money
from smartbatch.config import BatchingConfig
from smartbatch.core.limits.failures import EqualFailures
from smartbatch.errors import (
    BudgetExceeded,
    ClientClosed,
    ConfigError,
    ListStopped,
    QueueFull,
    RequestCancelled,
    SmartbatchError,
    StoreError,
    WrongProcess,
)
from smartbatch.events import AnswersLost, Event, StoreUnavailable
from smartbatch.jobs.job_budget import (
    TINY_USD,
    JobBudget,
    exceeded,
    has_batches,
    remaining_budget,
)
from smartbatch.jobs.payload import Shared, encode_error, encode_result
from smartbatch.jobs.records import (
    ACCOUNT_ERRORS,
    JobLease,
    JobNote,
    JobRow,
    NewResult,
    StoredItem,
    held_note,
)
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.wiring import JobRuntime, RealtimeItem
from smartbatch.media import KeepContent
from smartbatch.observe import logs
from smartbatch.prices import RateCard
from smartbatch.providers.base import Provider
from smartbatch.providers.price_book import PriceBook
from smartbatch.types import Kind, Request, Result, Route

ITEMS_PER_TURN = 100
"""A job may claim this many items before the next job has its turn."""
QUEUE_RETRY_SECONDS = 1.0
BUDGET_RETRY_SECONDS = 60.0
"""Seconds until a job tries again if its budget is used up or a price is missing."""

ItemLimit: TypeAlias = Callable[[], int]
"""Returns the maximum number of items in flight across all jobs that share this function."""


# -- verdicts ------------------------------------------------------------------------------------------------


@frozen
class Verdict:
    """The effect of a result on its item and on the other items of the job."""

    outcome: str  # see NewResult
    ended_with: Result
    wait: float = 0.0  # seconds until more items of the job are claimed
    note: str | None = None  # shown to users: what the job is waiting for
    hold: bool = False  # hold the job until a user resumes it
    asked: bool = True  # the request was submitted in real time, where its usage is counted

    @property
    def is_answer(self) -> bool:
        """True if the provider answered, and the answer may have been billed."""
        return self.outcome != "unrun" and self.asked

    def result(self, ix: int, standard: RateCard | None, keep: KeepContent) -> NewResult:
        """Make the row for the item at ``ix``, after the answer's files have been written.

        Args:
            standard: prices flex answers as real-time answers.

        Raises:
            StoreError: a file could not be written.
        """
        result = self.ended_with
        unrun, flex = self.outcome == "unrun", result.route is Route.FLEX
        body = encode_error(result.error) if unrun and result.error else encode_result(result, keep)
        return NewResult(
            ix,
            self.outcome,
            body,
            cost=result.cost,
            realtime_cost=standard.cost(result.usage) if flex and standard else result.cost,
            usage=result.usage,
            route=result.route,
            in_realtime=self.asked,
            defects=result.defects,
        )


def verdict_of(result: Result, *, attended: bool = False, keeps_going: bool = False) -> Verdict:
    """Decide the effect of a result on its item.

    Args:
        attended: a user waits for the job, so failures of the account or the budget also complete an item.
        keeps_going: every item is sent, so every failure of the account completes its item.
    """
    error = result.error
    # 1. an answer completes the item
    if error is None:
        return Verdict("succeeded", result)
    # 2. the process is ending, or the request was recalled: the item stays open
    if isinstance(error, (ClientClosed, RequestCancelled, WrongProcess)):
        return Verdict("unrun", result)
    # 3. the queue is full: the item stays open, and the job waits briefly
    if isinstance(error, QueueFull):
        return Verdict("unrun", result, wait=QUEUE_RETRY_SECONDS)
    # 4. the job is attended: any other failure completes the item and is shown to the user
    if attended:
        return Verdict("failed", result)
    # 5. the job stopped: the item stays open, and the job is held
    if isinstance(error, ListStopped):
        note = f"held: {error.reason}; fix this, then resume the job"
        return Verdict("unrun", result, wait=QUEUE_RETRY_SECONDS, note=note, hold=True)
    # 6. a budget has no room, or a price is missing: the item stays open, and the job waits
    if isinstance(error, (BudgetExceeded, ConfigError)) and error.kind is None:
        return Verdict("unrun", result, wait=BUDGET_RETRY_SECONDS, note=f"waits: {error.message}")
    # 7. the account cannot be used and the job does not keep going: the item stays open, and the job is held
    if error.kind in ACCOUNT_ERRORS and not keeps_going:
        return Verdict("unrun", result, wait=QUEUE_RETRY_SECONDS, note=held_note(error), hold=True)
    # 8. any other failure completes the item
    return Verdict("failed", result)


def not_submitted(error: BaseException, request_id: str = "") -> Result:
    """Make the result of a request that was not submitted and cost nothing."""
    if not isinstance(error, SmartbatchError):
        text = f"an error inside smartbatch ({type(error).__name__}) while the request was submitted"
        error = SmartbatchError(text, request_id=request_id)
    return Result(request_id, error=error, cost=0.0)


def results_of(
    row: JobRow,
    verdicts: Sequence[tuple[int, Verdict]],
    prices: PriceBook,
    wall: float,
    keep: KeepContent,
) -> list[NewResult]:
    models = [verdict.ended_with.model or row.model for _, verdict in verdicts]
    standard: dict[str, RateCard | None] = {}
    for label in set(models):
        provider, _, model = label.partition(":")
        standard[label] = prices.rates(provider, model, wall)
    return [
        verdict.result(ix, standard[model], keep)
        for (ix, verdict), model in zip(verdicts, models, strict=True)
    ]


# -- jobs and their turns ------------------------------------------------------------------------------------


@define(eq=False)
class RealtimeJob:
    """A job with items sent in real time, and the items in flight."""

    lease: JobLease
    row: JobRow
    shared: Shared
    limit: ItemLimit  # maximum items in flight across all jobs that share this function
    timeout: float | None  # seconds for items without their own timeout
    capped: bool = field(default=False, kw_only=True)  # ``limit`` is never exceeded
    # claimed items without stored results, by position
    under_way: dict[int, Future[Result] | None] = field(factory=dict)
    wanting: bool = True
    turn: int = ITEMS_PER_TURN  # items to claim before the next job's turn
    begun: bool = False
    # False after a user action until the job's row is reread; claimed items are then not sent
    is_current: bool = False
    resumes_at: float = -math.inf  # monotonic seconds at which more items are claimed
    noted: bool = False  # the store has a note about the wait
    failures: int = 0
    budget: JobBudget | None = None
    short: bool = False  # items are waiting for budget that other items may release
    cancelled: set[int] = field(factory=set)  # positions of items that must not be sent
    withdrawn: bool = False  # nothing more is sent, and the job is released when no item is in flight
    # stops the job if its first items fail with the same error; None keeps going
    stop: EqualFailures | None = field(init=False)

    def __attrs_post_init__(self) -> None:
        row = self.row
        left = row.total - row.finished
        self.stop = None if row.policy.keep_going else EqualFailures(left, decided=row.succeeded > 0)

    @property
    def sends(self) -> bool:
        return self.is_current and not self.withdrawn

    @property
    def settled(self) -> bool:
        """True if nothing is in flight and nothing more will be sent."""
        return not self.under_way and (self.withdrawn or not self.wanting)

    def item(
        self, request: Request, sink: Callable[[Result], None], provider: Provider | None
    ) -> RealtimeItem:
        """Build an item to send.

        Raises:
            ConfigError: this process no longer has the account of the job.
        """
        row = self.row
        if provider is None:
            raise ConfigError(f"this process no longer has the account of job {row.id}")
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
        # do not send a cancelled item again
        if ix in self.cancelled and isinstance(result.error, RequestCancelled):
            return Verdict("cancelled", result, asked=False)
        # send an item again that cost more than was reserved for it
        if isinstance(result.error, BudgetExceeded) and self.budget and self.budget.fell_short(ix):
            return Verdict("unrun", result)
        policy = self.row.policy
        return verdict_of(result, attended=policy.attended, keeps_going=policy.keep_going)

    def note_of(self, verdicts: Sequence[Verdict]) -> JobNote | None:
        """Return the note to store about the wait, or a note that ends it."""
        for verdict in verdicts:
            if verdict.note is not None:
                return JobNote(verdict.note, hold=verdict.hold)
        return JobNote(None) if self.noted else None


@frozen
class Turn:
    """A job, and the number of its items that may be claimed."""

    job: RealtimeJob
    room: int


@define(eq=False)
class ClaimTurns:
    """The order of the jobs whose items are sent in real time. Not thread-safe: the caller's lock guards it.

    A job keeps its turn for :data:`ITEMS_PER_TURN` items, so that each transaction stores results of few
    jobs. A new job goes first if there is room for all its items, but never two such jobs in a row.
    """

    jobs: dict[str, RealtimeJob] = field(factory=dict)  # by id, in turn order
    # claimed items without stored results, per limit
    under_way: Counter[ItemLimit] = field(factory=Counter)
    _taken: Counter[ItemLimit] = field(factory=Counter)  # items that are being claimed, per limit
    _overtaken: bool = False

    def following(self, now: float, *, ended: RealtimeJob | None = None, count: int = 0) -> Turn | float:
        """Return the next turn, or the time until which all jobs are paused, which may be infinite.

        Args:
            ended: a job with ``count`` results that are stored in the transaction that claims new items.
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
            # with less room, the calls in flight are enough work
            if room >= min(job.limit() // 4, ITEMS_PER_TURN // 2):
                first = first or turn
        return first or resumes_at

    def begin(self, turn: Turn) -> None:
        """Reserve the room for a turn while its items are claimed."""
        turn.job.wanting = False  # set before the claim, so that an offer made during the claim counts
        self._taken[turn.job.limit] += turn.room

    def complete(self, turn: Turn, items: Sequence[StoredItem]) -> None:
        """Record the claimed items. The job loses its turn if it has no more items or has used its share."""
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
            job.turn = ITEMS_PER_TURN
            if self.jobs.get(job.lease.job_id) is job:
                self.jobs[job.lease.job_id] = self.jobs.pop(job.lease.job_id)

    def free(self, job: RealtimeJob, count: int) -> None:
        """Release the room of items whose results are stored, or which another process owns."""
        self.under_way -= Counter({job.limit: count})


def is_capped(row: JobRow, config: BatchingConfig) -> bool:
    """True if the setting ``max_parallel_individual`` limits the job's items in flight."""
    return config.max_parallel_individual is not None and row.policy.route is Route.INDIVIDUAL


def item_limits(config: BatchingConfig, runtime: JobRuntime) -> Callable[[JobRow], ItemLimit]:
    """Return the function that finds the item limit of a job, which similar jobs share."""

    def capped() -> int:
        return min(config.max_parallel_individual or 1, runtime.wiring.parallelism())

    def queued() -> int:
        return config.queue_capacity

    def called() -> int:
        return 2 * runtime.wiring.parallelism()

    def limit_of(row: JobRow) -> ItemLimit:
        # 1. a setting limits the calls in flight: use that limit
        if is_capped(row, config):
            return capped
        # 2. items share calls in the queue: use the size of the queue
        if _gathers_in_queue(row, runtime.provider_of(row), config):
            return queued
        # 3. otherwise: twice as many as can be in flight, so that further items are ready. More would only
        # increase the number of items with an unknown outcome if this process dies
        return called

    return limit_of


def _gathers_in_queue(row: JobRow, provider: Provider | None, config: BatchingConfig) -> bool:
    apart = row.policy.on_unknown == "hold" or row.policy.route in (Route.INDIVIDUAL, Route.FLEX)
    if not row.policy.attended or provider is None or apart:
        return False
    able = provider.capabilities
    together = able.max_texts if row.kind == Kind.EMBED.value else able.max_shared
    return config.packing or together > 1


# -- money and storage ---------------------------------------------------------------------------------------


def short_of_budget(store: SqlStore, row: JobRow, refused: Mapping[int, float], *, others: bool) -> Verdict:
    """Decide the effect on items that exceed the job's budget.

    Args:
        refused: the maximum cost of each of these items.
        others: other items of the job are in flight.
    """
    # 1. requests in flight may cost less than was reserved: the items wait
    if others or has_batches(store, row.id):
        error = BudgetExceeded("what is left of the job's budget is reserved for requests in flight")
        unrun = Result("", error=error, cost=0.0)
        return Verdict("unrun", unrun, wait=BUDGET_RETRY_SECONDS, note=f"waits: {error.message}")
    # 2. the budget was raised in the meantime: the items are tried again
    fresh = store.jobs.get(row.id) or row
    raised = fresh.policy.budget != row.policy.budget
    if raised and min(refused.values()) <= remaining_budget(fresh) + TINY_USD:
        error = BudgetExceeded("the job's budget had no room")
        unrun = Result("", error=error, cost=0.0)
        return Verdict("unrun", unrun, wait=QUEUE_RETRY_SECONDS, asked=False)
    # 3. no budget will be released: the items fail
    error = exceeded(fresh, len(refused), min(refused.values()))
    return Verdict("failed", Result("", error=error, cost=0.0), asked=False)


SLOW_WRITE_SECONDS = 3.0
"""A slower write is treated as failed, because answers that arrive in the meantime are paid for."""


@frozen
class UnstoredAnswers:
    """Answers that are, or will be, only in memory."""

    answers: int
    cost: float  # USD, as far as prices are known
    awaited: int  # requests in flight
    reason: str  # why the answers are not stored

    @classmethod
    def of(cls, unstored: Sequence[Verdict], in_flight: int, reason: str) -> Self:
        """Count the answers among ``unstored``. ``in_flight`` includes their items."""
        answers = [verdict.ended_with for verdict in unstored if verdict.is_answer]
        cost = sum(result.cost or 0.0 for result in answers)
        return cls(len(answers), cost, max(0, in_flight - len(unstored)), reason)

    def __bool__(self) -> bool:
        return bool(self.answers or self.awaited)

    def report_delay(self, publish_event: Callable[[Event], object], now: float) -> None:
        """Report that answers are kept in memory, even if logging is off."""
        publish_event(StoreUnavailable(at=now, reason=self.reason, unstored=self.answers))
        logs.alarm(
            f"{self.reason}. Nothing more is sent until the answers that arrived are stored: "
            f"{self.answers:,} are in memory, and {self.awaited:,} requests were in flight"
        )

    def report_loss(self, publish_event: Callable[[Event], object], now: float) -> None:
        """Report that paid answers are lost, even if logging is off."""
        publish_event(AnswersLost(at=now, **asdict(self)))
        logs.alarm(
            f"the client ended while answers could not be stored: {self.answers:,} that had arrived "
            f"({money(self.cost)}) are lost, and {self.awaited:,} were still to come. The process that "
            f"resumes their jobs sends these requests again and records an incident. {self.reason}",
            lost=True,
        )


@define(eq=False, repr=False)
class StoreHealth:
    """Tracks whether results can be stored. Not thread-safe: the caller's lock guards it."""

    _clock: Clock
    problem: str | None = None  # shown to users: why the last write failed
    failing_since: float = field(default=math.inf, init=False)
    _writing_since: float = field(default=math.inf, init=False)

    @property
    def is_stuck(self) -> bool:
        """True if nothing may be sent because the last write failed or the current one takes too long."""
        return self.problem is not None or self._clock.now() - self._writing_since > SLOW_WRITE_SECONDS

    def begin_write(self) -> None:
        self._writing_since = self._clock.now()

    def complete_write(self, error: BaseException | None) -> None:
        """Record the end of a write. Only errors of the store count; others concern a single job."""
        self._writing_since = math.inf
        if isinstance(error, StoreError):
            self.failing_since = min(self.failing_since, self._clock.now())
            self.problem = error.message

    def recover(self) -> float | None:
        """Record that everything is stored. Return the seconds during which writes failed, or ``None``."""
        if self.problem is None:
            return None
        seconds = self._clock.now() - self.failing_since
        self.problem, self.failing_since = None, math.inf
        return seconds
