"""Own error classifiers decide last, and their errors do not end a worker."""

from __future__ import annotations

import pytest

from smartbatch.core.limits.classifiers import Classifiers
from smartbatch.errors import ConfigError, ErrorKind, ProviderError

ERROR = ValueError("quota, probably")


def verdict() -> ProviderError:
    return ProviderError("it failed", kind=ErrorKind.UNKNOWN, status=418, retry_after=2.0)


def test_without_classifiers_the_providers_verdict_stands():
    """Nothing to ask, nothing changed."""
    given = verdict()
    assert Classifiers().verdict(ERROR, given) is given
    assert Classifiers([lambda error, so_far: None]).verdict(ERROR, given) is given


def test_the_first_that_does_not_pass_decides():
    """Order counts; a kind keeps everything else the provider said."""
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


def test_a_whole_verdict_replaces_the_providers():
    """A classifier may set the waiting time too."""
    mine = ProviderError("mine", kind=ErrorKind.RATE_LIMIT, retry_after=60.0)
    assert Classifiers([lambda *_: mine]).verdict(ERROR, verdict()) is mine


def test_a_broken_classifier_is_passed_over_and_named():
    """One that raises or returns nonsense does not stop the next; a note says so."""

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
    """The error says which entry is wrong."""
    with pytest.raises(ConfigError, match=r"classifiers\[1\] is a str"):
        Classifiers([lambda *_: None, "rate_limit"])
