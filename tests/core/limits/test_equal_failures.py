"""Whether a list stops because its first requests fail alike."""

from __future__ import annotations

import pytest

from smartbatch.core.limits.equal_failures import FIRST, EqualFailures
from smartbatch.errors import (
    ErrorKind,
    ListStopped,
    ProviderError,
    ProviderUnavailable,
    RequestCancelled,
    SmartbatchError,
)
from smartbatch.types import Result


def failed(error: SmartbatchError, attempts: int = 1) -> Result:
    return Result("r", error=error, attempts=attempts)


def bad(message: str = "no such model", status: int = 400) -> Result:
    return failed(ProviderError(message, kind=ErrorKind.CLIENT_ERROR, status=status))


REFUSED = failed(ProviderUnavailable("cannot be used now", kind=ErrorKind.AUTH_ERROR), attempts=0)
KEY = failed(ProviderError("bad key", kind=ErrorKind.AUTH_ERROR, status=401))


@pytest.mark.parametrize("total", [None, 7, 20, 5000])
def test_a_list_stops_once_its_first_requests_failed_alike(total: int | None) -> None:
    stop = EqualFailures(total)
    count = min(FIRST, total or FIRST)
    assert [stop.stops_with(bad()) for _ in range(count + 3)] == [False] * (count - 1) + [True] + [False] * 3
    assert stop.reason == "the first requests all failed with the same error: no such model"


@pytest.mark.parametrize(
    "other",
    [
        Result("r", text="yes"),
        bad("another message"),
        bad(status=404),
        failed(ProviderError("busy", kind=ErrorKind.SERVER_ERROR, status=500)),
        failed(ProviderError("long", kind=ErrorKind.CONTEXT_TOO_LONG, status=400)),
    ],
)
def test_anything_else_among_them_lets_the_list_go_on(other: Result) -> None:
    for place in range(FIRST):
        stop = EqualFailures(100)
        results = [other if at == place else bad() for at in range(3 * FIRST)]
        assert not any(stop.stops_with(result) for result in results)
        assert stop.reason is None


def test_ids_and_numbers_in_messages_make_no_difference() -> None:
    stop = EqualFailures(100)
    results = [bad(f"unknown parameter (request req_0123abcd{n:04d}, {n} tokens)") for n in range(FIRST)]
    assert [stop.stops_with(result) for result in results][-1]


def test_requests_that_a_rejected_key_withholds_count_as_the_rejected_one() -> None:
    for first in ([KEY], [REFUSED, KEY], [REFUSED, REFUSED]):
        stop = EqualFailures(100)
        results = [*first, *[REFUSED] * (FIRST - len(first))]
        assert [stop.stops_with(result) for result in results][-1]
        assert ("401" in (stop.reason or "")) == (KEY in first)


def test_cancelled_requests_decide_nothing() -> None:
    stop = EqualFailures(100)
    cancelled = failed(RequestCancelled("cancelled"), attempts=0)
    results = [result for _ in range(FIRST) for result in (cancelled, KEY)]
    assert [stop.stops_with(result) for result in results][-1]


def test_what_is_not_sent_afterwards_says_so() -> None:
    stop = EqualFailures(2)
    cancelled = failed(RequestCancelled("cancelled"), attempts=0)
    assert stop.unsent(cancelled) is cancelled
    stop.stops_with(KEY), stop.stops_with(KEY)
    error = stop.unsent(cancelled).error
    assert isinstance(error, ListStopped)
    assert error.summary(20) == "Stopped: the API key was rejected (401). 20 rows were not sent."
    assert error.summary(1) == "Stopped: the API key was rejected (401). 1 row was not sent."
    assert stop.unsent(KEY) is KEY


def test_a_list_with_an_answer_from_before_never_stops() -> None:
    stop = EqualFailures(50, decided=True)
    assert not any(stop.stops_with(KEY) for _ in range(50))
