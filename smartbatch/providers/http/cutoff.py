"""Ending a call from another thread while it still waits for its connection or for the first byte."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a client whose provider needs no network imports none
    from smartbatch.providers.http.connections import Connection

__all__ = ["Cutoff", "current", "cutting"]


class Cutoff:
    """Lets any thread end a call that has no answer yet; later it is the answer's to be closed.

    Attributes:
        used: whether it was ended so.
    """

    def __init__(self) -> None:
        self.used = False
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    def cut(self) -> None:
        """End the call. One that has not begun will not begin; one that has its head is not concerned."""
        with self._lock:
            self.used = True
            if self._connection is not None:
                self._connection.cut()

    def watch(self, connection: Connection) -> None:
        """The call uses ``connection`` from now on."""
        with self._lock:
            self._connection = connection
            if self.used:
                raise ConnectionAbortedError("ended before the call began")

    def let_go(self) -> None:
        """The call does so no longer: others may use it next."""
        with self._lock:
            if self._connection is not None:
                self._connection.is_cut = False
            self._connection = None


_current: ContextVar[Cutoff | None] = ContextVar("smartbatch_cutoff", default=None)


@contextmanager
def cutting() -> Iterator[Cutoff]:
    """Let the calls that this thread begins in the block be ended by others, whatever SDK is in between."""
    cutoff = Cutoff()
    token = _current.set(cutoff)
    try:
        yield cutoff
    finally:
        _current.reset(token)


def current() -> Cutoff | None:
    """Return the cutoff of the block this thread is in."""
    return _current.get()
