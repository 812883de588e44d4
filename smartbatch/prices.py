"""The price of a model, and what a request costs at it.

Tiered prices depend on the size of a single request. So each request is priced separately and the costs are
added; token counts of several requests are never added before pricing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from attrs import Attribute, evolve, field, fields, frozen

from smartbatch.errors import ConfigError
from smartbatch.types import Usage

MILLION = 1_000_000

MIN_CACHED_TOKENS = 1024
"""Shortest prompt that OpenAI's models cache automatically, according to its prompt caching guide. From
gpt-5.6 on, cache writes cost 1.25 times the input price.
"""

Processing: TypeAlias = Literal["standard", "batch", "flex", "priority"]
"""In real time, through the Batch API, in the cheaper, slower tier, or in the dearer, faster one."""


def _number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float))


def _usd(_: Price, attribute: Attribute[Any], value: Any) -> None:
    if value is None and attribute.default is None:
        return
    if not _number(value) or not 0 <= value < math.inf:
        raise ConfigError(f"price {attribute.name} = {value!r} must be USD per million tokens, 0 or more")


def _share(_: Price, attribute: Attribute[Any], value: Any) -> None:
    if not _number(value) or not 0 <= value <= 1:
        raise ConfigError(f"price {attribute.name} = {value!r} must be a share from 0 to 1: 0.5 is half off")


@frozen
class Price:
    """A model's price in USD per million tokens.

    Args:
        input: prompt tokens.
        output: answer tokens.
        cached_input: prompt tokens read from the provider's cache; ``None`` for the price of ``input``.
        cache_write: prompt tokens written to the provider's cache; ``None`` for the price of ``input``.
        cache_write_1h: prompt tokens cached for an hour, which Anthropic prices separately; ``None`` for the
            price of ``cache_write``.
        batch_discount: share of the price saved in a batch; half by default, as with OpenAI, Anthropic and
            Gemini. Cached tokens cost the same as in real time, but no more than other input.
        batch_input: prompt tokens in a batch; ``None`` for the discounted price of ``input``.
        batch_output: answer tokens in a batch; ``None`` for the discounted price of ``output``.
        flex_input: prompt tokens in the provider's slower tier; ``None`` if the model is not available there.
            Cached tokens cost the same as in the standard tier, but no more than this.
        flex_output: answer tokens in the slower tier; required with ``flex_input``.
        audio_input: prompt tokens of audio; ``None`` for the price of ``input``. In a batch and in the slower
            tier, prices of audio and images change as those of other input and output do. Cached audio costs
            as much as other cached input.
        audio_output: answer tokens of audio; ``None`` for the price of ``output``.
        image_output: answer tokens of images; ``None`` for the price of ``output``.

    Raises:
        ConfigError: a price is negative or not a number, the discount is not a share, or only one price of
            the slower tier is given.
    """

    input: float = field(validator=_usd)
    output: float = field(validator=_usd)
    cached_input: float | None = field(default=None, validator=_usd)
    cache_write: float | None = field(default=None, validator=_usd)
    cache_write_1h: float | None = field(default=None, validator=_usd)
    batch_discount: float = field(default=0.5, validator=_share)
    batch_input: float | None = field(default=None, validator=_usd)
    batch_output: float | None = field(default=None, validator=_usd)
    flex_input: float | None = field(default=None, validator=_usd)
    flex_output: float | None = field(default=None, validator=_usd)
    audio_input: float | None = field(default=None, validator=_usd)
    audio_output: float | None = field(default=None, validator=_usd)
    image_output: float | None = field(default=None, validator=_usd)

    def __attrs_post_init__(self) -> None:
        if (self.flex_input is None) is not (self.flex_output is None):
            raise ConfigError("prices flex_input and flex_output must be given together")

    @classmethod
    def parse(cls, model: str, table: Price | Mapping[str, Any]) -> Price:
        """Return the price of ``model`` from a configuration table.

        Raises:
            ConfigError: a field is missing, unknown or invalid; the message names the model.
        """
        if isinstance(table, Price):
            return table
        known = [a.name for a in fields(cls)]
        if not isinstance(table, Mapping) or not {"input", "output"} <= set(table) <= set(known):
            others = ", ".join(known[2:])
            raise ConfigError(f"prices[{model!r}] needs input and output; {others} are optional")
        try:
            return cls(**table)
        except ConfigError as error:
            raise ConfigError(f"prices[{model!r}]: {error}") from None


@frozen
class Band:
    """USD per token for requests of more than ``above`` input tokens."""

    above: int
    input: float
    cached: float
    output: float
    reasoning: float
    written: float
    """Input written to the cache."""
    written_1h: float
    """Input written to the cache for an hour."""
    audio: float
    """Input that is audio."""
    cached_audio: float
    output_audio: float
    output_image: float


@frozen
class RateCard:
    """The current price of one model, precomputed because it is needed for every request."""

    source: str  # the price table, such as genai-prices 0.2.3 or user
    bands: tuple[Band, ...]  # rates by request size, smallest first
    per_request: float = 0.0  # additional USD per request
    valid_until: float = math.inf  # Unix seconds after which the price may have changed
    # long prompts are cached automatically, at a higher price than other input
    writes_by_itself: bool = False
    # computes the USD of one request if bands cannot express the price; slow
    exact: Callable[[Usage], float] | None = None

    def expected_cost(self, tokens: Usage) -> float:
        """Return the USD of a request that has not been sent.

        A model that caches automatically is assumed to write every sufficiently long prompt to the cache,
        because the end of each prompt is new. A model with a price for images is assumed to answer with them.
        """
        if self.bands[0].output_image > self.bands[0].output:
            tokens = evolve(tokens, output_image_tokens=tokens.output_tokens)
        if self.writes_by_itself and tokens.input_tokens >= MIN_CACHED_TOKENS:
            tokens = evolve(tokens, cache_write_tokens=tokens.input_tokens - tokens.audio_tokens)
        return self.cost(tokens)

    def cost(self, usage: Usage) -> float:
        """Return the USD of one request. ``usage`` must not be the total of several requests."""
        bands = self.bands
        band = bands[0]
        caches = usage.explicit_cache_tokens * band.input
        if self.exact is not None:
            return self.exact(usage) + caches
        tokens = usage.input_tokens
        if len(bands) > 1:
            for band in reversed(bands):
                if tokens > band.above:
                    break
        cached = usage.cached_tokens
        if cached > tokens:  # some servers do not include cached tokens in prompt tokens
            cached = tokens
        # some servers do not include them in output tokens
        thought = min(usage.reasoning_tokens, usage.output_tokens)
        extra = 0.0
        written = min(usage.cache_write_tokens, tokens - cached)
        if written:
            longer = min(usage.cache_write_1h_tokens, written)
            extra = (written - longer) * (band.written - band.input)
            extra += longer * (band.written_1h - band.input)
        if usage.audio_tokens:
            reheard = min(usage.cached_audio_tokens, usage.audio_tokens, cached)
            heard = min(usage.audio_tokens - reheard, tokens - cached - written)
            extra += heard * (band.audio - band.input) + reheard * (band.cached_audio - band.cached)
        if usage.output_audio_tokens or usage.output_image_tokens:
            spoken = min(usage.output_audio_tokens, usage.output_tokens - thought)
            drawn = min(usage.output_image_tokens, usage.output_tokens - thought - spoken)
            extra += spoken * (band.output_audio - band.output) + drawn * (band.output_image - band.output)
        return (
            (tokens - cached) * band.input
            + extra
            + cached * band.cached
            + (usage.output_tokens - thought) * band.output
            + thought * band.reasoning
            + caches
            + self.per_request
        )
