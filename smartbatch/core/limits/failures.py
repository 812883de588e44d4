"""The meaning of a failure for the provider, for its request, and for the rest of a list."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from attrs import evolve, field, frozen

from smartbatch.errors import (
    ClientClosed,
    ConfigError,
    ErrorKind,
    ListStopped,
    ParameterRejected,
    ProviderError,
    ProviderUnavailable,
    RequestCancelled,
)
from smartbatch.failure_groups import pattern_of
from smartbatch.types import Result

_UNAVAILABLE_STATUSES: Final = frozenset({502, 503, 504, 529})
"""HTTP statuses that describe the provider's state. A 500 may be caused by the request."""

_UNHEALTHY: Final = frozenset({ErrorKind.SERVER_ERROR, ErrorKind.TIMEOUT, ErrorKind.NETWORK_ERROR})
_CAUSED_BY_ONE: Final = frozenset(
    {ErrorKind.CLIENT_ERROR, ErrorKind.CONTEXT_TOO_LONG, ErrorKind.INVALID_RESPONSE, ErrorKind.UNKNOWN}
)
_PERMANENT_KINDS: Final = frozenset({ErrorKind.AUTH_ERROR, ErrorKind.NO_MONEY})
_UNKNOWN_MODEL_STATUSES: Final = frozenset({404, 410})
"""HTTP statuses of a call to an unknown model or URL."""


def is_network(error: ProviderError) -> bool:
    """Whether no complete answer arrived."""
    return error.kind is ErrorKind.NETWORK_ERROR


def is_page(error: ProviderError) -> bool:
    return error.code == "html"


def is_for_all(error: ProviderError) -> bool:
    return error.kind in _PERMANENT_KINDS or (
        error.kind is ErrorKind.CLIENT_ERROR
        and (error.status in _UNKNOWN_MODEL_STATUSES or error.code == "model_not_found")
    )


def retry_kind(error: ProviderError) -> ErrorKind:
    """Return the kind of error for retries. A web page comes from a gateway and may be temporary."""
    return ErrorKind.SERVER_ERROR if is_page(error) else error.kind


def is_unhealthy(error: ProviderError) -> bool:
    return retry_kind(error) in _UNHEALTHY


def is_unavailable(error: ProviderError, *, answered: bool, passed: bool) -> bool:
    """Whether the provider's state caused the failure, not the request.

    Args:
        answered: whether the provider ever answered, with a success or an error.
        passed: whether a call to the model ever succeeded.
    """
    if is_network(error):  # 1. the connection failed, but the provider has answered before
        return answered
    if is_page(error):  # 2. a web page was returned, but calls to the model have succeeded before
        return passed
    # 3. the HTTP status describes the provider's state
    return error.kind is ErrorKind.SERVER_ERROR and error.status in _UNAVAILABLE_STATUSES


def caused_by_one(outcomes: Sequence[object]) -> ProviderError | None:
    """Return the error of a shared call that failed as a whole, if one of its requests may be the cause."""
    first = outcomes[0]
    whole = len(outcomes) > 1 and all(outcome is first for outcome in outcomes)
    if not whole or not isinstance(first, ProviderError) or isinstance(first, ParameterRejected):
        return None
    return first if first.kind in _CAUSED_BY_ONE else None


Classifier: TypeAlias = "Callable[[Exception, ProviderError], ErrorKind | ProviderError | None]"
"""Takes an exception and the provider's verdict; returns another kind or verdict, or ``None`` to let the next
classifier decide."""


def _callables(_: object, __: object, chain: tuple[object, ...]) -> None:
    for position, classifier in enumerate(chain):
        if not callable(classifier):
            kind = type(classifier).__name__
            raise ConfigError(f"classifiers[{position}] is a {kind}; it must be callable")


def _as_tuple(chain: Iterable[Classifier]) -> tuple[Classifier, ...]:
    return tuple(chain)


@frozen
class Classifiers:
    """The user's classifiers, in order; the first that does not return ``None`` decides.

    A classifier that raises or returns an invalid value is skipped, because it must not turn one failed call
    into a failed client. A note added to the error names the classifier.

    Args:
        chain: in the order in which they are called.
        report: called with the exception that a classifier raised.
    """

    chain: tuple[Classifier, ...] = field(default=(), converter=_as_tuple, validator=_callables)
    report: Callable[[str, BaseException], None] = lambda _where, _error: None

    def verdict(self, error: Exception, provider_error: ProviderError) -> ProviderError:
        """Return the verdict on an exception. Thread-safe."""
        for classifier in self.chain:
            try:
                said: object = classifier(error, provider_error)
            except Exception as mistake:
                self.report("a classifier", mistake)
                _note(provider_error, classifier, f"raised {type(mistake).__name__}")
                continue
            if isinstance(said, ProviderError):
                return said
            if isinstance(said, ErrorKind):
                if provider_error.kind is said:
                    return provider_error
                changed = copy.copy(provider_error)
                changed.kind, changed.__cause__ = said, provider_error.__cause__
                return changed
            if said is not None:
                _note(provider_error, classifier, f"returned a {type(said).__name__}")
        return provider_error


def _note(error: ProviderError, classifier: Classifier, what: str) -> None:
    name = getattr(classifier, "__qualname__", type(classifier).__name__)
    error.add_note(
        f"the error classifier {name} {what} and was skipped; it must return an ErrorKind, "
        "a ProviderError or None"
    )


STOPPING_FAILURES: Final = 20
"""Number of completed requests that must all fail in the same way for a list to stop."""
_REPEATING_KINDS: Final = _PERMANENT_KINDS | {ErrorKind.CLIENT_ERROR}
"""Kinds of errors with which every request of a list will fail if the first ones all did."""
_REASONS: Final = {
    401: "the API key was rejected (401)",
    402: "the account has no credit (402)",
    403: "the account was denied access (403)",
}


class EqualFailures:
    """Stops a list whose first requests all fail with the same error. Not thread-safe.

    Args:
        total: requests in the list; ``None`` if unknown. The first :data:`STOPPING_FAILURES` requests
            decide, or all if there are fewer.
        decided: whether a request was already answered, so that the list never stops.
    """

    def __init__(self, total: int | None, *, decided: bool = False) -> None:
        self.total = total
        self._left = STOPPING_FAILURES if total is None else min(STOPPING_FAILURES, total)
        self._decided = decided
        self._first: ProviderError | None = None
        self.reason: str | None = None  # such as "the API key was rejected (401)"

    def stops_with(self, result: Result) -> bool:
        """Count a completed request; return whether the list stops because of it, which happens at most
        once."""
        error = result.error
        if self._decided or isinstance(error, RequestCancelled | ClientClosed):
            return False
        if not isinstance(error, ProviderError) or error.kind not in _REPEATING_KINDS:
            self._decided = True  # an answer, or an error that the next request may not get
            return False
        if self._first is None or (_is_refusal(self._first) and self._first.kind is error.kind):
            self._first = error
        elif not _alike(self._first, error):
            self._decided = True
            return False
        self._left -= 1
        if self._left > 0:
            return False
        self._decided, self.reason = True, _reason(self._first)
        return True

    def unsent(self, result: Result) -> Result:
        """Return a withheld request's result with the list's error; any other result unchanged."""
        withheld = isinstance(result.error, RequestCancelled | ClientClosed | ProviderUnavailable)
        if self.reason is None or result.attempts or not withheld:
            return result
        return evolve(result, error=self.error(result.request_id), cost=0.0, route=None)

    def of_the_rest(self) -> ListStopped:
        """Return the error that stops a list of unknown length."""
        return ListStopped(
            f"Stopped: {self.reason}. The remaining requests were not sent; fix the cause, or pass "
            "keep_going=True to send them all",
            reason=self.reason,
        )

    def error(self, request_id: str | None) -> ListStopped:
        """Return the error of an unsent request."""
        return ListStopped(
            f"not sent because {self.reason}; fix the cause and send the row again, or pass keep_going=True "
            "(--keep-going) to send all rows",
            request_id=request_id,
            reason=self.reason,
        )


def _is_refusal(error: ProviderError) -> bool:
    """Whether the request was not sent because an earlier error made the provider unusable."""
    return isinstance(error, ProviderUnavailable)


def _alike(first: ProviderError, error: ProviderError) -> bool:
    if _is_refusal(error):
        return error.kind is first.kind
    same = error.kind is first.kind and error.status == first.status
    return same and pattern_of(error.message) == pattern_of(first.message)


def _reason(error: ProviderError) -> str:
    if error.status in _REASONS:
        return _REASONS[error.status]
    return f"the first requests all failed with the same error: {error.message}"
