"""How the items of a job are cut into shards."""

from __future__ import annotations

import math
import random
import time
from functools import cache
from itertools import pairwise

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.batching.sharding import Cut, cut


@frozen
class Item:
    ix: int
    size: int = 100
    tokens: int = 30


def items(count: int) -> list[Item]:
    return [Item(ix) for ix in range(count)]


def sizes(found: Cut) -> list[int]:
    return [len(shard) for shard in found.shards]


def by_count(count: int, most: int, *, distinct: bool = False, taken: tuple[int, ...] = ()) -> Cut:
    """A cut where only the number of requests matters."""
    return cut(
        items(count),
        max_requests=most,
        max_bytes=math.inf,
        max_tokens=math.inf,
        distinct=distinct,
        taken_sizes=taken,
    )


some_items = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=60).map(
    lambda sizes: [Item(ix * 7, size, tokens) for ix, (size, tokens) in enumerate(sizes)]
)
limits = st.fixed_dictionaries(
    {
        "max_requests": st.integers(1, 20),
        "max_bytes": st.integers(1, 200) | st.just(math.inf),
        "max_tokens": st.integers(0, 200) | st.just(math.inf),
        "distinct": st.booleans(),
        "taken_sizes": st.sets(st.integers(1, 20)),
    }
)


@given(some_items, limits)
def test_cutting_keeps_every_item_the_order_and_all_limits(row, limits):
    found = cut(row, **limits)  # type: ignore[arg-type]
    sent = [ix for shard in found.shards for ix in shard]
    assert sorted([*sent, *found.too_big]) == [item.ix for item in row]
    assert sent == sorted(sent)
    assert list(found.too_big) == sorted(found.too_big)
    by_ix = {item.ix: item for item in row}
    for shard in found.shards:
        assert 1 <= len(shard) <= limits["max_requests"]
        assert sum(by_ix[ix].size + 1 for ix in shard) <= limits["max_bytes"]
        assert sum(by_ix[ix].tokens for ix in shard) <= limits["max_tokens"]
    for ix in found.too_big:
        item = by_ix[ix]
        over = item.size + 1 > limits["max_bytes"]
        assert over or item.tokens > limits["max_tokens"]


@given(some_items, limits)
def test_there_are_as_few_shards_as_the_greediest_cut_has(row, limits):
    found = cut(row, **{**limits, "distinct": False})  # type: ignore[arg-type]
    fewest = count = size = tokens = 0
    for item in row:
        if item.ix in found.too_big:
            continue
        line = item.size + 1
        full = count == limits["max_requests"] or size + line > limits["max_bytes"]
        if not fewest or full or tokens + item.tokens > limits["max_tokens"]:
            fewest, count, size, tokens = fewest + 1, 0, 0, 0
        count, size, tokens = count + 1, size + line, tokens + item.tokens
    assert len(found.shards) == fewest


@given(st.integers(0, 3000), st.integers(1, 400))
def test_equal_items_make_shards_that_differ_by_one_at_most(count, most):
    found = sizes(by_count(count, most))
    assert sum(found) == count
    assert len(found) == math.ceil(count / most)
    assert max(found, default=0) - min(found, default=0) <= 1


def test_an_item_that_fits_nowhere_is_named_and_the_rest_goes():
    row = [Item(0), Item(1, size=1000), Item(2, tokens=1000), Item(3)]
    found = cut(row, max_requests=10, max_bytes=999, max_tokens=999)
    assert found == Cut(((0, 3),), (1, 2))


def test_a_shard_of_no_requests_is_refused():
    with pytest.raises(ValueError, match="max_requests"):
        by_count(1, 0)


class TestSizesThatTellShardsApart:
    def test_those_taken_elsewhere_are_left_out(self):
        found = by_count(300, 100, distinct=True, taken=(100, 98))
        assert not {100, 98} & set(sizes(found))
        assert len(set(sizes(found))) == len(found.shards)

    def test_a_whole_that_would_clash_is_divided(self):
        assert sizes(by_count(7, 10, distinct=True, taken=(7,))) == [4, 3]

    def test_where_it_cannot_be_the_shard_goes_all_the_same(self):
        assert by_count(1, 10, distinct=True, taken=(1,)) == Cut(((0,),), ())

    def test_sizes_that_are_used_up_come_again_as_far_apart_as_can_be(self):
        found = by_count(1000, 10, distinct=True)
        assert sum(sizes(found)) == 1000
        assert all(one != other for one, other in pairwise(sizes(found)))
        assert len(found.shards) < 140  # none is less than half full

    @given(st.integers(1, 40), st.integers(1, 12), st.sets(st.integers(1, 12), max_size=6))
    def test_different_sizes_that_can_be_found_by_trying_all_are_found(self, count, most, taken):
        found = sizes(by_count(count, most, distinct=True, taken=tuple(taken)))
        different = len({*found} | taken) == len(found) + len(taken)
        if count <= 2 * most:
            assert different == divisible(count, most, frozenset(taken))

    @pytest.mark.full
    def test_an_end_with_hardly_a_way_out_is_given_up_in_time(self):
        taken = tuple(size for size in range(1, 20_000) if size % 97)
        started = time.perf_counter()
        found = by_count(30_001, 20_000, distinct=True, taken=taken)
        assert sum(sizes(found)) == 30_001
        assert time.perf_counter() - started < 5


@cache
def divisible(count: int, most: int, taken: frozenset[int]) -> bool:
    """Whether up to four different free sizes make up ``count``; by trying all."""

    def of(left: int, below: int, parts: int) -> bool:
        if not left:
            return True
        free = (size for size in range(min(below - 1, left), 0, -1) if size not in taken)
        return parts > 0 and any(of(left - size, size, parts - 1) for size in free)

    return of(count, most + 1, 4)


@pytest.mark.full
def test_three_hundred_thousand_items_are_cut_in_a_few_seconds():
    """Some 0.4 s here; the bound leaves room for a busy machine."""
    rng = random.Random(1)
    row = [Item(ix, rng.randrange(200, 900), rng.randrange(50, 200)) for ix in range(300_000)]
    started = time.perf_counter()
    found = cut(row, max_requests=5000, max_bytes=2_000_000, max_tokens=400_000)
    assert len(found.shards) >= 80
    assert time.perf_counter() - started < 10


some_groups = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)), max_size=12)
"""Sizes of groups, and how many of their items form a smaller group within."""


def grouped(sizes: list[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for number, (size, inner) in enumerate(sizes):
        paths += [(number,)] * max(0, size - inner) + [(number, 0)] * min(size, inner)
    return dict(enumerate(paths))


@given(some_groups, st.integers(1, 20), st.booleans(), st.sets(st.integers(1, 20)))
def test_groups_change_neither_order_nor_limits_and_cost_few_shards(sizes, most, distinct, taken):
    groups = grouped(sizes)
    row = items(len(groups))
    limits = {"max_requests": most, "max_bytes": math.inf, "max_tokens": most * 30 - 10}
    found = cut(row, groups=groups, distinct=distinct, taken_sizes=taken, **limits)
    assert [ix for shard in found.shards for ix in shard] == [item.ix for item in row if not found.too_big]
    assert all(0 < len(shard) <= max(1, most - 1) for shard in found.shards)
    if not distinct:
        fewest = len(cut(row, **limits).shards)
        assert fewest <= len(found.shards) <= math.ceil(fewest * 4 / 3)


@given(st.lists(st.integers(1, 25), max_size=30), st.integers(100, 200))
def test_groups_of_at_most_a_quarter_of_a_shard_stay_whole(sizes, most):
    groups = grouped([(size, 0) for size in sizes])
    shards = cut(
        items(len(groups)), max_requests=most, max_bytes=math.inf, max_tokens=math.inf, groups=groups
    ).shards
    assert all(groups[one[-1]] != groups[other[0]] for one, other in pairwise(shards))


def test_a_group_larger_than_a_shard_is_divided_between_its_own_groups():
    groups = {ix: (0, ix // 8) for ix in range(32)}
    found = cut(items(32), max_requests=20, max_bytes=math.inf, max_tokens=math.inf, groups=groups)
    assert sizes(found) == [16, 16]


def test_different_sizes_divide_no_group_if_that_is_possible():
    groups = grouped([(10, 0)] * 9)
    found = cut(
        items(90), max_requests=45, max_bytes=math.inf, max_tokens=math.inf, groups=groups, distinct=True
    )
    assert sizes(found) == [40, 30, 20]
