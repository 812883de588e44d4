"""Streams of the providers without a network: an answer made beforehand, yielded in pieces."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.base import AnswerStream
from smartbatch.types import Answer


class MadeStream(AnswerStream):
    """A stream over the pieces that a generator yields, with its waits and errors.

    Closing takes effect when the generator hands out its next piece: it may be asleep.

    Args:
        pieces: yields the pieces and returns the whole answer.
    """

    def __init__(self, pieces: Generator[str, None, Answer]) -> None:
        self._pieces = pieces
        self._answer: Answer | None = None
        self._closed = False

    def __iter__(self) -> Iterator[str]:
        try:
            while True:
                piece = next(self._pieces)
                self._check_open()
                yield piece
        except StopIteration as end:
            self._check_open()
            self._answer = end.value
        finally:
            self._pieces.close()

    def close(self) -> None:
        """End the iteration at its next piece."""
        self._closed = True

    @property
    def answer(self) -> Answer:
        """The answer the pieces are of."""
        if self._answer is None:
            raise RuntimeError("the stream has not been read to its end")
        return self._answer

    def _check_open(self) -> None:
        if self._closed:
            raise ProviderError(
                "the stream was closed", kind=ErrorKind.NETWORK_ERROR, code="closed", maybe_billed=True
            )
