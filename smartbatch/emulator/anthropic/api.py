"""Anthropic's Messages API as the service speaks it: messages, streams, token counts; batches next door.

Source: the types of the ``anthropic`` SDK 2.11 and Anthropic's API reference of October 2026.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any

from attrs import evolve

from smartbatch.emulator.anthropic import batches
from smartbatch.emulator.anthropic.parsing import Asking, parse_messages, refused
from smartbatch.emulator.anthropic.parsing import error_body as anthropic_error
from smartbatch.emulator.anthropic.streams import message_events
from smartbatch.emulator.batch_service import BatchCall, Desk
from smartbatch.emulator.composed_answers import Composed
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.limits import Level, Limits, Refusal
from smartbatch.emulator.openai.api import composed
from smartbatch.emulator.openai.parsing import Refused, parse_body
from smartbatch.emulator.provider_api import Api, Done, Parse, Reply, Task
from smartbatch.emulator.settings import Settings

__all__ = ["AnthropicApi"]

_ROUNDED_FROM = 20_000
"""The service rounds remaining tokens to thousands; smaller limits than this it never has."""
_NAMES = {"requests": "requests", "tokens": "input-tokens", "output": "output-tokens"}


class AnthropicApi(Api):
    """Everything under ``/v1/messages``."""

    def serves(self, head: Head) -> bool:
        return head.path == "/v1/messages" or head.path.startswith("/v1/messages/")

    def check_key(self, head: Head, settings: Settings) -> None:
        key = _key(head)
        if not key:
            raise refused(401, "x-api-key header is required")
        if settings.keys is not None and key not in settings.keys:
            raise refused(401, "invalid x-api-key")

    def batch_call(self, head: Head) -> BatchCall | None:
        return self._answer_batch if batches.is_about_batches(head) else None

    def _answer_batch(self, head: Head, body: bytes, service: Desk) -> Reply:
        self.check_key(head, service.settings)

        def parse(head: Head, fields: Mapping[str, Any]) -> Task:
            message = _Message(parse_messages(head, fields))
            self.check_model(message.model, service.settings)
            return message

        return batches.answer(head, body, service, key=_key(head), parse=parse)

    def find(self, head: Head, body: bytes, settings: Settings) -> Parse | Reply:
        if head.path not in ("/v1/messages", "/v1/messages/count_tokens"):
            raise refused(404, "Not found")
        if head.method != "POST":
            raise refused(405, "Method Not Allowed")
        if head.path == "/v1/messages":
            return lambda head, fields: _Message(parse_messages(head, fields))
        asking = parse_messages(head, self.parse_body(body), counting=True)
        self.check_model(asking.asked.model, settings)
        return Reply(200, json.dumps({"input_tokens": asking.asked.input_tokens}).encode())

    def parse_body(self, body: bytes) -> dict[str, Any]:
        try:
            return parse_body(body)
        except Refused:
            raise refused(400, "The request body is not valid JSON") from None

    def check_model(self, model: str, settings: Settings) -> None:
        if settings.models is not None and model not in settings.models:
            raise refused(404, f"model: {model}")

    def overloaded(self) -> Reply:
        return Reply(529, anthropic_error(529, "Overloaded"))

    def failed(self) -> Reply:
        return Reply(500, anthropic_error(500, "Internal server error"))

    def limited(self, refusal: Refusal, model: str, *, hint: bool) -> Reply:
        name = _NAMES[refusal.what].replace("-", " ")
        message = (
            f"This request would exceed your organization's rate limit of {refusal.limit:,} {name} "
            f"per minute (model: {model})."
        )
        wait = max(0.0, refusal.wait or 0.0)
        headers = [("retry-after", str(math.ceil(wait - 1e-6)))] if hint else []
        return Reply(429, anthropic_error(429, message), headers=headers)

    def used_up(self, model: str) -> Reply:  # noqa: ARG002
        message = "You have reached your enforced spend limit."
        return Reply(429, anthropic_error(429, message, code="enforced_spend_limit_reached"))

    def error_event(self) -> bytes:
        return b"event: error\ndata: " + anthropic_error(529, "Overloaded") + b"\n\n"

    def headers(self, identity: str, seconds: float) -> list[tuple[str, str]]:  # noqa: ARG002
        return [
            ("date", formatdate(usegmt=True)),
            ("request-id", f"req_{identity}"),
            ("anthropic-organization-id", "00000000-0000-4000-8000-000000000000"),
        ]

    def limit_headers(self, limits: Limits, now: float) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        levels = {level.what: level for level in limits.levels(now)}
        for what, level in levels.items():
            found += _limit(_NAMES[what], level)
        if "tokens" in levels and "output" in levels:
            inward, outward = levels["tokens"], levels["output"]
            total = Level(
                "tokens",
                inward.limit + outward.limit,
                inward.remaining + outward.remaining,
                max(inward.full_in, outward.full_in),
            )
            found += _limit("tokens", total)
        return found


class _Message(Task):
    """A message to be written."""

    def __init__(self, asking: Asking) -> None:
        self.model, self.prompt = asking.asked.model, asking.asked.prompt
        self.charge = asking.asked.input_tokens
        self._asking = asking

    def perform(self, settings: Settings, identity: str, *, refuse: bool) -> Done:
        asked = self._asking.asked
        try:
            answer = composed(settings, asked)
            whole = composed(settings, evolve(asked, stop=())) if asked.stop else answer
        except Refused:
            raise refused(400, "output_config.format.schema: Invalid schema") from None
        stopped = next((mark for mark in asked.stop if mark and mark in whole.text), None)
        message = _body(asked.model, asked.input_tokens, answer, identity)
        if answer.finish_reason == "length":
            message["stop_reason"] = "max_tokens"
        elif stopped is not None:
            message |= {"stop_reason": "stop_sequence", "stop_sequence": stopped}
        if refuse:
            answer = Composed("", "refusal", 0)
            message |= {"content": [], "stop_reason": "refusal"}
            message["stop_details"] = {"type": "refusal", "category": None, "explanation": None}
            message["usage"]["output_tokens"] = 0
        body = message_events(message) if asked.stream else json.dumps(message).encode()
        return Done(body, answer.tokens, asked.input_tokens + answer.tokens)


def _key(head: Head) -> str:
    """The key of a request, in its own header or as a bearer token; empty without either."""
    scheme, _, bearer = head.authorization.partition(" ")
    key = head.headers.get("x-api-key", "").strip()
    return key or (bearer.strip() if scheme.lower() == "bearer" else "")


def _body(model: str, input_tokens: int, answer: Composed, identity: str) -> dict[str, Any]:
    return {
        "id": f"msg_{identity}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": answer.text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "usage": {
            "input_tokens": input_tokens,
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


def _limit(name: str, level: Level) -> list[tuple[str, str]]:
    remaining = level.remaining
    if name != "requests" and level.limit >= _ROUNDED_FROM:
        remaining = round(remaining / 1000) * 1000
    moment = datetime.fromtimestamp(math.ceil(time.time() + level.full_in), UTC)
    return [
        (f"anthropic-ratelimit-{name}-limit", str(level.limit)),
        (f"anthropic-ratelimit-{name}-remaining", str(remaining)),
        (f"anthropic-ratelimit-{name}-reset", moment.strftime("%Y-%m-%dT%H:%M:%SZ")),
    ]
