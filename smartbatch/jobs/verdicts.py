"""What becomes of items that ran in real time, and whether their results can be stored at the moment."""

from __future__ import annotations

import math
from collections.abc import Callable

from attrs import asdict, define, field, frozen

from smartbatch._clock import Clock
from smartbatch._words import money
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
from smartbatch.events import AnswersLost, Event
from smartbatch.jobs.payload import encode_error, encode_result
from smartbatch.jobs.records import ACCOUNT_ERRORS, NewResult, held_note
from smartbatch.observe import logs
from smartbatch.prices import RateCard
from smartbatch.types import Result, Route

SOON = 1.0
"""Seconds until a full queue is tried again."""
LATER = 60.0
"""Seconds until the job is tried again when the budget, or a missing price, allowed no more."""


@frozen
class Verdict:
    """What the end of a call means for the item it was made for, and for the others of its job.

    Attributes:
        outcome: see :class:`~smartbatch.jobs.records.NewResult`.
        ended_with: what the call ended with.
        wait: seconds before more items of the job are claimed.
        note: what the job waits for, for users.
        hold: it waits for a person.
        asked: whether it was submitted in real time, and so was counted there.
    """

    outcome: str
    ended_with: Result
    wait: float = 0.0
    note: str | None = None
    hold: bool = False
    asked: bool = True

    @property
    def is_answer(self) -> bool:
        """Whether it came from the provider, and may be paid for."""
        return self.outcome != "unrun" and self.asked

    def result(self, ix: int, standard: RateCard | None) -> NewResult:
        """Return the row that is stored for the item at ``ix``.

        Args:
            standard: the prices of real time, which an answer of the slower tier is compared with.
        """
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
    """Return what the end of a call means for its item. The cases, in order:

    1. An answer ends the item.
    2. The process ends, or the request was taken back: the item stays open.
    3. The queue is full: the item stays open, and the job waits a moment.
    4. The job is attended: any other failure ends the item, and its user sees it.
    5. A budget has no room, or a price is missing: the item stays open, and the job waits.
    6. The job stopped, or the account cannot be used and the job does not keep going: the item stays open,
       and the job waits for a person.
    7. Any other failure ends the item.

    Args:
        attended: a user waits for the job, so failures of account and budget end an item as well.
        keeps_going: all items are sent, so each failure of the account ends its item.
    """
    error = result.error
    if error is None:
        return Verdict("succeeded", result)
    if isinstance(error, (ClientClosed, RequestCancelled, WrongProcess)):
        return Verdict("unrun", result)
    if isinstance(error, QueueFull):
        return Verdict("unrun", result, wait=SOON)
    if attended:
        return Verdict("failed", result)
    if isinstance(error, ListStopped):
        note = f"held: {error.reason}; fix that, then resume the job"
        return Verdict("unrun", result, wait=SOON, note=note, hold=True)
    if isinstance(error, (BudgetExceeded, ConfigError)) and error.kind is None:
        return Verdict("unrun", result, wait=LATER, note=f"waits: {error.message}")
    if error.kind in ACCOUNT_ERRORS and not keeps_going:
        return Verdict("unrun", result, wait=SOON, note=held_note(error), hold=True)
    return Verdict("failed", result)


def not_submitted(error: BaseException, request_id: str = "") -> Result:
    """Return the result of a request that was not submitted, for nothing."""
    if not isinstance(error, SmartbatchError):
        text = f"an error inside smartbatch ({type(error).__name__}) while the request was submitted"
        error = SmartbatchError(text, request_id=request_id)
    return Result(request_id, error=error, cost=0.0)


SLOW = 3.0
"""Seconds after which a write that has not ended counts as one that fails: what comes meanwhile is paid."""


@frozen
class UnstoredAnswers:
    """Answers that came, or will come, and are nowhere but in memory.

    Attributes:
        answers: those that came.
        cost: USD of these, as far as prices are known.
        awaited: requests under way whose answers are still to come.
        reason: why they are not stored.
    """

    answers: int
    cost: float
    awaited: int
    reason: str

    def __bool__(self) -> bool:
        return bool(self.answers or self.awaited)

    def report(self, tell: Callable[[Event], object], now: float) -> None:
        """Tell that they are lost, and log it also where logging is off: they are paid for."""
        tell(AnswersLost(at=now, **asdict(self)))
        logs.alarm(
            f"the client ended while answers could not be stored: {self.answers:,} that came "
            f"({money(self.cost)}) are lost, and {self.awaited:,} were still to come. Whoever takes "
            f"their jobs up asks these requests again, with an incident that says so. {self.reason}",
            lost=True,
        )


@define(eq=False, repr=False)
class StoreHealth:
    """What the writes of results say of the store. Not thread-safe: a lock of its user's guards it.

    Attributes:
        problem: why results were not stored when that was tried last, for users; ``None`` where they were.
        failing_since: when that began, monotonic seconds.
    """

    _clock: Clock
    problem: str | None = None
    failing_since: float = field(default=math.inf, init=False)
    _writing_since: float = field(default=math.inf, init=False)

    @property
    def is_stuck(self) -> bool:
        """Whether nothing more is to be asked: the last write failed, or the one under way takes too long."""
        return self.problem is not None or self._clock.now() - self._writing_since > SLOW

    def begins(self) -> None:
        """A write begins."""
        self._writing_since = self._clock.now()

    def ends(self, error: BaseException | None) -> None:
        """The write has ended, with ``error`` or without one. Only errors of the store itself count: others
        say nothing of the results of other jobs."""
        self._writing_since = math.inf
        if isinstance(error, StoreError):
            self.failing_since = min(self.failing_since, self._clock.now())
            self.problem = error.message

    def recovers(self) -> float | None:
        """Everything is stored; return for how many seconds that failed, ``None`` where it did not."""
        if self.problem is None:
            return None
        seconds = self._clock.now() - self.failing_since
        self.problem, self.failing_since = None, math.inf
        return seconds
