"""OpenAI's model calls, in real time or in a batch: chat completions, responses and embeddings."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from smartbatch.emulator.composed_answers import Completion
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.openai import bodies, streams
from smartbatch.emulator.openai.embeddings import parse_embeddings
from smartbatch.emulator.openai.parsing import api_error, check_rejected, parse_chat, parse_responses
from smartbatch.emulator.openai.tools import as_messages, with_chat_tools, with_response_tools
from smartbatch.emulator.parsed_requests import (
    GenerationRequest,
    InvalidSchema,
    ModelCall,
    ModelOutput,
    complete,
)
from smartbatch.emulator.provider_api import Parse
from smartbatch.emulator.settings import EmulatorSettings


class _Generation(ModelCall):
    """A chat completion or a response.

    Args:
        request: the parsed request.
        make_body: makes the body of an answer.
        make_events: makes the events of a stream.
    """

    def __init__(
        self,
        request: GenerationRequest,
        make_body: Callable[..., dict[str, Any]],
        make_events: Callable[..., list[bytes]],
    ) -> None:
        self.model, self.prompt, self.charge = request.model, request.prompt, request.charge
        self.tier = request.tier
        self._request = request
        self._make_body = make_body
        self._make_events = make_events

    @property
    def prompt_tokens(self) -> int:
        return self._request.input_tokens

    def run(self, settings: EmulatorSettings, identity: str, *, refuse: bool) -> ModelOutput:
        request = self._request
        try:
            answer = complete(settings, request)
        except InvalidSchema as error:
            message = "Invalid schema for response_format."
            raise api_error(400, message, param="response_format") from error
        if refuse:
            answer = Completion("I can't help with that.", "content_filter", 6)
        created = int(time.time())
        body: bytes | list[bytes]
        if request.stream:
            body = self._make_events(request, answer, identity=identity, created=created)
        else:
            whole = self._make_body(request, answer, identity=identity, created=created)
            if refuse:
                _replace_by_refusal(whole, answer.text)
            body = json.dumps(whole).encode()
        return ModelOutput(body, answer.tokens, request.input_tokens + answer.tokens * request.choices)


def _replace_by_refusal(body: dict[str, Any], text: str) -> None:
    """Turn an answer into the refusal of a model: a text in the field of refusals, and no content."""
    for choice in body.get("choices", ()):
        choice["finish_reason"] = "stop"
        choice["message"] |= {"content": None, "refusal": text}
    for message in body.get("output", ()):
        message["content"] = [{"type": "refusal", "refusal": text}]


def _chat(_head: Head, body: Mapping[str, Any]) -> ModelCall:
    return _Generation(with_chat_tools(parse_chat(body), body), bodies.chat_body, streams.chat_events)


def _response(_head: Head, body: Mapping[str, Any]) -> ModelCall:
    request = with_response_tools(parse_responses(as_messages(body)), body)
    return _Generation(request, bodies.response_body, streams.response_events)


def parse_call(path: str, head: Head, body: Mapping[str, Any], settings: EmulatorSettings) -> ModelCall:
    """Parse a call to one of the paths of :data:`MODEL_CALLS`.

    Raises:
        ApiError: for what the API, or a server with these settings, does not accept.
    """
    check_rejected(body, settings.rejects)
    return MODEL_CALLS[path](head, body)


MODEL_CALLS: dict[str, Parse] = {
    "/v1/chat/completions": _chat,
    "/v1/responses": _response,
    "/v1/embeddings": parse_embeddings,
}
"""The parsers by the paths of real-time calls, which are also the endpoints of batches."""
