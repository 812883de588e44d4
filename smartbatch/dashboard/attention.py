"""What does not go on by itself, in words, the most urgent first."""

from __future__ import annotations

import os
from collections.abc import Iterator

from smartbatch._html import Child, el, fragment
from smartbatch.dashboard.page import Query
from smartbatch.dashboard.shared_view import SharedView
from smartbatch.dashboard.source import Source
from smartbatch.jobs.records import JobState
from smartbatch.jobs.status import span
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.store.job_overview import JobFilter, JobLine
from smartbatch.observe.participants import LaneStatus

LONG = 60.0
"""Seconds of a cooldown that a person should know of."""
SPENT = 0.98
"""Share of a budget from which it counts as spent."""
ROOM = 256 << 20
"""Bytes that should be free where the store is."""
MOST = 20
"""Needs of one kind that are shown."""


def needs_of(source: Source, query: Query, shared: SharedView) -> Iterator[Child]:
    """Yield each need. The kinds, in order: creations nobody knows of; storage; jobs that are held; money;
    providers that are down or pause long; a limiter on its own; jobs without an owner; lost processes.
    """
    store = source.store
    if store is not None:
        yield from _unknown(store, query)
        yield from _storage(source)
        for line in store.overview.page(JobFilter(state=JobState.HELD), limit=MOST):
            yield fragment(
                "Held: ", _job(line.id, line.key, query), f" – {line.note or 'waits for a person'}"
            )
    if shared.problem is not None:
        yield f"The place where processes share limits cannot be read: {shared.problem}"
    for one in shared.found.living:
        if one.realtime.budget and one.realtime.spent >= SPENT * one.realtime.budget:
            told = f"{one.realtime.spent:.2f} of {one.realtime.budget:.2f} USD"
            yield f"The budget of process {one.pid} on {one.host} is spent: {told}."
    yield from _providers(shared)
    if store is not None:
        yield from _waiting(store, query)
    for one in shared.found.lost:
        heard = f"has not been heard for {span(one.age)}, and did not say that it ended"
        yield f"Process {one.pid} on {one.host} {heard}."


def _unknown(store: SqlStore, query: Query) -> Iterator[Child]:
    for shard in store.overview.unknown_creations(limit=MOST):
        told = f"Nobody knows whether the provider created batch {shard.no} ({shard.state.value}): "
        yield fragment(told, _job(shard.job_id, None, query), f" – {shard.note or 'it is looked for'}")


def _storage(source: Source) -> Iterator[Child]:
    """Yield that the disk is nearly full; a server's is not seen from here."""
    if source.file is not None:
        disk = os.statvfs(source.file)
        free = disk.f_bavail * disk.f_frsize
        if free < ROOM:
            yield f"The disk of the store {source.file} has {free / 2**20:,.0f} MiB left."


def _providers(shared: SharedView) -> Iterator[Child]:
    seen: set[tuple[str, str]] = set()
    for one in shared.found.living:
        for lane in one.realtime.lanes:
            if (lane.model, lane.quota) not in seen:
                seen.add((lane.model, lane.quota))
                yield from _provider(lane)


def _provider(lane: LaneStatus) -> Iterator[Child]:
    if lane.breaker != "closed":
        yield f"{lane.model}: the provider is down, the breaker is {lane.breaker}."
    if lane.cooldown >= LONG:
        yield f"{lane.model}: paused for {span(lane.cooldown)} after a refusal."
    if lane.is_lost:
        yield f"{lane.model}: the place that shares the limit is away; each process keeps to its own share."


def _waiting(store: SqlStore, query: Query) -> Iterator[Child]:
    for line in store.overview.waiting(limit=MOST):
        job = _job(line.id, line.key, query)
        if line.note is not None:
            yield fragment("Waits: ", job, f" – {line.note}")
        elif not _is_interrupted(line):
            yield fragment("Carried on by no living process: ", job)
        else:
            yield fragment("An interrupted run: ", job, " – the same command again goes on with it")


def _is_interrupted(line: JobLine) -> bool:
    return line.policy.attended


def _job(job_id: str, key: str | None, query: Query) -> Child:
    return el("a", key or job_id, href=query.link("jobs", job_id))
