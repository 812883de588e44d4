"""A streamed answer of Anthropic's Messages API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.anthropic.answers import finish_of, usage_of
from smartbatch.providers.anthropic.errors import limits_of, read_error, request_id_of, unusable
from smartbatch.providers.base import AnswerStream
from smartbatch.providers.foreign_text import PLAIN_ID, short, sound
from smartbatch.providers.http.live_reply import LiveReply
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.http.sse import events
from smartbatch.types import Answer, Request

__all__ = ["MessageStream"]


class MessageStream(AnswerStream):
    """The pieces of a message; only ``message_stop`` ends it well.

    Args:
        live: the answer, its head read.
        request: whose texts must not come back in an error.
        dropped: parameters that were left out.
        secrets: further texts that must not come back.
    """

    def __init__(
        self, live: LiveReply, request: Request, dropped: tuple[tuple[str, str], ...], *secrets: str
    ) -> None:
        self._live = live
        self._request = request
        self._dropped = dropped
        self._secrets = secrets
        self._head = Reply(live.status, live.headers, b"")
        self._texts: list[str] = []
        self._usage: dict[str, Any] = {}
        self._model: Any = None
        self._reason: Any = None
        self._answer: Answer | None = None

    def __iter__(self) -> Iterator[str]:
        """Yield pieces of text as they come.

        Raises:
            ProviderError: for an error event, a stall beyond the deadline, a cut, an end without
                ``message_stop``; ``usage`` says what was counted until then.
        """
        try:
            kind = self._head.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):
                raise unusable(self._head, "shape", "the answer is no stream of events; check the base URL")
            for event in events(self._live):
                data = self._decode(event.data)
                if text := self._take(event.name or str(data.get("type", "")), data):
                    yield text
                if self._answer is not None:
                    self._live.drain()
                    return
            raise self._broken("cut", "the stream ended before the message did")
        except ProviderError as error:
            error.usage = error.usage or usage_of(self._usage)
            error.provider_request_id = error.provider_request_id or request_id_of(self._head)
            raise
        finally:
            self._live.close()

    def close(self) -> None:
        """Close the connection; an iteration under way ends soon, with an error."""
        self._live.close()

    @property
    def answer(self) -> Answer:
        """The whole answer, once the iteration has ended.

        Raises:
            RuntimeError: before that.
        """
        if self._answer is None:
            raise RuntimeError("the stream has not ended: iterate it first")
        return self._answer

    def _take(self, name: str, data: Mapping[str, Any]) -> str:
        """Enter an event; return the text in it."""
        if name == "content_block_delta":
            delta = data.get("delta")
            if isinstance(delta, Mapping) and delta.get("type") == "text_delta":
                return self._keep(delta.get("text"))
        elif name == "content_block_start":
            block = data.get("content_block")
            if isinstance(block, Mapping) and block.get("type") == "text":
                return self._keep(block.get("text"))
        elif name == "message_start":
            message = data.get("message")
            if isinstance(message, Mapping):
                self._model = message.get("model")
                self._count(message.get("usage"))
        elif name == "message_delta":
            delta = data.get("delta")
            if isinstance(delta, Mapping):
                self._reason = delta.get("stop_reason") or self._reason
            self._count(data.get("usage"))
        elif name == "message_stop":
            self._finish()
        elif name == "error":
            raise read_error(
                self._head, self._request, *self._secrets, data=data, usage=usage_of(self._usage)
            )
        return ""  # pings and whatever may be added one day

    def _keep(self, text: Any) -> str:
        if not isinstance(text, str) or not text:
            return ""
        piece = sound(text)
        self._texts.append(piece)
        return piece

    def _count(self, usage: Any) -> None:
        """Counters are cumulative; a later event repeats only some of them."""
        if isinstance(usage, Mapping):
            self._usage.update({name: value for name, value in usage.items() if value is not None})

    def _finish(self) -> None:
        self._answer = Answer(
            text="".join(self._texts),
            usage=usage_of(self._usage),
            finish_reason=finish_of(self._reason),
            model=short(self._model, PLAIN_ID),
            provider_request_id=request_id_of(self._head),
            limits=limits_of(self._head),
            dropped=self._dropped,
        )

    def _decode(self, data: bytes) -> Mapping[str, Any]:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            raise self._broken("garbled", "an event of the stream is not JSON") from None
        if not isinstance(found, dict):
            raise unusable(self._head, "shape", "an event of the stream is not a JSON object")
        return found

    def _broken(self, code: str, text: str) -> ProviderError:
        return ProviderError(
            text,
            kind=ErrorKind.NETWORK_ERROR,
            status=self._head.status,
            code=code,
            provider_request_id=request_id_of(self._head),
            maybe_billed=True,
            limits=limits_of(self._head),
        )
