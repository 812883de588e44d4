"""Whether a failed call is repeated, and when.

Retries are decided only here: those of SDKs are off. :func:`decide` considers one request and how the other
calls of its lane are doing. The circuit breaker, the throttle and the quota bound the total of all retries.
"""

from __future__ import annotations

import math
from typing import Final

from attrs import define, field, frozen, validators

from smartbatch.core.limits.cooldown import (
    RandomSource,
    after_refusals,
    exponential,
    jittered,
    jittered_minimum,
    shortest,
)
from smartbatch.errors import ErrorKind


@frozen
class RetryPolicy:
    """How many times a failed request is retried, and after what delays.

    Args:
        retries: retries after the first call, 0 or more.
        initial: seconds before the first retry.
        multiplier: factor between consecutive delays, 1 or more.
        max_delay: maximum delay in seconds.
        jitter: wait between 50 % and 100 % of the formula, so that requests that failed together do not
            return together; see :func:`~smartbatch.core.limits.cooldown.jittered`.
        limit_retries: rate-limit refusals allowed per request. They do not count against ``retries``, since
            the whole quota pauses; this bound ends requests that are always refused.
    """

    retries: int = field(default=3, validator=validators.ge(0))
    initial: float = field(default=1.0, validator=validators.ge(0.0))
    multiplier: float = field(default=2.0, validator=validators.ge(1.0))
    max_delay: float = field(default=10.0, validator=validators.ge(0.0))
    jitter: bool = True
    limit_retries: int = field(default=30, validator=validators.ge(0))

    def delay(self, attempt: int, rng: RandomSource) -> float:
        seconds = exponential(attempt, self.initial, self.multiplier, self.max_delay)
        return jittered(seconds, rng) if self.jitter else seconds


_WHOLE_TRY_SHARE = math.exp(-4.0)
"""Maximum share of failing calls at which a failure counts as a whole try.

At this share, four failures in a row, the usual number of tries, happen once in 9 million requests. If more
calls fail, a failure counts less, so that a request ends after an equally unlikely number of failures: 24 if
half of all calls fail. A failure that may have been billed is always a whole try, as each further call could
be paid for.
"""


@define
class RetryCount:
    """Failures of one request so far; only :func:`decide` changes it."""

    counted: float = 0.0  # tries used out of RetryPolicy.retries: at most 1 per failure
    whole: int = 0  # failures that counted as a whole try
    partial: int = 0  # failures that count for less if such failures are common
    failures: int = 0  # failures for which the delay grew
    rate_limits: int = 0  # refusals, which do not count
    once: frozenset[ErrorKind] = frozenset()  # kinds retried only once, and already retried


@frozen(kw_only=True)
class Circumstances:
    """How the other calls of the lane are doing when a call fails."""

    unavailable: bool = False  # the provider's state caused the failure, not the request: 503, no connection
    maybe_billed: bool = False  # the call may have been carried out, so a retry may be billed as well
    outage: bool = False  # the circuit breaker is not closed
    passing: bool = False  # another call was answered while this one was in flight
    failure_share: float = 0.0  # share of requests whose first call fails
    latency: float = 0.0  # mean seconds per answered call; 0 while unknown

    @property
    def held_by_breaker(self) -> bool:
        """Whether the provider is down and the call was certainly not carried out."""
        return self.outage and self.unavailable and not self.maybe_billed


@frozen
class Retry:
    """The decision to repeat a call."""

    delay: float  # minimum seconds; the gates may delay the call longer
    counted: bool  # False if the failure did not count as a whole try


_NEVER_KINDS: Final = frozenset(
    {
        ErrorKind.AUTH_ERROR,  # the next call carries the same key
        ErrorKind.INVALID_RESPONSE,  # the call was billed and would be billed again
        ErrorKind.CLIENT_ERROR,  # the request itself is wrong
        ErrorKind.NO_MONEY,  # waiting does not help
        ErrorKind.CONTEXT_TOO_LONG,  # repeating does not help
    }
)
_ONCE_KINDS: Final = frozenset(
    {ErrorKind.TIMEOUT, ErrorKind.UNKNOWN}
)  # each further try may be billed as well

_ROUNDING = 1e-9
_BREAKER_SHARE = 15.0 / 16.0
"""Share of a request's tries: as many consecutive failures as open the circuit breaker. They are as
unlikely as five if 5 % fail; four tries are as unlikely as four if 2 % fail."""

_MAX_DELAY_FACTOR = 2.0
"""Maximum delay while other calls succeed, in latencies, or in initial delays of the policy if those are
shorter."""


def decide(
    policy: RetryPolicy,
    kind: ErrorKind,
    count: RetryCount,
    retry_after: float | None,
    rng: RandomSource,
    seen: Circumstances = Circumstances(),
) -> Retry | None:
    """Return whether a failed request is tried again, and add the failure to ``count``.

    Args:
        count: the request's own; changed if the decision is a retry.
        retry_after: seconds the server asked to wait, already clamped. It is a minimum, and the first time
            it replaces the backoff. If a request waited that long and failed again, the backoff is a minimum
            as well, so that no server makes it use up its tries at once.
    """
    # 1. The next call would fail in the same way (wrong key, wrong request, no credit): no retry.
    if kind in _NEVER_KINDS:
        return None
    # 2. The rate limit: a retry that does not count, after a backoff and the server's delay. The quota's
    #    cooldown is added.
    if kind is ErrorKind.RATE_LIMIT:
        if count.rate_limits >= policy.limit_retries:
            return None
        count.rate_limits += 1
        return Retry(after_refusals(count.rate_limits, retry_after, rng), counted=False)
    # 3. The provider is down and the call was not billed: a retry that does not count; the breaker delays it.
    if seen.held_by_breaker:
        return Retry(0.0, counted=False)
    # 4. This kind of failure is retried only once, and has been retried.
    if kind in count.once:
        return None
    # 5. A provider's failure that was not billed counts for less, the more of the other calls fail; any other
    #    counts as one try. After more than ``retries`` of them: no retry.
    of_provider = (seen.unavailable or kind is ErrorKind.SERVER_ERROR) and not seen.maybe_billed
    partial = of_provider and policy.retries > 0
    share = max(seen.failure_share, _WHOLE_TRY_SHARE) if partial else _WHOLE_TRY_SHARE
    weight = math.log(share) / math.log(_WHOLE_TRY_SHARE)
    if _used_up(count, weight, policy.retries + 1.0, partial=partial):
        return None
    if kind in _ONCE_KINDS:
        count.once |= {kind}
    # 6. A retry: after a few latencies while other calls succeed, else after the policy's backoff, and not
    #    before the server's delay.
    if retry_after is None:
        delay = _own_delay(policy, count.failures, rng, seen)
    else:
        delay = jittered_minimum(retry_after, rng) if policy.jitter else retry_after
        own = _own_delay(policy, max(0, count.failures - 1), rng, seen)
        delay = max(delay, own if count.failures else min(own, shortest(rng)))
    count.counted += weight
    count.whole += not partial
    count.partial += partial
    count.failures += 1
    return Retry(delay, counted=not partial or weight == 1.0)


def _used_up(count: RetryCount, weight: float, tries: float, *, partial: bool) -> bool:
    """Return whether a request ends with a failure of this weight.

    A rising share of failures is recognized late: the earlier failures are then weighted by it as well. Such
    a request still ends after fewer failures than open the breaker.
    """
    by_now = count.whole + weight * (count.partial + 1) if partial else math.inf
    return count.counted + weight >= tries - _ROUNDING and by_now >= _BREAKER_SHARE * tries - weight


def _own_delay(policy: RetryPolicy, failures: int, rng: RandomSource, seen: Circumstances) -> float:
    """Return the seconds before a retry if the server named none."""
    if seen.passing and seen.latency > 0.0:
        steps = exponential(failures, 1.0, 2.0, _MAX_DELAY_FACTOR)
        return jittered(min(steps * min(seen.latency, policy.initial), policy.max_delay), rng)
    return policy.delay(failures, rng)
