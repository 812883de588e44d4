"""What is counted beside the limits that a provider reports."""

from __future__ import annotations

import pytest

from smartbatch.core.limits.reported_limits import ReportedLimits, Reservation, Traffic, surplus_of
from smartbatch.types import LimitReport


@pytest.mark.parametrize(
    ("answers", "goes"), [(63, False), (64, True), (120, True), (121, True)], ids=lambda value: str(value)
)
def test_answers_beyond_a_limit_make_it_suspect_then_disprove_it(answers: int, goes: bool) -> None:
    limits, traffic = ReportedLimits(), Traffic()
    call = Reservation(0.0, 0.0, 0.0)
    traffic.start(call)
    limits.learn(LimitReport(requests_limit=60, requests_remaining=0), call, traffic, 0.0)
    for _ in range(answers):
        traffic.accept(0.0)
        limits.accepted(traffic, 0.0)
    for _ in range(10):
        limits.take(0.0, call)
    assert (limits.look(1.25, 0.0, 0.0) == 1.25) is goes
    assert (limits.look(1.0, 0.0, 0.0) == 1.0) is (answers > 120)
    limits.confirm()
    assert limits.look(1.25, 0.0, 0.0) > 1.25


@pytest.mark.parametrize(
    ("leased", "used", "output", "surplus"),
    [
        ((1.0, 100.0, 60.0, 40.0), 80.0, 10.0, (0.0, 20.0, -10.0, 30.0)),
        ((1.0, 100.0, 60.0, 40.0), 50.0, None, (0.0, 50.0, 30.0, 20.0)),
        ((1.0, 101.0, 60.0, 40.0), 80.0, 10.0, (0.0, 0.0, -10.0, 30.0)),
        ((1.0, 100.0, 61.0, 40.0), 80.0, 10.0, (0.0, 20.0, 0.0, 30.0)),
        ((1.0, 100.0, 60.0, 41.0), 80.0, 10.0, (0.0, 20.0, -10.0, 0.0)),
    ],
)
def test_an_unused_lease_is_returned_unless_more_was_charged(
    leased: tuple[float, float, float, float],
    used: float,
    output: float | None,
    surplus: tuple[float, float, float, float],
) -> None:
    call = Reservation(0.0, 100.0, 40.0)
    call.leased = leased
    assert surplus_of(call, used, output) == surplus
