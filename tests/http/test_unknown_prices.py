"""A price that no table has is reported once, and is never counted as zero."""

from __future__ import annotations

import re

import pytest
from small_servers import small_claude

from smartbatch import BatchingClient, Price
from smartbatch.errors import ConfigError
from smartbatch.events import PriceUnknown

MODEL = "anthropic:unheard-of"


@pytest.fixture
def claude(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    with small_claude(monkeypatch) as server:
        yield server


@pytest.mark.parametrize(
    ("route", "where"), [("individual", ""), pytest.param("batch", " in batches", marks=pytest.mark.full)]
)
def test_an_unknown_price_is_reported_once_with_the_setting_that_supplies_it(claude, caplog, route, where):
    events = []
    with BatchingClient(MODEL, observers=[events.append]) as client:
        for part in (["one", "two"], ["three"]):
            assert not client.generate(part, strategy=route).cost_known
    told = [event for event in events if isinstance(event, PriceUnknown)]
    assert [(event.model, event.batch) for event in told] == [(MODEL, route == "batch")]
    [message] = [text for text in caplog.messages if "price" in text]
    assert message.startswith(f"{MODEL}: the price{where} is unknown")
    assert f"prices={{{MODEL!r}: Price(input=…, output=…)}}" in message


def test_a_known_price_is_not_reported(claude, caplog):
    with BatchingClient(MODEL, prices={MODEL: Price(1, 5)}) as client:
        assert client.generate(["one"], strategy="individual").cost_known
    assert not [text for text in caplog.messages if "price" in text]


@pytest.mark.parametrize("route", ["individual", pytest.param("batch", marks=pytest.mark.full)])
def test_no_summary_shows_an_unknown_cost_as_nothing(claude, route):
    with BatchingClient(MODEL) as client:
        plan = client.plan(["one", "two"], strategy=route)
        results = client.generate(["one", "two"], strategy=route)
        snapshot = client.metrics.snapshot()
    assert plan.cost is None
    assert "price unknown" in str(plan)
    assert (results.cost_known, results.unpriced) == (False, (MODEL,))
    assert [result.cost for result in results] == [None, None]
    assert snapshot.unpriced == 2
    shown = [str(plan), repr(results), repr(snapshot), results.report().html, str(results.report())]
    assert not [text for text in shown if re.search(r"\$0(?!\.)", text)]


def test_a_job_shows_an_unknown_cost_as_unknown(claude):
    with BatchingClient(MODEL, store="jobs.db") as client:
        job = client.submit_batch(["one", "two"])
        list(job.results())
        status = job.status()
        assert status.unpriced == 2
        shown = [str(status), job.report().html]
    assert not [text for text in shown if re.search(r"\$0(?!\.)", text)]
    assert "cost      unknown" in str(status)


def test_a_budget_is_refused_unless_unknown_prices_are_allowed(claude):
    with pytest.raises(
        ConfigError, match=r"the price of anthropic:unheard-of is unknown.*add its price to prices"
    ):
        BatchingClient(MODEL, budget=1.0)
    with BatchingClient(MODEL, budget=1.0, allow_unknown_price=True) as client:
        assert not client.generate(["one"], strategy="individual").cost_known
