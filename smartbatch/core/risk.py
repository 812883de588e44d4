"""When a rescue begins: so late that hardly a batch is cancelled in vain, so early that it is in time.

A deadline is missed when a batch is late *and* what it leaves over takes longer than was kept free for it. So
where few batches are late, their rescue may be a little less sure, and begin that much later.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist

__all__ = ["MARGIN", "RISK", "SURE", "latest", "within"]

RISK = 0.02
"""Share of all deadlines that may be missed: a late batch times a late rescue."""
LEVELS = (0.8, 0.85, 0.9, 0.93, 0.96, 0.98, 0.99)
"""How sure a rescue may be. No less, however seldom batches are late: what is known of them may be out of
date."""
SURE = LEVELS[-1]
"""The surest that time is kept for; what lies beyond is seldom known."""
MARGIN = 0.02
"""Share of a deadline, counted from the moment it was set, that is kept free for what no forecast knows."""
_NORMAL = NormalDist()


def latest(
    left: float, needs: Callable[[float], float], late: Callable[[float], float]
) -> tuple[float, float, float]:
    """Return how sure a rescue must be, the seconds it needs then, and in how many it has to begin.

    Args:
        left: seconds until the deadline.
        needs: seconds within which a rescue is done, that sure.
        late: how likely a batch has not ended in so many seconds from now.
    """
    for sure in LEVELS:
        kept = needs(sure)
        if sure == SURE or (1 - sure) * late(left - kept) <= RISK:
            break
    return sure, kept, left - kept


def within(seconds: float, p50: float, p95: float) -> float:
    """Return how likely something is done within ``seconds``, taken as lognormal from two quantiles."""
    if seconds <= 0:
        return 0.0
    if p95 <= p50 or p50 <= 0:
        return 1.0 if seconds >= p50 else 0.0
    return _NORMAL.cdf(_z95() * math.log(seconds / p50) / math.log(p95 / p50))


@lru_cache(maxsize=1)
def _z95() -> float:
    return _NORMAL.inv_cdf(0.95)
