"""Streamed answers of OpenAI's two generation APIs and of compatible servers.

A chat ends with ``[DONE]`` or, at servers that do not send it, with the body after a finish reason.
A response ends with one of three events that contain it. Any other end means that the stream was
truncated.

Source: OpenAI's OpenAPI document 2.3.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from smartbatch.providers.answer_parts import add_piece, has_value, joined, unmodelled
from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.foreign_text import fields
from smartbatch.providers.http.event_stream import EventReader
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.openai.answers import (
    KNOWN_IN_BODY,
    KNOWN_IN_CHOICE,
    KNOWN_IN_MESSAGE,
    REASONING,
    check_choice,
    cost_of,
    read_chat,
    read_response,
    text_of,
    usage_of,
)
from smartbatch.types import Answer


class ChatReader(EventReader):
    """Reads the chunks of a chat completion up to ``[DONE]``, which Perplexity omits."""

    to_the_end = True  # the usage comes after the finish reason

    def __init__(self, errors: ErrorReader) -> None:
        super().__init__(errors)
        self._body: dict[str, Any] = {}
        self._choice: dict[str, Any] = {}
        self._message: dict[str, Any] = {}
        self._calls: list[dict[str, Any]] = []
        self._open: dict[int | None, dict[str, Any]] = {}  # incomplete tool calls by index
        self._logprobs: list[Any] = []
        self._reason: Any = None
        self._choices = 0
        self._said = self._refused = False

    def is_end_mark(self, data: bytes) -> bool:
        return data.strip() == b"[DONE]"

    def take(self, data: Mapping[str, Any], name: str, head: Reply) -> str:  # noqa: ARG002
        for field in ("id", "model"):
            self._body[field] = self._body.get(field) or data.get(field)
        self._body |= unmodelled(data, KNOWN_IN_BODY)
        if usage := usage_of(data.get("usage")):
            self.usage, self._body["usage"] = usage, data["usage"]
        choices = data.get("choices")
        if not isinstance(choices, list) or not choices:
            return ""  # the usage chunk, or a proxy's keep-alive
        choice = choices[0]
        if not isinstance(choice, dict):
            raise self.errors.unusable(head, "shape", "a chunk of the stream has no choices[0]")
        check_choice(choice, head, self.usage, cost_of(self._body.get("usage")))
        self._choices += 1
        self._reason = choice.get("finish_reason") or self._reason
        self.ended = bool(self._reason)
        add_piece(self._choice, unmodelled(choice, KNOWN_IN_CHOICE))
        if isinstance(logprobs := fields(choice.get("logprobs")).get("content"), list):
            self._logprobs += logprobs
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return ""
        self._take_rest(delta)
        content, refusal = text_of(delta.get("content")) or "", text_of(delta.get("refusal")) or ""
        self._said = self._said or bool(content)
        self._refused = self._refused or bool(refusal)
        return content + refusal

    def _take_rest(self, delta: Mapping[str, Any]) -> None:
        """Add calls, reasoning and unmodelled fields, but not the text."""
        calls = delta.get("tool_calls")
        for item in calls if isinstance(calls, list) else ():
            if isinstance(item, dict):
                self._take_call(item)
        pieces = {name: delta[name] for name in (*REASONING, "function_call") if name in delta}
        content = delta.get("content")
        if isinstance(content, list):
            pieces["content"] = [part for part in content if fields(part).get("type") not in (None, "text")]
        add_piece(self._message, {**pieces, **unmodelled(delta, KNOWN_IN_MESSAGE)}, growing=True)

    def _take_call(self, item: dict[str, Any]) -> None:
        # Some servers send no index, or the same index for calls with different ids.
        identity, index = item.get("id"), item.get("index")
        call = self._open.get(index if isinstance(index, int) else None)
        if call is None or (identity and call.get("id") not in (None, identity)):
            call = {}
            self._calls.append(call)
        self._open[index if isinstance(index, int) else None] = call
        add_piece(call, {name: value for name, value in item.items() if has_value(value)}, growing=True)

    def finish(self, text: str, head: Reply) -> Answer:
        if not self._choices:
            raise self.errors.unusable(head, "shape", "the stream has no choices")
        message = {**joined(self._message), "tool_calls": [joined(call) for call in self._calls]}
        others = message.pop("content", None)
        choice = {
            **self._choice,
            "message": {**message, "content": [{"type": "text", "text": text}, *others] if others else text},
            "finish_reason": self._reason,
            "logprobs": {"content": self._logprobs},
        }
        answer = read_chat({**self._body, "choices": [choice]}, head)
        if self._refused and not self._said:
            answer = evolve(answer, finish_reason="refusal")
        return evolve(answer, usage=self.usage, dropped=self.dropped)

    def whole(self, data: Mapping[str, Any], reply: Reply) -> Answer:
        return evolve(read_chat(data, reply), dropped=self.dropped)


class ResponseReader(EventReader):
    """Reads the named events of a response; the last one contains it."""

    _answer: Answer | None = None

    def take(self, data: Mapping[str, Any], name: str, head: Reply) -> str:
        kind = data.get("type") or name
        if kind in ("response.output_text.delta", "response.refusal.delta"):
            return text_of(data.get("delta")) or ""
        if kind in ("response.completed", "response.incomplete", "response.failed"):
            response = data.get("response")
            if not isinstance(response, dict):
                raise self.errors.unusable(
                    head, "shape", "the last event of the stream has no response in it"
                )
            self._answer, self.ended = read_response(response, head), True
        return ""

    def finish(self, text: str, head: Reply) -> Answer:  # noqa: ARG002
        assert self._answer is not None  # a stream without an answer raises earlier
        return evolve(self._answer, text=text) if text else self._answer

    def whole(self, data: Mapping[str, Any], reply: Reply) -> Answer:
        return read_response(data, reply)
