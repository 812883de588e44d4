"""The three providers and the answers of their servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from asking import KEY, MODELS, url_of
from attrs import frozen
from claude import END, START, STOP, delta, message
from claude import error as claude_error
from gemini_asking import GEMINI_KEY, gemini_error, says_gemini
from raw_server import Exchange, RawServer, chat
from raw_server import error as openai_error

from smartbatch.providers import AnthropicProvider, GeminiProvider, OpenAIProvider, Provider


@frozen
class Service:
    name: str
    key: str
    kind: Callable[..., Provider]
    answer: Callable[[str], dict[str, Any]]  # body with this text
    error: Callable[[int, str], dict[str, Any]]  # body for this status and text
    prompt_in: Callable[[Any], str]  # reads the prompt from a decoded body
    path: str  # of a call, below the base URL
    versioned: bool  # base URLs end with the version
    busy: int  # status of an overloaded server
    sdk: str | None  # module imported by open()
    events: Callable[..., list[bytes]]  # of a stream with these pieces of text

    def url(self, server: RawServer) -> str:
        return server.base_url if self.versioned else url_of(server)

    def at(self, address: str, **options: Any) -> Provider:
        """``address`` has no version; it may have a path."""
        base = f"{address}/v1" if self.versioned else address
        return self.kind(base_url=base, **{"api_key": self.key, **options})

    def body(self, text: str = "Lima") -> bytes:
        return json.dumps(self.answer(text)).encode()

    def prompt(self, exchange: Exchange) -> str:
        return self.prompt_in(exchange.json())


def _data(value: Any) -> bytes:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


def _chat_events(*pieces: str) -> list[bytes]:
    used = {"prompt_tokens": 31, "completion_tokens": 2}
    said = [{"choices": [{"index": 0, "delta": {"content": piece}}], "usage": used} for piece in pieces]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return [*map(_data, (*said, end)), b"data: [DONE]\n\n"]


def _message_events(*pieces: str) -> list[bytes]:
    return [START, *map(delta, pieces), END, STOP]


def _gemini_events(*pieces: str) -> list[bytes]:
    *first, last = pieces
    return [*(_data(says_gemini(piece, finish=None)) for piece in first), _data(says_gemini(last))]


SERVICES = (
    Service(
        "openai",
        KEY,
        OpenAIProvider,
        chat,
        lambda status, text: openai_error(text, "any_type"),
        lambda body: body["messages"][0]["content"],
        "/v1/chat/completions",
        True,
        503,
        None,
        _chat_events,
    ),
    Service(
        "anthropic",
        KEY,
        AnthropicProvider,
        message,
        lambda status, text: claude_error("invalid_request_error" if status == 400 else "api_error", text),
        lambda body: body["messages"][0]["content"],
        "/v1/messages",
        False,
        529,
        "anthropic",
        _message_events,
    ),
    Service(
        "gemini",
        GEMINI_KEY,
        GeminiProvider,
        says_gemini,
        lambda status, text: gemini_error(status, "ANY", text),
        lambda body: body["contents"][0]["parts"][0]["text"],
        f"/v1/models/{MODELS['gemini']}:generateContent",
        False,
        503,
        "google.genai",
        _gemini_events,
    ),
)
