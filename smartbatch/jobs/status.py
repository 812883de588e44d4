"""The status of a job: figures, text, and the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from attrs import evolve, field, frozen

from smartbatch._words import UNKNOWN, counted, duration, money, plural, short
from smartbatch.core.forecast import RunningBatch, Times, remaining
from smartbatch.core.routing.rescue import Speed
from smartbatch.errors import scrub
from smartbatch.jobs.records import IncidentRow, ItemState, JobRow, JobState, incident_title
from smartbatch.jobs.shard_records import OPEN_SHARDS, UNSENT_SHARDS, ShardRow, ShardState
from smartbatch.jobs.store import SqlStore
from smartbatch.results import defects_in_words
from smartbatch.views.model import Cell, DataTable, Facts, Note, Part, ProgressBar, Section, State, Tile, View
from smartbatch.views.terminal import text_of

_S = ShardState
MINUTE = 60.0
HOUR = 3600.0
READING = 2.0
"""Seconds to read results of batches that have ended."""
_TINY = 1e-9
"""USD by which sums of floats may differ."""
NOTEBOOK_BATCHES, MAX_BATCHES = 10, 1_000
"""Batches that a notebook and other views show."""
MAX_INCIDENTS = 20
"""Incidents that a view shows; JSON has all of them."""
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

    def __str__(self) -> str:
        return text_of(self.view())

    def _repr_html_(self) -> str:
        from smartbatch.views.html import notebook  # late: only a notebook shows it

        return notebook(self.view(batches=NOTEBOOK_BATCHES))

    def view(self, *, batches: int = MAX_BATCHES) -> View:
        """Return the status as a view of facts, batches and incidents.

        Args:
            batches: shown at most; those that have not ended come first.
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


def read_status(
    store: SqlStore,
    row: JobRow,
    *,
    speed: Callable[[JobRow], Speed] | None,
    note: Callable[[JobRow], str | None],
    wall: float,
) -> JobStatus:
    """Return how a job stands in its store, whose row is read again after its shards: a shard that ends in
    between is counted twice, which is seen, and not in neither.

    Args:
        speed: by which the time left is forecast; ``None`` leaves it out, for which waiting rows are counted.
        note: says what keeps the job from going on, as far as this process can tell.
        wall: Unix seconds.
    """
    shards = store.shards.of_job(row.id)
    row = store.jobs.get(row.id) or row
    asking = 0 if row.state is JobState.DONE else store.items.count(row.id, ItemState.IN_FLIGHT)
    left = None if speed is None else time_left(store, row, shards, asking=asking, speed=speed, wall=wall)
    incidents = store.facts.incidents(row.id)
    return status_of(
        row, shards, asking=asking, incidents=incidents, remaining=left, note=note(row), wall=wall
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


# -- the view ------------------------------------------------------------------------------------------------


def job_view(s: JobStatus, batches: int) -> View:
    """Return a job as a view."""
    named = f"Job {s.key or s.id}"
    sections = [Section("job", "Status", (Facts(tuple(_facts(s))),))]
    if s.shards:
        sections.append(Section("batches", "Batches", tuple(batch_parts(s, batches))))
    if s.incidents:
        sections.append(Section("incidents", "Incidents", tuple(incident_parts(s.incidents))))
    state = shown_state(s.state, cancelling=s.cancelling, failed=s.failed)
    return View(named, tuple(sections), state=state, subtitle=s.model, tiles=tuple(job_tiles(s)))


def shown_state(state: str, *, cancelling: bool, failed: int) -> State:
    """Return the state of a job with its tone."""
    if cancelling:
        return State("cancelling", "warn")
    if state == JobState.DONE.value:
        return State(state, "warn" if failed else "good")
    return State(state, "bad" if state == JobState.HELD.value else "")


def job_tiles(s: JobStatus) -> Iterator[Tile]:
    """Yield the key figures of a job."""
    bar = ProgressBar("requests with a result", s.finished, s.total)
    yield Tile("Done", f"{s.finished:,} of {s.total:,}", progress=bar)
    yield Tile("Failed", f"{s.failed:,}", tone="bad" if s.failed else "")
    if s.done or s.remaining is None:
        yield Tile("Time", duration(s.elapsed), "" if s.done else "so far")
    else:
        yield Tile("Time left", duration(s.remaining), f"{duration(s.elapsed)} so far")
    yield Tile("Cost", UNKNOWN if s.unpriced and not s.cost else money(s.cost), _saved(s))


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
    """Yield the table of a job's batches, those that have not ended first."""
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
    """Yield the table of what should not have happened, newest first."""
    newest = incidents[: -MAX_INCIDENTS - 1 : -1]
    rows = [(one.at, incident_title(one.kind), one.money, one.detail) for one in newest]
    yield DataTable.of("Incidents, newest first", "at (UTC):time, incident, cost:money, detail", rows)
    if len(incidents) > len(newest):
        yield Note(f"{len(incidents) - len(newest):,} earlier incidents")


def cost_in_words(s: JobStatus) -> str:
    """Return the cost compared with the real-time price, and how many prices are unknown."""
    words = money(s.cost)
    if s.wasted > _TINY:
        words += f" and {money(s.wasted)} for answers of no use"
    if saved := _saved(s):
        words += f", {saved}"
    if s.unpriced:
        words += f"; cost of {plural(s.unpriced, 'result')} unknown"
    return words


def _saved(s: JobStatus) -> str:
    if abs(s.saved) <= _TINY:
        return ""
    return f"{money(abs(s.saved))} {'less' if s.saved > 0 else 'more'} than in real time"


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
