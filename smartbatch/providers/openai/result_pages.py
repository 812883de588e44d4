"""Results of batches that have no result files: pages of JSON, or a part of the batch."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from smartbatch.providers.error_reader import error_in
from smartbatch.providers.error_table import RPC_CODES
from smartbatch.providers.foreign_text import fields, unusable
from smartbatch.providers.http.batch_calls import BatchCalls
from smartbatch.providers.http.content import encode_json
from smartbatch.providers.openai.batch_reader import next_page
from smartbatch.providers.openai.dialect import BatchDialect

if TYPE_CHECKING:
    from smartbatch.providers.http.requests_bridge import RequestsSession

_RESULTS_PER_PAGE = 100  # one result may have several hundred kilobytes
_STATUS_OF_WORD = {word: status for status, word in RPC_CODES.values()}
_CANCELLED, _TIMED_OUT = 499, 504

# OpenRouter's error types (SDK openrouter 1.3.84)
_STATUS_OF_TYPE = {
    "authentication": 401,
    "payment_required": 402,
    "permission_denied": 403,
    "rate_limit_exceeded": 429,
    "provider_overloaded": 503,
    "provider_unavailable": 503,
    "timeout": 504,
}
_REJECTED = re.compile(r"invalid|exceeded|too_|not_found|precondition|unprocessable|policy|refusal|image")
_UNRUN = re.compile(r"expired|cancel", re.I)


def lines_of_pages(
    session: RequestsSession, calls: BatchCalls, dialect: BatchDialect, path: str, timeout: float
) -> Iterator[bytes]:
    """Yield a line in OpenAI's format for each result of a batch; ``path`` is that of the results."""
    deadline = time.monotonic() + timeout
    query, current = {"limit": str(_RESULTS_PER_PAGE)}, None
    while True:
        left = max(0.001, deadline - time.monotonic())
        data, results = calls.listed(session.ask("GET", path, left, params=query), "results", may_lack=True)
        yield b"".join(encode_json(_line_of(fields(each))) + b"\n" for each in results)
        current = next_page(data, results, current, dialect)
        if current is None or not results:
            return
        query[dialect.cursor or "after"] = current.partition(" ")[0]


def lines_of_batch(data: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the result lines in a decoded batch.

    OpenRouter's errors have a type (according to its SDK) or a status (as in real time). An unknown type
    counts as a server error.
    """
    results = data.get("results")
    if not isinstance(results, list):
        raise unusable("the provider returned an ended batch without its results")
    for each in map(fields, results):
        error = fields(each.get("error"))
        code = error.get("code")
        word = str(error.get("error_type") or error.get("type") or code or "")
        if each.get("response") is None and error and not _UNRUN.search(word):
            status = code if isinstance(code, int) and 400 <= code <= 599 else _STATUS_OF_TYPE.get(word)
            status = status or (400 if _REJECTED.search(word) else 500)
            failed = {"status_code": status, "body": {"error": {**error, "type": word}}}
            each = {**each, "response": failed, "error": None}
        yield encode_json(each) + b"\n"


def _line_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Convert one of xAI's results.

    The response is an object with one field, named after the endpoint. An error is a
    ``google.rpc.Status``; the code 0 means that there is none.
    """
    found = fields(result.get("batch_result"))
    body = next((each for each in fields(found.get("response")).values() if isinstance(each, dict)), None)
    line = {"custom_id": result.get("batch_request_id")}
    if body is not None:
        return {**line, "response": {"status_code": 200, "body": body}}
    told = found.get("error") or result.get("error") or result.get("error_message")
    error = error_in({"error": told})
    code = error.get("code")
    if isinstance(code, int):
        status = RPC_CODES.get(code, (code if 400 <= code <= 599 else 500, ""))[0]
    else:
        status = _STATUS_OF_WORD.get(str(code).upper().replace("-", "_"), 500)
    if status == _CANCELLED:
        return {**line, "response": None, "error": {"code": "batch_cancelled"}}
    if status == _TIMED_OUT and _UNRUN.search(str(error.get("message"))):
        return {**line, "response": None, "error": {"code": "batch_expired"}}
    return {**line, "response": {"status_code": status, "body": {"error": dict(error)}}}
