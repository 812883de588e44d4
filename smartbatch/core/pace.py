"""From the time of one call to the time of a list in real time: workers, shared calls and limits."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Protocol

from attrs import frozen

__all__ = ["Pace", "Times"]


class Times(Protocol):
    """How long one thing takes: a call, a batch. All times are seconds."""

    def quantile(self, q: float, size: int) -> float:
        """Return the seconds that a share ``q`` of things of ``size`` requests stays within."""

    def expected(self, size: int) -> float:
        """Return the mean."""

    def chance(self, seconds: float, size: int) -> float:
        """Return the share that is done within ``seconds``; the inverse of :meth:`quantile`."""


@frozen
class Pace:
    """How fast a route in real time answers.

    Attributes:
        call: of one call that carries ``per_call`` requests.
        parallelism: calls at a time.
        per_call: requests a call, 1 or more.
        ahead: requests that wait already and go first.
        tokens: what one request uses, input and output.
        rpm, tpm: calls and tokens a minute; infinity where no limit is known.
        free_calls, free_tokens: what of them could be used at once.
    """

    call: Times
    parallelism: int = 1
    per_call: int = 1
    ahead: int = 0
    tokens: float = 0.0
    rpm: float = math.inf
    tpm: float = math.inf
    free_calls: float = 0.0
    free_tokens: float = 0.0

    def calls(self, requests: int) -> int:
        """Return the calls that ``requests`` take."""
        return math.ceil(requests / self.per_call)

    def quota(self, requests: int) -> float | None:
        """Return the share of the limits that ``requests`` use while they run; ``None`` without a limit."""
        if self.rpm == self.tpm == math.inf or not requests:
            return None
        minutes = max(self.finish(requests, 0.5) / 60, 1.0)  # limits hold a minute, so less fills no more
        shares = self.calls(requests) / (self.rpm * minutes), requests * self.tokens / (self.tpm * minutes)
        return min(1.0, max(shares))

    def finish(self, requests: int, q: float) -> float:
        """Return the seconds within which a share ``q`` of such lists is answered.

        Workers share the calls of all rounds but the last about evenly, so those add up to a normal
        distribution; the last round takes as long as the slowest of its calls.
        """
        if requests <= 0:
            return 0.0
        calls = self.calls(self.ahead + requests)
        size = min(self.per_call, requests)
        last = min(calls, self.parallelism)
        slowest = self.call.quantile(q ** (1 / last), size)
        before = calls - last
        working = slowest
        if before:
            spread = self._deviation(size) * math.sqrt(before) / self.parallelism
            working += before / self.parallelism * self.call.expected(size) + _z(q) * spread
        return max(working, self._limited(calls, requests) + self.call.quantile(q, size), 0.0)

    def expected(self, requests: int) -> float:
        """Return the mean of what :meth:`finish` says, by five points of it."""
        return sum(self.finish(requests, q) for q in (0.1, 0.3, 0.5, 0.7, 0.9)) / 5

    def _limited(self, calls: int, requests: int) -> float:
        """Return when the limits let the last call begin."""
        tokens = (self.ahead + requests) * self.tokens
        by_calls = max(0.0, calls - 1 - self.free_calls) * 60 / self.rpm
        by_tokens = max(0.0, tokens - tokens / max(1, calls) - self.free_tokens) * 60 / self.tpm
        return max(by_calls, by_tokens)

    def _deviation(self, size: int) -> float:
        return max(0.0, self.call.quantile(0.84, size) - self.call.quantile(0.16, size)) / 2


@lru_cache(maxsize=64)
def _z(q: float) -> float:
    return NormalDist().inv_cdf(q)
