"""Time of a simulation: one thread, so it passes only where the world advances it."""

from __future__ import annotations

import threading
from typing import NoReturn

from smartbatch._clock import Monitor


class SimClock:
    START = 1_795_000_000.0  # Unix seconds at the beginning

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self.START + self._now

    def advance(self, seconds: float) -> None:
        assert seconds >= 0
        self._now += seconds

    def reach(self, moment: float) -> None:
        self._now = max(self._now, moment)

    def monitor(self, lock: threading.Lock | None = None) -> Monitor:
        raise AssertionError("a step of a job does not wait")

    def sleep(self, seconds: float) -> NoReturn:
        raise AssertionError("a step of a job does not sleep")

    def spawned(self) -> NoReturn:
        raise AssertionError("a step of a job starts no thread")

    began = ended = unspawned = spawned
