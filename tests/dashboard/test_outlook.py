"""When a job will be done, from its batches: a band that narrows, and the risk of a deadline."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from smartbatch.core.forecast import Forecaster, Observation, Prior
from smartbatch.dashboard.jobs_page import outlook, risk_of
from smartbatch.jobs.records import JobPolicy, JobState
from smartbatch.jobs.shard_records import ShardState
from tests.jobs.stores import led, started


def times(*seconds: float) -> Any:
    known = Forecaster(Prior.of(600.0, 1200.0))
    for at, each in enumerate(seconds):
        known.observe(Observation(100, each, float(at), True))
    return known.at(100.0)


@pytest.fixture
def job(shelf, opened):
    policy = JobPolicy(deadline=3000.0)
    row, lease = started(opened, shelf, 4, policy=policy)
    shards = []
    for items in ((0, 1), (2, 3)):
        sent = led(opened, lease, opened.shards.plan(lease, shelf.shard(*items)), ShardState.SUBMITTED)
        shards.append(opened.shards.advance(lease, sent, ShardState.SUBMITTED, submitted_at=1010.0))
    line = opened.jobs.get(row.id)
    assert line is not None
    return line, shards


def test_the_last_batch_says_when_a_job_ends(job):
    line, shards = job
    ahead = outlook(line, shards, times(600, 620, 640, 660), 1010.0)
    assert ahead is not None
    assert 1400 < ahead.median < 1800
    assert ahead.median < ahead.late
    later = outlook(line, shards, times(600, 620, 640, 660), 2400.0)
    assert later is not None
    assert later.median >= 2400.0


def test_the_risk_grows_towards_the_deadline(job):
    line, shards = job
    known = times(600, 900, 1500, 2000)
    risks = [risk_of(line, shards, known, now) for now in (1010.0, 2500.0, 2990.0, 3000.0)]
    assert risks[-1] == 1.0
    assert all(risk is not None and 0 <= risk <= 1 for risk in risks)
    assert risks[0] < risks[2]  # type: ignore[operator]
    assert risk_of(evolve(line, policy=JobPolicy()), shards, known, 1010.0) is None


def test_real_time_goes_on_at_its_throughput(job):
    line, _ = job
    assert outlook(line, [], times(), 1100.0) is None
    half = outlook(evolve(line, succeeded=2), [], times(), 1100.0)
    assert half is not None
    assert (half.median, half.late) == (1200.0, 1200.0)


@pytest.mark.parametrize(
    "changes", [{"state": JobState.HELD}, {"total": 0}, {"state": JobState.DONE, "finished_at": 1000.0}]
)
def test_nothing_is_said_of_a_job_that_does_not_go_on(job, changes):
    line, shards = job
    assert outlook(evolve(line, **changes), shards, times(), 1100.0) is None
