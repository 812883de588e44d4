"""Waiting for a job: routes, constraints, timeouts and progress."""

from __future__ import annotations

import threading

import pytest
from inside import inside
from jobs.remote import LONG, Remote

from smartbatch.errors import AllRequestsFailed, ConfigError, ErrorKind, JobTimeout, ProviderError
from smartbatch.types import Route
from tests.levels import sampled


def test_few_rows_are_asked_in_real_time(client_of, remote, store):
    client = client_of(remote, store=store, batch_threshold=5)
    few = client.submit_and_wait(f"p{n}" for n in range(4))
    many = client.submit_and_wait(f"p{n}" for n in range(5))
    assert [result.route for result in few] == [Route.INDIVIDUAL] * 4
    assert [result.route for result in many] == [Route.BATCH] * 5
    assert few.texts == [f"re: p{n}" for n in range(4)]
    assert [job.status().state for job in client.jobs()] == ["done", "done"]


@pytest.mark.parametrize(
    ("constraints", "few", "many"),
    sampled(
        [
            ({"deadline": "20h"}, Route.INDIVIDUAL, Route.BATCH),
            ({"prefer": "speed"}, Route.INDIVIDUAL, Route.BATCH),
            ({"strategy": "batch", "deadline": None}, Route.BATCH, Route.BATCH),
            ({"strategy": "individual", "deadline": "20h"}, Route.INDIVIDUAL, Route.INDIVIDUAL),
            ({"strategy": "auto", "prefer": "speed"}, Route.INDIVIDUAL, Route.INDIVIDUAL),
        ],
        keep=3,
    ),
)
def test_a_job_that_is_waited_for_takes_constraints(constraints, few, many, client_of, remote, store):
    client = client_of(remote, store=store, batch_threshold=5)
    for count, route in ((4, few), (12, many)):
        results = client.submit_and_wait((f"p{n}" for n in range(count)), purpose="labels", **constraints)
        assert [result.route for result in results] == [route] * count
    assert [job.status().state for job in client.jobs()] == ["done", "done"]


@pytest.mark.parametrize(
    ("constraints", "text"),
    [
        ({"deadline": "1 s"}, "no route meets a deadline of 1 s"),
        ({"deadline": "soon"}, "deadline = 'soon' is not a positive duration"),
        ({"budget": "5 EUR"}, "budget"),
        ({"strategy": "fast"}, "strategy"),
        ({"budget": "5 USD"}, "the price of remote:default is unknown"),
    ],
)
def test_constraints_are_checked_before_a_job_is_stored(constraints, text, client_of, clock, store):
    client = client_of(Remote(clock, priced="budget" in constraints), store=store)
    with pytest.raises(ConfigError, match=text):
        client.submit_and_wait([f"p{n}" for n in range(400)], **constraints)
    assert client.jobs() == []


@pytest.mark.parametrize(
    ("look", "wait"),
    [
        ("jobs.get", lambda job: job.wait(1000.0).finished),
        ("items.results", lambda job: len(list(job.results(timeout=1000.0)))),
    ],
)
def test_a_job_that_ends_while_the_store_is_read_is_read_again(look, wait, client, clock, store, monkeypatch):
    job = client.submit_batch(["a", "b"])
    part, _, name = look.partition(".")
    opened, waiting = type(getattr(inside(client).jobs.engine.store, part)), threading.current_thread()
    read = getattr(opened, name)

    def slow(*args, **options):
        rows = read(*args, **options)
        if threading.current_thread() is waiting and clock.now() < 1000.0:
            clock.sleep(1000.0)
        return rows

    monkeypatch.setattr(opened, name, slow)
    assert wait(job) == 2


@pytest.mark.full
def test_a_job_is_waited_for_until_its_deadline_or_longer(client_of, clock, store):
    remote = Remote(clock, turnaround=9000.0)
    client = client_of(remote, store=store, batch_timeout=50.0)
    prompts = [f"p{n}" for n in range(12)]
    assert client.submit_and_wait(prompts, deadline="6h").succeeded == 12
    with pytest.raises(JobTimeout):
        client.submit_and_wait(prompts, deadline="6h", timeout=60.0)


def test_waiting_ends_and_the_job_goes_on(client_of, remote, store):
    client = client_of(remote, store=store, batch_threshold=1, batch_timeout=50.0)
    with pytest.raises(JobTimeout, match=r"stays in the store.*smartbatch.job") as caught:
        client.submit_and_wait(["a", "b"], key="k", batch_fallback="batch")
    assert caught.value.job_id == client.job("k").id
    assert client.submit_and_wait(["a", "b"], key="k", timeout=LONG).texts == ["by batch: a", "by batch: b"]
    assert len(remote.api.made) == 1


@pytest.mark.full
def test_progress_never_says_all_before_all_is_stored(client_of, remote, store, capfd):
    client = client_of(remote, store=store, batch_poll_interval=10.0)
    seen = []
    client.submit_and_wait([f"p{n}" for n in range(40)], on_progress=seen.append, progress=True, timeout=LONG)
    running = [status for status in seen if status.running and not status.finished]
    assert running
    assert all(status.submitted == 40 for status in running)
    assert all(status.remaining is not None and status.remaining > 0 for status in running)
    assert [status.done for status in seen].count(True) == 1
    assert seen[-1].done
    shown = capfd.readouterr().err
    assert "100% 40/40" in shown
    assert all("100%" not in line for line in shown.split("\n") if "40/40" not in line)


def test_when_all_fail_the_error_has_the_results(client_of, clock, store):
    def refuse(_):
        raise ProviderError("no such thing", kind=ErrorKind.CLIENT_ERROR, status=400)

    client = client_of(Remote(clock, reply=refuse), store=store)
    with pytest.raises(AllRequestsFailed, match="all 2 requests failed") as caught:
        client.submit_and_wait(["a", "b"])
    assert [type(result.error) for result in caught.value.results] == [ProviderError, ProviderError]
