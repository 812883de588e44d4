"""A job whose items run in real time, as the process that runs them knows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeAlias

from attrs import define, field

from smartbatch.core.limits.equal_failures import EqualFailures
from smartbatch.errors import BudgetExceeded, ConfigError, RequestCancelled
from smartbatch.jobs.job_budget import JobBudget
from smartbatch.jobs.payload import Shared
from smartbatch.jobs.records import JobLease, JobNote, JobRow
from smartbatch.jobs.verdicts import Verdict, verdict_of
from smartbatch.jobs.wiring import RealtimeItem
from smartbatch.providers.base import Provider
from smartbatch.types import Request, Result, Route

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
