"""Gemini's answers piece by piece: server-sent events without names and without an end mark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.gemini.answers import Gathered, read_answer
from smartbatch.providers.http.event_stream import EventReader
from smartbatch.providers.http.replies import Reply
from smartbatch.types import Answer


class ChunkReader(EventReader):
    """The chunks of ``:streamGenerateContent``; only a finish reason says that the answer is whole."""

    to_the_end = True

    def __init__(self, errors: ErrorReader) -> None:
        super().__init__(errors)
        self._gathered = Gathered()

    def take(self, data: Mapping[str, Any], name: str, head: Reply) -> str:  # noqa: ARG002
        text = self._gathered.add(data)
        self.usage, self.ended = self._gathered.usage, self._gathered.ended
        return text

    def finish(self, text: str, head: Reply) -> Answer:  # noqa: ARG002
        return self._gathered.answer

    def whole(self, data: Mapping[str, Any], reply: Reply) -> Answer:  # noqa: ARG002
        return read_answer(data)
