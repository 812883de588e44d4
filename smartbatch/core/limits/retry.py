"""Whether a failed call is made again, when, and how many retries a failing provider gets.

Retrying is decided only here: the retries of SDKs are off. There are two questions. :func:`decide` looks at
one request: is this kind of failure worth another try. :class:`RetryBudget` looks at all of them: in an
outage the retries of many requests, each of them justified, add up to more than the provider can take.
"""

from __future__ import annotations

import math
from typing import Final

from attrs import define, field, frozen, validators

from smartbatch.core.limits.backoff import RandomSource, exponential, jittered, jittered_minimum
from smartbatch.errors import ErrorKind

__all__ = ["Retry", "RetryBudget", "RetryCount", "RetryPolicy", "decide"]


@frozen
class RetryPolicy:
    """How often and how long after a failure a request is tried again.

    Args:
        retries: tries after the first call, 0 or more.
        initial: seconds before the first retry.
        multiplier: by how much each wait is longer than the one before, 1 or more.
        max_delay: longest wait in seconds.
        jitter: wait between 50 % and 100 % of the formula, so that requests which failed together do not
            return together; see :func:`~smartbatch.core.limits.backoff.jittered`.
        limit_retries: how often one request may be refused for the rate limit. Such refusals do not count
            against ``retries``, since the whole quota pauses; the cap ends requests that are always refused.
    """

    retries: int = field(default=3, validator=validators.ge(0))
    initial: float = field(default=1.0, validator=validators.ge(0.0))
    multiplier: float = field(default=2.0, validator=validators.ge(1.0))
    max_delay: float = field(default=10.0, validator=validators.ge(0.0))
    jitter: bool = True
    limit_retries: int = field(default=30, validator=validators.ge(0))

    def delay(self, attempt: int, rng: RandomSource) -> float:
        """Return the seconds to wait before retry ``attempt``, from 0."""
        seconds = exponential(attempt, self.initial, self.multiplier, self.max_delay)
        return jittered(seconds, rng) if self.jitter else seconds


@define
class RetryCount:
    """The retries one request has used so far; only :func:`decide` changes it.

    Attributes:
        counted: retries that counted against ``RetryPolicy.retries``.
        rate_limits: refusals for the rate limit, which do not count.
        once: kinds of failure that are retried only once, and were.
    """

    counted: int = 0
    rate_limits: int = 0
    once: frozenset[ErrorKind] = frozenset()


@frozen
class Retry:
    """The decision that the call is made again, after ``delay`` seconds at least; the gates may hold it
    longer. ``counted`` is False when the failure was the provider's state and did not count against the
    request.
    """

    delay: float
    counted: bool


_NEVER: Final = frozenset(
    {
        ErrorKind.AUTH_ERROR,  # the next call carries the same key
        ErrorKind.INVALID_RESPONSE,  # the call was billed and would be billed again
        ErrorKind.CLIENT_ERROR,  # the request itself is wrong
        ErrorKind.NO_MONEY,  # waiting does not help
        ErrorKind.CONTEXT_TOO_LONG,  # nor does repeating
    }
)
_ONCE: Final = frozenset({ErrorKind.TIMEOUT, ErrorKind.UNKNOWN})  # each further try may be billed as well


def decide(
    policy: RetryPolicy,
    kind: ErrorKind,
    count: RetryCount,
    retry_after: float | None,
    *,
    outage: bool,
    rng: RandomSource,
) -> Retry | None:
    """Return whether a request that failed is tried again, and add the retry to ``count``.

    The cases, in order:

    1. The next call would fail alike (wrong key, wrong request, no credit): no retry.
    2. The rate limit: a retry that does not count, after what the server asked; the quota's cooldown adds to
       it. No retry after ``limit_retries`` of them.
    3. The provider is down and the breaker is not closed: a retry that does not count, and no delay; the
       breaker holds the call.
    4. All retries are used, or a kind that is retried once was retried: no retry.
    5. A retry that counts, after the server's delay if it named one, else after the policy's backoff.

    Args:
        count: the request's own; changed when the decision is a retry.
        retry_after: seconds the server asked to wait, already clamped; it wins over the backoff.
        outage: True when the provider is unavailable and the breaker is not closed.
    """
    if kind in _NEVER:
        return None
    if kind is ErrorKind.RATE_LIMIT:
        if count.rate_limits >= policy.limit_retries:
            return None
        count.rate_limits += 1
        return Retry(retry_after or 0.0, counted=False)
    if outage:
        return Retry(0.0, counted=False)
    if count.counted >= policy.retries or kind in count.once:
        return None
    if kind in _ONCE:
        count.once |= {kind}
    if retry_after is None:
        delay = policy.delay(count.counted, rng)
    else:
        delay = jittered_minimum(retry_after, rng) if policy.jitter else retry_after
    count.counted += 1
    return Retry(delay, counted=True)


class RetryBudget:
    """A gate for retries: while most calls fail, retries stay within a tenth of the first calls, plus three.

    A first call adds a tenth to the level, a retry takes 1. A retry that succeeds returns 2, so after an
    outage the gate opens exponentially instead of at the rate of new calls. With a level below 1 one retry
    still trickles through every 5 seconds, so that none waits for ever when no new calls come.

    Held at every step: failed retries <= 3 + first calls / 10 + succeeded retries + elapsed / 5 s.
    """

    RATIO = 0.1
    """Retries allowed for each first call."""
    RESERVE = 3.0
    """Retries allowed before any call."""
    TRICKLE_EVERY = 5.0
    """Seconds."""

    def __init__(self) -> None:
        self._level = self._most = self.RESERVE
        self._trickle_at = -math.inf

    def called(self) -> None:
        """Count a request's first call."""
        self._most += self.RATIO
        self._level = min(self._level + self.RATIO, self._most)

    def look(self, now: float) -> float:
        return now if self._level >= _WHOLE else max(now, self._trickle_at)

    def take(self, now: float) -> None:
        if self._level >= _WHOLE:
            self._level -= 1.0
            if self._level >= _WHOLE:
                return
        self._trickle_at = now + self.TRICKLE_EVERY

    def succeeded(self) -> None:
        """The retry was answered. One that failed is not reported at all."""
        self._level = min(self._level + 2.0, self._most)

    def dropped(self) -> None:
        """The retry was never sent: what it took is returned."""
        self._level = min(self._level + 1.0, self._most)


_WHOLE = 1.0 - 1e-9
"""Ten times 0.1 make one retry, though not exactly so in binary."""
