"""Time and waiting: the only file of the library that waits or notifies.

All waiting happens on a :class:`Monitor` created by a :class:`Clock`. With :class:`VirtualClock` the same
threads run in virtual time: when every registered thread is parked, time moves to the next deadline. Locks
are ordinary; only waiting is virtual.
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
    """A lock and a condition on it. Several monitors may share one lock."""

    lock: threading.Lock

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def wait(self, timeout: float | None = None, *, idle: bool = False, glance: float | None = None) -> bool:
        """Release the lock, wait for a notification or ``timeout`` seconds, take the lock again.

        Returns False on a timeout. The lock must be held. With ``idle`` the timeout only ends unused things:
        virtual time does not move to it, and it is noticed once time has passed it anyway. The same holds for
        ``glance``, seconds after which the wait ends as well.
        """
        ...

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> object:
        """Wait until ``predicate`` holds, for at most ``timeout`` seconds; return its last value."""
        ...

    def notify(self, n: int = 1) -> None:
        """Wake up to ``n`` waiters. The lock must be held."""
        ...

    def notify_all(self) -> None:
        """Wake every waiter. The lock must be held."""
        ...


@runtime_checkable
class Clock(Protocol):
    """Seconds, monitors, and the count of running threads that virtual time needs."""

    def now(self) -> float:
        """Monotonic seconds; only differences are meaningful."""
        ...

    def wall(self) -> float:
        """Unix seconds."""
        ...

    def monitor(self, lock: threading.Lock | None = None) -> Monitor:
        """Return a new monitor, on ``lock`` if given."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait; for simulated latency only, never for another thread."""
        ...

    def spawned(self) -> None:
        """Work was handed to a thread that has not begun yet: time must not move past it."""
        ...

    def began(self) -> None:
        """The handed-over work begins on this thread."""
        ...

    def ended(self) -> None:
        """The work on this thread has ended."""
        ...

    def unspawned(self) -> None:
        """The work that was to be handed over will not begin."""
        ...


class _RealMonitor(threading.Condition):
    """A condition on a plain lock, so that holding it twice is a visible error.

    ``with`` uses the lock's own methods, which are written in C. Those of ``Condition`` are not, so a Ctrl-C
    could come between taking the lock and the block, and leave it locked forever.
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
        """Wait as :class:`Monitor` describes; timeouts beyond the system's range are cut, so check again."""
        if glance is not None:
            timeout = glance if timeout is None else min(timeout, glance)
        return super().wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))


class RealClock:
    """The machine's clocks, and the waits that are never virtual, because they serve the interpreter: at
    forks, in finalisers, for a thread that handles signals.
    """

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    @staticmethod
    def sleep(seconds: float) -> None:
        """Wait, by the current ``time.sleep``: green threads replace it."""
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

    def spawned(self) -> None:
        """Nothing to count: real time passes by itself."""

    began = ended = unspawned = spawned


class SteadyWall:
    """Unix seconds that no change of the wall clock moves: read once, then counted by the monotonic clock.

    Includes time the machine slept, if the system reports it: the monotonic clock stops then.

    Args:
        clock: provides the initial wall time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.wall() - clock.now()
        self._slept = _slept(clock)

    def __call__(self) -> float:
        """Return the Unix seconds now."""
        return self._clock.now() + self._offset + _slept(self._clock) - self._slept

    def ahead(self) -> float:
        """Return how many seconds the wall clock was set ahead since then; negative if set back."""
        return self._clock.wall() - self()


def _slept(clock: Clock) -> float:
    if not isinstance(clock, RealClock) or not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


class WaitingThread:
    """A thread that waits on a :class:`VirtualMonitor`."""

    __slots__ = ("counted", "gate", "notified", "woken")

    def __init__(self, counted: bool) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.counted = counted
        self.woken = False
        self.notified = False


class VirtualClock:
    """Time that moves from deadline to deadline once every registered thread is parked.

    Threads of the library register themselves, and so may a test's own, with :meth:`spawned` and
    :meth:`began`: time stops while it works, and a :meth:`sleep` ends exactly on time. A thread that is not
    registered does not count: time moves on while it works, while it waits for a future, and after its sleep
    has ended. ``with clock.held():`` stops time while such a thread prepares a scene.

    Args:
        start: the first value of :meth:`now`, seconds.
        wall: the Unix time at ``start``, seconds.
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
        """Set the wall clock ahead, or back, by some seconds; monotonic time is not affected."""
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
        """Keep time from moving while the block runs."""
        self.spawned()
        try:
            yield
        finally:
            self.unspawned()

    def pending(self) -> int:
        """Return how many threads wait for a time, and not only for a notification."""
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
        """Move to the next deadline while no thread runs, waking uncounted waiters on the way."""
        while self._active == 0 and self._deadlines:
            deadline, _, waiter = heapq.heappop(self._deadlines)
            if waiter.woken:
                continue
            self._now = max(self._now, deadline)
            self._wake_locked(waiter, notified=False)
            for late in [late for late, until in self._idle.items() if until <= self._now]:
                self._wake_locked(late, notified=False)


class VirtualTime(Protocol):
    """The part of a clock that a :class:`VirtualMonitor` needs."""

    def now(self) -> float: ...

    def counted(self) -> bool:
        """Whether the calling thread is registered."""
        ...

    def park(self, waiter: WaitingThread, timeout: float | None, *, idle: bool, glance: float | None) -> None:
        """Count the calling thread as waiting, until :meth:`wake` or its timeout."""
        ...

    def wake(self, waiter: WaitingThread, *, notified: bool) -> bool:
        """Let ``waiter`` continue; False if it already does."""
        ...


class VirtualMonitor:
    """A lock and a condition on it, with virtual timeouts."""

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
            self._clock.wake(waiter, notified=False)  # a Ctrl-C ended the wait
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
