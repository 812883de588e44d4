"""A value that is made at its first use, once in each process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["PerProcess"]

_T = TypeVar("_T")


class PerProcess(Generic[_T]):
    """Makes a value at its first use; a forked child makes its own.

    Making one of these costs nothing and makes no lock. :meth:`get` takes none once the value exists: value
    and process id are published together, in one assignment. Threads that meet at the first use wait for the
    one that makes the value. The lock is this process's own, never one that a thread of the parent holds.

    Args:
        make: makes the value; what it raises goes to the caller, and the next use tries again.
    """

    __slots__ = ("_locks", "_made", "_make")

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make = make
        self._made: tuple[int, _T] | None = None
        self._locks: dict[int, threading.RLock] = {}

    def get(self) -> _T:
        """Return this process's value."""
        made = self._made
        if made is None or made[0] != os.getpid():
            with self.lock():
                made = self._made
                if made is None or made[0] != os.getpid():
                    made = self._made = (os.getpid(), self._make())
        return made[1]

    def take(self) -> _T | None:
        """Return this process's value and forget it; ``None`` where there is none."""
        with self.lock():
            made = self._made
            if made is None or made[0] != os.getpid():
                return None
            self._made = None
            return made[1]

    def inherited(self) -> _T | None:
        """Return and forget the value of another process, of which this one is a fork. Takes no lock."""
        made = self._made
        if made is None or made[0] == os.getpid():
            return None
        self._made = None
        return made[1]

    def lock(self) -> threading.RLock:
        """Return the lock under which this process makes and takes the value; ``setdefault`` is atomic."""
        return self._locks.setdefault(os.getpid(), threading.RLock())
