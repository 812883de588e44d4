"""Response bodies and stream events of OpenAI's real-time API."""

from __future__ import annotations

import base64
import json
from typing import Any

from smartbatch.emulator.composed_answers import Completion, logprobs_of, words_of
from smartbatch.emulator.limits import LimitExceeded, go_duration
from smartbatch.emulator.openai.parsing import error_body
from smartbatch.emulator.parsed_requests import GenerationRequest

_DEFAULT_MODELS = ("gpt-5", "gpt-5-mini", "gpt-5-nano")
# the body of a 429 when the credit is used up, in real time and in batch lines
INSUFFICIENT_QUOTA = error_body(
    "You exceeded your current quota, please check your plan and billing details.",
    type_="insufficient_quota",
    code="insufficient_quota",
)


def limit_error(exceeded: LimitExceeded, model: str) -> bytes:
    unit = "requests per min (RPM)" if exceeded.what == "requests" else "tokens per min (TPM)"
    if exceeded.wait is None:
        message = (
            f"Request too large for {model} on {unit}: Limit {exceeded.limit}, "
            f"Requested {exceeded.requested}. "
            "The input or output tokens must be reduced in order to run successfully."
        )
    else:
        message = (
            f"Rate limit reached for {model} on {unit}: Limit {exceeded.limit}, Used {exceeded.used}, "
            f"Requested {exceeded.requested}. Please try again in {go_duration(exceeded.wait)}."
        )
    return error_body(message, type_=exceeded.what, code="rate_limit_exceeded")


def chat_body(
    request: GenerationRequest, answer: Completion, *, identity: str, created: int
) -> dict[str, Any]:
    choices: list[dict[str, Any]] = [
        {
            "index": number,
            "finish_reason": answer.finish_reason,
            "logprobs": chat_logprobs(request, answer),
            "message": {
                "role": "assistant",
                "content": None if answer.calls else answer.text,
                "refusal": None,
                "annotations": [],
                **({"reasoning": answer.reasoning} if answer.reasoning else {}),
                **({"tool_calls": chat_calls(answer, identity)} if answer.calls else {}),
            },
        }
        for number in range(request.choices)
    ]
    return {
        "id": f"chatcmpl-{identity}",
        "object": "chat.completion",
        "created": created,
        "model": request.model,
        "choices": choices,
        "usage": chat_usage(request, answer),
        "service_tier": request.tier,
        "system_fingerprint": "fp_emulator",
    }


def chat_calls(answer: Completion, identity: str) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{identity}_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for number, call in enumerate(answer.calls)
    ]


def chat_logprobs(request: GenerationRequest, answer: Completion) -> dict[str, Any] | None:
    if request.logprobs is None:
        return None
    return {"content": logprobs_of(words_of(answer.text), request.logprobs), "refusal": None}


def chat_usage(request: GenerationRequest, answer: Completion) -> dict[str, Any]:
    output = answer.tokens * request.choices
    return {
        "prompt_tokens": request.input_tokens,
        "completion_tokens": output,
        "total_tokens": request.input_tokens + output,
        "prompt_tokens_details": {
            **_cache_usage(request),
            "audio_tokens": request.file_tokens.get("audio", 0),
        },
        "completion_tokens_details": {
            "reasoning_tokens": answer.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _cache_usage(request: GenerationRequest) -> dict[str, int]:
    return {"cached_tokens": request.cache.read, "cache_write_tokens": request.cache.written}


def response_body(
    request: GenerationRequest, answer: Completion, *, identity: str, created: int
) -> dict[str, Any]:
    cut = answer.finish_reason == "length"
    return {
        "id": f"resp_{identity}",
        "object": "response",
        "created_at": created,
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": None,
        "metadata": {},
        "model": request.model,
        "output": response_output(request, answer, identity),
        "parallel_tool_calls": True,
        "service_tier": request.tier,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {
            "input_tokens": request.input_tokens,
            "input_tokens_details": _cache_usage(request),
            "output_tokens": answer.tokens,
            "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
            "total_tokens": request.input_tokens + answer.tokens,
        },
    }


def response_output(request: GenerationRequest, answer: Completion, identity: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if answer.reasoning:
        summary = [{"type": "summary_text", "text": answer.reasoning}]
        items.append({"type": "reasoning", "id": f"rs_{identity}", "summary": summary})
    if answer.picture:
        data = base64.b64encode(answer.picture).decode()
        return [
            *items,
            {
                "type": "image_generation_call",
                "id": f"ig_{identity}",
                "status": "completed",
                "output_format": "png",
                "revised_prompt": request.prompt,
                "result": data,
            },
        ]
    if not answer.calls:
        return [*items, response_message(answer, identity, request.logprobs)]
    for number, call in enumerate(answer.calls):
        names = {"id": f"fc_{identity}_{number}", "call_id": f"call_{identity}_{number}", "name": call.name}
        function = {"type": "function_call", "status": "completed", "arguments": json.dumps(call.arguments)}
        items.append({**function, **names})
    return items


def response_message(answer: Completion, identity: str, logprobs: int | None = None) -> dict[str, Any]:
    found = [] if logprobs is None else logprobs_of(words_of(answer.text), logprobs)
    return {
        "type": "message",
        "id": f"msg_{identity}",
        "status": "incomplete" if answer.finish_reason == "length" else "completed",
        "role": "assistant",
        "content": [
            {"type": "output_text", "text": answer.text, "annotations": []}
            | ({"logprobs": found} if found else {})
        ],
    }


def models_body(models: tuple[str, ...] | None) -> dict[str, Any]:
    return {"object": "list", "data": [model_body(name) for name in models or _DEFAULT_MODELS]}


def model_body(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 1_795_000_000, "owned_by": "emulator"}


def chat_events(
    request: GenerationRequest, answer: Completion, *, identity: str, created: int
) -> list[bytes]:
    """Return a chat completion as events: role, chunks of text, finish reason, usage, ``[DONE]``."""
    frame: dict[str, Any] = {
        "id": f"chatcmpl-{identity}",
        "object": "chat.completion.chunk",
        "created": created,
        "model": request.model,
    }
    if request.include_usage:
        frame["usage"] = None

    def event(number: int, delta: dict[str, Any], finish: str | None = None, logprobs: Any = None) -> bytes:
        choice = {"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return _data({**frame, "choices": [choice]})

    choices = range(request.choices)
    events = [event(number, {"role": "assistant", "content": ""}) for number in choices]
    for piece in words_of(answer.reasoning):
        events += [event(number, {"reasoning": piece}) for number in choices]
    said = (chat_logprobs(request, answer) or {}).get("content")
    for place, piece in enumerate(words_of(answer.text)):
        found = {"content": said[place : place + 1], "refusal": None} if said else None
        events += [event(number, {"content": piece}, logprobs=found) for number in choices]
    for index, call in enumerate(chat_calls(answer, identity)):
        arguments = call["function"]["arguments"]
        begun = {**call, "index": index, "function": {**call["function"], "arguments": ""}}
        events += [event(number, {"tool_calls": [begun]}) for number in choices]
        for piece in (arguments[: len(arguments) // 2], arguments[len(arguments) // 2 :]):
            delta = {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            events += [event(number, delta) for number in choices]
    events += [event(number, {}, answer.finish_reason) for number in choices]
    if request.include_usage:
        events.append(_data({**frame, "choices": [], "usage": chat_usage(request, answer)}))
    return [*events, b"data: [DONE]\n\n"]


def response_events(
    request: GenerationRequest, answer: Completion, *, identity: str, created: int
) -> list[bytes]:
    """Return a response as named, numbered events. The last one contains the whole response."""
    whole = response_body(request, answer, identity=identity, created=created)
    started = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    if answer.calls or answer.picture:
        done = (f"response.{whole['status']}", {"response": whole})
        return _numbered([("response.created", {"response": started}), done])
    message = response_message(answer, identity, request.logprobs)
    part = message["content"][0]
    place = {"item_id": message["id"], "output_index": 0, "content_index": 0}
    empty = {**message, "status": "in_progress", "content": []}
    steps: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": started}),
        ("response.in_progress", {"response": started}),
        ("response.output_item.added", {"output_index": 0, "item": empty}),
        ("response.content_part.added", {**place, "part": {**part, "text": ""}}),
    ]
    steps += [
        ("response.output_text.delta", {**place, "delta": piece, "logprobs": []})
        for piece in words_of(answer.text)
    ]
    steps += [
        ("response.output_text.done", {**place, "text": answer.text, "logprobs": []}),
        ("response.content_part.done", {**place, "part": part}),
        ("response.output_item.done", {"output_index": 0, "item": message}),
        (f"response.{whole['status']}", {"response": whole}),
    ]
    return _numbered(steps)


def _numbered(steps: list[tuple[str, dict[str, Any]]]) -> list[bytes]:
    return [
        f"event: {name}\n".encode() + _data({"type": name, "sequence_number": number, **fields})
        for number, (name, fields) in enumerate(steps)
    ]


def _data(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"
