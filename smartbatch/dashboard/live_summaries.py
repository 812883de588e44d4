"""Errors and spending of a client without a store, gathered from its events since the dashboard was made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import final

from attrs import define, evolve

from smartbatch._fork import PerProcess
from smartbatch.core.limits.failures import OTHER_MESSAGES, pattern_of
from smartbatch.errors import snake_case
from smartbatch.events import Event, RequestFinished
from smartbatch.jobs.summary_records import ErrorGroup, Spending

GROUPS = 200
"""Groups of errors that are told apart; errors of further ones are counted by their kind."""
HOURS = 24 * 7
HOUR = 3600.0


@define(eq=False, repr=False)
class _State:
    """What one process saw."""

    lock: threading.RLock
    groups: dict[tuple[str, str], ErrorGroup]
    spent: dict[tuple[float, str, str], Spending]


@final
class LiveSummaries:
    """An observer of a client's events, safe from any thread, in bounded memory.

    What a client with a store does is in the store; requests of jobs are always there.

    Args:
        wall: returns Unix seconds.
        is_stored: whether the client writes what it sees into its store now.
    """

    def __init__(self, wall: Callable[[], float], is_stored: Callable[[], bool]) -> None:
        self._wall = wall
        self._is_stored = is_stored
        self._states = PerProcess(lambda: _State(threading.RLock(), {}, {}))

    def __call__(self, event: Event) -> None:
        """Count a request that ended, and that no store has."""
        if not isinstance(event, RequestFinished) or event.of_job or self._is_stored():
            return
        state, now = self._states.get(), self._wall()
        with state.lock:
            _spend(state.spent, event, now // HOUR * HOUR)
            if event.error is not None and not event.ok and not event.cancelled:
                _fail(state.groups, event, event.error, now)

    def error_groups(self) -> list[ErrorGroup]:
        """Return groups of errors, those seen last first."""
        state = self._states.get()
        with state.lock:
            return sorted(state.groups.values(), key=lambda group: -group.last_at)

    def spending(self, since: float) -> list[Spending]:
        """Return what was spent by hour, model and route, oldest first, from the hour of ``since`` on."""
        state = self._states.get()
        with state.lock:
            return [evolve(state.spent[key]) for key in sorted(state.spent) if key[0] > since - HOUR]


def _fail(groups: dict[tuple[str, str], ErrorGroup], event: RequestFinished, error: str, now: float) -> None:
    kind, message = snake_case(error), pattern_of(event.message or "")
    if (kind, message) not in groups and len(groups) >= GROUPS:
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


def _spend(spent: dict[tuple[float, str, str], Spending], event: RequestFinished, hour: float) -> None:
    key = (hour, event.model, "" if event.route is None else event.route.value)
    known = spent.get(key)
    if known is None:
        for old in [each for each in spent if each[0] <= hour - HOURS * HOUR]:
            del spent[old]
        known = spent[key] = Spending(key[1], key[2], hour=hour)
    known.count(event.cost, event.usage, failed=event.error is not None and not event.cancelled)


def together(groups: Iterable[ErrorGroup]) -> list[ErrorGroup]:
    """Return groups of errors with one for each kind and message, those seen last first."""
    found: dict[tuple[str, str], ErrorGroup] = {}
    for one in sorted(groups, key=lambda group: -group.last_at):
        latest = found.setdefault((one.kind, one.message), one)
        if latest is not one:
            found[one.kind, one.message] = evolve(
                latest, count=latest.count + one.count, first_at=min(latest.first_at, one.first_at)
            )
    return list(found.values())
