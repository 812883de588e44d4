"""Right-censored times, such as those of batches that were taken back: it is only known that they took
longer."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

__all__ = ["imputed_level", "redistributed"]

_GOLDEN = 0.6180339887498949
"""The fractional parts of multiples of this number are spread evenly over 0..1, however many there are."""


def redistributed(
    ended: Iterable[tuple[float, float]], given_up: Iterable[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Return the times of what ended, with the weight of each censored time redistributed to all longer ones.

    This is the estimate of Kaplan and Meier ("Nonparametric estimation from incomplete observations", 1958)
    in Efron's form ("The two sample problem with censored data", 1967). A censored time longer than all
    others keeps its own weight.

    Args:
        ended: time and weight (above 0) of each that ended.
        given_up: time and weight of each that was given up after that time.
    """
    points = [(time, False, weight) for time, weight in ended]
    points += [(time, True, weight) for time, weight in given_up]
    points.sort()
    longer = list(accumulate([weight for *_, weight in reversed(points)], initial=0.0))[-2::-1]
    factor = 1.0
    found = []
    for (time, late, weight), left in zip(points, longer, strict=True):
        if not late or not left:
            found.append((time, factor * weight))
        else:
            factor *= (left + weight) / left
    return found


def imputed_level(level: float, seconds: float) -> float:
    """Return a level above ``level`` for a censored time, where all levels above it are equally likely.

    The middle of them would leave out the longest times. The level follows from ``seconds``, so that equal
    observations always give equal forecasts.

    Args:
        level: the share of times up to the one at which it was given up.
        seconds: the time at which it was given up.
    """
    return level + (1 - level) * ((0.5 + seconds * _GOLDEN) % 1.0)
