"""Whether marks pay off in batches, judged by the tokens that earlier batches of a model wrote and read.

Hits in batches are known only afterwards, and an entry that is never read costs more than plain input.
"""

from __future__ import annotations

from attrs import frozen

from smartbatch.shared_prefixes import CachingRules

LEAST_TOKENS = 100_000  # total read and written, below which nothing is concluded
FORGOTTEN_SECONDS = 7 * 86_400.0  # after the latest batch with marks; then marks are tried again


@frozen
class BatchReads:
    """Tokens of the marked requests of earlier batches.

    Attributes:
        read: tokens read from the cache.
        written: tokens written to it.
        at: Unix seconds of the latest addition.
    """

    read: float = 0.0
    written: float = 0.0
    at: float = 0.0

    def plus(self, read: int, written: int, now: float) -> BatchReads:
        """Return the totals with another batch, which counts at least as much as all earlier ones unless it
        is too small for a conclusion.
        """
        before, added = self.read + self.written, read + written
        kept = min(1.0, max(added, LEAST_TOKENS) / before) if before and self._is_recent(now) else 0.0
        return BatchReads(self.read * kept + read, self.written * kept + written, now)

    def pays(self, rules: CachingRules, now: float) -> bool:
        """Whether requests of a batch should be marked. True if too little is known."""
        share = self.share(rules, now)
        return share is None or share * rules.read + (1 - share) * rules.factor_of_write(long=True) < 1

    def share(self, rules: CachingRules, now: float) -> float | None:
        """Return the share of the tokens that were read; ``None`` if too little is known."""
        total = self.read + self.written
        if rules.by != "marks" or total < LEAST_TOKENS or not self._is_recent(now):
            return None
        return self.read / total

    def _is_recent(self, now: float) -> bool:
        return abs(now - self.at) < FORGOTTEN_SECONDS  # further in the future if the clock was set back
