"""What the end of a real-time call means for the item of a job it was made for."""

from __future__ import annotations

from attrs import frozen

from smartbatch.errors import (
    BudgetExceeded,
    ClientClosed,
    ConfigError,
    ErrorKind,
    QueueFull,
    RequestCancelled,
    SmartbatchError,
    WrongProcess,
)
from smartbatch.jobs.payload import encode_error, encode_result
from smartbatch.jobs.records import NewResult
from smartbatch.types import Result

__all__ = ["Verdict", "item_id", "verdict_of"]

SOON = 1.0
"""Seconds until a full queue is tried again."""
LATER = 60.0
"""Seconds until it is looked whether the budget, or a missing price, allows more."""


def item_id(job_id: str, ix: int, user_id: str | None) -> str:
    """Return the id of an item's result: the request's own, or one made of the job and its place in it."""
    return f"{job_id}-{ix}" if user_id is None else user_id


@frozen
class Verdict:
    """What becomes of the item, and of the others of its job.

    Attributes:
        outcome, result_of: see :class:`~smartbatch.jobs.records.NewResult`.
        wait: seconds before more of the job is asked.
        note: what the job waits for, for people.
        hold: it waits for a person.
    """

    outcome: str
    result_of: Result
    wait: float = 0.0
    note: str | None = None
    hold: bool = False

    def result(self, ix: int) -> NewResult:
        """Return it as the store takes it."""
        result = self.result_of
        if self.outcome == "unrun":
            assert result.error is not None
            told = result.usage.input_tokens, result.usage.output_tokens
            return NewResult(ix, "unrun", encode_error(result.error), b"", *told, cost=result.cost)
        return NewResult(
            ix,
            self.outcome,
            encode_result(result),
            input_tokens=result.usage.input_tokens,
            output_tokens=result.usage.output_tokens,
            cost=result.cost,
            realtime_cost=result.cost,  # it was asked in real time
        )


def verdict_of(result: Result, *, attended: bool = False) -> Verdict:
    """Return what becomes of an item.

    An answer or a failure of its own ends it. Where the account, the money or the end of this process is what
    failed, the item stays open: nothing was found out about it.

    Args:
        attended: somebody sits before the job, so account and money end an item as well, and it is told.
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
    if isinstance(error, (BudgetExceeded, ConfigError)) and error.kind is None:
        return Verdict("unrun", result, wait=LATER, note=f"waits: {error.message}")
    if error.kind in (ErrorKind.AUTH_ERROR, ErrorKind.NO_MONEY):
        return Verdict("unrun", result, wait=SOON, note=_held(error), hold=True)
    return Verdict("failed", result)


def _held(error: SmartbatchError) -> str:
    what = "the account has no credit" if error.kind is ErrorKind.NO_MONEY else "the key is refused"
    return f"held: {what} ({error.message}); mend it, then resume the job"
