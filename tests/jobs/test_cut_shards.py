"""How a job's requests are cut into batches, and how large their results may be."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from attrs import evolve
from inside import inside
from jobs.remote import LONG, Remote

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.jobs.records import JobLease, OverJobBudget
from smartbatch.jobs.shard_records import NewShard, ShardRow
from smartbatch.jobs.store.shards import ShardTable
from smartbatch.providers.batch_api import RemoteBatch

MIB = 2**20


def test_where_batches_have_no_label_no_two_open_ones_are_of_one_size(
    client: BatchingClient, remote: Remote, clock: VirtualClock
) -> None:
    """After a lost answer the size tells them apart, whichever job they belong to."""
    assert remote.api is not None
    remote.api.abilities = evolve(remote.api.abilities, labels=False)
    first = client.submit_batch([f"a{n}" for n in range(6)])
    while not remote.api.made:
        clock.sleep(1.0)
    second = client.submit_batch([f"b{n}" for n in range(6)])
    assert [job.wait(LONG).completed for job in (first, second)] == [6, 6]
    sizes = [len(batch.lines) for batch in remote.api.made.values()]
    assert sum(sizes) == 12
    assert len(sizes) == len(set(sizes)) == 3


def test_a_shard_that_finds_no_room_in_the_budget_is_cut_anew_at_once(
    client: BatchingClient, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests in real time took the room meanwhile."""
    plan, planned = ShardTable.plan, list[float]()

    def without_room(table: ShardTable, lease: JobLease, new: NewShard) -> ShardRow:
        planned.append(clock.now())
        if len(planned) == 1:
            raise OverJobBudget("no room")
        return plan(table, lease, new)

    monkeypatch.setattr(ShardTable, "plan", without_room)
    assert client.submit_batch(["a", "b"]).wait(LONG).completed == 2
    assert len(planned) == 2
    assert planned[1] == planned[0]


@pytest.mark.parametrize(("more", "fetched"), [(0, True), (1, False)])
def test_results_take_two_copies_of_the_requests_and_4_mib_each(
    client: BatchingClient, remote: Remote, monkeypatch: pytest.MonkeyPatch, more: int, fetched: bool
) -> None:
    """What is larger by a byte is no result of the batch: it is fetched again."""
    assert remote.api is not None
    download, tries = remote.api.download, list[int]()

    def large(batch: RemoteBatch, output: str, timeout: float) -> Iterator[bytes]:
        (shard,) = inside(client).jobs.engine.store.shards.of_job(job.id)
        whole = b"".join(download(batch, output, timeout))
        room = 2 * shard.bytes + 4 * MIB + more - len(whole)
        form = json.loads(whole) | {"pad": ""}
        line = json.dumps(form | {"pad": "x" * (room - len(json.dumps(form)) + len(whole) - 1)}).encode()
        tries.append(len(line))
        yield line + b"\n" if len(tries) == 1 else whole

    monkeypatch.setattr(remote.api, "download", large)
    job = client.submit_batch(["ask"])
    assert job.wait(LONG).completed == 1
    assert (len(tries) == 1) is fetched
    assert ([incident.kind for incident in job.status().incidents] == []) is fetched
