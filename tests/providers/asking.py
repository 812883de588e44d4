"""Shared helpers for provider tests: a key, calls with default arguments, and error inspection."""

from __future__ import annotations

import copy
import pickle
import traceback
from typing import Any

import pytest
from raw_server import RawServer

from smartbatch.errors import ProviderError
from smartbatch.providers import Provider
from smartbatch.providers.base import AnswerStream
from smartbatch.types import Answer, Generation, Request

KEY = "sk-canary-1234567890abcdef"
SECRET_PROMPT = "my secret diary of the ninth of May says that nobody came to the party"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
"""Accepted unchanged by all providers."""
MODELS = {"openai": "gpt-5-mini", "anthropic": "claude-haiku-5-5", "gemini": "gemini-3.8-flash"}


def url_of(server: RawServer) -> str:
    """The SDKs of Anthropic and Google expect a base URL without a version."""
    return server.base_url.removesuffix("/v1")


def request_of(prompt: Any = "Capital of Peru?", **params: Any) -> Request:
    return Request(prompt=prompt, params=Generation(**params))


def ask(provider: Provider, prompt: Any = "Capital of Peru?", timeout: float = 20.0, **params: Any) -> Answer:
    return provider.generate(
        request_of(prompt, **params), model=MODELS[provider.name], attempt=0, timeout=timeout
    )


def begin(
    provider: Provider, prompt: Any = "Capital of Peru?", timeout: float = 20.0, **params: Any
) -> AnswerStream:
    return provider.stream(
        request_of(prompt, **params), model=MODELS[provider.name], attempt=0, timeout=timeout
    )


def fails(
    provider: Provider, prompt: Any = SECRET_PROMPT, timeout: float = 20.0, **params: Any
) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        ask(provider, prompt, timeout, **params)
    return caught.value


def stream_error(stream: AnswerStream, pieces: list[str] | None = None) -> ProviderError:
    """Read a stream until its error; ``pieces`` collects the text before it."""
    with pytest.raises(ProviderError) as caught:
        (pieces if pieces is not None else []).extend(stream)
    with pytest.raises(RuntimeError, match="not been read"):
        _ = stream.answer
    return caught.value


def forms_of(error: ProviderError) -> list[str]:
    """Return every form in which an error is shown, sent or stored."""
    return [
        str(error),
        repr(error),
        repr(error.__dict__),
        "".join(traceback.format_exception(error)),
        str(pickle.loads(pickle.dumps(error)).__dict__),
        repr(copy.copy(error)),
        repr((error.__cause__, error.__context__)),
    ]
