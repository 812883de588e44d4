"""Data for the pages, from the store, the processes that share limits, and a client's queue."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, final

from attrs import define, evolve, field, frozen

from smartbatch._clock import Clock, RealClock
from smartbatch._fork import PerProcess, on_fork
from smartbatch._version import __version__
from smartbatch.config import BatchingConfig, given_or_loaded
from smartbatch.errors import SmartbatchError, snake_case
from smartbatch.events import Event, RequestFinished
from smartbatch.failure_groups import OTHER_MESSAGES, pattern_of
from smartbatch.jobs.store import SqlStore, is_server, open_store, resolved_place
from smartbatch.jobs.summary_records import ErrorGroup, Spending
from smartbatch.observe.participants import Participant, Participants
from smartbatch.providers.price_book import PriceBook
from smartbatch.routing.history import ForecastHistory
from smartbatch.sharing.limit_leases import record_with
from smartbatch.sharing.publication import participants
from smartbatch.stored_jobs import StoredJobs
from smartbatch.types import evolve as evolve_config

if TYPE_CHECKING:
    from smartbatch.client import BatchingClient

CLOCK_STEP_SECONDS = 5.0
SHARED_TTL_SECONDS = 1.0  # time for which published figures are reused; processes publish every 5 s
MAX_ERROR_GROUPS = 200  # further errors are grouped by kind alone
SPENDING_HOURS = 24 * 7
_HOUR_SECONDS = 3600.0


# -- a client without a store --------------------------------------------------------------------------------


@define(eq=False, repr=False)
class _TimedCounts:
    lock: threading.RLock
    groups: dict[tuple[str, str], ErrorGroup]
    spent: dict[tuple[float, str, str], Spending]


@final
class LiveSummaries:
    """Counts errors and spending of a client without a store, from its events; safe from any thread.

    Clients with a store, and all jobs, write their figures to the store instead.

    Args:
        wall: returns Unix seconds.
        is_stored: whether the client is writing its figures to its store.
    """

    def __init__(self, wall: Callable[[], float], is_stored: Callable[[], bool]) -> None:
        self._wall = wall
        self._is_stored = is_stored
        self._counts = PerProcess(lambda: _TimedCounts(threading.RLock(), {}, {}))

    def __call__(self, event: Event) -> None:
        if not isinstance(event, RequestFinished) or event.of_job or self._is_stored():
            return
        counts, now = self._counts.get(), self._wall()
        with counts.lock:
            _add_spending(counts.spent, event, now // _HOUR_SECONDS * _HOUR_SECONDS)
            if event.error is not None and not event.ok and not event.cancelled:
                _add_failure(counts.groups, event, event.error, now)

    def error_groups(self) -> list[ErrorGroup]:
        counts = self._counts.get()
        with counts.lock:
            return sorted(counts.groups.values(), key=lambda group: -group.last_at)

    def spending(self, since: float) -> list[Spending]:
        counts = self._counts.get()
        with counts.lock:
            return [
                evolve(counts.spent[key]) for key in sorted(counts.spent) if key[0] > since - _HOUR_SECONDS
            ]


def _add_failure(
    groups: dict[tuple[str, str], ErrorGroup], event: RequestFinished, error: str, now: float
) -> None:
    kind, message = snake_case(error), pattern_of(event.message or "")
    if (kind, message) not in groups and len(groups) >= MAX_ERROR_GROUPS:
        message = OTHER_MESSAGES
    known = groups.get((kind, message))
    groups[kind, message] = ErrorGroup(
        kind=kind,
        message=message,
        count=1 if known is None else known.count + 1,
        first_at=now if known is None else known.first_at,
        last_at=now,
        model=event.model,
        job_id=None,
        row=None,
        request_id=event.request_id,
    )


def _add_spending(spent: dict[tuple[float, str, str], Spending], event: RequestFinished, hour: float) -> None:
    key = (hour, event.model, "" if event.route is None else event.route.value)
    known = spent.get(key)
    if known is None:
        for old in [each for each in spent if each[0] <= hour - SPENDING_HOURS * _HOUR_SECONDS]:
            del spent[old]
        known = spent[key] = Spending(key[1], key[2], hour=hour)
    known.count(event.cost, event.usage, failed=event.error is not None and not event.cancelled)


def merged_groups(groups: Iterable[ErrorGroup]) -> list[ErrorGroup]:
    """Merge groups with the same kind and message; latest first."""
    found: dict[tuple[str, str], ErrorGroup] = {}
    for one in sorted(groups, key=lambda group: -group.last_at):
        latest = found.setdefault((one.kind, one.message), one)
        if latest is not one:
            found[one.kind, one.message] = evolve(
                latest, count=latest.count + one.count, first_at=min(latest.first_at, one.first_at)
            )
    return list(found.values())


# -- processes that share limits -----------------------------------------------------------------------------


@frozen
class SharedView:
    """The processes that share limits, as far as they could be read."""

    # including the client of this process
    found: Participants = field(factory=lambda: Participants(place=""))
    problem: str | None = None  # reason for users if the processes cannot be read
    is_off: bool = False  # sharing is turned off in the settings


@frozen
class KindFailures:
    """Failures of one kind (see :class:`~smartbatch.ErrorKind`) in all processes that ever shared limits."""

    kind: str
    calls: float
    requests: float  # requests that failed for good
    age: float | None  # seconds since the last failure, if a process still reports it


def failures_of(shared: SharedView) -> list[KindFailures]:
    counts: dict[str, list[float]] = {}
    for at, family in enumerate(("call_failures", "request_failures")):
        for name, count in shared.found.sums.items():
            known, _, kind = name.partition(":")
            if known == family:
                counts.setdefault(kind, [0.0, 0.0])[at] += count
    ages: dict[str, float] = {}
    for one in shared.found.processes:
        for kind, age in one.errors.items():
            ages[kind] = min(ages.get(kind, one.age + age), one.age + age)
    found = [KindFailures(kind, both[0], both[1], ages.get(kind)) for kind, both in counts.items()]
    return sorted(found, key=lambda each: -each.calls - each.requests)


@final
class SharedReader:
    """Reads the published figures of processes, once for all visitors.

    The current figures of ``client`` are shown even if it shares nothing.
    """

    def __init__(self, address: str, client: BatchingClient | None, clock: Clock) -> None:
        self._address = address
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at = clock.now() - SHARED_TTL_SECONDS
        self._view = SharedView()

    def view(self) -> SharedView:
        with self._lock:
            if self._clock.now() - self._read_at >= SHARED_TTL_SECONDS:
                self._view, self._read_at = self._read(), self._clock.now()
            return self._view

    def _read(self) -> SharedView:
        view = SharedView(is_off=self._address == "off")
        if not view.is_off:
            try:
                view = SharedView(participants(self._address))
            except SmartbatchError as error:
                view = SharedView(problem=error.message)
        return view if self._client is None else evolve(view, found=_with_client(view.found, self._client))


def _with_client(found: Participants, client: BatchingClient) -> Participants:
    """Return the processes with the client's current figures, or with those of its process if the process
    publishes any.
    """
    own = record_with(client.metrics)
    if own is not None and any(one.member == own.member for one in found.processes):
        now = tuple(own if one.member == own.member else one for one in found.processes)
        return evolve(found, processes=now)
    alone = Participant(
        member="client",
        host=socket.gethostname(),
        pid=os.getpid(),
        library=__version__,
        started=0.0,
        sums=client.metrics.sums(),
        realtime=client.status,
    )
    return evolve(found, processes=(alone, *found.processes), sums=_added(found.sums, alone.sums))


def _added(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {*one, *other}}


# -- the source ----------------------------------------------------------------------------------------------


@final
class Source:
    """Reads the data of the pages. Thread-safe; a forked process opens its own connections.

    Args:
        config: settings; by default those of the client or the environment.
        store: overrides the setting ``store``.
        shared: overrides the setting ``shared``.
        client: a client of this process, whose queue is shown as well.
        show_content: whether prompts and answers may be shown.
    """

    def __init__(
        self,
        config: BatchingConfig | None = None,
        *,
        store: str | None = None,
        shared: str | None = None,
        client: BatchingClient | None = None,
        show_content: bool = False,
    ) -> None:
        given: dict[str, Any] = {"store": store, "shared": shared}
        settings = {name: value for name, value in given.items() if value is not None}
        given_config = client.config if config is None and client is not None else config
        config = given_or_loaded(given_config, **settings)
        place: dict[str, Any] = {"store": resolved_place(config.store)}  # unaffected by ``os.chdir``
        self.config: BatchingConfig = evolve_config(config, **place)
        self.client = client
        self.show_content = show_content
        self.clock = RealClock()
        self.jobs = StoredJobs(self.config, self.clock)  # used for actions
        self._live: LiveSummaries | None = None
        if client is not None:
            known = weakref.ref(client)  # the client's observer must not keep the client alive
            self._live = LiveSummaries(
                self.clock.wall, lambda: (one := known()) is not None and one.uses_store
            )
            client.observe(self._live)
        self._opened = PerProcess(lambda: _OpenedSource(self.config, client, self.clock))

    @property
    def place(self) -> str:
        store = self.store
        return str(self.config.store) if store is None else store.place

    @property
    def store(self) -> SqlStore | None:
        """The store; ``None`` if it does not exist yet, because reading creates no file.

        Raises:
            StoreError, ConfigError: the store cannot be used.
        """
        return self._opened.get().store() if self.file is None or os.path.exists(self.file) else None

    @property
    def file(self) -> str | None:
        """The file of the store; ``None`` if it is on a server."""
        place = str(self.config.store)
        return None if is_server(place) else place

    def written(self) -> int:
        """Return a number that changes when the store's file is written to: when its log was last changed."""
        with contextlib.suppress(OSError):
            if self.file is not None:
                return os.stat(f"{self.file}-wal").st_mtime_ns
        return 0

    @property
    def history(self) -> ForecastHistory:
        history = self._opened.get().history
        if self.store is not None:
            history.refresh()
        return history

    @property
    def prices(self) -> PriceBook:
        return self._opened.get().prices

    def now(self) -> float:
        """Return Unix seconds in steps, so that passing time alone does not change a page."""
        return self.clock.wall() // CLOCK_STEP_SECONDS * CLOCK_STEP_SECONDS

    def error_groups(self) -> list[ErrorGroup]:
        stored = [] if self.store is None else self.store.summaries.error_groups()
        return stored if self._live is None else merged_groups([*stored, *self._live.error_groups()])

    def spending(self, since: float) -> list[Spending]:
        stored = [] if self.store is None else self.store.summaries.spending(since)
        return stored if self._live is None else [*stored, *self._live.spending(since)]

    def participants(self) -> SharedView:
        """Return the processes that share limits; their figures are about a second old."""
        return self._opened.get().shared.view()


@final
class _OpenedSource:
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
        if self._store is not None:
            self._store.abandon()

    def store(self) -> SqlStore:
        with self._opening:
            if self._store is None:
                self._store = open_store(self._place, wall=self._clock.wall, rng=random.SystemRandom())
            return self._store
