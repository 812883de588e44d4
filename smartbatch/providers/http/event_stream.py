"""A streamed answer, as it comes over HTTP: what the streams of all APIs have in common."""

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

EVENTS = "text/event-stream"
"""The content type of a stream."""


class EventReader(ABC):
    """Understands the events of one API; one for each stream.

    Attributes:
        errors: makes the errors of the API's answers.
        to_the_end: True where the API has no end mark, or may leave it out: then the body is read to its end,
            and :attr:`ended` says whether it may end there.
        ended: the end mark has come, or what else says that the answer is whole.
        usage: what was billed until now, where the service says so.
        dropped: parameters of the request that were not sent, with the reasons.
    """

    to_the_end = False
    ended = False
    usage: Usage | None = None
    dropped: tuple[tuple[str, str], ...] = ()

    def __init__(self, errors: ErrorReader) -> None:
        self.errors = errors

    def is_end_mark(self, data: bytes) -> bool:  # noqa: ARG002
        """True for an end mark that is no JSON."""
        return False

    @abstractmethod
    def take(self, data: Mapping[str, Any], name: str, head: Reply) -> str:
        """Enter an event; return the text in it."""

    @abstractmethod
    def finish(self, text: str, head: Reply) -> Answer:
        """Return the answer of what was entered; ``text`` is what was handed on."""

    def whole(self, data: Mapping[str, Any], reply: Reply) -> Answer:  # noqa: ARG002
        """Return the answer of a body that is no stream, where the API's servers may send one."""
        raise self.errors.unusable(reply, "shape", "the answer is no stream of events; check the base URL")


class EventStream(AnswerStream):
    """One streamed answer.

    Args:
        begin: sends the request within the seconds it is given; its second argument lets another thread end
            the wait for the head of the answer.
        reader: understands the API's events.
        request: whose texts must not come back in an error.
        timeout: total seconds from here to the last byte.
        meaning: what an error of the stream means for its request.
    """

    def __init__(
        self,
        begin: Callable[[float, Cutoff], LiveReply],
        reader: EventReader,
        request: Request,
        timeout: float,
        *,
        meaning: Callable[[ProviderError], ProviderError] = lambda error: error,
    ) -> None:
        self._meaning = meaning
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
        """Yield pieces of text as they come. In order:

        1. the request is sent;
        2. a refusal is an error, and an answer in one piece is handed on as one;
        3. events are entered until the end mark; without it the answer was cut, whatever the connection says;
        4. what is left of the body is read, so that the connection can be used again.

        Raises:
            ProviderError: as for a whole answer; with the usage and the call's id, as far as they have come.
        """
        live = self._open()
        head = Reply(live.status, live.headers, b"")
        try:
            if not head.ok:
                raise self._errors.refused(live.whole(), (self._request,))
            content_type = live.headers.get("content-type", "").lower()
            if content_type.startswith(("application/json", "text/html")):
                yield from self._in_one_piece(live.whole())
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
        """Close the connection, or end the wait for it; an iteration under way ends with an error."""
        with self._lock:
            live = self._live
            if live is None:
                self._cutoff.cut()
        if live is not None:
            live.close()

    @property
    def answer(self) -> Answer:
        """The whole answer, once the iteration has ended; ``RuntimeError`` before."""
        if self._answer is None:
            raise RuntimeError("the stream has not been read to its end")
        return self._answer

    def _open(self) -> LiveReply:
        live = self._begin(seconds_left(self._deadline), self._cutoff)
        with self._lock:
            self._live = live
            closed = self._cutoff.used
        if closed:
            live.close()  # reading then says so
        return live

    def _pieces(self, live: LiveReply, head: Reply) -> Iterator[str]:
        """Yield the text of each event; an error among them is raised. The stream ends, in order:

        1. By the mark of its end, or the event that ends the answer, unless the API has more to say after it.
        2. With the body: an error, unless the answer had ended.

        Then follow what the last event left of a character, and the text of an answer that came all at once.
        """
        reader = self._reader
        text = WellFormedText()
        for name, event in events(live):
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
            yield self._answer.text  # a server that says all at the end

    def _in_one_piece(self, reply: Reply) -> Iterator[str]:
        self._answer = self._reader.whole(self._errors.answer(reply, (self._request,)), reply)
        if self._answer.text:
            yield self._answer.text

    def _decoded(self, name: str, event: bytes, head: Reply) -> dict[str, Any]:
        """The object of an event; an error among the events is raised."""
        try:
            data = decode_answer(event)
        except RecursionError as deep:
            raise self._errors.broken(head, "garbled", f"an event of the stream {deep}") from None
        except ValueError:
            raise self._errors.broken(head, "garbled", "an event of the stream is not whole JSON") from None
        if isinstance(data, list) and data:  # some servers wrap an error in a list
            data = data[0]
        if not isinstance(data, dict):
            raise self._errors.unusable(head, "shape", "an event of the stream is not a JSON object")
        if _is_error(data, name):
            error = self._errors.read(head, (self._request,), data=data)
            if error.kind is ErrorKind.INVALID_RESPONSE:  # nothing known, after it had begun well
                error.kind = ErrorKind.SERVER_ERROR
            raise error
        return data


def _is_error(data: Mapping[str, Any], name: str) -> bool:
    if name == "error" or data.get("type") == "error":
        return True
    # OpenRouter puts it next to empty choices.
    return says_something(data.get("error")) and "response" not in data


MAX_EVENT = 16 * 1024 * 1024
"""Most bytes of one event: far more than the APIs send, and little enough to hold in memory."""


def events(pieces: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the events in a body that comes in pieces of any size; one without its blank line is no event.

    An event is its name, empty without one, and its ``data`` lines joined by line feeds.

    Raises:
        ProviderError: for an event above :data:`MAX_EVENT`, and whatever ``pieces`` raises.
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
    rest = bytearray()  # of a line that has not ended yet
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
