"""Calls at an even rate: how long a rate is held."""

from __future__ import annotations

import pytest

from smartbatch.core.limits.header_limits import Reservation, Traffic
from smartbatch.core.limits.spacing import Spacing


def sent(traffic: Traffic, now: float) -> Reservation:
    call = Reservation(now, 0.0, 0.0)
    traffic.start(call)
    return call


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
