"""The simulated mixtures of limits and failures: a judge that is not the same twice judges nothing."""

from __future__ import annotations

import pytest

from benchmarks.mixture_world import Limit, Mixture, Service, best_fixed, draw
from benchmarks.mixtures import run
from tests.levels import sampled

CALM = Mixture(seed=1, rows=60, parallelism=8, latency=1.0, sigma=0.1)


@pytest.mark.parametrize("seed", sampled([11, 23]))
def test_a_seed_gives_the_same_run_of_the_real_client_again(seed: int):
    first, second = (run(seed, 60, keep_log=True) for _ in range(2))
    assert first.log == second.log
    assert len(first.log) >= 60
    assert (first.seconds, first.best) == (second.seconds, second.best)


def test_a_limit_admits_its_burst_and_says_when_to_come_again():
    service = Service(
        Mixture(seed=1, rows=9, parallelism=8, latency=1.0, sigma=0.0, requests=Limit(2.0, 3.0))
    )
    met = [service.arrive(0.0, row) for row in range(4)]
    assert [verdict.kind for verdict in met] == ["good", "good", "good", "limit"]
    assert met[-1].retry_after == pytest.approx(0.5)
    assert service.arrive(0.5, 4).kind == "good"


def test_the_best_fixed_client_is_as_fast_as_the_service():
    undisturbed = best_fixed(CALM)
    assert (undisturbed.width, undisturbed.refused) == (8, 0.0)
    assert undisturbed.seconds == pytest.approx(60 / 8, rel=0.2)


def test_seeds_differ_in_what_they_mix():
    parts = {part for seed in range(60) for part in draw(seed).parts}
    assert parts == {
        *("requests a minute", "tokens a minute", "calls at once"),
        *("partial failures", "outage", "latency by load", "nothing"),
    }
