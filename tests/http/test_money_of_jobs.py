"""What jobs cost, over HTTP with a small server of the standard library: every answer takes 10 tokens in and
5 out, 35 millionths of a USD in real time and half of it by batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smartbatch import BatchingClient
from smartbatch.errors import BudgetExceeded, ProviderError
from tests.http.small_claude import SmallClaude, small_claude

MODEL = "anthropic:claude-haiku-4-5"
ALONE = 35e-6
"""USD of a request in real time; half of it by batch."""


def answer(body: dict[str, Any]) -> str | None:
    """Answer all but what is to be refused."""
    return None if "refuse" in str(body["messages"]) else "an answer"


@pytest.fixture
def claude(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallClaude]:
    with small_claude(monkeypatch, answer) as server:
        yield server


@pytest.fixture
def client(claude: SmallClaude, tmp_path: Path) -> Iterator[BatchingClient]:
    with BatchingClient(MODEL, store=str(tmp_path / "jobs.db")) as opened:
        yield opened


# -- the cost of a list --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("route", "cost"), [("individual", 2 * ALONE), ("batch", ALONE)])
def test_a_refused_request_cost_nothing_and_the_list_cost_what_the_others_did(
    client: BatchingClient, route: str, cost: float
) -> None:
    results = client.generate(["one", "refuse this", "two"], strategy=route)
    assert isinstance(results[1].error, ProviderError)
    assert results[1].cost == 0.0
    assert results.cost == pytest.approx(cost)
    assert (results.cost_known, results.unpriced) == (True, ())


def test_a_request_that_a_budget_keeps_from_a_batch_cost_nothing(claude: SmallClaude, tmp_path: Path) -> None:
    with BatchingClient(MODEL, store=str(tmp_path / "jobs.db"), budget=0.0002) as client:
        job = client.submit_batch(["one", "two " * 2000], max_tokens=30)
        first, second = job.results()
    assert first.cost == pytest.approx(ALONE / 2)
    assert isinstance(second.error, BudgetExceeded)
    assert second.cost == 0.0


@pytest.mark.parametrize("route", ["individual", "batch"])
def test_a_list_of_an_unknown_price_has_a_cost_and_says_what_it_lacks(
    claude: SmallClaude,
    tmp_path: Path,
    route: str,
) -> None:
    with BatchingClient("anthropic:unheard-of", store=str(tmp_path / "jobs.db")) as client:
        results = client.generate(["one", "two"], strategy=route)
    assert f"{results.cost:.4f}" == "0.0000"
    assert not results.cost_known
    assert results.unpriced == ("anthropic:unheard-of",)


def test_an_answer_that_is_no_answer_is_paid_and_its_cost_is_told(
    claude: SmallClaude,
    tmp_path: Path,
) -> None:
    with BatchingClient(MODEL, store=str(tmp_path / "jobs.db"), validation_retries=0) as client:
        job = client.submit_batch(["one"], schema={"type": "object"})
        (result,) = job.results()
    assert not result.ok
    assert result.cost is not None
    assert job.status().cost == pytest.approx(1.5 * ALONE)  # by batch and once more in real time
