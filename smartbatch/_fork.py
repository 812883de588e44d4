"""Forks and the end of the interpreter: who hears of them, and how an SQLite file survives a fork.

All hooks of the library are here. In a forked child no lock of the parent may be taken: the thread that holds
it may not exist in the child. So what is registered makes itself anew and touches nothing it inherited.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from smartbatch._clock import RealClock

__all__ = ["FileLocks", "Forked", "Stoppable", "on_exit", "on_fork"]

FORK_WAIT = 5.0
"""Seconds that a fork waits for a read, and for a write, of other threads. One that takes longer may wait for
the very thread that forks; then the child may find the file locked."""


class Forked(Protocol):
    """Something that must begin anew in a forked child."""

    def after_fork(self) -> None:
        """Called in the child: start empty, touch no inherited lock, socket or thread."""
        ...


class Stoppable(Protocol):
    """Something with threads that must end before the interpreter does."""

    def at_exit(self, waited: float, *, interrupted: bool) -> None:
        """Called when the interpreter exits: finish within the grace period, fail the rest.

        Args:
            waited: seconds the exit has already waited for others; they count against the grace period.
            interrupted: whether Ctrl-C ended the script, so that nothing more should start.
        """
        ...


_T = TypeVar("_T")


class _Registry(Generic[_T]):
    """Objects held weakly, in the order in which they were added.

    A plain dictionary of weak references: a WeakSet keeps a guard that a fork could catch half-way.
    """

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Any]] = {}

    def add(self, one: _T) -> None:
        key = id(one)
        self._known[key] = weakref.ref(one, lambda _: self._known.pop(key, None))

    def living(self) -> list[_T]:
        return [one for one in (reference() for reference in list(self._known.values())) if one is not None]


_forked: _Registry[Forked] = _Registry()
_stoppable: _Registry[Stoppable] = _Registry()


def on_fork(one: Forked) -> None:
    """Call ``one.after_fork()`` in each forked child, for as long as ``one`` exists."""
    _forked.add(one)


def on_exit(one: Stoppable) -> None:
    """Call ``one.at_exit`` when the interpreter exits, if ``one`` still exists."""
    _stoppable.add(one)


class FileLocks:
    """The locks of an SQLite file's two connections: one thread reads, one writes, and a fork waits for both.

    A fork copies what SQLite itself knows of open files, their locks and its own mutexes: in the child they
    would be locked for ever, or taken for its own. So a fork waits for the reads and writes under way and
    closes the connections first (https://sqlite.org/howtocorrupt.html, 2.6); they are opened again when they
    are needed. In a forked child this object is of no use: make another one.

    Args:
        close: closes the connections; called before a fork, with both locks held.

    Attributes:
        reading: held while the file is read.
        writing: held while the file is written.
        writer: the thread that wrote last, to be set by whoever writes.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self.reading, self.writing = threading.Lock(), threading.Lock()
        self.writer: int | None = None
        self._close = close
        self._process = os.getpid()
        self._forking: int | None = None
        _files.add(self)

    def before_fork(self) -> None:
        """Wait for the others, close the connections, and let nobody open one before :meth:`after_fork`."""
        me = threading.get_ident()
        if self._process != os.getpid():
            return
        if self.writing.locked() and self.writer == me:  # it forks in the middle of its own write
            return
        if not self.writing.acquire(timeout=FORK_WAIT):
            return
        if not self.reading.acquire(timeout=FORK_WAIT):
            self.writing.release()
            return
        self._close()
        self._forking = me

    def after_fork_in_parent(self) -> None:
        """Go on, in the process that forked."""
        if self._forking == threading.get_ident():
            self._forking = None
            self.reading.release()
            self.writing.release()


_files: _Registry[FileLocks] = _Registry()


def _before_fork() -> None:
    for file in _files.living():
        file.before_fork()


def _after_fork_in_parent() -> None:
    for file in _files.living():
        file.after_fork_in_parent()


def _after_fork_in_child() -> None:
    for one in _forked.living():
        one.after_fork()


def _at_exit() -> None:
    began = RealClock.now()
    interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt
    for one in _stoppable.living():
        one.at_exit(RealClock.now() - began, interrupted=interrupted)


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )
