"""Deferrable requests are collected, sent as a batch, and answered as in real time."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from forked import exit_code_of_child
from jobs.remote import Remote
from realtime.scenes import eventually

from smartbatch.client import BatchingClient
from smartbatch.errors import ClientClosed, ConfigError, QueueFull, StoreError, WrongProcess
from smartbatch.events import Event, RequestFinished, RouteChosen, RouteScored
from smartbatch.jobs.store.jobs import JobTable
from smartbatch.prices import Price
from smartbatch.types import Answer, Priority, Request, Result, Route

ClientOf = Callable[..., BatchingClient]
LONG = 3_600.0


@pytest.fixture
def deferring(client_of, store):
    return partial(client_of, store=store, deferrable="batch")


@pytest.fixture
def client(deferring, remote):
    return deferring(remote)


def deferred(client: BatchingClient, count: int, **params: Any) -> list[Future[Result]]:
    return [client.submit_background(f"p{n}", **params) for n in range(count)]


def results(futures: list[Future[Result]]) -> list[Result]:
    return [future.result() for future in futures]


def routes(futures: list[Future[Result]]) -> set[Route | None]:
    return {future.result().route for future in futures}


def batches(remote: Remote) -> list[int]:
    assert remote.api is not None
    return [len(batch.lines) for batch in remote.api.made.values()]


# -- collecting --------------------------------------------------------------------------------------------


def test_deferrable_requests_are_sent_as_one_batch(deferring, remote):
    seen: list[Result] = []
    client = deferring(remote, post_process=lambda result: seen.append(result))
    contexts = [object() for _ in range(12)]
    futures = [client.submit_background(f"p{n}", context=contexts[n], id=f"row-{n}") for n in range(12)]
    answers = results(futures)
    assert [answer.text for answer in answers] == [f"by batch: p{n}" for n in range(12)]
    assert [answer.context for answer in answers] == contexts
    assert [answer.request_id for answer in answers] == [f"row-{n}" for n in range(12)]
    assert {answer.route for answer in answers} == {Route.BATCH}
    assert sorted(str(result.text) for result in seen) == sorted(str(answer.text) for answer in answers)
    assert batches(remote) == [12]
    assert remote.asked == []


def test_a_batch_is_gathered_until_no_further_request_comes(client, remote, clock):
    futures = []
    for n in range(12):
        futures.append(client.submit_background(f"p{n}"))
        clock.sleep(5.0)
    clock.sleep(25.0)
    futures += [client.submit_background(f"q{n}") for n in range(10)]
    results(futures)
    assert batches(remote) == [12, 10]


@pytest.mark.full
def test_nobody_waits_for_others_longer_than_four_minutes(client, remote, clock):
    futures = []
    for n in range(60):
        futures.append(client.submit_background(f"p{n}"))
        clock.sleep(7.0)
    results(futures)
    assert batches(remote) == [35, 25]


@pytest.mark.parametrize("flushed", [True, False])
def test_a_full_or_flushed_group_is_sent_immediately(flushed, deferring, remote, clock):
    client = deferring(remote, batch_max_requests=20)
    began = clock.wall()
    futures = deferred(client, 12 if flushed else 20)
    if flushed:
        client.flush()
    results(futures)
    assert batches(remote) == [len(futures)]
    assert client.jobs()[0].created_at == began


# -- sent in real time -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "settings", "params"),
    [
        (9, {}, {}),
        (12, {"deferrable": "realtime"}, {}),
        (12, {}, {"priority": Priority.LOW}),
        (12, {}, {"timeout": 60.0}),
        (12, {}, {"purpose": "chat"}),
    ],
)
def test_some_requests_are_sent_in_real_time(count, settings, params, deferring, remote):
    client = deferring(remote, prefer_individual_for="chat", **settings)
    assert routes(deferred(client, count, **params)) == {Route.INDIVIDUAL}
    assert client.jobs() == []


def test_functions_and_providers_without_batches_are_called_immediately(client, deferring, clock):
    calls = [Request(call=lambda request, attempt: "mine", priority="deferrable") for _ in range(12)]
    assert {client.submit(call).result().text for call in calls} == {"mine"}
    assert routes(deferred(deferring(Remote(clock, batches=False)), 12)) == {Route.INDIVIDUAL}
    assert clock.now() < 1.0


@pytest.mark.catches("StoreError")
def test_without_a_store_they_go_in_real_time(client_of, remote, tmp_path, clock):
    place = tmp_path / "no-database"
    place.write_bytes(b"something else" * 1000)
    client = client_of(remote, store=str(place), deferrable="batch")
    assert routes(deferred(client, 12)) == {Route.INDIVIDUAL}
    assert clock.now() < 1.0


def test_a_hook_may_answer_one(deferring, remote):
    def known(request: Request) -> Answer | None:
        return Answer("known") if request.prompt == "p3" else None

    client = deferring(remote, preprocess=[known])
    answers = results(deferred(client, 12))
    assert answers[3].text == "known"
    assert batches(remote) == [11]


def test_batches_that_are_switched_off_contradict_it():
    with pytest.raises(ConfigError, match=r"deferrable .* batch_enabled"):
        BatchingClient("sim:demo", deferrable="batch", batch_enabled=False)


# -- shared answers ----------------------------------------------------------------------------------------


def test_equal_requests_are_paid_once(client, remote):
    first = [client.submit_background(f"p{n % 12}") for n in range(15)]
    client.flush()
    later = client.submit_background("p3")
    client.flush()
    answers = results([*first, later])
    assert [answer.text for answer in answers] == [f"by batch: p{n % 12}" for n in [*range(15), 3]]
    assert [answer.deduplicated for answer in answers] == [False] * 12 + [True] * 4
    assert batches(remote) == [12]
    assert remote.asked == []


@pytest.mark.parametrize("stopped", [True, False])
def test_clients_of_one_store_share_batches(stopped, deferring, remote, clock):
    first, second = (deferring(remote) for _ in range(2))
    deferred(first, 12)
    first.flush()
    clock.sleep(5.0)
    if stopped:
        first.stop(timeout=0)
        for n in range(4):
            second.submit(f"q{n}", durable=True).result()
    assert [answer.text for answer in results(deferred(second, 12))] == [f"by batch: p{n}" for n in range(12)]
    assert batches(remote) == [12]


@pytest.mark.full
def test_requests_that_are_not_to_be_deduplicated_are_each_sent(client, clock, remote):
    futures = []
    for _ in range(2):  # the second twelve are submitted while the first wait for their batch
        with clock.held():
            futures += [client.submit_background("the same", deduplicate=False) for _ in range(12)]
            client.flush()
        clock.sleep(5.0)
    assert not any(answer.deduplicated for answer in results(futures))
    assert sum(batches(remote)) == 24


@pytest.mark.parametrize("same_client", [True, False])
def test_a_delivered_answer_is_not_delivered_again(same_client, deferring, remote):
    first = deferring(remote)
    second = first if same_client else deferring(remote, seed_of_rng=2)
    results(deferred(first, 12))
    assert {answer.deduplicated for answer in results(deferred(second, 12))} == {False}
    assert batches(remote) == [12, 12]


@pytest.mark.full
def test_requests_of_a_cancelled_job_are_sent_again(deferring, remote, clock):
    first, second = deferring(remote), deferring(remote, seed_of_rng=2)
    deferred(first, 12)
    first.flush()
    clock.sleep(5.0)
    first.stop(cancel_waiting=True)
    second.jobs()[0].cancel()
    assert all(answer.ok for answer in results(deferred(second, 12)))
    assert batches(remote) == [0, 12]


def test_a_budget_holds_back_what_a_batch_can_cost_and_not_all_there_is(deferring, clock):
    remote = Remote(clock, priced=True)
    prices = {"remote:default": Price(input=1.0, output=1.0)}
    client = deferring(remote, budget=1.0, prices=prices)
    first = deferred(client, 12, max_tokens=100)
    client.flush()
    clock.sleep(1.0)
    second = [client.submit_background(f"q{n}", max_tokens=100) for n in range(12)]
    client.flush()
    clock.sleep(1.0)
    assert client.submit("now", max_tokens=100).result().ok
    answers = results([*first, *second])
    assert {answer.route for answer in answers} == {Route.BATCH}
    assert batches(remote) == [12, 12]
    assert 0 < client.spent < 0.01


@pytest.mark.catches("StoreError")
def test_requests_that_cannot_be_stored_go_in_real_time(client, remote, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(JobTable, "accept", full)
    assert routes(deferred(client, 12)) == {Route.INDIVIDUAL}
    assert batches(remote) == []


@pytest.mark.full
def test_answers_that_cannot_be_read_are_kept_for_whoever_can(deferring, remote, store):
    client = deferring(remote)
    assert client.jobs() == []
    unread = "UPDATE result SET body = CAST(replace(CAST(body AS TEXT), ?, ?) AS BLOB)"
    with closing(sqlite3.connect(store)) as behind:
        garbled = unread.replace("?", "'\"v\":'", 1).replace("?", "'\"w\":'")
        behind.execute(f"CREATE TRIGGER newer AFTER INSERT ON result BEGIN {garbled}; END")
        for future in deferred(client, 12):
            with pytest.raises(StoreError, match="damaged"):
                future.result()
        client.stop()
        behind.execute(unread, ('"w":', '"v":'))
        behind.commit()
    assert [answer.text for answer in results(deferred(deferring(remote), 12))] == [
        f"by batch: p{n}" for n in range(12)
    ]
    assert batches(remote) == [12]


def test_the_job_is_a_decision_that_is_told_and_scored(deferring, remote):
    events: list[Event] = []
    client = deferring(remote, observers=[events.append])
    results(deferred(client, 12, purpose="labels"))
    client.stop()
    (chosen,) = [event for event in events if isinstance(event, RouteChosen)]
    (scored,) = [event for event in events if isinstance(event, RouteScored)]
    assert (chosen.route, chosen.requests, chosen.purpose) == (Route.BATCH, 12, "labels")
    assert (scored.decision_id, scored.requests) == (chosen.decision_id, 12)
    assert client.metrics.snapshot().decisions.chosen == {"batch": 1}


# -- cancelling and stopping ---------------------------------------------------------------------------------


def test_a_request_is_withdrawn_before_its_batch_and_not_after(client, remote):
    futures = deferred(client, 13)
    assert futures[5].cancel()
    assert wait(futures[5:6], timeout=1).done == {futures[5]}
    client.flush()
    futures[0].result()
    assert batches(remote) == [12]
    with pytest.raises(CancelledError):
        futures[5].result()


def test_cancelling_pending_requests_withdraws_them(client, remote):
    futures = deferred(client, 13)
    assert client.cancel_pending() == 13
    assert all(future.cancelled() for future in futures)
    assert batches(remote) == []


def test_a_request_cancelled_on_its_way_to_real_time_is_not_sent(deferring, remote, monkeypatch):
    seen: list[Event] = []
    client = deferring(remote, observers=[seen.append])
    futures: list[Future[Result]] = []
    find = JobTable.find_named

    def cancelled_meanwhile(self: JobTable, names: Sequence[str]) -> Any:
        futures[0].cancel()
        return find(self, names)

    monkeypatch.setattr(JobTable, "find_named", cancelled_meanwhile)
    futures += deferred(client, 3)
    client.flush()
    assert routes(futures[1:]) == {Route.INDIVIDUAL}
    client.stop()
    ends = [event for event in seen if isinstance(event, RequestFinished)]
    assert sorted(event.cancelled for event in ends) == [False, False, True]
    assert client.metrics.snapshot().waiting == 0


@pytest.mark.full
def test_what_a_full_queue_does_not_take_fails_with_its_reason(deferring, clock):
    client = deferring(Remote(clock, latency=1.0), parallelism=1, queue_capacity=100, queue_full="raise")
    with clock.held():
        client.submit("running")
        eventually(lambda: client.counts.in_flight == 1)
        for number in range(100):
            client.submit(f"waiting {number}")
        futures = deferred(client, 3)
        client.flush()
        eventually(lambda: all(future.done() for future in futures))
    assert [type(future.exception()) for future in futures] == [QueueFull] * 3


@pytest.mark.full
def test_cancelling_all_reaches_those_that_are_just_being_sent(client, remote, monkeypatch):
    cancelled: list[int] = []
    find = JobTable.find_named

    def meanwhile(self: JobTable, names: Sequence[str]) -> Any:
        cancelled.append(client.cancel_pending())
        return find(self, names)

    monkeypatch.setattr(JobTable, "find_named", meanwhile)
    for count in (3, 13):
        futures = deferred(client, count)
        client.flush()
        assert wait(futures, timeout=LONG).not_done == set()
        assert all(future.cancelled() for future in futures)
    client.stop()
    assert cancelled == [3, 13]
    assert (remote.asked, batches(remote)) == ([], [])


def test_a_forked_child_has_no_future_of_requests_being_sent(client, monkeypatch):
    futures: list[Future[Result]] = []
    codes: list[int] = []

    def forked(work: Callable[..., Any]) -> Callable[..., Any]:
        def forking(*args: Any) -> Any:
            codes.append(exit_code_of_child(lambda: isinstance(futures[0].exception(0), WrongProcess)))
            return work(*args)

        return forking

    monkeypatch.setattr(JobTable, "find_named", forked(JobTable.find_named))
    futures += deferred(client, 1)
    client.flush()
    assert futures[0].result(LONG).ok
    assert codes == [0]


def test_a_stop_waits_for_the_batch_or_fails_what_is_not_sent(client, deferring, remote):
    futures = deferred(client, 12)
    client.stop()
    assert all(future.done() for future in futures)
    assert routes(futures) == {Route.BATCH}
    second = deferring(remote)
    futures = deferred(second, 3)
    second.stop(timeout=0)
    assert {type(future.exception(timeout=0)) for future in futures} == {ClientClosed}


def test_a_stop_that_does_not_wait_leaves_the_job_to_the_next_client(client, deferring, remote, clock):
    futures = deferred(client, 12)
    client.flush()
    clock.sleep(20.0)
    client.stop(cancel_waiting=True)
    for future in futures:
        with pytest.raises(ClientClosed, match="nothing is lost"):
            future.result()
    assert batches(remote) == [12]

    second = deferring(remote)
    answers = results(deferred(second, 12))
    assert [answer.text for answer in answers] == [f"by batch: p{n}" for n in range(12)]
    assert batches(remote) == [12]
    assert remote.asked == []


def test_a_hook_may_stop_the_client_that_settles_it(deferring, remote):
    stopping: list[BatchingClient] = []
    settling: list[threading.Thread] = []

    def stop(_: Result) -> None:
        settling.append(threading.current_thread())
        stopping[0].stop()

    client = deferring(remote, post_process=stop)
    stopping.append(client)
    assert all(answer.ok for answer in results(deferred(client, 12)))
    client.stop()
    settling[0].join(60.0)
    assert not settling[0].is_alive()


@pytest.mark.full
def test_a_time_out_is_kept_in_real_time_where_the_batch_is_late(deferring, clock):
    remote = Remote(clock, turnaround=1e6)
    client = deferring(remote)
    began = clock.now()
    answers = results(deferred(client, 12, timeout=7200.0))
    assert {answer.route for answer in answers} == {Route.INDIVIDUAL}
    assert clock.now() - began < 7200.0
    assert batches(remote) == [0]
