"""The handle of a job: status, waiting, results, futures and cancelling."""

from __future__ import annotations

import concurrent.futures
import threading

import pytest
from inside import inside
from jobs.remote import LONG, Remote

from smartbatch.errors import ClientClosed, JobNotFound, RequestCancelled, StoreError
from smartbatch.events import RequestSubmitted

PATIENCE = 30.0  # real seconds


def prompts(count):
    return [f"p{n}" for n in range(count)]


@pytest.mark.full
def test_a_status_counts_shards_that_end_after_the_job_was_read(client_of, clock, store):
    client = client_of(Remote(clock), store=store, batch_max_requests=6)
    job = client.submit_batch(prompts(40), key="k")
    engine = inside(client).jobs.engine
    read_before = engine.find("k")
    job.wait(LONG)
    status = engine.status_of(read_before)
    assert (status.submitted, status.completed, status.state) == (40, 40, "done")


@pytest.mark.full
def test_a_status_counts_what_is_sent_done_and_left(client_of, clock, store):
    client = client_of(Remote(clock), store=store, batch_max_requests=6)
    job = client.submit_batch(prompts(40), key="k")
    seen = []
    job.on_progress(seen.append)
    final = job.wait(LONG)
    assert (final.total, final.completed, final.failed, final.cancelled) == (40, 40, 0, 0)
    assert (final.state, final.remaining, final.running, final.done) == ("done", 0.0, 0, True)
    assert sorted(shard.size for shard in final.shards) == [5, 5, 6, 6, 6, 6, 6]
    assert 100.0 <= final.elapsed <= 200.0
    assert {shard.state for shard in final.shards} == {"settled"}
    assert seen[-1].done  # callbacks have heard of the end when waiting returns
    halfway = next(status for status in seen if status.running > 10 and not status.finished)
    assert halfway.submitted == 40
    assert {shard.state for shard in halfway.shards} == {"submitted"}
    assert all(shard.batch_id and shard.age is not None for shard in halfway.shards)
    submitted = [status.submitted for status in seen]
    assert submitted == sorted(submitted)


def test_a_status_speaks_to_people(client_of, clock, store):
    client = client_of(Remote(clock), store=store)
    job = client.submit_batch(prompts(12), key="nightly")
    words = str(job.wait(LONG))
    assert words.startswith("Job nightly  done\nremote:default\nDone 12 of 12")
    assert job.id in words
    assert "12 total, 12 submitted, 12 completed, 0 failed" in words
    assert "cost of 12 results unknown" in words
    assert repr(job) == f"<Job {job.id} 'nightly' remote:default 12 requests>"


def test_a_forgotten_job_is_gone_and_an_unfinished_one_is_not_forgotten(client_of, clock, store):
    client = client_of(Remote(clock), store=store)
    with clock.held():
        job = client.submit_batch(prompts(3))
        with pytest.raises(StoreError, match="not finished"):
            job.forget()
    job.wait(LONG)
    job.forget()
    with pytest.raises(JobNotFound, match=job.id):
        job.status()
    assert client.jobs() == []


@pytest.mark.full
def test_results_stream_page_by_page_in_either_order(client_of, clock, store, monkeypatch):
    monkeypatch.setattr("smartbatch.jobs.job_wait.PAGE_RESULTS", 7)
    client = client_of(Remote(clock), store=store, batch_max_requests=10)
    job = client.submit_batch(prompts(64))
    in_order = [result.text for result in job.results(timeout=LONG)]
    as_stored = [result.text for result in job.results(ordered=False, timeout=LONG)]
    assert in_order == [f"by batch: p{n}" for n in range(64)]
    assert sorted(map(str, as_stored)) == sorted(map(str, in_order))
    assert len(as_stored) == 64


def test_what_there_is_can_be_read_without_waiting(client_of, clock, store):
    job = client_of(Remote(clock), store=store).submit_batch(prompts(5))
    with clock.held():
        assert list(job.results(wait=False)) == []
    job.wait(LONG)
    assert len(list(job.results(wait=False))) == 5
    assert len(list(job.results(wait=False, ordered=False))) == 5


def test_results_come_while_others_are_still_out(client_of, clock, store):
    gate = threading.Event()

    def reply(prompt):
        if prompt == "p2":
            gate.wait(PATIENCE)
        return prompt

    client = client_of(Remote(clock, batches=False, reply=reply), store=store)
    job = client.submit_batch(prompts(4), batch_fallback="individual")
    results = job.results(timeout=LONG)
    assert [next(results).text, next(results).text] == ["p0", "p1"]
    gate.set()
    assert [result.text for result in results] == ["p2", "p3"]


@pytest.mark.full
def test_a_job_of_a_stopped_client_has_a_status_and_no_endless_wait(client_of, clock, store):
    client = client_of(Remote(clock, turnaround=1000.0), store=store)
    job = client.submit_batch(prompts(3))
    client.stop(timeout=0)
    assert job.status().state == "active"
    for attempt in (job.wait, lambda: list(job.results()), lambda: job.futures()[0].result(PATIENCE)):
        with pytest.raises(ClientClosed, match=r"can be resumed|resume it"):
            attempt()
    client.start()
    assert job.wait(LONG).completed == 3


def test_another_client_may_watch_a_job_it_does_not_own(client_of, clock, store):
    remote = Remote(clock)
    owner = client_of(remote, store=store)
    job = owner.submit_batch(prompts(5))
    watcher = client_of(remote, store=store, seed_of_rng=2)
    assert watcher.job(job.id).wait(LONG).completed == 5
    assert len(list(watcher.job(job.id).results())) == 5
    assert remote.api.calls.count("create") == 1


def test_futures_end_with_what_is_stored(client_of, clock, store):
    job = client_of(Remote(clock), store=store).submit_batch(prompts(20))
    first, second = job.futures(), job.futures()
    assert [future.result(PATIENCE).text for future in first] == [f"by batch: p{n}" for n in range(20)]
    assert [future.result(PATIENCE).text for future in second] == [f"by batch: p{n}" for n in range(20)]
    late = job.futures()
    assert [future.result(PATIENCE).ok for future in late] == [True] * 20


def test_cancelling_a_future_leaves_the_job_alone(client_of, clock, store):
    job = client_of(Remote(clock), store=store).submit_batch(prompts(5))
    with clock.held():
        futures = job.futures()
        assert futures[2].cancel()
    done, waiting = concurrent.futures.wait(futures, PATIENCE)
    assert (len(done), len(waiting)) == (5, 0)
    assert [future.cancelled() for future in futures] == [False, False, True, False, False]
    assert job.wait(LONG).completed == 5


def test_a_callback_may_raise_block_or_stop_the_client(client_of, clock, store):
    client = client_of(Remote(clock), store=store)
    job = client.submit_batch(prompts(5))
    seen = []
    ended = threading.Event()

    def broken(_):
        raise RuntimeError("mine")

    def stopping(status):
        if status.done:
            client.stop(timeout=0)
            ended.set()

    job.on_progress(broken)
    job.on_progress(seen.append)
    job.on_progress(stopping)
    assert ended.wait(PATIENCE)
    assert seen[-1].done
    assert list(job.results(wait=False))[4].text == "by batch: p4"


def test_a_cancelled_job_keeps_what_came(client_of, clock, store):
    remote = Remote(clock, turnaround=1000.0)
    job = client_of(remote, store=store).submit_batch(prompts(5))
    futures = job.futures()
    job.cancel()
    status = job.wait(LONG)
    assert (status.completed + status.cancelled, status.failed) == (5, 0)
    assert status.cancelled == 5
    errors = [future.exception(PATIENCE) for future in futures]
    assert {type(error) for error in errors} == {RequestCancelled}


def test_a_job_is_cancelled_from_anywhere(client_of, clock, store):
    remote = Remote(clock, turnaround=100_000.0)
    owner = client_of(remote, store=store)
    job = owner.submit_batch(prompts(5))
    other = client_of(remote, store=store, seed_of_rng=2)
    other.job(job.id).cancel()
    assert job.wait(10_000.0).cancelled == 5


def test_cancelling_a_job_in_real_time_stops_what_has_not_started(client_of, clock, store):
    remote = Remote(clock, batches=False, latency=10.0)
    client = client_of(remote, store=store, parallelism=2)
    job = client.submit_batch(prompts(50), batch_fallback="individual")
    next(job.results(timeout=LONG))
    with clock.held():
        job.cancel()
        asked = len(remote.asked)
    status = job.wait(LONG)
    assert len(remote.asked) <= asked + 2
    assert status.completed == len(remote.asked)
    assert status.cancelled == 50 - status.completed


def test_after_a_cancel_no_row_is_sent_that_was_only_claimed(client_of, clock, store):
    jobs = []
    submitted = threading.Event()

    def cancel(event):
        if isinstance(event, RequestSubmitted):
            assert submitted.wait(30.0)
            jobs[0].cancel()

    remote = Remote(clock, batches=False, latency=10.0)
    client = client_of(remote, store=store, parallelism=16, observers=[cancel])
    jobs.append(client.submit_batch(prompts(50), batch_fallback="individual"))
    submitted.set()
    status = jobs[0].wait(LONG)
    assert status.completed == len(remote.asked) <= 1
    assert status.cancelled == 50 - status.completed
