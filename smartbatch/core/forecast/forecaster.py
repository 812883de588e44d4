"""How long one kind of thing will take next time: a call of a route, a batch, a cancel. Learned as it comes.

A forecast is a mixture of three distributions of log seconds
(:mod:`smartbatch.core.forecast.distribution`):

- *the prior*, what is believed before anything was seen. Alone, it is the forecast. It weighs half an
  observation, so it is as good as gone after a dozen.
- *what was seen*, each time by its weight: half after ``Prior.fade`` seconds, and half after
  :data:`FADES_AFTER` others. After a change of regime, all times before it weigh as much as the prior.
- *a shape*: the prior's, moved to the median and stretched to the spread of what was seen, as heavy as two
  observations (one, where only one was seen). It stands for what few observations cannot show, such as times
  longer than the longest of five.

Larger things take longer: ``seconds ~ size ** growth``, where the growth is learned from log sizes by least
squares, held to the prior's by a ridge, and stays within 0..1.

On top of it levels are corrected, and changes are watched for
(:mod:`smartbatch.core.forecast.change_detection`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from itertools import accumulate

from attrs import define, frozen

from smartbatch.core.forecast.censoring import handed_on, likely
from smartbatch.core.forecast.change_detection import Levels, Moment, Watch
from smartbatch.core.forecast.distribution import Curve
from smartbatch.core.forecast.priors import Prior

__all__ = ["ForecastAt", "ForecastChange", "Forecaster", "Observation", "Prior"]

FADES_AFTER = 128
"""Further observations after which one counts half."""
SHAPE = 2.0
"""Observations that the shape weighs as much as: one above the median is the place of the next time, as in
conformal prediction, and one below it."""
SPREAD = 4.0
"""Observations that the prior's spread weighs as much as, when the spread is learned."""
STEEP = 0.3
"""Standard deviation of growths around the prior's: sizes explain most of the time, or nearly nothing."""
SETTLED = 40
"""Observations (at their weights) after which levels are corrected; fewer are too few to tell."""
WATCHED = 12
"""Observations from which a change can be noticed; before, everything is new."""
QUARTER = math.log(1.25)
"""A change of the median that is worth a word."""
SURE, SURE_OF_FIRST = 4.0, 2.0
"""Standard errors that a change of the median must be apart to be no accident, if it was not sudden: two of
the median that was told before and of the new one, and the same again where only the latter has any."""
LAST = 1 - 1e-9
"""The highest quantile that is looked up for what was given up; beyond, there is nothing to be learned."""
SHORTEST = 1e-6
"""Seconds; what is shorter counts as this."""
_NORMAL = 0.7979
"""Mean absolute deviation of a normal distribution with standard deviation 1."""
STEPS = 8
"""Forecasts follow when an eighth as many new observations have come as they were learned from."""
STALE = 0.02
"""Half-lives after which weights are computed again without anything new."""
TINY = 1e-300
"""Keeps a weight above 0, however old."""
_HALF = -math.log(2)


@frozen
class Observation:
    """Something that ended, or was given up.

    Args:
        size: its requests.
        seconds: what it took.
        at: Unix seconds of its end.
        ended: False where it was given up after these seconds, so that it would have taken longer: it counts
            for all that do. Without such, a forecast of batches that are cancelled when they are late would
            never learn that they are.
    """

    size: int
    seconds: float
    at: float
    ended: bool = True


@frozen
class ForecastChange:
    """A forecast moved.

    Attributes:
        before, after: medians in seconds, of the size seen most.
        seen: the observations the new one rests on.
        why: in words.
        sudden: True for a change of regime, False for one that came by and by.
    """

    before: float
    after: float
    seen: int
    why: str
    sudden: bool = False


@define
class _Kept:
    """One observation; ``size`` and ``seconds`` are logarithms. All of one ``moment`` count as one.

    Of what was given up, ``seconds`` are those it could have taken, and ``least`` those it took.
    """

    seen: Observation
    size: float
    seconds: float
    least: float
    at: float
    moment: int
    said: Moment
    weight: float = 1.0


@frozen
class _Fit:
    """What a forecast says for some time: a curve for things of log size ``center``, and how it grows."""

    curve: Curve
    growth: float
    center: float
    learned: float
    """Observations at their weights."""
    deviation: float
    at: float

    def shift(self, size: int) -> float:
        """Return what a size adds to log seconds."""
        return self.growth * (math.log(max(1, size)) - self.center)

    def log(self, kept: _Kept) -> float:
        """Return what log seconds would have been at the center."""
        return kept.seconds - self.growth * (kept.size - self.center)


class Forecaster:
    """Learns how long one kind of thing takes. Not thread-safe.

    Its forecasts follow from nothing but the prior and what was observed, in that order. They move in steps:
    with each observation at first, with each eighth part more later, so that seeing every call costs little.

    Args:
        prior: what is believed before.
        remember: observations that are kept; older ones are dropped.
    """

    def __init__(self, prior: Prior, *, remember: int = 512) -> None:
        self._prior = prior
        self._base = Curve(prior.points(1.0))
        self._prior_spread = _spread(prior.points(1.0), self._base.median)
        self._kept: deque[_Kept] = deque(maxlen=remember)
        self._fit: _Fit | None = None
        self._fresh = 0
        self._moments = 0
        self._levels = Levels()
        self._watch = Watch()
        self._told: tuple[float, float, float] = (self._base.median, prior.growth, 0.0)
        self._usual = self._prior_spread, prior.growth

    @property
    def observations(self) -> int:
        """How many are kept."""
        return len(self._kept)

    @property
    def seen(self) -> tuple[Observation, ...]:
        """What is kept, oldest first: observed again, in that order, it makes the same forecaster."""
        return tuple(kept.seen for kept in self._kept)

    def at(self, now: float) -> ForecastAt:
        """Return the forecasts as of ``now``, Unix seconds."""
        return ForecastAt(self, now)

    # -- learning --------------------------------------------------------------------------------------------

    def observe(self, seen: Observation) -> ForecastChange | None:
        """Learn from something that ended; return how forecasts moved, where that is worth a word.

        It is when times change at once, such as to double or half; and when the median has moved by more than
        a quarter, and more than chance can explain, since it was last told.

        Raises:
            ValueError: the seconds are negative or no number.
        """
        if not (math.isfinite(seen.seconds) and seen.seconds >= 0):
            raise ValueError(f"seconds must be 0 or more and finite, not {seen.seconds!r}")
        fit = self._fitted(seen.at)
        shift = fit.shift(seen.size)
        log = least = math.log(max(SHORTEST, seen.seconds))
        if not seen.ended:
            level = likely(fit.curve.level(least - shift), seen.seconds)
            log = max(least, fit.curve.log(min(LAST, max(1 - LAST, level))) + shift)
        twin = self._twin(seen)
        self._moments += twin is None
        moment, weight = (self._moments, 1.0) if twin is None else (twin.moment, twin.weight)
        said = Moment() if twin is None else twin.said
        changed = self._judge(fit, fit.curve.middle(log - shift), said, first=twin is None)
        self._kept.append(_Kept(seen, math.log(max(1, seen.size)), log, least, seen.at, moment, said, weight))
        self._fresh += 1
        if changed:
            return self._broke(changed, seen.at)
        return self._drifted(seen.at)

    def _twin(self, seen: Observation) -> _Kept | None:
        """Return one that began at about the same moment; ``None`` where there is none."""
        together = self._prior.together * seen.seconds
        if not together:
            return None
        began = seen.at - seen.seconds
        near = (kept for kept in self._kept if abs(kept.seen.at - kept.seen.seconds - began) <= together)
        return next(near, None)

    def _judge(self, fit: _Fit, level: float, said: Moment, *, first: bool) -> int:
        """Take in where a time lies in the forecast made before; return the times that make a new regime.

        The first of a moment tells whether times have changed: soon, if a little too early on average.
        """
        if fit.learned < WATCHED:
            return 0
        if fit.learned >= SETTLED:
            self._levels.saw(level, said)
        return self._watch.saw(level, fit.deviation, fit.learned) if first else 0

    def _broke(self, count: int, now: float) -> ForecastChange | None:
        """The latest ``count`` are of a new regime, if they differ enough: forget those before."""
        fit = self._fitted(now)
        weighed = list(zip(self._kept, self._weights(now), strict=True))
        older = [(kept, weight) for kept, weight in weighed if kept.moment <= self._moments - count]
        latest = [kept for kept, _ in weighed if kept.moment > self._moments - count]
        if not older:  # they have changed a little all the time
            self._watch.calm()
            return None
        whole = sum(weight for _, weight in older)
        usual = sum(weight * fit.log(kept) for kept, weight in older) / whole
        if abs(sum(map(fit.log, latest)) / len(latest) - usual) < QUARTER:
            return None
        share = min(1.0, self._prior.weight / whole)
        for kept, _ in older:
            kept.weight *= share
        self._watch.calm()
        self._levels = Levels()
        self._usual = fit.deviation, fit.growth
        after = self._refit(now)
        before = fit.curve.median + fit.growth * (after.center - fit.center)
        count = len(latest)
        factor = _times(math.exp(after.curve.median - before))
        return self._tell(after, before, count, f"the latest {count} took about {factor} those before", True)

    def _drifted(self, now: float) -> ForecastChange | None:
        """Tell of a median that moved by and by."""
        if self._fit is not None and self._current(self._fit, now):
            return None
        fit = self._refit(now)
        median, growth, center = self._told
        before = median + growth * (fit.center - center)
        first = self._told == (self._base.median, self._prior.growth, 0.0)
        error = 0.5 / math.sqrt(max(1.0, fit.learned))  # of a share about one half, whatever the distribution
        sure = abs(fit.curve.level(before) - 0.5) > (SURE_OF_FIRST if first else SURE) * error
        if not sure or abs(fit.curve.median - before) < QUARTER:
            return None
        count = len(self._kept)
        factor = _times(math.exp(fit.curve.median - before))
        than = "what was assumed before anything was seen" if first else "those before, by and by"
        return self._tell(fit, before, count, f"the latest {count} took about {factor} {than}", False)

    def _tell(self, fit: _Fit, before: float, seen: int, why: str, sudden: bool) -> ForecastChange:
        self._told = (fit.curve.median, fit.growth, fit.center)
        return ForecastChange(math.exp(before), math.exp(fit.curve.median), seen, why, sudden)

    # -- asking ----------------------------------------------------------------------------------------------

    def quantile(self, q: float, size: int, now: float) -> float:
        """Return the seconds that a share ``q`` of things of ``size`` stays within.

        Args:
            q: above 0 and below 1.
            size: requests.
            now: Unix seconds.
        """
        if not 0 < q < 1:
            raise ValueError(f"q must be above 0 and below 1, not {q!r}")
        fit = self._fitted(now)
        return math.exp(fit.curve.log(self._levels.corrected(q)) + fit.shift(size))

    def expected(self, size: int, now: float) -> float:
        """Return the mean, seconds. Times beyond the 99 % quantile count as that one, so it is finite."""
        fit = self._fitted(now)
        return fit.curve.mean() * math.exp(fit.shift(size))

    def chance(self, seconds: float, size: int, now: float) -> float:
        """Return the share of things of ``size`` that end within ``seconds``: the inverse of
        :meth:`quantile`."""
        if seconds <= 0:
            return 0.0
        if seconds == math.inf:
            return 1.0
        fit = self._fitted(now)
        return self._levels.original(fit.curve.level(math.log(seconds) - fit.shift(size)))

    def doubt(self, now: float) -> float:
        """Return how little is known of the mean: the standard deviation of its logarithm.

        Before anything was seen, all things together may be as slow as one of them; each observation counts
        as one of independent draws then.
        """
        fit = self._fitted(now)
        return fit.deviation / math.sqrt(1 + fit.learned)

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
        points = prior.points(prior.weight)
        if self._kept:
            weights = self._weights(now)
            learned = sum(weights)
            growth, center = self._growth(weights, learned)
            ended, given_up = self._found(weights, growth, center)
            moved = prior.growth * center
            points = [(log + moved, weight) for log, weight in points]
            found = sorted(handed_on(points + ended, given_up) if given_up else ended)
            median = _median(found, sum(weight for _, weight in found))
            deviation = (SPREAD * deviation + learned * _spread(found, median)) / (SPREAD + learned)
            points += self._shape(median, deviation, SHAPE * learned / (1 + learned))
            points = handed_on(points + ended, given_up)
        self._fresh = 0
        self._fit = _Fit(Curve(points), growth, center, learned, deviation, now)
        return self._fit

    def _found(
        self, weights: Sequence[float], growth: float, center: float
    ) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
        """Return log seconds at the center and weight of all that ended, and of all that was given up."""
        ended: list[tuple[float, float]] = []
        given_up: list[tuple[float, float]] = []
        for kept, weight in zip(self._kept, weights, strict=True):
            log = kept.least - growth * (kept.size - center)
            (ended if kept.seen.ended else given_up).append((log, weight))
        return ended, given_up

    def _weights(self, now: float) -> list[float]:
        """Return the weight of each that is kept."""
        by_age, by_count, newest = _HALF / self._prior.fade, _HALF / FADES_AFTER, self._moments
        weights = [
            kept.weight * math.exp(by_age * max(0.0, now - kept.at) + by_count * (newest - kept.moment))
            + TINY
            for kept in self._kept
        ]
        if not self._prior.together:
            return weights
        twins = Counter(kept.moment for kept in self._kept)
        return [weight / twins[kept.moment] for kept, weight in zip(self._kept, weights, strict=True)]

    def _growth(self, weights: Sequence[float], whole: float) -> tuple[float, float]:
        """Return how log seconds grow with log sizes, and the mean log size."""
        spread, usual = self._usual
        sizes = [kept.size for kept in self._kept]
        if min(sizes) == max(sizes):
            return usual, sizes[0]
        pairs = list(zip(self._kept, weights, strict=True))
        center = sum([weight * one.size for one, weight in pairs]) / whole
        mean = sum([weight * one.seconds for one, weight in pairs]) / whole
        apart = sum([weight * (one.size - center) ** 2 for one, weight in pairs])
        along = sum([weight * (one.size - center) * (one.seconds - mean) for one, weight in pairs])
        ridge = (spread / STEEP) ** 2
        return min(1.0, max(0.0, (ridge * usual + along) / (ridge + apart))), center

    def _shape(self, median: float, deviation: float, weight: float) -> list[tuple[float, float]]:
        """Return the prior's points around ``median``, as wide as ``deviation``."""
        stretch = deviation / self._prior_spread if self._prior_spread else 0.0
        return [
            (median + stretch * (log - self._base.median), part) for log, part in self._prior.points(weight)
        ]


@frozen
class ForecastAt:
    """The forecasts of a :class:`Forecaster` as of one moment."""

    forecaster: Forecaster
    now: float

    def quantile(self, q: float, size: int) -> float:
        """As :meth:`Forecaster.quantile`."""
        return self.forecaster.quantile(q, size, self.now)

    def expected(self, size: int) -> float:
        """As :meth:`Forecaster.expected`."""
        return self.forecaster.expected(size, self.now)

    def chance(self, seconds: float, size: int) -> float:
        """As :meth:`Forecaster.chance`."""
        return self.forecaster.chance(seconds, size, self.now)

    def doubt(self) -> float:
        """As :meth:`Forecaster.doubt`."""
        return self.forecaster.doubt(self.now)


def _median(ordered: Sequence[tuple[float, float]], whole: float) -> float:
    """Return the first value with at least half of the weight up to it."""
    values, weights = zip(*ordered, strict=True)
    place = bisect_left(list(accumulate(weights)), whole / 2)
    return float(values[min(place, len(values) - 1)])


def _spread(points: Sequence[tuple[float, float]], median: float) -> float:
    """Return the standard deviation a normal distribution with the same mean distance would have."""
    whole = sum([weight for _, weight in points])
    return sum([weight * abs(log - median) for log, weight in points]) / whole / _NORMAL


def _times(factor: float) -> str:
    """Say a factor in words, such as ``2.1 times as long as``."""
    return f"{factor:.2g} times as long as"
