"""One call to a provider, as a function wrapped in layers that neither wait nor retry.

The layers, from the outermost to the innermost:

1. the user's middleware, which sees classified outcomes and may change requests and answers;
2. :class:`AnswerSharing`, which shares and caches the provider's answer before middleware changes it;
3. :func:`classify`, so that the layers above see no foreign exceptions;
4. :class:`References`, which replaces files by the ids of their uploads;
5. :class:`CacheReferences`, which replaces prefixes of prompts by explicit caches;
6. the deadline, which subtracts the time spent in the layers above;
7. the provider, or the request's own callable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias

from attrs import fields_dict, frozen

from smartbatch.core.batching.packing import BatchCompiler, Packed, split, split_usage, usage_weights
from smartbatch.core.batching.request_batch import Batch
from smartbatch.core.limits.failures import Classifiers
from smartbatch.core.preparation import tokens
from smartbatch.core.preparation.fingerprint import fingerprint
from smartbatch.core.preparation.structured import Parsed, read_answer
from smartbatch.errors import (
    AnswerUnread,
    ErrorKind,
    InvalidRequest,
    MissingAnswer,
    ProviderError,
    RequestCancelled,
    scrub,
)
from smartbatch.observe import logs
from smartbatch.providers.base import AnswerStream, FlexTier, Provider
from smartbatch.providers.callable import normalise, usage_of
from smartbatch.providers.limit_headers import RETRY_AFTER_CEILING
from smartbatch.realtime.cache import ResponseCache
from smartbatch.realtime.text_stream import ChunkBox
from smartbatch.types import Answer, Attempt, LimitReport, Request, Usage, evolve, own_parts

SINGLE_PROMPT_FINISH_REASONS: Final = frozenset({"refusal", "content_filter"})
"""Finish reasons that a single prompt of a packed call may have caused. Each prompt is then sent separately.
"""

Outcome: TypeAlias = "Answer | ProviderError | None"
"""``None`` means that a shared answer omits the request."""


@frozen
class CallSpec:
    batch: Batch[Any, Outcome]  # middleware may replace the requests with other objects
    requests: tuple[Request, ...]
    model: str  # provider:model
    attempt: int
    deadline: float  # monotonic seconds
    feed: ChunkBox | None = None  # receives the chunks of a streamed answer
    begun: Callable[[], None] | None = None  # called when the answer begins, if other requests wait for it

    @property
    def batch_id(self) -> str:
        return self.batch.id


Call: TypeAlias = "Callable[[CallSpec], Sequence[Outcome]]"
Middleware: TypeAlias = "Callable[[CallSpec, Call], Sequence[Outcome]]"
"""``middleware(spec, proceed)`` calls ``proceed(spec)`` and returns one outcome per request."""


class References(Protocol):
    """Replaces content of requests by ids of remote objects that contain it, and creates these objects."""

    def refer(self, provider: Provider, model: str, request: Request, deadline: float, /) -> Request:
        """Return ``request`` with ids; may wait until ``deadline``, in monotonic seconds. Never raises."""
        ...

    def forget_lost(self, provider: Provider, sent: Sequence[Request], error: Exception, /) -> bool:
        """Whether ``error`` reports that an object in ``sent`` cannot be used; it is then forgotten."""
        ...


class CacheReferences(References, Protocol):
    """Creates explicit caches of prefixes that many requests share."""

    def due(self, provider: Provider, model: str, key: str, /) -> int:
        """Return what the cache of a prefix has cost since the latest charge, as a number of input tokens.

        The caller charges it.
        """
        ...

    def release(self, provider: Provider, model: str, keys: Sequence[str], /) -> None:
        """Delete the caches of these prefixes, on another thread. Never raises."""
        ...


def build_call(
    provider: Provider,
    model: str,
    *,
    now: Callable[[], float],
    classifiers: Classifiers,
    middleware: Sequence[Middleware],
    innermost: Middleware | None = None,
    compiler: BatchCompiler | None = None,
    tier: FlexTier | None = None,
    checks: bool = False,
    references: References | None = None,
    caches: CacheReferences | None = None,
) -> Call:
    """Return the call to ``provider`` with its layers; it never raises.

    Args:
        innermost: the layer below the middleware, which sees the requests and answers as they are
            transmitted.
        compiler: combines several requests into one packed prompt.
        tier: the service tier that each request names.
        checks: whether the provider must check the requests, because they were accepted for another one.
        references: replaces files by ids; ``None`` sends all files in their requests.
        caches: explicit caches of prefixes of prompts; ``None`` creates none.
    """
    call = _deadlined(provider, model, now, compiler, tier)
    for each in (caches, references):
        if each is not None:
            call = _referring(call, provider, model, each)
    if checks:
        call = _checking(call, provider, model)
    call = _classified(call, provider, classifiers)
    if innermost is not None:
        call = _with_middleware(innermost, call)
    return with_middleware(call, provider, middleware)


def with_middleware(call: Call, provider: Provider, middleware: Sequence[Middleware]) -> Call:
    for layer in reversed(middleware):
        call = _with_middleware(layer, call)
    return _guarded(call, provider) if middleware else call


def _checking(call: Call, provider: Provider, model: str) -> Call:
    def checked_call(spec: CallSpec) -> Sequence[Outcome]:
        for request in spec.requests:
            try:
                provider.check(request, model=model)
            except InvalidRequest as error:
                raise ProviderError(
                    f"the fallback model {model} cannot take over: {error}",
                    kind=ErrorKind.CLIENT_ERROR,
                    code="invalid_request",
                ) from None
        return call(spec)

    return checked_call


def _referring(call: Call, provider: Provider, model: str, references: References) -> Call:
    def with_ids(spec: CallSpec) -> CallSpec:
        requests = [references.refer(provider, model, request, spec.deadline) for request in spec.requests]
        return evolve(spec, requests=tuple(requests))

    def referring_call(spec: CallSpec) -> Sequence[Outcome]:
        sent = with_ids(spec)
        try:
            return call(sent)
        except Exception as error:
            if sent.requests == spec.requests or not references.forget_lost(provider, sent.requests, error):
                raise
        return call(with_ids(spec))

    return referring_call


def _deadlined(
    provider: Provider,
    model: str,
    now: Callable[[], float],
    compiler: BatchCompiler | None,
    tier: FlexTier | None,
) -> Call:
    def call(spec: CallSpec) -> Sequence[Outcome]:
        timeout = spec.deadline - now()
        if timeout <= 0:
            raise ProviderError("the call timed out before it began", kind=ErrorKind.TIMEOUT)
        if spec.requests[0].embedding is not None:
            return provider.embed(  # type: ignore[return-value]  # classified above
                spec.requests, model=model, attempt=spec.attempt, timeout=timeout
            )
        generate = partial(provider.generate, model=model, attempt=spec.attempt, timeout=timeout)
        if len(spec.requests) > 1 and compiler is not None:
            spec.batch.compiled = compiler.compile(spec.requests)
            return _packed(generate, spec.batch.compiled, spec.requests)
        if len(spec.requests) > 1:
            return provider.generate_many(  # type: ignore[return-value]  # classified above
                spec.requests, model=model, attempt=spec.attempt, timeout=timeout
            )
        request = spec.requests[0]
        if request.call is not None:
            attempt = Attempt(spec.attempt, timeout, request.params.temperature)
            return (normalise(request.call(request, attempt)),)
        if spec.feed is not None:
            return (stream_answer(provider, request, spec.feed, model, spec.attempt, spec.deadline, timeout),)
        request = request if tier is None else tier.apply_to(request)
        if spec.begun is not None and provider.capabilities.streams:
            stream = provider.stream(request, model=model, attempt=spec.attempt, timeout=timeout)
            return (_streamed(stream, spec.begun),)
        return (generate(request),)

    return call


def _streamed(stream: AnswerStream, begun: Callable[[], None]) -> Answer:
    """Read a whole answer, and call ``begun`` as soon as its first part arrives."""
    stream.begun = begun
    try:
        for _ in stream:
            begun()
        return stream.answer
    finally:
        stream.close()


def _packed(
    generate: Callable[[Request], Answer], packed: Packed, requests: Sequence[Request]
) -> Sequence[Outcome]:
    """Send several requests as one prompt, and return for each its part of the answer or a ``MissingAnswer``.

    Usage and cost are split by the lengths of prompts and answers.
    """
    whole = generate(packed.request)
    if not isinstance(whole, Answer) or answer_flaw(whole) is not None:
        raise invalid_answer("the provider returned no usable answer to a packed call")
    texts: list[str | None] = [None] * len(requests)
    if whole.finish_reason not in SINGLE_PROMPT_FINISH_REASONS:
        texts = split(packed, whole.text or "")
    asked = usage_weights([str(request.prompt) for request in requests])
    usages: list[Usage | None] = [None] * len(requests)
    if whole.usage is not None:
        usages = [*split_usage(whole.usage, asked, usage_weights(texts))]
    parts: list[Outcome] = []
    for text, usage, weight in zip(texts, usages, asked, strict=True):
        cost = None if whole.cost is None else whole.cost * weight / (sum(asked) or 1)
        if text is None:
            parts.append(MissingAnswer(usage=usage, cost=cost, limits=whole.limits))
        else:
            parts.append(evolve(whole, text=text, usage=usage, cost=cost, finish_reason="stop"))
    return parts


def _classified(call: Call, provider: Provider, classifiers: Classifiers) -> Call:
    def meaning(error: BaseException, *, own: bool) -> ProviderError:
        verdict = classify(error, provider)
        if isinstance(error, Exception):
            verdict = classifiers.verdict(error, verdict)
        if own:
            verdict.usage = usage_of(error) or verdict.usage
        if own and verdict is not error:
            # the traceback of the user's own function is useful and contains no keys
            verdict.__cause__ = error
            return verdict
        # a traceback keeps frames alive, which may hold prompts and keys
        verdict.__traceback__ = verdict.__context__ = None
        if not own:  # a classified error keeps the cause that was set for it
            verdict.__cause__ = None
        return verdict

    def classified(spec: CallSpec) -> Sequence[Outcome]:
        own = spec.requests[0].call is not None or provider.own_code
        try:
            outcomes = call(spec)
        except BaseException as error:
            verdict = meaning(error, own=own)
            if spec.feed is not None:
                verdict = interrupted_stream(verdict, spec.requests[0], spec.model, spec.feed)
            return _fitted(spec, (verdict,) * len(spec.requests))
        return _fitted(spec, outcomes, partial(meaning, own=own))

    return classified


def _fitted(
    spec: CallSpec, outcomes: object, meaning: Callable[[BaseException], object] | None = None
) -> Sequence[Outcome]:
    """Return one valid outcome per request, whatever the wrapped call returned."""
    size = len(spec.requests)
    if not isinstance(outcomes, list | tuple):
        return (
            invalid_answer(f"the call returned {type(outcomes).__name__} instead of a list of answers"),
        ) * size
    found = [
        checked(meaning(outcome) if meaning and isinstance(outcome, BaseException) else outcome)
        for outcome in outcomes[:size]
    ]
    return found + [None] * (size - len(found))


def classify(error: BaseException, provider: Provider) -> ProviderError:
    if not isinstance(error, Exception):
        return ProviderError(f"the call raised {type(error).__name__}", kind=ErrorKind.UNKNOWN)
    try:
        return provider.classify(error)
    except Exception as broken:
        return ProviderError(
            scrub(f"{type(error).__name__} (its classifier failed: {type(broken).__name__})"),
            kind=ErrorKind.UNKNOWN,
        )


def _with_middleware(layer: Middleware, inner: Call) -> Call:
    return lambda spec: layer(spec, inner)


def _guarded(call: Call, provider: Provider) -> Call:
    """Turn exceptions and invalid results of middleware into an error for every request."""

    def guarded(spec: CallSpec) -> Sequence[Outcome]:
        try:
            outcomes = call(spec)
        except BaseException as error:
            if not isinstance(error, ProviderError):
                logs.user_error("a middleware", error)
            verdict = classify(error, provider)
            verdict.__cause__ = error if verdict is not error else None
            outcomes = (verdict,) * len(spec.requests)
        return _fitted(spec, outcomes)

    return guarded


MAX_CALL_TOKENS = 2**53
"""Largest token count that a float represents exactly; larger counts are rejected."""
MAX_CALL_USD = 1e9
"""Higher costs are rejected."""


def checked(outcome: object) -> Answer | ProviderError | None:
    """Return ``outcome``, a corrected copy of it, or an error if it is invalid."""
    if outcome is None:
        return None
    if isinstance(outcome, Answer):
        problem = answer_flaw(outcome)
        if problem is not None:
            return invalid_answer(f"the provider's answer has {problem}", outcome.usage)
        limits: object = outcome.limits
        return outcome if limits is None or isinstance(limits, LimitReport) else evolve(outcome, limits=None)
    if isinstance(outcome, ProviderError):
        return _mended(outcome)
    return invalid_answer(f"the provider returned {type(outcome).__name__} instead of an Answer")


def answer_flaw(answer: Answer) -> str | None:
    """Describe what is invalid in ``answer``; ``None`` if it is valid."""
    text: object = answer.text
    if text is not None and not isinstance(text, str):
        return f"text of type {type(text).__name__}"
    if answer.usage is not None and not _is_usage(answer.usage):
        return "an invalid usage: it must be a Usage of whole numbers, 0 or more"
    if answer.cost is not None and not _is_number(answer.cost, MAX_CALL_USD):
        return "an invalid cost: it must be a number, 0 or more"
    return None


def invalid_answer(message: str, usage: object = None) -> ProviderError:
    """Return the error for an unusable answer, which may have been billed."""
    used = usage if _is_usage(usage) else None
    return ProviderError(message, kind=ErrorKind.INVALID_RESPONSE, maybe_billed=True, usage=used)


def _mended(error: ProviderError) -> ProviderError:
    if error.usage is not None and not _is_usage(error.usage):
        error.usage = None
    if error.cost is not None and not _is_number(error.cost, MAX_CALL_USD):
        error.cost = None
    if error.limits is not None and not isinstance(error.limits, LimitReport):
        error.limits = None
    if error.retry_after is not None:
        sound = _is_number(error.retry_after, float("inf"))
        error.retry_after = min(error.retry_after, RETRY_AFTER_CEILING) if sound else None
    return error


_COUNTS = attrgetter(*fields_dict(Usage))


def _is_usage(usage: object) -> bool:
    if not isinstance(usage, Usage):
        return False
    return all(isinstance(count, int) and 0 <= count <= MAX_CALL_TOKENS for count in _COUNTS(usage))


def _is_number(value: object, most: float) -> bool:
    return isinstance(value, int | float) and 0 <= value <= most  # False for NaN


def stream_answer(
    provider: Provider,
    request: Request,
    feed: ChunkBox,
    model: str,
    attempt: int,
    end: float,
    timeout: float,
) -> Answer:
    """Make a call and pass its chunks to ``feed`` until the time ``end``, in monotonic seconds.

    Raises:
        Exception: as in :meth:`Provider.generate <smartbatch.providers.base.Provider.generate>`.
    """
    if feed.begun:
        raise ProviderError(
            "part of the answer was already delivered, so the request cannot be sent again",
            kind=ErrorKind.CLIENT_ERROR,
        )
    if feed.over:
        raise RequestCancelled("the stream was closed before its call; nothing was sent")
    if not provider.capabilities.streams:
        return provider.generate(request, model=model, attempt=attempt, timeout=timeout)
    stream: AnswerStream | None = None
    try:
        stream = provider.stream(request, model=model, attempt=attempt, timeout=timeout)
        feed.attach(stream.close)
        for piece in stream:
            if not isinstance(piece, str):
                raise ProviderError(
                    f"the stream contains a piece of type {type(piece).__name__}, not text",
                    kind=ErrorKind.INVALID_RESPONSE,
                )
            if piece:
                feed.put(piece, end)
        answer = stream.answer
    finally:
        feed.detach()
        if stream is not None:
            stream.close()
    if isinstance(answer, Answer) and answer.usage is None:
        return evolve(answer, usage=tokens.estimated_usage(request, model, feed.tokens))
    return answer


def interrupted_stream(error: ProviderError, request: Request, model: str, feed: ChunkBox) -> ProviderError:
    """Return the error of an interrupted stream, with estimated usage.

    It is an estimate because generated tokens are billed even if they never arrive.
    """
    if feed.over and not isinstance(error, RequestCancelled):
        error = RequestCancelled("the stream was closed before it ended", maybe_billed=True)
    elif feed.held_up and error.kind is ErrorKind.TIMEOUT:
        # not the provider's fault: it cannot send while the reader is not reading
        error = RequestCancelled("the stream was read too slowly for its timeout", maybe_billed=True)
    if feed.begun or (error.maybe_billed and isinstance(error, RequestCancelled)):
        error.maybe_billed = True
        if error.usage is None:
            error.usage = tokens.estimated_usage(request, model, feed.tokens)
    if error.usage is not None:
        made = max(error.usage.output_tokens, feed.tokens)
        error.usage = evolve(error.usage, output_tokens=made, estimated=True)
    return error


@frozen(eq=False, repr=False)
class AnswerSharing:
    """Checks the cache immediately before a call, and shares answers below the middleware.

    An identical request may have been answered since the cache was checked at submission. From then on,
    identical requests join this one, so that only one is paid for. Below middleware, this layer also records
    the provider's answers and caches them; the middleware then runs once for each identical request, with the
    recorded answer.
    """

    _cache: ResponseCache | None
    _provider: Provider
    _model: str
    _stores: bool

    def __call__(self, spec: CallSpec, proceed: Call) -> Sequence[Outcome]:
        """Answer requests from the cache and pass on all others, including streams."""
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
        spec.batch.recorded.update(
            {key: outcome for key, outcome in zip(keys, outcomes, strict=True) if key is not None}
        )
        return outcomes

    def recorded_answers(self, spec: CallSpec) -> Sequence[Outcome]:
        return [self._noted(spec, request) for request in spec.requests]

    def _noted(self, spec: CallSpec, request: Request) -> Outcome:
        key = self._key(request)
        noted = None if key is None else spec.batch.recorded.get(key)
        if isinstance(noted, Answer):
            return evolve(noted, **own_parts(noted), usage=None, cost=0.0)
        return ProviderError(
            "a middleware marked as shareable changed this request differently from an identical one "
            "that shares its call",
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
    """Return True if the answer fits the request, or if an internal error prevents the check."""
    verdict = read_answer(request.params, answer.text, answer.finish_reason)
    return isinstance(verdict, Parsed) or verdict.internal
