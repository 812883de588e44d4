"""Checks of what came back from a call, so that nothing above the layers has to look at types again."""

from __future__ import annotations

from smartbatch.errors import ErrorKind, MissingAnswer, ProviderError
from smartbatch.providers.limit_headers import RETRY_AFTER_CEILING
from smartbatch.types import Answer, LimitReport, Usage, evolve

MOST_TOKENS = 2**53
"""Tokens of one call at most: the largest count that floats hold exactly; all beyond is a mistake."""
MOST_COST = 1e9
"""USD of one call at most; all beyond is a mistake."""


def checked(outcome: object) -> Answer | ProviderError | None:
    """Return ``outcome`` if it is one of a call, or the error it is instead; mend what can be mended."""
    if outcome is None:
        return None
    if isinstance(outcome, Answer):
        problem = flaw(outcome)
        if problem is not None:
            return invalid(f"the provider's answer has {problem}", outcome.usage)
        limits: object = outcome.limits
        return outcome if limits is None or isinstance(limits, LimitReport) else evolve(outcome, limits=None)
    if isinstance(outcome, ProviderError):
        return _mended(outcome)
    return invalid(f"the provider returned {type(outcome).__name__} instead of an Answer")


def flaw(answer: Answer) -> str | None:
    """Return what is wrong with ``answer``, or ``None``."""
    text: object = answer.text
    if text is not None and not isinstance(text, str):
        return f"a {type(text).__name__} as its text"
    if answer.usage is not None and not _is_usage(answer.usage):
        return "a usage that is no Usage of whole numbers, 0 or more"
    if answer.cost is not None and not _is_number(answer.cost, MOST_COST):
        return "a cost that is no number, 0 or more"
    return None


def invalid(message: str, usage: object = None) -> ProviderError:
    """Return the error of an answer that is none, although the call was made."""
    used = usage if _is_usage(usage) else None
    return ProviderError(message, kind=ErrorKind.INVALID_RESPONSE, maybe_billed=True, usage=used)


def _mended(error: ProviderError) -> ProviderError:
    if error.usage is not None and not _is_usage(error.usage):
        error.usage = None
    if isinstance(error, MissingAnswer) and error.cost is not None and not _is_number(error.cost, MOST_COST):
        error.cost = None
    if error.limits is not None and not isinstance(error.limits, LimitReport):
        error.limits = None
    if error.retry_after is not None:
        sound = _is_number(error.retry_after, float("inf"))
        error.retry_after = min(error.retry_after, RETRY_AFTER_CEILING) if sound else None
    return error


def _is_usage(usage: object) -> bool:
    if not isinstance(usage, Usage):
        return False
    counts = (
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_tokens,
        usage.reasoning_tokens,
        usage.cache_write_tokens,
        usage.cache_write_1h_tokens,
    )
    return all(isinstance(count, int) and 0 <= count <= MOST_TOKENS for count in counts)


def _is_number(value: object, most: float) -> bool:
    return isinstance(value, int | float) and 0 <= value <= most  # NaN fails here, too
