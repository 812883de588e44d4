"""OpenAI's real-time API as the service speaks it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from smartbatch.emulator import openai, streams
from smartbatch.emulator.answers import Composed, compose
from smartbatch.emulator.api import Api, Done, Parse, Reply, Task
from smartbatch.emulator.head import Head
from smartbatch.emulator.limits import Limits, Refusal
from smartbatch.emulator.openai_embeddings import parse_embeddings
from smartbatch.emulator.requests import (
    Asked,
    Refused,
    error_body,
    parse_body,
    parse_chat,
    parse_responses,
)
from smartbatch.emulator.settings import Settings

__all__ = ["OpenAIApi", "composed", "retry_after"]


class OpenAIApi(Api):
    """Chat completions, responses, embeddings and models."""

    def serves(self, head: Head) -> bool:  # noqa: ARG002
        return True

    def check_key(self, head: Head, settings: Settings) -> None:
        scheme, _, key = head.authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            message = (
                "You didn't provide an API key. Provide it in an Authorization header using Bearer auth."
            )
            raise Refused(401, message)
        if settings.keys is not None and key.strip() not in settings.keys:
            raise Refused(401, "Incorrect API key provided.", code="invalid_api_key")

    def find(self, head: Head, body: bytes, settings: Settings) -> Parse | Reply:  # noqa: ARG002
        if head.path == "/v1/models" or head.path.startswith("/v1/models/"):
            return self._models(head, settings)
        parse = _TASKS.get(head.path)
        if parse is None:
            raise Refused(404, f"Invalid URL ({head.method} {head.path})")
        if head.method != "POST":
            raise Refused(405, f"Not allowed to {head.method} on {head.path} (HINT: use POST)")
        return parse

    def parse_body(self, body: bytes) -> dict[str, Any]:
        return parse_body(body)

    def check_model(self, model: str, settings: Settings) -> None:
        if settings.models is not None and model not in settings.models:
            message = f"The model `{model}` does not exist or you do not have access to it."
            raise Refused(404, message, code="model_not_found", param="model")

    def overloaded(self) -> Reply:
        message = "The server is currently overloaded. Please try again later."
        return Reply(503, error_body(message, type_="server_error", code="server_overloaded"))

    def failed(self) -> Reply:
        return Reply(500, error_body("The server had an error.", type_="server_error"))

    def limited(self, refusal: Refusal, model: str, *, hint: bool) -> Reply:
        headers = retry_after(refusal.wait) if hint else []
        return Reply(429, openai.limit_error(refusal, model), headers=headers)

    def used_up(self, model: str) -> Reply:  # noqa: ARG002
        message = "You exceeded your current quota, please check your plan and billing details."
        return Reply(429, error_body(message, type_="insufficient_quota", code="insufficient_quota"))

    def headers(self, identity: str, seconds: float) -> list[tuple[str, str]]:
        return [
            ("x-request-id", f"req_{identity}"),
            ("openai-processing-ms", str(int(seconds * 1000))),
            ("openai-version", "2020-10-01"),
        ]

    def limit_headers(self, limits: Limits, now: float) -> list[tuple[str, str]]:
        return limits.headers(now)

    def _models(self, head: Head, settings: Settings) -> Reply:
        if head.method != "GET":
            raise Refused(405, f"Not allowed to {head.method} on {head.path} (HINT: use GET)")
        name = head.path.removeprefix("/v1/models").removeprefix("/")
        if not name:
            return Reply(200, json.dumps(openai.models_body(settings.models)).encode())
        self.check_model(name, settings)
        return Reply(200, json.dumps(openai.model_body(name)).encode())


class _Generation(Task):
    """A chat completion or a response.

    Args:
        asked: what is asked for.
        whole: makes the body of an answer.
        events: makes the events of a stream.
    """

    def __init__(
        self, asked: Asked, whole: Callable[..., dict[str, Any]], events: Callable[..., list[bytes]]
    ) -> None:
        self.model, self.prompt, self.charge = asked.model, asked.prompt, asked.charge
        self._asked = asked
        self._whole = whole
        self._events = events

    def perform(self, settings: Settings, identity: str, *, refuse: bool) -> Done:
        asked = self._asked
        answer = composed(settings, asked)
        if refuse:
            answer = Composed("I can't help with that.", "content_filter", 6)
        created = int(time.time())
        body: bytes | list[bytes]
        if asked.stream:
            body = self._events(asked, answer, identity=identity, created=created)
        else:
            made = self._whole(asked, answer, identity=identity, created=created)
            if refuse:
                _refuse(made, answer.text)
            body = json.dumps(made).encode()
        return Done(body, answer.tokens, asked.input_tokens + answer.tokens * asked.choices)


def composed(settings: Settings, asked: Asked) -> Composed:
    """Return the answer to a generation of any API.

    Raises:
        Refused: for a schema that cannot be followed.
    """
    try:
        return compose(
            asked.prompt,
            asked.model,
            seed=settings.seed,
            answers=settings.answers,
            max_tokens=asked.max_tokens,
            stop=asked.stop,
            form=asked.form,
        )
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        if asked.form is None:
            raise
        raise Refused(400, "Invalid schema for response_format.", param="response_format") from error


def retry_after(seconds: float | None) -> list[tuple[str, str]]:
    """Return the headers that ask to wait."""
    wait = max(0.0, seconds or 0.0)
    return [
        ("retry-after", str(math.ceil(wait - 1e-6))),
        ("retry-after-ms", str(math.ceil(wait * 1000 - 1e-6))),
    ]


def _refuse(made: dict[str, Any], text: str) -> None:
    """Say in an answer what models say who refuse: a text beside the content, and no content."""
    for choice in made.get("choices", ()):
        choice["finish_reason"] = "stop"
        choice["message"] |= {"content": None, "refusal": text}
    for message in made.get("output", ()):
        message["content"] = [{"type": "refusal", "refusal": text}]


def _chat(_head: Head, body: Mapping[str, Any]) -> Task:
    return _Generation(parse_chat(body), openai.chat_body, streams.chat_events)


def _response(_head: Head, body: Mapping[str, Any]) -> Task:
    return _Generation(parse_responses(body), openai.response_body, streams.response_events)


_TASKS: dict[str, Parse] = {
    "/v1/chat/completions": _chat,
    "/v1/responses": _response,
    "/v1/embeddings": parse_embeddings,
}
