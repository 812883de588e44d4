"""The thread of a test takes part in virtual time: time stands while it works, and moves only while it waits.

A clock knows its own waits. Those of the standard library (for a future, an event, a queue, the end of a
thread) are told to it here, for the threads that take part; others wait as they always did.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Thread
from typing import Any

from smartbatch._clock import VirtualClock

__all__ = ["taking_part"]

_clocks: dict[int, VirtualClock] = {}
"""The clocks of registered threads, by thread identifier."""
_asleep: dict[Any, VirtualClock] = {}
"""Locks on which registered threads wait in a condition, with the clock that does not count them."""

_wait: Callable[[Condition, float | None], bool] = Condition.wait
_notify: Callable[[Condition, int], None] = Condition.notify
_join: Callable[[Thread, float | None], None] = Thread.join


@contextmanager
def taking_part(clock: VirtualClock) -> Iterator[None]:
    """Stop ``clock`` within the block, except while this thread waits."""
    clock.spawned()
    clock.began()
    _clocks[threading.get_ident()] = clock
    try:
        yield
    finally:
        del _clocks[threading.get_ident()]
        clock.ended()


def _wait_in_time(self: Any, timeout: float | None = None) -> bool:
    """Wait as ``Condition.wait`` does. From a notification on, and not only from waking up, time stands."""
    clock = _clocks.get(threading.get_ident())
    if clock is None:
        return _wait(self, timeout)
    lock = threading.Lock()
    lock.acquire()
    self._waiters.append(lock)
    _asleep[lock] = clock
    saved = self._release_save()
    clock.ended()
    notified = False
    try:
        notified = lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
    finally:
        self._acquire_restore(saved)
        if not notified and lock in self._waiters:
            self._waiters.remove(lock)
        if _asleep.pop(lock, None) is not None:
            clock.spawned()
        clock.began()
    return notified


def _notify_in_time(self: Any, n: int = 1) -> None:
    for lock in list(self._waiters)[:n]:
        clock = _asleep.pop(lock, None)
        if clock is not None:
            clock.spawned()
    _notify(self, n)


def _join_in_time(self: Thread, timeout: float | None = None) -> None:
    """Wait for a thread. How far time moves meanwhile is undefined."""
    clock = _clocks.get(threading.get_ident())
    if clock is None:
        return _join(self, timeout)
    clock.ended()
    try:
        _join(self, timeout)
    finally:
        clock.spawned()
        clock.began()


Condition.wait = _wait_in_time  # type: ignore[method-assign]
Condition.notify = _notify_in_time  # type: ignore[method-assign]
Thread.join = _join_in_time  # type: ignore[method-assign]
