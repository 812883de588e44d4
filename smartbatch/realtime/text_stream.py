"""Streams: an answer is passed chunk by chunk from the worker to the thread that reads it.

The life of a stream, in order:

1. The buffer is created, the request is queued, and the stream is returned.
2. Each attempt attaches a function that closes its connection, and detaches it at the end. Retries are
   possible until the first chunk is delivered.
3. Chunks are put in and taken out. If the buffer is full, the call waits for the reader until its deadline.
4. The stream ends in one of three ways:

   a. the request finishes: the reader takes the remaining chunks, then the result or error;
   b. the reader closes the stream: the remaining chunks are dropped, and a waiting request is cancelled or
      the connection closed;
   c. the call has waited for the reader until its deadline: the request fails.

When the client stops, the buffer accepts any number of chunks, because the stopping thread may be the reader.
A stream closed by the garbage collector or a signal handler is closed on another thread, because the
interrupted code may hold the lock.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Generic, Self

from smartbatch._clock import Clock
from smartbatch._fork import reentered
from smartbatch.core.preparation.tokens import estimate
from smartbatch.errors import RequestCancelled, SmartbatchError, WrongProcess
from smartbatch.observe import logs
from smartbatch.results import Interrupted, ResultList
from smartbatch.types import Result, T

MAX_CHUNKS = 1_000
"""Maximum number of chunks that wait for the reader."""
MAX_CHARACTERS = 1 << 20
"""Maximum total length of these chunks."""


class ChunkBox:
    """A bounded buffer of chunks.

    A worker puts chunks in, one thread takes them out, and any thread may cancel.
    """

    def __init__(self, clock: Clock) -> None:
        self.request_id = ""
        self.drop: Callable[[], None] = lambda: None  # removes a waiting request from the queue
        self.begun = False  # a chunk was put in
        self.first_at = 0.0  # arrival of the first chunk, monotonic seconds
        self.held_up = False  # the worker had to wait for the reader
        self.tokens = 0  # estimated tokens of the chunks put in
        self.cancelled = False  # the reader closed the stream early
        self.result: Result | None = None
        self._clock = clock
        self._filled = clock.monitor()
        self._emptied = clock.monitor(self._filled.lock)
        self._chunks: deque[str] = deque()
        self._chars = 0
        self._close: Callable[[], None] | None = None
        self._bounded = True

    # the worker's side

    @property
    def over(self) -> bool:
        return self.cancelled or self.result is not None

    @property
    def final(self) -> bool:
        return self.begun or self.over

    def attach(self, close: Callable[[], None]) -> None:
        """Call ``close`` when the request is cancelled or times out; raise an error if it already has."""
        with self._filled:
            if self.over:
                raise _cancelled()
            self._close = close

    def detach(self) -> None:
        with self._filled:
            self._close = None

    def put(self, piece: str, deadline: float) -> None:
        """Put a chunk in, waiting while the buffer is full.

        Raises:
            RequestCancelled: no more chunks are accepted, or no room became free before ``deadline``.
        """
        with self._emptied:
            while not self.over and not self._has_room_locked(piece):
                left = deadline - self._clock.now()
                if left <= 0:
                    raise RequestCancelled(
                        "the stream was not read before its call timed out; read it, or close it"
                    )
                self.held_up = True
                self._emptied.wait(left)
            if self.over:
                raise _cancelled()
            if not self.begun:
                self.begun = True
                self.first_at = self._clock.now()
            self._chunks.append(piece)
            self._chars += len(piece)
            self.tokens += estimate(piece)
            self._filled.notify()

    def end(self, result: Result) -> None:
        """Set the result. The chunks in the buffer can still be read."""
        with self._filled:
            if self.result is not None:
                return
            self.result = result
            self.request_id = result.request_id
            close = self._close_locked()
        _call_quietly(close)

    def lift(self) -> None:
        """Accept any number of chunks, because the thread that stops a client may be the reader."""
        with self._emptied:
            self._bounded = False
            self._emptied.notify_all()

    # the reader's side

    def take(self) -> str | None:
        """Wait for the next chunk. Return ``None`` at the end."""
        with self._filled:
            self._filled.wait_for(lambda: self._chunks or self.over)
            if not self._chunks:
                return None
            piece = self._chunks.popleft()
            self._chars -= len(piece)
            self._emptied.notify()
            return piece

    def cancel(self) -> bool:
        """Accept no more chunks and close the connection; return False if everything has been read."""
        with self._filled:
            if self.result is not None and not self._chunks:
                return False
            self.cancelled = True
            self._chunks.clear()
            self._chars = 0
            close = self._close_locked()
        _call_quietly(close)
        return True

    def wait(self) -> Result:
        with self._filled:
            self._filled.wait_for(lambda: self.result is not None)
            assert self.result is not None
            return self.result

    def _has_room_locked(self, piece: str) -> bool:
        if not self._chunks or not self._bounded:
            return True
        return len(self._chunks) < MAX_CHUNKS and self._chars + len(piece) <= MAX_CHARACTERS

    def _close_locked(self) -> Callable[[], None] | None:
        """Wake all waiting threads. Return the function that closes the connection, to be called without the
        lock.
        """
        self._filled.notify_all()
        self._emptied.notify_all()
        close, self._close = self._close, None
        return close


class TextStream(Iterator[str], Generic[T]):
    """The answer to one request, in chunks, as it is generated. One thread reads it; any thread may close it.

    ``for chunk in stream`` and ``with stream`` close the stream when they end, even after Ctrl-C. If you call
    ``next`` yourself, close the stream; otherwise the whole answer is generated.

    The loop raises the request's error, even after some chunks: the answer is complete only if the loop ends
    normally. Ctrl-C while waiting for a chunk raises ``Interrupted``.
    """

    def __init__(self, box: ChunkBox) -> None:
        self._box = box
        self._process = os.getpid()
        self._ended = self._left = False

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self._box.request_id

    @property
    def result(self) -> Result[T]:
        """The complete result with usage, cost, latency and ``time_to_first_chunk``.

        Raises:
            SmartbatchError: the stream has neither been read to its end nor closed.
        """
        self._check_process()
        if not (self._box.over or self._left):  # if the loop was left early, another thread closes the stream
            raise SmartbatchError(
                "the answer is still being generated: read the stream to its end, or close it",
                request_id=self.request_id,
            )
        return self._box.wait()

    def close(self) -> None:
        """Stop the stream. A waiting request is not sent; the connection of a running one is closed.

        Tokens generated until then are billed. Further calls have no effect.
        """
        if self._process != os.getpid():
            return
        if reentered():  # in a signal handler, the interrupted code may hold the lock
            self._close_elsewhere()
        elif self._box.cancel():
            self._box.drop()

    cancel = close

    def __iter__(self) -> Generator[str, None, None]:
        try:
            while True:
                chunk = self._next()
                if chunk is None:
                    return
                yield chunk
        except GeneratorExit:
            self._close_elsewhere()
            raise
        except BaseException:
            self.close()
            raise

    def __next__(self) -> str:
        chunk = self._next()
        if chunk is None:
            raise StopIteration
        return chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._close_elsewhere()

    def __repr__(self) -> str:
        state = "ended" if self._ended else ("closed" if self._box.cancelled else "open")
        return f"<TextStream {self.request_id} {state}>"

    def _next(self) -> str | None:
        self._check_process()
        if self._ended:
            return None
        box = self._box
        interrupted = False
        try:
            chunk = None if self._left else box.take()
        except KeyboardInterrupt:
            self.close()
            interrupted = True
        except BaseException:  # raised by a signal handler, for example
            self.close()
            raise
        if interrupted:
            raise Interrupted(
                "interrupted; the stream is closed, and the text generated until then is billed",
                lambda: ResultList([] if box.result is None else [box.result]),
            )
        if chunk is not None:
            return chunk
        self._ended = True
        if box.cancelled or self._left:
            raise _cancelled(self.request_id)
        result = box.wait()
        if result.error is not None:
            raise result.error
        return None if box.begun else result.text or None

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise WrongProcess(
                "the stream belongs to the parent process; start a new one", request_id=self.request_id
            )

    def _close_elsewhere(self) -> None:
        """Close the stream on another thread, because the garbage collector may run while a lock is held."""
        self._left = True
        if self._box.over or self._process != os.getpid():
            return
        with contextlib.suppress(RuntimeError):  # no thread can be started at interpreter exit
            threading.Thread(target=self.close, name="smartbatch-close", daemon=True).start()


def _cancelled(request_id: str | None = None) -> RequestCancelled:
    return RequestCancelled("the stream was closed before it ended", request_id=request_id, maybe_billed=True)


def _call_quietly(close: Callable[[], None] | None) -> None:
    try:
        if close is not None:
            close()
    except Exception as error:
        logs.warn("stream_close_failed", error=type(error).__name__)
