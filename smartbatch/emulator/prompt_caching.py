"""How the emulated prompt caches behave: their settings, the rules of a model, and prompts as blocks.

Sources, read in November 2026: OpenAI's prompt caching guide and the types of the ``openai`` SDK 3.57
(https://developers.openai.com/api/docs/guides/prompt-caching), Anthropic's prompt caching guide
(https://platform.claude.com/docs/en/build-with-claude/prompt-caching), and Google's guide to context caching
(https://ai.google.dev/gemini-api/docs/caching).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from functools import cached_property

from attrs import define, field, fields, frozen

from smartbatch.errors import ConfigError

STEP_TOKENS = 128
"""OpenAI's automatic cache and Gemini's implicit one find prefixes in steps of this many tokens."""
BYTES_PER_TOKEN = 4  # see count_tokens()
_STEP_BYTES = BYTES_PER_TOKEN * STEP_TOKENS
_ROUTED_TOKENS = 256  # first tokens by which OpenAI routes a request to a machine


@frozen(kw_only=True)
class PromptCaching:
    """The settings of the prompt caches. Times are seconds, rates are from 0 to 1.

    Args:
        minimum_tokens: tokens of the shortest prefix that is cached; ``None`` for the minimum of each model.
        hit_rate: probability that a request in real time finds a cached prefix, with OpenAI and Anthropic.
        implicit_hit_rate: the same for the implicit cache of Gemini, which guarantees nothing.
        implicit_lifetime: seconds for which that cache keeps a prefix after its last use.
        key_requests: requests per minute of one prefix and ``prompt_cache_key`` that reach the machine with
            the cached prefix, for OpenAI's models up to gpt-5.5. The surplus is sent to machines without it.
        retention: seconds for which those models keep a prefix after its last use, unless the request sets
            ``prompt_cache_retention``.
        batch_hit_rate: probability that a line of a batch finds a prefix last used by one of the
            ``batch_neighbours`` lines before it.
        batch_far_hit_rate: the same for a prefix that was last used elsewhere.
        batch_neighbours: number of lines.

    Raises:
        ConfigError: a value is out of range; the message names the setting.
    """

    minimum_tokens: int | None = None
    hit_rate: float = 1.0
    implicit_hit_rate: float = 0.8
    implicit_lifetime: float = 300.0
    key_requests: int = 15
    retention: float = 600.0
    batch_hit_rate: float = 0.98
    batch_far_hit_rate: float = 0.3
    batch_neighbours: int = 20

    def __attrs_post_init__(self) -> None:
        for attribute in fields(PromptCaching):
            name, value = attribute.name, getattr(self, attribute.name)
            if value is None:
                continue
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"prompt_caching.{name} must be a number of 0 or more, not {value!r}")
            if name.endswith("rate") and value > 1:
                raise ConfigError(f"prompt_caching.{name} must be a rate from 0 to 1, not {value!r}")


def prompt_caching(given: PromptCaching | bool | None) -> PromptCaching | None:
    """Return the settings; ``True`` stands for the defaults, ``False`` and ``None`` for no prompt caches."""
    return PromptCaching() if given is True else given or None


@frozen(kw_only=True)
class CacheRates:
    """Prices of input tokens relative to those of the same request without a cache.

    Attributes:
        read: tokens read from the cache.
        write: tokens written to it.
        write_1h: tokens written to it for an hour.
        batch_read: tokens read in a batch, relative to other input of a batch; ``None`` for ``read``.
        storage: tokens of an explicit cache, per hour.
    """

    read: float = 0.1
    write: float = 1.0
    write_1h: float = 1.0
    batch_read: float | None = None
    storage: float = 0.0


@frozen
class CacheUse:
    """The tokens of a request that were read from a prompt cache or written to it."""

    read: int = 0
    written: int = 0
    written_1h: int = 0  # the part of ``written`` that is kept for an hour
    added: int = 0  # the part of ``read`` that an explicit cache adds to the request's own tokens

    def saved(self, rates: CacheRates, *, batch: bool) -> float:
        """Return the saving as a number of uncached input tokens; negative for a loss."""
        read = rates.batch_read if batch and rates.batch_read is not None else rates.read
        loss = (self.written - self.written_1h) * (rates.write - 1) + self.written_1h * (rates.write_1h - 1)
        return self.read * (1 - read) - loss


NO_CACHE = CacheUse()


@frozen
class Block:
    """A part of a prompt that is cached as a whole, such as a tool, a message or an item of its content."""

    kind: str  # its place, such as the role of its message
    content: bytes = field(repr=False)
    lifetime: float | None = None  # seconds; the prompt up to the end of this block is written to the cache

    @property
    def tokens(self) -> int:
        return len(self.content) // BYTES_PER_TOKEN


@frozen
class Prefix:
    """A prefix of a prompt."""

    digest: bytes
    tokens: int
    lifetime: float | None  # see :class:`Block`


@define(slots=False, eq=False)
class CacheablePrompt:
    """The prompt of a request as its model's cache sees it.

    Attributes:
        root: everything that changes all prefixes: the model, the schema and the reasoning effort.
        blocks: the prompt.
        minimum: tokens of the shortest prefix that is cached.
        rates: prices.
        lookback: blocks before a written prefix in which an older one is found; ``None`` if prefixes are
            found automatically, in steps.
        lifetime: seconds for which an automatic prefix is kept after its last use.
        hit_rate: probability that a request in real time finds a prefix.
        key: the request's ``prompt_cache_key``.
        key_requests: see :class:`PromptCaching`; ``None`` for no limit.
        explicit: name of the explicit cache that precedes the prompt.
        no_such_cache: the error if that cache does not exist.
    """

    root: str
    blocks: tuple[Block, ...]
    minimum: int
    rates: CacheRates
    lookback: int | None = None
    lifetime: float = 0.0
    hit_rate: float = 1.0
    key: str = ""
    key_requests: int | None = None
    explicit: str | None = None
    no_such_cache: Exception | None = None

    @property
    def tokens(self) -> int:
        return sum(block.tokens for block in self.blocks)

    @cached_property
    def prefixes(self) -> tuple[Prefix, ...]:
        """The prefixes that may be in the cache, shortest first."""
        return tuple(self._steps() if self.lookback is None else self._ends())

    @cached_property
    def route(self) -> bytes:
        """What decides to which machine the request is sent."""
        first = b"".join(block.content for block in self.blocks)[: BYTES_PER_TOKEN * _ROUTED_TOKENS]
        return hashlib.blake2b(b"%b\0%b\0%b" % (self.root.encode(), self.key.encode(), first)).digest()

    def _ends(self) -> Iterator[Prefix]:
        whole, tokens = hashlib.blake2b(self.root.encode(), digest_size=16), 0
        for block in self.blocks:
            whole.update(b"\0%b\0%b" % (block.kind.encode(), block.content))
            tokens += block.tokens
            yield Prefix(whole.digest(), tokens, block.lifetime)

    def _steps(self) -> Iterator[Prefix]:
        whole, size, most = hashlib.blake2b(self.root.encode(), digest_size=16), 0, self.tokens
        for block in self.blocks:
            whole.update(b"\0%b\0" % block.kind.encode())
            start = 0
            while start < len(block.content):
                end = min(len(block.content), start + _STEP_BYTES - size % _STEP_BYTES)
                whole.update(block.content[start:end])
                size += end - start
                start = end
                if size % _STEP_BYTES == 0 and self.minimum <= size // BYTES_PER_TOKEN <= most:
                    yield Prefix(whole.copy().digest(), size // BYTES_PER_TOKEN, self.lifetime)
