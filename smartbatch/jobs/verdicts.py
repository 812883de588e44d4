"""What the end of a call in real time means for the item of a job that it was made for."""

from __future__ import annotations

from attrs import frozen

from smartbatch.errors import (
    BudgetExceeded,
    ClientClosed,
    ConfigError,
    ErrorKind,
    ListStopped,
    QueueFull,
    RequestCancelled,
    SmartbatchError,
    WrongProcess,
)
from smartbatch.jobs.payload import encode_error, encode_result
from smartbatch.jobs.records import NewResult
from smartbatch.prices import RateCard
from smartbatch.types import Result, Route

ACCOUNT_ERRORS = frozenset({ErrorKind.NO_MONEY, ErrorKind.AUTH_ERROR})
"""The account cannot be used: the job is held until a person resumes it."""
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


def held_note(error: SmartbatchError) -> str:
    """Return the note of a job whose account cannot be used."""
    what = "the account has no credit" if error.kind is ErrorKind.NO_MONEY else "the key is refused"
    return f"held: {what} ({error.message}); fix it, then resume the job"
