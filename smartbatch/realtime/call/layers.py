"""One call, as a function in layers. A layer turns a call into a call; none of them waits or retries.

Outside in, and why each stands where it stands:

1. observe: outermost, so that its seconds contain everything and every call is seen once;
2. middleware: the user's own, sees the classified outcome and may change requests or answers;
3. sharing and the cache, where there is middleware that allows it: below it, so that what is shared and kept
   is what the provider said, and each middleware sees that (:mod:`smartbatch.realtime.call.sharing`);
4. classify: below middleware, so that nothing above ever meets a foreign exception;
5. deadline: next to the provider, so that what the layers above used is taken off;
6. the provider, or the request's own callable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from attrs import evolve, frozen

from smartbatch.core.batching.packing import BatchCompiler, Packed, split, split_usage, usage_weights
from smartbatch.core.batching.request_batch import Batch
from smartbatch.core.limits.classifiers import Classifiers
from smartbatch.errors import ErrorKind, MissingAnswer, ProviderError, scrub
from smartbatch.observe import logs
from smartbatch.providers.base import FlexTier, Provider
from smartbatch.providers.callable import normalise, usage_of
from smartbatch.realtime.call.soundness import checked, flaw, invalid
from smartbatch.realtime.call.streamed import cut, streamed
from smartbatch.realtime.text_stream import ChunkBox
from smartbatch.types import Answer, Attempt, Request, Usage

STOPPED: Final = frozenset({"refusal", "content_filter"})
"""Ends of a packed call that one prompt may have caused for all: then each is sent alone."""

Outcome: TypeAlias = "Answer | ProviderError | None"
"""What became of one request of a call; ``None`` where a shared answer lacks it."""


@frozen
class CallSpec:
    """One call to be made.

    Attributes:
        batch: the container it is made for; its items may be others than ``requests`` below a middleware.
        requests: what it carries, one or several.
        model: ``provider:model``.
        attempt: 0 for the first call of these requests.
        deadline: monotonic seconds at which the call must have ended.
        feed: takes the pieces of a streamed answer; ``None`` for all others.
    """

    batch: Batch[Any, Outcome]
    requests: tuple[Request, ...]
    model: str
    attempt: int
    deadline: float
    feed: ChunkBox | None = None

    @property
    def batch_id(self) -> str:
        """What names it in events and errors."""
        return self.batch.id


Call: TypeAlias = "Callable[[CallSpec], Sequence[Outcome]]"
Middleware: TypeAlias = "Callable[[CallSpec, Call], Sequence[Outcome]]"
"""``middleware(spec, proceed)`` calls ``proceed(spec)`` and returns one outcome for each request."""


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
) -> Call:
    """Return the call of ``provider`` and ``model`` with its layers around it; it never raises.

    With a ``compiler`` several requests go as one packed prompt; with a ``tier`` each asks for it. The layer
    ``innermost`` stands below the middleware: it sees what is really sent, and what the provider said.
    """
    call = _classified(_deadlined(provider, model, now, compiler, tier), provider, classifiers)
    if innermost is not None:
        call = _with_middleware(innermost, call)
    return around(call, provider, middleware)


def around(call: Call, provider: Provider, middleware: Sequence[Middleware]) -> Call:
    """Return ``call`` with the middleware around it, the first of it outermost."""
    for layer in reversed(middleware):
        call = _with_middleware(layer, call)
    return _guarded(call, provider) if middleware else call


def _deadlined(
    provider: Provider,
    model: str,
    now: Callable[[], float],
    compiler: BatchCompiler | None,
    tier: FlexTier | None,
) -> Call:
    def call(spec: CallSpec) -> Sequence[Outcome]:
        """Make the call in the time that is left. The cases, in order: no time is left; vectors; several
        prompts packed into one; several requests that the provider takes in one call; an own callable; a
        stream; one request, of the slower tier where the lane has it."""
        timeout = spec.deadline - now()
        if timeout <= 0:
            raise ProviderError("the time for the call was over before it began", kind=ErrorKind.TIMEOUT)
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
            return (streamed(provider, request, spec.feed, model, spec.attempt, spec.deadline, timeout),)
        return (generate(request if tier is None else tier.asked_by(request)),)

    return call


def _packed(
    generate: Callable[[Request], Answer], packed: Packed, requests: Sequence[Request]
) -> Sequence[Outcome]:
    """Make one call for several requests of a provider that takes one prompt a call; return for each its part
    of the answer, or a ``MissingAnswer``.

    Usage and cost of the call are split over all of them, by the length of prompts and answers.
    """
    whole = generate(packed.request)
    if not isinstance(whole, Answer) or flaw(whole) is not None:
        raise invalid("the provider's answer to a pack is no answer")
    texts: list[str | None] = [None] * len(requests)
    if whole.finish_reason not in STOPPED:
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
            # The caller's own code failed: its traceback is what they need, and it holds nothing foreign.
            verdict.__cause__ = error
            return verdict
        # A traceback keeps the frames alive, and with them prompts and keys.
        verdict.__traceback__ = verdict.__context__ = None
        if not own:  # of one that was raised with a meaning the cause was given on purpose
            verdict.__cause__ = None
        return verdict

    def classified(spec: CallSpec) -> Sequence[Outcome]:
        """An error of the whole call is that of each request; errors in the place of answers get a meaning
        one by one."""
        own = spec.requests[0].call is not None or provider.own_code
        try:
            outcomes = call(spec)
        except BaseException as error:
            verdict = meaning(error, own=own)
            if spec.feed is not None:
                verdict = cut(verdict, spec.requests[0], spec.feed)
            return _fitted(spec, (verdict,) * len(spec.requests))
        return _fitted(spec, outcomes, partial(meaning, own=own))

    return classified


def _fitted(
    spec: CallSpec, outcomes: object, meaning: Callable[[BaseException], object] | None = None
) -> Sequence[Outcome]:
    """Return one sound outcome for each request, whatever the code below returned."""
    size = len(spec.requests)
    if not isinstance(outcomes, list | tuple):
        return (invalid(f"the call returned {type(outcomes).__name__} instead of a list of answers"),) * size
    found = [
        checked(meaning(outcome) if meaning and isinstance(outcome, BaseException) else outcome)
        for outcome in outcomes[:size]
    ]
    return found + [None] * (size - len(found))


def classify(error: BaseException, provider: Provider) -> ProviderError:
    """Return the provider's verdict on ``error``, whatever happens while it is found."""
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
    """Turn what a middleware raises, or fails to return, into the outcome of every request.

    A ``ProviderError`` is a verdict of its own; anything else is a mistake, and logged.
    """

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
