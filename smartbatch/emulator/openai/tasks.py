"""What OpenAI's API is asked to do, in real time or in a batch: completions, responses and embeddings."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from smartbatch.emulator.composed_answers import Composed, compose
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.openai import bodies, streams
from smartbatch.emulator.openai.embeddings import parse_embeddings
from smartbatch.emulator.openai.parsing import Asked, Refused, parse_chat, parse_responses
from smartbatch.emulator.provider_api import Done, Parse, Task
from smartbatch.emulator.settings import Settings

__all__ = ["TASKS", "composed"]


class _Generation(Task):
    """A chat completion or a response.

    Args:
        asked: what is asked for.
        whole: makes the body of an answer.
        events: makes the events of a stream.
    """

    def __init__(
        self, asked: Asked, whole: Callable[..., dict[str, Any]], events: Callable[..., list[bytes]]
    ) -> None:
        self.model, self.prompt, self.charge = asked.model, asked.prompt, asked.charge
        self.tier = asked.tier
        self._asked = asked
        self._whole = whole
        self._events = events

    @property
    def prompt_tokens(self) -> int:
        return self._asked.input_tokens

    def perform(self, settings: Settings, identity: str, *, refuse: bool) -> Done:
        asked = self._asked
        answer = composed(settings, asked)
        if refuse:
            answer = Composed("I can't help with that.", "content_filter", 6)
        created = int(time.time())
        body: bytes | list[bytes]
        if asked.stream:
            body = self._events(asked, answer, identity=identity, created=created)
        else:
            made = self._whole(asked, answer, identity=identity, created=created)
            if refuse:
                _refuse(made, answer.text)
            body = json.dumps(made).encode()
        return Done(body, answer.tokens, asked.input_tokens + answer.tokens * asked.choices)


def composed(settings: Settings, asked: Asked) -> Composed:
    """Return the answer to a generation of any API.

    Raises:
        Refused: for a schema that cannot be followed.
    """
    try:
        return compose(
            asked.prompt,
            asked.model,
            seed=settings.seed,
            answers=settings.answers,
            max_tokens=asked.max_tokens,
            stop=asked.stop,
            form=asked.form,
        )
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        if asked.form is None:
            raise
        raise Refused(400, "Invalid schema for response_format.", param="response_format") from error


def _refuse(made: dict[str, Any], text: str) -> None:
    """Say in an answer what models say who refuse: a text beside the content, and no content."""
    for choice in made.get("choices", ()):
        choice["finish_reason"] = "stop"
        choice["message"] |= {"content": None, "refusal": text}
    for message in made.get("output", ()):
        message["content"] = [{"type": "refusal", "refusal": text}]


def _chat(_head: Head, body: Mapping[str, Any]) -> Task:
    return _Generation(parse_chat(body), bodies.chat_body, streams.chat_events)


def _response(_head: Head, body: Mapping[str, Any]) -> Task:
    return _Generation(parse_responses(body), bodies.response_body, streams.response_events)


TASKS: dict[str, Parse] = {
    "/v1/chat/completions": _chat,
    "/v1/responses": _response,
    "/v1/embeddings": parse_embeddings,
}
"""By the paths of real-time calls, and by the endpoints of batches."""
