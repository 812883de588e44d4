"""What the pages read: the store, the processes that share limits, and a client's own queue."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import weakref
from typing import TYPE_CHECKING, Any, final

from smartbatch._clock import Clock, RealClock
from smartbatch._fork import PerProcess, on_fork
from smartbatch.config import BatchingConfig
from smartbatch.dashboard.live_summaries import LiveSummaries, together
from smartbatch.dashboard.shared_view import SharedReader, SharedView
from smartbatch.jobs.store import SqlStore, is_server, open_store, resolved_place
from smartbatch.jobs.summary_records import ErrorGroup, Spending
from smartbatch.prices import PriceBook
from smartbatch.routing.history import ForecastHistory
from smartbatch.stored_jobs import StoredJobs
from smartbatch.types import evolve

if TYPE_CHECKING:
    from smartbatch.client import BatchingClient

STEP = 5.0


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
        client, show_content: as given.
        clock: of the machine.
        jobs: the public verbs on jobs of the store, for acts.
    """

    def __init__(
        self,
        *,
        store: str | None = None,
        shared: str | None = None,
        client: BatchingClient | None = None,
        show_content: bool = False,
    ) -> None:
        given: dict[str, Any] = {"store": store, "shared": shared}
        told = {name: value for name, value in given.items() if value is not None}
        config = BatchingConfig.load(**told) if client is None else evolve(client.config, **told)
        place: dict[str, Any] = {"store": resolved_place(config.store)}  # it is the same after ``os.chdir``
        self.config: BatchingConfig = evolve(config, **place)
        self.client = client
        self.show_content = show_content
        self.clock = RealClock()
        self.jobs = StoredJobs(self.config, self.clock)
        self._live: LiveSummaries | None = None
        if client is not None:
            known = weakref.ref(client)  # its observer does not keep it alive
            self._live = LiveSummaries(
                self.clock.wall, lambda: (one := known()) is not None and one.uses_store
            )
            client.observe(self._live)
        self._states = PerProcess(lambda: _State(self.config, client, self.clock))

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
        return self._states.get().store() if self.file is None or os.path.exists(self.file) else None

    @property
    def file(self) -> str | None:
        """The file of the store; ``None`` where it is on a server."""
        place = str(self.config.store)
        return None if is_server(place) else place

    def written(self) -> int:
        """Return what changes when the file of the store is written to: nanoseconds since 1970 of its log."""
        with contextlib.suppress(OSError):
            if self.file is not None:
                return os.stat(f"{self.file}-wal").st_mtime_ns
        return 0

    @property
    def history(self) -> ForecastHistory:
        """How long calls and batches took, as far as the store knows."""
        history = self._states.get().history
        if self.store is not None:
            history.refresh()
        return history

    @property
    def prices(self) -> PriceBook:
        """The prices by which requests are counted."""
        return self._states.get().prices

    def now(self) -> float:
        """Return Unix seconds in steps of :data:`STEP`, so that a page on which nothing happens stays as it
        is, and is not sent again each second for its clocks."""
        return self.clock.wall() // STEP * STEP

    def error_groups(self) -> list[ErrorGroup]:
        """Return groups of errors of the store, and of a client that uses none, those seen last first."""
        stored = [] if self.store is None else self.store.summaries.error_groups()
        return stored if self._live is None else together([*stored, *self._live.error_groups()])

    def spending(self, since: float) -> list[Spending]:
        """Return what was spent by hour, model and route since some Unix seconds, likewise."""
        stored = [] if self.store is None else self.store.summaries.spending(since)
        return stored if self._live is None else [*stored, *self._live.spending(since)]

    def participants(self) -> SharedView:
        """Return what the processes that share limits told, about a second old."""
        return self._states.get().shared.view()


@final
class _State:
    """What one process has open."""

    def __init__(self, config: BatchingConfig, client: BatchingClient | None, clock: Clock) -> None:
        self.prices = PriceBook(config.prices)
        self._place = config.store
        self._clock = clock
        self._opening = threading.Lock()
        self._store: SqlStore | None = None
        self.history = ForecastHistory(clock, lambda _: None, store=self.store)
        self.shared = SharedReader(config.shared, client, clock)
        on_fork(self)

    def after_fork(self) -> None:
        """Leave the parent's connections alone."""
        if self._store is not None:
            self._store.abandon()

    def store(self) -> SqlStore:
        with self._opening:
            if self._store is None:
                self._store = open_store(self._place, wall=self._clock.wall, rng=random.SystemRandom())
            return self._store
