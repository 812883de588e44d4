"""A running client learns from its calls and batches immediately, and publishes how its choices change."""

from __future__ import annotations

import pytest

from smartbatch import BatchingClient
from smartbatch.events import BatchEnded, Event, ForecastMoved, ThresholdMoved
from smartbatch.types import Route

BATCH_SECONDS = 20.0
MODEL = f"sim:demo?latency=1&batch_seconds={BATCH_SECONDS}"
PROMPTS = [f"Summarise text {number}." for number in range(400)]


@pytest.fixture
def events():
    return []


@pytest.fixture
def client(clock, events, tmp_path, monkeypatch):
    monkeypatch.setenv("SMARTBATCH_SIM_DIR", str(tmp_path / "sim"))
    with BatchingClient(
        MODEL,
        clock=clock,
        store=str(tmp_path / "jobs.db"),
        observers=[events.append],
        batch_poll_interval=2.0,
        parallelism=4,
    ) as client:
        yield client


def moved(events: list[Event]) -> tuple[ForecastMoved, ThresholdMoved]:
    (forecast,) = [each for each in events if isinstance(each, ForecastMoved) and each.route is Route.BATCH]
    (threshold,) = [each for each in events if isinstance(each, ThresholdMoved)]
    return forecast, threshold


@pytest.mark.full
def test_the_first_batch_changes_forecast_and_threshold_immediately(client, events):
    assert client.plan(PROMPTS).route is Route.INDIVIDUAL
    client.generate(PROMPTS, strategy="batch")
    forecast, threshold = moved(events)
    # the prior still has the weight of two batches
    assert BATCH_SECONDS <= forecast.after < 3 * BATCH_SECONDS
    assert forecast.before > 600
    assert "the latest took about" in forecast.reason
    assert threshold.before is None or threshold.before > len(PROMPTS)
    assert threshold.after is not None
    assert threshold.after <= len(PROMPTS)
    assert "the median of batch answers is now" in threshold.reason
    (ended,) = [each for each in events if isinstance(each, BatchEnded)]
    assert (ended.size, ended.state, ended.cancelling) == (len(PROMPTS), "completed", None)
    assert ended.at == forecast.at == threshold.at  # not a minute later
    assert client.plan(PROMPTS).route is Route.BATCH
    figures = client.metrics.snapshot().decisions
    assert (figures.forecasts_moved, figures.thresholds_moved) == (1, 1)


@pytest.mark.full
def test_a_client_that_had_only_jobs_says_how_the_threshold_moves(client, clock, events):
    with clock.held():
        job = client.submit_batch(PROMPTS)
    job.wait(600)
    forecast, threshold = moved(events)
    assert forecast.at == threshold.at
    assert threshold.after is not None
    assert threshold.before is None or threshold.before > 2 * threshold.after
    long = [prompt for start in range(3) for prompt in PROMPTS[start:]]
    assert client.plan(long[: threshold.after + 1]).route in {Route.BATCH, Route.HYBRID}
    assert client.plan(PROMPTS[: threshold.after // 2]).route is Route.INDIVIDUAL


@pytest.mark.full
def test_a_client_that_carries_on_a_job_learns_from_its_batch_as_well(client, clock, events):
    with clock.held():
        job = client.submit_batch(PROMPTS)
        client.stop(0)
    with BatchingClient(MODEL, clock=clock, store=client.config.store, observers=[events.append]) as heir:
        heir.job(job.id).wait(600)
    forecast, threshold = moved(events)
    assert forecast.at == threshold.at


@pytest.mark.full
def test_a_batch_is_learned_from_once(client, clock, events):
    client.generate(PROMPTS, strategy="batch")
    learned = client.plan(PROMPTS, strategy="batch").p50
    events.clear()
    clock.sleep(90.0)
    assert client.plan(PROMPTS, strategy="batch").p50 == learned
    assert not [each for each in events if isinstance(each, ForecastMoved) and each.route is Route.BATCH]


@pytest.mark.full
def test_a_cancel_is_told_with_what_it_took(client, clock, events):
    job = client.submit_batch(PROMPTS)
    clock.sleep(BATCH_SECONDS / 2)
    job.cancel()
    job.wait(600)
    (ended,) = [each for each in events if isinstance(each, BatchEnded)]
    assert ended.state == "cancelled"
    assert ended.cancelling is not None
    assert BATCH_SECONDS / 2 <= ended.seconds - ended.cancelling <= BATCH_SECONDS


def test_calls_faster_than_assumed_raise_the_threshold(client, events):
    client.plan(PROMPTS)
    client.generate(PROMPTS[:20], strategy="individual")
    # reading the metrics learns from the calls
    assert client.metrics.snapshot().decisions.thresholds_moved == 1
    (threshold,) = [each for each in events if isinstance(each, ThresholdMoved)]
    assert threshold.before is not None
    assert threshold.after is None or threshold.after > threshold.before
    assert threshold.reason.startswith("the median of individual answers is now 1 s, previously 2 s")
