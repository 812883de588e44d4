"""One dollar, eight clients with sixteen concurrent calls: never exceeded, and nearly all of it usable."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from realtime.scenes import Scripted

from smartbatch._clock import VirtualClock
from smartbatch.errors import BudgetExceeded
from smartbatch.prices import Price
from smartbatch.types import Answer, Usage

CLIENTS, PARALLELISM = 8, 16


def run(seed: int, clock: VirtualClock, client_of: Callable[..., Any], folder: Path) -> float:
    """Let all clients ask for twice the budget, in bursts of their own; return what was spent."""
    rng = random.Random(seed)
    most = rng.choice([50, 100, 400])  # tokens of an answer: a hundredth of a cent each

    def answer(prompt: str, attempt: int) -> Answer:
        return Answer("yes", usage=Usage(0, rng.randint(most // 2, most)))

    provider = Scripted(clock, answer, latency=lambda prompt: rng.uniform(0.005, 0.2), priced=True)
    settings = {
        "prices": {"scripted:default": Price(input=0.0, output=100.0)},
        "budget": 1.0,
        "budget_scope": f"shared:{seed}",
        "shared": f"sqlite:///{folder / 'limits.db'}",
        "parallelism": PARALLELISM,
        "max_tokens": most,
    }
    clients = [client_of(provider, **settings) for _ in range(CLIENTS)]
    calls = 2 * 10_000 // most // CLIENTS
    with clock.held():
        futures = [client.submit(f"{number}") for client in clients for number in range(calls)]
    for future in futures:
        error = future.exception(300.0)
        assert error is None or isinstance(error, BudgetExceeded)
    spent = sum(client.spent for client in clients)
    for client in clients:
        client.stop()
    return round(spent, 9)  # the sum of costs in another order differs in the last digits


@pytest.mark.parametrize(
    "seeds",
    [
        range(1),
        pytest.param(range(1, 20), marks=pytest.mark.full),
        pytest.param(range(20, 200), marks=[pytest.mark.full, pytest.mark.soak]),
    ],
    ids=["once", "20 runs", "200 runs"],
)
def test_a_shared_budget_is_never_exceeded_and_is_usable(seeds, client_of, tmp_path):
    for seed in seeds:
        clock = VirtualClock()
        spent = run(seed, clock, partial(client_of, clock=clock), tmp_path)
        assert 0.95 <= spent <= 1.0, f"seed={seed}"
