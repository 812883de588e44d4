"""When a job will be done: from its batches and from how long batches of its model take. Nothing is counted
row by row, so a job of millions costs what its batches cost.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from attrs import frozen

from smartbatch.core.forecast import Times
from smartbatch.jobs.records import JobRow, JobState
from smartbatch.jobs.shard_records import OPEN_SHARDS, UNSENT_SHARDS, ShardRow

LOOKED_AT = 40
"""Batches under way whose ends are forecast: the youngest, for they end last."""
MOMENTS = 12
"""Forecasts of a job that are shown: one for each batch that ended, evenly chosen where there are more."""
_HIGHEST = 1 - 1e-9


@frozen
class Outlook:
    """When a job will have ended, Unix seconds.

    Attributes:
        at: when this was known.
        median: as likely before as after.
        late: before which it ends with 95 %.
    """

    at: float
    median: float
    late: float


def outlook(line: JobRow, shards: Sequence[ShardRow], times: Times, at: float) -> Outlook | None:
    """Return when a job ends, by what was known at a moment; ``None`` where nothing can be said.

    The cases, in order:

    1. It has ended, waits for a person, or has no request: nothing to say.
    2. It goes by batches: the last one to end says when. Batches of a model are slow together, so the bound
       of the job is that of its slowest batch. What is in no batch yet takes one more.
    3. It goes in real time: at the throughput so far.
    """
    if line.state is JobState.HELD or line.total == 0 or (line.finished_at or at + 1) <= at:
        return None
    known = [shard for shard in shards if shard.submitted_at is not None and shard.submitted_at <= at]
    running = [shard for shard in known if (_ended(shard) or at + 1) > at]
    if not known and not any(shard.state in UNSENT_SHARDS for shard in shards):
        return _by_throughput(line, at)
    placed = sum(shard.size for shard in known)
    unsent = max(0, line.total - placed)
    ages = [(at - (shard.submitted_at or at), shard.size) for shard in running]
    ends = []
    for share in (0.5, 0.95):
        left = [_left(times, age, size, share) for age, size in heapq.nsmallest(LOOKED_AT, ages)]
        more = times.quantile(share, max(1, min(unsent, 50_000))) if unsent else 0.0
        ends.append(at + max(left, default=0.0) + more)
    return Outlook(at, *ends)


def course(line: JobRow, shards: Sequence[ShardRow], times: Times, now: float) -> list[Outlook]:
    """Return how the forecast of a job went, from its first batch to now: a batch that has ended narrows it.

    Each is made as it would be today, with what is known by now of how long batches take.
    """
    begun = min((shard.submitted_at for shard in shards if shard.submitted_at is not None), default=None)
    if begun is None:
        return []
    last = min(now, line.finished_at or now)
    ended = (_ended(shard) for shard in shards)
    moments = sorted({begun, last, *(one for one in ended if one is not None and begun < one < last)})
    step = max(1.0, (len(moments) - 1) / (MOMENTS - 1))
    chosen = {moments[min(len(moments) - 1, round(at * step))] for at in range(MOMENTS)}
    found = (outlook(line, shards, times, at) for at in sorted(chosen))
    return [one for one in found if one is not None]


def risk_of(line: JobRow, shards: Sequence[ShardRow], times: Times, now: float) -> float | None:
    """Return the probability that a job's batches end after its deadline, if none is taken back; ``None``
    without a deadline or a forecast."""
    deadline = line.policy.deadline
    if deadline is None or line.state is JobState.DONE:
        return None
    if deadline <= now:
        return 1.0
    running = [
        (now - shard.submitted_at, shard.size)
        for shard in shards
        if shard.state in OPEN_SHARDS and shard.submitted_at is not None and _ended(shard) is None
    ]
    if not running:
        return None
    return max(_late(times, age, size, deadline - now) for age, size in heapq.nsmallest(LOOKED_AT, running))


def _ended(shard: ShardRow) -> float | None:
    return shard.ended_at or shard.died_at


def _left(times: Times, age: float, size: int, share: float) -> float:
    """Return the seconds within which a share of the batches end that are not done after ``age`` seconds."""
    done = times.chance(age, size)
    return max(0.0, times.quantile(min(_HIGHEST, done + share * (1 - done)), size) - age)


def _late(times: Times, age: float, size: int, left: float) -> float:
    done = times.chance(age, size)
    return 1.0 if done >= 1.0 else (1 - times.chance(age + left, size)) / (1 - done)


def _by_throughput(line: JobRow, at: float) -> Outlook | None:
    answered, taken = line.finished, at - line.created_at
    if not answered or taken <= 0:
        return None
    end = at + (line.total - answered) * taken / answered
    return Outlook(at, end, end)
