"""When the rescue of a batch begins: what later batches save is weighed against the risk to be late.

A rescue takes a batch back and answers the rest of its requests in real time. A deadline is missed when the
batch is late *and* the rest takes longer than the time kept free for it. So where few batches are late, or
waiting for them saves much, less time may be kept free, and the rescue begins later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

from attrs import frozen

from smartbatch.core.routing.throughput import normal_quantile

MOST_RISK = 0.05
"""The largest risk taken to miss a deadline: the chance of a late batch times that of a late rescue."""
LATE_PENALTY = 0.5
"""What a missed deadline costs, as a share of the price of the whole list in real time."""
WAITED_SECONDS = 60.0
"""Seconds of waiting that a missed deadline costs as well, so that no deadline is missed to save a cent.
With both, about one in a hundred lists with all kinds of deadlines is late
(``docs/reference/routing.md``)."""
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.96, 0.98, 0.99)
"""Probabilities to be in time that are compared for a rescue."""
SURE = LEVELS[-1]
"""The highest of them; quantiles beyond it are seldom known."""
MARGIN = 0.005
"""Share of the time to a deadline, from the moment it was set, that is kept free for what no forecast
covers."""
_NORMAL = NormalDist()


@frozen
class RescueStart:
    """A moment at which a rescue could begin. Times are seconds.

    Attributes:
        at: from now.
        sure: probability that the rescue is in time.
        needs: within which the rescue is done with that probability.
        risk: probability that the deadline is missed.
        worth: what batches save until then less what the risk costs, as a share of the price of the whole
            list in real time.
    """

    at: float
    sure: float
    needs: float
    risk: float
    worth: float


def late_penalty(price: float | None, time_value: float) -> float:
    """Return what a missed deadline costs, as a share of ``price``, the USD of the whole list in real time.

    ``time_value`` is what an hour of waiting is worth, USD.
    """
    return LATE_PENALTY if not price else LATE_PENALTY + time_value * WAITED_SECONDS / 3600 / price


def rescue_starts(
    left: float,
    needs: Callable[[float], float],
    late: Callable[[float], float],
    saved: Callable[[float, float], float],
    floor: float = 0.0,
    late_penalty: float = LATE_PENALTY,
) -> list[RescueStart]:
    """Return when a rescue could begin, for each of :data:`LEVELS`. Times are seconds from now.

    Args:
        left: until the deadline.
        needs: the time within which a rescue is done, by the probability given.
        late: probability that the batch taken back last has not ended by itself, by the time.
        saved: what batches save until a rescue, as a share of the price of the whole list in real time; by
            the time and the probability.
        floor: before which a rescue cannot begin.
    """
    found = []
    for sure in LEVELS:
        kept = needs(sure)
        at = left - kept
        if at <= floor:
            break
        risk = (1 - sure) * late(at)
        found.append(RescueStart(at, sure, kept, risk, saved(at, sure) - late_penalty * risk))
    return found


def best_start(found: Sequence[RescueStart]) -> RescueStart | None:
    """Return the start that is worth most of those that keep to :data:`MOST_RISK`, of equals the surest."""
    safe = (start for start in found if start.risk <= MOST_RISK)
    return max(safe, key=lambda start: (round(start.worth, ndigits=6), start.sure), default=None)


def chance_within(seconds: float, p50: float, p95: float) -> float:
    """Return the probability of at most ``seconds`` under a lognormal distribution given by two quantiles."""
    if seconds <= 0:
        return 0.0
    if p95 <= p50 or p50 <= 0:
        return 1.0 if seconds >= p50 else 0.0
    return _NORMAL.cdf(normal_quantile(0.95) * math.log(seconds / p50) / math.log(p95 / p50))
