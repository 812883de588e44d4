"""A streamed answer of Anthropic's Messages API; of its named events only ``message_stop`` ends it well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smartbatch.providers.anthropic.answers import answer_of, usage_of
from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.http.event_stream import EventReader
from smartbatch.providers.http.replies import Reply
from smartbatch.types import Answer


class MessageReader(EventReader):
    """The events of a message; ``dropped`` parameters of the request were left out."""

    def __init__(self, errors: ErrorReader, dropped: tuple[tuple[str, str], ...]) -> None:
        super().__init__(errors)
        self._dropped = dropped
        self._counted: dict[str, Any] = {}
        self._model: Any = None
        self._reason: Any = None

    def take(self, data: Mapping[str, Any], name: str, head: Reply) -> str:  # noqa: ARG002
        match name:
            case "content_block_delta":
                return _text_in(data.get("delta"), "text_delta")
            case "content_block_start":
                return _text_in(data.get("content_block"), "text")
            case "message_start":
                message = data.get("message")
                if isinstance(message, Mapping):
                    self._model = message.get("model")
                    self._count(message.get("usage"))
            case "message_delta":
                delta = data.get("delta")
                if isinstance(delta, Mapping):
                    self._reason = delta.get("stop_reason") or self._reason
                self._count(data.get("usage"))
            case "message_stop":
                self.ended = True
        return ""  # pings and whatever may be added one day

    def finish(self, text: str, head: Reply) -> Answer:
        return answer_of(head, text, self._model, self._reason, self.usage, self._dropped)

    def _count(self, usage: Any) -> None:
        """Counters are cumulative; a later event repeats only some of them."""
        if isinstance(usage, Mapping):
            self._counted.update({name: value for name, value in usage.items() if value is not None})
            self.usage = usage_of(self._counted)


def _text_in(block: Any, kind: str) -> str:
    found = block.get("text") if isinstance(block, Mapping) and block.get("type") == kind else None
    return found if isinstance(found, str) else ""
