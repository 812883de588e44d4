"""What is learned from times of which only the least is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core import forecast

Weighed = list[tuple[float, float]]
TIMES = st.lists(st.tuples(st.floats(0, 100), st.floats(0.001, 10)), max_size=30)


def redistributed(ended: Weighed, given_up: Weighed) -> Weighed:
    times = [(time, False, weight) for time, weight in ended]
    return forecast.redistributed(times + [(time, True, weight) for time, weight in given_up])


def test_what_was_given_up_counts_for_all_that_took_longer() -> None:
    """Kaplan and Meier: a quarter by 1, none more by 2, half of the rest by 3, all by 4."""
    found = redistributed([(1.0, 1.0), (3.0, 1.0), (4.0, 1.0)], [(2.0, 1.0)])
    assert found == [(1.0, 1.0), (3.0, 1.5), (4.0, 1.5)]


def test_what_ended_just_when_another_was_given_up_did_not_take_longer() -> None:
    assert redistributed([(2.0, 1.0), (3.0, 1.0)], [(2.0, 2.0)]) == [(2.0, 1.0), (3.0, 3.0)]


def test_what_was_given_up_after_all_others_stands_for_itself() -> None:
    assert redistributed([(1.0, 2.0)], [(5.0, 1.0), (6.0, 1.0)]) == [(1.0, 2.0), (6.0, 2.0)]
    assert redistributed([], [(5.0, 1.0)]) == [(5.0, 1.0)]


@given(TIMES, TIMES)
def test_no_weight_is_lost_and_nothing_becomes_shorter(ended: Weighed, given_up: Weighed) -> None:
    found = redistributed(ended, given_up)
    whole = sum(weight for _, weight in ended + given_up)
    assert sum(weight for _, weight in found) == pytest.approx(whole)
    for time, _ in ended:
        before = sum(weight for other, weight in ended + given_up if other <= time)
        assert sum(weight for other, weight in found if other <= time) <= before * (1 + 1e-9)
    if not given_up:
        assert found == sorted(ended)
