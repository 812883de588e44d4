"""The tokens of a request, and how tokens of one call are split between its requests."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen


@frozen
class Usage:
    """Tokens of one request, including all its attempts.

    Attributes:
        input_tokens: prompt tokens, including cached ones.
        output_tokens: answer tokens, including reasoning.
        cached_tokens: the part of ``input_tokens`` read from the provider's cache.
        reasoning_tokens: the part of ``output_tokens`` spent on reasoning.
        estimated: whether some of the numbers are estimates, because the provider did not report them.
        cache_write_tokens: the part of ``input_tokens`` written to the provider's cache.
        cache_write_1h_tokens: the part of ``cache_write_tokens`` that Anthropic caches for an hour, at a
            higher price than for five minutes.
        unknown: whether a call whose answer was lost may have used further tokens.
        audio_tokens: the part of ``input_tokens`` that was audio.
        cached_audio_tokens: the part of ``cached_tokens`` that was audio, included in ``audio_tokens``.
        output_audio_tokens: the part of ``output_tokens`` that was audio.
        output_image_tokens: the part of ``output_tokens`` that was images.
        explicit_cache_tokens: not part of ``input_tokens``: input tokens that cost as much as the explicit
            cache that the request read, which is its creation if no earlier request was charged for it, and
            its storage since then.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    unknown: bool = False
    # stored usages are lists of these values, so new ones are added at the end
    audio_tokens: int = 0
    cached_audio_tokens: int = 0
    output_audio_tokens: int = 0
    output_image_tokens: int = 0
    explicit_cache_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def cached_share(self) -> float:
        """The share of the input tokens that was read from the provider's cache; 0 without input."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.estimated or other.estimated,
            self.cache_write_tokens + other.cache_write_tokens,
            self.cache_write_1h_tokens + other.cache_write_1h_tokens,
            self.unknown or other.unknown,
            self.audio_tokens + other.audio_tokens,
            self.cached_audio_tokens + other.cached_audio_tokens,
            self.output_audio_tokens + other.output_audio_tokens,
            self.output_image_tokens + other.output_image_tokens,
            self.explicit_cache_tokens + other.explicit_cache_tokens,
        )


NO_USAGE = Usage()


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """Split ``total`` by ``weights``, 0 or more, into whole numbers that add up to it exactly.

    Units left after rounding down go to the largest remainders; weights that are all 0 split evenly.
    """
    whole = sum(weights)
    if whole <= 0:
        weights, whole = [1] * len(weights), len(weights)
    parts = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for position in by_remainder[: total - sum(parts)]:
        parts[position] += 1
    return parts
