"""Answers, streams and errors of the three APIs as they come over the wire."""

from __future__ import annotations

import base64
from array import array
from typing import Any

PROMPT = "What is the capital of Peru, and why is it there?"
KEY = "sk-canary-1234567890abcdef"

COUNTED = {
    "prompt_tokens": 31,
    "completion_tokens": 78,
    "total_tokens": 109,
    "prompt_tokens_details": {"cached_tokens": 5, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 64, "accepted_prediction_tokens": 0},
}


def chat(message: dict[str, Any], finish: str = "stop") -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", **message},
        "logprobs": None,
        "finish_reason": finish,
    }
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": "gpt-5-mini-2026-01-01",
        "choices": [choice],
        "usage": COUNTED,
        "service_tier": "default",
    }


TOOL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"city": "Lima"}'}}
CHATS = [
    chat({"content": "Lima", "refusal": None, "annotations": []}),
    chat({"content": None, "refusal": "I cannot help with that."}),
    chat({"content": [{"type": "text", "text": "Li"}, {"type": "text", "text": "ma"}]}, "length"),
    chat({"content": None, "tool_calls": [TOOL]}, "tool_calls"),
    {"error": {"message": "Provider returned error", "code": 502, "metadata": {"raw": "oops"}}},
]


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "model": "gpt-5-mini-2026-01-01",
        "choices": [choice],
        "usage": None,
    }


USED = {"id": "chatcmpl-1", "model": "gpt-5-mini", "choices": [], "usage": COUNTED}
CHAT_STREAMS = [
    [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Li"}),
        chunk({"content": "ma\u2028"}),
        chunk({}, "stop"),
        USED,
    ],
    [chunk({"role": "assistant", "refusal": "I can"}), chunk({"refusal": "not."}), chunk({}, "stop"), USED],
    [chunk({"content": "Li"}), {"error": {"message": "overloaded", "type": "server_error", "code": None}}],
]

PART = {"type": "output_text", "text": "Lima", "annotations": []}


def response(status: str = "completed", **changes: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": "gpt-5-mini-2026-01-01",
        "output": [
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [PART]},
        ],
        "usage": {
            "input_tokens": 31,
            "input_tokens_details": {"cached_tokens": 2},
            "output_tokens": 78,
            "output_tokens_details": {"reasoning_tokens": 64},
            "total_tokens": 109,
        },
        **changes,
    }


FAILED = response("failed", error={"code": "server_error", "message": "The model failed."}, output=[])
RESPONSES = [
    response(),
    response("incomplete", incomplete_details={"reason": "max_output_tokens"}),
    FAILED,
    response(output=[{"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}]),
    response(output=[{"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}]),
]
RESPONSE_STREAMS = [
    [
        {"type": "response.created", "response": response("in_progress", output=[])},
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "content": []}},
        {"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "delta": "Li"},
        {"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "delta": "ma"},
        {"type": "response.output_text.done", "item_id": "msg_1", "text": "Lima"},
        {"type": "response.completed", "response": response()},
    ],
    [{"type": "response.output_text.delta", "delta": "Li"}, {"type": "response.failed", "response": FAILED}],
    [
        {"type": "response.created", "response": response("in_progress", output=[])},
        {"type": "error", "code": "rate_limit_exceeded", "message": "Slow down", "param": None},
    ],
]

_NUMBERS = array("f", [0.25, -0.5, 1.0])
_BASE64 = base64.b64encode(_NUMBERS.tobytes()).decode()
EMBEDDINGS = [
    {
        "object": "list",
        "model": "text-embedding-3-small",
        "data": [{"object": "embedding", "index": at, "embedding": _BASE64} for at in range(3)],
        "usage": {"prompt_tokens": 12, "total_tokens": 12},
    },
    {
        "data": [{"index": at, "embedding": [0.5, -1, 0]} for at in (2, 0, 1)],
        "model": "local",
        "usage": {"prompt_tokens": 7},
    },
]


def error(message: str, type_: str, code: Any = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": type_, "param": None, "code": code}}


ERRORS = [
    error(f"Incorrect API key provided: {KEY}.", "invalid_request_error"),
    error("Rate limit reached. Please try again in 1m2.5s.", "tokens", "rate_limit_exceeded"),
    error("You exceeded your current quota", "insufficient_quota", "insufficient_quota"),
    error(f"Invalid prompt: {PROMPT}", "invalid_request_error", 400),
    {"error": "model not loaded"},
    {"object": "error", "message": "maximum context length is 4096 tokens", "type": "BadRequestError"},
    [{"error": {"code": 429, "message": "Resource exhausted", "status": "RESOURCE_EXHAUSTED"}}],
]

GEMINI_USED = {
    "promptTokenCount": 31,
    "cachedContentTokenCount": 5,
    "candidatesTokenCount": 14,
    "thoughtsTokenCount": 64,
    "toolUsePromptTokenCount": 2,
    "totalTokenCount": 116,
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 31}],
}


def gemini(*parts: dict[str, Any], finish: str | None = "STOP", **changes: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": list(parts)}}
    if finish:
        candidate["finishReason"] = finish
    return {
        "candidates": [candidate],
        "usageMetadata": GEMINI_USED,
        "modelVersion": "gemini-3.8-flash-001",
        "responseId": "r-1",
        **changes,
    }


GEMINIS = [
    gemini({"text": "hm", "thought": True}, {"text": "Lima"}),
    gemini({"functionCall": {"name": "look", "args": {}}}),
    gemini({"text": "Li"}, finish="MAX_TOKENS"),
    {"promptFeedback": {"blockReason": "SAFETY", "safetyRatings": []}, "usageMetadata": GEMINI_USED},
]
GEMINI_STREAMS = [
    [gemini({"text": "Li"}, finish=None), gemini({"text": "ma"}, finish=None), gemini({"text": ""})],
    [{"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 4}}],
    [gemini({"text": "Li"}, finish=None), {"error": {"code": 503, "message": "high demand"}}],
]
GEMINI_EMBEDDINGS = [
    {"embeddings": [{"values": [0.25, -0.5, 1.0]} for _ in range(3)]},
    {"embeddings": [{"values": [1, 2, 3]} for _ in range(3)], "usageMetadata": {"promptTokenCount": 9}},
]
_RPC = "type.googleapis.com/google.rpc."
GEMINI_ERRORS = [
    {
        "error": {
            "code": 429,
            "status": "RESOURCE_EXHAUSTED",
            "message": "You exceeded your current quota.",
            "details": [
                {
                    "@type": f"{_RPC}QuotaFailure",
                    "violations": [
                        {
                            "quotaMetric": "generativelanguage.googleapis.com/free_tier_requests",
                            "quotaId": "GenerateRequestsPerMinutePerProjectPerModel-FreeTier",
                            "quotaDimensions": {"model": "gemini-3.8-flash", "location": "global"},
                            "quotaValue": "15",
                        },
                        {"quotaId": "GenerateContentInputTokensPerModelPerMinute", "quotaValue": "250000"},
                    ],
                },
                {
                    "@type": f"{_RPC}Help",
                    "links": [{"description": "Learn more", "url": "https://ai.google.dev"}],
                },
                {"@type": f"{_RPC}RetryInfo", "retryDelay": {"seconds": 41, "nanos": 500}},
            ],
        }
    },
    {
        "error": {
            "code": 400,
            "status": "INVALID_ARGUMENT",
            "message": "API key not valid. Please pass a valid API key.",
            "details": [
                {"@type": f"{_RPC}ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"},
                {"@type": f"{_RPC}RetryInfo", "retryDelay": "41.5s"},
            ],
        }
    },
    [{"error": {"code": 503, "status": "UNAVAILABLE", "message": f"overloaded with {PROMPT}"}}],
]


def claude(text: str | None = "Lima", **changes: Any) -> dict[str, Any]:
    blocks = [] if text is None else [{"type": "text", "text": text}]
    usage = {
        "input_tokens": 31,
        "cache_read_input_tokens": 9,
        "output_tokens": 14,
        "service_tier": "standard",
    }
    told = {"id": "msg_1", "type": "message", "model": "claude-haiku-5-5", "content": blocks, "usage": usage}
    return {**told, "stop_reason": "end_turn", **changes}


def claude_error(kind: str, text: str = "no", **more: Any) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": text, **more}, "request_id": "req_1"}


def said(text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}


MESSAGES = [
    claude(),
    claude(None, stop_reason="refusal"),
    claude(content=[{"type": "thinking", "thinking": "…"}, {"type": "text", "text": "Li"}]),
    claude_error("overloaded_error"),
]
ANTHROPIC_ERRORS = [
    claude_error("rate_limit_error", "slow down"),
    claude_error("invalid_request_error", "prompt is too long: 210000 tokens"),
    claude_error("billing_error", details={"error_code": "credit_balance_exhausted"}),
    {"error": "a gateway's own text"},
]
_BEGIN = [
    {"type": "message_start", "message": claude(None, stop_reason=None)},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
]
MESSAGE_STREAMS = [
    [
        *(*_BEGIN, said("Li"), said("ma\u2028"), {"type": "content_block_stop", "index": 0}),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 14}},
        {"type": "message_stop"},
    ],
    [*_BEGIN, said("Li"), claude_error("api_error")],
]
