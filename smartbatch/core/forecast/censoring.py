"""Times of which only the least is known, as of batches that were taken back: what they say of the others."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

__all__ = ["handed_on", "likely"]

_GOLDEN = 0.6180339887498949
"""Multiples of the golden ratio lie evenly between two whole numbers, however many there are."""


def handed_on(
    ended: Iterable[tuple[float, float]], given_up: Iterable[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Return what ended, heavier by what was given up: each hands its weight on to all that took longer.

    That is the estimate of Kaplan and Meier ("Nonparametric estimation from incomplete observations", 1958)
    as Efron wrote it ("The two sample problem with censored data", 1967). What was given up after all others
    had ended stands for itself.

    Args:
        ended: a time and the weight (above 0) of each.
        given_up: the same, of those that would have taken longer.
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


def likely(level: float, seconds: float) -> float:
    """Return a level for what was given up at ``level``: any above it is as likely.

    Not the one in the middle, which would leave out those that take longest. It follows from ``seconds``, so
    that the same observations always say the same.

    Args:
        level: the share of times up to where it was given up.
        seconds: after which it was.
    """
    return level + (1 - level) * ((0.5 + seconds * _GOLDEN) % 1.0)
