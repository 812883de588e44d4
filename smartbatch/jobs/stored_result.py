"""Results as the store has them."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve, frozen

from smartbatch.core.preparation.structured import Parsed, read_answer
from smartbatch.errors import AnswerUnread
from smartbatch.jobs.payload import (
    context_of,
    decode_params,
    decode_request,
    decode_result,
    item_id,
    place_of,
    with_earlier_tries,
)
from smartbatch.jobs.records import ResultRow
from smartbatch.types import Result, Usage


@frozen
class StoredResult:
    """A result and where it stands.

    Attributes:
        index: the position of its request, from 0.
        sequence: grows with each result of the store.
        result: the result.
    """

    index: int
    sequence: int
    result: Result


def result_of_row(row: ResultRow, job_id: str) -> Result:
    """Return the result of an item; that of an item which shares the answer of another one cost nothing."""
    request_id = item_id(job_id, row.ix, row.user_id)
    result = decode_result(row.body, request_id=request_id, request=row.payload)
    # bodies of errors serve many rows, and do not say what each cost
    result = result if result.cost is not None else evolve(result, cost=row.cost)
    result = with_earlier_tries(result, row.earlier)
    if row.follower:
        return evolve(result, context=context_of(row.payload), usage=Usage(), cost=0.0, deduplicated=True)
    return result


def result_as_stored(row: ResultRow, job_id: str, params: Callable[[], bytes]) -> Result:
    """Return a result with the position of its prompt and the number of the answer.

    Args:
        params: returns what the requests of the job share.
    """
    result = result_of_row(row, job_id)
    prompt, sample = place_of(row.payload)
    result = result if prompt is None else evolve(result, row=prompt, sample=sample)
    return _read_again(result, row, params) if isinstance(result.error, AnswerUnread) else result


def _read_again(result: Result, row: ResultRow, params: Callable[[], bytes]) -> Result:
    """Return a result whose answer is read once more, as smartbatch itself failed to read it: that is no
    verdict on the answer. The store keeps what it has."""
    unread = result.error
    assert isinstance(unread, AnswerUnread)
    request = decode_request(row.payload, decode_params(params()), id=result.request_id)
    verdict = read_answer(request.params, result.text, unread.finish_reason)
    if isinstance(verdict, Parsed):
        return evolve(result, parsed=verdict.value, error=None)
    error = verdict.error(
        text=result.text,
        finish_reason=unread.finish_reason,
        tries=unread.tries,
        usage=unread.usage,
        request_id=result.request_id,
    )
    error.attempts, error.route = unread.attempts, unread.route
    return evolve(result, error=error)
