"""Creates repeated by the network: one batch is kept, the others are cancelled."""

from __future__ import annotations

import pytest
from attrs import evolve
from inside import inside
from jobs.remote import Remote

from smartbatch import Price
from smartbatch.errors import ErrorKind, ProviderError, StoreError
from smartbatch.jobs.store.sql_store import FactTable

HOUR = 3600.0
QUESTIONS = [f"question {n}" for n in range(10)]
BETWEEN = 5.0  # seconds between a create and its repetition


@pytest.fixture
def repeated(client_of, clock, tmp_path, monkeypatch):
    """Submit a job whose create arrives three times; its last answer arrives or is lost."""

    def run(answered, *, labels=True):
        remote = Remote(clock, turnaround=HOUR)
        api = remote.api
        api.abilities = evolve(api.abilities, labels=labels, fence=api.abilities.fence and labels)
        create = api.create

        def repeating(creation, timeout):
            for _ in range(2):
                create(creation, timeout)
                clock.sleep(BETWEEN)
            last = create(creation, timeout)
            if answered:
                return last
            raise ProviderError("reset", kind=ErrorKind.NETWORK_ERROR, maybe_billed=True)

        monkeypatch.setattr(api, "create", repeating)
        return client_of(remote, store=str(tmp_path / "jobs.db")).submit_batch(["a", "b"]), api

    return run


@pytest.mark.full
@pytest.mark.parametrize(
    ("answered", "cancelled"), [(True, [True, True, False]), (False, [False, True, True])]
)
def test_of_a_create_that_was_repeated_one_batch_runs_to_its_end(answered, cancelled, repeated):
    job, api = repeated(answered)
    assert job.wait(10 * HOUR).completed == 2
    assert [batch.cancelled for batch in api.made.values()] == cancelled
    cancels = [incident for incident in job.incidents() if "second batch" in incident.detail][:2]
    assert [incident.kind for incident in cancels] == ["double_submission"] * 2
    assert all("was cancelled" in incident.detail for incident in cancels)


def test_what_the_search_for_a_lost_create_finds_is_cancelled_at_once(repeated, clock):
    _, api = repeated(False)
    clock.sleep(60.0)
    assert [batch.cancelled for batch in api.made.values()] == [False, True, True]


@pytest.mark.full
def test_of_unlabelled_batches_the_oldest_counts(repeated, clock):
    job, api = repeated(False, labels=False)
    assert job.wait(10 * HOUR).completed == 2
    clock.sleep(10 * HOUR)
    oldest, *others = api.made
    named = [incident.detail for incident in job.incidents() if incident.kind == "double_submission"]
    assert all(any(f"batch {name} " in detail for detail in named) for name in others)
    assert not any(f"batch {oldest} " in detail for detail in named)


@pytest.mark.full
@pytest.mark.parametrize("labels", [True, False])
def test_a_labelled_orphan_is_cancelled(labels, client_of, clock, tmp_path, monkeypatch):
    """Without a label, the batch may belong to another program, so it is not cancelled."""
    remote = Remote(clock, turnaround=2 * HOUR)
    api = remote.api
    api.abilities = evolve(api.abilities, labels=labels, fence=False)
    create = api.create
    late = []

    def creating(creation, timeout):
        if late:
            return create(creation, timeout)
        late.append(creation)
        raise ProviderError("reset", kind=ErrorKind.NETWORK_ERROR, maybe_billed=True)

    monkeypatch.setattr(api, "create", creating)
    job = client_of(remote, store=str(tmp_path / "jobs.db")).submit_batch(["a", "b"])
    while not api.made:
        clock.sleep(60.0)
    create(late[0], 60.0)
    assert job.wait(10 * HOUR).completed == 2
    clock.sleep(10 * HOUR)
    assert [batch.cancelled for batch in api.made.values()] == [False, labels]


@pytest.fixture
def late(client_of, clock, tmp_path, monkeypatch):
    """A client with a budget, the Batch API, and a function that lets the lost first create take effect."""
    remote = Remote(clock, turnaround=2 * HOUR, priced=True)
    api = remote.api
    create = api.create
    lost = []

    def losing(creation, timeout):
        if lost:
            return create(creation, timeout)
        lost.append((creation, api._files[creation.file_id or ""]))
        raise ProviderError("reset", kind=ErrorKind.NETWORK_ERROR, maybe_billed=True)

    def land():
        [(creation, upload)] = lost
        api._files[creation.file_id or ""] = upload
        batch = create(creation, 60.0)
        api.made[batch.id].at -= api.turnaround

    monkeypatch.setattr(api, "create", losing)
    settings = {"max_tokens": 4, "budget": 1.0, "batch_settle": 300.0, "batch_poll_interval": 600.0}
    settings |= {"batch_retention": 2 * HOUR}
    prices = {"remote:default": Price(input=1000.0, output=1000.0)}
    return client_of(remote, store=str(tmp_path / "jobs.db"), prices=prices, **settings), api, land


def test_a_batch_whose_requests_an_orphan_has_answered_is_cancelled(late, clock):
    client, api, land = late
    job = client.submit_batch(QUESTIONS)
    while not api.made:
        clock.sleep(60.0)
    land()
    assert job.wait(HOUR).completed == 10
    clock.sleep(HOUR / 2)
    assert [batch.cancelled for batch in api.made.values()] == [True, False]
    assert [shard.state for shard in job.status().shards] == ["dead", "settled"]
    assert job.status().wasted == 0.0


@pytest.mark.full
def test_a_batch_that_no_cancel_ends_comes_to_its_own_end(late, clock, monkeypatch):
    """Some servers have no route for cancelling."""
    client, api, land = late

    def refuse(*_):
        raise ProviderError("no such route", kind=ErrorKind.CLIENT_ERROR, status=405)

    monkeypatch.setattr(api, "cancel", refuse)
    job = client.submit_batch(QUESTIONS, budget=0.5)
    while not api.made:
        clock.sleep(60.0)
    land()
    cost = job.wait(HOUR).cost
    clock.sleep(4 * HOUR)
    assert [shard.state for shard in job.status().shards] == ["dead", "settled"]
    assert client.spent == pytest.approx(2 * cost)


@pytest.mark.full
def test_what_was_not_sent_when_an_orphan_has_answered_it_is_not_sent(late, clock, monkeypatch):
    client, api, land = late
    job = client.submit_batch(QUESTIONS)

    def failing(*_):
        raise ProviderError("full", kind=ErrorKind.SERVER_ERROR)

    clock.sleep(60.0)  # the create is lost
    with monkeypatch.context() as broken:
        broken.setattr(api, "upload", failing)
        while len(job.status().shards) < 2:
            clock.sleep(60.0)
        land()
        assert job.wait(HOUR).completed == 10
    clock.sleep(HOUR)
    assert len(api.made) == 1
    assert [shard.state for shard in job.status().shards] == ["dead", "dead"]


@pytest.mark.full
def test_the_cost_of_a_batch_that_an_orphan_made_useless_is_reported(late, clock, monkeypatch):
    client, api, land = late

    def too_late(batch_id, _):
        api.made[batch_id].at -= api.turnaround

    monkeypatch.setattr(api, "cancel", too_late)
    job = client.submit_batch(QUESTIONS, budget=0.5)
    while not api.made:
        clock.sleep(60.0)
    land()
    cost = job.wait(HOUR).cost
    clock.sleep(HOUR / 2)
    status = job.status()
    assert 0.0 < cost == status.cost
    assert status.wasted == pytest.approx(cost)
    assert [one.kind for one in job.incidents() if one.money] == ["doubled_line"]
    row = inside(client).jobs.engine.store.jobs.get(job.id)
    assert row.reserved == pytest.approx(cost)
    assert client.spent == pytest.approx(2 * cost)


@pytest.mark.full
@pytest.mark.catches("StoreError")
def test_used_answers_of_an_orphan_are_not_wasted_when_read_again(late, clock, monkeypatch):
    client, api, land = late
    add_incident = FactTable.add_incident
    failed = []

    def failing(table, lease, incident):
        if not failed:
            failed.append(incident)
            raise StoreError("the disk is full")
        return add_incident(table, lease, incident)

    job = client.submit_batch(QUESTIONS, budget=0.5)
    while not api.made:
        clock.sleep(60.0)
    monkeypatch.setattr(FactTable, "add_incident", failing)
    land()
    cost = job.wait(HOUR).cost
    clock.sleep(HOUR)
    assert [one.kind for one in failed] == ["double_submission"]
    assert job.status().wasted == 0.0
    [told] = job.incidents()
    assert "10 of its answers could still be used" in told.detail
    row = inside(client).jobs.engine.store.jobs.get(job.id)
    assert row.reserved == 0.0
    assert client.spent == pytest.approx(cost)


@pytest.mark.full
def test_data_of_an_orphan_is_deleted_after_the_retention(late, clock, monkeypatch):
    client, api, land = late
    deleted = []
    monkeypatch.setattr(api, "delete_batch", lambda batch_id, _: deleted.append(batch_id))
    job = client.submit_batch(QUESTIONS)
    while not api.made:
        clock.sleep(60.0)
    land()
    assert job.wait(HOUR).completed == 10
    clock.sleep(HOUR / 2)
    assert deleted == []
    clock.sleep(3 * HOUR)
    assert sorted(deleted) == sorted(api.made)
    assert job.status().wasted == 0.0


@pytest.mark.full
@pytest.mark.parametrize("labels", [True, False])
def test_an_orphan_without_results_is_reported(labels, late, clock, monkeypatch):
    """Its cost is unknown, so the reservation stays."""
    client, api, land = late
    api.abilities = evolve(api.abilities, labels=labels, fence=False, retention=6 * HOUR)
    job = client.submit_batch(QUESTIONS, budget=0.5)
    while not api.made:
        clock.sleep(60.0)
    land()
    refuse_downloads(api, list(api.made)[-1], monkeypatch)
    assert job.wait(10 * HOUR).completed == 10
    clock.sleep(6 * HOUR)
    row = inside(client).jobs.engine.store.jobs.get(job.id)
    assert row.reserved > 0.0
    assert [one.kind for one in job.incidents()] == ["maybe_billed"]
    calls = len(api.calls)
    clock.sleep(24 * HOUR)
    assert api.calls[calls:].count("get") == 0


@pytest.mark.full
def test_a_duplicate_without_results_is_not_examined_again(repeated, clock, monkeypatch):
    job, api = repeated(True)
    api.abilities = evolve(api.abilities, retention=6 * HOUR)
    clock.sleep(2 * BETWEEN + 1.0)
    refuse_downloads(api, next(iter(api.made)), monkeypatch)
    assert job.wait(10 * HOUR).completed == 2
    clock.sleep(8 * HOUR)
    calls = len(api.calls)
    clock.sleep(24 * HOUR)
    assert api.calls[calls:] == []


def refuse_downloads(api, batch_id, monkeypatch):
    download = api.download

    def refusing(batch, output, timeout):
        if batch.id == batch_id:
            raise ProviderError("no such file", kind=ErrorKind.CLIENT_ERROR, status=404)
        return download(batch, output, timeout)

    monkeypatch.setattr(api, "download", refusing)
