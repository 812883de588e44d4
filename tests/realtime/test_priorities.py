"""The order of service, in which no request starves (A4)."""

from __future__ import annotations

import pytest
from levels import sampled
from scenes import PATIENCE, Embedder, InTime, Scripted, broken, submit_all

from smartbatch.realtime.ticket import PATIENCE_SECONDS as PATIENCE_OF
from smartbatch.realtime.ticket import latest_start
from smartbatch.types import Priority


def one_by_one(clock, client_of, **settings):
    provider = Scripted(clock)
    return provider, client_of(provider, **{"parallelism": 1, **settings})


def test_priorities_are_served_in_their_order(clock, client_of):
    provider, client = one_by_one(clock, client_of)
    with clock.held():
        client.submit("first")
        provider.wait_for(1)
        for priority in sorted(Priority):
            submit_all(client, [f"{priority.name} 1", f"{priority.name} 2"], priority=priority)
    client.stop()
    expected = [f"{p.name} {i}" for p in sorted(Priority, reverse=True) for i in (1, 2)]
    assert provider.prompts[1:] == expected


def test_a_low_request_that_waited_long_goes_before_a_new_normal_one(clock, client_of):
    provider = Scripted(clock, latency=lambda prompt: 115.0 if prompt == "first" else 1.0)
    client = client_of(provider, parallelism=1)
    with clock.held():
        client.submit("first")
        provider.wait_for(1)
        client.submit("low", priority="low")

        def later():
            clock.sleep(114.0)
            client.submit("new normal")
            client.submit("new high", priority="high")

        traffic = InTime(clock, later)
    traffic.result()
    client.stop()
    assert provider.prompts == ["first", "new high", "low", "new normal"]


def test_a_nearer_deadline_goes_first(clock, client_of):
    provider, client = one_by_one(clock, client_of)
    with clock.held():
        client.submit("first")
        provider.wait_for(1)
        client.submit("no deadline")
        client.submit("nine seconds", timeout=9)
        client.submit("five seconds", timeout=5)
    client.stop()
    assert provider.prompts == ["first", "five seconds", "nine seconds", "no deadline"]


@pytest.mark.parametrize("priority", list(Priority))
def test_a_distant_deadline_makes_nobody_later(priority):
    start = latest_start(100.0, priority, None)
    assert start == 100.0 + PATIENCE_OF[priority]
    assert latest_start(100.0, priority, start + 1) == start
    assert latest_start(100.0, priority, start - 1) == start - 1


@pytest.mark.full
def test_no_priority_starves_under_an_hour_of_too_much_traffic(clock, client_of):
    provider = Scripted(clock)
    client = client_of(provider, parallelism=1, queue_capacity=10_000, deduplicate=False)
    waits = {"low": [], "deferrable": []}

    def note(priority, at):
        return lambda future: waits[priority].append((at, future.result().queued))

    def traffic():
        for i in range(4_500):
            client.submit(f"normal {i}")
            if i % 100 == 0:
                for priority in waits:
                    future = client.submit(f"{priority} {i}", priority=priority)
                    future.add_done_callback(note(priority, clock.now()))
            clock.sleep(0.8)

    InTime(clock, traffic).result()
    client.stop(timeout=0)  # the backlog, with the latest requests, still exists at 3,600 s
    patience = {"low": 120.0, "deferrable": 240.0}
    for priority, start in patience.items():
        started = [(at, wait) for at, wait in waits[priority] if wait < 3_000]
        # served by latest start at 0.8 of the arrival rate: 1.25 x (arrival + patience)
        due = [at for at, _ in waits[priority] if 1.3 * (at + start) < 3_500]
        assert due
        assert all(wait <= 1.3 * (at + start) - at + 10 for at, wait in started if at in due)
        assert {at for at, _ in started} >= set(due)


@pytest.mark.full
@pytest.mark.parametrize("lanes", sampled([1, 2], keep=1))
def test_nobody_starves_behind_a_stream_of_urgent_requests(lanes, clock, client_of):
    provider = Embedder(clock)
    client = client_of(provider, parallelism=2, queue_capacity=10_000, deduplicate=False)
    submit = client.submit if lanes == 1 else client.submit_embedding

    def traffic():
        futures = []
        for i in range(1_330):
            client.submit_urgent(f"urgent {i}")
            if i == 20:
                futures = [submit(f"later {i}", priority="deferrable") for i in range(500)]
            clock.sleep(0.45)  # the two workers take one request every half second
        return futures

    later = InTime(clock, traffic).result()
    first = later[0].result(PATIENCE)
    client.stop(timeout=0)
    assert first.queued <= 300
    overdue = [start.prompt for start in provider.starts if 250 < start.at < 598]
    given_up = sum(prompt.startswith("later") for prompt in overdue) / len(overdue)
    assert given_up <= 0.052
    assert lanes == 2 or given_up >= 0.04, "vectors share calls, so that five of them are enough"
    assert not [start for start in provider.starts if start.at < 239 and start.prompt.startswith("later")]


@pytest.mark.parametrize("vector", [False, True], ids=["in its lane", "among all lanes"])
def test_a_retry_keeps_the_place_its_request_had(vector, clock, client_of):
    provider = Embedder(clock, lambda prompt, attempt: broken() if (prompt, attempt) == ("a", 0) else "fine")
    client = client_of(provider, parallelism=1, retry_initial=1.0)
    with clock.held():
        first = client.submit_embedding("a") if vector else client.submit("a")
        provider.wait_for(1)
        rest = InTime(clock, lambda: (clock.sleep(0.1), submit_all(client, [f"p{i}" for i in range(20)]))[1])
    assert all(future.result(PATIENCE).ok for future in [first, *rest.result()])
    assert provider.prompts.index("a", 1) <= 3
