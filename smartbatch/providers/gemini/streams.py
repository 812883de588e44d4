"""Gemini's answers piece by piece: server-sent events without names and without an end mark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.base import AnswerStream
from smartbatch.providers.foreign_text import sound
from smartbatch.providers.gemini.answers import Gathered
from smartbatch.providers.gemini.errors import read_error
from smartbatch.providers.http.live_reply import LiveReply
from smartbatch.providers.http.sse import events
from smartbatch.types import Answer, Request

__all__ = ["GeminiStream"]


class GeminiStream(AnswerStream):
    """The answer of ``:streamGenerateContent``.

    Args:
        live: the answer whose head has come.
        request: whose texts must not come back in an error.
        secrets: further texts that must not.
    """

    def __init__(self, live: LiveReply, request: Request, secrets: Sequence[str]) -> None:
        self._live = live
        self._request = request
        self._secrets = secrets
        self._gathered = Gathered()

    def __iter__(self) -> Iterator[str]:
        """Yield pieces of text as they come; thoughts are not among them.

        Raises:
            ProviderError: as for a whole answer; ``NETWORK_ERROR`` for a stream that ends without a finish
                reason, since nothing else marks its end.
        """
        try:
            for event in events(self._live):
                if text := self._gathered.add(self._decode(event.data)):
                    yield sound(text)
            if not self._gathered.ended:
                raise self._broken("the stream ended before the answer did")
        except ProviderError as error:
            error.usage = error.usage or self._gathered.usage
            raise
        finally:
            self._live.close()

    def close(self) -> None:
        """Close the connection; an iteration under way in any thread ends with ``NETWORK_ERROR``."""
        self._live.close()

    @property
    def answer(self) -> Answer:
        """The whole answer, once the iteration has ended."""
        return self._gathered.answer

    def _decode(self, chunk: bytes) -> dict[str, Any]:
        try:
            data = json.loads(chunk)
        except (ValueError, RecursionError):
            raise self._broken("a chunk of the stream is not whole JSON") from None
        if isinstance(data, list) or (isinstance(data, dict) and data.get("error")):
            raise read_error(200, data, (self._request,), *self._secrets)
        if not isinstance(data, dict):
            raise self._broken("a chunk of the stream is not a JSON object")
        return data

    def _broken(self, text: str) -> ProviderError:
        return ProviderError(
            text, kind=ErrorKind.NETWORK_ERROR, status=self._live.status, code="truncated", maybe_billed=True
        )
