"""Prefixes that prompts share, and how providers cache them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import evolve, field, frozen

MARK_FIELDS = frozenset(
    {"cache_control", "prompt_cache_breakpoint", "prompt_cache_key", "prompt_cache_options"}
    | {"prompt_cache_retention", "cached_content", "cachedContent"}
)
"""Fields with which users control a provider's cache themselves."""


LONG_SECONDS = 3600.0  # lifetime of an entry that was written for an hour


@frozen
class SharedPrefix:
    """A prefix that several prompts to one model have in common.

    Attributes:
        message: zero-based index of the message in which it ends; -1 if it ends with the instructions and
            tools, before the first message.
        part: zero-based index of the content part in which it ends.
        chars: characters of that part's text that belong to it; ``None`` for the whole part.
        tokens: its estimated length.
        uses: requests known to begin with it.
        key: digest of the model's input up to its end.
    """

    message: int
    part: int
    chars: int | None
    tokens: int
    uses: int
    key: str = field(repr=False)


@frozen
class CacheMark:
    """How a request uses the provider's cache.

    Attributes:
        prefixes: shared prefixes of the request, shortest first; the provider caches each of them.
        long: how many of them, from the first, should last for an hour instead of the provider's usual
            lifetime. Anthropic rejects such a mark after one for five minutes.
        routing_key: the same for requests that should reach the same server; empty for the server that
            requests without a key reach; ``None`` if the provider finds prefixes by marks.
        implicit: the provider is left to write the whole prompt itself, and nothing is marked.
        explicit: whether the request creates or reads an explicit cache of the last of ``prefixes``.
        cache_id: the provider's name of that cache; the request is sent whole without it.
    """

    prefixes: tuple[SharedPrefix, ...] = ()
    long: int = 0
    routing_key: str | None = None
    implicit: bool = False
    explicit: Literal["create", "read"] | None = None
    cache_id: str | None = None


@frozen(kw_only=True)
class CachingRules:
    """How a provider caches prefixes of prompts to one model. Factors are relative to the price of input.

    Attributes:
        by: how a request controls the cache: with ``marks`` in its content, with a routing ``key``, or only
            by the ``order`` of requests.
        min_tokens: shorter prefixes are never cached.
        read: factor for tokens read from the cache.
        write: factor for tokens written to it.
        seconds: how long an entry lasts after its last use.
        long_write: factor for tokens written for an hour; ``None`` if entries have a single lifetime.
        max_marks: maximum number of marks per request.
        automatic: whether the provider writes the end of each prompt unless the request turns this off.
        requests_per_key: requests per minute that one routing key should receive.
        counts_reads: whether tokens read from the cache count against the limit of input tokens.
        storage: price of a token of an explicit cache per hour, relative to an input token; ``None`` if there
            are no explicit caches.
    """

    by: Literal["marks", "key", "order"]
    min_tokens: int
    read: float
    write: float = 1.0
    seconds: float = 300.0
    long_write: float | None = None
    max_marks: int = 4
    automatic: bool = False
    requests_per_key: float = 15.0
    counts_reads: bool = True
    storage: float | None = None

    def factor_of_write(self, *, long: bool) -> float:
        return self.long_write if long and self.long_write is not None else self.write

    def without_explicit(self) -> CachingRules:
        return self if self.storage is None else evolve(self, storage=None)

    def break_even(self, *, long: bool = False) -> int:
        """Return the minimum uses of an entry for which caching costs less than plain input.

        One use writes and the others read: ``write + (uses - 1) * read < uses``.
        """
        uses = 2
        while self.factor_of_write(long=long) + (uses - 1) * self.read >= uses:
            uses += 1
        return uses


def names_cache(value: Any) -> bool:
    """Whether a part of a request contains one of :data:`MARK_FIELDS`, at any depth."""
    if isinstance(value, Mapping):
        return any(name in MARK_FIELDS or names_cache(each) for name, each in value.items())
    return isinstance(value, list | tuple) and any(map(names_cache, value))
