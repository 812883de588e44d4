"""Anthropic's model call: a message, whole or streamed, in real time or in a batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import evolve

from smartbatch.emulator.anthropic.parsing import api_error, parse_messages
from smartbatch.emulator.anthropic.streams import message_events
from smartbatch.emulator.composed_answers import Completion
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.parsed_requests import (
    GenerationRequest,
    InvalidSchema,
    ModelCall,
    ModelOutput,
    complete,
)
from smartbatch.emulator.settings import EmulatorSettings


def parse_message(head: Head, fields: Mapping[str, Any]) -> ModelCall:
    """Parse a request for a message, or raise :class:`ApiError`."""
    return _Message(parse_messages(head, fields))


class _Message(ModelCall):
    """A message to generate."""

    def __init__(self, request: GenerationRequest) -> None:
        self.model, self.prompt = request.model, request.prompt
        self.charge = request.input_tokens
        self._request = request

    def run(self, settings: EmulatorSettings, identity: str, *, refuse: bool) -> ModelOutput:
        request = self._request
        try:
            answer = complete(settings, request)
            without_stop = complete(settings, evolve(request, stop=())) if request.stop else answer
        except InvalidSchema:
            raise api_error(400, "output_config.format.schema: Invalid schema") from None
        stopped_at = next((each for each in request.stop if each and each in without_stop.text), None)
        message = _body(request, answer, identity)
        if answer.finish_reason == "length":
            message["stop_reason"] = "max_tokens"
        elif stopped_at is not None:
            message |= {"stop_reason": "stop_sequence", "stop_sequence": stopped_at}
        if refuse:
            answer = Completion("", "refusal", 0)
            message |= {"content": [], "stop_reason": "refusal"}
            message["stop_details"] = {"type": "refusal", "category": None, "explanation": None}
            message["usage"]["output_tokens"] = 0
        body = message_events(message) if request.stream else json.dumps(message).encode()
        return ModelOutput(body, answer.tokens, request.input_tokens + answer.tokens)


def _body(request: GenerationRequest, answer: Completion, identity: str) -> dict[str, Any]:
    return {
        "id": f"msg_{identity}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [{"type": "text", "text": answer.text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "usage": {
            "input_tokens": request.input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "output_tokens": answer.tokens,
            "output_tokens_details": {"thinking_tokens": 0},
            "server_tool_use": None,
            "service_tier": "standard",
            "speed": "standard",
            "inference_geo": None,
        },
    }
