"""Answers of Anthropic's Messages API, complete and streamed.

The SDK does not validate successful answers, so this module does. A missing field is ``None``; a
field of the wrong type is an ``INVALID_RESPONSE``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from smartbatch.providers.answer_parts import (
    add_piece,
    decoded_arguments,
    identified,
    joined,
    tool_call,
    unmodelled,
    unmodelled_usage,
)
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
from smartbatch.providers.http.event_stream import EventReader
from smartbatch.providers.http.replies import Reply
from smartbatch.types import MESSAGE_BLOCKS, Answer, Usage

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
}
_INSIDE = Reply(200, {}, b"")  # batch lines have no headers and no status


_KNOWN = frozenset({"id", "type", "role", "content", "model", "stop_reason", "usage"})
_KNOWN_IN_CALL = frozenset({"type", "id", "name", "input"})
_KNOWN_IN_USAGE = frozenset(
    {"input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"}
    | {"ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens", "thinking_tokens"}
)
_PLAIN_BLOCK = frozenset({"type", "text", "citations"})


def read_message(
    data: Mapping[str, Any],
    reply: Reply,
    dropped: tuple[tuple[str, str], ...] = (),
    errors: ErrorReader = ERRORS,
) -> Answer:
    usage = usage_of(data.get("usage"))
    content = data.get("content")
    if data.get("type") != "message" or not isinstance(content, list):
        raise errors.unusable(reply, "shape", "the answer is not a message", usage)
    texts, thoughts, calls, others = [], [], [], False
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
            others = others or bool(block.get("citations")) or not block.keys() <= _PLAIN_BLOCK
        elif kind == "tool_use":
            more = unmodelled(block, _KNOWN_IN_CALL)
            calls.append(tool_call(block.get("id"), block.get("name"), block.get("input"), more))
        else:
            others = True
            if kind == "thinking" and isinstance(block.get("thinking"), str):
                thoughts.append(block["thinking"])
    extra = unmodelled(data, _KNOWN)
    if used := unmodelled_usage(data.get("usage"), _KNOWN_IN_USAGE):
        extra["usage"] = used
    # later turns send these blocks back unchanged: thinking is signed, and citations belong to their text
    if others:
        extra[MESSAGE_BLOCKS] = [block for block in content if fields(block).get("type") != "tool_use"]
    return Answer(
        text=well_formed("".join(texts)),
        usage=usage,
        finish_reason=finish_word(data.get("stop_reason"), _FINISH),
        model=short(data.get("model"), PLAIN_ID),
        provider_request_id=errors.request_id(reply),
        limits=errors.limits(reply),
        dropped=dropped,
        tool_calls=identified(calls, short(data.get("id"), PLAIN_ID)) if calls else (),
        reasoning=well_formed("\n\n".join(filter(None, thoughts))) or None,
        extra=extra or None,
    )


def usage_of(usage: Mapping[str, Any] | Any) -> Usage | None:
    """Read the billed tokens; ``None`` if they are missing or implausible. Anthropic counts new input, cache
    writes and cache reads separately.
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
    def read(data: dict[str, Any]) -> Answer:
        result = data.get("result")
        if not isinstance(result, dict):
            raise ValueError("the line has no result")
        match result:
            case {"type": "succeeded", "message": dict(message)}:
                identity = short(message.get("id"), PLAIN_ID)
                return evolve(read_message(message, _INSIDE), provider_request_id=identity)
            case {"type": "errored", "error": dict(found)}:
                whole = found if isinstance(found.get("error"), dict) else {"type": "error", "error": found}
                error = errors.read(_INSIDE, data=whole)
                error.status, error.maybe_billed = None, False  # errors in batch lines are never billed
                raise error
            case {"type": "canceled"}:
                raise not_run("cancelled")
            case {"type": "expired"}:
                raise not_run("expired")
        raise unusable("the result has neither a message nor an error, or is of an unknown type", status=200)

    return line_of(line, "custom_id", read)


class MessageReader(EventReader):
    """Reads the named events of a streamed message; only ``message_stop`` completes it."""

    def __init__(self, errors: ErrorReader, dropped: tuple[tuple[str, str], ...]) -> None:
        super().__init__(errors)
        self._dropped = dropped
        self._counted: dict[str, Any] = {}
        self._message: dict[str, Any] = {}
        self._blocks: dict[Any, dict[str, Any]] = {}

    def take(self, data: Mapping[str, Any], name: str, head: Reply) -> str:  # noqa: ARG002
        match name:
            case "content_block_delta":
                return self._continue(data.get("index"), fields(data.get("delta")))
            case "content_block_start":
                return self._begin(data.get("index"), fields(data.get("content_block")))
            case "message_start":
                self._message |= fields(data.get("message"))
                self._count(self._message.get("usage"))
            case "message_delta":
                delta = fields(data.get("delta"))
                self._message |= {field: value for field, value in delta.items() if value is not None}
                self._count(data.get("usage"))
            case "message_stop":
                self.ended = True
        return ""  # pings and unknown events

    def finish(self, text: str, head: Reply) -> Answer:
        blocks = [_whole(joined(block)) for block in self._blocks.values()]
        message = {**self._message, "type": "message", "content": blocks, "usage": self._counted}
        return evolve(read_message(message, head, self._dropped, self.errors), text=text)

    def _begin(self, index: Any, block: Mapping[str, Any]) -> str:
        begun = self._blocks.setdefault(index if isinstance(index, int) else None, {})
        add_piece(begun, block, growing=True)
        return _text(block) if block.get("type") == "text" else ""

    def _continue(self, index: Any, delta: Mapping[str, Any]) -> str:
        block = self._blocks.setdefault(index if isinstance(index, int) else None, {})
        kind = delta.get("type")
        if kind == "citations_delta":
            citations = block.get("citations")
            block["citations"] = citations if isinstance(citations, list) else []
            block["citations"].append(delta.get("citation"))
            return ""
        if kind == "text_delta":
            block.setdefault("type", "text")
        # a piece of the block's text, thinking, signature or input
        add_piece(block, {name: value for name, value in delta.items() if name != "type"}, growing=True)
        return _text(delta) if kind == "text_delta" else ""

    def _count(self, usage: Any) -> None:
        """Update the cumulative counters; later events repeat only some of them."""
        if isinstance(usage, Mapping):
            self._counted.update({name: value for name, value in usage.items() if value is not None})
            self.usage = usage_of(self._counted)


def _text(block: Mapping[str, Any]) -> str:
    found = block.get("text")
    return found if isinstance(found, str) else ""


def _whole(block: dict[str, Any]) -> dict[str, Any]:
    # the input arrives as pieces of JSON; truncated input stays a string
    if pieces := block.pop("partial_json", None):
        decoded = decoded_arguments(pieces)
        block["input"] = pieces if decoded is None else decoded
    return block
