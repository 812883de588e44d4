"""The three services as the tests that hold for all of them see them: what their servers say, and hear."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from asking import KEY, MODELS, url_of
from attrs import frozen
from claude import error as claude_error
from claude import message
from gemini_asking import GEMINI_KEY, gemini_error, says_gemini
from raw_server import Exchange, RawServer, chat
from raw_server import error as openai_error

from smartbatch.providers.anthropic.provider import AnthropicProvider
from smartbatch.providers.base import Provider
from smartbatch.providers.gemini.provider import GeminiProvider
from smartbatch.providers.openai.provider import OpenAIProvider


@frozen
class Service:
    """One provider, and how its server talks.

    Attributes:
        name: the provider's prefix.
        key: its key in tests.
        kind: the provider's class.
        answer: makes the body of an answer with this text.
        error: makes the body of an error of this status and text.
        prompt_in: the prompt in a decoded body.
        path: what is asked of the server, below the base URL.
        versioned: the base URL ends in the version.
        busy: a status its server answers when it has too much to do.
        sdk: the module that opening the provider imports; ``None`` where there is no SDK.
    """

    name: str
    key: str
    kind: Callable[..., Provider]
    answer: Callable[[str], dict[str, Any]]
    error: Callable[[int, str], dict[str, Any]]
    prompt_in: Callable[[Any], str]
    path: str
    versioned: bool
    busy: int
    sdk: str | None

    def url(self, server: RawServer) -> str:
        return server.base_url if self.versioned else url_of(server)

    def at(self, address: str, **options: Any) -> Provider:
        """A provider for an address without version; a path below it may follow."""
        base = f"{address}/v1" if self.versioned else address
        return self.kind(base_url=base, **{"api_key": self.key, **options})

    def body(self, text: str = "Lima") -> bytes:
        return json.dumps(self.answer(text)).encode()

    def prompt(self, exchange: Exchange) -> str:
        return self.prompt_in(exchange.json())


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
    ),
)
