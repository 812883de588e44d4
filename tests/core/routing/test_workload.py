"""The workload of a list: identical requests count once on each route that answers them once."""

from __future__ import annotations

import hashlib
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.preparation.calibration import Calibration
from smartbatch.core.preparation.tokens import estimate_request
from smartbatch.core.routing import workload
from smartbatch.core.routing.workload import NEAR_KEYS, DistinctKeys, OtherModel, Workload
from smartbatch.types import Embedding, Generation, Kind, Request, Usage


class Rates:
    def cost(self, usage: Usage) -> float:
        return float(usage.input_tokens)

    expected_cost = cost


def listed(*keys: bytes | None, kept: bool = False) -> Workload:
    found = Workload(Calibration(), {"standard": Rates()}, kept=kept)
    for key in keys:
        found.add_request(Request("a word or two", Generation(max_tokens=9)), key)
    return found


def expected(workload: Workload, *, by_job: bool = False) -> float:
    cost = workload.cost("standard", by_job=by_job)
    assert cost is not None
    return cost.expected


ONE = expected(listed(None))
MANY = [b"%06d" % number for number in range(NEAR_KEYS + 1)]


def test_an_equal_request_that_is_near_shares_the_answer_by_every_route():
    workload = listed(b"a-----", b"b-----", b"a-----", None, None)
    assert (workload.load.requests, workload.load.duplicates, workload.load.repeats) == (4, 1, 0)
    assert expected(workload) == expected(workload, by_job=True) == pytest.approx(4 * ONE)


def test_distant_equal_requests_cost_twice_in_real_time_once_in_a_job():
    workload = listed(*MANY, MANY[0])
    load = workload.load
    assert (load.requests, load.duplicates, load.repeats, load.by_job) == (NEAR_KEYS + 2, 0, 1, NEAR_KEYS + 1)
    assert expected(workload) == pytest.approx((NEAR_KEYS + 2) * ONE)
    assert expected(workload, by_job=True) == pytest.approx((NEAR_KEYS + 1) * ONE)


def test_stored_answers_are_shared_by_equal_requests_at_any_distance():
    workload = listed(*MANY, MANY[0], kept=True)
    assert (workload.load.requests, workload.load.duplicates, workload.load.repeats) == (NEAR_KEYS + 1, 1, 0)
    assert expected(workload) == expected(workload, by_job=True) == pytest.approx((NEAR_KEYS + 1) * ONE)


@pytest.mark.parametrize("embedding", [None, Embedding()])
def test_alike_requests_count_as_much_as_each_of_them(embedding):
    alike, each = listed(), listed()
    request = Request("a word or two", embedding=embedding)
    alike.add_alike(3, estimate_request(request), Kind.EMBED if embedding else Kind.GENERATE)
    for _ in range(3):
        each.add_request(request)
    assert (alike.load, expected(alike)) == (each.load, expected(each))
    assert (each.load.answers is None, each.load.tokens_out > 0) == (bool(embedding), not embedding)


def test_the_cost_of_another_model_is_unknown_without_its_price():
    workload = Workload(Calibration(), {"standard": Rates(), "batch": Rates(), "flex": None})
    workload.add_request(Request("a"), None, OtherModel("m", Calibration(), {"standard": Rates()}))
    assert workload.cost("standard") is not None
    assert (workload.cost("batch"), workload.cost("flex"), workload.cost("none")) == (None, None, None)


def key(number: int) -> bytes:
    return hashlib.blake2b(b"%d" % number, digest_size=32).digest()


@given(st.lists(st.integers(0, 40)))
def test_a_key_is_seen_from_its_second_time_on(numbers):
    keys, before = DistinctKeys(), set[int]()
    for number in numbers:
        assert keys.seen(key(number)) is (number in before)
        before.add(number)


def test_keys_are_near_as_long_as_few_distinct_ones_came_since():
    keys = DistinctKeys()
    assert not any(keys.is_near(key(number)) for number in range(NEAR_KEYS))
    assert all(keys.is_near(key(number)) for number in range(NEAR_KEYS))
    assert not keys.is_near(key(NEAR_KEYS))
    assert not keys.is_near(key(0))
    assert keys.is_near(key(2))


@pytest.mark.full
def test_150_000_keys_take_less_than_a_megabyte_and_a_half():
    tracemalloc.start()
    keys = DistinctKeys()
    assert not any(keys.seen(key(number)) for number in range(150_000))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 1_500_000
    assert all(keys.seen(key(number)) for number in range(0, 150_000, 100))


def test_there_is_an_end_to_what_is_remembered(monkeypatch):
    monkeypatch.setattr(workload, "MAX_KEYS", 5)
    keys = DistinctKeys()
    assert [keys.seen(key(number)) for number in range(9)] == [False] * 9
    assert [keys.seen(key(number)) for number in range(9)] == [True] * 5 + [False] * 4
