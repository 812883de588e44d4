"""The cheaper, slower tier of real-time calls: how a request asks for it, and how the tier declines.

Sources: OpenAI's guide to flex processing (``service_tier``; without capacity it answers "429 Resource
Unavailable", which is not charged; tokens cost what they cost in batches) and Google's page on flex inference
(``serviceTier``; without capacity it answers 503 or 429, and never upgrades a request by itself). At both the
tier shares the limits of the model. A model without the tier is answered 400.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from attrs import evolve, frozen

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.types import Request

FLEX = "flex"
"""The name of the tier in requests and answers of both APIs."""

_NAMES_IT = re.compile(r"\bflex\b|service[_ ]?tier", re.I)
_NO_ROOM = re.compile(r"resource[_ ]unavailable|\bflex\b|capacity", re.I)


@frozen
class FlexTier:
    """How one API names its slower tier.

    Args:
        field: the parameter that names a tier.
        also: other spellings of it.
        full: tells whether an error says that the tier has no capacity now, and nothing about the request
            or its limits.
    """

    field: str
    also: tuple[str, ...]
    full: Callable[[ProviderError], bool]

    def is_open_to(self, request: Request) -> bool:
        """Whether ``request`` may use the tier: a generation whose sender named no tier."""
        if request.embedding is not None or request.call is not None:
            return False
        extra = request.params.extra
        return not extra or not any(name in extra for name in (self.field, *self.also))

    def asked_by(self, request: Request) -> Request:
        """Return ``request`` as it asks for the tier."""
        params = request.params
        return evolve(request, params=evolve(params, extra={**(params.extra or {}), self.field: FLEX}))

    def declines(self, error: ProviderError) -> bool:
        """Whether an error says that this model or account does not have the tier."""
        return error.kind is ErrorKind.CLIENT_ERROR and _NAMES_IT.search(error.message) is not None


def _openai_full(error: ProviderError) -> bool:
    """A 429 that is no limit of the user's: those carry ``rate_limit_exceeded`` or a word about money."""
    if error.status != 429 or error.kind is not ErrorKind.RATE_LIMIT:
        return False
    return error.code == "resource_unavailable" or (
        error.code != "rate_limit_exceeded" and _NO_ROOM.search(error.message) is not None
    )


def _gemini_full(error: ProviderError) -> bool:
    """A 503, or a 429 that names no quota: what is refused for a quota names it, and how long to wait."""
    if error.status == 503:
        return True
    unnamed = error.limits is None and error.retry_after is None
    return error.status == 429 and error.kind is ErrorKind.RATE_LIMIT and unnamed


OPENAI = FlexTier("service_tier", (), _openai_full)
GEMINI = FlexTier("serviceTier", ("service_tier",), _gemini_full)
