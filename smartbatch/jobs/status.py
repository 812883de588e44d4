"""The status of a job: figures, text, and the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from attrs import evolve, field, frozen

from smartbatch._display import bar, counted, facts, short
from smartbatch.core.forecast.forecaster import Times
from smartbatch.core.forecast.turnaround import RunningBatch, remaining
from smartbatch.core.routing.rescue import Speed
from smartbatch.errors import scrub
from smartbatch.jobs.records import (
    OPEN_SHARDS,
    UNSENT_SHARDS,
    IncidentRow,
    ItemState,
    JobRow,
    JobState,
    ShardRow,
    ShardState,
)
from smartbatch.jobs.store import SqlStore
from smartbatch.results import defects_in_words

_S = ShardState
MINUTE = 60.0
HOUR = 3600.0
READING = 2.0
"""Seconds to read results of batches that have ended."""
_TINY = 1e-9
"""USD by which sums of floats may differ."""
SHOWN = 10
"""Batches under way that a notebook shows."""
SOON = 1.0
"""Least seconds while anything is left."""


@frozen
class ShardStatus:
    """One batch of a job.

    Attributes:
        no: from 1, in the order of planning.
        state: see :class:`~smartbatch.jobs.records.ShardState`.
        batch_id: the provider's id; ``None`` before there is one.
        size: requests in it.
        done: requests the provider says it has done; ``None`` where it does not tell.
        age: seconds since it was sent; ``None`` before.
        word: the provider's own word for its state.
        cost: USD, where prices are known; of the last batch of a job a moment after the job is done.
        note: what it waits for.
    """

    no: int
    state: str
    batch_id: str | None
    size: int
    done: int | None
    age: float | None
    word: str
    cost: float | None
    note: str | None


@frozen
class JobStatus:
    """How a job stands. ``completed + failed + cancelled`` of ``total`` have their results.

    Attributes:
        id, key, model: of the job.
        state: ``active``, ``held`` (waits for a person, see ``note``) or ``done``.
        total: requests.
        submitted: requests that were sent, those with results included.
        completed, failed, cancelled: requests that have a result, by what it is.
        running: requests the provider says it has done, whose results are not stored yet.
        remaining: seconds until the end, as far as it can be said from earlier batches and calls; ``None``
            where not.
        elapsed: seconds since it was accepted, up to its end.
        cost: USD so far, of the results whose price is known.
        realtime_cost: USD the same results would have cost in real time.
        unpriced: results whose price is unknown: ``cost`` lacks them.
        truncated, empty, refused: answers with these defects, see :class:`~smartbatch.Result`.
        wasted: USD besides ``cost`` of answers that no result holds, such as those of a batch that was
            created twice, as far as its incidents can say.
        shards: its batches.
        incidents: what should not have happened.
        rescue: why requests of a batch were sent in real time instead; of several reasons the first.
        note: what it waits for.
        created_at: Unix seconds at which it was accepted.
        cancelling: whether it was cancelled and has not ended.
    """

    id: str
    key: str | None = field(repr=short)
    model: str
    state: str
    total: int
    submitted: int
    completed: int
    failed: int
    cancelled: int
    running: int
    remaining: float | None
    elapsed: float
    cost: float
    realtime_cost: float
    unpriced: int
    wasted: float = 0.0
    truncated: int = 0
    empty: int = 0
    refused: int = 0
    shards: tuple[ShardStatus, ...] = field(default=(), repr=partial(counted, "batches"))
    incidents: tuple[IncidentRow, ...] = field(default=(), repr=False)
    note: str | None = field(default=None, repr=short)
    created_at: float = 0.0
    cancelling: bool = False
    rescue: str | None = field(default=None, repr=short)

    @property
    def finished(self) -> int:
        """Requests that have a result."""
        return self.completed + self.failed + self.cancelled

    @property
    def succeeded(self) -> int:
        """The same as ``completed``: requests that were answered."""
        return self.completed

    @property
    def done(self) -> bool:
        """True when every request has its result."""
        return self.state == JobState.DONE.value

    @property
    def saved(self) -> float:
        """USD that the job cost less than the tokens of its results in real time; below 0 for more."""
        return self.realtime_cost - self.cost - self.wasted

    def _repr_html_(self) -> str:
        rows = list(_rows(self))
        batches = [row for row in rows if row[0].startswith("batch ")]
        hidden = [] if len(batches) <= SHOWN else batches[SHOWN:]
        shown = [row for row in rows if row not in hidden]
        if hidden:
            shown.append(("further batches", f"{len(hidden):,}"))
        return bar(self.finished, self.total) + facts(shown)

    def __str__(self) -> str:
        rows = list(_rows(self))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {words}" for name, words in rows)


def status_of(
    job: JobRow,
    shards: Sequence[ShardRow],
    *,
    asking: int,
    incidents: Sequence[IncidentRow],
    remaining: float | None,
    note: str | None,
    wall: float,
) -> JobStatus:
    """Put a job's rows together.

    Args:
        asking: items that are in flight in real time.
        remaining: seconds until the end.
        note: what this process has to say, where the job says nothing itself.
        wall: Unix seconds.
    """
    open_shards = [shard for shard in shards if shard.state in OPEN_SHARDS]
    notes = [job.note, note, *(shard.note for shard in open_shards)]  # those of shards may be old
    return JobStatus(
        id=job.id,
        key=job.key,
        model=job.model,
        state=job.state.value,
        total=job.total,
        submitted=_submitted(job, open_shards, asking),
        completed=job.succeeded,
        failed=job.failed,
        cancelled=job.cancelled,
        running=_running(job, open_shards),
        remaining=0.0 if job.state is JobState.DONE else remaining,
        elapsed=max(0.0, (wall if job.finished_at is None else job.finished_at) - job.created_at),
        cost=job.cost,
        realtime_cost=job.realtime_cost,
        unpriced=job.unpriced,
        truncated=job.truncated,
        empty=job.empty,
        refused=job.refused,
        wasted=sum(incident.money or 0.0 for incident in incidents),
        shards=tuple(_shard(shard, wall, done=job.state is JobState.DONE) for shard in shards),
        incidents=tuple(incidents),
        note=None if job.state is JobState.DONE else next(filter(None, notes), None),
        created_at=job.created_at,
        cancelling=job.cancel_requested and job.finished_at is None,
        rescue=first_rescue(shards),
    )


def first_rescue(shards: Iterable[ShardRow]) -> str | None:
    """Return why requests of a batch were sent in real time instead, by the first batch that has a reason."""
    return next((shard.remote.rescue for shard in shards if shard.remote.rescue is not None), None)


def _submitted(job: JobRow, open_shards: Sequence[ShardRow], asking: int) -> int:
    """A shard that is being read counts among the results as well, so both ends are looked at."""
    unsent = sum(shard.size for shard in open_shards if shard.state in UNSENT_SHARDS)
    sent = sum(shard.size for shard in open_shards if shard.state not in UNSENT_SHARDS)
    return max(job.finished, min(job.total - unsent, job.finished + sent + asking))


def _running(job: JobRow, open_shards: Sequence[ShardRow]) -> int:
    told = sum(shard.remote.done or 0 for shard in open_shards if shard.state is _S.SUBMITTED)
    ready = sum(shard.size for shard in open_shards if shard.state is _S.ENDED)
    return max(0, min(told + ready, job.total - job.finished))


def _shard(shard: ShardRow, wall: float, *, done: bool) -> ShardStatus:
    """Return the status of a shard. All results of a job that is ``done`` are stored, so a shard that is
    still being read counts as settled.
    """
    state = ShardState.SETTLED if done and shard.state is ShardState.INGESTING else shard.state
    ended = shard.ended_at or shard.died_at
    return ShardStatus(
        no=shard.no,
        state=state.value,
        batch_id=shard.batch_id,
        size=shard.size,
        done=shard.remote.done,
        age=None if shard.submitted_at is None else max(0.0, (ended or wall) - shard.submitted_at),
        word=scrub(shard.remote.status or "", limit=60),
        cost=shard.cost,
        note=shard.note,
    )


def _rows(s: JobStatus) -> Iterator[tuple[str, str]]:
    named = f" ({s.key})" if s.key else ""
    yield "job", f"{s.id}{named}, {s.model}, {s.state}"
    yield (
        "requests",
        f"{s.total:,} in all: {s.submitted:,} submitted, {s.completed:,} completed, {s.failed:,} failed"
        + (f", {s.cancelled:,} cancelled" if s.cancelled else "")
        + (f", {s.running:,} done at the provider" if s.running else ""),
    )
    if defects := defects_in_words(s):
        yield "answers", defects
    left = "" if s.done or s.remaining is None else f", about {span(s.remaining)} left"
    yield "time", f"{span(s.elapsed)}{left}"
    yield "cost", cost_in_words(s)
    for shard in s.shards:
        if not s.done and shard.state not in ("settled", "dead"):
            yield f"batch {shard.no}", _shard_words(shard)
    if s.incidents:
        yield "incidents", ", ".join(_counted(s.incidents))
    if s.rescue:
        yield "rescued", f"requests of a batch were sent in real time instead: {s.rescue}"
    if s.note:
        yield "note", s.note


def usd(amount: float, digits: int = 6) -> str:
    """Return an amount rounded; the same for sums that differ only in the order of their floats."""
    return f"{round(amount, 12):.{digits}f}"


def cost_in_words(s: JobStatus) -> str:
    """Return the cost compared with the real-time price, and how many prices are unknown."""
    words = f"{usd(s.cost)} USD"
    if s.wasted > _TINY:
        words += f" and {usd(s.wasted)} USD for answers of no use"
    if abs(s.saved) > _TINY:
        words += f", {usd(abs(s.saved))} USD {'less' if s.saved > 0 else 'more'} than in real time"
    if s.unpriced:
        words += f"; cost of {s.unpriced:,} result{'s' if s.unpriced > 1 else ''} unknown"
    return words


def _shard_words(shard: ShardStatus) -> str:
    words = f"{shard.size:,} requests, {shard.state}"
    if shard.batch_id is not None:
        words += f" as {shard.batch_id}"
    if shard.word:
        words += f" ({shard.word}" + (f", {shard.done:,} done)" if shard.done else ")")
    if shard.age is not None:
        words += f", for {span(shard.age)}"
    return words


def _counted(incidents: Sequence[IncidentRow]) -> Iterator[str]:
    for kind in dict.fromkeys(incident.kind for incident in incidents):
        yield f"{kind} {sum(incident.kind == kind for incident in incidents):,}"


def span(seconds: float) -> str:
    """Return seconds in short: ``8 s``, ``4 min``, ``2.5 h``."""
    if seconds < 1.5 * MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 1.5 * HOUR:
        return f"{seconds / MINUTE:.0f} min"
    return f"{seconds / HOUR:.1f} h"


# -- time left -----------------------------------------------------------------------------------------------


def time_left(
    store: SqlStore,
    job: JobRow,
    shards: Sequence[ShardRow],
    *,
    asking: int,
    speed: Callable[[JobRow], Speed],
    wall: float,
) -> float | None:
    """Return the seconds until the job ends, the median of the forecast; ``None`` when it is unknown.

    Args:
        shards: all of the job's.
        asking: items that are in flight in real time.
        speed: says how fast requests of a job are answered, in real time and by batch.
        wall: Unix seconds.
    """
    if job.state is JobState.DONE:
        return 0.0
    if job.state is JobState.HELD or job.note is not None:  # it waits for somebody, or for money
        return None
    waiting = [shard for shard in shards if shard.state in OPEN_SHARDS]
    # rows that follow equal ones are in none of these states: they end with those
    to_ask = asking + store.items.count(job.id, ItemState.REALTIME)
    to_plan = 0 if job.cancel_requested else store.items.count(job.id, ItemState.OPEN)
    unplanned = [to_plan] if to_plan else []
    known = speed(job)
    batches = _batch_seconds(waiting, unplanned, known.turnaround, wall) if waiting or unplanned else 0.0
    if batches is None:
        return None
    calls = 0.0
    if to_ask:
        # not at the speed of the results so far: how long a batch was waited for says nothing of calls
        others = max(0, known.throughput.ahead - asking)
        calls = evolve(known.throughput, ahead=others).finish(to_ask, 0.5)
    return max(batches, calls, SOON)


def _batch_seconds(
    waiting: Sequence[ShardRow], unplanned: Sequence[int], times: Times, wall: float
) -> float | None:
    """Return the time of what is in batches, or is to go in further ones of these sizes."""
    running = [
        RunningBatch(
            shard.size,
            max(0.0, wall - shard.submitted_at),
            shard.remote.completed if shard.state is _S.SUBMITTED else None,
        )
        for shard in waiting
        if shard.submitted_at is not None and shard.ended_at is None
    ]
    unsent = [*(shard.size for shard in waiting if shard.state in UNSENT_SHARDS), *unplanned]
    if not running and not unsent:
        return READING
    return remaining(running, times, unsent=unsent)
