"""Anthropic's model call: a message, whole or streamed, in real time or in a batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import evolve

from smartbatch.emulator.anthropic.parsing import api_error, parse_messages
from smartbatch.emulator.anthropic.streams import message_events
from smartbatch.emulator.anthropic.tools import with_tools
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
    return _Message(with_tools(parse_messages(head, fields), fields))


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
        if answer.calls:
            message["stop_reason"] = "tool_use"
        elif answer.finish_reason == "length":
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


def _content(answer: Completion, identity: str) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": f"sig_{identity}"})
    if not answer.calls:
        return [*blocks, {"type": "text", "text": answer.text}]
    return blocks + [
        {"type": "tool_use", "id": f"toolu_{identity}_{number}", "name": call.name, "input": call.arguments}
        for number, call in enumerate(answer.calls)
    ]


def _body(request: GenerationRequest, answer: Completion, identity: str) -> dict[str, Any]:
    return {
        "id": f"msg_{identity}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": _content(answer, identity),
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "usage": {
            "input_tokens": request.input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "output_tokens": answer.tokens,
            "output_tokens_details": {"thinking_tokens": answer.reasoning_tokens},
            "server_tool_use": None,
            "service_tier": "standard",
            "speed": "standard",
            "inference_geo": None,
        },
    }
