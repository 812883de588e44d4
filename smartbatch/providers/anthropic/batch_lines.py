"""Lines of Anthropic's Message Batches: requests as they are sent, results as they come.

Source: Anthropic's API reference of Message Batches, the types of the ``anthropic`` SDK 2.11.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import evolve

from smartbatch.errors import ProviderError
from smartbatch.providers.anthropic.answers import read_message
from smartbatch.providers.batch_api import Line, LineOutcome
from smartbatch.providers.batch_outcomes import decode_line, failed_line, shapeless_line, unrun_line
from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.foreign_text import PLAIN_ID, short
from smartbatch.providers.http.replies import Reply

__all__ = ["prompts_of", "read_result"]

_INSIDE = Reply(200, {}, b"")  # a line has neither headers nor a status of its own


def read_result(line: bytes, errors: ErrorReader) -> Line:
    """Return what one line of results says.

    Raises:
        ValueError: for what is no such line.
    """
    data, wire_id = decode_line(line, "custom_id")
    result = data.get("result")
    if not isinstance(result, dict):
        raise ValueError("the line has no result")
    match result.get("type"):
        case "succeeded":
            return _succeeded(wire_id, result.get("message"))
        case "errored":
            return _errored(wire_id, result.get("error"), errors)
        case "canceled":
            return unrun_line(wire_id, "cancelled")
        case "expired":
            return unrun_line(wire_id, "expired")
    return shapeless_line(wire_id, "the result is of a type this version does not know")


def prompts_of(lines: Path) -> Iterator[str]:
    """Yield every text of the prompts in a spooled input; nothing for a file that cannot be read."""
    try:
        with open(lines, "rb") as file:
            for line in file:  # a file opened for bytes is cut at b"\n" only
                params = json.loads(line).get("params", {})
                yield from _texts([params.get("system"), params.get("messages")])
    except (OSError, ValueError, AttributeError):
        return


def _succeeded(wire_id: str, message: Any) -> Line:
    if not isinstance(message, dict):
        return shapeless_line(wire_id, "the result has no message")
    try:
        answer = read_message(message, _INSIDE)
    except ProviderError as error:
        return failed_line(wire_id, error)
    identity = short(message.get("id"), PLAIN_ID)
    return Line(wire_id, LineOutcome.OK, answer=evolve(answer, provider_request_id=identity))


def _errored(wire_id: str, found: Any, errors: ErrorReader) -> Line:
    """An error in a line is not billed, whatever its kind."""
    if not isinstance(found, dict):
        return shapeless_line(wire_id, "the result has no error although it failed")
    whole = found if isinstance(found.get("error"), dict) else {"type": "error", "error": found}
    error = errors.read(_INSIDE, data=whole)
    error.status, error.maybe_billed = None, False
    return failed_line(wire_id, error)


def _texts(found: Any) -> Iterator[str]:
    if isinstance(found, str):
        yield found
    elif isinstance(found, list):
        for each in found:
            yield from _texts(each)
    elif isinstance(found, dict):
        yield from _texts([found.get("text"), found.get("content")])
