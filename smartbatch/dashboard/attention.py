"""What does not go on by itself, in words, the most urgent first."""

from __future__ import annotations

import os
from collections.abc import Iterator

from attrs import frozen

from smartbatch._words import duration, money
from smartbatch.dashboard.shared_view import SharedView
from smartbatch.dashboard.source import Source
from smartbatch.jobs.records import JobRow, JobState
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.store.job_overview import JobFilter
from smartbatch.observe.participants import LaneStatus, merged

LONG = 60.0
"""Seconds of a cooldown that a person should know of."""
SPENT = 0.98
"""Share of a budget from which it counts as spent."""
ROOM = 256 << 20
"""Bytes that should be free where the store is."""
MOST = 5
"""Jobs of one kind that are shown; what comes next is to be seen without scrolling far."""


@frozen
class Need:
    """What needs a person.

    Attributes:
        text: in words; where it is about a job, these are followed by the job's name.
        job_id, name: the job, and how people call it.
        note: what is to be said after the name.
    """

    text: str
    job_id: str | None = None
    name: str = ""
    note: str = ""

    def __str__(self) -> str:
        return f"{self.text}{self.name}{self.note}"


def needs_of(source: Source, shared: SharedView) -> Iterator[Need]:
    """Yield each need. The kinds, in order: creations nobody knows of; storage; paused models; jobs that are
    held; money; providers that are down or pause long; a limiter on its own; jobs without an owner; lost
    processes.
    """
    store = source.store
    if store is not None:
        yield from _unknown(store)
        yield from _storage(source)
        for pause in store.controls.controls().pauses.values():
            yield Need(f"{pause}. Nothing new is sent to it until somebody resumes it.")
        held = store.overview.page(JobFilter(state=JobState.HELD), limit=MOST + 1)
        for line in held[:MOST]:
            yield _of_job("Held: ", line, line.note or "waits for a person")
        if len(held) > MOST:
            yield Need("Further jobs are held: the list of jobs has them, by this state.")
    if shared.problem is not None:
        yield Need(f"The place where processes share limits cannot be read: {shared.problem}")
    for one in shared.found.living:
        if one.realtime.budget and one.realtime.spent >= SPENT * one.realtime.budget:
            told = f"{money(one.realtime.spent)} of {money(one.realtime.budget)}"
            yield Need(f"The budget of process {one.pid} on {one.host} is spent: {told}.")
    for lane in merged([one.realtime for one in shared.found.living]).lanes:
        yield from _provider(lane)
    if store is not None:
        yield from _waiting(store)
    for one in shared.found.lost:
        heard = f"has not been heard for {duration(one.age)}, and did not say that it ended"
        yield Need(f"Process {one.pid} on {one.host} {heard}.")


def _unknown(store: SqlStore) -> Iterator[Need]:
    for shard in store.overview.unknown_creations(limit=MOST):
        told = f"Nobody knows whether the provider created batch {shard.no} ({shard.state.value}): "
        yield Need(told, shard.job_id, shard.job_id, f" – {shard.note or 'it is looked for'}")


def _storage(source: Source) -> Iterator[Need]:
    """Yield that the disk is nearly full; a server's is not seen from here."""
    if source.file is not None:
        disk = os.statvfs(source.file)
        free = disk.f_bavail * disk.f_frsize
        if free < ROOM:
            yield Need(f"The disk of the store {source.file} has {free / 2**20:,.0f} MiB left.")


def _provider(lane: LaneStatus) -> Iterator[Need]:
    if lane.breaker != "closed":
        yield Need(f"{lane.model}: the provider is down, the breaker is {lane.breaker}.")
    if lane.cooldown >= LONG:
        yield Need(f"{lane.model}: paused for {duration(lane.cooldown)} after a refusal.")
    if lane.is_lost:
        told = "the place that shares the limit is unavailable; each process keeps to its own share"
        yield Need(f"{lane.model}: {told}.")


def _waiting(store: SqlStore) -> Iterator[Need]:
    for line in store.overview.waiting(limit=MOST):
        if line.note is not None:
            yield _of_job("Waits: ", line, line.note)
        elif not line.policy.attended:
            yield _of_job("Carried on by no living process: ", line)
        else:
            yield _of_job("An interrupted run: ", line, "the same command again goes on with it")


def _of_job(text: str, line: JobRow, note: str = "") -> Need:
    return Need(text, line.id, line.key or line.id, f" – {note}" if note else "")
