"""Reads the answers of Anthropic's Messages API, whole ones and streamed ones.

The SDK does not check a successful body, so everything is looked at here: what is missing is ``None``, what
has the wrong shape is an ``INVALID_RESPONSE``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smartbatch.errors import ProviderError
from smartbatch.providers.anthropic.errors import limits_of, read_error, request_id_of, unusable
from smartbatch.providers.foreign_text import PLAIN_ID, PLAIN_WORD, count, short, sound
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.openai.answers import decode
from smartbatch.types import Answer, Request, Usage

__all__ = ["finish_of", "read_message", "usage_of"]

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
}


def read_message(
    reply: Reply,
    request: Request,
    dropped: tuple[tuple[str, str], ...],
    *secrets: str,
    data: dict[str, Any] | None = None,
) -> Answer:
    """Return the answer in the body of a success.

    Args:
        reply: the success.
        request: whose texts must not come back in an error.
        dropped: what of the request was not sent.
        secrets: further texts that must not come back.
        data: the body, where it is decoded already.

    Raises:
        ProviderError: for a body that was cut, is a web page, an error, or no message.
    """
    try:
        data = decode(reply) if data is None else data
    except ProviderError as error:
        error.provider_request_id, error.limits = request_id_of(reply), limits_of(reply)
        raise
    if data.get("type") == "error":
        raise read_error(reply, request, *secrets, data=data)
    usage = usage_of(data.get("usage"))
    content = data.get("content")
    if data.get("type") != "message" or not isinstance(content, list):
        raise unusable(reply, "shape", "the answer is no message", usage)
    texts = [
        block["text"]
        for block in content
        if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)
    ]
    return Answer(
        text=sound("".join(texts)),
        usage=usage,
        finish_reason=finish_of(data.get("stop_reason")),
        model=short(data.get("model"), PLAIN_ID),
        provider_request_id=request_id_of(reply),
        limits=limits_of(reply),
        dropped=dropped,
    )


def finish_of(reason: Any) -> str:
    """Return our word for a ``stop_reason``; unknown ones are passed on."""
    if reason is None:
        return "stop"
    word = short(reason, PLAIN_WORD) or "unknown"
    return _FINISH.get(word, word)


def usage_of(usage: Mapping[str, Any] | Any) -> Usage | None:
    """Return the billed tokens; ``None`` when they are missing or absurd.

    Anthropic counts input in three parts: fresh, written to the cache, and read from it.
    """
    if not isinstance(usage, Mapping):
        return None
    fresh, made = count(usage.get("input_tokens")), count(usage.get("output_tokens"))
    if fresh is None or made is None:
        return None
    written = count(usage.get("cache_creation_input_tokens")) or 0
    cached = count(usage.get("cache_read_input_tokens")) or 0
    details = usage.get("output_tokens_details")
    thought = (count(details.get("thinking_tokens")) or 0) if isinstance(details, Mapping) else 0
    return Usage(fresh + written + cached, made, cached, min(thought, made))
