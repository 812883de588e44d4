"""A streamed answer of Anthropic's Messages API; of its named events only ``message_stop`` ends it well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from smartbatch.providers.answer_parts import add_piece, decoded_arguments, joined
from smartbatch.providers.anthropic.answers import read_message, usage_of
from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.foreign_text import fields
from smartbatch.providers.http.event_stream import EventReader
from smartbatch.providers.http.replies import Reply
from smartbatch.types import Answer


class MessageReader(EventReader):
    """The events of a message; ``dropped`` parameters of the request were left out."""

    def __init__(self, errors: ErrorReader, dropped: tuple[tuple[str, str], ...]) -> None:
        super().__init__(errors)
        self._dropped = dropped
        self._counted: dict[str, Any] = {}
        self._message: dict[str, Any] = {}
        self._blocks: dict[Any, dict[str, Any]] = {}

    def take(self, data: Mapping[str, Any], name: str, head: Reply) -> str:  # noqa: ARG002
        match name:
            case "content_block_delta":
                return self._continue(data.get("index"), fields(data.get("delta")))
            case "content_block_start":
                return self._begin(data.get("index"), fields(data.get("content_block")))
            case "message_start":
                self._message |= fields(data.get("message"))
                self._count(self._message.get("usage"))
            case "message_delta":
                delta = fields(data.get("delta"))
                self._message |= {field: value for field, value in delta.items() if value is not None}
                self._count(data.get("usage"))
            case "message_stop":
                self.ended = True
        return ""  # pings and whatever may be added one day

    def finish(self, text: str, head: Reply) -> Answer:
        blocks = [_whole(joined(block)) for block in self._blocks.values()]
        message = {**self._message, "type": "message", "content": blocks, "usage": self._counted}
        return evolve(read_message(message, head, self._dropped), text=text)

    def _begin(self, index: Any, block: Mapping[str, Any]) -> str:
        begun = self._blocks.setdefault(index if isinstance(index, int) else None, {})
        add_piece(begun, block, growing=True)
        return _text(block) if block.get("type") == "text" else ""

    def _continue(self, index: Any, delta: Mapping[str, Any]) -> str:
        """Enter a delta: a piece of the block's text, thinking, signature or input, or a citation."""
        block = self._blocks.setdefault(index if isinstance(index, int) else None, {})
        kind = delta.get("type")
        if kind == "citations_delta":
            citations = block.get("citations")
            block["citations"] = citations if isinstance(citations, list) else []
            block["citations"].append(delta.get("citation"))
            return ""
        if kind == "text_delta":
            block.setdefault("type", "text")
        add_piece(block, {name: value for name, value in delta.items() if name != "type"}, growing=True)
        return _text(delta) if kind == "text_delta" else ""

    def _count(self, usage: Any) -> None:
        """Counters are cumulative; a later event repeats only some of them."""
        if isinstance(usage, Mapping):
            self._counted.update({name: value for name, value in usage.items() if value is not None})
            self.usage = usage_of(self._counted)


def _text(block: Mapping[str, Any]) -> str:
    found = block.get("text")
    return found if isinstance(found, str) else ""


def _whole(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block with its input, which comes as pieces of JSON; one that was cut stays a text."""
    if pieces := block.pop("partial_json", None):
        decoded = decoded_arguments(pieces)
        block["input"] = pieces if decoded is None else decoded
    return block
