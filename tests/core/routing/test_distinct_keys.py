"""Keys that were seen before, among any number."""

from __future__ import annotations

import hashlib
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.routing import workload
from smartbatch.core.routing.workload import NEAR_KEYS, DistinctKeys


def key(number: int) -> bytes:
    return hashlib.blake2b(b"%d" % number, digest_size=32).digest()


@given(st.lists(st.integers(0, 40)))
def test_a_key_is_seen_from_its_second_time_on(numbers: list[int]) -> None:
    keys, before = DistinctKeys(), set[int]()
    for number in numbers:
        assert keys.seen(key(number)) is (number in before)
        before.add(number)


def test_keys_are_near_as_long_as_few_distinct_ones_came_since() -> None:
    keys = DistinctKeys()
    assert not any(keys.is_near(key(number)) for number in range(NEAR_KEYS))
    assert all(keys.is_near(key(number)) for number in range(NEAR_KEYS))
    assert not keys.is_near(key(NEAR_KEYS))
    assert not keys.is_near(key(0))
    assert keys.is_near(key(2))


@pytest.mark.full
def test_150_000_keys_take_less_than_a_megabyte_and_a_half() -> None:
    tracemalloc.start()
    keys = DistinctKeys()
    assert not any(keys.seen(key(number)) for number in range(150_000))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 1_500_000
    assert all(keys.seen(key(number)) for number in range(0, 150_000, 100))


def test_there_is_an_end_to_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "MAX_KEYS", 5)
    keys = DistinctKeys()
    assert [keys.seen(key(number)) for number in range(9)] == [False] * 9
    assert [keys.seen(key(number)) for number in range(9)] == [True] * 5 + [False] * 4
