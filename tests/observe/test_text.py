"""Durations and money in texts for people."""

from __future__ import annotations

import pytest

from smartbatch._display import duration
from smartbatch.prices import dollars


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (7.86e-05, "0.00 s"),
        (0.42, "0.42 s"),
        (5400.0, "1:30 h"),
        (185, "3:05 min"),
        (float("inf"), "for ever"),
    ],
)
def test_durations_are_no_powers_of_ten(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("usd", "shown"),
    [(0, "0 USD"), (5, "5 USD"), (0.25, "0.25 USD"), (7.86e-05, "0.0000786 USD"), (1e-12, "0 USD")],
)
def test_money_is_no_power_of_ten(usd: float, shown: str) -> None:
    assert dollars(usd) == shown
