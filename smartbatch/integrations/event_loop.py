"""One event loop per process, on which worker threads run ``asyncio`` code.

Connections, locks and sessions of ``asyncio`` libraries belong to the loop that opened them, so all workers
share one loop. It runs on a separate thread, started when first needed. At interpreter exit, calls in
progress complete, but no call can start that needs a new thread, for example to look up a host name.
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

_CANCEL_SECONDS = 1.0  # time for a coroutine to end after its timeout


class _Loop(asyncio.SelectorEventLoop):
    """A loop that appears closed in a forked child.

    Otherwise the child's copy would appear to be running, and libraries would keep using its connections.
    Really closing the copy would remove the parent's wake-up from the ``epoll`` that both share.
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
class _LoopCall:
    """A coroutine passed to the loop, which may start it before this thread has its future.

    ``cancel`` sets the flag and then reads the future; ``begin`` sets the future and then reads the flag.
    One of them always cancels the future, so no lock is needed.
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
        self._calls: set[_LoopCall] = set()

    def run(self, main: Callable[[], Coroutine[Any, Any, _T]], timeout: float) -> _T:
        """Run the coroutine of ``main()`` on the loop, and block until its result is available.

        Args:
            timeout: maximum total seconds.

        Raises:
            TimeoutError: the coroutine took longer and was cancelled.
            CancelledError: :meth:`cancel` was called; the class is that of :mod:`concurrent.futures`.
            RuntimeError: the thread of the loop cannot be started.
            BaseException: raised by the coroutine.
        """

        async def limited() -> _T:
            async with asyncio.timeout(timeout):
                return await main()

        call = _LoopCall()
        self._calls.add(call)
        try:
            loop = _threads.get().loop()
            future = asyncio.run_coroutine_threadsafe(limited(), loop)
            call.begin(future)
            # The worker must not wait for code that ignores its cancellation or blocks a thread.
            return future.result(timeout + _CANCEL_SECONDS)
        finally:
            call.cancel()  # has no effect unless the wait was interrupted or timed out
            self._calls.discard(call)

    def cancel(self) -> None:
        """Cancel the calls in progress; safe from any thread."""
        for call in list(self._calls):
            call.cancel()

    def abandon_after_fork(self) -> None:
        self._calls = set()


class _LoopThread:
    """The loop of a process and its thread, which start with the first coroutine."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
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
    """Run a loop until the process ends.

    A coroutine's ``SystemExit`` or ``KeyboardInterrupt`` is raised for its caller; ``asyncio`` would also
    end the loop.
    """
    while True:
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


_threads = PerProcess(_LoopThread)
