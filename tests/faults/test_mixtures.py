"""The simulated mixtures of limits and failures: a judge that is not the same twice judges nothing."""

from __future__ import annotations

import pytest

from benchmarks.mixture_world import Mixture, best_fixed
from benchmarks.mixtures import run
from tests.levels import sampled

CALM = Mixture(seed=1, rows=60, parallelism=8, latency=1.0, sigma=0.1)


@pytest.mark.parametrize("seed", sampled([11, 23]))
def test_a_seed_gives_the_same_run_of_the_real_client_again(seed):
    first, second = (run(seed, 60, keep_log=True) for _ in range(2))
    assert first.log == second.log
    assert len(first.log) >= 60
    assert (first.seconds, first.best) == (second.seconds, second.best)


def test_the_best_fixed_client_is_as_fast_as_the_service():
    undisturbed = best_fixed(CALM)
    assert (undisturbed.width, undisturbed.refused) == (8, 0.0)
    assert undisturbed.seconds == pytest.approx(60 / 8, rel=0.2)
