"""Forecasts: cold, with few, with many observations; that quantiles hold and changes are noticed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import mean

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.forecast import (
    DOCUMENTED_TIMES,
    EXPIRY_SECONDS,
    Distribution,
    ForecastAt,
    ForecastChange,
    Forecaster,
    Observation,
    Prior,
    RunningBatch,
    redistributed,
)
from smartbatch.core.forecast import remaining as remaining_by
from smartbatch.routing.history import BATCH_PRIOR
from tests.levels import sampled

NOW, DAY = 1.8e9, 86_400.0
PRIOR = Prior.of(2.0, 10.0)


def after(*seconds: float) -> Forecaster:
    """A forecaster that saw these a second apart, the last one now."""
    forecaster = Forecaster(PRIOR)
    for place, each in enumerate(seconds, start=1):
        forecaster.observe(Observation(1, each, NOW - len(seconds) + place))
    return forecaster


def test_before_any_observation_the_prior_applies():
    cold = Forecaster(PRIOR)
    assert cold.observations == 0
    assert [cold.at(NOW).quantile(q, 1) for q in (0.05, 0.5, 0.95)] == pytest.approx([0.4, 2.0, 10.0])
    assert cold.at(NOW).chance(10.0, 1) == pytest.approx(0.95)


def test_batches_begin_with_what_providers_promise():
    cold = Forecaster(Prior(DOCUMENTED_TIMES, fade=DAY))
    assert 900 < cold.at(NOW).quantile(0.5, 1000) < 3600
    assert 6 * 3600 < cold.at(NOW).quantile(0.95, 1000) < DAY
    assert math.isfinite(cold.at(NOW).expected(1000))


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="q must be"):
        Forecaster(PRIOR).at(NOW).quantile(1.0, 1)
    with pytest.raises(ValueError, match="seconds must be"):
        Forecaster(PRIOR).observe(Observation(1, math.nan, NOW))
    with pytest.raises(ValueError, match="fade must be"):
        Prior.of(2.0, 10.0, fade=0.0)


def test_old_ones_fade_until_only_the_prior_is_left():
    seen = after(100.0, 100.0, 100.0)
    medians = [seen.at(NOW + days * DAY).quantile(0.5, 1) for days in (0, 1, 2, 4, 8, 20)]
    assert medians == sorted(medians, reverse=True)
    assert medians[0] == pytest.approx(100.0, rel=0.05)
    assert medians[-1] == pytest.approx(2.0, rel=0.01)


def test_no_time_at_all_is_a_time():
    seen = after(*[0.0] * 50)
    assert 0 < seen.at(NOW).quantile(0.5, 1) < 0.001
    assert (seen.at(NOW).chance(0.0, 1), seen.at(NOW).chance(math.inf, 1)) == (0.0, 1.0)


def test_growth_with_size_is_learned():
    rng, forecaster = random.Random(5), Forecaster(PRIOR)
    for n in range(150):
        size = rng.choice((1, 10, 100))
        forecaster.observe(Observation(size, 2 * size**0.8 * math.exp(rng.gauss(0, 0.3)), NOW + n))
    for size, error in ((1, 0.15), (100, 0.15), (1000, 0.3)):
        assert forecaster.at(NOW + 150).quantile(0.5, size) == pytest.approx(2 * size**0.8, rel=error)


# -- many observations ---------------------------------------------------------------------------------------

World = Callable[[random.Random, int], float]
"""Draws the seconds of the n-th call of size 1."""


def lognormal(sigma: float, drift: float = 0.0) -> World:
    """Times around 3 seconds; the median grows by a factor of ``exp(drift)`` per thousand."""
    return lambda rng, n: 3 * math.exp(rng.gauss(0, sigma) + drift * n / 1000)


def pareto(alpha: float) -> World:
    """Heavy tails; with an ``alpha`` of 1.2 there is a mean, but no variance."""
    return lambda rng, _: rng.paretovariate(alpha)


def bimodal(share: float) -> World:
    """Most times are around a second, some ten times as long."""
    return lambda rng, _: (10.0 if rng.random() < share else 1.0) * math.exp(rng.gauss(0, 0.2))


WORLDS: dict[str, World] = {
    "lognormal 0.3": lognormal(0.3),
    "lognormal 0.5": lognormal(0.5),
    "lognormal 1.0": lognormal(1.0),
    "lognormal 1.5": lognormal(1.5),
    "Pareto 1.2": pareto(1.2),
    "Pareto 3": pareto(3.0),
    "one in 5 takes 10 x": bimodal(0.2),
    "one in 20 takes 10 x": bimodal(0.05),
    "0.5, doubles in 1,000": lognormal(0.5, math.log(2.0)),
    "0.5, halves in 1,000": lognormal(0.5, -math.log(2.0)),
}


class Run:
    """A forecaster that has seen 200 calls; if ``sized``, seconds grow with the square root of the size."""

    def __init__(self, world: World, seed: int, *, sized: bool = False) -> None:
        self._world, self._rng, self._sized, self._n = world, random.Random(seed), sized, 0
        self.forecaster = Forecaster(PRIOR)
        for _ in range(200):
            self.forecaster.observe(self.draw())

    def draw(self, factor: float = 1.0) -> Observation:
        size = int(math.exp(self._rng.uniform(0, math.log(1000)))) if self._sized else 1
        seconds = factor * self._world(self._rng, self._n) * math.sqrt(size)
        self._n += 1
        return Observation(size, seconds, NOW + self._n)

    def sudden(self, factor: float = 1.0) -> ForecastChange | None:
        """Observe a call that takes ``factor`` times as long; return the sudden change it shows."""
        change = self.forecaster.observe(self.draw(factor))
        return change if change is not None and change.sudden else None


@pytest.mark.full
@pytest.mark.parametrize("name", sampled(WORLDS, keep=3))
def test_the_95_percent_quantile_covers_93_to_97_percent_after_200(name):
    drifts = " in 1,000" in name
    within: dict[float, list[bool]] = {0.5: [], 0.9: [], 0.95: []}
    for seed in range(2):
        run = Run(WORLDS[name], seed, sized=not drifts)
        for _ in range(600):
            seen = run.draw()
            for q, held in within.items():
                held.append(seen.seconds <= run.forecaster.at(seen.at).quantile(q, seen.size))
            run.forecaster.observe(seen)
    assert 0.93 <= mean(within[0.95]) <= 0.97
    assert 0.86 <= mean(within[0.9]) <= 0.94
    drift = 0.03 if drifts else 0.0  # the latest ones lag behind
    assert 0.45 - drift <= mean(within[0.5]) <= 0.55 + drift


@pytest.mark.full
def test_a_world_that_does_not_change_hardly_ever_seems_to():
    names = ("lognormal 0.3", "lognormal 1.0", "Pareto 1.2", "one in 20 takes 10 x")
    runs = [Run(WORLDS[name], seed) for name in names for seed in range(2)]
    assert sum(run.sudden() is not None for run in runs for _ in range(750)) <= 12


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "factor"),
    sampled(
        [
            ("lognormal 0.3", 2.0),
            ("lognormal 0.5", 0.5),
            ("lognormal 1.0", 4.0),
            ("Pareto 3", 2.0),
            ("Pareto 1.2", 0.25),
            ("one in 5 takes 10 x", 2.0),
            ("one in 20 takes 10 x", 0.5),
        ],
        keep=2,
    ),
)
def test_a_change_is_noticed_within_20(name, factor):
    """In 9 of 10 runs; where times differ much among themselves, it takes a larger change."""
    noticed = 0
    for seed in range(20):
        run = Run(WORLDS[name], seed)
        changes = [change for _ in range(20) if (change := run.sudden(factor)) is not None]
        noticed += any((change.after > change.before) == (factor > 1) for change in changes)
    assert noticed >= 18


# -- changes -------------------------------------------------------------------------------------------------


def test_a_change_says_what_moved_and_why():
    """A call that took 3 seconds takes 9."""
    run = Run(WORLDS["lognormal 0.3"], 4)
    change = next(change for _ in range(20) if (change := run.sudden(3.0)) is not None)
    assert change.before == pytest.approx(3.0, rel=0.2)
    assert change.after == pytest.approx(9.0, rel=0.3)
    assert 3 <= change.seen <= 20
    assert "times as long as the earlier ones" in change.why


def test_the_first_observations_are_reported_against_what_was_assumed():
    forecaster = Forecaster(PRIOR)
    changes = [forecaster.observe(Observation(1, 30.0 + n, NOW + n)) for n in range(12)]
    (change,) = [one for one in changes if one is not None]
    assert change.before == pytest.approx(2.0)
    assert "assumed before any was observed" in change.why


def usual(count: int) -> Forecaster:
    """A forecaster that saw batches of some ten minutes, one an hour."""
    forecaster, rng = Forecaster(Prior(DOCUMENTED_TIMES, fade=DAY, together=0.03)), random.Random(5)
    for n in range(count):
        forecaster.observe(Observation(100, 600 * math.exp(rng.gauss(0, 0.4)), NOW + 3600 * n))
    return forecaster


def test_twelve_of_one_moment_weigh_as_much_as_one():
    one, twelve, apart, now = usual(20), usual(20), usual(20), NOW + 20 * 3600 + 3000
    one.observe(Observation(100, 3000.0, now))
    for n in range(12):
        twelve.observe(Observation(100, 3000.0, now + n))
        apart.observe(Observation(100, 3000.0, now + 3600 * n))
    median = one.at(now).quantile(0.5, 100)
    assert twelve.at(now).quantile(0.5, 100) == pytest.approx(median, rel=0.1)
    assert apart.at(now + 12 * 3600).quantile(0.5, 100) > 2 * median


def test_one_slow_list_is_no_change_however_many_batches_it_has():
    forecaster, now = usual(60), NOW + 60 * 3600 + 3000
    changes = [forecaster.observe(Observation(100, 3000.0 + n, now + n)) for n in range(40)]
    assert not any(change is not None and change.sudden for change in changes)
    later = [forecaster.observe(Observation(100, 3000.0, now + 3600 * n)) for n in range(1, 21)]
    assert any(change is not None and change.sudden for change in later)


def test_batches_that_were_cancelled_make_forecasts_longer():
    forecaster, rng = Forecaster(Prior(DOCUMENTED_TIMES, fade=DAY)), random.Random(7)
    for n in range(30):
        forecaster.observe(Observation(100, 600 * math.exp(rng.gauss(0, 0.5)), NOW + 600 * n))
    assert forecaster.at(NOW + 18_000).chance(1800.0, 100) > 0.9
    late = [Observation(100, 1800.0, NOW + 18_000 + 600 * n, ended=False) for n in range(15)]
    changes = [forecaster.observe(each) for each in late]
    assert forecaster.at(NOW + 27_000).chance(1800.0, 100) < 0.3
    assert any(change is not None and change.sudden for change in changes)


# -- distributions -------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.floats(-12, 12), st.floats(0.001, 100)), min_size=1, max_size=40),
    st.floats(0.001, 0.999),
    st.floats(0.001, 0.999),
)
def test_levels_and_logs_are_each_others_inverse(points, one, other):
    curve = Distribution(points)
    low, high = sorted((one, other))
    assert curve.log(low) <= curve.log(high) + 1e-9
    level = curve.level(curve.log(low))
    assert level >= low - 1e-6
    assert curve.log(min(0.9999, max(0.0001, level))) == pytest.approx(curve.log(low), abs=1e-4)


def test_the_mean_is_finite_however_heavy_the_tail():
    rng = random.Random(1)
    curve = Distribution([(math.log(rng.paretovariate(0.5)), 1.0) for _ in range(500)])
    assert curve.mean() < math.exp(curve.log(0.99))


Weighed = list[tuple[float, float]]
TIMES = st.lists(st.tuples(st.floats(0, 100), st.floats(0.001, 10)), max_size=30)


def kaplan_meier(ended: Weighed, given_up: Weighed) -> Weighed:
    times = [(time, False, weight) for time, weight in ended]
    return redistributed(times + [(time, True, weight) for time, weight in given_up])


@pytest.mark.parametrize(
    ("ended", "given_up", "found"),
    [
        ([(1.0, 1.0), (3.0, 1.0), (4.0, 1.0)], [(2.0, 1.0)], [(1.0, 1.0), (3.0, 1.5), (4.0, 1.5)]),
        ([(2.0, 1.0), (3.0, 1.0)], [(2.0, 2.0)], [(2.0, 1.0), (3.0, 3.0)]),
        ([(1.0, 2.0)], [(5.0, 1.0), (6.0, 1.0)], [(1.0, 2.0), (6.0, 2.0)]),
        ([], [(5.0, 1.0)], [(5.0, 1.0)]),
    ],
    ids=["counts for all that took longer", "equal times", "after all others", "alone"],
)
def test_the_weight_of_what_was_given_up(ended, given_up, found):
    assert kaplan_meier(ended, given_up) == found


@given(TIMES, TIMES)
def test_no_weight_is_lost_and_nothing_becomes_shorter(ended, given_up):
    found = kaplan_meier(ended, given_up)
    whole = sum(weight for _, weight in ended + given_up)
    assert sum(weight for _, weight in found) == pytest.approx(whole)
    for time, _ in ended:
        before = sum(weight for other, weight in ended + given_up if other <= time)
        assert sum(weight for other, weight in found if other <= time) <= before * (1 + 1e-9)
    if not given_up:
        assert found == sorted(ended)


# -- the remaining time of a job -----------------------------------------------------------------------------

MINUTE, HOUR = 60.0, 3600.0


def forecast(observed: Sequence[Observation]) -> ForecastAt:
    """The forecast of batches that began minutes apart: those of one moment count as one."""
    forecaster = Forecaster(BATCH_PRIOR)
    mixed = sorted(random.Random(0).sample(observed, len(observed)), key=lambda seen: seen.at)
    for place, seen in enumerate(mixed):
        forecaster.observe(evolve(seen, at=seen.at - (len(mixed) - place) * 2 * MINUTE))
    return forecaster.at(NOW)


def remaining(
    running: Sequence[RunningBatch], of: Sequence[Observation] = (), *, unsent: Sequence[int] = ()
) -> float | None:
    return remaining_by(running, forecast(of), unsent=unsent)


def left(
    elapsed: float, *, of: Sequence[Observation] = (), size: int = 1000, done: int | None = None
) -> float:
    found = remaining([RunningBatch(size, elapsed, done)], of)
    assert found is not None
    return found


def took(seconds: float, *, times: int = 1, size: int = 1000, ended: bool = True) -> list[Observation]:
    return [Observation(size, seconds, NOW, ended=ended)] * times


def test_beyond_the_promise_nothing_can_be_said():
    assert remaining([RunningBatch(10, EXPIRY_SECONDS)]) is None
    assert remaining([RunningBatch(10, 5.0), RunningBatch(10, 3 * EXPIRY_SECONDS, done=9)], took(60)) is None
    assert left(EXPIRY_SECONDS - 1) > 0


def test_batches_as_before_take_as_long_as_before():
    assert left(0, of=took(600, times=10)) == pytest.approx(600, rel=0.1)
    assert left(0, of=took(5 * HOUR, times=10)) == pytest.approx(5 * HOUR, rel=0.1)


def test_one_observation_already_counts_more_than_what_is_promised():
    assert left(0, of=took(120)) < left(0) / 3
    assert left(0, of=took(6 * HOUR)) > 3 * left(0)


def test_batches_of_the_same_size_tell_more_than_others():
    of = [*took(5 * MINUTE, times=3, size=100), *took(2 * HOUR, times=3, size=50_000)]
    assert left(0, of=of, size=100) < left(0, of=of, size=2000) < left(0, of=of, size=50_000)


def test_batches_that_were_given_up_would_have_taken_longer():
    quick = took(5 * MINUTE, times=4)
    both = [*quick, *took(30 * MINUTE, times=12, ended=False)]
    assert left(0, of=quick) < 6 * MINUTE
    assert left(0, of=both) > 30 * MINUTE
    assert left(10 * MINUTE, of=both) > 20 * MINUTE


def test_a_batch_faster_than_others_ends_earlier():
    assert left(60, of=took(2 * HOUR, times=10), done=500) == pytest.approx(60)


def test_a_queue_before_it_is_no_sign_of_a_slow_batch():
    """An hour in the queue, then 1 in 1,000 done: not a thousand hours."""
    assert left(HOUR, of=took(2 * HOUR, times=10), done=1) < 2 * HOUR


def test_all_done_but_not_ended_is_not_the_end():
    assert left(HOUR, done=1000) == left(HOUR, done=2000) == 1.0


@given(st.floats(1, EXPIRY_SECONDS - 1), st.integers(1, 1000), st.integers(0, 1000))
def test_more_done_is_never_more_left(elapsed, size, done):
    done = min(done, size)
    more = left(elapsed, size=size, done=min(size, done + 1))
    assert more <= left(elapsed, size=size, done=done)


def test_batches_next_to_each_other_take_as_long_as_the_last_of_them():
    of = took(600, times=10)
    found = remaining([RunningBatch(1000, 500), RunningBatch(1000, 10), RunningBatch(1000, 300)], of)
    assert found == left(10, of=of)


def test_batches_still_to_be_sent_come_after_those_that_run():
    of = took(600, times=10)
    running = [RunningBatch(1000, 100), RunningBatch(1000, 100)]
    alone = remaining(running, of)
    two, five = (remaining(running, of, unsent=[1000] * count) for count in (2, 5))
    assert alone is not None
    assert two == pytest.approx(alone + left(0, of=of))
    assert five == pytest.approx(alone + 3 * left(0, of=of))


def test_it_is_zero_when_nothing_is_left_and_only_then():
    assert remaining([]) == remaining([], took(5)) == 0.0
    assert remaining([], took(0.001, times=50), unsent=[1]) == 1.0
