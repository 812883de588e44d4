"""Forecasts of the duration of a list, compared with simulated lists."""

from __future__ import annotations

import heapq
import math
from random import Random
from statistics import NormalDist, mean

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st
from levels import sampled

from smartbatch.core.forecast import Forecaster, Observation, Prior
from smartbatch.core.routing.offers import Throughput

NORMAL = NormalDist()
RUNS = 1000


@frozen
class Lognormal:
    median: float
    sigma: float
    growth: float = 0.0
    unknown: float = 0.0

    def quantile(self, q: float, size: int) -> float:
        return self.median * size**self.growth * math.exp(self.sigma * NORMAL.inv_cdf(q))

    def expected(self, size: int) -> float:
        return self.median * size**self.growth * math.exp(self.sigma**2 / 2)

    def chance(self, seconds: float, size: int) -> float:
        return NORMAL.cdf(math.log(seconds / self.median / size**self.growth) / self.sigma)

    def uncertainty(self) -> float:
        return self.unknown


def played(times: Lognormal, requests: int, workers: int, gap: float = 0.0) -> list[float]:
    rng, ends = Random(f"{requests} {workers}"), []
    for _ in range(RUNS):
        free = [0.0] * workers
        for place in range(requests):
            begin = max(free[0], place * gap)
            heapq.heapreplace(free, begin + times.median * math.exp(rng.gauss(0, times.sigma)))
        ends.append(max(free))
    return sorted(ends)


@pytest.mark.parametrize("sigma", sampled([0.3, 0.6], first=1))
@pytest.mark.parametrize(
    ("requests", "workers"), sampled([(1, 4), (4, 4), (8, 4), (15, 4), (60, 4), (40, 32), (150, 16)], keep=4)
)
def test_a_list_takes_as_long_as_forecast(sigma, requests, workers):
    times = Lognormal(2.0, sigma)
    ends, throughput = played(times, requests, workers), Throughput(times, workers)
    assert throughput.finish(requests, 0.5) == pytest.approx(ends[RUNS // 2], rel=0.04)
    assert throughput.finish(requests, 0.95) == pytest.approx(ends[int(0.95 * RUNS)], rel=0.06)
    assert throughput.expected(requests) == pytest.approx(mean(ends), rel=0.04)


def test_a_limit_that_binds_is_what_a_list_waits_for():
    times = Lognormal(1.0, 0.5)
    ends, throughput = played(times, 100, 8, gap=1.0), Throughput(times, 8, rpm=60)
    assert throughput.finish(100, 0.5) == pytest.approx(ends[RUNS // 2], rel=0.02)
    assert throughput.finish(100, 0.95) == pytest.approx(ends[int(0.95 * RUNS)], rel=0.02)


def test_tokens_bind_as_calls_do():
    throughput = Throughput(Lognormal(1.0, 0.1), 1000, tokens=500, tpm=30_000)
    assert throughput.finish(61, 0.5) == pytest.approx(61, abs=2)
    assert throughput.quota(600) == pytest.approx(1.0, abs=0.02)
    assert throughput.quota(6) == pytest.approx(0.1)  # six requests of 500 tokens per 30,000 tokens


def test_what_waits_already_goes_first():
    empty, busy = Throughput(Lognormal(2.0, 0.3), 4), Throughput(Lognormal(2.0, 0.3), 4, ahead=100)
    assert busy.finish(20, 0.5) == empty.finish(120, 0.5)
    assert busy.finish(0, 0.5) == 0


def test_calls_that_carry_several_requests_are_fewer_and_longer():
    throughput = Throughput(Lognormal(2.0, 0.3, growth=0.3), 4, per_call=8)
    assert throughput.calls(80) == 10
    assert throughput.finish(4, 0.5) == Lognormal(2.0, 0.3, growth=0.3).quantile(0.5, 4)


def test_before_anything_is_known_a_long_list_may_be_as_slow_as_one_call():
    throughput = Throughput(Forecaster(Prior.of(2.0, 10.0)).at(0.0), 4)
    assert throughput.finish(50_000, 0.5) == pytest.approx(25_000, rel=0.05)
    assert throughput.finish(50_000, 0.95) == pytest.approx(125_000, rel=0.05)


def test_forecasts_of_long_lists_narrow_as_calls_are_seen():
    forecaster, rng = Forecaster(Prior.of(2.0, 10.0)), Random(3)
    widths = []
    for count in (0, 1, 5, 20, 100):
        while forecaster.observations < count:
            forecaster.observe(Observation(1, 1.2 * math.exp(rng.gauss(0, 0.5)), 0.0))
        throughput = Throughput(forecaster.at(0.0), 4)
        widths.append(throughput.finish(50_000, 0.95) / throughput.finish(50_000, 0.5))
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 1.15


@pytest.mark.full
@pytest.mark.parametrize("seen", sampled([3, 10, 40], keep=1))
def test_long_lists_of_models_hardly_seen_stay_within_their_forecasts(seen):
    rng, within, runs = Random(seen), 0, 200
    for _ in range(runs):
        median = 2.0 * math.exp(rng.gauss(0, 0.8))
        forecaster = Forecaster(Prior.of(2.0, 10.0))
        for _ in range(seen):
            forecaster.observe(Observation(1, median * math.exp(rng.gauss(0, 0.55)), 0.0))
        true = 1000 * median * math.exp(0.55**2 / 2)
        within += true <= Throughput(forecaster.at(0.0), 4).finish(4000, 0.95)
    assert 0.90 <= within / runs <= 0.99


@given(
    median=st.floats(0.01, 100),
    sigma=st.floats(0.01, 2.5),
    unknown=st.floats(0, 1.5),
    workers=st.integers(1, 64),
    per_call=st.integers(1, 8),
    rpm=st.one_of(st.just(math.inf), st.floats(1, 10_000)),
    requests=st.integers(1, 100_000),
)
def test_more_requests_and_more_certainty_take_longer(
    median, sigma, unknown, workers, per_call, rpm, requests
):
    throughput = Throughput(Lognormal(median, sigma, 0.3, unknown), workers, per_call, rpm=rpm)
    at = [throughput.finish(requests, q) for q in (0.05, 0.5, 0.95, 0.99)]
    assert at == sorted(at)
    assert all(math.isfinite(each) and each > 0 for each in at)
    assert math.isfinite(throughput.expected(requests))
    assert throughput.finish(10 * requests + 10 * workers * per_call, 0.5) >= at[1]
