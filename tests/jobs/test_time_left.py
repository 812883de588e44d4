"""The forecast of the time left, and the durations it learns from."""

from __future__ import annotations

import pytest
from attrs import evolve
from inside import inside
from jobs.remote import LONG, Remote

from smartbatch.jobs import summary_records
from smartbatch.providers.batch_api import RemoteBatch, RemoteState

HALF = 1800.0


def followed(job):
    seen = []
    job.on_progress(seen.append)
    whole = job.wait(LONG).elapsed
    return [(status, whole - status.elapsed) for status in seen if not status.done]


@pytest.mark.full
def test_what_a_batch_gave_back_takes_the_time_of_calls(client_of, clock, store):
    remote = Remote(clock, turnaround=1e5, latency=20.0)
    client = client_of(remote, store=store, batch_timeout=600.0, parallelism=4)
    told = followed(client.submit_batch([f"p{n}" for n in range(60)], batch_fallback="individual"))
    alone = [(status, left) for status, left in told if status.finished]
    assert len(remote.asked) == 60
    assert alone
    for status, left in alone:
        assert status.remaining is not None
        assert status.remaining == pytest.approx(left, rel=0.5, abs=60.0)


@pytest.mark.full
def test_calls_in_real_time_are_foretold_from_the_first_answer_on(client_of, clock, store):
    """Three other calls are about to finish then, so one duration alone would overestimate fourfold."""
    remote = Remote(clock, batches=False, latency=20.0)
    client = client_of(remote, store=store, parallelism=4)
    told = followed(client.submit_batch([f"p{n}" for n in range(60)], batch_fallback="individual"))
    assert {status.finished for status, _ in told} > {1, 30, 59}
    for status, left in told:
        if status.finished:
            assert status.remaining == pytest.approx(left, rel=0.3, abs=25.0)


def test_a_look_without_a_forecast_says_all_but_how_long_it_takes(client_of, clock, store):
    client = client_of(Remote(clock, batches=False, latency=20.0), store=store, parallelism=4)
    job = client.submit_batch([f"p{n}" for n in range(8)], batch_fallback="individual")
    clock.sleep(30.0)
    whole, quick = job.status(), job.status(forecast=False)
    assert whole.remaining is not None
    assert quick == evolve(whole, remaining=None)
    job.wait(LONG)
    assert job.status(forecast=False).remaining == 0.0


@pytest.mark.full
def test_rows_that_follow_equal_ones_take_no_time(client_of, clock, store):
    client = client_of(Remote(clock, batches=False, latency=20.0), store=store, parallelism=4)
    rows = [f"p{n}" for n in range(40)]
    told = followed(client.submit_batch([*rows, *rows], batch_fallback="individual"))
    assert {status.total for status, _ in told} == {80}
    assert any(status.finished for status, _ in told)
    for status, left in told:
        if status.finished:
            assert status.remaining == pytest.approx(left, rel=0.3, abs=25.0)


@pytest.mark.full
def test_batches_that_were_given_up_are_evidence_of_slow_ones(client_of, clock, store):
    client = client_of(
        Remote(clock, turnaround=1e5), store=store, batch_timeout=HALF, batch_poll_interval=HALF / 3
    )
    first = client.submit_batch(["a", "b"], batch_fallback="individual")
    clock.sleep(1.0)
    before = first.status().remaining
    first.wait(LONG)
    second = client.submit_batch(["c", "d"])
    clock.sleep(1.0)
    after = second.status().remaining
    assert before is not None
    assert after is not None
    assert before < HALF < after


HOUR = 3600.0
TURNAROUND = 300.0


@pytest.fixture
def client(client_of, clock, tmp_path):
    return client_of(Remote(clock, turnaround=TURNAROUND), store=str(tmp_path / "jobs.db"))


def seen(client, name):
    return [
        (size, seconds)
        for size, seconds, _ in inside(client).jobs.engine.store.facts.turnarounds(name, limit=100)
    ]


def test_a_batch_that_ends_teaches_how_long_batches_take(client):
    job = client.submit_batch(["a", "b", "c"])
    job.wait(10 * HOUR)
    model = inside(client).jobs.engine.store.jobs.get(job.id).model
    ((size, seconds),) = seen(client, model)
    assert size == 3
    assert TURNAROUND <= seconds < TURNAROUND + 120
    assert seen(client, summary_records.late_name(model)) == []


def test_one_that_is_cancelled_teaches_two_other_things(client, clock, monkeypatch):
    api = inside(client).realtime.model.provider.batches()
    show, asked = type(api).shown, []

    def slowly(batch):
        shown = show(api, batch)
        if shown.state is not RemoteState.CANCELLED:
            return shown
        asked.append(clock.wall())
        if clock.wall() - asked[0] < 150.0:
            return RemoteBatch(shown.id, RemoteState.ENDING, "cancelling", shown.created_at, shown.mark)
        return shown

    monkeypatch.setattr(api, "shown", slowly)
    job = client.submit_batch(["a", "b", "c"])
    clock.sleep(100.0)
    job.cancel()
    job.wait(HOUR)
    store = inside(client).jobs.engine.store
    model = store.jobs.get(job.id).model
    ((_, ran, at),) = store.facts.turnarounds(summary_records.late_name(model), limit=100)
    (shard,) = store.shards.of_job(job.id)
    assert 90 <= ran <= 160
    assert abs(at - ran - shard.submitted_at) < 1  # by which it is known for one of its list
    ((_, took),) = seen(client, summary_records.cancel_name(model.partition(":")[0]))
    assert 150 <= took <= 270
    assert seen(client, model) == []


def test_one_that_expires_would_have_taken_longer(client, monkeypatch):
    api = inside(client).realtime.model.provider.batches()
    show = type(api).shown
    monkeypatch.setattr(api, "shown", lambda batch: expired(show(api, batch)))
    job = client.submit_batch(["a"])
    job.wait(10 * HOUR)
    model = inside(client).jobs.engine.store.jobs.get(job.id).model
    assert [seconds >= TURNAROUND for _, seconds in seen(client, summary_records.late_name(model))][:1] == [
        True
    ]
    assert seen(client, model) == []


def expired(batch):
    if batch.state is not RemoteState.COMPLETED:
        return batch
    return RemoteBatch(
        batch.id, RemoteState.EXPIRED, "expired", batch.created_at, batch.mark, outputs=batch.outputs
    )
