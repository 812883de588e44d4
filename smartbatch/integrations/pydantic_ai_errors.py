"""What an exception of PydanticAI means: its categories first, then the table of HTTP statuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_ai import exceptions

from smartbatch.errors import ErrorKind, ProviderError, scrub
from smartbatch.providers.error_table import kind_of_status
from smartbatch.providers.foreign_text import PLAIN_WORD, short, told
from smartbatch.providers.limit_headers import RETRY_AFTER_CEILING
from smartbatch.types import Request

__all__ = ["is_foreign", "meaning"]

_CATEGORIES: Sequence[tuple[str, ErrorKind]] = (
    ("ModelQuotaExceededError", ErrorKind.NO_MONEY),
    ("ModelContextWindowExceededError", ErrorKind.CONTEXT_TOO_LONG),
    ("ModelAuthenticationError", ErrorKind.AUTH_ERROR),
    ("ModelRequestTimeout", ErrorKind.TIMEOUT),
    ("ModelTimeoutError", ErrorKind.TIMEOUT),
    ("ModelConnectionError", ErrorKind.NETWORK_ERROR),
    ("ModelRateLimitError", ErrorKind.RATE_LIMIT),
    ("ModelUnavailableError", ErrorKind.SERVER_ERROR),
    ("ModelServerError", ErrorKind.SERVER_ERROR),
    ("ModelRequestRejectedError", ErrorKind.CLIENT_ERROR),
)
"""From the narrow to the wide; by name, for a category that another version lacks is no error."""

_DECIDED = frozenset({ErrorKind.NO_MONEY, ErrorKind.CONTEXT_TOO_LONG, ErrorKind.AUTH_ERROR})
"""What a category knows better than a status: it has read the provider's own error."""


def meaning(error: Exception, *, again: bool, requests: Sequence[Request]) -> ProviderError:
    """Return the meaning of what a run raised.

    Args:
        error: what it raised.
        again: whether another attempt runs another agent, so that an unusable output is worth one.
        requests: whose texts must not come back in the error.
    """
    if isinstance(error, ProviderError):  # of a tool that asks through this library
        return error
    if isinstance(error, exceptions.FallbackExceptionGroup):
        return _of_group(error, again=again, requests=requests)
    if isinstance(error, exceptions.ModelAPIError):
        return _of_api(error, requests)
    kind, code, text = _of_run(error, again=again)
    return ProviderError(text, kind=kind, code=code, maybe_billed=True)


def is_foreign(error: Exception) -> bool:
    """Whether ``error`` is PydanticAI's, which quotes bodies, and not of the user's own code."""
    return isinstance(error, (exceptions.AgentRunError, exceptions.FallbackExceptionGroup, TimeoutError))


def _of_api(error: Any, requests: Sequence[Request]) -> ProviderError:
    kind = next((kind for name, kind in _CATEGORIES if isinstance(error, _category(name))), None)
    status = error.status_code if isinstance(error, exceptions.ModelHTTPError) else None
    message = _message(error.body)
    if status is not None and kind not in _DECIDED:
        kind = kind_of_status(status, error.provider_error_code, error.provider_error_type, message)
    wait = error.retry_after
    code = short(error.provider_error_code, PLAIN_WORD) or short(error.provider_error_type, PLAIN_WORD)
    spoken = told(message, requests)
    what = f"answered {status}" if status is not None else f"failed ({type(error).__name__})"
    return ProviderError(
        f"the agent's model {what}{f' {code}' if code else ''}{f': {spoken}' if spoken else ''}",
        kind=kind or ErrorKind.UNKNOWN,
        status=status,
        code=code,
        retry_after=None if wait is None else min(max(wait, 0.0), RETRY_AFTER_CEILING),
        maybe_billed=status in (None, 200, 504) and getattr(error, "phase", None) not in ("pool", "connect"),
    )


def _of_group(error: Any, *, again: bool, requests: Sequence[Request]) -> ProviderError:
    """Of all models that failed, the last: it is where a fallback ends."""
    verdict = meaning(error.exceptions[-1], again=again, requests=requests)
    verdict.maybe_billed = True
    return verdict


def _of_run(error: Exception, *, again: bool) -> tuple[ErrorKind, str | None, str]:
    name = type(error).__name__
    if isinstance(error, TimeoutError):
        return ErrorKind.TIMEOUT, "deadline", "the run of the agent took longer than its timeout"
    if isinstance(error, exceptions.UsageLimitExceeded):
        return ErrorKind.CLIENT_ERROR, "usage_limit", "the run of the agent reached its usage_limits"
    if isinstance(error, exceptions.ContentFilterError):
        return ErrorKind.CLIENT_ERROR, "content_filter", "the provider's content filter stopped the agent"
    if isinstance(error, exceptions.OutputTokenLimitExceeded):
        return ErrorKind.INVALID_RESPONSE, "length", "the agent's output was cut; raise max_tokens"
    if isinstance(error, exceptions.UnexpectedModelBehavior):
        kind = ErrorKind.UNKNOWN if again else ErrorKind.INVALID_RESPONSE
        return kind, "invalid_output", "the agent could not make a valid output of what its model said"
    if isinstance(error, exceptions.RunCancelled):
        return ErrorKind.CLIENT_ERROR, "cancelled", "the run of the agent was cancelled by its own code"
    if isinstance(error, exceptions.ConcurrencyLimitExceeded):
        return ErrorKind.RATE_LIMIT, "concurrency", "the agent's own concurrency limit was reached"
    if isinstance(error, exceptions.UserError):
        return ErrorKind.CLIENT_ERROR, "usage", scrub(f"the agent was used wrongly: {error.message}")
    kind = ErrorKind.NETWORK_ERROR if isinstance(error, ConnectionError) else ErrorKind.UNKNOWN
    return kind, None, f"the run of the agent raised {name}"


def _category(name: str) -> type[Exception] | tuple[()]:
    found: type[Exception] | tuple[()] = getattr(exceptions, name, ())
    return found


def _message(body: object) -> str:
    """The provider's own words in the body of an error, whichever API it is of."""
    found: object = body
    if isinstance(found, Mapping) and "error" in found:
        found = found["error"]
    if isinstance(found, Mapping):
        found = found.get("message")
    return found if isinstance(found, str) else ""
