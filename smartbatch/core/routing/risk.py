"""When a rescue begins: so late that hardly a batch is cancelled in vain, so early that it is in time.

A deadline is missed when a batch is late *and* what it leaves over takes longer than was kept free for it. So
where few batches are late, or much is saved by waiting for them, their rescue may be a little less sure, and
begin that much later: what is saved is weighed against the risk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import NormalDist

from attrs import frozen

__all__ = ["LATE_PENALTY", "MARGIN", "RISK", "SURE", "Start", "best", "late_penalty", "starts", "within"]

RISK = 0.05
"""Most chance of a deadline to be missed, by a late batch times a late rescue."""
LATE_PENALTY = 0.5
"""What a missed deadline counts as, in prices of the whole list in real time: half of it is lost."""
WAITED = 60.0
"""Seconds of waiting that it counts as besides, so that nobody misses a deadline to save a cent. With both,
about one in a hundred lists with all kinds of deadlines is late (``docs/reference/routing.md``)."""
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.96, 0.98, 0.99)
"""How sure a rescue may be."""
SURE = LEVELS[-1]
"""The surest that time is kept for; what lies beyond is seldom known."""
MARGIN = 0.005
"""Share of a deadline, counted from the moment it was set, that is kept free for what no forecast knows."""
_NORMAL = NormalDist()


@frozen
class Start:
    """When a rescue could begin.

    Attributes:
        at: seconds from now.
        sure: how likely it is in time then.
        needs: seconds it takes, that sure.
        risk: how likely the deadline is missed.
        saved: what batches save until then, in prices of the whole list in real time.
        late_penalty: see :func:`late_penalty`.
    """

    at: float
    sure: float
    needs: float
    risk: float
    saved: float
    late_penalty: float = LATE_PENALTY

    @property
    def worth(self) -> float:
        """What it saves, less what its risk costs."""
        return self.saved - self.late_penalty * self.risk


def late_penalty(price: float | None, time_value: float) -> float:
    """Return what a missed deadline counts as, in prices of the whole list in real time.

    Args:
        price: USD of the list in real time; ``None`` where it is unknown.
        time_value: USD an hour of waiting is worth.
    """
    return LATE_PENALTY if not price else LATE_PENALTY + time_value * WAITED / 3600 / price


def starts(
    left: float,
    needs: Callable[[float], float],
    late: Callable[[float], float],
    saved: Callable[[float, float], float],
    floor: float = 0.0,
    late_penalty: float = LATE_PENALTY,
) -> list[Start]:
    """Return when a rescue could begin, for each of :data:`LEVELS`.

    Args:
        left: seconds until the deadline.
        needs: seconds within which a rescue is done, that sure.
        late: how likely what is taken back last has not ended by itself, if it begins in so many seconds.
        saved: see :class:`Start`; if it begins in so many seconds, that sure.
        floor: seconds from now before which it cannot begin.
        late_penalty: what a missed deadline counts as, see :func:`late_penalty`.
    """
    found = []
    for sure in LEVELS:
        kept = needs(sure)
        at = left - kept
        if at <= floor:
            break
        found.append(Start(at, sure, kept, (1 - sure) * late(at), saved(at, sure), late_penalty))
    return found


def best(found: Sequence[Start]) -> Start | None:
    """Return the start that is worth most of those that keep to :data:`RISK`, of equals the surest; ``None``
    where none does."""
    safe = (start for start in found if start.risk <= RISK)
    return max(safe, key=lambda start: (round(start.worth, ndigits=6), start.sure), default=None)


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
