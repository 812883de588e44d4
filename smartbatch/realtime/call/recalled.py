"""The cache below a middleware: it keeps what the provider said to what was really sent."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from smartbatch.core.preparation.fingerprint import fingerprint
from smartbatch.core.preparation.structured import Parsed, read_answer
from smartbatch.providers.base import Provider
from smartbatch.realtime.cache import ResponseCache
from smartbatch.realtime.call.layers import Call, CallSpec, Middleware, Outcome
from smartbatch.types import Answer, Request

__all__ = ["recalling"]


def recalling(cache: ResponseCache, provider: Provider, model: str) -> Middleware:
    """Return the layer that answers requests from ``cache`` and passes on those that are not in it.

    Streams pass it by, and so do requests that must not share an answer.
    """

    def key_of(request: Request) -> bytes | None:
        if not request.deduplicate or request.call is not None:
            return None
        return fingerprint(request, model, provider.scope)

    def recalled(spec: CallSpec, proceed: Call) -> Sequence[Outcome]:
        if spec.feed is not None:
            return proceed(spec)
        keys = [key_of(request) for request in spec.requests]
        outcomes: list[Outcome] = []
        for request, key in zip(spec.requests, keys, strict=True):
            known = None if key is None else cache.get(key)
            fits = known is not None and _fits(request, known)
            outcomes.append(evolve(known, kept=True, cost=0.0) if known is not None and fits else None)
        missing = [at for at, outcome in enumerate(outcomes) if outcome is None]
        if not missing:
            return outcomes
        said = proceed(evolve(spec, requests=tuple(spec.requests[at] for at in missing)))
        for at, outcome in zip(missing, said, strict=True):
            outcomes[at], key = outcome, keys[at]
            if key is not None and isinstance(outcome, Answer) and _fits(spec.requests[at], outcome):
                cache.put(key, outcome)
        return outcomes

    return recalled


def _fits(request: Request, answer: Answer) -> bool:
    return isinstance(read_answer(request.params, answer.text, answer.finish_reason), Parsed)
