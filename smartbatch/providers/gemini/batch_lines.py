"""Lines of the Gemini API's batches: requests as they are sent, results as they come.

Source: Google's guide to the Batch API, ``google.rpc.Code``, and lines in public reports.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.batch_api import Line, LineOutcome
from smartbatch.providers.batch_outcomes import decode_line, failed_line, shapeless_line, unrun_line
from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.foreign_text import PLAIN_ID, count, short
from smartbatch.providers.gemini.answers import read_answer, usage_of
from smartbatch.providers.gemini.bodies import embed_body, generate_body
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.vectors import vector
from smartbatch.types import Answer, Kind, Request, Usage

__all__ = ["encode_request", "mark_over_quota", "read_result", "status_error"]

_CANCELLED, _DEADLINE = 1, 4
_CODES = {
    1: (499, "CANCELLED"),
    2: (500, "UNKNOWN"),
    3: (400, "INVALID_ARGUMENT"),
    4: (504, "DEADLINE_EXCEEDED"),
    5: (404, "NOT_FOUND"),
    6: (409, "ALREADY_EXISTS"),
    7: (403, "PERMISSION_DENIED"),
    8: (429, "RESOURCE_EXHAUSTED"),
    9: (400, "FAILED_PRECONDITION"),
    10: (409, "ABORTED"),
    11: (400, "OUT_OF_RANGE"),
    12: (501, "UNIMPLEMENTED"),
    13: (500, "INTERNAL"),
    14: (503, "UNAVAILABLE"),
    15: (500, "DATA_LOSS"),
    16: (401, "UNAUTHENTICATED"),
}
"""``google.rpc.Code`` as HTTP statuses, by Google's own table in ``code.proto``."""

_ENQUEUED = re.compile(r"enqueued", re.I)
_EXPIRED = re.compile(r"batch[^.]{0,20}expired", re.I)
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def encode_request(request: Request, model: str, wire_id: str) -> bytes:
    """Return ``request`` as a line of an input file; the request itself is as in real time."""
    if request.embedding is not None:
        body = embed_body([request], model)["requests"][0]
        del body["model"]  # a batch has one model, which its path names
    else:
        body = generate_body(request)
    return _encode({"key": wire_id, "request": body}).encode("ascii")


def read_result(line: bytes, kind: Kind, errors: ErrorReader) -> Line:
    """Return what one line of results says.

    Raises:
        ValueError: for what is no such line.
    """
    data, wire_id = decode_line(line, "key")
    if data.get("error") is not None:
        return _failed(wire_id, data["error"], errors)
    response = data.get("response")
    if not isinstance(response, dict):
        return shapeless_line(wire_id, "the result has neither a response nor an error")
    try:
        answer = _vector(response) if kind is Kind.EMBED else read_answer(response)
    except ProviderError as error:
        return failed_line(wire_id, error)
    return Line(wire_id, LineOutcome.OK, answer=answer)


def status_error(found: Any, errors: ErrorReader) -> ProviderError:
    """Return the meaning of a ``google.rpc.Status``; a code nobody knows is a server's failure.

    A refusal because too many tokens are enqueued has the code ``token_limit_exceeded``.
    """
    found = found if isinstance(found, dict) else {}
    code = _code(found)
    status, word = _CODES.get(code, (code if 400 <= code <= 599 else 500, "UNKNOWN"))
    told = {"error": {**found, "code": status, "status": word}}
    error = errors.read(Reply(status, {}, b""), data=told)
    # The status is of no HTTP answer, and what failed is not billed.
    error.status, error.maybe_billed = None, False
    mark_over_quota(error)
    return error


def mark_over_quota(error: ProviderError) -> None:
    """Give a refusal its own code where the quota of enqueued tokens is full."""
    if error.kind in (ErrorKind.RATE_LIMIT, ErrorKind.NO_MONEY) and _ENQUEUED.search(error.message):
        error.kind, error.code = ErrorKind.RATE_LIMIT, "token_limit_exceeded"


def _failed(wire_id: str, found: Any, errors: ErrorReader) -> Line:
    code = _code(found)
    text = found.get("message") if isinstance(found, dict) else None
    if code == _CANCELLED:
        return unrun_line(wire_id, "cancelled")
    if code == _DEADLINE and isinstance(text, str) and _EXPIRED.search(text[:500]):
        return unrun_line(wire_id, "expired")
    return failed_line(wire_id, status_error(found, errors))


def _code(found: Any) -> int:
    code = found.get("code") if isinstance(found, Mapping) else None
    return code if type(code) is int else 0


def _vector(response: Mapping[str, Any]) -> Answer:
    embedding = response.get("embedding")
    usage = usage_of(response.get("usageMetadata"))
    if usage is None and (tokens := _number(response.get("tokenCount"))) is not None:
        usage = Usage(input_tokens=tokens)
    try:
        values = vector(embedding.get("values") if isinstance(embedding, dict) else None, None)
    except ProviderError as error:
        error.usage = usage
        raise
    return Answer(
        embedding=values,
        usage=usage,
        model=short(response.get("modelVersion"), PLAIN_ID),
        provider_request_id=short(response.get("responseId"), PLAIN_ID),
    )


def _number(value: Any) -> int | None:
    """A count: the API writes 64-bit numbers as texts."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,10}", value):
        value = int(value)
    return count(value)
