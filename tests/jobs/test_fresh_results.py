"""Results that were stored a moment ago are read without being decoded, and are what the store says."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from attrs import evolve

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.jobs.fresh_results import MOST, FreshResults
from smartbatch.jobs.payload import encode_result
from smartbatch.jobs.records import EarlierTries, NewResult, ResultRow
from smartbatch.jobs.stored_result import result_of_row
from smartbatch.types import Result, Route, Usage

ANSWER = Result(
    "job-1-3",
    text="an answer",
    usage=Usage(10, 5, 2),
    cost=0.25,
    latency=0.5,
    attempts=2,
    route=Route.INDIVIDUAL,
    dropped=(("seed", "it has none"),),
    context=[3, "a key"],
)


def new(result: Result, ix: int = 3, outcome: str = "succeeded") -> tuple[NewResult, Result]:
    return NewResult(ix, outcome, encode_result(result), cost=result.cost), result


def row(result: Result, ix: int = 3) -> ResultRow:
    return ResultRow(ix, None, "succeeded", encode_result(result), b"", result.cost, 1, follower=False)


def kept(*stored: tuple[NewResult, Result]) -> FreshResults:
    fresh = FreshResults()
    fresh.keep("job-1", stored)
    return fresh


def test_what_was_stored_is_there_once_and_as_it_reads_back() -> None:
    fresh = kept(new(ANSWER))
    found = fresh.take(row(ANSWER), "job-1")
    assert found is ANSWER
    read = result_of_row(row(ANSWER), "job-1")
    assert {name: getattr(read, name) for name in Result.__slots__ if not name.startswith("__")} == {
        name: getattr(found, name) for name in Result.__slots__ if not name.startswith("__")
    }
    assert fresh.take(row(ANSWER), "job-1") is None


def test_where_the_store_says_something_else_that_counts() -> None:
    assert kept(new(ANSWER)).take(row(evolve(ANSWER, text="another")), "job-1") is None
    assert kept(new(ANSWER)).take(row(ANSWER), "job-2") is None
    assert kept(new(ANSWER)).take(evolve(row(ANSWER), follower=True), "job-1") is None
    earlier = EarlierTries(0.1, Usage(1, 1))
    assert kept(new(ANSWER)).take(evolve(row(ANSWER), earlier=earlier), "job-1") is None


@pytest.mark.parametrize("more", [{"parsed": {"a": 1}}, {"embedding": array("f", [1.0])}])
def test_objects_and_vectors_are_read_from_the_store(more: dict[str, Any]) -> None:
    result = evolve(ANSWER, **more)
    assert kept(new(result)).take(row(result), "job-1") is None


def test_failures_are_read_from_the_store() -> None:
    failed = evolve(ANSWER, error=ProviderError("no", kind=ErrorKind.TIMEOUT))
    assert kept(new(failed, outcome="failed")).take(row(failed), "job-1") is None


def test_the_latest_are_kept_where_nobody_reads_them() -> None:
    fresh = kept(*(new(ANSWER, ix) for ix in range(MOST + 2)))
    found = [ix for ix in range(MOST + 2) if fresh.take(row(ANSWER, ix), "job-1") is not None]
    assert found == list(range(2, MOST + 2))
