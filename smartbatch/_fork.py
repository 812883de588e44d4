"""Turns at an SQLite file: one thread reads, one writes, and a fork waits for both.

A fork copies what SQLite itself knows of open files, their locks and its own mutexes: in the child they would
be locked for ever, or taken for its own. So a fork waits for the reads and writes under way and closes the
connections first (https://sqlite.org/howtocorrupt.html, 2.6); they are opened again when they are needed.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

__all__ = ["Turns"]

FORK_PATIENCE = 5.0
"""Seconds that a fork waits for a read, and for a write, of other threads. One that takes longer may wait for
the very thread that forks; then the child may find the file locked."""


class Turns:
    """The locks of a file's two connections. In a forked child it is of no use: make another one.

    Args:
        cut: closes the connections; called before a fork, by whose turn it is at both.

    Attributes:
        reading: is held by whoever reads.
        changing: is held by whoever writes.
        changer: the thread that wrote last, to be set by whoever writes.
    """

    def __init__(self, cut: Callable[[], None]) -> None:
        self.reading, self.changing = threading.Lock(), threading.Lock()
        self.changer: int | None = None
        self._cut = cut
        self._process = os.getpid()
        self._forking: int | None = None
        key = id(self)
        _known[key] = weakref.ref(self, lambda _: _known.pop(key, None))

    def before_fork(self) -> None:
        """Wait for the others, close the connections, and let nobody open one before :meth:`after_fork`."""
        me = threading.get_ident()
        if self._process != os.getpid():
            return
        if self.changing.locked() and self.changer == me:  # it forks in the middle of its own write
            return
        if not self.changing.acquire(timeout=FORK_PATIENCE):
            return
        if not self.reading.acquire(timeout=FORK_PATIENCE):
            self.changing.release()
            return
        self._cut()
        self._forking = me

    def after_fork(self) -> None:
        """Go on, in the process that forked."""
        if self._forking == threading.get_ident():
            self._forking = None
            self.reading.release()
            self.changing.release()


# A plain dictionary: a WeakSet must not change while it is read, and others may open files meanwhile.
_known: dict[int, weakref.ref[Turns]] = {}


def _all() -> list[Turns]:
    return [turns for turns in (reference() for reference in list(_known.values())) if turns is not None]


def _before_fork() -> None:
    for turns in _all():
        turns.before_fork()


def _after_fork() -> None:
    for turns in _all():
        turns.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)
