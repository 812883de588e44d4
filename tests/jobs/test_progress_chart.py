"""How many requests of a job were done by when: by the ends of its batches and what was sent in real time."""

from __future__ import annotations

from typing import Any

from attrs import evolve, fields_dict

from smartbatch.jobs.records import JobPolicy, JobRow
from smartbatch.jobs.shard_records import RemoteProgress, ShardRow, ShardState
from smartbatch.jobs.status import progress_chart

JOB = JobRow("job-1", None, "a", "openai:m", "generate", b"{}", {}, JobPolicy(), 100.0, total=10)


def shard(ended_at: float | None, size: int) -> ShardRow:
    plain: dict[str, Any] = dict.fromkeys(fields_dict(ShardRow))
    plain |= {"no": 1, "state": ShardState.SETTLED, "remote": RemoteProgress(), "cancelled": False}
    return evolve(ShardRow(**plain), size=size, ended_at=ended_at)


def test_each_batch_is_a_step_at_its_end() -> None:
    shards = [shard(300.0, 4), shard(200.0, 3), shard(None, 3)]
    chart = progress_chart(evolve(JOB, succeeded=7), shards, 400.0)
    steps = ((100.0, 0.0), (200.0, 0.0), (200.0, 3.0), (300.0, 3.0), (300.0, 7.0), (400.0, 7.0))
    assert (chart.points, chart.total) == (steps, 10)


def test_requests_in_real_time_are_a_line_up_to_now_or_to_the_end() -> None:
    running = progress_chart(evolve(JOB, succeeded=3, failed=1), [], 400.0)
    assert running.points == ((100.0, 0.0), (400.0, 4.0))
    done = progress_chart(evolve(JOB, succeeded=10, finished_at=250.0), [], 400.0)
    assert done.points == ((100.0, 0.0), (250.0, 10.0))


def test_it_has_the_deadline_and_the_expected_end() -> None:
    row = evolve(JOB, policy=JobPolicy(deadline=900.0))
    chart = progress_chart(row, [], 400.0, (500.0, 600.0))
    assert (chart.deadline, chart.expected) == (900.0, (500.0, 600.0))
