"""Samples are random, reproducible and spread over the whole table."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from smartbatch.quality.sample import draw


@given(st.integers(0, 300), st.integers(1, 50), st.integers(0, 10))
def test_a_sample_has_the_wanted_number_of_distinct_rows(count, size, seed):
    drawn = draw(count, size, random.Random(seed))

    assert len(drawn) == min(count, size)
    assert sorted(set(drawn)) == drawn
    assert all(0 <= position < count for position in drawn)


def test_the_same_seed_draws_the_same_rows_and_another_one_others():
    assert draw(1000, 20, random.Random(7)) == draw(1000, 20, random.Random(7))
    assert draw(1000, 20, random.Random(7)) != draw(1000, 20, random.Random(8))


def test_every_row_has_the_same_chance():
    drawn = Counter(position for seed in range(4000) for position in draw(30, 20, random.Random(seed)))

    assert set(drawn) == set(range(30))
    assert all(abs(times / 4000 - 20 / 30) < 0.03 for times in drawn.values())


def test_a_sample_covers_each_part_of_a_sorted_file():
    drawn = draw(1000, 20, random.Random(1))

    assert all(any(first <= row < first + 100 for row in drawn) for first in range(0, 1000, 100))


@given(st.lists(st.sampled_from("aaaaaaab"), min_size=10, max_size=200), st.integers(2, 9))
def test_each_group_is_drawn_in_proportion_but_at_least_once(groups, size):
    drawn = draw(len(groups), size, random.Random(3), groups)

    assert len(drawn) == min(size, len(groups))
    assert {groups[position] for position in drawn} == set(groups)


def test_small_groups_are_left_out_if_there_are_more_groups_than_rows():
    groups = ["large"] * 50 + [f"small {number}" for number in range(30)]

    drawn = draw(len(groups), 5, random.Random(3), groups)

    assert len(drawn) == 5
    assert "large" in {groups[position] for position in drawn}
