"""Lines of OpenAI's batches: a request as it goes into the input file, a result as it comes back.

Bodies are built and answers read by the functions of the real-time path. Source of the lines: OpenAI's Batch
guide and API reference of November 2026; what other servers leave out or add is tolerated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.batch_api import Line, LineOutcome
from smartbatch.providers.batch_outcomes import decode_line, failed_line
from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.error_table import kind_of_code
from smartbatch.providers.foreign_text import PLAIN_WORD, safe_text, short
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.openai.answers import read_chat, read_embeddings, read_response
from smartbatch.types import Answer, Kind, Request

__all__ = ["read_line"]

_TEXT = Request()
"""Stands for a vector's request: a line has one text, and what was asked of it is the caller's to check."""


def read_line(line: bytes, kind: Kind, api: str, errors: ErrorReader) -> Line:
    """Understand a line of an output or error file.

    Args:
        line: without its end, or with it.
        kind: what the batch asked for.
        api: ``chat`` or ``responses``, for generation.
        errors: knows the texts that must not come back in an error.

    Raises:
        ValueError: for what is no line of results.
    """
    data, wire_id = decode_line(line, "custom_id")
    response, error = data.get("response"), data.get("error")
    if response is None:
        return _without_response(wire_id, error, errors.secrets)
    if not isinstance(response, dict):
        raise ValueError("the line's response is no object")
    return _with_response(wire_id, response, kind, api, errors)


def _with_response(wire_id: str, response: dict[str, Any], kind: Kind, api: str, errors: ErrorReader) -> Line:
    """A request that was run; some servers leave out the status, or the body around the answer."""
    body = response.get("body") if "body" in response else response
    status = response.get("status_code", 200)
    if type(status) is not int or not (status == 0 or 100 <= status <= 599):
        raise ValueError("the line's status is none of HTTP")
    request_id = response.get("request_id")
    reply = Reply(status, {"x-request-id": request_id} if isinstance(request_id, str) else {}, b"")
    if status == 0:
        error = ProviderError(
            "the provider got no answer for this request (status 0)",
            kind=ErrorKind.SERVER_ERROR,
            code="status_0",
            maybe_billed=True,
        )
        return failed_line(wire_id, error)
    try:
        return Line(wire_id, LineOutcome.OK, answer=_answer(body, reply, kind, api, errors))
    except ProviderError as error:
        return failed_line(wire_id, error)


def _answer(body: Any, reply: Reply, kind: Kind, api: str, errors: ErrorReader) -> Answer:
    if not reply.ok:
        raise errors.read(reply, data=body)
    if not isinstance(body, dict):
        raise errors.unusable(reply, "shape", "the line's answer is no object")
    errors.check(body, reply)
    if kind is Kind.EMBED:
        return read_embeddings(body, reply, (_TEXT,))[0]
    return read_chat(body, reply) if api == "chat" else read_response(body, reply)


def _without_response(wire_id: str, error: Any, secrets: tuple[str, ...]) -> Line:
    """A request without an answer: not executed, unless its code says that it was refused or broke off."""
    fields: Mapping[str, Any] = error if isinstance(error, dict) else {}
    code = short(fields.get("code"), PLAIN_WORD)
    said = fields.get("message")
    message = said if isinstance(said, str) else error if isinstance(error, str) else ""
    kind = kind_of_code(fields.get("code"), fields.get("type"), message)
    broke_off = "timeout" in (code or "")
    if broke_off:
        kind = ErrorKind.TIMEOUT
    text = safe_text(message, (), *secrets)
    meaning = ProviderError(
        f"the batch did not run this request ({code or 'no code'}{f': {text}' if text else ''})",
        kind=kind or ErrorKind.SERVER_ERROR,
        code=code,
        maybe_billed=broke_off,
    )
    return Line(wire_id, LineOutcome.UNRUN, error=meaning) if kind is None else failed_line(wire_id, meaning)
