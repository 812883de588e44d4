"""What a list takes: equal requests count once, as far as each route answers them once."""

from __future__ import annotations

import pytest

from smartbatch.core.preparation.tokens import Calibration
from smartbatch.core.routing.workload import NEAR_KEYS, Workload
from smartbatch.types import Generation, Request, Usage


class Rates:
    def cost(self, usage: Usage) -> float:
        return float(usage.input_tokens)

    def expected_usage(self, input_tokens: int, output_tokens: int) -> Usage:
        return Usage(input_tokens, output_tokens)


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


def test_an_equal_request_that_is_near_shares_the_answer_by_every_route() -> None:
    workload = listed(b"a-----", b"b-----", b"a-----", None, None)
    assert (workload.load.requests, workload.load.duplicates, workload.load.repeats) == (4, 1, 0)
    assert expected(workload) == expected(workload, by_job=True) == pytest.approx(4 * ONE)


def test_distant_equal_requests_cost_twice_in_real_time_once_in_a_job() -> None:
    workload = listed(*MANY, MANY[0])
    load = workload.load
    assert (load.requests, load.duplicates, load.repeats, load.by_job) == (NEAR_KEYS + 2, 0, 1, NEAR_KEYS + 1)
    assert expected(workload) == pytest.approx((NEAR_KEYS + 2) * ONE)
    assert expected(workload, by_job=True) == pytest.approx((NEAR_KEYS + 1) * ONE)


def test_stored_answers_are_shared_by_equal_requests_at_any_distance() -> None:
    workload = listed(*MANY, MANY[0], kept=True)
    assert (workload.load.requests, workload.load.duplicates, workload.load.repeats) == (NEAR_KEYS + 1, 1, 0)
    assert expected(workload) == expected(workload, by_job=True) == pytest.approx((NEAR_KEYS + 1) * ONE)
