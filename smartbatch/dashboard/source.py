"""What the pages read: the store, the processes that share limits, and a client's own queue."""

from __future__ import annotations

import os
import random
import threading
from typing import TYPE_CHECKING, Any, final

from attrs import field, frozen

from smartbatch._clock import Clock, RealClock
from smartbatch._fork import PerProcess, on_fork
from smartbatch.config import BatchingConfig
from smartbatch.errors import SmartbatchError
from smartbatch.jobs.opened_store import OpenedStore
from smartbatch.jobs.store import SqlStore, is_server, resolved_place
from smartbatch.observe.participants import Participants
from smartbatch.realtime.shared.published import participants
from smartbatch.shortcuts import StoredJobs
from smartbatch.types import evolve

if TYPE_CHECKING:
    from smartbatch.client import BatchingClient

FRESH = 1.0
"""Seconds for which what the processes published is not read again: they publish every five."""


@frozen
class SharedView:
    """What is known of the processes that share limits.

    Attributes:
        found: what they published; without processes where nothing could be read.
        problem: why nothing could be read, for people; ``None`` where it could.
        is_off: whether nothing is shared, by the settings.
    """

    found: Participants = field(factory=lambda: Participants(place=""))
    problem: str | None = None
    is_off: bool = False


@final
class Source:
    """What pages read; safe from any thread, and a forked process begins anew.

    Args:
        store: as the setting ``store``; from the environment when ``None``, or the client's.
        shared: as the setting ``shared``, likewise.
        client: a client of this process, whose queue is shown as well.
        show_content: whether prompts and answers may be shown.
        clock: the time.

    Attributes:
        config: the settings.
        client, show_content, clock: as given.
        jobs: the public verbs on jobs of the store, for acts.
    """

    def __init__(
        self,
        *,
        store: str | None = None,
        shared: str | None = None,
        client: BatchingClient | None = None,
        show_content: bool = False,
        clock: Clock | None = None,
    ) -> None:
        given: dict[str, Any] = {"store": store, "shared": shared}
        told = {name: value for name, value in given.items() if value is not None}
        config = BatchingConfig.load(**told) if client is None else evolve(client.config, **told)
        place: dict[str, Any] = {"store": resolved_place(config.store)}  # it is the same after ``os.chdir``
        self.config: BatchingConfig = evolve(config, **place)
        self.client = client
        self.show_content = show_content
        self.clock = clock or RealClock()
        self.jobs = StoredJobs(self.config, self.clock)
        self._states = PerProcess(self._new_state)

    @property
    def place(self) -> str:
        """Where the store is, for people, without a password."""
        store = self.store
        return str(self.config.store) if store is None else store.place

    @property
    def store(self) -> SqlStore | None:
        """The store; ``None`` where there is none yet: looking makes no file.

        Raises:
            StoreError, ConfigError: it cannot be used.
        """
        place = str(self.config.store)
        if not is_server(place) and not os.path.exists(place):
            return None
        return self._states.get().store.get()

    def wall(self) -> float:
        """Return Unix seconds."""
        return self.clock.wall()

    def participants(self) -> SharedView:
        """Return what the processes that share limits published, at most :data:`FRESH` seconds old."""
        return self._states.get().shared.get(self.clock.now())

    def _new_state(self) -> _State:
        store = OpenedStore(self.config.store, wall=self.clock.wall, rng=random.SystemRandom())
        return _State(store, _SharedCache(self.config.shared))


@final
class _State:
    """What one process has open."""

    def __init__(self, store: OpenedStore, shared: _SharedCache) -> None:
        self.store = store
        self.shared = shared
        on_fork(self)

    def after_fork(self) -> None:
        """Leave the parent's connections alone."""
        self.store.abandon()


@final
class _SharedCache:
    """What the processes published, read once for all who look at the same time."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._read_at = -FRESH
        self._view = SharedView(is_off=address == "off")

    def get(self, now: float) -> SharedView:
        with self._lock:
            if not self._view.is_off and now - self._read_at >= FRESH:
                self._view, self._read_at = self._read(), now
            return self._view

    def _read(self) -> SharedView:
        try:
            return SharedView(participants(self._address))
        except SmartbatchError as error:
            return SharedView(problem=error.message)
