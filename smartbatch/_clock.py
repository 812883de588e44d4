"""Time and waiting. No other module of the library waits or notifies.

All waiting happens on a :class:`Monitor` created by a :class:`Clock`. With :class:`VirtualClock` the same
threads run in virtual time: once every registered thread is parked, time moves to the next deadline. Locks
are real; only waiting is virtual.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from queue import SimpleQueue
from types import TracebackType
from typing import Protocol, TypeVar, runtime_checkable

_T = TypeVar("_T")


class Monitor(Protocol):
    """A lock with a condition. Several monitors may share one lock."""

    lock: threading.Lock

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def wait(self, timeout: float | None = None, *, idle: bool = False, glance: float | None = None) -> bool:
        """Release the lock, wait for a notification or ``timeout`` seconds, and take the lock again.

        Return False on a timeout. The caller must hold the lock. With ``idle``, virtual time does not advance
        to the timeout, which only serves to close unused resources. ``glance`` is an additional timeout of
        this kind.
        """
        ...

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> object:
        """Wait up to ``timeout`` seconds until ``predicate`` is true, and return its last value."""
        ...

    def notify(self, n: int = 1) -> None:
        """Wake up to ``n`` waiters. The caller must hold the lock."""
        ...

    def notify_all(self) -> None:
        """Wake all waiters. The caller must hold the lock."""
        ...


@runtime_checkable
class Clock(Protocol):
    """Time, monitors, and the number of running threads, which virtual time needs."""

    def now(self) -> float:
        """Return monotonic seconds; only differences are meaningful."""
        ...

    def wall(self) -> float:
        """Return Unix seconds."""
        ...

    def monitor(self, lock: threading.Lock | None = None) -> Monitor:
        """Return a new monitor. Monitors can share a ``lock``."""
        ...

    def sleep(self, seconds: float) -> None:
        """Simulate latency. To wait for another thread, use a monitor."""
        ...

    def spawned(self) -> None:
        """Count work given to a thread that has not started, so that virtual time does not pass it."""
        ...

    def began(self) -> None:
        """Mark the start of work counted by :meth:`spawned`, on its thread."""
        ...

    def ended(self) -> None:
        """Mark the end of such work, on its thread."""
        ...

    def unspawned(self) -> None:
        """Undo :meth:`spawned` for work that will not start."""
        ...


class _RealMonitor(threading.Condition):
    """A condition on a lock that is not reentrant, so that a nested acquisition shows up in tests.

    ``with`` calls the lock's own methods, which are written in C. With the Python methods of ``Condition``,
    Ctrl-C could arrive between taking the lock and entering the block, and leave it locked forever.
    """

    __enter__ = property(attrgetter("lock.__enter__"))
    __exit__ = property(attrgetter("lock.__exit__"))

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__(lock)
        self.lock = lock

    def wait(
        self,
        timeout: float | None = None,
        *,
        idle: bool = False,  # noqa: ARG002
        glance: float | None = None,
    ) -> bool:
        """See :meth:`Monitor.wait`. Timeouts above the system's maximum are shortened."""
        if glance is not None:
            timeout = glance if timeout is None else min(timeout, glance)
        return super().wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))


class RealClock:
    """The machine's clocks, including waits that are never virtual because the interpreter depends on them:
    in forks, finalizers and signal handlers.
    """

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    @staticmethod
    def sleep(seconds: float) -> None:
        """Look up ``time.sleep`` at each call, because gevent may have replaced it."""
        time.sleep(seconds)

    @staticmethod
    def receive(inbox: SimpleQueue[_T]) -> _T:
        return inbox.get()

    @staticmethod
    def acquire(lock: threading.Lock, seconds: float) -> bool:
        return lock.acquire(timeout=seconds)

    @staticmethod
    def join(thread: threading.Thread) -> None:
        thread.join()

    def monitor(self, lock: threading.Lock | None = None) -> Monitor:
        return _RealMonitor(lock or threading.Lock())

    def spawned(self) -> None: ...

    began = ended = unspawned = spawned


class SteadyWall:
    """Unix seconds unaffected by changes of the wall clock, which is read once.

    Includes the time the machine slept, if the system reports it, because the monotonic clock stops then.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.wall() - clock.now()
        self._slept = _slept(clock)

    def __call__(self) -> float:
        return self._clock.now() + self._offset + _slept(self._clock) - self._slept

    def ahead(self) -> float:
        """Return the seconds by which the wall clock was set ahead since the first reading; negative if it
        was set back.
        """
        return self._clock.wall() - self()


def _slept(clock: Clock) -> float:
    if not isinstance(clock, RealClock) or not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


class WaitingThread:
    __slots__ = ("counted", "gate", "notified", "woken")

    def __init__(self, counted: bool) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.counted = counted
        self.woken = False
        self.notified = False


class VirtualClock:
    """Virtual time: once every registered thread is parked, time jumps to the next deadline.

    Threads of the library register themselves. A test can register its own thread with :meth:`spawned` and
    :meth:`began`: time then stops while the thread works, and :meth:`sleep` ends exactly on time. Time does
    not stop for other threads. To stop it while such a thread prepares a scenario, use ``with
    clock.held():``.

    Args:
        start: the initial value of :meth:`now`, in seconds.
        wall: the Unix time at ``start``, in seconds.
    """

    def __init__(self, start: float = 0.0, wall: float = 1_795_000_000.0) -> None:
        self._guard = threading.Lock()
        self._now = start
        self._wall_offset = wall - start
        self._active = 0
        self._deadlines: list[tuple[float, int, WaitingThread]] = []
        self._idle: dict[WaitingThread, float] = {}
        self._sequence = itertools.count()
        self._mine = threading.local()

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now + self._wall_offset

    def set_wall(self, ahead: float) -> None:
        """Set the wall clock ahead by some seconds, or back if negative; monotonic time does not change."""
        self._wall_offset += ahead

    def monitor(self, lock: threading.Lock | None = None) -> Monitor:
        return VirtualMonitor(self, lock or threading.Lock())

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            monitor = self.monitor()
            with monitor:
                monitor.wait(seconds)

    def spawned(self) -> None:
        with self._guard:
            self._active += 1

    def began(self) -> None:
        self._mine.counted = True

    def ended(self) -> None:
        self._mine.counted = False
        self.unspawned()

    def unspawned(self) -> None:
        with self._guard:
            self._active -= 1
            self._step_locked()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Stop time while the block runs."""
        self.spawned()
        try:
            yield
        finally:
            self.unspawned()

    def pending(self) -> int:
        """Return the number of threads that wait for a point in time rather than only for a notification."""
        with self._guard:
            return sum(not waiter.woken for _, _, waiter in self._deadlines)

    def counted(self) -> bool:
        return getattr(self._mine, "counted", False)

    def park(self, waiter: WaitingThread, timeout: float | None, *, idle: bool, glance: float | None) -> None:
        with self._guard:
            deadline = math.inf if timeout is None else self._now + max(0.0, timeout)
            if glance is not None:
                self._idle[waiter] = self._now + max(0.0, glance)
            if idle:
                self._idle[waiter] = deadline
            elif timeout is not None:
                heapq.heappush(self._deadlines, (deadline, next(self._sequence), waiter))
            if waiter.counted:
                self._active -= 1
            self._step_locked()

    def wake(self, waiter: WaitingThread, *, notified: bool) -> bool:
        with self._guard:
            return self._wake_locked(waiter, notified=notified)

    def _wake_locked(self, waiter: WaitingThread, *, notified: bool) -> bool:
        if waiter.woken:
            return False
        waiter.woken = True
        waiter.notified = notified
        self._idle.pop(waiter, None)
        if waiter.counted:
            self._active += 1
        waiter.gate.release()
        return True

    def _step_locked(self) -> None:
        """Advance to the next deadline as long as no registered thread runs, and wake other waiters on the
        way.
        """
        while self._active == 0 and self._deadlines:
            deadline, _, waiter = heapq.heappop(self._deadlines)
            if waiter.woken:
                continue
            self._now = max(self._now, deadline)
            self._wake_locked(waiter, notified=False)
            for late in [late for late, until in self._idle.items() if until <= self._now]:
                self._wake_locked(late, notified=False)


class VirtualTime(Protocol):
    """The part of a clock that a :class:`VirtualMonitor` uses."""

    def now(self) -> float: ...

    def counted(self) -> bool:
        """Whether the current thread is registered."""
        ...

    def park(self, waiter: WaitingThread, timeout: float | None, *, idle: bool, glance: float | None) -> None:
        """Count the current thread as waiting until :meth:`wake` or its timeout."""
        ...

    def wake(self, waiter: WaitingThread, *, notified: bool) -> bool:
        """Resume ``waiter``; return False if it is already running."""
        ...


class VirtualMonitor:
    """A :class:`Monitor` with virtual timeouts."""

    def __init__(self, clock: VirtualTime, lock: threading.Lock) -> None:
        self.lock = lock
        self._clock = clock
        self._waiters: deque[WaitingThread] = deque()

    def __enter__(self) -> VirtualMonitor:
        self.lock.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lock.release()

    def wait(self, timeout: float | None = None, *, idle: bool = False, glance: float | None = None) -> bool:
        waiter = WaitingThread(self._clock.counted())
        self._waiters.append(waiter)
        self._clock.park(waiter, timeout, idle=idle, glance=glance)
        self.lock.release()
        try:
            waiter.gate.acquire()
        finally:
            self._clock.wake(waiter, notified=False)  # Ctrl-C interrupted the wait
            self.lock.acquire()
            if not waiter.notified and waiter in self._waiters:
                self._waiters.remove(waiter)
        return waiter.notified

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> object:
        end = None if timeout is None else self._clock.now() + timeout
        while not (result := predicate()):
            left = None if end is None else end - self._clock.now()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        while n > 0 and self._waiters:
            if self._clock.wake(self._waiters.popleft(), notified=True):
                n -= 1

    def notify_all(self) -> None:
        self.notify(len(self._waiters))
