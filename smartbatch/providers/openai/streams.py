"""Streamed answers of OpenAI's two generation APIs, and of the servers that imitate them.

Source: OpenAI's OpenAPI document 2.3.0. A chat ends with ``[DONE]``, or, at servers that do not send it, with
the body after a finish reason; a response with one of three events that carry it whole. Anything else was cut
on its way, whatever the connection says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.http.event_stream import EventReader
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.openai.answers import check_choice, read_chat, read_response, text_of, usage_of
from smartbatch.types import Answer


class ChatReader(EventReader):
    """Chunks of a chat completion, and ``[DONE]``, which Perplexity leaves out."""

    to_the_end = True  # the usage comes after the finish reason

    def __init__(self, errors: ErrorReader) -> None:
        super().__init__(errors)
        self._model: Any = None
        self._reason: Any = None
        self._choices = 0
        self._said = self._refused = False

    def is_end_mark(self, data: bytes) -> bool:
        return data.strip() == b"[DONE]"

    def take(self, data: Mapping[str, Any], name: str, head: Reply) -> str:  # noqa: ARG002
        self._model = self._model or data.get("model")
        self.usage = usage_of(data.get("usage")) or self.usage
        choices = data.get("choices")
        if not isinstance(choices, list) or not choices:
            return ""  # the chunk of the usage, and what proxies send to keep a connection alive
        choice = choices[0]
        if not isinstance(choice, dict):
            raise self.errors.unusable(head, "shape", "a chunk of the stream has no choices[0]")
        check_choice(choice, head, self.usage)
        self._choices += 1
        self._reason = choice.get("finish_reason") or self._reason
        self.ended = bool(self._reason)
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return ""
        content, refusal = text_of(delta.get("content")) or "", text_of(delta.get("refusal")) or ""
        self._said = self._said or bool(content)
        self._refused = self._refused or bool(refusal)
        return content + refusal

    def finish(self, text: str, head: Reply) -> Answer:
        if not self._choices:
            raise self.errors.unusable(head, "shape", "the stream has no choices")
        message = {"content": text}
        choice = {"message": message, "finish_reason": self._reason}
        answer = read_chat({"choices": [choice], "model": self._model}, head)
        if self._refused and not self._said:
            answer = evolve(answer, finish_reason="refusal")
        return evolve(answer, usage=self.usage)

    def whole(self, data: Mapping[str, Any], reply: Reply) -> Answer:
        return read_chat(data, reply)


class ResponseReader(EventReader):
    """Named events of a response; the last one carries it whole."""

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
        assert self._answer is not None  # an end without it is an error
        return evolve(self._answer, text=text) if text else self._answer

    def whole(self, data: Mapping[str, Any], reply: Reply) -> Answer:
        return read_response(data, reply)
