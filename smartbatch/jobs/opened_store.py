"""The store of a client's jobs: opened when it is first asked for, closed at a stop, opened again after
it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

from smartbatch.jobs.store import SqlStore, open_store

__all__ = ["OpenedStore"]


class OpenedStore:
    """A store that is opened at its first use; safe from any thread.

    Args:
        place: a path or a PostgreSQL address; ``None`` for the user's own store.
        wall: returns Unix seconds.
        rng: random numbers for ids of owners.
    """

    def __init__(self, place: str | None, *, wall: Callable[[], float], rng: Random) -> None:
        self._place = place
        self._wall = wall
        self._rng = rng
        self._opening = threading.Lock()
        self._store: SqlStore | None = None

    def get(self) -> SqlStore:
        """Return the store.

        Raises:
            StoreError, ConfigError: it cannot be used; the text says why.
        """
        store = self._store
        if store is not None:
            return store
        with self._opening:
            if self._store is None:
                self._store = open_store(self._place, wall=self._wall, rng=self._rng)
            return self._store

    def close(self) -> None:
        """Close the store if it is open."""
        with self._opening:
            store, self._store = self._store, None
        if store is not None:
            store.close()

    def abandon(self) -> None:
        """In a forked child: leave the parent's connections alone. Takes no inherited lock."""
        if self._store is not None:
            self._store.abandon()
