"""Calls at an even rate: how long a rate is held."""

from __future__ import annotations

import pytest

from smartbatch.core.limits.header_limits import Reservation, Traffic
from smartbatch.core.limits.spacing import Spacing


def sent(traffic: Traffic, now: float) -> Reservation:
    call = Reservation(now, 0.0, 0.0)
    traffic.start(call)
    return call


def on_trial(now: float) -> tuple[Spacing, Traffic, float]:
    """Calls at a lowered rate that is in doubt, after three lone refusals; that rate."""
    spacing, traffic = Spacing(), Traffic()
    spacing.at_told(10.0, 0.0, found=True)
    spacing.lower(traffic, now - 1.0, known=False, lone=True)
    before = spacing.rate
    for _ in range(3):
        spacing.is_random(sent(traffic, now), traffic, now, None, lone=True)
    return spacing, traffic, before


def test_a_trial_that_nobody_refuses_goes_on_in_steps_of_four() -> None:
    """After twelve calls and a second, and then after twelve and a quarter of a second."""
    spacing, traffic, before = on_trial(16.0)
    for ends in (17.0, 17.25):
        rate = spacing.rate
        for _ in range(11):
            spacing.accepted(sent(traffic, ends), traffic, ends, None)
        assert spacing.rate == rate
        spacing.accepted(sent(traffic, ends), traffic, ends - 0.01, None)
        assert spacing.rate == rate
        spacing.accepted(sent(traffic, ends), traffic, ends, None)
        assert spacing.rate == 4.0 * rate
    assert spacing.rate == 64.0 * before
    assert spacing.settled == 16.0 * before


def test_a_trial_goes_no_further_than_what_is_known() -> None:
    spacing, traffic, _ = on_trial(16.0)
    for _ in range(12):
        spacing.accepted(sent(traffic, 17.0), traffic, 17.0, 20.0)
    assert spacing.rate == pytest.approx(0.988 * 20.0)


def test_beyond_two_thousand_a_second_there_is_no_limit() -> None:
    spacing, traffic, before = on_trial(16.0)
    now, over = 16.0, False
    while not over:
        assert spacing.rate <= 2000.0
        now += 0.1
        over = spacing.accepted(sent(traffic, now), traffic, now, None)
    assert 256.0 * before > 2000.0
    assert (spacing.rate, spacing.settled, spacing.bucket) == (0.0, 0.0, None)


def test_a_refusal_that_a_limit_explains_ends_a_trial_at_once() -> None:
    spacing, _, before = on_trial(16.0)
    spacing.confirm(17.0)
    assert spacing.rate == spacing.settled == pytest.approx(0.97 * before)
    assert spacing.is_found


def test_a_rate_is_followed_up_down_and_to_none() -> None:
    spacing = Spacing()
    for rate in (10.0, 12.0, 7.0, 0.0):
        spacing.at_told(rate, 1.0, found=True)
        assert spacing.rate == rate
    assert not spacing.is_found


def test_a_rate_to_which_a_trial_leads_back_is_held_before_it_grows() -> None:
    """A trial of four times the rate was refused: there is a limit, so more is not tried at once."""
    spacing, traffic = Spacing(), Traffic()
    spacing.at_told(10.0, 0.0, found=True)
    spacing.lower(traffic, 15.0, known=False, lone=True)
    before = spacing.rate
    for _ in range(3):  # lone refusals at the lowered rate: it is in doubt
        spacing.is_random(sent(traffic, 16.0), traffic, 16.0, None, lone=True)
    assert spacing.rate == 4.0 * before
    for _ in range(4):
        spacing.is_random(sent(traffic, 20.0), traffic, 20.0, None, lone=True)
    held = spacing.rate
    assert held == pytest.approx(0.97 * before)
    spacing.quicken(None, 31.0, 0.0, 1)
    assert spacing.rate == held
    spacing.quicken(None, 33.0, 0.0, 1)
    assert spacing.rate > held


@pytest.mark.parametrize(
    ("found", "held_until"),
    [
        ([(10.0, 0.0)], 12.0),
        ([(10.0, 0.0), (9.7, 12.0)], 36.0),
        ([(10.0, 0.0), (9.7, 12.0), (9.6, 36.0)], 84.0),
        ([(10.0, 0.0), (9.7, 12.0), (9.6, 36.0), (9.5, 84.0)], 148.0),
        ([(10.0, 0.0), (9.7, 12.0), (9.6, 36.0), (9.5, 84.0), (9.4, 148.0)], 212.0),
        ([(10.0, 0.0), (9.6, 12.0)], 24.0),
        ([(10.0, 0.0), (9.6, 5.0)], 17.0),
        ([(10.0, 0.0), (9.7, 5.0)], 12.0),
    ],
)
def test_a_rate_is_held_for_the_longer_the_more_often_about_the_same_is_found(
    found: list[tuple[float, float]], held_until: float
) -> None:
    """Twelve seconds, doubled up to 64; 4 % less is another rate."""
    spacing = Spacing()
    for rate, at in found:
        spacing.at_told(rate, at, found=True)
    spacing.quicken(None, held_until - 0.125, 0.0, 1)
    assert spacing.rate == rate
    spacing.quicken(None, held_until, 0.0, 1)
    assert spacing.rate > rate


@pytest.mark.parametrize(
    ("known", "cooled_at", "now", "tried"),
    [
        (10.0, 0.0, 600.0, True),
        (10.0, 0.0, 599.0, False),
        (10.0, 1.0, 600.0, False),
        (10.0, 1.0, 601.0, True),
        (None, 0.0, 700.0, False),
    ],
)
def test_after_ten_minutes_of_peace_the_burst_of_a_known_rate_is_tried_again(
    known: float | None, cooled_at: float, now: float, tried: bool
) -> None:
    spacing = Spacing()
    spacing.at_known(10.0, 0.0)
    assert spacing.rate == pytest.approx(9.88)
    assert spacing.quicken(known, now, cooled_at, 1) is tried
    assert (spacing.bucket is None) is tried


def test_a_burst_that_fails_again_is_tried_after_twice_the_time() -> None:
    spacing = Spacing()
    spacing.at_known(10.0, 0.0)
    spacing.at_known(None, 1000.0)  # as before
    assert spacing.rate == pytest.approx(9.88)
    assert not spacing.quicken(10.0, 2199.0, 0.0, 1)
    assert spacing.quicken(10.0, 2200.0, 0.0, 1)
