"""Calls and tokens of the last minute and half hour: counted as they come, whoever looks and when."""

from __future__ import annotations

from typing import Any

import pytest
from sample_events import ManualClock, called, started

from smartbatch.observe.metrics import BatchMetrics
from smartbatch.observe.participants import MinuteOfCalls
from smartbatch.types import Usage

UNIX = 1_795_000_020.0


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def metrics(clock):
    return BatchMetrics(now=clock)


def call(metrics: BatchMetrics, clock: ManualClock, model: str = "sim:a", **usage: Any) -> None:
    metrics(started(at=clock.time, model=model, size=2))
    metrics(called(at=clock.time, model=model, size=2, usage=Usage(**usage)))


def test_the_last_minute_is_told_by_model(metrics, clock):
    for second in range(120):
        clock.time = float(second)
        call(metrics, clock, input_tokens=10, output_tokens=5)
        if second < 30:
            call(metrics, clock, "sim:b", input_tokens=1)
    used, _ = metrics.recent(UNIX)
    assert used.keys() == {"sim:a"}
    one = used["sim:a"]
    assert one.calls == pytest.approx(60, abs=1)
    assert one.requests == pytest.approx(120, abs=2)
    assert (one.input_tokens, one.output_tokens) == (pytest.approx(600, abs=10), pytest.approx(300, abs=5))
    clock.time += 70.0
    assert metrics.recent(UNIX)[0] == {}


def test_minutes_of_the_last_half_hour_need_no_earlier_reader(metrics, clock):
    for minute in range(60):
        clock.time = minute * 60.0 + 30.0
        call(metrics, clock, input_tokens=100 + minute)
    _, minutes = metrics.recent(UNIX + clock.time)
    assert [one.calls for one in minutes] == [1] * len(minutes)
    assert minutes[-1] == MinuteOfCalls(UNIX + 59 * 60.0, 1, 159.0)
    assert len(minutes) in (29, 30)
    metrics.reset()
    assert metrics.recent(UNIX + clock.time)[1] == minutes


def test_models_are_told_apart_up_to_a_bound(metrics, clock):
    for number in range(200):
        call(metrics, clock, f"sim:{number}", input_tokens=1)
    used, minutes = metrics.recent(UNIX)
    assert len(used) <= 65
    assert sum(one.input_tokens for one in used.values()) == 200
    assert minutes == (MinuteOfCalls(UNIX, 200, 200.0),)
