"""What a failed call says: of the provider, of the request, or of whatever would be sent next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from smartbatch.errors import ErrorKind, ParameterRejected, ProviderError

_UNAVAILABLE: Final = frozenset({502, 503, 504, 529})
"""HTTP statuses that speak of the provider's state and not of the request; a 500 may be the request that
breaks the server."""

_UNHEALTHY: Final = frozenset({ErrorKind.SERVER_ERROR, ErrorKind.TIMEOUT, ErrorKind.NETWORK_ERROR})
_CAUSED_BY_ONE: Final = frozenset(
    {ErrorKind.CLIENT_ERROR, ErrorKind.CONTEXT_TOO_LONG, ErrorKind.INVALID_RESPONSE, ErrorKind.UNKNOWN}
)
_PERMANENT: Final = frozenset({ErrorKind.AUTH_ERROR, ErrorKind.NO_MONEY})
_UNKNOWN_MODEL: Final = frozenset({404, 410})
"""HTTP statuses of a call to a model, or an address, that is not there."""


def is_network(error: ProviderError) -> bool:
    """Whether no whole answer came."""
    return error.kind is ErrorKind.NETWORK_ERROR


def is_page(error: ProviderError) -> bool:
    """Whether a web page came instead of an answer."""
    return error.code == "html"


def is_for_all(error: ProviderError) -> bool:
    """Whether the next request would meet the same refusal: for the key, the account, or the model."""
    return error.kind in _PERMANENT or (
        error.kind is ErrorKind.CLIENT_ERROR
        and (error.status in _UNKNOWN_MODEL or error.code == "model_not_found")
    )


def retry_kind(error: ProviderError) -> ErrorKind:
    """Return what a failure counts as: a web page is a gateway's, and may be gone with the next call."""
    return ErrorKind.SERVER_ERROR if is_page(error) else error.kind


def is_unhealthy(error: ProviderError) -> bool:
    """Whether the breaker counts the failure as the provider's."""
    return retry_kind(error) in _UNHEALTHY


def is_unavailable(error: ProviderError, *, answered: bool, passed: bool) -> bool:
    """Whether a failure is the provider's state, and not the request's. It is in these cases:

    1. The connection failed, to a provider that has answered before.
    2. A web page came, where calls have succeeded before.
    3. A status says so.

    Args:
        answered: whether the provider ever answered, with a success or an error.
        passed: whether a call to the model ever succeeded.
    """
    if is_network(error):
        return answered
    if is_page(error):
        return passed
    return error.kind is ErrorKind.SERVER_ERROR and error.status in _UNAVAILABLE


def caused_by_one(outcomes: Sequence[object]) -> ProviderError | None:
    """Return the error of a shared call that failed as a whole for what one of its requests may have caused,
    or ``None``.
    """
    first = outcomes[0]
    whole = len(outcomes) > 1 and all(outcome is first for outcome in outcomes)
    if not whole or not isinstance(first, ProviderError) or isinstance(first, ParameterRejected):
        return None
    return first if first.kind in _CAUSED_BY_ONE else None
