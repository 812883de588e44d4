"""The store that a client names, as the client starts: no request in real time waits for one that hangs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from smartbatch._clock import Clock
from smartbatch.errors import SmartbatchError, StoreError
from smartbatch.jobs.threads import OwnThreads, run_within, wait_while
from smartbatch.observe import logs

ANSWERS_WITHIN = 3.0
"""Seconds for which a start waits for the store."""
TRIED_EVERY = 10.0
"""Seconds after which a store that could not be used is tried again."""


class StoreAtStart:
    """Opens a store within a time, and where that did not succeed, goes on in the background. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._threads = OwnThreads(clock)
        self._monitor = clock.monitor()
        self._turn: object | None = object()

    def opens(self, store: Callable[[], object]) -> bool:
        """Whether ``store``, which opens it, returns within :data:`ANSWERS_WITHIN`. Where it takes longer it
        goes on on a thread of its own; an error is logged."""
        try:
            if run_within(store, ANSWERS_WITHIN, self._clock, "smartbatch-open"):
                return True
            seconds = f"{ANSWERS_WITHIN:.3g} s"
            raise StoreError(f"the store has not answered for {seconds}; requests in real time go without it")
        except SmartbatchError as error:
            logs.job_error(None, error)
            return False

    def go_on(self, store: Callable[[], object], then: Callable[[], object]) -> None:
        """Try to open the store on a thread until it can be used, and do ``then``; :meth:`stop` ends it."""
        turn = self._turn
        if turn is None:
            return
        with suppress(RuntimeError):  # no thread can be had: as with a store that is never there
            self._threads.start(partial(self._try, turn, store, then), "smartbatch-open")

    def open(self) -> None:
        """Allow it, again after a :meth:`stop`; where it was allowed, a try that goes on is kept."""
        if self._turn is None:
            self._turn = object()

    def stop(self) -> None:
        """Try no longer, before the next :meth:`open`."""
        with self._monitor:
            self._turn = None
            self._monitor.notify_all()

    def _try(self, turn: object, store: Callable[[], object], then: Callable[[], object]) -> None:
        while self._turn is turn:
            try:
                store()
                if self._turn is turn:
                    then()
                return
            except StoreError:  # it was logged when it was tried first
                with self._monitor:
                    wait_while(lambda: self._turn is turn, self._monitor, self._clock, TRIED_EVERY)
            except SmartbatchError as error:  # its address is none: no later try finds it
                logs.job_error(None, error)
                return
