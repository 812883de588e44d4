"""What is counted beside the limits that a provider reports."""

from __future__ import annotations

import math

import pytest

from smartbatch.core.limits.reported_limits import (
    EnforcementCheck,
    ReportedLimits,
    Reservation,
    Traffic,
    surplus_of,
)
from smartbatch.core.limits.shared_limit import NO_BOUND
from smartbatch.types import LimitReport


def accepted(*times: float) -> Traffic:
    traffic = Traffic()
    for at in times:
        traffic.accept(at)
    return traffic


@pytest.mark.parametrize(
    ("times", "lately"),
    [
        ((), 0),
        ((0.0, 0.0, 0.5), 3),
        ((0.0, 0.5, 1.0, 60.0), 4),
        ((0.0, 0.5, 1.0, 60.5), 2),
        ((0.0, 0.5, 1.0, 61.0), 2),
        ((0.0, 0.5, 1.0, 61.5), 1),
    ],
)
def test_answers_count_for_a_minute_second_by_second(times: tuple[float, ...], lately: int) -> None:
    assert accepted(*times).accepted_lately == lately


def test_a_limit_in_doubt_is_passed_by_one_call_then_two_then_four() -> None:
    check, now, rounds = EnforcementCheck(10.0), 9.0, []
    for _ in range(3):
        now = check.look(now)
        went = 0
        while check.look(now) == now:
            check.take(now)
            went += 1
        rounds.append((now, went))
    assert rounds == [(10.0, 1), (11.25, 2), (12.5, 4)]


@pytest.mark.parametrize(("unenforced", "at"), [(True, 5.0), (False, math.inf)])
def test_once_it_is_known_all_pass_or_none(unenforced: bool, at: float) -> None:
    check = EnforcementCheck(0.0, over=True, unenforced=unenforced)
    check.take(5.0)
    assert check.look(5.0) == at


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


def test_a_call_that_was_to_need_nothing_had_no_output() -> None:
    assert surplus_of(Reservation(0.0, 0.0, 0.0), 30.0, None) == (0.0, -30.0, -30.0, 0.0)


def refused(limits: ReportedLimits, traffic: Traffic, at: float, report: LimitReport) -> bool:
    """Whether the limits explain the refusal of a call sent and refused at this time."""
    call = Reservation(at, 0.0, 0.0)
    traffic.start(call)
    traffic.end(call)
    return limits.explain(report, call, traffic, at)


@pytest.mark.parametrize(
    ("times", "repeats"),
    [((0.0,), 0), ((0.0, 9.5), 1), ((0.0, 10.0), 0), ((0.0, 9.5, 19.0), 2), ((0.0, 9.5, 9.5, 9.5), 1)],
)
def test_explained_refusals_within_ten_seconds_are_repeated_ones(
    times: tuple[float, ...], repeats: int
) -> None:
    limits, traffic = ReportedLimits(), Traffic()
    for at in times:
        assert refused(limits, traffic, at, LimitReport(requests_limit=60, requests_remaining=0))
    assert limits.repeats == repeats


@pytest.mark.parametrize(("later", "explained"), [(0.5, True), (1.0, True), (1.125, False)])
def test_a_bare_limit_explains_refusals_within_a_second(later: float, explained: bool) -> None:
    limits, traffic = ReportedLimits(), Traffic()
    report = LimitReport(requests_limit=600)
    first = Reservation(0.0, 0.0, 0.0)
    traffic.start(first)
    limits.learn(report, first, traffic, 0.0)
    assert refused(limits, traffic, later, report) is explained
    assert limits.is_even is not explained
    assert limits.look(later, 0.0, 0.0) > later
    left = limits.known(later, 1).at_most[0]  # for other processes: the rate alone bounds spaced calls
    assert (left == NO_BOUND) is not explained
