"""Durations in constant memory."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.observe.metric import Histogram

durations = st.lists(st.floats(min_value=1e-4, max_value=1e5), min_size=1, max_size=200)


def filled(seconds: list[float]) -> Histogram:
    histogram = Histogram()
    for duration in seconds:
        histogram.record(duration)
    return histogram


@given(durations, st.sampled_from([0.01, 0.5, 0.95, 1.0]))
def test_a_quantile_is_within_five_percent_of_the_exact_one(seconds, share):
    exact = sorted(seconds)[max(1, math.ceil(share * len(seconds))) - 1]
    assert filled(seconds).quantile(share) == pytest.approx(exact, rel=0.046)


@given(durations)
def test_count_sum_mean_and_longest_are_exact(seconds):
    stats = filled(seconds).stats()
    assert stats.count == len(seconds)
    assert stats.total == pytest.approx(math.fsum(seconds))
    assert stats.mean == pytest.approx(math.fsum(seconds) / len(seconds))
    assert stats.longest == max(seconds)


@given(durations)
def test_octaves_count_what_is_at_most_their_bound(seconds):
    seconds = [*seconds, 0.5, 1.0]
    octaves = filled(seconds).stats().octaves
    for bound, count in octaves:
        assert count == sum(s <= bound for s in seconds)
    assert octaves[-1][1] == len(seconds)


@pytest.mark.parametrize("odd", [0.0, -1.0, 1e-9, 1e9, math.inf, math.nan])
def test_odd_values_are_counted_and_break_nothing(odd):
    assert filled([odd]).stats().count == 1
