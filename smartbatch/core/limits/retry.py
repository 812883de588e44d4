"""The decision whether and when a failed call is repeated.

Retries are decided only here; the SDKs' own retries are off. :func:`decide` considers one request and the
state of its lane. The circuit breaker, the throttle and the quota limit the total number of retries.
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
    """The number of retries of a failed request, and their delays.

    Args:
        retries: retries after the first call, 0 or more.
        initial: seconds before the first retry.
        multiplier: factor between consecutive delays, 1 or more.
        max_delay: maximum delay in seconds.
        jitter: wait between 50 % and 100 % of the delay, so that requests that failed together do not return
            together; see :func:`~smartbatch.core.limits.cooldown.jittered`.
        limit_retries: rate-limit refusals allowed per request. They do not count against ``retries``,
            because the whole quota pauses.
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
calls fail, a failure counts less, so that a request fails after an equally unlikely number of failures: 24
if half of all calls fail. A failure that may have been billed is always a whole try.
"""


@define
class RetryCount:
    """Failures of one request so far; only :func:`decide` changes it."""

    counted: float = 0.0  # tries used, at most 1 per failure
    whole: int = 0  # failures that counted as a whole try
    partial: int = 0  # failures that count for less if such failures are common
    failures: int = 0  # failures that lengthened the delay
    rate_limits: int = 0  # refusals, which use up no tries
    once: frozenset[ErrorKind] = frozenset()  # kinds that are retried only once, and already were


@frozen(kw_only=True)
class Circumstances:
    unavailable: bool = False  # caused by the provider's state, such as a 503 or no connection
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
# each further try may be billed as well
_ONCE_KINDS: Final = frozenset({ErrorKind.TIMEOUT, ErrorKind.UNKNOWN})

_ROUNDING_TRIES = 1e-9
_BREAKER_SHARE = 15.0 / 16.0
"""Share of a request's tries as unlikely as the consecutive failures that open the circuit breaker."""

_MAX_DELAY_FACTOR = 2.0
"""Maximum delay while other calls succeed, as a multiple of their latency or of the policy's initial delay,
whichever is shorter.
"""


def decide(
    policy: RetryPolicy,
    kind: ErrorKind,
    count: RetryCount,
    retry_after: float | None,
    rng: RandomSource,
    seen: Circumstances = Circumstances(),
) -> Retry | None:
    """Return the retry of a failed request, or ``None``, and add the failure to ``count``.

    Args:
        count: the failures of the request; changed only if it is retried.
        retry_after: seconds the server asked to wait, already clamped. The first time, this delay replaces
            the backoff; if the request fails again, the backoff is a minimum as well, so that a server cannot
            make a request use up its tries within a moment.
    """
    # 1. The next call would fail in the same way (wrong key, wrong request, no credit): no retry.
    if kind in _NEVER_KINDS:
        return None
    # 2. A rate-limit refusal: a retry that uses up no try, after a backoff, the server's delay and the
    #    quota's cooldown.
    if kind is ErrorKind.RATE_LIMIT:
        if count.rate_limits >= policy.limit_retries:
            return None
        count.rate_limits += 1
        return Retry(after_refusals(count.rate_limits, retry_after, rng), counted=False)
    # 3. The provider is down and the call was not billed: a retry that uses up no try; the breaker delays it.
    if seen.held_by_breaker:
        return Retry(0.0, counted=False)
    # 4. This kind of failure is retried only once, and has been retried.
    if kind in count.once:
        return None
    # 5. A provider's failure that was not billed counts for less if many calls fail; any other counts as one
    #    try. After more than ``retries`` of them: no retry.
    of_provider = (seen.unavailable or kind is ErrorKind.SERVER_ERROR) and not seen.maybe_billed
    partial = of_provider and policy.retries > 0
    share = max(seen.failure_share, _WHOLE_TRY_SHARE) if partial else _WHOLE_TRY_SHARE
    weight = math.log(share) / math.log(_WHOLE_TRY_SHARE)
    if _used_up(count, weight, policy.retries + 1.0, partial=partial):
        return None
    if kind in _ONCE_KINDS:
        count.once |= {kind}
    # 6. A retry: after a few latencies while other calls succeed, otherwise after the policy's backoff, and
    #    not before the server's delay.
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
    """Return whether a request fails with a failure of this weight.

    The share of failures rises late, so earlier failures are weighted by it as well. The request still
    fails before the breaker would open.
    """
    by_now = count.whole + weight * (count.partial + 1) if partial else math.inf
    return count.counted + weight >= tries - _ROUNDING_TRIES and by_now >= _BREAKER_SHARE * tries - weight


def _own_delay(policy: RetryPolicy, failures: int, rng: RandomSource, seen: Circumstances) -> float:
    if seen.passing and seen.latency > 0.0:
        steps = exponential(failures, 1.0, 2.0, _MAX_DELAY_FACTOR)
        return jittered(min(steps * min(seen.latency, policy.initial), policy.max_delay), rng)
    return policy.delay(failures, rng)
