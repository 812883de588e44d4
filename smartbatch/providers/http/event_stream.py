"""The parts of streaming over HTTP that are the same for all APIs."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.base import AnswerStream
from smartbatch.providers.error_reader import ErrorReader, says_something
from smartbatch.providers.foreign_text import WellFormedText, plain, unusable
from smartbatch.providers.http.content import decode_answer
from smartbatch.providers.http.pool import seconds_left
from smartbatch.providers.http.replies import LiveReply, Reply
from smartbatch.providers.http.transport import Cutoff
from smartbatch.types import Answer, Request, Usage

EVENT_STREAM_TYPE = "text/event-stream"  # content type of a stream


class EventReader(ABC):
    """Reads the events of one stream."""

    # True if the API may omit its end mark. The body is then read to its end, and :attr:`ended` shows whether
    # it is complete.
    to_the_end = False
    ended = False  # the end mark, or another proof that the answer is complete, has arrived
    usage: Usage | None = None  # tokens billed so far, if reported
    # parameters that were not sent, with the reasons
    dropped: tuple[tuple[str, str], ...] = ()

    def __init__(self, errors: ErrorReader) -> None:
        self.errors = errors

    def is_end_mark(self, data: bytes) -> bool:  # noqa: ARG002
        """For end marks that are not JSON."""
        return False

    @abstractmethod
    def take(self, data: Mapping[str, Any], name: str, head: Reply) -> str:
        """Add an event and return its text."""

    @abstractmethod
    def finish(self, text: str, head: Reply) -> Answer:
        """Create the answer; ``text`` has already been yielded."""

    def whole(self, data: Mapping[str, Any], reply: Reply) -> Answer:  # noqa: ARG002
        """Read an answer that is not a stream, if the API's servers may send one."""
        raise self.errors.unusable(reply, "shape", "the answer is not a stream of events; check the base URL")


class EventStream(AnswerStream):
    """One streamed answer.

    Args:
        begin: sends the request within the given seconds; its second argument lets another thread
            interrupt the wait for the head of the answer.
        reader: reads the API's events.
        request: its texts must not appear in an error.
        timeout: total seconds from now to the last byte.
        meaning: converts an error of the stream for its request.
        split: splits the body into the names and data of events.
    """

    def __init__(
        self,
        begin: Callable[[float, Cutoff], LiveReply],
        reader: EventReader,
        request: Request,
        timeout: float,
        *,
        meaning: Callable[[ProviderError], ProviderError] = lambda error: error,
        split: Callable[[Iterable[bytes]], Iterable[tuple[str, bytes]]] | None = None,
    ) -> None:
        self._meaning = meaning
        self._split = split or events
        self._begin = begin
        self._deadline = time.monotonic() + timeout
        self._live: LiveReply | None = None
        self._reader = reader
        self._errors = reader.errors
        self._request = request
        self._cutoff = Cutoff()
        self._lock = threading.Lock()
        self._answer: Answer | None = None

    def __iter__(self) -> Iterator[str]:
        """Yield pieces of text as they arrive, in this order:

        1. The request is sent.
        2. A refusal is raised, and a complete answer is yielded in one piece.
        3. Events are read up to the end mark. Without it the answer was truncated, whatever the
           connection reports.
        4. The rest of the body is read, so that the connection can be reused.

        Raises:
            ProviderError: as for a complete answer, with the usage and the call's id if they have
                arrived.
        """
        live = self._open()
        head = Reply(live.status, live.headers, b"")
        try:
            if not head.ok:
                raise self._errors.refused(live.whole(), (self._request,))
            content_type = live.headers.get("content-type", "").lower()
            if content_type.startswith(("application/json", "text/html")):
                reply = live.whole()
                self._answer = self._reader.whole(self._errors.answer(reply, (self._request,)), reply)
                if self._answer.text:
                    yield self._answer.text
                return
            yield from self._pieces(live, head)
            live.drain()
        except ProviderError as error:
            error.usage = error.usage or self._reader.usage
            error.provider_request_id = error.provider_request_id or self._errors.request_id(head)
            meaning = self._meaning(error)
            if meaning is error:
                raise
            raise meaning from None
        finally:
            live.close()

    def close(self) -> None:
        """Close the connection or interrupt the wait for it; an iteration in progress fails."""
        with self._lock:
            live = self._live
            if live is None:
                self._cutoff.cut()
        if live is not None:
            live.close()

    @property
    def answer(self) -> Answer:
        if self._answer is None:
            raise RuntimeError("the stream has not been read to its end")
        return self._answer

    def _open(self) -> LiveReply:
        live = self._begin(seconds_left(self._deadline), self._cutoff)
        with self._lock:
            self._live = live
            closed = self._cutoff.used
        if closed:
            live.close()  # reading then raises the error
        return live

    def _pieces(self, live: LiveReply, head: Reply) -> Iterator[str]:
        """Yield the text of each event and raise any error among them. The stream ends in one of two ways:

        1. With its end mark or the event that ends the answer, unless the API sends more after it.
        2. With the body, which is an error unless the answer has ended.

        At the end, the rest of an incomplete character is yielded, and the text of an answer that arrived
        in one piece.
        """
        reader = self._reader
        text = WellFormedText()
        for number, (name, event) in enumerate(self._split(live)):
            if number == 0:
                self.begun()
            if reader.is_end_mark(event):
                break
            data = self._decoded(name, event, head)
            if piece := text.take(reader.take(data, name or plain(data.get("type")), head)):
                yield piece
            if reader.ended and not reader.to_the_end:
                break
        else:
            if not reader.ended:
                raise self._errors.broken(head, "truncated", "the stream ended before the answer did")
        if piece := text.take("", last=True):
            yield piece
        self._answer = reader.finish(text.whole, head)
        if not text.whole and self._answer.text:
            yield self._answer.text  # a server that sends all text with the last event

    def _decoded(self, name: str, event: bytes, head: Reply) -> dict[str, Any]:
        try:
            data = decode_answer(event)
        except RecursionError as deep:
            raise self._errors.broken(head, "garbled", f"an event of the stream {deep}") from None
        except ValueError:
            raise self._errors.broken(head, "garbled", "an event of the stream is incomplete JSON") from None
        if isinstance(data, list) and data:  # some servers wrap an error in a list
            data = data[0]
        if not isinstance(data, dict):
            raise self._errors.unusable(head, "shape", "an event of the stream is not a JSON object")
        if _is_error(data, name):
            error = self._errors.read(head, (self._request,), data=data)
            if error.kind is ErrorKind.INVALID_RESPONSE:  # an unknown error after a successful start
                error.kind = ErrorKind.SERVER_ERROR
            raise error
        return data


def _is_error(data: Mapping[str, Any], name: str) -> bool:
    if name == "error" or data.get("type") == "error":
        return True
    # OpenRouter sends the error next to empty choices.
    return says_something(data.get("error")) and "response" not in data


MAX_EVENT = 64 * 1024 * 1024  # maximum bytes per event, which may contain images in base64


def events(pieces: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Split a body into events. An event has a name, which may be empty, and its ``data`` lines joined
    by line feeds.

    An event without its blank line is dropped. An event larger than :data:`MAX_EVENT` raises a
    ``ProviderError``.
    """
    name, size = b"", 0
    data: list[bytes] = []
    for line in _lines(pieces):
        if not line:
            if data:
                yield name.decode("utf-8", "replace"), b"\n".join(data)
            name, data, size = b"", [], 0
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
            size += len(value)
            if size > MAX_EVENT:
                raise _too_large()
        elif field == b"event":
            name = value


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest = bytearray()  # start of an unfinished line
    for piece in pieces:
        first, *others = piece.split(b"\n")
        rest += first
        if len(rest) > MAX_EVENT:
            raise _too_large()
        if others:
            yield bytes(rest).removesuffix(b"\r")
            for line in others[:-1]:
                yield line.removesuffix(b"\r")
            rest = bytearray(others[-1])


def _too_large() -> ProviderError:
    return unusable(f"one event of the stream is larger than {MAX_EVENT} bytes", "too_large")
