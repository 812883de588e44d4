"""Messages about lists: they wait for a batch, or may exceed their budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
def test_only_a_list_that_is_sent_as_a_batch_is_announced(
    client_of: ClientOf, clock: VirtualClock, store: str, caplog: pytest.LogCaptureFixture, key: str | None
) -> None:
    client = client_of(Remote(clock), store=store)
    assert client.generate(PROMPTS, strategy="individual").succeeded == 30
    assert messages(caplog) == []
    assert client.generate(PROMPTS, strategy="batch", key=key).succeeded == 30
    [told] = messages(caplog)
    assert told.startswith("remote:default: sent 30 requests as a batch: usually done in ")
    job = client.jobs()[0]
    again = f"smartbatch.job({job.id!r}).results()" if key is None else "the same call with key='labels'"
    assert f"The process may exit; {again} returns the answers" in told


def test_a_budget_without_max_tokens_warns_once(
    client_of: ClientOf, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"budget": 5.0, "prices": {"remote:default": Price(1, 10)}, "parallelism": 3}
    client_of(Remote(clock, priced=True), max_tokens=10, **settings).generate(PROMPTS[:3])
    assert messages(caplog) == []
    client = client_of(Remote(clock, priced=True), **settings)
    client.generate(PROMPTS[:3])
    client.submit("one more").result()
    [told] = messages(caplog)
    assert "the budget can be exceeded by one call per worker (parallelism is 3)" in told
    assert told.endswith("set max_tokens")
