"""Forecasts of how long calls and batches take, learned from finished ones.

- :class:`Distribution`: weighted points, some of them right-censored.
- :class:`Forecaster`: the forecast for one kind of call or batch, from a prior and the latest observations.
- :func:`remaining`: the remaining time of a running job's batches.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import accumulate
from statistics import NormalDist
from typing import Protocol

from attrs import Attribute, define, field, frozen

TOP_QUANTILE = 0.99  # times are capped at this quantile when a mean is computed
LOG_TOLERANCE = 1e-12  # logarithms closer than this are equal


class Distribution:
    """A distribution of log seconds, interpolated between one or more points with weights above 0."""

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        ordered = sorted(points)
        self._logs = [log for log, _ in ordered]
        weights = [weight for _, weight in ordered]
        ends = list(accumulate(weights))
        whole = ends[-1]
        self._levels = [(end - weight / 2) / whole for end, weight in zip(ends, weights, strict=True)]
        self._mean: float | None = None
        self._high = self._tail(1 - self._levels[-1], upper=True)
        self._low = self._tail(self._levels[0], upper=False)
        self.median = self.log(0.5)

    def log(self, q: float) -> float:
        levels, logs = self._levels, self._logs
        if q <= levels[0]:
            return logs[0] - self._low * math.log(levels[0] / q)
        if q >= levels[-1]:
            return logs[-1] + self._high * math.log((1 - levels[-1]) / (1 - q))
        return self._inner(q)

    def level(self, log: float) -> float:
        levels, logs = self._levels, self._logs
        log += LOG_TOLERANCE
        right = bisect_right(logs, log)
        if right == 0:
            return levels[0] * math.exp((log - logs[0]) / self._low) if self._low else 0.0
        if right == len(logs):
            left_over = math.exp((logs[-1] - log) / self._high) if self._high else 0.0
            return 1 - (1 - levels[-1]) * left_over
        left = right - 1
        part = (log - logs[left]) / (logs[right] - logs[left])
        return levels[left] + part * (levels[right] - levels[left])

    def mean(self) -> float:
        """Return the mean seconds, with times capped at the 99 % quantile so that the mean is finite.

        Each linear piece contributes the mean of an exponential.
        """
        if self._mean is None:
            top = self.log(TOP_QUANTILE)
            levels = [level for level in self._levels if level < TOP_QUANTILE]
            logs = self._logs[: len(levels)]
            total = (1 - TOP_QUANTILE) * math.exp(top) + levels[0] * math.exp(logs[0])
            pieces = zip(levels, logs, [*levels[1:], TOP_QUANTILE], [*logs[1:], top], strict=True)
            for level, log, next_level, next_log in pieces:
                total += (next_level - level) * _mean_between(log, next_log)
            self._mean = total
        return self._mean

    def _tail(self, beyond: float, *, upper: bool) -> float:
        """Return the slope beyond the last point: the change of log seconds per fall of the remaining share
        by a factor of e."""
        inside = min(0.5, 10 * beyond)
        if inside <= beyond:
            return 0.0
        log = self._inner(1 - inside if upper else inside)
        apart = self._logs[-1] - log if upper else log - self._logs[0]
        return apart / math.log(inside / beyond)

    def _inner(self, q: float) -> float:
        levels, logs = self._levels, self._logs
        right = bisect_left(levels, q)
        left = right - 1
        part = (q - levels[left]) / (levels[right] - levels[left])
        return logs[left] + part * (logs[right] - logs[left])


def _mean_between(low: float, high: float) -> float:
    apart = high - low
    return math.exp(low) * (math.expm1(apart) / apart if apart > 1e-9 else 1.0)


def redistributed(times: Iterable[tuple[float, bool, float]]) -> list[tuple[float, float]]:
    """Return times and weights, with the weight of each censored time spread over all longer times.

    A censored time, such as that of a cancelled batch, is only a lower bound. This is the Kaplan-Meier
    estimate ("Nonparametric estimation from incomplete observations", 1958). If the longest time is
    censored, it keeps its own weight.

    Args:
        times: time, whether it is censored, and weight (above 0) of each observation.
    """
    points = sorted(times)
    longer = list(accumulate([weight for *_, weight in reversed(points)], initial=0.0))[-2::-1]
    factor = 1.0
    found = []
    for (time, given_up, weight), left in zip(points, longer, strict=True):
        if not given_up or not left:
            found.append((time, factor * weight))
        else:
            factor *= (left + weight) / left
    return found


MAX_OBSERVATIONS = 100
PRIOR_WEIGHT = 2.0  # weight of the prior, in observations
# resistance of the prior to change, in observations: a single one moves it two thirds of the way
ANCHOR_WEIGHT = 0.5
RIDGE_WEIGHT = 10.0  # weight of the prior's growth against the sum of squared log sizes
VARIANCE_FACTOR = 2.0  # factor on the variance of a mean, which few observations underestimate
MIN_WATCHED_WEIGHT = 12  # sum of weights from which a change can be detected
CHANGE_SLACK, CHANGE_LIMIT = 0.65, 1.8
"""Parameters of :class:`ChangeDetector`: six extreme times in a row count as a change, and about one in
2,000 times raises a false alarm (``benchmarks/forecast.py``)."""
OUTDATED_WEIGHT_SHARE = 0.005  # share of its weight that an observation keeps after a sudden change
MIN_LOG_CHANGE = math.log(1.25)  # smallest change of the log median that is reported
MIN_STANDARD_ERRORS, MIN_STANDARD_ERRORS_AT_FIRST = 4.0, 2.0
"""Standard errors that a gradual change of the median must exceed to be reported: the first number if the
previous median was observed, the second if it is that of the prior."""
SHORTEST_SECONDS = 1e-6  # shorter times count as this
REFITS_PER_DOUBLING = 8  # refit once the new observations exceed an eighth of the fitted ones
STALE_HALF_LIVES = 0.02  # half-lives after which a forecast is refitted without new observations
TINY_WEIGHT = 1e-300  # keeps every weight above 0
_HALF = -math.log(2)
_PRIOR_POINTS = 50  # points of a lognormal prior
_GOLDEN_RATIO = 0.6180339887498949  # the fractional parts of its multiples are spread evenly over 0..1


class Times(Protocol):
    """Forecast of how long a call or batch takes, in seconds."""

    def quantile(self, q: float, size: int) -> float:
        """Return the seconds within which a share ``q`` of calls or batches of ``size`` requests finishes."""

    def expected(self, size: int) -> float: ...

    def chance(self, seconds: float, size: int) -> float:
        """Return the share that finishes within ``seconds``: the inverse of :meth:`quantile`."""

    def uncertainty(self) -> float: ...


def _positive(_: object, attribute: Attribute[float], value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{attribute.name} must be above 0 and finite, not {value!r}")


@frozen
class Prior:
    """The distribution of times before anything is observed."""

    times: tuple[tuple[float, float], ...]  # seconds and relative weight of each point, for size 1
    growth: float = 0.0  # seconds grow as ``size ** growth``, 0..1
    # seconds after which an observation counts half; providers' load changes within a day
    fade: float = field(default=43_200.0, validator=_positive)
    # Observations whose starts differ by at most this share of their duration belong to one moment and
    # together count as one. The batches of one list, for example, take about the same time.
    together: float = 0.0
    only_when_sure: bool = True  # report a gradual change only if chance does not explain it

    @classmethod
    def of(cls, median: float, p95: float, *, growth: float = 0.0, fade: float = 43_200.0) -> Prior:
        """Return a lognormal prior that reproduces two quantiles in seconds exactly."""
        normal = NormalDist()
        sigma = math.log(p95 / median) / normal.inv_cdf(0.95)
        levels = [(place + 0.5) / _PRIOR_POINTS for place in range(_PRIOR_POINTS)]  # includes 0.95
        times = tuple((median * math.exp(sigma * normal.inv_cdf(level)), 1.0) for level in levels)
        return cls(times, growth, fade)


@frozen
class Observation:
    """A call or batch that finished or was cancelled."""

    size: int  # requests
    seconds: float
    at: float  # Unix seconds at which it finished
    # Without cancelled batches, which are censored observations, the forecast would never learn that batches
    # are late.
    ended: bool = True  # False if it was cancelled after ``seconds``


@frozen
class ForecastChange:
    """A change of a forecast that is worth reporting."""

    before: float  # median seconds, for the mean log size
    after: float
    seen: int  # number of observations behind the new forecast
    why: str
    sudden: bool  # False for a gradual change


class ChangeDetector:
    """Detects that times have become longer or shorter.

    Each time is represented by its level in the previous forecast, the share of times expected to be
    shorter. Two sums, of levels and of their complements, are reduced by a slack that only a lasting change
    exceeds (Page, "Continuous inspection schemes", Biometrika 1954).
    """

    def __init__(self) -> None:
        self._sums, self._counts = [0.0, 0.0], [0, 0]

    def observe(self, level: float) -> int:
        """Add a time; return how many of the latest times belong to a new regime, or 0 if there is none.

        A change is reported again with each further time that supports it.
        """
        found = 0
        for side, share in enumerate((level, 1 - level)):
            total = min(CHANGE_LIMIT, max(0.0, self._sums[side] + share - CHANGE_SLACK))
            self._sums[side] = total
            self._counts[side] = self._counts[side] + 1 if total else 0
            if total == CHANGE_LIMIT:
                found = self._counts[side]
        return found


@define
class _KeptObservation:
    """One observation. All observations of one ``moment`` count as one."""

    seen: Observation
    size: float  # logarithm
    seconds: float  # logarithm
    moment: int
    weight: float


@frozen
class _Fit:
    """A fitted forecast: a distribution for the log size ``center``, and the growth of seconds with size."""

    curve: Distribution
    growth: float
    center: float = 0.0
    learned: float = 0.0  # sum of the weights of the observations
    at: float = 0.0

    def shift(self, size: int) -> float:
        return self.growth * (math.log(max(1, size)) - self.center)

    def median(self, center: float) -> float:
        return self.curve.median + self.growth * (center - self.center)


class Forecaster:
    """Learns how long one kind of call or batch takes. Not thread-safe.

    Forecasts depend only on the prior, the observations and their order. At first they are refitted after
    each observation, later only once the new ones exceed an eighth of the fitted ones, so that observing
    every call costs little.

    Args:
        prior: the forecast before anything is observed.
        remember: how many of the latest observations to keep.
    """

    def __init__(self, prior: Prior, *, remember: int = MAX_OBSERVATIONS) -> None:
        self._prior = prior
        whole = sum(part for _, part in prior.times)
        self._points = [(math.log(seconds), PRIOR_WEIGHT * part / whole) for seconds, part in prior.times]
        self._observations: deque[_KeptObservation] = deque(maxlen=remember)
        self._first = self._reported = self._fit = _Fit(Distribution(self._points), prior.growth)
        self._fresh = 0
        self._moments = 0
        self._detector = ChangeDetector()

    @property
    def observations(self) -> int:
        return len(self._observations)

    @property
    def seen(self) -> tuple[Observation, ...]:
        """Kept observations, oldest first; observing them again creates an equal forecaster."""
        return tuple(each.seen for each in self._observations)

    def at(self, now: float) -> ForecastAt:
        """``now`` is in Unix seconds."""
        return ForecastAt(self._fitted(now), len(self._observations))

    def observe(self, seen: Observation) -> ForecastChange | None:
        """Learn from an observation; return the change of the forecast if it is worth reporting.

        A sudden change is always reported, and earlier observations hardly count from then on. A gradual
        one is reported if the median has moved by more than a quarter since the last report and, if
        :attr:`Prior.only_when_sure` is set, by more than chance explains.

        Raises:
            ValueError: the seconds are negative or not a number.
        """
        if not (math.isfinite(seen.seconds) and seen.seconds >= 0):
            raise ValueError(f"seconds must be 0 or more and finite, not {seen.seconds!r}")
        fit = self._fitted(seen.at)
        shift = fit.shift(seen.size)
        log = math.log(max(SHORTEST_SECONDS, seen.seconds))
        level = fit.curve.level(log - shift)
        if not seen.ended:
            level = _imputed_level(level, seen.seconds)
        other = self._same_moment(seen)
        self._moments += other is None
        moment, weight = (self._moments, 1.0) if other is None else (other.moment, other.weight)
        self._observations.append(_KeptObservation(seen, math.log(max(1, seen.size)), log, moment, weight))
        self._fresh += 1
        changed = 0
        # only the first observation of a moment can show a change
        if other is None and fit.learned >= MIN_WATCHED_WEIGHT:
            changed = self._detector.observe(level)
        return self._begin_regime(changed, seen.at) if changed else self._report_drift(seen.at)

    def _same_moment(self, seen: Observation) -> _KeptObservation | None:
        together = self._prior.together * seen.seconds
        if not together:
            return None
        began = seen.at - seen.seconds
        near = (
            each for each in self._observations if abs(each.seen.at - each.seen.seconds - began) <= together
        )
        return next(near, None)

    def _begin_regime(self, count: int, now: float) -> ForecastChange | None:
        """Almost discard the observations before the latest ``count`` moments, if those moments differ
        enough."""
        before = self._fitted(now)
        older = [each for each in self._observations if each.moment <= self._moments - count]
        latest = [each for each in self._observations if each.moment > self._moments - count]
        center = sum(each.size for each in latest) / len(latest)
        moved = sum(each.seconds for each in latest) / len(latest) - before.median(center)
        if not older or abs(moved) < MIN_LOG_CHANGE:
            return None
        for each in older:
            each.weight *= OUTDATED_WEIGHT_SHARE
        self._detector = ChangeDetector()
        after = self._refit(now)
        return self._report(after, before, len(latest), "the earlier ones", sudden=True)

    def _report_drift(self, now: float) -> ForecastChange | None:
        if self._is_current(now):
            return None
        fit, first = self._refit(now), self._reported is self._first
        before = self._reported.median(fit.center)
        error = 0.5 / math.sqrt(max(1.0, fit.learned))  # standard error of a share near one half
        sure = (
            abs(fit.curve.level(before) - 0.5)
            > (MIN_STANDARD_ERRORS_AT_FIRST if first else MIN_STANDARD_ERRORS) * error
        )
        if (self._prior.only_when_sure and not sure) or abs(fit.curve.median - before) < MIN_LOG_CHANGE:
            return None
        than = "assumed before any was observed" if first else "the earlier ones, after a gradual change"
        return self._report(fit, self._reported, len(self._observations), than)

    def _report(
        self, after: _Fit, before: _Fit, seen: int, than: str, *, sudden: bool = False
    ) -> ForecastChange:
        self._reported = after
        was, median = before.median(after.center), after.curve.median
        factor = math.exp(median - was)
        shown = f"{factor:.2g}" if factor < 100 else f"{factor:,.0f}"
        latest = "the latest" if seen == 1 else f"the latest {seen}"
        why = f"{latest} took about {shown} times as long as {than}"
        return ForecastChange(math.exp(was), math.exp(median), seen, why, sudden)

    def _fitted(self, now: float) -> _Fit:
        return self._fit if self._is_current(now) else self._refit(now)

    def _is_current(self, now: float) -> bool:
        if self._fresh > self._fit.learned / REFITS_PER_DOUBLING:
            return False
        return abs(now - self._fit.at) <= STALE_HALF_LIVES * self._prior.fade or not self._observations

    def _refit(self, now: float) -> _Fit:
        weights = self._weights(now)
        learned = sum(weights)
        growth, center = self._growth(weights, learned)
        times = [
            (one.seconds - growth * (one.size - center), not one.seen.ended, weight)
            for one, weight in zip(self._observations, weights, strict=True)
        ]
        was = self._first.median(center)
        moved = was - self._first.curve.median + learned / (learned + ANCHOR_WEIGHT) * (_median(times) - was)
        times += [(log + moved, False, weight) for log, weight in self._points]
        self._fresh = 0
        self._fit = _Fit(Distribution(redistributed(times)), growth, center, learned, now)
        return self._fit

    def _weights(self, now: float) -> list[float]:
        by_age, exp = _HALF / self._prior.fade, math.exp
        weights = [
            each.weight * exp(by_age * max(0.0, now - each.seen.at)) + TINY_WEIGHT
            for each in self._observations
        ]
        if not self._prior.together:
            return weights
        together = Counter(each.moment for each in self._observations)
        return [
            weight / together[each.moment] for each, weight in zip(self._observations, weights, strict=True)
        ]

    def _growth(self, weights: Sequence[float], whole: float) -> tuple[float, float]:
        usual, sizes = self._prior.growth, [each.size for each in self._observations]
        if min(sizes) == max(sizes):
            return usual, sizes[0]
        pairs = list(zip(self._observations, weights, strict=True))
        center = sum([weight * one.size for one, weight in pairs]) / whole
        apart = sum([weight * (one.size - center) ** 2 for one, weight in pairs])
        # the distances from the center add up to 0, so the distances of the seconds from their mean give the
        # same sum
        along = sum([weight * (one.size - center) * one.seconds for one, weight in pairs])
        return min(1.0, max(0.0, (RIDGE_WEIGHT * usual + along) / (RIDGE_WEIGHT + apart))), center


@frozen(eq=False)
class ForecastAt:
    """The forecasts of a :class:`Forecaster` at one moment. Thread-safe."""

    _fit: _Fit
    observations: int

    def quantile(self, q: float, size: int) -> float:
        if not 0 < q < 1:
            raise ValueError(f"q must be above 0 and below 1, not {q!r}")
        return math.exp(self._fit.curve.log(q) + self._fit.shift(size))

    def expected(self, size: int) -> float:
        return self._fit.curve.mean() * math.exp(self._fit.shift(size))

    def chance(self, seconds: float, size: int) -> float:
        if seconds <= 0:
            return 0.0
        if seconds == math.inf:
            return 1.0
        return self._fit.curve.level(math.log(seconds) - self._fit.shift(size))

    def uncertainty(self) -> float:
        """Return the standard error of the logarithm of the mean. The prior counts as one observation."""
        deviation = (self._fit.curve.log(0.84) - self._fit.curve.log(0.16)) / 2
        return deviation / math.sqrt(1 + self._fit.learned / VARIANCE_FACTOR)


def _median(times: Iterable[tuple[float, bool, float]]) -> float:
    values, weights = zip(*redistributed(times), strict=True)
    place = bisect_left(list(accumulate(weights)), sum(weights) / 2)
    return float(values[min(place, len(values) - 1)])


def _imputed_level(level: float, seconds: float) -> float:
    """Return a level for a censored time, drawn evenly from all levels above ``level``.

    The middle of that range would leave out the longest times. The level is derived from ``seconds``, so
    equal observations always give equal forecasts.
    """
    return level + (1 - level) * ((0.5 + seconds * _GOLDEN_RATIO) % 1.0)


# OpenAI and Anthropic batches expire after this time; Gemini batches are due by then and expire after 48 h
EXPIRY_SECONDS = 86_400.0
DOCUMENTED_TIMES = (
    (300.0, 0.1),
    (900.0, 0.125),
    (1800.0, 0.125),
    (7200.0, 0.075),
    (21_600.0, 0.05),
    (64_800.0, 0.025),
)
"""Seconds and weights that reflect the providers' documentation: most Anthropic batches finish within an
hour, OpenAI and Gemini batches often long before 24 h. Together they count as half an observation."""
_MIN_LEFT_SECONDS = 1.0  # minimum while there is work left, such as collecting the results
_MAX_LEVEL = 1 - 1e-9


@frozen
class RunningBatch:
    size: int  # requests
    elapsed: float  # seconds since it was created
    done: int | None = None  # requests done, if the provider reports it


def remaining(running: Sequence[RunningBatch], times: Times, *, unsent: Sequence[int] = ()) -> float | None:
    """Return the median seconds until the last batch of a job has finished.

    Args:
        running: the job's unfinished batches; they run in parallel.
        times: how long batches of the same model take.
        unsent: sizes of batches still to be sent. As many of them are assumed to run in parallel as
            batches are running now, or all of them if none is.

    Returns:
        0.0 only if nothing is left; ``None`` if a batch has run for :data:`EXPIRY_SECONDS`.
    """
    if not running and not unsent:
        return 0.0
    if any(batch.elapsed >= EXPIRY_SECONDS for batch in running):
        return None
    longest = max((_left(batch, times) for batch in running), default=0.0)
    if unsent:
        rounds = math.ceil(len(unsent) / len(running)) if running else 1
        longest += rounds * max(_median_left(0.0, size, times) for size in {*unsent})
    return max(_MIN_LEFT_SECONDS, longest)


def _left(batch: RunningBatch, times: Times) -> float:
    """Return the seconds left for one batch, by its age or, if that is less, by its own progress.

    Slow progress proves nothing, because batches first wait in a queue and then run fast.
    """
    elapsed = max(0.0, batch.elapsed)
    left = _median_left(elapsed, batch.size, times)
    if batch.done is not None and batch.done > 0:
        left = min(left, elapsed * max(0, batch.size - batch.done) / batch.done)
    return left


def _median_left(elapsed: float, size: int, times: Times) -> float:
    half = (1 + times.chance(elapsed, size)) / 2
    return min(times.quantile(min(_MAX_LEVEL, half), size), 2 * EXPIRY_SECONDS) - elapsed
