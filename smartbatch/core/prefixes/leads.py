"""Calls that write to a provider's cache, and requests that wait for them."""

from __future__ import annotations

from attrs import define, frozen

from smartbatch.shared_prefixes import SharedPrefix


@define(eq=False)
class Lead:
    """A call that writes entries. Requests that use them wait until its answer begins."""

    started: float
    until: float
    keys: tuple[str, ...]
    released: bool = False
    readable: bool = False  # the answer has begun

    def must_wait(self, _reserve: float) -> bool:
        return not self.released


@frozen
class Urgency:
    """What waiting for an entry is worth."""

    usd: float  # price of an input token
    usd_per_second: float  # value of the time
    calls: int  # maximum number of requests that could start at once
    waiting: int = 1  # requests in the queue

    def pays(self, prefix: SharedPrefix, saved: float, seconds: float) -> bool:
        """Return whether requests that would start at once save more than the time is worth.

        Args:
            saved: share of the price of the prefix that each of them saves.
        """
        requests = min(self.calls, max(prefix.uses, self.waiting))
        return requests * prefix.tokens * saved * self.usd > seconds * self.usd_per_second
