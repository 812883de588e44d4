"""How long one kind of call or batch will take, learned from those that ended.

A forecast is a mixture of three distributions of log seconds (:mod:`smartbatch.core.forecast.distribution`):

- *the prior*: the forecast before anything was observed. It weighs half an observation, so after a dozen
  observations it hardly counts.
- *the observations*, each by its weight, which halves after ``Prior.fade`` seconds, and after
  :data:`FADES_AFTER` further observations. After a change of regime, all earlier ones weigh as much as the
  prior.
- *a shape*: the prior's, moved to the median and stretched to the spread of the observations; it weighs two
  observations (one, where there is only one). It stands for what few observations cannot show, such as times
  longer than the longest of five.

Larger calls and batches take longer: ``seconds ~ size ** growth``. The growth is fitted to log sizes by least
squares, with a ridge towards the prior's, and stays within 0..1.

Levels are corrected, and sudden changes detected, by :mod:`smartbatch.core.forecast.change_detection`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from itertools import accumulate
from statistics import NormalDist
from typing import Protocol

from attrs import Attribute, define, field, frozen

from smartbatch.core.forecast.change_detection import ChangeDetector, LevelCorrection, MomentCounts
from smartbatch.core.forecast.distribution import Distribution, imputed_level, redistributed

FADES_AFTER = 128
"""Further observations after which one counts half."""
SHAPE = 2.0
"""Observations that the shape weighs as much as."""
SPREAD = 4.0
"""Observations that the prior's spread weighs as much as in the learned spread."""
STEEP = 0.3
"""Standard deviation of growths around the prior's."""
SETTLED = 40
"""Sum of weights from which levels are corrected; below, there is too little evidence."""
WATCHED = 12
"""Sum of weights from which a change can be detected."""
QUARTER = math.log(1.25)
"""The least change of the log median that is reported."""
SURE, SURE_OF_FIRST = 4.0, 2.0
"""Standard errors by which a gradual change of the median must exceed chance to be reported: more where the
median before was itself observed, and not only the prior's."""
LAST = 1 - 1e-9
"""The highest quantile that is imputed for a time that was given up."""
SHORTEST = 1e-6
"""Seconds; a shorter time counts as this."""
_NORMAL = 0.7979
"""Mean absolute deviation of a normal distribution with standard deviation 1."""
STEPS = 8
"""A forecast is fitted again after an eighth as many new observations as it rests on."""
STALE = 0.02
"""Half-lives after which a forecast is fitted again without new observations."""
TINY = 1e-300
"""Keeps a weight above 0, however old."""
_HALF = -math.log(2)
_POINTS = 50
"""Points of a lognormal prior."""


def _positive(_: object, attribute: Attribute[float], value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{attribute.name} must be above 0 and finite, not {value!r}")


@frozen
class Prior:
    """The distribution of times before anything is observed.

    Args:
        times: seconds and weight of each point of the distribution, for things of size 1; only the relative
            weights count.
        growth: seconds grow as ``size ** growth``, 0..1.
        weight: observations that the prior counts as.
        fade: seconds after which an observation counts half; providers' load changes within a day.
        together: share of its own seconds within which an observation must have begun before or after another
            to be of the same moment. Observations of one moment, such as the batches of one list, take about
            the same time, so that together they count as one.
        only_when_sure: whether a gradual change is reported only when chance does not explain it. False for
            things of which there are few: each change is reported.
    """

    times: tuple[tuple[float, float], ...]
    growth: float = 0.0
    weight: float = field(default=0.5, validator=_positive)
    fade: float = field(default=43_200.0, validator=_positive)
    together: float = 0.0
    only_when_sure: bool = True

    @classmethod
    def of(
        cls, median: float, p95: float, *, growth: float = 0.0, weight: float = 0.5, fade: float = 43_200.0
    ) -> Prior:
        """Return a lognormal prior from two quantiles in seconds, which it reproduces exactly."""
        normal = NormalDist()
        sigma = math.log(p95 / median) / normal.inv_cdf(0.95)
        levels = [(place + 0.5) / _POINTS for place in range(_POINTS)]  # 0.95 is one of them
        times = tuple((median * math.exp(sigma * normal.inv_cdf(level)), 1.0) for level in levels)
        return cls(times, growth, weight, fade)

    @property
    def whole(self) -> float:
        return sum(part for _, part in self.times)

    @property
    def points(self) -> list[tuple[float, float]]:
        """Log seconds and weight of each point; together they weigh ``weight``."""
        whole = self.whole
        return [(math.log(seconds), part * self.weight / whole) for seconds, part in self.times]


@frozen
class Observation:
    """A call or batch that ended, or was given up.

    Args:
        size: its requests.
        seconds: what it took.
        at: Unix seconds of its end.
        ended: False where it was given up after these seconds, so that it would have taken longer (a
            right-censored time). Without these, the forecast of batches that are cancelled when they are late
            would never learn that they are late.
    """

    size: int
    seconds: float
    at: float
    ended: bool = True


@frozen
class ForecastChange:
    """A change of a forecast that is worth reporting.

    Attributes:
        before, after: median seconds, for the mean log size.
        seen: the observations the new forecast rests on.
        why: in words.
        sudden: True for a change of regime, False for a gradual one.
    """

    before: float
    after: float
    seen: int
    why: str
    sudden: bool


@define
class _Kept:
    """One observation. ``size``, ``seconds`` and ``least`` are logarithms.

    All observations of one ``moment`` count as one. Of one that was given up, ``seconds`` is imputed and
    ``least`` is what it took.
    """

    seen: Observation
    at: float
    ended: bool
    size: float
    seconds: float
    least: float
    moment: int
    counts: MomentCounts
    weight: float


@frozen
class _Fit:
    """A fitted forecast: a distribution for the log size ``center``, and how seconds grow with size."""

    curve: Distribution
    growth: float
    center: float
    learned: float
    """Sum of the weights of the observations."""
    deviation: float
    at: float

    def shift(self, size: int) -> float:
        return self.growth * (math.log(max(1, size)) - self.center)

    def log(self, kept: _Kept) -> float:
        """Return the log seconds of an observation, scaled to the size ``center``."""
        return kept.seconds - self.growth * (kept.size - self.center)


class Forecaster:
    """Learns how long one kind of call or batch takes. Not thread-safe.

    Its forecasts depend only on the prior, the observations and their order. They are fitted again in steps:
    with each observation at first, later with each eighth more, so that observing every call costs little.

    Args:
        prior: the forecast before anything is observed.
        remember: observations that are kept; older ones are dropped.
    """

    def __init__(self, prior: Prior, *, remember: int = 512) -> None:
        self._prior = prior
        self._points, self._whole = prior.points, prior.whole
        self._base = Distribution(self._points)
        self._apart = [  # from the median
            (log - self._base.median, part)
            for (log, _), (_, part) in zip(self._points, prior.times, strict=True)
        ]
        self._prior_spread = _spread(self._points, self._base.median)
        self._kept: deque[_Kept] = deque(maxlen=remember)
        self._fit: _Fit | None = None
        self._fresh = 0
        self._moments = 0
        self._correction = LevelCorrection()
        self._detector = ChangeDetector()
        self._reported: tuple[float, float, float] = (self._base.median, prior.growth, 0.0)
        self._usual = self._prior_spread, prior.growth

    @property
    def observations(self) -> int:
        return len(self._kept)

    @property
    def seen(self) -> tuple[Observation, ...]:
        """What is kept, oldest first: observed again in that order, it makes an equal forecaster."""
        return tuple(kept.seen for kept in self._kept)

    def at(self, now: float) -> ForecastAt:
        """Return the forecasts as of ``now``, Unix seconds, from what was observed until this call."""
        return ForecastAt(self._fitted(now), self._correction, len(self._kept))

    # -- learning --------------------------------------------------------------------------------------------

    def observe(self, seen: Observation) -> ForecastChange | None:
        """Learn from an observation; return how the forecast changed, where that is worth reporting.

        1. A sudden change is detected: observations before it hardly count any more, and it is reported.
        2. The median has moved by more than a quarter since the last report, and more than chance explains
           where the prior wants only sure ones: it is reported.
        3. Otherwise: ``None``.

        Raises:
            ValueError: the seconds are negative or no number.
        """
        if not (math.isfinite(seen.seconds) and seen.seconds >= 0):
            raise ValueError(f"seconds must be 0 or more and finite, not {seen.seconds!r}")
        fit = self._fitted(seen.at)
        shift = fit.shift(seen.size)
        log = least = math.log(max(SHORTEST, seen.seconds))
        if not seen.ended:
            level = imputed_level(fit.curve.level(least - shift), seen.seconds)
            log = max(least, fit.curve.log(min(LAST, max(1 - LAST, level))) + shift)
        other = self._same_moment(seen)
        self._moments += other is None
        moment, weight = (self._moments, 1.0) if other is None else (other.moment, other.weight)
        counts = MomentCounts() if other is None else other.counts
        changed = self._judge(fit, fit.curve.middle(log - shift), counts, first=other is None)
        size = math.log(max(1, seen.size))
        kept = _Kept(seen, seen.at, seen.ended, size, log, least, moment, counts, weight)
        self._kept.append(kept)
        self._fresh += 1
        if changed:
            return self._begin_regime(changed, seen.at)
        return self._report_drift(seen.at)

    def _same_moment(self, seen: Observation) -> _Kept | None:
        """Return an observation that began at about the same moment."""
        together = self._prior.together * seen.seconds
        if not together:
            return None
        began = seen.at - seen.seconds
        near = (kept for kept in self._kept if abs(kept.seen.at - kept.seen.seconds - began) <= together)
        return next(near, None)

    def _judge(self, fit: _Fit, level: float, counts: MomentCounts, *, first: bool) -> int:
        """Learn from the level of a time in the forecast made before; return how many make a new regime.

        Only the first of a moment is used to detect a change.
        """
        if fit.learned < WATCHED:
            return 0
        if fit.learned >= SETTLED:
            self._correction.observe(level, counts)
        return self._detector.observe(level, fit.deviation, fit.learned) if first else 0

    def _begin_regime(self, count: int, now: float) -> ForecastChange | None:
        """Let the observations before the latest ``count`` moments hardly count, if their median differs
        enough.
        """
        fit = self._fitted(now)
        weighed = list(zip(self._kept, self._weights(now), strict=True))
        older = [(kept, weight) for kept, weight in weighed if kept.moment <= self._moments - count]
        latest = [kept for kept, _ in weighed if kept.moment > self._moments - count]
        if not older:  # all of them are of the new regime
            self._detector.reset()
            return None
        whole = sum(weight for _, weight in older)
        usual = sum(weight * fit.log(kept) for kept, weight in older) / whole
        if abs(sum(map(fit.log, latest)) / len(latest) - usual) < QUARTER:
            return None
        share = min(1.0, self._prior.weight / whole)
        for kept, _ in older:
            kept.weight *= share
        self._detector.reset()
        self._correction = LevelCorrection()
        self._usual = fit.deviation, fit.growth
        after = self._refit(now)
        before = fit.curve.median + fit.growth * (after.center - fit.center)
        return self._report(after, before, len(latest), "those before", sudden=True)

    def _report_drift(self, now: float) -> ForecastChange | None:
        """Return the gradual change of the median since the last report, if it is worth reporting."""
        if self._fit is not None and self._current(self._fit, now):
            return None
        fit = self._refit(now)
        median, growth, center = self._reported
        before = median + growth * (fit.center - center)
        first = self._reported == (self._base.median, self._prior.growth, 0.0)
        error = 0.5 / math.sqrt(max(1.0, fit.learned))  # standard error of a share near one half
        sure = abs(fit.curve.level(before) - 0.5) > (SURE_OF_FIRST if first else SURE) * error
        if (self._prior.only_when_sure and not sure) or abs(fit.curve.median - before) < QUARTER:
            return None
        than = "what was assumed before anything was seen" if first else "those before, by and by"
        return self._report(fit, before, len(self._kept), than)

    def _report(
        self, fit: _Fit, before: float, seen: int, than: str, *, sudden: bool = False
    ) -> ForecastChange:
        self._reported = (fit.curve.median, fit.growth, fit.center)
        factor = math.exp(fit.curve.median - before)
        shown = f"{factor:.2g}" if factor < 100 else f"{factor:,.0f}"
        latest = "the latest" if seen == 1 else f"the latest {seen}"
        why = f"{latest} took about {shown} times as long as {than}"
        return ForecastChange(math.exp(before), math.exp(fit.curve.median), seen, why, sudden)

    # -- fitting ---------------------------------------------------------------------------------------------

    def _fitted(self, now: float) -> _Fit:
        fit = self._fit
        return fit if fit is not None and self._current(fit, now) else self._refit(now)

    def _current(self, fit: _Fit, now: float) -> bool:
        if self._fresh > fit.learned / STEPS:
            return False
        return abs(now - fit.at) <= STALE * self._prior.fade or not self._kept

    def _refit(self, now: float) -> _Fit:
        prior = self._prior
        growth, center, learned, deviation = prior.growth, 0.0, 0.0, self._usual[0]
        points = self._points
        if self._kept:
            weights = self._weights(now)
            learned = sum(weights)
            growth, center = self._growth(weights, learned)
            # scaled to the size ``center``
            scaled = [one.least - growth * (one.size - center) for one in self._kept]
            pairs = list(zip(self._kept, scaled, weights, strict=True))
            ended = [(log, weight) for one, log, weight in pairs if one.ended]
            given_up = [(log, weight) for one, log, weight in pairs if not one.ended]
            moved = prior.growth * center
            points = [(log + moved, weight) for log, weight in points]
            found = sorted(redistributed(points + ended, given_up) if given_up else ended)
            median = _median(found)
            deviation = (SPREAD * deviation + learned * _spread(found, median)) / (SPREAD + learned)
            points += self._shape(median, deviation, SHAPE * learned / (1 + learned))
            points = redistributed(points + ended, given_up)
        self._fresh = 0
        self._fit = _Fit(Distribution(points), growth, center, learned, deviation, now)
        return self._fit

    def _weights(self, now: float) -> list[float]:
        by_age, by_count, newest = _HALF / self._prior.fade, _HALF / FADES_AFTER, self._moments
        exp = math.exp
        weights = [
            kept.weight
            * exp(by_age * (now - kept.at if now > kept.at else 0.0) + by_count * (newest - kept.moment))
            + TINY
            for kept in self._kept
        ]
        if not self._prior.together:
            return weights
        together = Counter(kept.moment for kept in self._kept)
        return [weight / together[kept.moment] for kept, weight in zip(self._kept, weights, strict=True)]

    def _growth(self, weights: Sequence[float], whole: float) -> tuple[float, float]:
        """Return how log seconds grow with log sizes, and the mean log size."""
        spread, usual = self._usual
        sizes = [kept.size for kept in self._kept]
        smallest, largest = min(sizes), max(sizes)
        if smallest == largest:
            return usual, largest
        pairs = list(zip(self._kept, weights, strict=True))
        center = sum([weight * one.size for one, weight in pairs]) / whole
        apart = sum([weight * (one.size - center) ** 2 for one, weight in pairs])
        # the distances from the center add up to 0, so those of the seconds from their mean give the same sum
        along = sum([weight * (one.size - center) * one.seconds for one, weight in pairs])
        ridge = (spread / STEEP) ** 2
        return min(1.0, max(0.0, (ridge * usual + along) / (ridge + apart))), center

    def _shape(self, median: float, deviation: float, weight: float) -> list[tuple[float, float]]:
        """Return the prior's points around ``median``, as wide as ``deviation``."""
        stretch = deviation / self._prior_spread if self._prior_spread else 0.0
        whole = self._whole
        return [(median + stretch * apart, part * weight / whole) for apart, part in self._apart]


class Times(Protocol):
    """How long one thing takes: a call, a batch. All times are seconds."""

    def quantile(self, q: float, size: int) -> float:
        """Return the seconds that a share ``q`` of things of ``size`` requests stays within."""

    def expected(self, size: int) -> float:
        """Return the mean."""

    def chance(self, seconds: float, size: int) -> float:
        """Return the share that is done within ``seconds``: the inverse of :meth:`quantile`."""

    def uncertainty(self) -> float:
        """Return the standard error of the mean's logarithm."""


@frozen(eq=False)
class ForecastAt:
    """The forecasts of a :class:`Forecaster` as of one moment; for any thread.

    Attributes:
        observations: how many it rests on.
    """

    _fit: _Fit
    _correction: LevelCorrection
    observations: int

    def quantile(self, q: float, size: int) -> float:
        """Return the seconds within which a share ``q`` (above 0, below 1) of those of ``size`` requests
        ends.
        """
        if not 0 < q < 1:
            raise ValueError(f"q must be above 0 and below 1, not {q!r}")
        return math.exp(self._fit.curve.log(self._correction.corrected(q)) + self._fit.shift(size))

    def expected(self, size: int) -> float:
        """Return the mean seconds. Times beyond the 99 % quantile count as that one, so it is finite."""
        return self._fit.curve.mean() * math.exp(self._fit.shift(size))

    def chance(self, seconds: float, size: int) -> float:
        """Return the share of those of ``size`` that end within ``seconds``: the inverse of the quantile."""
        if seconds <= 0:
            return 0.0
        if seconds == math.inf:
            return 1.0
        return self._correction.original(self._fit.curve.level(math.log(seconds) - self._fit.shift(size)))

    def uncertainty(self) -> float:
        """Return the standard error of the mean's logarithm. The prior counts as one observation."""
        return self._fit.deviation / math.sqrt(1 + self._fit.learned)


def _median(ordered: Sequence[tuple[float, float]]) -> float:
    """Return the first value with at least half of the weight up to it."""
    values, weights = zip(*ordered, strict=True)
    place = bisect_left(list(accumulate(weights)), sum(weights) / 2)
    return float(values[min(place, len(values) - 1)])


def _spread(points: Sequence[tuple[float, float]], median: float) -> float:
    """Return the standard deviation a normal distribution with the same mean distance would have."""
    whole = sum([weight for _, weight in points])
    return sum([weight * abs(log - median) for log, weight in points]) / whole / _NORMAL
