"""Where the results of a list arrive while its caller waits for them."""

from __future__ import annotations

from collections import deque

from smartbatch._clock import Clock
from smartbatch.types import Result

__all__ = ["ResultInbox"]


class ResultInbox:
    """Results in the order they came, each with the position of its request."""

    def __init__(self, clock: Clock) -> None:
        self._monitor = clock.monitor()
        self._arrived: deque[tuple[int, Result]] = deque()

    def put(self, position: int, result: Result) -> None:
        """Deliver; called by workers, never blocks."""
        with self._monitor:
            self._arrived.append((position, result))
            self._monitor.notify()

    def take(self) -> tuple[int, Result]:
        """Return the next arrival, waiting for it."""
        with self._monitor:
            while not self._arrived:
                self._monitor.wait()
            return self._arrived.popleft()

    def __len__(self) -> int:
        return len(self._arrived)
