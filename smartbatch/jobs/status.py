"""The status of a job: figures, views, and the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from attrs import evolve, field, frozen

from smartbatch._words import UNKNOWN, counted, duration, known_money, money, plural, short
from smartbatch.core.forecast import RunningBatch, Times, remaining
from smartbatch.core.routing.rescue import Speed
from smartbatch.errors import scrub
from smartbatch.jobs.records import IncidentRow, ItemState, JobRow, JobState, incident_title
from smartbatch.jobs.shard_records import BEFORE_UPLOAD, OPEN_SHARDS, UNSENT_SHARDS, ShardRow, ShardState
from smartbatch.jobs.storage_pause import read_pause
from smartbatch.jobs.store import SqlStore
from smartbatch.results import defects_in_words
from smartbatch.views.model import (
    Cell,
    DataTable,
    Facts,
    Note,
    Part,
    ProgressBar,
    ProgressOverTime,
    Section,
    State,
    Tile,
    View,
)
from smartbatch.views.terminal import text_of

_S = ShardState
READ_SECONDS = 2.0
"""Maximum time for reading the results of ended batches."""
_TINY_USD = 1e-9
"""Tolerance when sums of floats are compared."""
MAX_NOTEBOOK_BATCHES, MAX_BATCHES = 10, 1_000
MAX_INCIDENTS = 20
"""Maximum number of incidents in a view. JSON contains all of them."""
MIN_SECONDS_LEFT = 1.0
"""Minimum time left shown for an unfinished job."""


@frozen
class ShardStatus:
    """One batch of a job.

    Attributes:
        no: number of the batch, from 1, in planning order.
        state: see :class:`~smartbatch.jobs.shard_records.ShardState`.
        batch_id: the provider's id, or ``None`` if the batch was not created.
        size: number of requests.
        done: number of requests that the provider reports as completed; ``None`` if not reported.
        age: seconds since the batch was sent; ``None`` if it has not been sent.
        word: the provider's name for the state.
        cost: USD, if prices are known; for the last batch, set shortly after the job is done.
        note: what the batch is waiting for.
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
    """The status of a job. ``completed + failed + cancelled`` of ``total`` requests have results.

    Attributes:
        id, key, model: see :class:`~smartbatch.Job`.
        state: ``active``, ``held`` (waiting for a user, see ``note``) or ``done``.
        total: number of requests.
        submitted: number of requests that were sent, including those with results.
        completed, failed, cancelled: number of requests with each kind of result.
        running: number of requests that the provider has completed, but whose results are not stored yet.
        remaining: forecast seconds until the end, based on earlier batches and calls; ``None`` if unknown.
        elapsed: seconds from acceptance until now, or until the end.
        cost: USD so far, of the results with a known price.
        realtime_cost: USD for the same results in real time.
        unpriced: number of results with an unknown price, which ``cost`` does not include.
        truncated, empty, refused: number of answers with these defects; see :class:`~smartbatch.Result`.
        wasted: USD spent in addition to ``cost`` on unused answers, such as those of a batch that was created
            twice; the total of ``incidents``.
        shards: the batches of the job.
        incidents: unexpected events, such as a batch that was created twice.
        rescue: why requests of a batch were sent in real time instead; the first reason if there are several.
        note: what the job is waiting for.
        created_at: Unix seconds.
        cancelling: true if the job was cancelled but has not ended yet.
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
        """The number of requests with a result."""
        return self.completed + self.failed + self.cancelled

    @property
    def succeeded(self) -> int:
        """The number of answered requests; the same as ``completed``."""
        return self.completed

    @property
    def done(self) -> bool:
        """True if every request has its result."""
        return self.state == JobState.DONE.value

    @property
    def saved(self) -> float:
        """USD saved compared with the same tokens in real time; negative if the job cost more."""
        return self.realtime_cost - self.cost - self.wasted

    def __str__(self) -> str:
        return text_of(self.view())

    def _repr_html_(self) -> str:
        from smartbatch.views.html import notebook  # imported late because only notebooks need it

        return notebook(self.view(batches=MAX_NOTEBOOK_BATCHES))

    def view(self, *, batches: int = MAX_BATCHES) -> View:
        """Return the status as a view of facts, batches and incidents.

        Args:
            batches: maximum number to show; unfinished ones come first.
        """
        return job_view(self, batches)


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
    """Build the status from a job's rows.

    Args:
        asking: number of items in flight in real time.
        remaining: forecast seconds until the end.
        note: this process's note, used if the job has none.
        wall: Unix seconds.
    """
    open_shards = [shard for shard in shards if shard.state in OPEN_SHARDS]
    # notes of shards may be outdated, so they come last
    notes = [job.note, note, *(shard.note for shard in open_shards)]
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


def read_status(
    store: SqlStore,
    row: JobRow,
    *,
    speed: Callable[[JobRow], Speed] | None,
    note: Callable[[JobRow], str | None],
    wall: float,
) -> JobStatus:
    """Return the status of a stored job.

    Args:
        speed: durations of earlier calls and batches; ``None`` skips the forecast, which requires counting
            rows.
        note: returns the reason why the job does not continue, if this process knows one.
        wall: Unix seconds.
    """
    # read the row after the shards, so that a shard that ends between the reads is counted twice rather than
    # not at all
    shards = store.shards.of_job(row.id)
    row = store.jobs.get(row.id) or row
    asking = 0 if row.state is JobState.DONE else store.items.count(row.id, ItemState.IN_FLIGHT)
    left = None if speed is None else time_left(store, row, shards, asking=asking, speed=speed, wall=wall)
    incidents = store.facts.incidents(row.id)
    found = note(row)
    # uploads of its account are paused: report the reason, and forecast nothing
    if found is None and any(shard.state in BEFORE_UPLOAD for shard in shards):
        pause = read_pause(store, row.scope)
        found, left = (None, left) if pause is None else (pause.note, None)
    return status_of(row, shards, asking=asking, incidents=incidents, remaining=left, note=found, wall=wall)


def first_rescue(shards: Iterable[ShardRow]) -> str | None:
    """Return the first reason why requests of a batch were sent in real time instead."""
    return next((shard.remote.rescue for shard in shards if shard.remote.rescue is not None), None)


def _submitted(job: JobRow, open_shards: Sequence[ShardRow], asking: int) -> int:
    unsent = sum(shard.size for shard in open_shards if shard.state in UNSENT_SHARDS)
    sent = sum(shard.size for shard in open_shards if shard.state not in UNSENT_SHARDS)
    # a shard whose results are being stored is counted twice, so the sum is bounded on both sides
    return max(job.finished, min(job.total - unsent, job.finished + sent + asking))


def _running(job: JobRow, open_shards: Sequence[ShardRow]) -> int:
    completed = sum(shard.remote.done or 0 for shard in open_shards if shard.state is _S.SUBMITTED)
    ready = sum(shard.size for shard in open_shards if shard.state is _S.ENDED)
    return max(0, min(completed + ready, job.total - job.finished))


def _shard(shard: ShardRow, wall: float, *, done: bool) -> ShardStatus:
    # all results of a finished job are stored, so a shard that is still being read counts as settled
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


# -- the view ------------------------------------------------------------------------------------------------


def job_view(s: JobStatus, batches: int) -> View:
    named = f"Job {s.key or s.id}"
    sections = [Section("job", "Status", (Facts(tuple(_facts(s))),))]
    if s.shards:
        sections.append(Section("batches", "Batches", tuple(batch_parts(s, batches))))
    if s.incidents:
        sections.append(Section("incidents", "Incidents", tuple(incident_parts(s.incidents))))
    state = shown_state(s.state, cancelling=s.cancelling, failed=s.failed)
    return View(named, tuple(sections), state=state, subtitle=s.model, tiles=tuple(job_tiles(s)))


def shown_state(state: str, *, cancelling: bool, failed: int) -> State:
    if cancelling:
        return State("cancelling", "warn")
    if state == JobState.DONE.value:
        return State(state, "warn" if failed else "good")
    return State(state, "bad" if state == JobState.HELD.value else "")


def job_tiles(s: JobStatus) -> Iterator[Tile]:
    bar = ProgressBar("requests with a result", s.finished, s.total)
    yield Tile("Done", f"{s.finished:,} of {s.total:,}", progress=bar)
    yield Tile("Failed", f"{s.failed:,}", tone="bad" if s.failed else "")
    if s.done or s.remaining is None:
        yield Tile("Time", duration(s.elapsed), "" if s.done else "so far")
    else:
        yield Tile("Time left", duration(s.remaining), f"{duration(s.elapsed)} so far")
    yield Tile("Cost", known_money(s.cost, s.unpriced), _saved(s))


def _facts(s: JobStatus) -> Iterator[tuple[str, Cell]]:
    yield "id", s.id
    counts = [f"{s.total:,} total", f"{s.submitted:,} submitted", f"{s.completed:,} completed"]
    counts.append(f"{s.failed:,} failed")
    counts += [f"{s.cancelled:,} cancelled"] if s.cancelled else []
    counts += [f"{s.running:,} done at the provider"] if s.running else []
    yield "requests", ", ".join(counts)
    if defects := defects_in_words(s):
        yield "answers", State(defects, "warn")
    left = "" if s.done or s.remaining is None else f", about {duration(s.remaining)} left"
    yield "time", f"{duration(s.elapsed)}{left}"
    yield "cost", cost_in_words(s)
    if s.rescue:
        yield "rescued", f"requests of a batch were sent in real time instead: {s.rescue}"
    if s.note:
        yield "note", State(s.note, "warn")


def batch_parts(s: JobStatus, most: int) -> Iterator[Part]:
    """Unfinished batches come first."""
    ended = ("settled", "dead")
    ordered = sorted(s.shards, key=lambda shard: shard.state in ended)
    yield DataTable.of(
        "Batches",
        "batch:number, state, requests:number, done:number/3, age:duration/2, provider status/4, id/5, "
        "cost:money/6, note/1",
        [
            (
                shard.no,
                State(shard.state, "good" if shard.state == "settled" else ""),
                shard.size,
                shard.done,
                shard.age,
                shard.word,
                shard.batch_id,
                shard.cost,
                shard.note,
            )
            for shard in ordered[:most]
        ],
    )
    if len(ordered) > most:
        yield Note(f"{len(ordered) - most:,} more batches")


def incident_parts(incidents: Sequence[IncidentRow]) -> Iterator[Part]:
    newest = incidents[: -MAX_INCIDENTS - 1 : -1]
    rows = [(one.at, incident_title(one.kind), one.money, one.detail) for one in newest]
    yield DataTable.of("Incidents, newest first", "at (UTC):time, incident, cost:money, detail", rows)
    if len(incidents) > len(newest):
        yield Note(f"{len(incidents) - len(newest):,} earlier incidents")


def cost_in_words(s: JobStatus) -> str:
    """Compare the cost with the real-time price, and mention unknown prices."""
    words = UNKNOWN if s.unpriced and not s.cost else money(s.cost)
    if s.wasted > _TINY_USD:
        words += f" and {money(s.wasted)} for unusable answers"
    if saved := _saved(s):
        words += f", {saved}"
    if s.unpriced:
        words += f"; cost of {plural(s.unpriced, 'result')} unknown"
    return words


def _saved(s: JobStatus) -> str:
    if abs(s.saved) <= _TINY_USD:
        return ""
    return f"{money(abs(s.saved))} {'less' if s.saved > 0 else 'more'} than in real time"


def progress_chart(
    row: JobRow, shards: Sequence[ShardRow], wall: float, expected: tuple[float, float] | None = None
) -> ProgressOverTime:
    """Draw a step for each finished batch and a line for the rest.

    Args:
        wall: Unix seconds.
        expected: forecast end of the job in Unix seconds: median and 95 % bound.
    """
    last = row.finished_at or wall
    ended = sorted((shard.ended_at, shard.size) for shard in shards if shard.ended_at is not None)
    points = [(row.created_at, 0.0)]
    for at, size in ended:
        done = points[-1][1]
        if row.created_at <= at <= last:
            points += [(at, done), (at, min(float(row.total), done + size))]
    done = max(points[-1][1], float(row.finished))
    points.append((max(last, points[-1][0]), done))
    deadline = row.policy.deadline
    return ProgressOverTime("Requests done", tuple(points), row.total, expected, deadline)


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
    """Forecast the median of the seconds until the job ends; ``None`` if unknown.

    Args:
        shards: all shards of the job.
        asking: number of items in flight in real time.
        speed: durations of earlier calls and batches.
        wall: Unix seconds.
    """
    if job.state is JobState.DONE:
        return 0.0
    if job.state is JobState.HELD or job.note is not None:  # waiting for a user or for budget
        return None
    waiting = [shard for shard in shards if shard.state in OPEN_SHARDS]
    # identical rows that share an answer are in none of these states, and finish with that answer
    to_ask = asking + store.items.count(job.id, ItemState.REALTIME)
    to_plan = 0 if job.cancel_requested else store.items.count(job.id, ItemState.OPEN)
    unplanned = [to_plan] if to_plan else []
    known = speed(job)
    batches = _batch_seconds(waiting, unplanned, known.turnaround, wall) if waiting or unplanned else 0.0
    if batches is None:
        return None
    calls = 0.0
    if to_ask:
        # not from the results so far, because the duration of a batch says nothing about the speed of calls
        others = max(0, known.throughput.ahead - asking)
        calls = evolve(known.throughput, ahead=others).finish(to_ask, 0.5)
    return max(batches, calls, MIN_SECONDS_LEFT)


def _batch_seconds(
    waiting: Sequence[ShardRow], unplanned: Sequence[int], times: Times, wall: float
) -> float | None:
    """Forecast the seconds until the running batches, and unsent ones of the given sizes, have ended."""
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
        return READ_SECONDS
    return remaining(running, times, unsent=unsent)
