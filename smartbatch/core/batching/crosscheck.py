"""Whether the answers of a batch belong to their requests: billed prompt tokens against our own estimates.

Providers and gateways have exchanged answers. An answer's id says which request it should answer, and its
count of prompt tokens says how long a prompt it does answer; comparing the two costs nothing. Our estimates
are off by a ratio and a constant, which the lines of one shard share, and by a random error of each line. All
three are measured on those lines, and a line that is off by far more than the others is suspicious.

How much this detects depends on the random error. Where estimates fit to 1 %, a difference of 5 % stands out.
On real prompts they spread by 7 to 15 % around what OpenAI's tokenizers count (measured on GSM8K, HumanEval,
IFEval, MT-Bench and XQuAD in English and Chinese): of two GSM8K prompts exchanged at random 29 % are
detected, and 92 % where one is 1.7 times as long as the other. So the check may show that a batch has
exchanged answers, but never which answers are right, and servers whose counts follow characters make it
suspect a request in another script than the others. A suspicion is told, and nothing is sent again for it.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import median

from attrs import frozen

_WIDTH = 6.0
"""Half the width of the band, in standard deviations. Of 2,583 real prompts (sets as above) the farthest lies
at 5.7."""
_SMALL = 3.0
"""The spread of few lines is itself uncertain: the band is wider by this factor over the square root of their
number, two thirds with twenty."""
_LEAST = 0.02
"""Half the width of the band at least, as a share: estimates that fit some lines exactly may be off for
others."""
_ROUNDING = 1.0
"""Tokens more that are always allowed: estimate and count are both rounded."""
_UNLIKE = 3.0
"""Estimates go by the characters: of a request whose bytes are off from its estimate by more than the others'
are, as one in another script is, the estimate may be off by so many times more."""
_SIGMA = 1.4826
"""Standard deviation of a normal distribution for each unit of its median absolute deviation."""
_VARIED = math.log(1.5)
_RELATED = 0.5
"""Estimates whose middle half spans a factor of 1.5 follow counts with a rank correlation of 0.9 and more on
the real sets above; with twenty answers handed out at random, one time in eighty it exceeds 0.5."""


@frozen
class _Fit:
    """What the lines have in common: billed tokens for each estimated one and for each line, and the median
    and the robust standard deviation of the logarithm of billed over expected.
    """

    slope: float
    constant: float
    center: float
    spread: float

    def expected(self, estimate: float) -> float:
        return _expected(self.slope, self.constant, estimate)


class Crosscheck:
    """Compares the lines of one shard with each other; several hundred are best, fewer than 20 show nothing.

    All lines are observed first and judged afterwards. It keeps 24 bytes for each.
    """

    NEEDED = 20
    """Lines before any is called suspicious."""

    def __init__(self) -> None:
        self._estimates = array("d")
        self._billed = array("d")
        self._sizes = array("d")
        self._fit: _Fit | None = None
        self._size_fit: _Fit | None = None

    def observe(self, estimate: int, billed: int, size: int = 0) -> None:
        """Learn from a line; one without counts is ignored.

        Args:
            estimate: our estimate of its prompt's tokens, before any correction.
            billed: prompt tokens the provider reports with the answer, cached ones included.
            size: bytes of its request; 0 where they are not known.
        """
        if estimate > 0 and billed > 0:
            self._estimates.append(estimate)
            self._billed.append(billed)
            self._sizes.append(size)
            self._fit = self._size_fit = None

    def suspects(self) -> int:
        """Return how many of the observed lines are suspicious."""
        lines = zip(self._estimates, self._billed, self._sizes, strict=True)
        return sum(self.suspicious(*line) for line in lines)

    def suspicious(self, estimate: float, billed: float, size: float = 0) -> bool:
        """Whether ``billed`` does not fit a prompt of ``estimate`` tokens, measured by the other lines."""
        if len(self._estimates) < self.NEEDED or estimate <= 0 or billed <= 0:
            return False
        if self._fit is None:
            self._fit = _fitted(self._estimates, self._billed)
        fit = self._fit
        expected = fit.expected(estimate)
        width = _WIDTH * fit.spread * (1 + _SMALL / math.sqrt(len(self._estimates)))
        if abs(billed - expected * math.exp(fit.center)) <= _ROUNDING + 1e-9:
            return False  # one token of three is a large share, but only rounding
        deviation = abs(math.log(billed / expected) - fit.center)
        return deviation > max(width, _LEAST) + _ROUNDING / expected + _UNLIKE * self._unlike(estimate, size)

    def _unlike(self, estimate: float, size: float) -> float:
        """Return how far a request's bytes are from those that other lines have for such an estimate, as a
        logarithm; a token more or less is none.
        """
        if size <= 0:
            return 0.0
        if self._size_fit is None:
            self._size_fit = _fitted(self._estimates, [max(1.0, size) for size in self._sizes])
        fit = self._size_fit
        deviation = abs(math.log(size / fit.expected(estimate)) - fit.center)
        return max(0.0, deviation - _ROUNDING / estimate)

    @property
    def unrelated(self) -> bool:
        """True when counts do not follow estimates at all: all answers may be exchanged.

        Then the spread is so large that no line stands out. Only prompts of different lengths can show it.
        """
        if len(self._estimates) < self.NEEDED:
            return False
        ordered = sorted(self._estimates)
        quarter = len(ordered) // 4
        if math.log(ordered[-1 - quarter] / ordered[quarter]) < _VARIED:
            return False
        return _correlation(_ranks(self._estimates), _ranks(self._billed)) < _RELATED


def _fitted(estimates: Sequence[float], billed: Sequence[float]) -> _Fit:
    """Return the better of a ratio alone and a ratio with a constant, such as a tool or a system text."""
    simple = _spread_of(1.0, 0.0, estimates, billed)
    slope = _slope(estimates, billed)
    if slope is None or slope <= 0:
        return simple
    constant = median(b - slope * e for e, b in zip(estimates, billed, strict=True))
    better = _spread_of(slope, constant, estimates, billed)
    return better if better.spread < simple.spread else simple


def _spread_of(slope: float, constant: float, estimates: Sequence[float], billed: Sequence[float]) -> _Fit:
    logs = [math.log(b / _expected(slope, constant, e)) for e, b in zip(estimates, billed, strict=True)]
    center = median(logs)
    return _Fit(slope, constant, center, _SIGMA * median(abs(log - center) for log in logs))


def _expected(slope: float, constant: float, estimate: float) -> float:
    return max(1.0, slope * estimate + constant)


def _slope(estimates: Sequence[float], billed: Sequence[float]) -> float | None:
    """Return the median slope between lines half the list apart in length (Theil and Sen, in short)."""
    ordered = sorted(zip(estimates, billed, strict=True))
    half = len(ordered) // 2
    slopes = [
        (far[1] - near[1]) / (far[0] - near[0])
        for near, far in zip(ordered, ordered[half:], strict=False)
        if far[0] > near[0]
    ]
    return median(slopes) if slopes else None


def _ranks(values: Sequence[float]) -> list[float]:
    """Return each value's place in order; equal ones share the middle of theirs."""
    ordered = sorted(values)
    return [(bisect_left(ordered, value) + bisect_right(ordered, value) - 1) / 2 for value in values]


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    middle = (len(one) - 1) / 2  # of ranks, ties or not
    product = sum((a - middle) * (b - middle) for a, b in zip(one, other, strict=True))
    size = math.sqrt(sum((a - middle) ** 2 for a in one) * sum((b - middle) ** 2 for b in other))
    return product / size if size else 0.0
