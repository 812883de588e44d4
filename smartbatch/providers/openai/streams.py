"""Streamed answers of OpenAI's two generation APIs, and of the servers that imitate them.

Source: OpenAI's OpenAPI document 2.3.0. A chat ends with ``[DONE]``, a response with one of three events that
carry it whole; anything else was cut on its way, whatever the connection says.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import evolve

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.base import AnswerStream
from smartbatch.providers.foreign_text import sound
from smartbatch.providers.http.cutoff import Cutoff
from smartbatch.providers.http.live_reply import LiveReply
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.http.sse import events
from smartbatch.providers.openai.answers import (
    chat_usage,
    decode,
    limits_of,
    read_chat,
    read_error,
    read_response,
    request_id_of,
)
from smartbatch.types import Answer, Request, Usage

__all__ = ["ChatReader", "OpenAIStream", "Reader", "ResponseReader"]


class OpenAIStream(AnswerStream):
    """One streamed answer; the request is sent when the iteration begins.

    A server that does not stream and answers in one piece is understood as well.

    Args:
        begin: sends the request and returns the answer once its head is there; what it is given lets another
            thread end the wait.
        reader: knows the API's events.
        request: whose texts must not come back in an error.
        secrets: further texts that must not.
    """

    def __init__(
        self, begin: Callable[[Cutoff], LiveReply], reader: Reader, request: Request, *secrets: str | None
    ) -> None:
        self._begin = begin
        self._reader = reader
        self._request = request
        self._secrets = secrets
        self._cutoff = Cutoff()
        self._lock = threading.Lock()
        self._live: LiveReply | None = None

    def __iter__(self) -> Iterator[str]:
        """Yield pieces of text as they come.

        Raises:
            ProviderError: as for a whole answer; ``NETWORK_ERROR`` for a stream that ends too early.
        """
        live = self._open()
        head = Reply(live.status, live.headers, b"")
        try:
            if not 200 <= live.status < 300:
                reply = evolve(head, body=_rest_of(live))
                raise read_error(reply, (self._request,), *self._secrets)
            kind = live.headers.get("content-type", "")
            if kind.startswith(("application/json", "text/html")):
                yield from self._whole(evolve(head, body=b"".join(live)))
                return
            yield from self._pieces(live, head)
            live.drain()
        except ProviderError as error:
            error.usage = error.usage or self._reader.usage
            error.provider_request_id = error.provider_request_id or request_id_of(head)
            raise
        finally:
            live.close()

    def close(self) -> None:
        """Close the connection, or end the wait for it; an iteration under way ends with an error."""
        with self._lock:
            live = self._live
            if live is None:
                self._cutoff.cut()
        if live is not None:
            live.close()

    @property
    def answer(self) -> Answer:
        """The whole answer, once the iteration has ended.

        Raises:
            RuntimeError: before that.
        """
        if self._reader.answer is None:
            raise RuntimeError("the stream has not been read to its end")
        return self._reader.answer

    def _open(self) -> LiveReply:
        live = self._begin(self._cutoff)
        with self._lock:
            self._live = live
            closed = self._cutoff.used
        if closed:
            live.close()  # reading then says so
        return live

    def _pieces(self, live: LiveReply, head: Reply) -> Iterator[str]:
        reader = self._reader
        text = _Sound()
        for event in events(live):
            if reader.is_end_mark(event.data):
                break
            data = _decoded(event.data, head)
            if _is_error(data, event.name):
                raise self._failure(data, head)
            if piece := text.take(reader.take(data, event.name, head)):
                yield piece
            if reader.answer is not None:
                break
        else:
            raise _broken(head, "truncated", "the stream ended before the answer did")
        if piece := text.rest():
            yield piece
        reader.finish(text.whole, head)
        if not text.whole and reader.answer is not None and reader.answer.text:
            yield reader.answer.text  # a server that says all at the end

    def _whole(self, reply: Reply) -> Iterator[str]:
        data = decode(reply)
        if data.get("error") and not data.get("choices") and data.get("status") is None:
            raise read_error(reply, (self._request,), *self._secrets, data=data)
        self._reader.read_whole(data, reply)
        if text := self.answer.text:
            yield text

    def _failure(self, data: Mapping[str, Any], head: Reply) -> ProviderError:
        error = read_error(head, (self._request,), *self._secrets, data=data)
        if error.kind is ErrorKind.INVALID_RESPONSE:  # nothing known, after it had begun well
            error.kind = ErrorKind.SERVER_ERROR
        return error


class Reader(ABC):
    """Knows the events of one API.

    Attributes:
        answer: the whole answer, once it is known.
        usage: what was billed until now, where the server says so.
    """

    answer: Answer | None = None
    usage: Usage | None = None

    def is_end_mark(self, data: bytes) -> bool:  # noqa: ARG002
        """True for the mark after the last event."""
        return False

    @abstractmethod
    def take(self, data: Mapping[str, Any], name: str, head: Reply) -> str:
        """Enter an event; return the text in it."""

    @abstractmethod
    def finish(self, text: str, head: Reply) -> None:
        """Make the answer of what was entered; ``text`` is what was handed on."""

    @abstractmethod
    def read_whole(self, data: Mapping[str, Any], reply: Reply) -> None:
        """Make the answer of a body that is no stream."""


class ChatReader(Reader):
    """Chunks of a chat completion, and ``[DONE]``."""

    def __init__(self) -> None:
        self._model: Any = None
        self._reason: Any = None
        self._choices = 0
        self._said = self._refused = False

    def is_end_mark(self, data: bytes) -> bool:
        return data.strip() == b"[DONE]"

    def take(self, data: Mapping[str, Any], name: str, head: Reply) -> str:  # noqa: ARG002
        self._model = self._model or data.get("model")
        self.usage = chat_usage(data.get("usage")) or self.usage
        choices = data.get("choices")
        if not isinstance(choices, list) or not choices:
            return ""  # the chunk of the usage, and what proxies send to keep a connection alive
        choice = choices[0]
        if not isinstance(choice, dict):
            raise _shapeless(head, "a chunk of the stream has no choices[0]")
        self._choices += 1
        self._reason = choice.get("finish_reason") or self._reason
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return ""
        content, refusal = _text_of(delta.get("content")), _text_of(delta.get("refusal"))
        self._said = self._said or bool(content)
        self._refused = self._refused or bool(refusal)
        return content + refusal

    def finish(self, text: str, head: Reply) -> None:
        if not self._choices:
            raise _shapeless(head, "the stream has no choices")
        message = {"content": text}
        choice = {"message": message, "finish_reason": self._reason}
        answer = read_chat({"choices": [choice], "model": self._model}, head)
        if self._refused and not self._said:
            answer = evolve(answer, finish_reason="refusal")
        self.answer = evolve(answer, usage=self.usage)

    def read_whole(self, data: Mapping[str, Any], reply: Reply) -> None:
        self.answer = read_chat(data, reply)


class ResponseReader(Reader):
    """Named events of a response; the last one carries it whole."""

    def take(self, data: Mapping[str, Any], name: str, head: Reply) -> str:
        kind = data.get("type") or name
        if kind in ("response.output_text.delta", "response.refusal.delta"):
            return _text_of(data.get("delta"))
        if kind in ("response.completed", "response.incomplete", "response.failed"):
            response = data.get("response")
            if not isinstance(response, dict):
                raise _shapeless(head, "the last event of the stream has no response in it")
            self.answer = read_response(response, head)
        return ""

    def finish(self, text: str, head: Reply) -> None:  # noqa: ARG002
        if text and self.answer is not None:
            self.answer = evolve(self.answer, text=text)

    def read_whole(self, data: Mapping[str, Any], reply: Reply) -> None:
        self.answer = read_response(data, reply)


class _Sound:
    """Pieces of text without lone surrogates; a pair may come in two pieces."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._half = ""

    @property
    def whole(self) -> str:
        """All pieces so far."""
        return "".join(self._parts)

    def take(self, piece: str) -> str:
        if not piece:
            return ""
        piece, self._half = self._half + piece, ""
        if "\ud800" <= piece[-1] <= "\udbff":
            piece, self._half = piece[:-1], piece[-1]
        return self._keep(sound(piece))

    def rest(self) -> str:
        """The half of a pair that stayed alone."""
        half, self._half = self._half, ""
        return self._keep(sound(half))

    def _keep(self, piece: str) -> str:
        if piece:
            self._parts.append(piece)
        return piece


def _rest_of(live: LiveReply) -> bytes:
    """The body of a refusal; its status says enough when it is cut."""
    try:
        return b"".join(live)
    except ProviderError as error:
        if error.code == "closed":
            raise
        return b""


def _decoded(data: bytes, head: Reply) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise _broken(head, "garbled", "an event of the stream is not whole JSON") from None
    if not isinstance(found, dict):
        raise _shapeless(head, "an event of the stream is not a JSON object")
    return found


def _is_error(data: Mapping[str, Any], name: str) -> bool:
    if data.get("type") == "error" or name == "error":
        return True
    return bool(data.get("error")) and not data.get("choices") and "response" not in data


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _broken(head: Reply, code: str, text: str) -> ProviderError:
    return _problem(head, ErrorKind.NETWORK_ERROR, code, text)


def _shapeless(head: Reply, text: str) -> ProviderError:
    return _problem(head, ErrorKind.INVALID_RESPONSE, "shape", text)


def _problem(head: Reply, kind: ErrorKind, code: str, text: str) -> ProviderError:
    return ProviderError(
        text,
        kind=kind,
        status=head.status,
        code=code,
        provider_request_id=request_id_of(head),
        maybe_billed=True,
        limits=limits_of(head),
    )
