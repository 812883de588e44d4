"""One list for the workers of a Dask cluster: real processes, a real server, and a store they share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs.stores import postgres_address

from smartbatch import ResultList
from smartbatch.testing import Emulator, answer_for, emulator

__all__ = ["postgres_address"]  # a fixture

distributed = pytest.importorskip("distributed", reason="distributed is not installed: the test extra has it")
dask = pytest.importorskip("smartbatch.integrations.dask")

MODEL = "openai:gpt-5-mini"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two worker processes, each with two units at a time."""
    with distributed.LocalCluster(2, threads_per_worker=2, processes=True, dashboard_address=None) as made:
        yield made


@pytest.fixture
def scheduler(cluster: Any) -> Iterator[Any]:
    with distributed.Client(cluster, set_as_default=False) as client:
        yield client


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.full)],
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "jobs.db")
    address: str = request.getfixturevalue("postgres_address")
    return f"{address}{'&' if '?' in address else '?'}schema=dask_{tmp_path.name[-40:].lower()}"


def ask(server: Emulator, prompts: Any, scheduler: Any, store: str, **settings: Any) -> Any:
    options = {"base_url": server.base_url, "api_key": "any"}
    return dask.map(
        prompts, model=MODEL, scheduler=scheduler, store=store, provider_options=options, **settings
    )


def expected(prompts: list[str]) -> list[str]:
    return [answer_for(prompt, "gpt-5-mini") for prompt in prompts]


def test_a_list_is_answered_in_order_by_all_workers_and_the_same_call_pays_nothing(
    scheduler: Any, store: str
) -> None:
    """Neither do other settings of the workers make it another list."""
    prompts = [f"question {n}" for n in range(350)]
    with emulator(latency=0.01) as server:
        results = ask(server, prompts, scheduler, store)
        assert isinstance(results, ResultList)
        assert results.texts == expected(prompts)
        assert ask(server, prompts, scheduler, store, parallelism=2).texts == results.texts
        assert server.ledger.received == 350
    clients = scheduler.run(lambda dask_worker: [str(n) for n in dask_worker.plugins if "smartbatch" in n])
    assert all(clients.values())
