"""Answers, errors and streams of Anthropic's API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from asking import KEY, MODELS, url_of
from raw_server import RawServer

from smartbatch.providers import AnthropicProvider

MODEL = MODELS["anthropic"]


@contextmanager
def opened(server: RawServer, **options: object) -> Iterator[AnthropicProvider]:
    options.setdefault("api_key", KEY)
    provider = AnthropicProvider(base_url=url_of(server), **options)
    provider.open(4)
    try:
        yield provider
    finally:
        provider.close()


def message(text: str | None = "Lima", **changes: object) -> dict:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [] if text is None else [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "usage": {
            "input_tokens": 31,
            "cache_creation_input_tokens": 7,
            "cache_read_input_tokens": 100,
            "cache_creation": {"ephemeral_5m_input_tokens": 7, "ephemeral_1h_input_tokens": 0},
            "output_tokens": 14,
            "output_tokens_details": {"thinking_tokens": 5},
            "service_tier": "standard",
        },
        **changes,
    }


def error(type_: str, text: str = "no", code: str | None = None) -> dict:
    details = {"details": {"error_code": code}} if code else {}
    return {
        "type": "error",
        "error": {"type": type_, "message": text, **details},
        "request_id": "req_body",
    }


def event(name: str, **fields: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields}, ensure_ascii=False)}\n\n".encode()


def delta(text: str) -> bytes:
    return event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


START = event(
    "message_start",
    message={**message(None), "stop_reason": None, "usage": {"input_tokens": 31, "output_tokens": 1}},
)
BLOCK = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
PING = event("ping")
END = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 14})
STOP = event("message_stop")
