"""What the end of a batch teaches: how long batches take, cancels take, and given-up ones would have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from inside import inside
from jobs.remote import Remote

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.jobs import summary_records
from smartbatch.providers.batch_api import RemoteBatch, RemoteState

ClientOf = Callable[..., BatchingClient]
HOUR = 3600.0
TURNAROUND = 300.0


@pytest.fixture
def client(client_of: ClientOf, clock: VirtualClock, tmp_path: Path) -> BatchingClient:
    return client_of(Remote(clock, turnaround=TURNAROUND), store=str(tmp_path / "jobs.db"))


def seen(client: BatchingClient, name: str) -> list[tuple[int, float]]:
    return [
        (size, seconds)
        for size, seconds, _ in inside(client).jobs.engine.store.facts.turnarounds(name, limit=100)
    ]


def test_a_batch_that_ends_teaches_how_long_batches_take(client: BatchingClient) -> None:
    job = client.submit_batch(["a", "b", "c"])
    job.wait(10 * HOUR)
    model = inside(client).jobs.engine.store.jobs.get(job.id).model
    ((size, seconds),) = seen(client, model)
    assert size == 3
    assert TURNAROUND <= seconds < TURNAROUND + 120
    assert seen(client, summary_records.late_name(model)) == []


def test_one_that_is_cancelled_teaches_two_other_things(
    client: BatchingClient, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it would have taken longer, and how long a cancel takes. As a turnaround it does not count."""
    api = inside(client).realtime.model.provider.batches()
    show, asked = type(api).shown, []

    def slowly(batch: object) -> RemoteBatch:
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


def test_one_that_expires_would_have_taken_longer(
    client: BatchingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def expired(batch: RemoteBatch) -> RemoteBatch:
    """The batch, expired instead of completed."""
    if batch.state is not RemoteState.COMPLETED:
        return batch
    return RemoteBatch(
        batch.id, RemoteState.EXPIRED, "expired", batch.created_at, batch.mark, outputs=batch.outputs
    )
