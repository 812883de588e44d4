"""Anthropic's Messages API: messages, token counts, streams, errors and headers, without batches.

Source: the types of the ``anthropic`` SDK 2.11 and Anthropic's API reference of October 2026.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from attrs import evolve

from smartbatch.emulator.anthropic import batches, files
from smartbatch.emulator.anthropic.batches import SPEND_LIMIT_REACHED
from smartbatch.emulator.anthropic.caching import cacheable, check_marks
from smartbatch.emulator.anthropic.parsing import (
    api_error,
    error_body,
    parse_body,
    parse_messages,
    with_tools,
)
from smartbatch.emulator.anthropic.reasoning import with_thinking
from smartbatch.emulator.composed_answers import Completion, words_of
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.limits import Level, LimitExceeded, Limits, retry_after_seconds
from smartbatch.emulator.parsed_requests import (
    ApiError,
    GenerationRequest,
    InvalidSchema,
    ModelCall,
    ModelOutput,
    complete,
)
from smartbatch.emulator.prompt_caching import CacheablePrompt, PromptCaching
from smartbatch.emulator.prompt_files import FindUpload
from smartbatch.emulator.provider_api import Api, BatchContext, BatchEndpoint, Parse, ServerReply, json_reply
from smartbatch.emulator.settings import EmulatorSettings


def message_events(message: Mapping[str, Any]) -> list[bytes]:
    usage = message["usage"]
    start = {
        **message,
        "content": [],
        "stop_reason": None,
        "usage": {**usage, "output_tokens": min(1, usage["output_tokens"])},
    }
    steps: list[tuple[str, dict[str, Any]]] = [("message_start", {"message": start}), ("ping", {})]
    for index, block in enumerate(message["content"]):
        empty, deltas = _in_pieces(block)
        steps.append(("content_block_start", {"index": index, "content_block": empty}))
        steps += [("content_block_delta", {"index": index, "delta": delta}) for delta in deltas]
        steps.append(("content_block_stop", {"index": index}))
    end = {name: message[name] for name in ("stop_reason", "stop_sequence", "stop_details")}
    steps += [
        ("message_delta", {"delta": end, "usage": {"output_tokens": usage["output_tokens"]}}),
        ("message_stop", {}),
    ]
    # The service does not escape characters; U+2028 does not end a line of an event.
    return [
        f"event: {name}\ndata: {json.dumps({'type': name, **fields}, ensure_ascii=False)}\n\n".encode(
            errors="replace"
        )
        for name, fields in steps
    ]


def _in_pieces(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the empty block that starts a content block, and its deltas."""
    match block["type"]:
        case "tool_use":
            text = json.dumps(block["input"])
            halves = ("", text[: len(text) // 2], text[len(text) // 2 :])
            return {**block, "input": {}}, [
                {"type": "input_json_delta", "partial_json": half} for half in halves
            ]
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in words_of(block["thinking"])]
            signature = {"type": "signature_delta", "signature": block["signature"]}
            return {**block, "thinking": "", "signature": ""}, [*deltas, signature]
    return {"type": "text", "text": ""}, [
        {"type": "text_delta", "text": piece} for piece in words_of(block["text"])
    ]


def parse_message(head: Head, fields: Mapping[str, Any], find: FindUpload) -> ModelCall:
    request = with_thinking(with_tools(parse_messages(head, fields, find), fields), fields)
    check_marks(fields)
    return _MessageCall(request, fields)


class _MessageCall(ModelCall):
    def __init__(self, request: GenerationRequest, fields: Mapping[str, Any]) -> None:
        self.model, self.prompt = request.model, request.identity
        self.has_uploads = request.has_uploads
        self._request = request
        self._fields = fields

    @property
    def charge(self) -> int:  # type: ignore[override]
        """Tokens read from the cache do not count."""
        return self._request.input_tokens - self.cache.read

    def cacheable(self, settings: PromptCaching) -> CacheablePrompt:
        return cacheable(self._fields, settings)

    def run(self, settings: EmulatorSettings, identity: str, *, refuse: bool) -> ModelOutput:
        request = self._request.with_cache(self.cache)
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
    cache = request.cache
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
            "input_tokens": request.input_tokens - cache.read - cache.written,
            "cache_creation_input_tokens": cache.written,
            "cache_read_input_tokens": cache.read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": cache.written - cache.written_1h,
                "ephemeral_1h_input_tokens": cache.written_1h,
            },
            "output_tokens": answer.tokens,
            "output_tokens_details": {"thinking_tokens": answer.reasoning_tokens},
            "server_tool_use": None,
            "service_tier": "standard",
            "speed": "standard",
            "inference_geo": None,
        },
    }


# from this limit on, the service rounds remaining tokens to thousands
_ROUNDED_FROM = 20_000
_NAMES = {"requests": "requests", "tokens": "input-tokens", "output": "output-tokens"}


class AnthropicApi(Api):
    max_body = 32 * 2**20

    def serves(self, head: Head) -> bool:
        if head.path == "/v1/files" or head.path.startswith("/v1/files/"):  # OpenAI's API has them, too
            return "anthropic-version" in head.headers
        return head.path == "/v1/messages" or head.path.startswith("/v1/messages/")

    def check_key(self, head: Head, settings: EmulatorSettings) -> None:
        key = _key(head)
        if not key:
            raise api_error(401, "x-api-key header is required")
        if settings.keys is not None and key not in settings.keys:
            raise api_error(401, "invalid x-api-key")

    def account(self, head: Head) -> tuple[str, str]:
        return batches.API_NAME, _key(head)

    def batch_endpoint(self, head: Head) -> BatchEndpoint | None:
        if files.PATH.fullmatch(head.path):
            return self._answer_files
        return self._answer_batch if batches.is_about_batches(head) else None

    def _answer_files(self, head: Head, body: bytes, context: BatchContext) -> ServerReply:
        self.check_key(head, context.settings)
        return files.answer(head, body, context, key=_key(head))

    def _answer_batch(self, head: Head, body: bytes, context: BatchContext) -> ServerReply:
        self.check_key(head, context.settings)
        find = context.find_upload(*self.account(head))

        def parse(head: Head, fields: Mapping[str, Any]) -> ModelCall:
            message = parse_message(head, fields, find)
            self.check_model(message.model, context.settings)
            return message

        return batches.answer(head, body, context, key=_key(head), parse=parse)

    def find(self, head: Head, body: bytes, context: BatchContext) -> Parse | ServerReply:
        if head.path not in ("/v1/messages", "/v1/messages/count_tokens"):
            raise api_error(404, "Not found")
        if head.method != "POST":
            raise api_error(405, "Method Not Allowed")
        find = context.find_upload(*self.account(head))
        if head.path == "/v1/messages":
            return lambda head, fields: parse_message(head, fields, find)
        request = parse_messages(head, self.parse_body(body), find, counting=True)
        self.check_model(request.model, context.settings)
        return json_reply({"input_tokens": request.input_tokens})

    def too_large(self, limit: int) -> ApiError:  # noqa: ARG002
        return api_error(413, "Request exceeds the maximum size")

    def parse_body(self, body: bytes) -> dict[str, Any]:
        return parse_body(body)

    def check_model(self, model: str, settings: EmulatorSettings) -> None:
        if settings.models is not None and model not in settings.models:
            raise api_error(404, f"model: {model}")

    def overloaded(self) -> ServerReply:
        return ServerReply(529, error_body(529, "Overloaded"))

    def internal_error(self) -> ServerReply:
        return ServerReply(500, error_body(500, "Internal server error"))

    def rate_limited(self, exceeded: LimitExceeded, model: str, *, hint: bool) -> ServerReply:
        name = _NAMES[exceeded.what].replace("-", " ")
        message = (
            f"This request would exceed your organization's rate limit of {exceeded.limit:,} {name} "
            f"per minute (model: {model})."
        )
        headers = [("retry-after", retry_after_seconds(exceeded.wait))] if hint else []
        return ServerReply(429, error_body(429, message), headers=headers)

    def quota_exhausted(self, model: str) -> ServerReply:  # noqa: ARG002
        return ServerReply(429, SPEND_LIMIT_REACHED)

    def unsupported_tier(self, model: str) -> ApiError:
        return api_error(400, f"service_tier: flex is not supported for {model}")

    def error_event(self) -> bytes:
        return b"event: error\ndata: " + error_body(529, "Overloaded") + b"\n\n"

    def headers(self, identity: str, seconds: float) -> list[tuple[str, str]]:  # noqa: ARG002
        return [
            ("request-id", f"req_{identity}"),
            ("anthropic-organization-id", "00000000-0000-4000-8000-000000000000"),
        ]

    def limit_headers(self, limits: Limits, now: float) -> list[tuple[str, str]]:
        headers: list[tuple[str, str]] = []
        levels = {level.what: level for level in limits.levels(now)}
        for what, level in levels.items():
            headers += _limit(_NAMES[what], level)
        if "tokens" in levels and "output" in levels:
            input_level, output_level = levels["tokens"], levels["output"]
            total = Level(
                "tokens",
                input_level.limit + output_level.limit,
                input_level.remaining + output_level.remaining,
                max(input_level.full_in, output_level.full_in),
            )
            headers += _limit("tokens", total)
        return headers


def _key(head: Head) -> str:
    scheme, _, bearer = head.authorization.partition(" ")
    key = head.headers.get("x-api-key", "").strip()
    return key or (bearer.strip() if scheme.lower() == "bearer" else "")


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
