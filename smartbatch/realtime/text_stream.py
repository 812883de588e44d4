"""An answer passed piece by piece from the worker that makes the call to the thread that reads it.

The life of a stream, in order:

1. The box is made, the request is queued, and the stream is returned.
2. Each try of its call attaches a function that closes the connection, and detaches it at the end. There are
   further tries until the first chunk is put in, and none after it.
3. Chunks are put in and taken out. A full box makes the call wait for its reader, until its deadline.
4. It ends in one of three ways, whichever comes first:

   a. the request finishes: the reader takes the remaining chunks, then the result or its error;
   b. the reader closes the stream: the remaining chunks are dropped, a waiting request leaves the queue, and
      the connection of one under way is closed;
   c. the call has waited for its reader until its deadline: the request fails.

When the client stops, the box accepts any number of chunks, since the stopping thread may be the reader. A
stream closed by the garbage collector or in a signal handler is closed on another thread: the interrupted
code may hold the lock.
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
"""Maximum number of chunks that wait for the reader; then the call waits."""
MAX_CHARACTERS = 1 << 20
"""Maximum total length of these chunks."""


class ChunkBox:
    """A bounded box of chunks: a worker puts them in, one thread takes them out, any thread may cancel."""

    def __init__(self, clock: Clock) -> None:
        self.request_id = ""  # set once it is known
        self.drop: Callable[[], None] = lambda: None  # removes the request from the queue if it waits there
        self.begun = False  # whether a chunk was put in
        self.first_at = 0.0  # when the first chunk arrived, monotonic seconds
        self.held_up = False  # whether the worker ever had to wait for the reader
        self.tokens = 0  # estimated tokens of the chunks put in
        self.cancelled = False  # whether the reader closed the stream early
        self.result: Result | None = None  # set once the request has finished
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
        """Whether no more chunks are accepted."""
        return self.cancelled or self.result is not None

    @property
    def final(self) -> bool:
        """Whether the request must not be tried again."""
        return self.begun or self.over

    def attach(self, close: Callable[[], None]) -> None:
        """Call ``close`` when the request is cancelled or times out; raises an error if it already has."""
        with self._filled:
            if self.over:
                raise _cancelled()
            self._close = close

    def detach(self) -> None:
        """Forget the connection, because the call has ended."""
        with self._filled:
            self._close = None

    def put(self, piece: str, deadline: float) -> None:
        """Put a chunk in, waiting while the box is full.

        Raises:
            RequestCancelled: no more chunks are accepted, or there was no room until ``deadline``.
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
        """Set the result; the chunks in the box can still be read."""
        with self._filled:
            if self.result is not None:
                return
            self.result = result
            self.request_id = result.request_id
            close = self._close_locked()
        _call_quietly(close)

    def lift(self) -> None:
        """Accept any number of chunks from now on, as the thread that stops a client may be the reader."""
        with self._emptied:
            self._bounded = False
            self._emptied.notify_all()

    # the reader's side

    def take(self) -> str | None:
        """Return the next chunk, waiting for it; ``None`` at the end."""
        with self._filled:
            self._filled.wait_for(lambda: self._chunks or self.over)
            if not self._chunks:
                return None
            piece = self._chunks.popleft()
            self._chars -= len(piece)
            self._emptied.notify()
            return piece

    def cancel(self) -> bool:
        """Accept no more chunks, and close the call under way; return False if everything was read before."""
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
        """Wake all waiting threads; return what closes the connection, to call without the lock."""
        self._filled.notify_all()
        self._emptied.notify_all()
        close, self._close = self._close, None
        return close


class TextStream(Iterator[str], Generic[T]):
    """The answer of one request, chunk by chunk, as it is generated. One thread reads it; any may close it.

    ``for chunk in stream`` closes it however the loop ends, even by Ctrl-C; so does the end of a
    ``with`` block. If you call ``next`` yourself, close the stream, or the answer is generated to its end.

    The loop raises the request's error if it has one, even after chunks were read: the answer is complete
    only if the loop ends normally. Ctrl-C while waiting for a chunk raises ``Interrupted``.
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
        """The whole result: usage, cost, latency and ``time_to_first_chunk``, once the stream is read or
        closed.

        Raises:
            SmartbatchError: it is still being read.
        """
        self._check_process()
        if not (self._box.over or self._left):  # if its loop was left, another thread closes it
            raise SmartbatchError(
                "the answer is still being generated: read the stream to its end, or close it",
                request_id=self.request_id,
            )
        return self._box.wait()

    def close(self) -> None:
        """Stop the stream. A waiting request is not sent; the connection of one under way is closed.

        Tokens generated until then are billed. Closing twice, or after the end, is fine.
        """
        if self._process != os.getpid():
            return
        if reentered():  # in a signal handler: the interrupted code may hold our lock
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
        except BaseException:  # such as one raised by a signal handler
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
        """Close it on another thread: the garbage collector may run while a lock is held."""
        self._left = True
        if self._box.over or self._process != os.getpid():
            return
        with contextlib.suppress(RuntimeError):  # no thread can be started: the interpreter is exiting
            threading.Thread(target=self.close, name="smartbatch-close", daemon=True).start()


def _cancelled(request_id: str | None = None) -> RequestCancelled:
    return RequestCancelled("the stream was closed before its end", request_id=request_id, maybe_billed=True)


def _call_quietly(close: Callable[[], None] | None) -> None:
    try:
        if close is not None:
            close()
    except Exception as error:
        logs.warn("stream_close_failed", error=type(error).__name__)
