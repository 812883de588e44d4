"""Streamed chat completions and responses as server-sent events."""

from __future__ import annotations

import json
from typing import Any

from smartbatch.emulator.composed_answers import Completion, words_of
from smartbatch.emulator.openai.bodies import (
    chat_calls,
    chat_logprobs,
    chat_usage,
    response_body,
    response_message,
)
from smartbatch.emulator.parsed_requests import GenerationRequest


def chat_events(
    request: GenerationRequest, answer: Completion, *, identity: str, created: int
) -> list[bytes]:
    """Return a chat completion as events: role, pieces of text, finish reason, usage, ``[DONE]``."""
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
    """Return a response as named, numbered events; the last one carries the whole response."""
    whole = response_body(request, answer, identity=identity, created=created)
    started = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    if answer.calls:
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
