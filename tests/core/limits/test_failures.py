"""What failures mean: verdicts of users, groups of equal errors, and lists that stop."""

from __future__ import annotations

import pytest

from smartbatch.core.limits.failures import (
    STOPPING_FAILURES,
    Classifiers,
    EqualFailures,
)
from smartbatch.errors import (
    ConfigError,
    ErrorKind,
    ListStopped,
    ProviderError,
    ProviderUnavailable,
    QueueFull,
    RequestCancelled,
    SmartbatchError,
    kind_name,
)
from smartbatch.types import Result

ERROR = ValueError("quota, probably")


def verdict() -> ProviderError:
    return ProviderError("it failed", kind=ErrorKind.UNKNOWN, status=418, retry_after=2.0)


def test_the_first_that_does_not_pass_decides():
    asked: list[str] = []

    def passes(error, so_far):
        asked.append("passes")
        assert error is ERROR
        assert so_far.status == 418

    def says(error, so_far):
        asked.append("says")
        return ErrorKind.RATE_LIMIT

    def never(error, so_far):
        asked.append("never")

    given = verdict()
    cause = given.__cause__ = KeyError("x")
    found = Classifiers([passes, says, never]).verdict(ERROR, given)
    assert asked == ["passes", "says"]
    assert (found.kind, found.status, found.retry_after) == (ErrorKind.RATE_LIMIT, 418, 2.0)
    assert found.__cause__ is cause
    assert given.kind is ErrorKind.UNKNOWN


def test_a_broken_classifier_is_passed_over_and_named():

    def breaks(error, so_far):
        raise ZeroDivisionError

    def babbles(error, so_far):
        return "rate_limit"

    given = verdict()
    found = Classifiers([breaks, babbles, lambda *_: ErrorKind.TIMEOUT]).verdict(ERROR, given)
    assert found.kind is ErrorKind.TIMEOUT
    assert "breaks raised ZeroDivisionError" in found.__notes__[0]
    assert "babbles returned a str" in found.__notes__[1]


def test_only_callables_are_taken():
    with pytest.raises(ConfigError, match=r"classifiers\[1\] is a str"):
        Classifiers([lambda *_: None, "rate_limit"])


def failed(error: SmartbatchError, attempts: int = 1) -> Result:
    return Result("r", error=error, attempts=attempts)


def bad(message: str = "no such model", status: int = 400) -> Result:
    return failed(ProviderError(message, kind=ErrorKind.CLIENT_ERROR, status=status))


REFUSED = failed(ProviderUnavailable("cannot be used now", kind=ErrorKind.AUTH_ERROR), attempts=0)
KEY = failed(ProviderError("bad key", kind=ErrorKind.AUTH_ERROR, status=401))


@pytest.mark.parametrize("total", [None, 7, 20, 5000])
def test_a_list_stops_once_its_first_requests_failed_alike(total):
    stop = EqualFailures(total)
    count = min(STOPPING_FAILURES, total or STOPPING_FAILURES)
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
def test_anything_else_among_them_lets_the_list_continue(other):
    for place in range(STOPPING_FAILURES):
        stop = EqualFailures(100)
        results = [other if at == place else bad() for at in range(3 * STOPPING_FAILURES)]
        assert not any(stop.stops_with(result) for result in results)
        assert stop.reason is None


def test_requests_that_a_rejected_key_withholds_count_as_the_rejected_one():
    for first in ([KEY], [REFUSED, KEY], [REFUSED, REFUSED]):
        stop = EqualFailures(100)
        results = [*first, *[REFUSED] * (STOPPING_FAILURES - len(first))]
        assert [stop.stops_with(result) for result in results][-1]
        assert ("401" in (stop.reason or "")) == (KEY in first)


def test_what_is_not_sent_afterwards_says_so():
    stop = EqualFailures(2)
    cancelled = failed(RequestCancelled("cancelled"), attempts=0)
    assert stop.unsent(cancelled) is cancelled
    stop.stops_with(KEY), stop.stops_with(KEY)
    error = stop.unsent(cancelled).error
    assert isinstance(error, ListStopped)
    assert error.summary(20) == "Stopped: the API key was rejected (401). 20 rows were not sent."
    assert error.summary(1) == "Stopped: the API key was rejected (401). 1 row was not sent."
    assert stop.unsent(KEY) is KEY


def test_a_list_with_an_answer_from_before_never_stops():
    stop = EqualFailures(50, decided=True)
    assert not any(stop.stops_with(KEY) for _ in range(50))


def test_an_error_without_a_kind_is_counted_by_its_class():
    assert kind_name(ProviderError("x", kind=ErrorKind.RATE_LIMIT)) == "rate_limit"
    assert kind_name(QueueFull("x")) == "queue_full"
