"""Virtual time in which one thread runs at a time, so that runs of the real engine are exactly repeatable.

With ``VirtualClock``, threads that wake at the same time run in parallel, in an order chosen by the system.
With this clock, they run one after the other, in the order in which they were woken. A thread that waits
passes control to the next one, and time advances when all threads wait.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections import deque

from smartbatch._clock import VirtualMonitor, WaitingThread

__all__ = ["SerialClock"]


class SerialClock:
    """A :class:`smartbatch._clock.Clock` for repeatable runs.

    The thread that drives the run registers itself with :meth:`spawned` and :meth:`began`, and waits only on
    monitors of this clock. After :meth:`ended` it may wait for anything.
    """

    def __init__(self, wall: float = 1_795_000_000.0) -> None:
        self._guard = threading.Lock()
        self._begun = threading.Condition(self._guard)
        self._now = 0.0
        self._wall = wall
        self._running = False
        self._starting = 0
        self._ready: deque[WaitingThread] = deque()
        self._deadlines: list[tuple[float, int, WaitingThread]] = []
        self._idle: dict[WaitingThread, float] = {}
        self._sequence = itertools.count()
        self._mine = threading.local()

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall + self._now

    def monitor(self, lock: threading.Lock | None = None) -> VirtualMonitor:
        return VirtualMonitor(self, lock or threading.Lock())

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            with (monitor := self.monitor()):
                monitor.wait(seconds)

    def spawned(self) -> None:
        """Wait until the previously started thread has begun; otherwise both would race for the next turn."""
        with self._guard:
            while self._starting:
                self._begun.wait()
            self._starting = 1

    def began(self) -> None:
        waiter = WaitingThread(counted=True)
        self._mine.counted = True
        with self._guard:
            self._starting = 0
            self._begun.notify_all()
            self._ready.append(waiter)
            self._next_locked()
        waiter.gate.acquire()

    def ended(self) -> None:
        self._mine.counted = False
        with self._guard:
            self._running = False
            self._next_locked()

    def unspawned(self) -> None:
        with self._guard:
            self._starting = 0
            self._begun.notify_all()
            self._next_locked()

    def counted(self) -> bool:
        return getattr(self._mine, "counted", False)

    def park(
        self, waiter: WaitingThread, timeout: float | None, *, idle: bool, glance: float | None = None
    ) -> None:
        """Let ``waiter`` wait, and run the next thread."""
        with self._guard:
            deadline = math.inf if timeout is None else self._now + max(0.0, timeout)
            if glance is not None:
                self._idle[waiter] = self._now + max(0.0, glance)
            if idle:
                self._idle[waiter] = deadline
            elif timeout is not None:
                heapq.heappush(self._deadlines, (deadline, next(self._sequence), waiter))
            if waiter.counted:
                self._running = False
            self._next_locked()

    def wake(self, waiter: WaitingThread, *, notified: bool) -> bool:
        """Run ``waiter`` when its turn comes; return False if it is already running."""
        with self._guard:
            woken = self._wake_locked(waiter, notified=notified)
            self._next_locked()
        return woken

    def _wake_locked(self, waiter: WaitingThread, *, notified: bool) -> bool:
        if waiter.woken:
            return False
        waiter.woken, waiter.notified = True, notified
        self._idle.pop(waiter, None)
        if waiter.counted:
            self._ready.append(waiter)
        else:
            waiter.gate.release()
        return True

    def _next_locked(self) -> None:
        """Run the next thread if none is running. If none is ready, time moves on."""
        while not self._running and not self._starting:
            if self._ready:
                self._running = True
                self._ready.popleft().gate.release()
                return
            if not self._deadlines:
                return
            deadline, _, waiter = heapq.heappop(self._deadlines)
            if waiter.woken:
                continue
            self._now = max(self._now, deadline)
            self._wake_locked(waiter, notified=False)
            for late in [late for late, until in self._idle.items() if until <= self._now]:
                self._wake_locked(late, notified=False)
