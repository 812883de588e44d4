"""Intervals of shares."""

import pytest

from smartbatch.quality.intervals import wilson


@pytest.mark.parametrize(
    ("successes", "total", "low", "high"),
    [(8, 10, 0.490, 0.943), (0, 20, 0.0, 0.161), (20, 20, 0.839, 1.0), (81, 263, 0.255, 0.366)],
)
def test_intervals_are_those_of_published_tables(successes, total, low, high):
    """The last row is an example of R. G. Newcombe, Statistics in Medicine 17 (1998), table I."""
    share = wilson(successes, total)

    assert share.low == pytest.approx(low, abs=0.0006)
    assert share.high == pytest.approx(high, abs=0.0006)


def test_a_share_without_a_trial_is_unknown():
    assert str(wilson(0, 0)) == "unknown"
    assert str(wilson(9, 10)) == "90.0 % (95 %: 59.6 to 98.2 %)"
