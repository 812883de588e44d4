"""Whether a failed call is made again, and when.

Retrying is decided only here: the retries of SDKs are off. :func:`decide` looks at one request and at how the
other calls of its lane fare. What all retries together may add up to is held by the breaker, the throttle and
the quota.
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
    """How often and how long after a failure a request is tried again.

    Args:
        retries: tries after the first call, 0 or more.
        initial: seconds before the first retry.
        multiplier: by how much each wait is longer than the one before, 1 or more.
        max_delay: longest wait in seconds.
        jitter: wait between 50 % and 100 % of the formula, so that requests which failed together do not
            return together; see :func:`~smartbatch.core.limits.cooldown.jittered`.
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


_OWN = math.exp(-4.0)
"""Share of failures at which one counts as a whole try. Four of them in a row, the usual number of tries, are
then as likely as one in 9 million; where more fail, a failure counts less, so that a request ends after as
many as are equally unlikely for one with nothing wrong: after 24 where half of all calls fail. One that may
have been billed is a whole try everywhere: each further call could be paid for."""


@define
class RetryCount:
    """What one request has met so far; only :func:`decide` changes it.

    Attributes:
        counted: failures that counted against ``RetryPolicy.retries``: 1 each, or less where failures of its
            kind were usual among the other calls.
        whole, partial: how many of them counted as a whole try, and how many as less where that is usual.
        failures: those for which the delay grew.
        rate_limits: refusals for the rate limit, which do not count.
        once: kinds of failure that are retried only once, and were.
    """

    counted: float = 0.0
    whole: int = 0
    partial: int = 0
    failures: int = 0
    rate_limits: int = 0
    once: frozenset[ErrorKind] = frozenset()


@frozen(kw_only=True)
class Circumstances:
    """How the other calls of the lane fare when a call fails.

    Attributes:
        unavailable: the failure speaks of the provider's state and not of the request: a status such as 503,
            or a connection that could not be made.
        maybe_billed: the call may have been carried out although no answer came, so a retry may be billed
            as well.
        outage: the breaker is not closed.
        passing: another call was answered while this one was under way.
        failure_share: share of requests whose first call fails.
        latency: mean seconds of an answered call; 0 while unknown.
    """

    unavailable: bool = False
    maybe_billed: bool = False
    outage: bool = False
    passing: bool = False
    failure_share: float = 0.0
    latency: float = 0.0

    @property
    def held_by_breaker(self) -> bool:
        """Whether the provider is down, and the call was certainly not carried out."""
        return self.outage and self.unavailable and not self.maybe_billed


@frozen
class Retry:
    """The decision that the call is made again, after ``delay`` seconds at least; the gates may hold it
    longer. ``counted`` is False when the failure was the provider's state and did not count as a whole try of
    the request.
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

_ROUNDING = 1e-9
_BREAKER_OPENS = 15.0 / 16.0
"""Of the tries of a request, what failures in a row open the breaker: they are as unlikely as five are where
5 % fail, and four tries as four where 2 % do."""

_SLOWEST = 2.0
"""While other calls pass, the longest delay, in latencies, or in first delays of the policy if these are
shorter."""


def decide(
    policy: RetryPolicy,
    kind: ErrorKind,
    count: RetryCount,
    retry_after: float | None,
    rng: RandomSource,
    seen: Circumstances = Circumstances(),
) -> Retry | None:
    """Return whether a request that failed is tried again, and add the failure to ``count``.

    The cases, in order:

    1. The next call would fail alike (wrong key, wrong request, no credit): no retry.
    2. The rate limit: a retry that does not count, after a backoff of its own and what the server asked; the
       quota's cooldown adds to it. No retry after ``limit_retries`` of them.
    3. The provider is down, the breaker is not closed and the call was not billed: a retry that does not
       count, and no delay; the breaker holds the call.
    4. A kind that is retried once was retried: no retry.
    5. A failure of the provider that was not billed counts less than a try, the more of the other calls fail;
       any other counts as one. More than ``retries`` of them: no retry.
    6. A retry. While other calls pass it comes after a few latencies, else after the policy's backoff; and
       not before the server's delay, if it named one.

    Args:
        count: the request's own; changed when the decision is a retry.
        retry_after: seconds the server asked to wait, already clamped. It is a minimum, and the first time it
            stands for the backoff. A request that waited so long and failed again was told wrongly: from then
            on the backoff holds as well, so that no server makes it use up its tries at once.
    """
    if kind in _NEVER:
        return None
    if kind is ErrorKind.RATE_LIMIT:
        if count.rate_limits >= policy.limit_retries:
            return None
        count.rate_limits += 1
        return Retry(after_refusals(count.rate_limits, retry_after, rng), counted=False)
    if seen.held_by_breaker:
        return Retry(0.0, counted=False)
    if kind in count.once:
        return None
    of_provider = (seen.unavailable or kind is ErrorKind.SERVER_ERROR) and not seen.maybe_billed
    partial = of_provider and policy.retries > 0
    share = max(seen.failure_share, _OWN) if partial else _OWN
    weight = math.log(share) / math.log(_OWN)
    if _used_up(count, weight, policy.retries + 1.0, partial=partial):
        return None
    if kind in _ONCE:
        count.once |= {kind}
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

    A share that rises is known late: then the failures before it count by it, too. Such a request still ends
    before as many failures as open the breaker.
    """
    by_now = count.whole + weight * (count.partial + 1) if partial else math.inf
    return count.counted + weight >= tries - _ROUNDING and by_now >= _BREAKER_OPENS * tries - weight


def _own_delay(policy: RetryPolicy, failures: int, rng: RandomSource, seen: Circumstances) -> float:
    """Return the seconds before a retry for which the server named none."""
    if seen.passing and seen.latency > 0.0:
        steps = exponential(failures, 1.0, 2.0, _SLOWEST)
        return jittered(min(steps * min(seen.latency, policy.initial), policy.max_delay), rng)
    return policy.delay(failures, rng)
