"""What the user of a list is told at once: that it waits for a batch, and that a budget may not hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jobs.remote import Remote

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.prices import Price

ClientOf = Callable[..., BatchingClient]
PROMPTS = [f"question {n}" for n in range(30)]


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "smartbatch"]


@pytest.mark.parametrize("key", [None, "labels"])
def test_a_list_that_goes_by_batch_says_so_at_once(
    client_of: ClientOf,
    clock: VirtualClock,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    key: str | None,
) -> None:
    client = client_of(Remote(clock), store=str(tmp_path / "jobs.db"))
    assert client.generate(PROMPTS, strategy="batch", key=key).succeeded == 30
    [told] = messages(caplog)
    assert told.startswith("remote:default: sent 30 requests as a batch: usually done in ")
    job = client.jobs()[0]
    again = f"smartbatch.job({job.id!r}).results()" if key is None else "the same call with key='labels'"
    assert f"The process may exit; {again} returns the answers" in told


def test_a_list_in_real_time_is_not_announced(
    client_of: ClientOf, clock: VirtualClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = client_of(Remote(clock), store=str(tmp_path / "jobs.db"))
    assert client.generate(PROMPTS, strategy="individual").succeeded == 30
    assert messages(caplog) == []


def test_a_budget_without_max_tokens_warns_once(
    client_of: ClientOf, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    prices = {"remote:default": Price(1, 10)}
    client = client_of(Remote(clock, priced=True), budget=5.0, prices=prices, parallelism=3)
    client.generate(PROMPTS[:3])
    client.submit("one more").result()
    [told] = messages(caplog)
    assert "the budget can be exceeded by one call per worker (parallelism is 3)" in told
    assert told.endswith("set max_tokens")


def test_a_budget_with_max_tokens_warns_of_nothing(
    client_of: ClientOf, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    prices = {"remote:default": Price(1, 10)}
    client = client_of(Remote(clock, priced=True), budget=5.0, prices=prices, max_tokens=10)
    client.generate(PROMPTS[:3])
    assert messages(caplog) == []
