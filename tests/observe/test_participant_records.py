"""The stored form of what a process tells: bounded, and readable by earlier and later libraries."""

from __future__ import annotations

import json

from attrs import evolve
from sample_events import called, ended, submitted

from smartbatch.observe.families import sums_of
from smartbatch.observe.metric import KINDS
from smartbatch.observe.metrics import BatchMetrics
from smartbatch.observe.participants import (
    MAX_RECORD_BYTES,
    LaneStatus,
    MinuteOfCalls,
    Participant,
    RealtimeStatus,
    merged,
    participant_of,
    text_of,
)
from smartbatch.types import Priority, Route

ONE = Participant(
    member="host:1:ab",
    host="host",
    pid=1,
    library="0.1.0",
    started=1.5,
    sums={"calls": 2.0},
    errors={"timeout": 3.0},
    realtime=RealtimeStatus(
        waiting=3,
        waits={"limit": 3},
        pending={"low": 3},
        oldest_waits={"low": 4.5},
        lanes=(LaneStatus(model="sim:small", waiting=3),),
        minutes=(MinuteOfCalls(60.0, 3, 500.0),),
    ),
)


def test_a_record_is_read_as_it_was_written():
    assert participant_of(text_of(ONE), 2.5) == evolve(ONE, age=2.5)


def test_what_nobody_has_leased_of_a_budget_counts_once_for_all_processes():
    shared = [
        RealtimeStatus(budget=70.0, spent=25.0, unleased={"a budget": 40.0}),
        RealtimeStatus(budget=60.0, spent=20.0, unleased={"a budget": 38.0}),
    ]
    alone = RealtimeStatus(budget=5.0, spent=1.0)
    together = merged([*shared, alone, RealtimeStatus(budget=8.0, unleased={"another": 8.0})])
    assert together.budget == 30.0 + 22.0 + 38.0 + 5.0 + 8.0
    assert together.spent == 46.0
    assert merged([together, shared[0]]).budget == together.budget + 30.0


def test_a_record_of_a_later_library_is_read_as_far_as_it_is_known():
    document = json.loads(text_of(ONE))
    document["realtime"]["lanes"][0]["colour"] = document["realtime"]["mood"] = "blue"
    assert participant_of(json.dumps(document | {"more": 1}), 0.0) == ONE
    assert participant_of(json.dumps(document | {"version": 2}), 0.0) is None


def test_a_record_has_a_bound_whatever_a_process_does():
    metrics = BatchMetrics()
    for number, kind in enumerate(KINDS * 2):
        for priority in Priority:
            metrics(submitted(priority=priority))
        metrics(called(error=kind, seconds=0.0001 * 1.3**number))
        for route in Route:
            metrics(ended(ok=False, error=kind, seconds=0.0001 * 1.4**number, route=route))
    lanes = tuple(
        LaneStatus(
            model=f"provider:{number} " + "é" * 300,
            quota="f" * 32,
            waiting=10**6,
            in_flight=1000,
            waits_for="cooldown",
            breaker="half_open",
            requests_per_minute=123456.789,
            tokens_per_minute=123456789.123,
            requests_left=123456.789,
            tokens_left=123456789.123,
            cooldown=12345.678,
            answered=10**12,
        )
        for number in range(500)
    )
    figures = metrics.snapshot()
    text = text_of(
        evolve(
            ONE,
            host="h" * 1000,
            sums=sums_of(figures),
            errors=dict.fromkeys(KINDS, 123456.7),
            realtime=RealtimeStatus(lanes=lanes, pending=figures.pending_by_priority),
        )
    )
    assert len(text.encode()) <= MAX_RECORD_BYTES
    read = participant_of(text, 0.0)
    assert read is not None
    assert len(read.realtime.lanes) >= 8
    assert len(read.realtime.lanes) + read.realtime.lanes_left_out == 500
