"""Threads of jobs, and waiting with a time limit, in the time of a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable

from smartbatch._clock import Clock, Monitor

__all__ = ["OwnThreads", "wait_while"]


class OwnThreads:
    """Starts threads, and knows them again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mine = threading.local()

    def start(self, run: Callable[[], None], name: str) -> None:
        """Start a daemon thread: a call that never returns must not keep the interpreter from ending.

        Raises:
            RuntimeError: the system allows no further thread, or the interpreter ends.
        """
        self._clock.spawned()
        try:
            threading.Thread(target=self._run, args=(run,), name=name, daemon=True).start()
        except RuntimeError:
            self._clock.unspawned()
            raise

    def has_current(self) -> bool:
        """Whether the caller runs on one of these threads, for example in an observer of the user's."""
        return getattr(self._mine, "here", False)

    def _run(self, run: Callable[[], None]) -> None:
        self._clock.began()
        self._mine.here = True
        try:
            run()
        finally:
            self._clock.ended()


def wait_while(condition: Callable[[], object], monitor: Monitor, clock: Clock, timeout: float) -> None:
    """Wait until ``condition`` is false, or for ``timeout`` seconds. The monitor must be held."""
    until = clock.now() + timeout
    while condition() and (remaining := until - clock.now()) > 0:
        monitor.wait(remaining)
