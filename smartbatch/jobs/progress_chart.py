"""How many requests of a job were done by when, as a chart."""

from __future__ import annotations

from collections.abc import Sequence

from smartbatch.jobs.records import JobRow
from smartbatch.jobs.shard_records import ShardRow
from smartbatch.views.model import ProgressOverTime


def progress_chart(
    row: JobRow, shards: Sequence[ShardRow], wall: float, expected: tuple[float, float] | None = None
) -> ProgressOverTime:
    """Return the chart: a step for each batch that ended, and a line for what was sent in real time.

    Args:
        wall: Unix seconds.
        expected: Unix seconds of the end, median and 95 % bound.
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
