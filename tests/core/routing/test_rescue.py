"""The rescue of a running job: which batches are withdrawn for a deadline, and when."""

from __future__ import annotations

import math
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.forecast import Forecaster, Prior, Times
from smartbatch.core.routing.offers import Throughput
from smartbatch.core.routing.rescue import (
    HIGHEST_LEVEL,
    LATE_PENALTY,
    LEVELS,
    MAX_RISK,
    WAITED_SECONDS,
    PendingShard,
    RescueStart,
    Speed,
    best_start,
    chance_within,
    late_penalty,
    rescue,
    rescue_starts,
)

STEADY = Forecaster(Prior.of(1.0, 1.01)).at(0.0)  # calls of one second


# batches of a day, longer than any deadline in these tests
ENDLESS = Forecaster(Prior.of(100_000.0, 200_000.0)).at(0.0)


def speed(parallelism: int = 1, cancelling: float = 60.0, turnaround: Times = ENDLESS) -> Speed:
    ends = Forecaster(Prior.of(cancelling, 1.01 * cancelling)).at(0.0)
    return Speed(Throughput(STEADY, parallelism=parallelism), ends, turnaround)


def pending(left: int, sent: bool = True, stuck: bool = False, **more: Any) -> PendingShard:
    return PendingShard(left, sent, more.pop("size", 1), more.pop("age", 0.0), stuck=stuck, **more)


def test_as_long_as_real_time_can_do_the_rest_nothing_is_taken_back():
    some = Forecaster(Prior.of(1500.0, 5000.0)).at(0.0)
    found = rescue(1000.0, 10.0, 0, [pending(100, sent=True)], speed(turnaround=some))
    assert found.take_back == ()
    assert not found.late
    assert 820 < found.wait < 840  # 1,000 s minus 100 calls, 60 s for a cancel and 10 s of margin


def test_in_the_last_moment_the_batch_is_taken_back():
    assert rescue(170.0, 10.0, 0, [pending(100, sent=True)], speed()).take_back == (0,)


def test_what_was_never_sent_goes_first_for_it_costs_no_cancel():
    shards = [pending(500, sent=True), pending(100, sent=False)]
    assert rescue(600.0, 10.0, 0, shards, speed()).take_back[0] == 1


def test_only_as_many_are_taken_back_as_real_time_can_use():
    shards = [pending(200, sent=True) for _ in range(5)]
    found = rescue(1080.0, 10.0, 0, shards, speed())
    assert len(found.take_back) == 1
    assert math.isfinite(found.wait)


def test_what_has_most_left_goes_before_what_is_nearly_done():
    shards = [pending(5, sent=True), pending(400, sent=True)]
    assert rescue(400.0, 10.0, 0, shards, speed()).take_back[0] == 1


def test_when_it_is_too_late_that_is_said_and_real_time_is_kept_busy():
    shards = [pending(100, sent=True) for _ in range(3)]
    found = rescue(-5.0, 10.0, 0, shards, speed())
    assert found.late
    assert len(found.take_back) == 1  # the others may finish before real time has capacity for them
    assert set(rescue(-5.0, 10.0, 0, shards, speed(parallelism=10)).take_back) == {0, 1, 2}


def test_what_cannot_be_taken_back_is_left_and_counted():
    shards = [pending(100, sent=True, stuck=True)]
    found = rescue(50.0, 10.0, 0, shards, speed())
    assert found.take_back == ()
    assert found.wait == math.inf
    assert found.late


def test_while_real_time_has_enough_to_do_nothing_more_is_taken_back():
    shards = [
        pending(200, True, stuck=True, cancelled=5.0),
        *(pending(200, sent=True) for _ in range(4)),
    ]
    found = rescue(1040.0, 10.0, 0, shards, speed())
    assert found.take_back == ()
    assert math.isfinite(found.wait)
    done = rescue(1040.0, 10.0, 30, [pending(200, sent=True) for _ in range(5)], speed())
    assert len(done.take_back) == 1  # half a minute of calls is less than a cancel takes


def test_a_cancel_that_is_under_way_is_soon_done():
    def needs(cancelled: float) -> float:
        return rescue(
            900.0, 10.0, 0, [pending(100, stuck=True, size=100, age=50.0, cancelled=cancelled)], speed()
        ).needs

    assert needs(0.0) - needs(40.0) == pytest.approx(40.0, abs=1)


def test_a_batch_that_is_likelier_in_time_than_real_time_goes_on():
    soon = Forecaster(Prior.of(100.0, 130.0)).at(0.0)
    held = [pending(500, True, size=500, age=90.0)]
    found = rescue(100.0, 2.0, 0, held, evolve(speed(), turnaround=soon))
    assert found.late
    assert found.take_back == ()
    assert 0 < found.wait <= 10
    never = Forecaster(Prior.of(10_000.0, 13_000.0)).at(0.0)
    assert rescue(100.0, 2.0, 0, held, evolve(speed(), turnaround=never)).take_back == (0,)


def test_a_nearly_certain_batch_runs_on_even_when_real_time_has_no_slack():
    soon = Forecaster(Prior.of(60.0, 63.0)).at(0.0)
    held = [pending(900, True, size=900)]
    found = rescue(970.0, 10.0, 0, held, speed(turnaround=soon))
    assert found.take_back == ()
    assert 0 < found.wait < 60
    assert rescue(970.0, 10.0, 0, held, speed()).take_back == (0,)


def test_an_unsent_batch_continues_unless_it_is_held_up():
    soon = Forecaster(Prior.of(20.0, 30.0)).at(0.0)
    fresh = pending(500, sent=False, size=500)
    assert rescue(100.0, 2.0, 0, [fresh], speed(turnaround=soon)).take_back == ()
    assert rescue(100.0, 2.0, 0, [evolve(fresh, held_up=True)], speed(turnaround=soon)).take_back == (0,)


def test_a_rescue_waits_longer_for_batches_likely_to_finish():
    def wait(turnaround: float) -> float:
        known = Forecaster(Prior.of(turnaround, 1.5 * turnaround)).at(0.0)
        wide = Forecaster(Prior.of(60.0, 300.0)).at(0.0)
        throughput = Throughput(STEADY, parallelism=1)
        return rescue(1000.0, 10.0, 0, [pending(100, True, size=100)], Speed(throughput, wide, known)).wait

    # the latter has probably finished long before, so waiting gains nothing
    assert wait(700.0) > wait(100.0) + 60


@given(
    left=st.floats(-100, 100_000),
    backlog=st.integers(0, 1000),
    shards=st.lists(st.builds(pending, st.integers(0, 5000), st.booleans(), st.booleans()), max_size=8),
    parallelism=st.integers(1, 64),
)
def test_there_is_always_progress_and_never_a_busy_wait(left, backlog, shards, parallelism):
    found = rescue(left, 10.0, backlog, shards, speed(parallelism))
    assert found.take_back or found.wait >= 0.5
    assert all(not shards[at].stuck for at in found.take_back)
    assert len(set(found.take_back)) == len(found.take_back)


def test_a_missed_deadline_counts_as_the_list_itself_and_as_some_waiting():
    assert late_penalty(2.0, time_value=3600 / WAITED_SECONDS) == pytest.approx(LATE_PENALTY + 1 / 2)
    assert late_penalty(0.01, time_value=3600 / WAITED_SECONDS) == pytest.approx(LATE_PENALTY + 100)
    assert (
        late_penalty(2.0, time_value=0.0)
        == late_penalty(None, time_value=5.0)
        == late_penalty(0.0, time_value=5.0)
        == LATE_PENALTY
    )


def test_the_more_a_miss_counts_the_surer_the_rescue():
    def sure(counts: float) -> float:
        found = rescue_starts(
            1000.0, lambda sure: 500 * sure**8, lambda _: 0.1, lambda at, _: at / 1000, late_penalty=counts
        )
        start = best_start(found)
        assert start is not None
        return start.sure

    assert sure(0.1) == LEVELS[0]
    assert sure(0.1) < sure(5.0) < sure(1000.0) == HIGHEST_LEVEL


def test_no_more_risk_is_taken_than_promised_whatever_it_saves():
    starts = rescue_starts(
        1000.0, lambda sure: 100 + 10 * LEVELS.index(sure), lambda _: 1.0, lambda at, _: at
    )
    start = best_start(starts)
    assert start is not None
    assert start.risk <= MAX_RISK
    assert best_start([RescueStart(at=5.0, sure=0.5, needs=1.0, risk=2 * MAX_RISK, worth=1.0)]) is None


def test_quantiles_of_lognormal_times_cover_their_share():
    assert chance_within(10.0, 10.0, 30.0) == pytest.approx(0.5)
    assert chance_within(30.0, 10.0, 30.0) == pytest.approx(0.95)
    assert chance_within(-1.0, 10.0, 30.0) == 0.0
    assert chance_within(10.0, 10.0, 10.0) == 1.0
