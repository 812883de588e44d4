"""The store of a client's jobs, which is opened when it is first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

from smartbatch.jobs.store import Counted, SqlStore, open_store


class OpenedStore:
    """A store that is opened at its first use, closed at a stop, and opened again after it; thread-safe.

    Args:
        place: a path or a PostgreSQL address; ``None`` for the user's own store.
        wall: returns Unix seconds.
        rng: random numbers for ids of owners.
        counted: told what was counted of jobs when results were stored; see :class:`SqlStore`.
    """

    def __init__(
        self,
        place: str | None,
        *,
        wall: Callable[[], float],
        rng: Random,
        counted: Counted | None = None,
    ) -> None:
        self._place = place
        self._counted = counted
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
                self._store = open_store(self._place, wall=self._wall, rng=self._rng, counted=self._counted)
            return self._store

    @property
    def is_open(self) -> bool:
        """Whether it is in use."""
        return self._store is not None

    def peek(self) -> SqlStore | None:
        """Return the store if it is in use."""
        return self._store

    @property
    def place(self) -> str:
        """Where it is, for people; without opening it, which may hang."""
        return "of the client" if self._store is None else self._store.place

    def detach(self) -> SqlStore | None:
        """Return the open store, which is the caller's to close; the next use opens another.

        It takes no lock: who opens one may hang.
        """
        store, self._store = self._store, None
        return store

    def abandon(self) -> None:
        """In a forked child: leave the parent's connections alone. Takes no inherited lock."""
        if self._store is not None:
            self._store.abandon()
