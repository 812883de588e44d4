"""The store of one client: opened when first needed, and read within a time limit."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from smartbatch._clock import Clock
from smartbatch.errors import SmartbatchError
from smartbatch.jobs.records import StoredCounts
from smartbatch.jobs.store import SqlStore, open_store
from smartbatch.jobs.threads import TimedReads
from smartbatch.types import T


class ClientStore:
    """Opens a store once, however many threads need it. Thread-safe.

    Args:
        place: path or address of the store.
        counted: called with a job's id and what one transaction stored of it.
    """

    def __init__(
        self,
        place: str | None,
        clock: Clock,
        *,
        rng: Random,
        counted: Callable[[str, StoredCounts], None],
    ) -> None:
        self._place = place
        self._clock = clock
        self._rng = rng
        self._counted = counted
        self._monitor = clock.monitor()
        self._reads = TimedReads(clock)
        self._opening = False
        self.opened: SqlStore | None = None

    def get(self) -> SqlStore:
        """Return the store, opening it if necessary.

        Raises:
            StoreError, ConfigError: it cannot be used; the message says why.
        """
        if (store := self.opened) is not None:
            return store
        with self._monitor:
            self._monitor.wait_for(lambda: not self._opening)
            if self.opened is not None:
                return self.opened
            self._opening = True
        opened: SqlStore | None = None
        try:  # without the lock: opening may hang
            opened = open_store(self._place, wall=self._clock.wall, rng=self._rng, counted=self._counted)
        finally:
            with self._monitor:
                self._opening, self.opened = False, opened
                self._monitor.notify_all()
        return opened

    def detach(self) -> SqlStore | None:
        """Return the open store, to be closed by the caller; the next use opens it again."""
        with self._monitor:
            store, self.opened = self.opened, None
            return store

    def read_within(
        self, read: Callable[[], T], seconds: float | None, error: Callable[[str], SmartbatchError]
    ) -> T:
        """Return what ``read`` reads from the store.

        Raises:
            SmartbatchError: made by ``error`` from a message, if the store has not answered for ``seconds``.
        """
        if seconds is None:
            return read()
        if found := self._reads.read(read, seconds, "smartbatch-look"):
            return found[0]
        place = "of the client" if self.opened is None else self.opened.place
        raise error(
            f"the store {place} has not answered for {seconds:.3g} s: another process may have locked it, or "
            "its server may be hanging; nothing is lost, try again later"
        )
