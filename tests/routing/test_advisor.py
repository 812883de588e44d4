"""The figures behind a client's choice of a route, and the events it publishes."""

from __future__ import annotations

import re
import time

import pytest
from inside import inside

from smartbatch import BatchingClient
from smartbatch.core.preparation.answer_length import SHAPES
from smartbatch.events import ForecastMoved, RouteChosen, RouteScored, ThresholdMoved
from smartbatch.jobs.store import open_store
from smartbatch.types import Generation, Kind, Route, Usage

PROMPTS = [f"Summarise text {number} in one sentence." for number in range(400)]


@pytest.fixture
def events():
    return []


@pytest.fixture
def client(tmp_path, events):
    options = {"api_key": "k" * 20, "base_url": "http://127.0.0.1:9/v1"}
    return BatchingClient(
        "openai:gpt-5-mini",
        provider_options=options,
        store=str(tmp_path / "jobs.db"),
        observers=[events.append],
        max_tokens=200,
    )


def teach(client: BatchingClient, seconds: float, name: str = "openai:gpt-5-mini") -> None:
    store = open_store(client.config.store)
    wall = time.time()
    store.facts.observe_turnarounds(
        name, [(50, seconds * (0.9 + number / 150), wall - number) for number in range(30)]
    )
    store.close()


def test_a_cold_start_is_the_documented_matrix(client):
    options = {
        count: {option.route for option in client.plan(PROMPTS[:count]).options}
        for count in (1, 3, 4, 9, 10, 400)
    }
    real = {Route.INDIVIDUAL, Route.FLEX}
    assert options[1] | options[3] | options[4] | options[9] <= real
    assert options[10] - real == options[400] - real == {Route.BATCH, Route.HYBRID}
    assert client.plan(PROMPTS[:9]).route in real
    assert client.plan(PROMPTS[:9], prefer="cost").route in real
    assert client.plan(PROMPTS, prefer="cost").route in {Route.BATCH, Route.FLEX}


def test_observed_batches_change_the_choice_of_later_processes(client, events):
    slow = client.plan(PROMPTS, strategy="batch")
    teach(client, 20.0)
    again = BatchingClient(
        "openai:gpt-5-mini",
        provider_options={"api_key": "k" * 20, "base_url": "http://127.0.0.1:9/v1"},
        store=client.config.store,
    )
    fast = again.plan(PROMPTS, strategy="batch")
    assert slow.p50 > 600
    assert fast.p50 < 60


@pytest.mark.parametrize("strategy", ["auto", "batch"])
def test_the_first_plan_of_a_process_knows_how_long_answers_were(strategy, client):
    client.plan(PROMPTS, strategy=strategy)
    learned = inside(client).history.calibration("openai:gpt-5-mini", Kind.GENERATE)
    for _ in range(50):
        learned.observe(20, Usage(22, 7), SHAPES.of(Generation(max_tokens=200)).key)
    inside(client).history.save()
    known = client.plan(PROMPTS, strategy=strategy)
    again = BatchingClient(
        "openai:gpt-5-mini",
        provider_options={"api_key": "k" * 20, "base_url": "http://127.0.0.1:9/v1"},
        store=client.config.store,
        max_tokens=200,
    )
    assert known.as_dict()["tokens_out"] == pytest.approx(7 * len(PROMPTS))
    assert again.plan(PROMPTS, strategy=strategy).cost == pytest.approx(known.cost)


def test_the_threshold_moves_with_what_was_seen_and_says_why(client, events, monkeypatch):
    client.plan(PROMPTS)
    teach(client, 15.0)
    monkeypatch.setattr("smartbatch.routing.history.REFRESH_SECONDS", 0.0)
    client.plan(PROMPTS)  # reads the store and learns from it
    client.plan(PROMPTS)
    (moved,) = [event for event in events if isinstance(event, ThresholdMoved)]
    assert any(isinstance(event, ForecastMoved) for event in events)
    assert moved.after is not None
    assert moved.before is None or moved.after < moved.before
    assert re.search(r"median of batch answers is now .* (s|min|h), previously .* (s|min|h): ", moved.reason)


def test_a_plan_tells_nobody_and_a_list_tells_its_choice_and_its_score(events):
    client = BatchingClient("sim:demo", observers=[events.append])
    client.plan(PROMPTS[:5])
    assert not events
    with client:
        results = client.generate(PROMPTS[:5], purpose="labels")
    (chosen,) = [event for event in events if isinstance(event, RouteChosen)]
    (scored,) = [event for event in events if isinstance(event, RouteScored)]
    assert (chosen.purpose, chosen.requests, chosen.route) == ("labels", 5, Route.INDIVIDUAL)
    assert scored.decision_id == chosen.decision_id
    assert 0 < scored.seconds <= results.wall
    assert "routes" in client.status_summary()
