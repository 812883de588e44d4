"""What a rescue that begins later saves, weighed against the risk that it is too late."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from smartbatch.core.routing.rescue import (
    HIGHEST_LEVEL,
    LATE_PENALTY,
    LEVELS,
    MAX_RISK,
    WAITED_SECONDS,
    RescueStart,
    best_start,
    chance_within,
    late_penalty,
    rescue_starts,
)


def possible(late: float, saved: Callable[[float], float], left: float = 1000.0) -> list[RescueStart]:
    return rescue_starts(
        left, lambda sure: 100 + 10 * LEVELS.index(sure), lambda _: late, lambda at, _: saved(at)
    )


def test_a_start_leaves_what_it_needs() -> None:
    found = possible(0.5, lambda _: 0.0)
    assert [start.sure for start in found] == list(LEVELS)
    assert all(start.at + start.needs == 1000 for start in found)


def test_what_would_have_to_begin_before_now_is_no_start() -> None:
    assert [start.sure for start in possible(0.5, lambda _: 0.0, left=125.0)] == [0.5, 0.6, 0.7]
    assert possible(0.5, lambda _: 0.0, left=50.0) == []


def test_where_waiting_saves_nothing_the_surest_is_taken() -> None:
    start = best_start(possible(0.5, lambda _: 0.5))
    assert start is not None
    assert start.sure == HIGHEST_LEVEL


def test_a_rescue_starts_later_if_waiting_saves_more_than_it_risks() -> None:
    start = best_start(possible(0.05, lambda at: at / 1000))
    assert start is not None
    assert start.sure == LEVELS[0]
    assert start.worth == pytest.approx(0.9 - LATE_PENALTY * 0.025)


def test_no_more_risk_is_taken_than_promised_whatever_it_saves() -> None:
    start = best_start(possible(1.0, lambda at: at))
    assert start is not None
    assert start.risk <= MAX_RISK
    assert best_start([RescueStart(at=5.0, sure=0.5, needs=1.0, risk=2 * MAX_RISK, worth=1.0)]) is None


def test_a_missed_deadline_counts_as_the_list_itself_and_as_some_waiting() -> None:
    assert late_penalty(2.0, time_value=3600 / WAITED_SECONDS) == pytest.approx(LATE_PENALTY + 1 / 2)
    assert late_penalty(0.01, time_value=3600 / WAITED_SECONDS) == pytest.approx(LATE_PENALTY + 100)
    assert (
        late_penalty(2.0, time_value=0.0)
        == late_penalty(None, time_value=5.0)
        == late_penalty(0.0, time_value=5.0)
        == LATE_PENALTY
    )


def test_the_more_a_miss_counts_the_surer_the_rescue() -> None:
    def sure(counts: float) -> float:
        found = rescue_starts(
            1000.0, lambda sure: 500 * sure**8, lambda _: 0.1, lambda at, _: at / 1000, late_penalty=counts
        )
        start = best_start(found)
        assert start is not None
        return start.sure

    assert sure(0.1) == LEVELS[0]
    assert sure(0.1) < sure(5.0) < sure(1000.0) == HIGHEST_LEVEL


def test_quantiles_of_lognormal_times_cover_their_share() -> None:
    assert chance_within(10.0, 10.0, 30.0) == pytest.approx(0.5)
    assert chance_within(30.0, 10.0, 30.0) == pytest.approx(0.95)
    assert chance_within(-1.0, 10.0, 30.0) == 0.0
    assert chance_within(10.0, 10.0, 10.0) == 1.0
