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
