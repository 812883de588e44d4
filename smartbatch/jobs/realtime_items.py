"""Job items in real time: which job is next, and how the end of a call affects its items."""

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
from smartbatch.observe import logs
from smartbatch.prices import PriceBook, RateCard
from smartbatch.providers.base import Provider
from smartbatch.types import Kind, Request, Result, Route

ITEMS_PER_TURN = 100
"""Number of items of a job to claim before it is another job's turn."""
QUEUE_RETRY_SECONDS = 1.0
"""Seconds until a full queue is tried again."""
BUDGET_RETRY_SECONDS = 60.0
"""Seconds until the job is tried again if the budget, or a missing price, allowed no more."""

ItemLimit: TypeAlias = Callable[[], int]
"""Returns the maximum number of items in flight for all jobs that have this same limit object."""


# -- verdicts ------------------------------------------------------------------------------------------------


@frozen
class Verdict:
    """The effect of the end of a call on its item and on the other items of the job."""

    outcome: str  # see NewResult
    ended_with: Result
    wait: float = 0.0  # seconds before more items of the job are claimed
    note: str | None = None  # what the job is waiting for, as shown to users
    hold: bool = False  # the job is waiting for a person
    asked: bool = True  # it was submitted in real time, and is therefore counted there

    @property
    def is_answer(self) -> bool:
        """Whether it came from the provider and may have been billed."""
        return self.outcome != "unrun" and self.asked

    def result(self, ix: int, standard: RateCard | None) -> NewResult:
        """Return the row to store for the item at ``ix``; ``standard`` prices flex answers in real time."""
        result = self.ended_with
        unrun, flex = self.outcome == "unrun", result.route is Route.FLEX
        body = encode_error(result.error) if unrun and result.error else encode_result(result)
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
    """Return the effect of the end of a call on its item.

    Args:
        attended: a user waits for the job, so account and budget failures also end an item.
        keeps_going: all items are sent, so every account failure ends its item.
    """
    error = result.error
    # 1. an answer ends the item
    if error is None:
        return Verdict("succeeded", result)
    # 2. the process is ending, or the request was recalled: the item stays open
    if isinstance(error, (ClientClosed, RequestCancelled, WrongProcess)):
        return Verdict("unrun", result)
    # 3. the queue is full: the item stays open, and the job waits a moment
    if isinstance(error, QueueFull):
        return Verdict("unrun", result, wait=QUEUE_RETRY_SECONDS)
    # 4. the job is attended: any other failure ends the item, and its user sees it
    if attended:
        return Verdict("failed", result)
    # 5. the job stopped: the item stays open, and the job is held for a person
    if isinstance(error, ListStopped):
        note = f"held: {error.reason}; fix this, then resume the job"
        return Verdict("unrun", result, wait=QUEUE_RETRY_SECONDS, note=note, hold=True)
    # 6. a budget has no room, or a price is missing: the item stays open, and the job waits
    if isinstance(error, (BudgetExceeded, ConfigError)) and error.kind is None:
        return Verdict("unrun", result, wait=BUDGET_RETRY_SECONDS, note=f"waits: {error.message}")
    # 7. the account cannot be used and the job does not keep going: as in 5
    if error.kind in ACCOUNT_ERRORS and not keeps_going:
        return Verdict("unrun", result, wait=QUEUE_RETRY_SECONDS, note=held_note(error), hold=True)
    # 8. any other failure ends the item
    return Verdict("failed", result)


def not_submitted(error: BaseException, request_id: str = "") -> Result:
    """Return the result of a request that was not submitted and cost nothing."""
    if not isinstance(error, SmartbatchError):
        text = f"an error inside smartbatch ({type(error).__name__}) while the request was submitted"
        error = SmartbatchError(text, request_id=request_id)
    return Result(request_id, error=error, cost=0.0)


def results_of(
    row: JobRow, verdicts: Sequence[tuple[int, Verdict]], prices: PriceBook, wall: float
) -> list[NewResult]:
    """Return the rows to store for items of a job; ``wall`` is Unix seconds."""
    models = [verdict.ended_with.model or row.model for _, verdict in verdicts]
    standard: dict[str, RateCard | None] = {}
    for label in set(models):
        provider, _, model = label.partition(":")
        standard[label] = prices.rates(provider, model, wall)
    return [
        verdict.result(ix, standard[model]) for (ix, verdict), model in zip(verdicts, models, strict=True)
    ]


# -- jobs and their turns ------------------------------------------------------------------------------------


@define(eq=False)
class RealtimeJob:
    """A job whose items run in real time, and its items in flight."""

    lease: JobLease
    row: JobRow
    shared: Shared
    limit: ItemLimit  # maximum items in flight of all jobs with this limit
    timeout: float | None  # seconds for items without their own
    capped: bool = field(default=False, kw_only=True)  # never more than ``limit`` in flight
    # claimed items whose results are not stored yet, by position
    under_way: dict[int, Future[Result] | None] = field(factory=dict)
    wanting: bool = True  # there may be more items to claim
    turn: int = ITEMS_PER_TURN  # items to claim before it is another job's turn
    begun: bool = False  # some items were claimed
    # no user action since its row was read; otherwise claimed items are not sent
    is_current: bool = False
    resumes_at: float = -math.inf  # when more is claimed, by the clock
    noted: bool = False  # the store has a note on what the job is waiting for
    failures: int = 0  # consecutive failed claims
    budget: JobBudget | None = None
    short: bool = False  # items are waiting for budget that other items may release
    cancelled: set[int] = field(factory=set)  # positions of items that must not be sent
    withdrawn: bool = False  # nothing more is sent; it is released once nothing is in flight
    stop: EqualFailures | None = field(
        init=False
    )  # stops it if its first items fail alike; None: keeps going

    def __attrs_post_init__(self) -> None:
        row = self.row
        left = row.total - row.finished
        self.stop = None if row.policy.keep_going else EqualFailures(left, decided=row.succeeded > 0)

    @property
    def sends(self) -> bool:
        """Whether claimed items may be sent."""
        return self.is_current and not self.withdrawn

    @property
    def settled(self) -> bool:
        """Whether nothing is in flight and nothing more is to be sent."""
        return not self.under_way and (self.withdrawn or not self.wanting)

    def item(
        self, request: Request, sink: Callable[[Result], None], provider: Provider | None
    ) -> RealtimeItem:
        """Return an item to send.

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
        # a cancelled item is not sent again
        if ix in self.cancelled and isinstance(result.error, RequestCancelled):
            return Verdict("cancelled", result, asked=False)
        # an item that cost more than was reserved for it is sent again
        if isinstance(result.error, BudgetExceeded) and self.budget and self.budget.fell_short(ix):
            return Verdict("unrun", result)
        policy = self.row.policy
        return verdict_of(result, attended=policy.attended, keeps_going=policy.keep_going)

    def note_of(self, verdicts: Sequence[Verdict]) -> JobNote | None:
        """Return the note to store, which says what the job is waiting for, or that it is not waiting."""
        for verdict in verdicts:
            if verdict.note is not None:
                return JobNote(verdict.note, hold=verdict.hold)
        return JobNote(None) if self.noted else None


@frozen
class Turn:
    """A job, and how many of its items may be claimed."""

    job: RealtimeJob
    room: int


@define(eq=False)
class ClaimTurns:
    """The jobs whose items run in real time. Not thread-safe: the caller's lock guards it.

    A job keeps its turn for :data:`ITEMS_PER_TURN` items, so that results of few jobs are stored at a time. A
    new job whose items all have room comes before it, but never two such jobs in a row.
    """

    jobs: dict[str, RealtimeJob] = field(factory=dict)  # by id, in the order of their turns
    # claimed items whose results are not stored yet; jobs with the same limit share it
    under_way: Counter[ItemLimit] = field(factory=Counter)
    _taken: Counter[ItemLimit] = field(factory=Counter)  # room of turns whose items are being claimed
    _overtaken: bool = False

    def following(self, now: float, *, ended: RealtimeJob | None = None, count: int = 0) -> Turn | float:
        """Return the next turn, or the time until which all jobs are paused, which may be infinite.

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
            if room >= min(job.limit() // 4, ITEMS_PER_TURN // 2):  # until then, calls have enough to do
                first = first or turn
        return first or resumes_at

    def begin(self, turn: Turn) -> None:
        """Reserve the room of a turn while its items are claimed."""
        turn.job.wanting = False  # before the claim, because an offer that arrives during it is a new one
        self._taken[turn.job.limit] += turn.room

    def complete(self, turn: Turn, items: Sequence[StoredItem]) -> None:
        """Record the claimed items; a job that has no more, or has had its share, loses its turn."""
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
        """Free the room of items whose results were stored or belong to another process now."""
        self.under_way -= Counter({job.limit: count})


def is_capped(row: JobRow, config: BatchingConfig) -> bool:
    """Whether the setting ``max_parallel_individual`` limits the items of a job that are in flight."""
    return config.max_parallel_individual is not None and row.policy.route is Route.INDIVIDUAL


def item_limits(config: BatchingConfig, runtime: JobRuntime) -> Callable[[JobRow], ItemLimit]:
    """Return the function that gives each job the limit of items in flight that it shares with others."""

    def capped() -> int:
        return min(config.max_parallel_individual or 1, runtime.wiring.parallelism())

    def queued() -> int:
        return config.queue_capacity

    def called() -> int:
        return 2 * runtime.wiring.parallelism()

    def limit_of(row: JobRow) -> ItemLimit:
        # 1. a setting limits its calls in flight: as many as that
        if is_capped(row, config):
            return capped
        # 2. its items share calls in the queue: as many as the queue takes
        if _gathers_in_queue(row, runtime.provider_of(row), config):
            return queued
        # 3. otherwise as many as can be in flight, and as many to come next: the outcome of claimed items is
        # uncertain if this process dies
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
    """Return the verdict on items that exceed the job's budget.

    Args:
        refused: the maximum cost of each of these items.
        others: other items of the job are in flight.
    """
    # 1. requests in flight may cost less than reserved: the items wait
    if others or has_batches(store, row.id):
        error = BudgetExceeded("what is left of the job's budget is reserved for requests in flight")
        unrun = Result("", error=error, cost=0.0)
        return Verdict("unrun", unrun, wait=BUDGET_RETRY_SECONDS, note=f"waits: {error.message}")
    # 2. the budget was raised a moment ago: they are tried again
    fresh = store.jobs.get(row.id) or row
    raised = fresh.policy.budget != row.policy.budget
    if raised and min(refused.values()) <= remaining_budget(fresh) + TINY_USD:
        error = BudgetExceeded("the job's budget had no room")
        unrun = Result("", error=error, cost=0.0)
        return Verdict("unrun", unrun, wait=QUEUE_RETRY_SECONDS, asked=False)
    # 3. no part of the budget will be released: they fail
    error = exceeded(fresh, len(refused), min(refused.values()))
    return Verdict("failed", Result("", error=error, cost=0.0), asked=False)


SLOW_WRITE_SECONDS = 3.0
"""Seconds after which an unfinished write counts as failed: answers that arrive until then are paid for."""


@frozen
class UnstoredAnswers:
    """Answers that exist, or will exist, only in memory."""

    answers: int  # received
    cost: float  # USD of these, as far as prices are known
    awaited: int  # requests in flight whose answers are still to come
    reason: str  # why they are not stored

    @classmethod
    def of(cls, unstored: Sequence[Verdict], in_flight: int, reason: str) -> Self:
        """Return the answers among ``unstored`` verdicts; ``in_flight`` includes their items."""
        answers = [verdict.ended_with for verdict in unstored if verdict.is_answer]
        cost = sum(result.cost or 0.0 for result in answers)
        return cls(len(answers), cost, max(0, in_flight - len(unstored)), reason)

    def __bool__(self) -> bool:
        return bool(self.answers or self.awaited)

    def report_delay(self, tell: Callable[[Event], object], now: float) -> None:
        """Publish and log that they are kept in memory, even if logging is off."""
        tell(StoreUnavailable(at=now, reason=self.reason, unstored=self.answers))
        logs.alarm(
            f"{self.reason}. Nothing more is sent until the answers that arrived are stored: "
            f"{self.answers:,} are in memory, and {self.awaited:,} requests were in flight"
        )

    def report_loss(self, tell: Callable[[Event], object], now: float) -> None:
        """Publish and log that they are lost, even if logging is off: they are paid for."""
        tell(AnswersLost(at=now, **asdict(self)))
        logs.alarm(
            f"the client ended while answers could not be stored: {self.answers:,} that had arrived "
            f"({money(self.cost)}) are lost, and {self.awaited:,} were still to come. The process that "
            f"resumes their jobs sends these requests again and records an incident. {self.reason}",
            lost=True,
        )


@define(eq=False, repr=False)
class StoreHealth:
    """Whether results can be stored at the moment. Not thread-safe: the caller's lock guards it."""

    _clock: Clock
    problem: str | None = None  # why the last write failed, for users
    failing_since: float = field(default=math.inf, init=False)  # monotonic seconds
    _writing_since: float = field(default=math.inf, init=False)

    @property
    def is_stuck(self) -> bool:
        """Whether nothing more may be sent: the last write failed, or the current one takes too long."""
        return self.problem is not None or self._clock.now() - self._writing_since > SLOW_WRITE_SECONDS

    def begin_write(self) -> None:
        self._writing_since = self._clock.now()

    def complete_write(self, error: BaseException | None) -> None:
        """Record the end of a write. Only errors of the store count: others say nothing about other jobs."""
        self._writing_since = math.inf
        if isinstance(error, StoreError):
            self.failing_since = min(self.failing_since, self._clock.now())
            self.problem = error.message

    def recover(self) -> float | None:
        """Note that all is stored; return for how many seconds writes failed, ``None`` if none did."""
        if self.problem is None:
            return None
        seconds = self._clock.now() - self.failing_since
        self.problem, self.failing_since = None, math.inf
        return seconds
