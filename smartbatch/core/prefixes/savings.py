"""What the provider's cache will probably save on a list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from attrs import evolve, field, frozen

from smartbatch.core.prefixes.batch_reads import BatchReads
from smartbatch.core.prefixes.entries import StopReason
from smartbatch.core.prefixes.explicit_caches import pays
from smartbatch.shared_prefixes import CachingRules, SharedPrefix
from smartbatch.types import Request
from smartbatch.usage import Usage


@frozen
class Saving:
    """USD saved by caching, and input tokens read from the cache: 5 % of lists have less than the low
    amounts, and 5 % more than the high ones.
    """

    low: float = 0.0
    expected: float = 0.0
    high: float = 0.0
    read_low: float = 0.0
    read: float = 0.0
    read_high: float = 0.0


NO_SAVING = Saving()

# Shares of reads that find their entry: low, expected, high. Anthropic's guide names 30 to 98 % in batches.
# In real time, a report found 40 to 60 % for calls right after each other (anthropic-sdk-python, issue 1451).
# OpenAI's servers without marks depend on their load. Gemini guarantees nothing, and whether its batches read
# the implicit cache is unknown.
_HIT_RATES = {
    ("marks", False): (0.6, 0.97, 1.0),
    ("marks", True): (0.3, 0.9, 0.98),
    ("key", False): (0.5, 0.9, 1.0),
    ("key", True): (0.3, 0.9, 0.98),
    ("order", False): (0.0, 0.5, 0.9),
}
_STORED_HOURS = (1.0, 0.5, 0.0)  # of an explicit cache: low, expected and high saving


@frozen
class KnownCaching:
    """What is known about a model's cache when a list is planned.

    Attributes:
        rules: of the provider.
        reads: tokens that earlier batches wrote and read.
        now: Unix seconds.
        stopped: why prefixes are no longer marked in real time, by key.
    """

    rules: CachingRules
    reads: BatchReads = field(factory=BatchReads)
    now: float = 0.0
    stopped: Mapping[str, StopReason] = field(factory=dict)

    def hit_rates(self, *, batch: bool) -> tuple[float, float, float] | None:
        """Return the shares of reads that find their entry: low, expected and high; ``None`` if nothing is
        cached.
        """
        if batch and (self.rules.by == "order" or not self.reads.pays(self.rules, self.now)):
            return None
        low, expected, high = _HIT_RATES[self.rules.by, batch]
        share = self.reads.share(self.rules, self.now) if batch else None
        return (low, expected, high) if share is None else (min(low, share), share, max(high, share))


class PrefixSavings:
    """Adds up the shared prefixes of a list's requests."""

    def __init__(self, known: KnownCaching) -> None:
        self._known = known
        # requests by the keys and billed tokens of their shared prefixes, shortest first
        self._requests: Counter[tuple[tuple[str, int], ...]] = Counter()

    def add(self, prefixes: Sequence[SharedPrefix], billed: Callable[[int], int]) -> None:
        """Add a request. ``billed`` converts estimated tokens into those that are billed."""
        self._requests[tuple((prefix.key, billed(prefix.tokens)) for prefix in prefixes)] += 1

    @property
    def stopped(self) -> dict[str, int]:
        """Requests with a prefix that is no longer marked in real time, by the reason."""
        found: Counter[str] = Counter()
        for prefixes, requests in self._requests.items():
            for reason in {self._known.stopped[key] for key, _ in prefixes if key in self._known.stopped}:
                found[reason] += requests
        return dict(found)

    def of(self, cost: Callable[[Usage], float], *, batch: bool) -> Saving:
        """Return the saving at the prices of ``cost``."""
        rules, priced = self._known.rules, lru_cache(cost)
        rates = self._known.hit_rates(batch=batch)
        if rates is None:
            return NO_SAVING
        totals, reads = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
        for (_, tokens), uses in self._uses(batch=batch).items():
            if uses < rules.break_even(long=batch):
                continue
            plain = priced(Usage(tokens))
            longer = tokens if batch and rules.long_write is not None else 0
            write = plain - priced(Usage(tokens, cache_write_tokens=tokens, cache_write_1h_tokens=longer))
            read = plain - priced(Usage(tokens, cached_tokens=tokens))
            if not batch and rules.storage is not None and pays(rules, uses):
                for place, hours in enumerate(_STORED_HOURS):
                    spent = round(tokens * (1 + hours * rules.storage))
                    totals[place] += uses * read - priced(Usage(explicit_cache_tokens=spent))
                    reads[place] += uses * tokens
                continue
            for place, hits in enumerate(rates):
                totals[place] += write + (uses - 1) * (hits * read + (1 - hits) * write)
                reads[place] += (uses - 1) * hits * tokens
        return Saving(*totals, *reads)

    def _uses(self, *, batch: bool) -> Counter[tuple[str, int]]:
        """Return the uses of prefixes, by key and tokens in addition to the shorter prefix."""
        uses: Counter[tuple[str, int]] = Counter()
        for prefixes, requests in self._requests.items():
            before = 0
            for key, tokens in prefixes:
                if batch or key not in self._known.stopped:
                    uses[key, tokens - before] += requests
                    before = tokens
        return uses


def with_writes(most: Usage, request: Request, estimated: int, *, long: int) -> Usage:
    """Return the maximum usage of a request that may write its shared prefix to the cache.

    Args:
        estimated: its estimated input tokens.
        long: how many of its shared prefixes, from the first, may be written for an hour.
    """
    prefixes = () if request.cache is None else request.cache.prefixes
    if not prefixes:
        return most
    ends = (prefixes[-1].tokens, prefixes[long - 1].tokens if long else 0)
    written, longer = (round(min(1.0, end / max(1, estimated)) * most.input_tokens) for end in ends)
    return evolve(most, cache_write_tokens=written, cache_write_1h_tokens=longer)
