"""Ending a call from another thread while it still waits for its connection or for the first byte."""

from __future__ import annotations

import threading

from smartbatch.providers.http.pool import Connection


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
