"""One event loop a process, on which worker threads run what is written for ``asyncio``.

Connections, locks and sessions of such libraries belong to the loop that opened them, so workers that share
them need one loop for all. It runs on a thread of its own, started when first needed. At the interpreter's
exit calls under way are finished, but none can begin that needs a new thread, such as the look-up of a host.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from attrs import define

from smartbatch._fork import PerProcess

__all__ = ["Tasks"]

_T = TypeVar("_T")

_GRACE = 1.0
"""Seconds a coroutine has to end after its time is over; after them the caller no longer waits for it."""


class _Loop(asyncio.SelectorEventLoop):
    """A loop that in a forked child does not run and cannot be closed.

    The child's copy says it runs, so libraries would go on using connections that belong to it. And closing
    it would remove the parent's wake-up from the ``epoll`` that both share.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        super().__init__()

    def is_running(self) -> bool:
        return self._process == os.getpid() and super().is_running()

    def close(self) -> None:
        if self._process == os.getpid():
            super().close()

    def is_closed(self) -> bool:
        return self._process != os.getpid() or super().is_closed()


@define(eq=False)
class _Call:
    """A coroutine that is handed to the loop, where it may begin before its future is known here.

    Whoever cancels sets ``cancelled`` and then looks for the future; whoever hands over sets the future and
    then looks at ``cancelled``. So one of the two cancels it, and neither needs a lock.
    """

    future: Future[Any] | None = None
    cancelled: bool = False

    def begin(self, future: Future[Any]) -> None:
        self.future = future
        if self.cancelled:
            future.cancel()

    def cancel(self) -> None:
        self.cancelled = True
        if self.future is not None:
            self.future.cancel()


class Tasks:
    """Coroutines that belong together and can be cancelled together."""

    def __init__(self) -> None:
        self._calls: set[_Call] = set()

    def run(self, main: Callable[[], Coroutine[Any, Any, _T]], timeout: float) -> _T:
        """Run ``main()`` on the loop and return its result; the calling thread is blocked until then.

        Args:
            main: makes the coroutine.
            timeout: total seconds.

        Raises:
            TimeoutError: it took longer, and was cancelled.
            CancelledError: of :mod:`concurrent.futures`, after :meth:`cancel`.
            RuntimeError: no thread can be had for the loop.
            BaseException: whatever the coroutine raises.
        """

        async def limited() -> _T:
            async with asyncio.timeout(timeout):
                return await main()

        call = _Call()
        self._calls.add(call)
        try:
            loop = _threads.get().loop()
            future = asyncio.run_coroutine_threadsafe(limited(), loop)
            call.begin(future)
            # Code that swallows its cancellation, or blocks in a thread, must not keep the worker.
            return future.result(timeout + _GRACE)
        finally:
            call.cancel()  # nothing, unless the wait was interrupted or over
            self._calls.discard(call)

    def cancel(self) -> None:
        """Cancel the calls under way; safe from any thread."""
        for call in list(self._calls):
            call.cancel()

    def forget(self) -> None:
        """In a forked child: forget the parent's calls."""
        self._calls = set()


class _LoopThread:
    """The loop of a process and its thread; both start with the first coroutine of the process."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop, which runs.

        Raises:
            RuntimeError: no thread can be had; the next call tries again.
        """
        with self._starting:
            if self._loop is None:
                loop = _Loop()
                thread = threading.Thread(target=_run, args=(loop,), name="smartbatch-asyncio", daemon=True)
                try:
                    thread.start()
                except BaseException:
                    loop.close()
                    raise
                self._loop = loop
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop for as long as the process lives.

    A coroutine's ``SystemExit`` or ``KeyboardInterrupt`` is for whoever waits for it; ``asyncio`` would end
    the loop with it as well.
    """
    while True:
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


_threads = PerProcess(_LoopThread)
