"""The layer that looks into the cache right before a call, and shares answers below a middleware.

An equal request may have been answered since this one was looked up at its submission. From the call on,
later equal requests join this one, so none is paid for twice.

Below a middleware the layer also notes what the provider said, for equal requests that share the call, and
stores it in the cache. The middleware then runs once for each of them, over what was noted.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, frozen

from smartbatch.core.preparation.fingerprint import fingerprint
from smartbatch.core.preparation.structured import Parsed, read_answer
from smartbatch.errors import AnswerUnread, ErrorKind, ProviderError
from smartbatch.providers.base import Provider
from smartbatch.realtime.cache import ResponseCache
from smartbatch.realtime.call.layers import Call, CallSpec, Outcome
from smartbatch.types import Answer, Request, own_parts


@frozen(eq=False, repr=False)
class AnswerSharing:
    """The layer of one provider and model.

    Args:
        cache: stored answers; ``None`` without a cache.
        stores: whether it stores answers; without a middleware, the reader of answers does.
    """

    _cache: ResponseCache | None
    _provider: Provider
    _model: str
    _stores: bool

    def __call__(self, spec: CallSpec, proceed: Call) -> Sequence[Outcome]:
        """Answer requests from the cache, and pass on those that are not in it.

        Streams pass it by, and so do requests that must not share an answer.
        """
        if spec.feed is not None:
            return proceed(spec)
        keys = [self._key(request) for request in spec.requests]
        outcomes = [self._known(request, key) for request, key in zip(spec.requests, keys, strict=True)]
        missing = [at for at, outcome in enumerate(outcomes) if outcome is None]
        if missing:
            said = proceed(evolve(spec, requests=tuple(spec.requests[at] for at in missing)))
            for at, outcome in zip(missing, said, strict=True):
                outcomes[at] = outcome
                self._keep(spec.requests[at], keys[at], outcome)
        spec.batch.said.update(
            {key: outcome for key, outcome in zip(keys, outcomes, strict=True) if key is not None}
        )
        return outcomes

    def said(self, spec: CallSpec) -> Sequence[Outcome]:
        """Return what was said to the same requests in the call that ``spec.batch`` was made for."""
        return [self._noted(spec, request) for request in spec.requests]

    def _noted(self, spec: CallSpec, request: Request) -> Outcome:
        key = self._key(request)
        noted = None if key is None else spec.batch.said.get(key)
        if isinstance(noted, Answer):
            return evolve(noted, **own_parts(noted), usage=None, cost=0.0)
        return ProviderError(
            "a middleware that says it is shareable sent something else for this request than for an equal "
            "one that it shares a call with",
            kind=ErrorKind.UNKNOWN,
        )

    def _key(self, request: Request) -> bytes | None:
        if request.deduplicate is False or request.call is not None:
            return None
        return fingerprint(request, self._model, self._provider.scope)

    def _known(self, request: Request, key: bytes | None) -> Outcome:
        try:
            known = None if self._cache is None or key is None else self._cache.get(key)
        except AnswerUnread as unread:
            return ProviderError(unread.message, kind=ErrorKind.INVALID_RESPONSE)
        return evolve(known, kept=True, cost=0.0) if known is not None and _fits(request, known) else None

    def _keep(self, request: Request, key: bytes | None, outcome: Outcome) -> None:
        if (
            self._stores
            and self._cache is not None
            and key is not None
            and isinstance(outcome, Answer)
            and _fits(request, outcome)
        ):
            self._cache.put(key, outcome)


def _fits(request: Request, answer: Answer) -> bool:
    """Whether an answer is what was asked for; where smartbatch itself fails to tell, it is taken to be."""
    verdict = read_answer(request.params, answer.text, answer.finish_reason)
    return isinstance(verdict, Parsed) or verdict.ours
