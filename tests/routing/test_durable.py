"""Durable requests are stored: the same submit in any process finds the answer."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from attrs import frozen
from jobs.remote import Remote

from smartbatch import BatchingClient
from smartbatch.errors import (
    ClientClosed,
    ConfigError,
    InvalidRequest,
    JobConflict,
    SmartbatchError,
    StoreError,
)
from smartbatch.jobs.store import jobs as jobs_module
from smartbatch.types import Request, Route

ClientOf = Callable[..., BatchingClient]
LONG = 3_600.0


@pytest.fixture
def client(client_of, remote, store):
    return client_of(remote, store=store)


@pytest.mark.parametrize("key", [None, "mine"])
def test_the_same_submit_finds_its_answer_in_another_process(key, client_of, store, remote):
    context = object()
    first = client_of(remote, store=store).submit("a", durable=True, key=key, context=context, id="one")
    assert first.result(LONG).text == "re: a"
    assert (first.result().context, first.result().request_id) == (context, "one")
    again = client_of(remote, store=store, seed_of_rng=2).submit("a", durable=True, key=key).result(LONG)
    assert (again.text, again.cost, again.route) == ("re: a", 0.0, Route.CACHED)
    assert remote.asked == ["a"]


def test_a_request_is_stored_by_the_time_submit_returns(client_of, clock, store):
    client = client_of(Remote(clock, latency=LONG), store=store)
    other = client_of(Remote(clock), store=store, seed_of_rng=2)
    for count in range(1, 4):
        client.submit(f"p{count}", durable=True)
        assert sum(job.total for job in other.jobs()) == count


@pytest.mark.full
def test_a_process_that_dies_right_after_submit_has_stored_the_request(tmp_path):
    store = str(tmp_path / "jobs.db")
    program = f"""
import os
from smartbatch import BatchingClient
client = BatchingClient("sim:demo?latency=0.3", store={store!r}, shared="off")
client.submit("a", key="mine")
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    with BatchingClient("sim:demo?latency=0.3", store=store, shared="off") as client:
        assert [job.total for job in client.jobs()] == [1]
        assert client.submit("a", key="mine").result(60).ok
        assert [job.total for job in client.jobs()] == [1]


def test_requests_join_the_job_of_earlier_ones_while_it_runs(client_of, clock, store):
    remote = Remote(clock, latency=1.0)
    client = client_of(remote, store=store)
    futures = [client.submit(f"p{n}", durable=True) for n in range(50)]
    assert [future.result(LONG).text for future in futures] == [f"re: p{n}" for n in range(50)]
    assert [job.total for job in client.jobs()] == [50]
    assert sorted(remote.asked) == sorted(f"p{n}" for n in range(50))
    assert client.submit("later", durable=True).result(LONG).ok
    assert [job.total for job in client.jobs()] == [1, 50]


@pytest.mark.full
def test_a_job_of_single_requests_has_a_bounded_size(client_of, clock, store, monkeypatch):
    monkeypatch.setattr(jobs_module, "MAX_JOINED_ITEMS", 20)
    client = client_of(Remote(clock, latency=1.0), store=store)
    futures = [client.submit(f"p{n}", durable=True) for n in range(50)]
    assert all(future.result(LONG).ok for future in futures)
    assert [job.total for job in client.jobs()] == [10, 20, 20]


@pytest.mark.full
def test_requests_of_many_threads_are_each_answered_once(client_of, clock, store):
    remote = Remote(clock, latency=1.0)
    client = client_of(remote, store=store)
    with ThreadPoolExecutor(16) as pool:
        futures = list(pool.map(lambda n: client.submit(f"p{n}", durable=True), range(60)))
    assert [future.result(LONG).text for future in futures] == [f"re: p{n}" for n in range(60)]
    assert sorted(remote.asked) == sorted(f"p{n}" for n in range(60))


def test_equal_requests_of_one_process_share_one_answer(client_of, clock, store):
    remote = Remote(clock, latency=1.0)
    client = client_of(remote, store=store)
    futures = [client.submit("a", durable=True, context=n) for n in range(3)]
    clock.sleep(0.5)
    futures.append(client.submit("a", durable=True, context=3))
    results = [future.result(LONG) for future in futures]
    assert [result.context for result in results] == [0, 1, 2, 3]
    assert [result.deduplicated for result in results] == [False, True, True, True]
    assert remote.asked == ["a"]


def test_what_a_live_process_asks_is_not_asked_again(client_of, clock, store):
    remotes = [Remote(clock, latency=5.0), Remote(clock)]
    first, second = (client_of(remote, store=store, seed_of_rng=n) for n, remote in enumerate(remotes))
    future = first.submit("a", durable=True)
    clock.sleep(1.0)
    assert second.submit("a", durable=True).result(LONG).text == "re: a"
    assert future.result(LONG).text == "re: a"
    assert remotes[1].asked == []


def test_a_request_of_a_stopped_client_is_sent_by_the_same_submit(client_of, clock, store):
    remote = Remote(clock, latency=5.0)
    first = client_of(remote, store=store, parallelism=1)
    futures = [first.submit(prompt, durable=True) for prompt in "abc"]
    clock.sleep(1.0)
    first.stop(30.0, cancel_waiting=True)
    asked = len(remote.asked)
    assert asked < 3
    assert any(isinstance(future.exception(LONG), ClientClosed) for future in futures)
    second = client_of(remote, store=store, seed_of_rng=2)
    results = [second.submit(prompt, durable=True).result(LONG) for prompt in "abc"]
    assert [result.text for result in results] == ["re: a", "re: b", "re: c"]
    assert sorted(remote.asked) == ["a", "b", "c"]


def test_a_stop_waits_for_the_answers(client_of, clock, store):
    client = client_of(Remote(clock, latency=5.0), store=store)
    future = client.submit("a", durable=True)
    client.stop()
    assert future.result(0).text == "re: a"


def test_a_request_cancelled_before_it_is_sent_is_removed_from_the_store(client_of, clock, store):
    remote = Remote(clock, latency=10.0)
    client = client_of(remote, store=store, parallelism=1)
    futures = [client.submit(f"p{n}", durable=True) for n in range(4)]
    clock.sleep(1.0)
    assert remote.asked == ["p0"]
    assert [future.cancel() for future in futures] == [False, True, True, True]
    assert futures[0].result(LONG).text == "re: p0"
    assert [future.cancelled() for future in futures] == [False, True, True, True]
    clock.sleep(60.0)
    assert remote.asked == ["p0"]
    assert client.submit("p1", durable=True).result(LONG).text == "re: p1"
    assert client.submit("p0", durable=True).result(LONG).route is Route.CACHED


def test_who_cancels_takes_nothing_from_those_who_wait_for_the_same(client_of, clock, store):
    client = client_of(Remote(clock, latency=10.0), store=store)
    first, second = (client.submit("a", durable=True) for _ in range(2))
    clock.sleep(1.0)
    assert first.cancel()
    assert second.result(LONG).text == "re: a"
    assert not second.result().deduplicated


def test_a_class_means_the_same_in_every_process(client_of, clock, store):
    def schema() -> type[Any]:
        @frozen
        class City:
            name: str

        return City

    remote = Remote(clock, reply=lambda _: '{"name": "Oslo"}')
    for seed in range(2):
        own = schema()
        client = client_of(remote, store=store, seed_of_rng=seed)
        assert client.submit("a", durable=True, schema=own).result(LONG).parsed == own("Oslo")
        assert client.generate(["b"], key="cities", schema=own)[0].parsed == own("Oslo")
    assert sorted(remote.asked) == ["a", "b"]


@pytest.mark.catches("RuntimeError")
def test_an_answer_that_no_thread_could_wait_for_is_found_next_time(clock, monkeypatch, remote, client):
    start, refused = threading.Thread.start, list[str]()

    def refuses(thread: threading.Thread) -> None:
        if thread.name == "smartbatch-job" and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuses)
    with pytest.raises(SmartbatchError, match="RuntimeError"):
        client.submit("a", key="mine").result(60.0)
    again = client.submit("a", key="mine")
    clock.sleep(60.0)
    assert again.result(0).text == "re: a"
    assert remote.asked == ["a"]


def test_another_request_under_a_key_is_a_conflict(remote, client):
    future = client.submit("a", key="mine")
    with pytest.raises(JobConflict, match="mine"):
        client.submit("b", key="mine")
    with pytest.raises(JobConflict, match="mine"):
        client.submit("a", key="mine", temperature=0.5)
    assert future.result(LONG).text == "re: a"
    assert remote.asked == ["a"]


def test_a_forgotten_answer_is_asked_again(remote, client):
    assert client.submit("a", durable=True).result(LONG).ok
    client.jobs()[0].forget()
    assert client.submit("a", durable=True).result(LONG).route is Route.INDIVIDUAL
    assert remote.asked == ["a", "a"]


def test_what_cannot_stand_in_a_store_is_refused(client_of, clock, store, tmp_path, client):
    with pytest.raises(InvalidRequest, match="call"):
        client.submit(Request("a", call=lambda _request, _attempt: "mine"), durable=True)
    with pytest.raises(InvalidRequest, match="durable"):
        client.submit("a", durable=False, key="mine")
    with pytest.raises(InvalidRequest, match="durable"):
        client.stream("a", durable=True)  # type: ignore[call-arg]
    (tmp_path / "file").write_text("no folder")
    lost = client_of(Remote(clock), store=str(tmp_path / "file" / "jobs.db"), seed_of_rng=2)
    with pytest.raises((StoreError, ConfigError)):
        lost.submit("a", durable=True)
