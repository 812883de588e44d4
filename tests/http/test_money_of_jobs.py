"""The cost of jobs. Each answer has 10 input and 5 output tokens."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest
from small_servers import small_claude

from smartbatch import BatchingClient, Generation, Request, Route
from smartbatch.errors import AllRequestsFailed, BudgetExceeded, ProviderError
from smartbatch.events import RouteScored, ShardChanged

MODEL = "anthropic:claude-haiku-4-5"
ALONE = 35e-6
"""USD per request in real time; a batch costs half."""


def answer(body):
    return None if "refuse" in str(body["messages"]) else "an answer"


@pytest.fixture
def claude(monkeypatch):
    with small_claude(monkeypatch, answer) as server:
        yield server


@pytest.fixture
def client(claude, tmp_path):
    with BatchingClient(MODEL, store=str(tmp_path / "jobs.db")) as opened:
        yield opened


# -- the cost of a list --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("route", "cost"), [("individual", 2 * ALONE), ("batch", ALONE)])
def test_a_refused_request_costs_nothing(client, route, cost):
    results = client.generate(["one", "refuse this", "two"], strategy=route)
    assert isinstance(results[1].error, ProviderError)
    assert results[1].cost == 0.0
    assert results.cost == pytest.approx(cost)
    assert (results.cost_known, results.unpriced) == (True, ())


def test_a_request_that_a_budget_keeps_from_a_batch_cost_nothing(claude, tmp_path):
    with BatchingClient(MODEL, store=str(tmp_path / "jobs.db"), budget=0.0002) as client:
        job = client.submit_batch(["one", "two " * 2000], max_tokens=30)
        first, second = job.results()
    assert first.cost == pytest.approx(ALONE / 2)
    assert isinstance(second.error, BudgetExceeded)
    assert second.cost == 0.0


@pytest.mark.parametrize("route", ["individual", "batch"])
def test_a_list_of_an_unknown_price_has_a_cost_and_says_what_it_lacks(claude, tmp_path, route):
    with BatchingClient("anthropic:unheard-of", store=str(tmp_path / "jobs.db")) as client:
        results = client.generate(["one", "two"], strategy=route)
    assert f"{results.cost:.4f}" == "0.0000"
    assert not results.cost_known
    assert results.unpriced == ("anthropic:unheard-of",)


def test_an_answer_that_is_no_answer_is_paid_and_its_cost_is_told(claude, tmp_path):
    with BatchingClient(MODEL, store=str(tmp_path / "jobs.db"), validation_retries=0) as client:
        job = client.submit_batch(["one"], schema={"type": "object"})
        (result,) = job.results()
    assert not result.ok
    assert result.cost is not None
    assert job.status().cost == pytest.approx(1.5 * ALONE)  # by batch, and again in real time


@pytest.mark.parametrize(("model", "cost"), [(MODEL, ALONE), ("anthropic:unheard-of", None)])
def test_a_batch_that_is_settled_says_what_it_cost(claude, tmp_path, model, cost):
    settled = threading.Event()

    def watch(event):
        if isinstance(event, ShardChanged) and event.after == "settled":
            settled.set()

    with BatchingClient(model, store=str(tmp_path / "jobs.db"), observers=[watch]) as client:
        job = client.submit_batch(["one", "refuse this", "two"], batch_fallback="batch")
        job.wait()
        assert settled.wait(10)
        (shard,) = job.status().shards
    assert shard.cost == (None if cost is None else pytest.approx(cost))


# -- what a client counts ------------------------------------------------------------------------------------


def balanced(client):
    s = client.metrics.snapshot()
    return s.submitted == s.waiting + s.in_flight + s.succeeded + s.failed + s.cancelled


def test_a_client_counts_what_its_jobs_did_and_cost_by_route(client):
    client.generate(["alone", "refuse alone"], strategy="individual")
    client.submit_batch(["one", "refuse this", "two"]).wait()
    client.stop()  # a future completes before observers are notified
    figures = client.metrics.snapshot()
    assert balanced(client)
    assert (figures.submitted, figures.succeeded, figures.failed) == (5, 3, 2)
    assert figures.by_priority["job"] == 3
    by_route = figures.by_route
    assert {name: (each.succeeded, each.failed) for name, each in by_route.items()} == {
        "individual": (1, 1),
        "batch": (2, 1),
    }
    assert (by_route["batch"].input_tokens, by_route["batch"].output_tokens) == (20, 10)
    assert by_route["batch"].cost == pytest.approx(ALONE)
    assert (figures.usage.input_tokens, figures.usage.output_tokens) == (30, 15)
    assert client.spent == figures.cost == pytest.approx(2 * ALONE)
    assert figures.jobs_cost == pytest.approx(ALONE)
    assert figures.jobs_saved == pytest.approx(ALONE)
    summary = client.status_summary()
    assert "5 submitted: 0 waiting, 0 in flight, 3 succeeded, 2 failed" in summary
    assert "by route batch" in summary


def test_requests_of_a_job_in_real_time_count_once(client):
    results = client.submit_and_wait(["one", "two"])
    client.stop()  # a future completes before observers are notified
    figures = client.metrics.snapshot()
    assert balanced(client)
    assert (figures.submitted, figures.succeeded) == (2, 2)
    assert "job" not in figures.by_priority
    assert client.spent == figures.cost == figures.jobs_cost == pytest.approx(results.cost) == 2 * ALONE
    assert figures.jobs_saved == pytest.approx(0.0)


def test_each_process_counts_what_it_stored(claude, tmp_path):
    store = str(tmp_path / "jobs.db")
    with BatchingClient(MODEL, store=store, batch_poll_interval=60.0) as first:
        job = first.submit_batch(["one", "two"])
    assert first.spent == 0.0
    with BatchingClient(MODEL, store=store) as second:
        second.job(job.id).wait()
        assert second.spent == pytest.approx(ALONE)
        assert second.metrics.snapshot().succeeded == 2
    assert len(claude.asked) == 2
    with BatchingClient(MODEL, store=store) as third:
        assert len(list(third.job(job.id).results())) == 2
        assert third.spent == 0.0


def test_requests_of_a_job_that_were_not_sent_count_as_such(claude, tmp_path):
    with BatchingClient(MODEL, store=str(tmp_path / "jobs.db"), budget=1e-6, max_tokens=30) as client:
        client.submit_batch(["one", "two"]).wait()
        figures = client.metrics.snapshot()
    assert not claude.asked
    assert (figures.submitted, figures.failed, figures.by_route["none"].failed) == (2, 2, 2)
    assert (client.spent, figures.cost) == (0.0, 0.0)


# -- what a route saved --------------------------------------------------------------------------------------


def scores(client):
    told = []
    client.observe(lambda event: told.append(event) if isinstance(event, RouteScored) else None)
    return told


@pytest.mark.parametrize("route", ["individual", "batch", "hybrid"])
def test_a_choice_is_held_against_the_same_tokens_by_the_other_routes(client, route):
    told = scores(client)
    results = client.generate([f"question {n}" for n in range(8)], strategy=route)
    (scored,) = told
    assert scored.cost == pytest.approx(results.cost)
    assert scored.individual_cost == pytest.approx(8 * ALONE)
    if route != "individual":
        assert scored.batch_cost == pytest.approx(4 * ALONE)
    decisions = client.metrics.snapshot().decisions
    assert decisions.saved_usd == pytest.approx(8 * ALONE - results.cost)


def test_what_no_call_answered_saved_nothing(client):
    told = scores(client)
    client.generate(["the same"] * 4 + ["refuse this"], strategy="individual")
    assert told[0].cost == told[0].individual_cost == pytest.approx(ALONE)


@pytest.mark.parametrize("route", ["individual", "batch"])
def test_a_list_without_an_answer_is_not_scored_as_a_quick_one(client, route):
    told = scores(client)
    with pytest.raises(AllRequestsFailed):
        client.generate(["refuse this", "refuse that"], strategy=route)
    assert told == []
    assert client.metrics.snapshot().decisions.scored == 0


def test_a_job_whose_route_was_chosen_is_scored_at_its_end(client):
    told = scores(client)
    client.submit_batch(["one", "two"], deadline="30h").wait()
    client.stop()
    (scored,) = told
    assert (scored.requests, scored.route, scored.met) == (2, Route.BATCH, True)
    assert scored.cost == scored.batch_cost == pytest.approx(ALONE)
    assert scored.individual_cost == pytest.approx(2 * ALONE)


# -- times ---------------------------------------------------------------------------------------------------


def test_a_result_of_a_batch_took_the_time_since_the_batch_was_sent(client):
    results = client.generate(["one", "two"], strategy="batch")
    assert all(0 < result.latency <= results.wall for result in results)
    assert all(0 < result.queued + result.latency <= results.wall for result in results)
    assert results.mean_latency == pytest.approx(results.total_latency / 2)


@pytest.mark.parametrize("route", ["individual", "batch", "hybrid"])
def test_only_a_list_in_real_time_has_a_speed_up(client, route):
    results = client.generate([f"question {n}" for n in range(8)], strategy=route)
    expected = results.total_latency / results.wall if route == "individual" else None
    assert results.speed_up == (expected and pytest.approx(expected))


# -- equal rows ----------------------------------------------------------------------------------------------


def rows_of(prompts):
    return [Request(prompt, id=f"row-{n}", context={"n": n}) for n, prompt in enumerate(prompts)]


@pytest.mark.parametrize("few", [True, False])
def test_equal_rows_of_a_job_are_paid_once(claude, client, few):
    rows = rows_of(["one", "two", "one", "refuse this", "one", "refuse this"])
    results = client.submit_and_wait(rows) if few else list(client.submit_batch(rows).results())
    assert len(claude.asked) == 3
    assert [result.text for result in results] == ["an answer"] * 3 + [None, "an answer", None]
    assert [result.request_id for result in results] == [f"row-{n}" for n in range(6)]
    assert [result.context for result in results] == [{"n": n} for n in range(6)]
    assert [result.deduplicated for result in results] == [False, False, True, False, True, True]
    assert [result.cost for result in results[2:]] == [0.0] * 4
    assert sum(result.cost or 0.0 for result in results) == pytest.approx(client.spent)
    assert client.spent == pytest.approx(2 * ALONE if few else ALONE)
    assert (results[5].error is not results[3].error, str(results[5].error)) == (True, str(results[3].error))
    client.stop()  # a future completes before observers are notified
    figures = client.metrics.snapshot()
    assert balanced(client)
    assert (figures.submitted, figures.succeeded, figures.failed, figures.deduplicated) == (6, 4, 2, 3)


@pytest.mark.parametrize(
    ("settings", "rows", "params"),
    [
        ({}, ["one", "one"], {"deduplicate": False}),
        ({"deduplicate": False}, ["one", "one"], {}),
        ({}, [Request("one"), Request("one", Generation(max_tokens=7))], {}),
    ],
    ids=["as requested", "as configured", "other parameters"],
)
def test_rows_that_are_not_equal_are_each_answered(claude, tmp_path, settings, rows, params):
    with BatchingClient(MODEL, store=str(tmp_path / "jobs.db"), **settings) as client:
        results = list(client.submit_batch(rows, **params).results())
    assert len(claude.asked) == 2
    assert not any(result.deduplicated for result in results)


def test_a_cancelled_job_ends_its_equal_rows_as_well(claude, tmp_path):
    store = str(tmp_path / "jobs.db")
    with BatchingClient("sim:demo?batch_seconds=60", store=store) as client:
        job = client.submit_batch(["one"] * 4)
        job.cancel()
        status = job.wait(timeout=20)
    assert (status.finished, status.total) == (4, 4)
    assert not claude.asked


KILLED = """
import os, signal, sys
from smartbatch import BatchingClient
from smartbatch.events import ShardChanged

def kill(event):
    if isinstance(event, ShardChanged):  # the first batch is planned, and not created
        os.kill(os.getpid(), signal.SIGKILL)

client = BatchingClient(sys.argv[1], store=sys.argv[2], observers=[kill])
client.submit_batch([f"question {n % 4_000}" for n in range(12_500)]).wait()
"""


@pytest.mark.full
def test_equal_rows_are_found_across_pages_and_after_a_kill(claude, tmp_path):
    store = str(tmp_path / "jobs.db")
    assert subprocess.run([sys.executable, "-c", KILLED, MODEL, store]).returncode == -signal.SIGKILL
    assert not claude.asked
    with BatchingClient(MODEL, store=store) as second:
        (again,) = second.jobs()
        status = again.wait()
        assert (status.completed, len(claude.asked)) == (12_500, 4_000)
        assert sum(result.deduplicated for result in again.results()) == 8_500
        again.forget()
        assert second.jobs() == []
