"""The thread for users' callbacks: whatever they do there, no worker and no other future waits for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from smartbatch._clock import Clock
from smartbatch._fork import run_after_collection
from smartbatch.types import RunCallback, call_now


class CallbackThread:
    """Runs callables one after another, in order, on a daemon thread that starts with the first one.

    Args:
        clock: time and waiting.
        report: told of anything a callback raises, ``SystemExit`` and ``KeyboardInterrupt`` included.
        run: calls what it is given.
    """

    def __init__(
        self, clock: Clock, report: Callable[[BaseException], None], run: RunCallback = call_now
    ) -> None:
        self._clock = clock
        self._report = report
        self._run_callback = run
        self._monitor = clock.monitor()
        self._idle = clock.monitor(self._monitor.lock)
        self._todo: deque[Callable[[], Any]] = deque()
        self._thread: threading.Thread | None = None
        self._busy = False
        self._closing = False

    def run_later(self, fn: Callable[[], Any]) -> None:
        """Have ``fn`` run soon."""
        todo: list[Callable[[], Any]] = []
        with self._monitor:
            self._todo.append(fn)
            self._monitor.notify()
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="smartbatch-callbacks", daemon=True)
            self._clock.spawned()
            try:
                self._thread.start()
            except RuntimeError:
                # No thread can be had (limits, interpreter exit): on one that is there, or on this one.
                self._thread = None
                self._clock.unspawned()
                if run_after_collection(self._run_all):
                    return
                todo = list(self._todo)
                self._todo.clear()
        for each in todo:
            self._call(each)

    def _run_all(self) -> None:
        """Run what there is, on a thread that is not this object's."""
        while True:
            with self._monitor:
                self._busy = bool(self._todo)
                if not self._busy:
                    self._idle.notify_all()
                    return
                fn = self._todo.popleft()
            self._call(fn)

    def drain(self, timeout: float | None) -> bool:
        """Wait until every callback has run; at once when called from one of them."""
        if threading.current_thread() is self._thread:
            return True
        with self._idle:
            return bool(self._idle.wait_for(lambda: not (self._busy or self._todo), timeout))

    def close(self) -> None:
        """Let the thread end once nothing is left to do; what comes later is run all the same."""
        with self._monitor:
            self._closing = True
            self._monitor.notify()

    def _run(self) -> None:
        self._clock.began()
        try:
            while True:
                fn = self._next()
                if fn is None:
                    return
                self._call(fn)
                del fn
        finally:
            self._clock.ended()

    def _next(self) -> Callable[[], Any] | None:
        with self._monitor:
            self._busy = False
            while not self._todo:
                self._idle.notify_all()
                if self._closing:
                    self._thread = None
                    return None
                self._monitor.wait()
            self._busy = True
            return self._todo.popleft()

    def _call(self, fn: Callable[[], Any]) -> None:
        try:
            self._run_callback(fn)
        except BaseException as error:
            self._report(error)
