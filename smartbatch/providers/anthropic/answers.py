"""Reads the answers of Anthropic's Messages API, whole ones and streamed ones.

The SDK does not check a successful body, so everything is looked at here: what is missing is ``None``, what
has the wrong shape is an ``INVALID_RESPONSE``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from smartbatch.errors import ProviderError
from smartbatch.providers.answer_parts import identified, tool_call, unmodelled, unmodelled_usage
from smartbatch.providers.anthropic.errors import ERRORS
from smartbatch.providers.batch_api import Line, line_of, not_run
from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.foreign_text import (
    PLAIN_ID,
    count,
    detail,
    fields,
    finish_word,
    short,
    unusable,
    well_formed,
)
from smartbatch.providers.http.replies import Reply
from smartbatch.types import MESSAGE_BLOCKS, Answer, ToolCall, Usage

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
}
_INSIDE = Reply(200, {}, b"")  # a line of a batch has neither headers nor a status of its own


_KNOWN = frozenset({"id", "type", "role", "content", "model", "stop_reason", "usage"})
_KNOWN_IN_CALL = frozenset({"type", "id", "name", "input"})
_KNOWN_IN_USAGE = frozenset(
    {"input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"}
    | {"ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens", "thinking_tokens"}
)
_PLAIN_BLOCK = frozenset({"type", "text", "citations"})


def read_message(data: Mapping[str, Any], reply: Reply, dropped: tuple[tuple[str, str], ...] = ()) -> Answer:
    """Return the answer in a message, the decoded body of ``reply``; ``dropped`` of the request was not sent.

    A body that is no message is an ``INVALID_RESPONSE``.
    """
    usage = usage_of(data.get("usage"))
    content = data.get("content")
    if data.get("type") != "message" or not isinstance(content, list):
        raise ERRORS.unusable(reply, "shape", "the answer is no message", usage)
    texts, thoughts, calls, others = [], [], [], False
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
            others = others or bool(block.get("citations")) or not block.keys() <= _PLAIN_BLOCK
        elif kind == "tool_use":
            calls.append(_call(block))
        else:
            others = True
            if kind == "thinking" and isinstance(block.get("thinking"), str):
                thoughts.append(block["thinking"])
    extra = unmodelled(data, _KNOWN)
    if used := unmodelled_usage(data.get("usage"), _KNOWN_IN_USAGE):
        extra["usage"] = used
    if others:  # they go back as they came: thinking is signed, and citations belong to their texts
        extra[MESSAGE_BLOCKS] = [block for block in content if fields(block).get("type") != "tool_use"]
    return Answer(
        text=well_formed("".join(texts)),
        usage=usage,
        finish_reason=finish_word(data.get("stop_reason"), _FINISH),
        model=short(data.get("model"), PLAIN_ID),
        provider_request_id=ERRORS.request_id(reply),
        limits=ERRORS.limits(reply),
        dropped=dropped,
        tool_calls=identified(calls, short(data.get("id"), PLAIN_ID)) if calls else (),
        reasoning=well_formed("\n\n".join(filter(None, thoughts))) or None,
        extra=extra or None,
    )


def _call(block: Mapping[str, Any]) -> ToolCall | None:
    """A call; of one that the end of a stream cut, the input is a text that is no JSON."""
    return tool_call(
        block.get("id"), block.get("name"), block.get("input"), unmodelled(block, _KNOWN_IN_CALL)
    )


def usage_of(usage: Mapping[str, Any] | Any) -> Usage | None:
    """Return the billed tokens; ``None`` when they are missing or absurd.

    Anthropic counts input in three parts: fresh, written to the cache, and read from it.
    """
    if not isinstance(usage, Mapping):
        return None
    fresh, made = count(usage.get("input_tokens")), count(usage.get("output_tokens"))
    if fresh is None or made is None:
        return None
    written = detail(usage, "cache_creation_input_tokens")
    for_an_hour = detail(usage.get("cache_creation"), "ephemeral_1h_input_tokens")
    cached = detail(usage, "cache_read_input_tokens")
    thought = detail(usage.get("output_tokens_details"), "thinking_tokens")
    return Usage(
        fresh + written + cached,
        made,
        cached,
        min(thought, made),
        cache_write_tokens=written,
        cache_write_1h_tokens=min(for_an_hour, written),
    )


def read_result(line: bytes, errors: ErrorReader) -> Line:
    """Return what one line of a batch's results says; what is no such line is a ``ValueError``."""

    def read(data: dict[str, Any]) -> Answer:
        result = data.get("result")
        if not isinstance(result, dict):
            raise ValueError("the line has no result")
        match result:
            case {"type": "succeeded", "message": dict(message)}:
                identity = short(message.get("id"), PLAIN_ID)
                return evolve(read_message(message, _INSIDE), provider_request_id=identity)
            case {"type": "errored", "error": dict(error)}:
                raise _failure(error, errors)
            case {"type": "canceled"}:
                raise not_run("cancelled")
            case {"type": "expired"}:
                raise not_run("expired")
        raise unusable("the result has neither a message nor an error, or is of an unknown type", status=200)

    return line_of(line, "custom_id", read)


def _failure(found: dict[str, Any], errors: ErrorReader) -> ProviderError:
    """An error in a line is not billed, whatever its kind."""
    whole = found if isinstance(found.get("error"), dict) else {"type": "error", "error": found}
    error = errors.read(_INSIDE, data=whole)
    error.status, error.maybe_billed = None, False
    return error
