"""Whether a list stops because its first requests all fail with the same error."""

from __future__ import annotations

from typing import Final

from attrs import evolve

from smartbatch.core.limits.error_patterns import pattern_of
from smartbatch.errors import (
    ClientClosed,
    ErrorKind,
    ListStopped,
    ProviderError,
    ProviderUnavailable,
    RequestCancelled,
)
from smartbatch.types import Result

FIRST: Final = 20
"""Completed requests that have to fail alike."""
_PERMANENT: Final = frozenset({ErrorKind.CLIENT_ERROR, ErrorKind.AUTH_ERROR, ErrorKind.NO_MONEY})
"""Kinds of errors that the next request of the list gets as well if all before it did."""
_REASONS: Final = {
    401: "the API key was rejected (401)",
    402: "the account has no credit (402)",
    403: "the account was denied access (403)",
}


class EqualFailures:
    """The decision for one list. Not safe from several threads at once.

    Args:
        total: requests of the list; ``None`` if that is unknown. The first :data:`FIRST` decide, or all.
        decided: it never stops, as one was answered before.

    Attributes:
        total: as given.
        reason: why the list stops, such as ``the API key was rejected (401)``; ``None`` while it does not.
    """

    def __init__(self, total: int | None, *, decided: bool = False) -> None:
        self.total = total
        self._left = FIRST if total is None else min(FIRST, total)
        self._decided = decided
        self._first: ProviderError | None = None
        self.reason: str | None = None

    def stops_with(self, result: Result) -> bool:
        """Count a completed request; return whether the list stops with it, which is true once."""
        error = result.error
        if self._decided or isinstance(error, RequestCancelled | ClientClosed):
            return False
        if not isinstance(error, ProviderError) or error.kind not in _PERMANENT:
            self._decided = True  # an answer, or an error that the next request need not have
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
        """Return the result of a request that was not sent as that of a list that stopped; any other result,
        and any while the list goes on, as it is."""
        withheld = isinstance(result.error, RequestCancelled | ClientClosed | ProviderUnavailable)
        if self.reason is None or result.attempts or not withheld:
            return result
        return evolve(result, error=self.error(result.request_id), cost=0.0, route=None)

    def of_the_rest(self) -> ListStopped:
        """Return the error with which a list stops whose further requests are not known."""
        return ListStopped(
            f"Stopped: {self.reason}. The rest was not sent; fix that, or pass keep_going=True to send all",
            reason=self.reason,
        )

    def error(self, request_id: str | None) -> ListStopped:
        """Return the error of a request that is not sent."""
        return ListStopped(
            f"not sent, as {self.reason}; fix that and send the row again, or pass keep_going=True "
            "(--keep-going) to send all rows",
            request_id=request_id,
            reason=self.reason,
        )


def _is_refusal(error: ProviderError) -> bool:
    """Whether the request was not sent, as the provider cannot be used: the error of an earlier request is
    the cause."""
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
