"""Forecasts: cold, with few, with many observations; that quantiles hold and changes are noticed."""

from __future__ import annotations

import math
import random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.forecast import (
    DOCUMENTED_TIMES,
    Distribution,
    ForecastChange,
    Forecaster,
    Observation,
    Prior,
    redistributed,
)
from tests.core.forecast.worlds import DRIFTING, WORLDS, Run, held, noticed
from tests.levels import sampled

NOW = 1.8e9
DAY = 86_400.0
PRIOR = Prior.of(2.0, 10.0)


def after(*seconds: float, size: int = 1, apart: float = 1.0, prior: Prior = PRIOR) -> Forecaster:
    """A forecaster that saw these, the last one now."""
    forecaster = Forecaster(prior)
    for place, each in enumerate(seconds):
        forecaster.observe(Observation(size, each, NOW - (len(seconds) - 1 - place) * apart))
    return forecaster


class TestBeforeAnythingWasSeen:
    def test_it_says_what_the_prior_says(self) -> None:
        cold = Forecaster(PRIOR)
        assert cold.observations == 0
        assert cold.at(NOW).quantile(0.5, 1) == pytest.approx(2.0)
        assert cold.at(NOW).quantile(0.95, 1) == pytest.approx(10.0)
        assert cold.at(NOW).quantile(0.05, 1) == pytest.approx(0.4)
        assert cold.at(NOW).chance(10.0, 1) == pytest.approx(0.95)

    def test_batches_begin_with_what_providers_promise(self) -> None:
        cold = Forecaster(Prior(DOCUMENTED_TIMES, fade=DAY))
        assert 900 < cold.at(NOW).quantile(0.5, 1000) < 3600
        assert 6 * 3600 < cold.at(NOW).quantile(0.95, 1000) < DAY
        assert math.isfinite(cold.at(NOW).expected(1000))

    def test_what_makes_no_sense_is_refused(self) -> None:
        with pytest.raises(ValueError, match="q must be"):
            Forecaster(PRIOR).at(NOW).quantile(1.0, 1)
        with pytest.raises(ValueError, match="seconds must be"):
            Forecaster(PRIOR).observe(Observation(1, math.nan, NOW))
        with pytest.raises(ValueError, match="fade must be"):
            Prior.of(2.0, 10.0, fade=0.0)


class TestFewObservations:
    def test_old_ones_fade_until_only_the_prior_is_left(self) -> None:
        seen = after(100.0, 100.0, 100.0)
        medians = [seen.at(NOW + days * DAY).quantile(0.5, 1) for days in (0, 1, 2, 4, 8, 20)]
        assert medians == sorted(medians, reverse=True)
        assert medians[0] == pytest.approx(100.0, rel=0.05)
        assert medians[-1] == pytest.approx(2.0, rel=0.01)

    def test_no_time_at_all_is_a_time(self) -> None:
        seen = after(*[0.0] * 50)
        assert 0 < seen.at(NOW).quantile(0.5, 1) < 0.001
        assert seen.at(NOW).chance(0.0, 1) == 0.0
        assert seen.at(NOW).chance(math.inf, 1) == 1.0


class TestSizes:
    def test_growth_is_learned(self) -> None:
        rng = random.Random(5)
        forecaster = Forecaster(PRIOR)
        for n in range(150):
            size = rng.choice((1, 10, 100))
            forecaster.observe(Observation(size, 2 * size**0.8 * math.exp(rng.gauss(0, 0.3)), NOW + n))
        assert forecaster.at(NOW + 150).quantile(0.5, 1) == pytest.approx(2.0, rel=0.15)
        assert forecaster.at(NOW + 150).quantile(0.5, 100) == pytest.approx(2 * 100**0.8, rel=0.15)
        assert forecaster.at(NOW + 150).quantile(0.5, 1000) == pytest.approx(2 * 1000**0.8, rel=0.3)


class TestHowWellItHolds:
    @pytest.mark.full
    @pytest.mark.parametrize("name", sampled([*WORLDS, *DRIFTING], keep=3))
    def test_the_95_percent_quantile_covers_93_to_97_percent_after_200(self, name: str) -> None:
        runs = held({**WORLDS, **DRIFTING}[name], 2, 600, sized=name not in DRIFTING)
        assert 0.93 <= mean(run.covered[0.95] for run in runs) <= 0.97
        assert 0.86 <= mean(run.covered[0.9] for run in runs) <= 0.94
        drift = 0.03 if name in DRIFTING else 0.0  # the latest ones lag behind
        assert 0.45 - drift <= mean(run.covered[0.5] for run in runs) <= 0.55 + drift

    @pytest.mark.full
    def test_a_world_that_does_not_change_hardly_ever_seems_to(self) -> None:
        names = ("lognormal 0.3", "lognormal 1.0", "Pareto 1.2", "one in 20 takes 10 x")
        assert sum(run.alarms for name in names for run in held(WORLDS[name], 2, 750)) <= 12

    @pytest.mark.full
    @pytest.mark.parametrize(
        ("name", "factor"),
        sampled(
            [
                ("lognormal 0.3", 2.0),
                ("lognormal 0.5", 2.0),
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
    def test_a_change_is_noticed_within_20(self, name: str, factor: float) -> None:
        """In 9 of 10 runs; where times differ much among themselves, it takes a larger change."""
        counts = noticed(WORLDS[name], factor, 20)
        assert counts[17] <= 20


class TestAChange:
    @pytest.fixture
    def changes(self) -> ForecastChange:
        """The change reported when a call that took 3 seconds takes 9."""
        run = Run(WORLDS["lognormal 0.3"], 4)
        run.learn(200)
        for _ in range(20):
            moved = run.forecaster.observe(run.draw(3.0))
            if moved is not None:
                self.run = run
                return moved
        raise AssertionError("not noticed")

    def test_it_says_what_moved_and_why(self, changes: ForecastChange) -> None:
        assert changes.sudden
        assert changes.before == pytest.approx(3.0, rel=0.2)
        assert changes.after == pytest.approx(9.0, rel=0.3)
        assert 3 <= changes.seen <= 20
        assert "times as long as the earlier ones" in changes.why

    def test_the_first_observations_are_told_against_what_was_assumed(self) -> None:
        forecaster = Forecaster(PRIOR)
        changes = [forecaster.observe(Observation(1, 30.0 + n, NOW + n)) for n in range(12)]
        (moved,) = [one for one in changes if one is not None]
        assert moved.before == pytest.approx(2.0)
        assert "assumed before any was observed" in moved.why


class TestOneMoment:
    batches = Prior(DOCUMENTED_TIMES, fade=DAY, together=0.03)

    def usual(self, count: int) -> Forecaster:
        """A forecaster that saw batches of some ten minutes, one an hour."""
        forecaster, rng = Forecaster(self.batches), random.Random(5)
        for n in range(count):
            forecaster.observe(Observation(100, 600 * math.exp(rng.gauss(0, 0.4)), NOW + 3600 * n))
        return forecaster

    def test_twelve_of_one_moment_weigh_as_much_as_one(self) -> None:
        one, twelve, apart, now = self.usual(20), self.usual(20), self.usual(20), NOW + 20 * 3600 + 3000
        one.observe(Observation(100, 3000.0, now))
        for n in range(12):
            twelve.observe(Observation(100, 3000.0, now + n))
            apart.observe(Observation(100, 3000.0, now + 3600 * n))
        usual = one.at(now).quantile(0.5, 100)
        assert twelve.at(now).quantile(0.5, 100) == pytest.approx(usual, rel=0.1)
        assert apart.at(now + 12 * 3600).quantile(0.5, 100) > 2 * usual

    def test_one_slow_list_is_no_change_however_many_batches_it_has(self) -> None:
        forecaster, now = self.usual(60), NOW + 60 * 3600 + 3000
        changes = [forecaster.observe(Observation(100, 3000.0 + n, now + n)) for n in range(40)]
        assert not any(moved is not None and moved.sudden for moved in changes)
        later = [forecaster.observe(Observation(100, 3000.0, now + 3600 * n)) for n in range(1, 21)]
        assert any(moved is not None and moved.sudden for moved in later)


class TestWhatWasGivenUp:
    def test_batches_that_were_cancelled_make_forecasts_longer(self) -> None:
        forecaster, rng = Forecaster(Prior(DOCUMENTED_TIMES, fade=DAY)), random.Random(7)
        for n in range(30):
            forecaster.observe(Observation(100, 600 * math.exp(rng.gauss(0, 0.5)), NOW + 600 * n))
        before = forecaster.at(NOW + 18_000).chance(1800.0, 100)
        changes = [
            forecaster.observe(Observation(100, 1800.0, NOW + 18_000 + 600 * n, ended=False))
            for n in range(15)
        ]
        after = forecaster.at(NOW + 27_000).chance(1800.0, 100)
        assert before > 0.9
        assert after < 0.3
        assert any(moved is not None and moved.sudden for moved in changes)


class TestCurves:
    @given(
        st.lists(st.tuples(st.floats(-12, 12), st.floats(0.001, 100)), min_size=1, max_size=40),
        st.floats(0.001, 0.999),
        st.floats(0.001, 0.999),
    )
    def test_levels_and_logs_are_each_others_inverse(
        self, points: list[tuple[float, float]], one: float, other: float
    ) -> None:
        curve = Distribution(points)
        low, high = sorted((one, other))
        assert curve.log(low) <= curve.log(high) + 1e-9
        assert curve.level(curve.log(low)) >= low - 1e-6
        assert curve.log(min(0.9999, max(0.0001, curve.level(curve.log(low))))) == pytest.approx(
            curve.log(low), abs=1e-4
        )

    def test_the_mean_is_finite_however_heavy_the_tail(self) -> None:
        rng = random.Random(1)
        curve = Distribution([(math.log(rng.paretovariate(0.5)), 1.0) for _ in range(500)])
        assert curve.mean() < math.exp(curve.log(0.99))


# -- censored times ------------------------------------------------------------------------------------------

Weighed = list[tuple[float, float]]
TIMES = st.lists(st.tuples(st.floats(0, 100), st.floats(0.001, 10)), max_size=30)


def kaplan_meier(ended: Weighed, given_up: Weighed) -> Weighed:
    times = [(time, False, weight) for time, weight in ended]
    return redistributed(times + [(time, True, weight) for time, weight in given_up])


def test_what_was_given_up_counts_for_all_that_took_longer() -> None:
    """Kaplan and Meier: a quarter by 1, none more by 2, half of the rest by 3, all by 4."""
    found = kaplan_meier([(1.0, 1.0), (3.0, 1.0), (4.0, 1.0)], [(2.0, 1.0)])
    assert found == [(1.0, 1.0), (3.0, 1.5), (4.0, 1.5)]


def test_what_ended_just_when_another_was_given_up_did_not_take_longer() -> None:
    assert kaplan_meier([(2.0, 1.0), (3.0, 1.0)], [(2.0, 2.0)]) == [(2.0, 1.0), (3.0, 3.0)]


def test_what_was_given_up_after_all_others_stands_for_itself() -> None:
    assert kaplan_meier([(1.0, 2.0)], [(5.0, 1.0), (6.0, 1.0)]) == [(1.0, 2.0), (6.0, 2.0)]
    assert kaplan_meier([], [(5.0, 1.0)]) == [(5.0, 1.0)]


@given(TIMES, TIMES)
def test_no_weight_is_lost_and_nothing_becomes_shorter(ended: Weighed, given_up: Weighed) -> None:
    found = kaplan_meier(ended, given_up)
    whole = sum(weight for _, weight in ended + given_up)
    assert sum(weight for _, weight in found) == pytest.approx(whole)
    for time, _ in ended:
        before = sum(weight for other, weight in ended + given_up if other <= time)
        assert sum(weight for other, weight in found if other <= time) <= before * (1 + 1e-9)
    if not given_up:
        assert found == sorted(ended)
