"""Durations and money in texts for people."""

from __future__ import annotations

import pytest

from smartbatch._words import duration, money


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0121, "13 ms"),
        (0.9991, "1 s"),
        (9.92, "10 s"),
        (61.2, "62 s"),
        (600.0, "10 min"),
        (601.0, "11 min"),
        (44_930, "13 h"),
    ],
)
def test_a_suggested_deadline_is_rounded_up(seconds: float, shown: str) -> None:
    assert duration(seconds, rounded_up=True) == shown


@pytest.mark.parametrize(
    ("usd", "shown"), [(0.0144, "$0.02"), (0.01, "$0.01"), (3.301, "$3.31"), (0.00011, "$0.00011")]
)
def test_a_suggested_budget_is_rounded_up(usd: float, shown: str) -> None:
    assert money(usd, rounded_up=True) == shown
