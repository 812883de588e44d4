"""A client with 64 calls in flight, whose lists and job have budgets, and the provider's bill."""

from __future__ import annotations

import random
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from attrs import define, field, frozen

from smartbatch import BatchingClient, Price, Result
from smartbatch._clock import VirtualClock
from smartbatch.errors import BudgetExceeded, ErrorKind, ProviderError
from smartbatch.providers.mock import MockProvider
from smartbatch.types import Answer, Request, Usage

THREADS: Final = 64
MOST: Final = 9
"""Tokens of an answer at most; each costs a USD."""
TINY: Final = 1e-6


@define
class Billing:
    rng: random.Random
    faults: float
    bill: Counter[str] = field(factory=Counter)
    _lock: threading.Lock = field(factory=threading.Lock)

    def answer(self, request: Request) -> Answer:
        assert isinstance(request.prompt, str)
        with self._lock:
            fate, tokens = (
                self.rng.random() / self.faults if self.faults else 1.0,
                self.rng.randint(0, MOST),
            )
            if fate < 0.3:
                tokens = 0
            self.bill[request.prompt.split()[0]] += tokens
        if fate < 0.6:
            usage = Usage(1, tokens) if tokens else None
            raise ProviderError("overloaded", kind=ErrorKind.SERVER_ERROR, status=500, usage=usage)
        if fate < 1.0:
            raise ProviderError("connection reset", kind=ErrorKind.NETWORK_ERROR, maybe_billed=True)
        return Answer("ok", usage=Usage(1, tokens))


@frozen
class Run:
    """One client: what it was allowed, and what was billed.

    Attributes:
        budget: of the client, USD; ``None`` for no limit.
        bounds: of each list and of the job, by name.
        bill: what the provider billed, by name.
        answered: requests that were answered.
        stopped: requests that were not sent because of a budget.
    """

    budget: float | None
    bounds: dict[str, float | None]
    bill: dict[str, int]
    answered: int
    stopped: int

    @property
    def exceeded(self) -> list[str]:
        found = [
            name
            for name, bound in self.bounds.items()
            if bound is not None and self.bill[name] > bound + TINY
        ]
        over = self.budget is not None and sum(self.bill.values()) > self.budget + TINY
        return [*found, "the client"] if over else found


def run(seed: int) -> Run:
    rng = random.Random(seed)
    billing = Billing(random.Random(seed + 1), rng.choice([0.0, 0.1, 0.3]))
    budget = rng.uniform(30, 400) if rng.random() < 0.7 else None
    bounds = {f"list{n}": rng.choice([None, rng.uniform(5, 200)]) for n in range(rng.randint(1, 3))}
    results: list[Result] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        _client(billing, budget, folder, seed) as client,
        ThreadPoolExecutor(len(bounds) + 1) as pool,
    ):
        asked = [pool.submit(_list, client, name, own) for name, own in bounds.items()]
        if seed % 2:
            own = float(MOST * rng.randint(5, 30))  # retries that are billed may not fit it
            bounds["job"] = own
            asked.append(pool.submit(_job, client, own))
        for each in asked:
            results += each.result()
    answered = sum(result.ok for result in results)
    stopped = sum(isinstance(result.error, BudgetExceeded) for result in results)
    return Run(budget, bounds, {name: billing.bill[name] for name in bounds}, answered, stopped)


def _client(billing: Billing, budget: float | None, folder: str, seed: int) -> BatchingClient:
    provider = MockProvider(billing.answer)
    provider.capabilities = type(provider.capabilities)(priced=True)
    return BatchingClient(
        "m",
        provider=provider,
        prices={"m": Price(input=0.0, output=1e6)},
        budget=budget,
        parallelism=THREADS,
        max_tokens=MOST,
        store=str(Path(folder) / "jobs.db"),
        clock=VirtualClock(),
        rng=random.Random(seed),
    )


def _list(client: BatchingClient, name: str, budget: float | None) -> list[Result]:
    return list(client.map((f"{name} {number}" for number in range(60)), budget=budget))


def _job(client: BatchingClient, budget: float) -> list[Result]:
    prompts = [f"job {number}" for number in range(int(budget / MOST))]
    job = client.submit_batch(prompts, budget=budget, strategy="individual", batch_fallback="individual")
    return list(job.results())
