"""One call for several requests of a provider that takes one prompt a call: packed, sent, taken apart."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from smartbatch.core.batching.packing import BatchCompiler, split, split_usage, usage_weights
from smartbatch.errors import MissingAnswer, ProviderError
from smartbatch.providers.base import Provider
from smartbatch.realtime.call.soundness import flaw, invalid
from smartbatch.types import Answer, Request, Usage

__all__ = ["generate_packed"]

STOPPED = frozenset({"refusal", "content_filter"})
"""Ends that one prompt may have caused for all: then each is asked alone."""


def generate_packed(
    provider: Provider,
    compiler: BatchCompiler,
    requests: Sequence[Request],
    *,
    model: str,
    attempt: int,
    timeout: float,
) -> Sequence[Answer | ProviderError]:
    """Make one call for ``requests`` and return for each an answer, or a ``MissingAnswer``.

    Usage and cost of the call are split over all of them, by the length of prompts and answers.

    Raises:
        Exception: what :meth:`~smartbatch.providers.base.Provider.generate` raises.
    """
    packed = compiler.compile(requests)
    whole = provider.generate(packed.request, model=model, attempt=attempt, timeout=timeout)
    if not isinstance(whole, Answer) or flaw(whole) is not None:
        raise invalid("the provider's answer to a pack is no answer")
    texts: list[str | None] = [None] * len(requests)
    if whole.finish_reason not in STOPPED:
        texts = split(packed, whole.text or "")
    asked = usage_weights([str(request.prompt) for request in requests])
    usages: list[Usage | None] = [None] * len(requests)
    if whole.usage is not None:
        usages = [*split_usage(whole.usage, asked, usage_weights(texts))]
    parts: list[Answer | ProviderError] = []
    for text, usage, weight in zip(texts, usages, asked, strict=True):
        cost = None if whole.cost is None else whole.cost * weight / (sum(asked) or 1)
        if text is None:
            parts.append(MissingAnswer(usage=usage, cost=cost, limits=whole.limits))
        else:
            part = evolve(whole, text=text, usage=usage, cost=cost, finish_reason="stop")
            parts.append(part)
    return parts
