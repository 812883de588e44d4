"""The page of models: what the store and the processes know of each."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs.remote import Remote

from smartbatch.client import BatchingClient
from smartbatch.dashboard import app
from smartbatch.dashboard.source import SharedView, Source
from smartbatch.jobs.store import open_store
from smartbatch.jobs.summary_records import late_name
from smartbatch.observe.participants import LaneStatus, Participant, Participants, RealtimeStatus
from tests.dashboard.visits import LOCAL, Visitor

ClientOf = Callable[..., BatchingClient]
AT = 1_700_000_000.0


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "jobs.db")


@pytest.fixture
def visitor(place):
    return Visitor(app(access=LOCAL, store=place, shared="off"))


def test_without_a_store_nothing_is_known(visitor, place):
    text = visitor.get("/models").words
    assert "No calls yet" in text
    assert "No batch has ended yet." in text
    assert "No model was used in the last week." in text
    assert not Path(place).exists()


@pytest.mark.full
def test_what_a_client_learned_is_shown_by_model_and_route(client_of, clock, visitor, place):
    client = client_of(Remote(clock, latency=2.0, turnaround=600.0), store=place)
    for number in range(4):
        client.submit(f"prompt {number}").result()
    client.submit_batch([f"prompt {number}" for number in range(4)]).wait()
    client.generate(["a", "b", "c", "d"])
    client.stop()
    text = visitor.get("/models").words
    found = re.search(r"remote:default individual (\d+) 2 s 2 s 2 s 0 ", text)
    assert found is not None
    assert int(found[1]) >= 4
    assert re.search(r"remote:default batch 1 1\d(\.\d)? min", text)
    assert "remote:default no known price" in text


def test_quantiles_and_turnaround_by_the_hour_come_from_what_is_stored(visitor, place):
    store = open_store(place)
    rng = random.Random(3)
    took = [float(each) for each in range(1, 101)]
    rng.shuffle(took)
    store.facts.observe_turnarounds("latency flex openai:gpt-5-mini", [(1, each, AT) for each in took])
    store.facts.observe_turnarounds(late_name("latency flex openai:gpt-5-mini"), [(1, 300.0, AT)] * 7)
    created = [AT - 20 * 3600.0, AT - 20 * 3600.0, AT]  # at 02 and at 22 hours
    store.facts.observe_turnarounds(
        "openai:gpt-5-mini",
        [(9, each, at + each) for each, at in zip((60.0, 120.0, 600.0), created, strict=True)],
    )
    store.close()
    text = visitor.get("/models").words
    assert "openai:gpt-5-mini flex 100 50 s 95 s 99 s 7 2023-11-14 22:13:20" in text
    assert "openai:gpt-5-mini: p50 of 3 batches by hour of creation (UTC)" in text
    assert "2:00 60 s 22:00 10 min" in text


def test_prices_are_those_by_which_requests_are_counted(visitor, place):
    store = open_store(place)
    store.facts.observe_turnarounds("openai:gpt-5-mini", [(9, 60.0, AT)])
    store.close()
    text = visitor.get("/models").words
    assert re.search(r"openai:gpt-5-mini standard – 0\.25 0\.025 2 ", text)
    assert re.search(r"openai:gpt-5-mini batch – 0\.125 ", text)


def test_limits_are_those_that_processes_told_of_last(visitor, monkeypatch):
    def told(limit: float) -> Participant:
        lanes = (
            LaneStatus(model="gemini:m", quota="q", requests_per_minute=limit, processes=2),
            LaneStatus(model="gemini:nothing known", quota="r"),
        )
        realtime = RealtimeStatus(lanes=lanes)
        return Participant(member="m", host="h", pid=1, library="0", started=AT, realtime=realtime)

    view = SharedView(Participants(place="", processes=(told(1_234.0), told(99.0))))
    monkeypatch.setattr(Source, "participants", lambda _: view)
    text = visitor.get("/models").words
    assert "gemini:m 1,234 – – – – 2" in text
    assert text.count("gemini:nothing known") == 1  # among the prices
