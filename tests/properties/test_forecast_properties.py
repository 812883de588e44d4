"""Whatever was seen: quantiles rise, chances are their inverse, everything is finite."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.forecast import Forecaster, Observation, Prior

NOW = 1.8e9
LEVELS = (0.001, 0.01, 0.2, 0.5, 0.8, 0.95, 0.99, 0.9999)

sights = st.lists(
    st.builds(
        Observation,
        size=st.integers(0, 100_000),
        seconds=st.floats(0, 1e7),
        at=st.floats(NOW - 1e6, NOW + 1e6),
        ended=st.booleans(),
    ),
    max_size=60,
)
priors = st.builds(
    lambda median, factor, growth: Prior.of(median, median * factor, growth=growth),
    st.floats(0.01, 1e5),
    st.floats(1.01, 100),
    st.floats(0, 1),
)


@pytest.mark.full
@given(priors, sights, st.integers(1, 50_000))
def test_forecasts_are_a_distribution_whatever_was_seen(
    prior: Prior, seen: list[Observation], size: int
) -> None:
    forecaster = Forecaster(prior, remember=40)
    for one in seen:
        moved = forecaster.observe(one)
        assert moved is None or (moved.before > 0 and moved.after > 0 and moved.seen > 0)
    times = [forecaster.at(NOW).quantile(q, size) for q in LEVELS]
    assert times == sorted(times)
    assert all(0 < seconds < math.inf for seconds in times)
    assert 0 < forecaster.at(NOW).expected(size) < math.inf
    for q, seconds in zip(LEVELS, times, strict=True):
        chance = forecaster.at(NOW).chance(seconds, size)
        assert chance >= q - 1e-6
        if 0 < chance < 1:
            assert forecaster.at(NOW).quantile(chance, size) == pytest.approx(seconds, rel=1e-3)
    assert forecaster.observations == min(40, len(seen))


@pytest.mark.full
@given(priors, sights)
def test_what_it_kept_makes_the_same_forecaster(prior: Prior, seen: list[Observation]) -> None:
    first = Forecaster(prior)
    for one in seen:
        first.observe(one)
    second = Forecaster(prior)
    for one in first.seen:
        second.observe(one)
    assert [second.at(NOW).quantile(q, 7) for q in LEVELS] == [first.at(NOW).quantile(q, 7) for q in LEVELS]
