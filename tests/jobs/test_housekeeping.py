"""What providers store for finished batches is deleted in time, and nothing else."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest
from attrs import evolve
from jobs.remote import Remote
from jobs.stores import bench, ingesting, new_items, result, started, store

from smartbatch.errors import ErrorKind, ProviderError, RequestCancelled
from smartbatch.jobs.payload import encode_error
from smartbatch.jobs.records import ItemName, JobPolicy, JobSelection, JobState
from smartbatch.jobs.shard_records import RemoteProgress, ShardState
from smartbatch.jobs.wiring import StepLimits
from smartbatch.providers.batch_api import RemoteKind

__all__ = ["bench", "store"]  # fixtures

HOUR = 3600.0
DAY = 24 * HOUR
KEPT = 300.0  # seconds of virtual time, in which every store is searched for jobs 30 times
SCOPE = "scope-1"


@pytest.fixture
def finished(client_of, clock, tmp_path):
    """Run a job to its end; return it with the provider's Batch API."""

    def run(*, deletes=frozenset(RemoteKind), **settings):
        remote = Remote(clock)
        remote.api.abilities = evolve(remote.api.abilities, deletes=deletes)
        client = client_of(remote, store=str(tmp_path / "jobs.db"), **settings)
        job = client.submit_batch(["a", "b"])
        assert job.wait(DAY).completed == 2
        settle(job, clock)
        return job, remote.api

    return run


def settle(job, clock):
    """Wait until a job's batches are over, a moment after their last results are stored."""
    while not all(shard.cleaned_up for shard in job._engine.store.shards.of_job(job.id)):
        clock.sleep(0.1)


def deletions(api):
    return [call for call in api.calls if call.startswith("delete")]


def test_batches_and_files_are_deleted_after_the_retention(finished, clock):
    job, api = finished(batch_retention=KEPT)
    clock.sleep(KEPT - 30.0)
    assert deletions(api) == []
    clock.sleep(60.0)
    assert sorted(deletions(api)) == ["delete_batch", "delete_file", "delete_file"]
    assert [result.text for result in job.results()] == ["by batch: a", "by batch: b"]
    clock.sleep(2 * KEPT)
    assert len(deletions(api)) == 3


@pytest.mark.full
def test_by_default_the_retention_is_a_week(finished, clock):
    _, api = finished()
    clock.sleep(7 * DAY - 60.0)
    assert deletions(api) == []
    clock.sleep(120.0)
    assert len(deletions(api)) == 3


@pytest.mark.full
@pytest.mark.parametrize("retention", ["none", None])
def test_without_a_retention_everything_is_kept(retention, finished, clock):
    _, api = finished(batch_retention=retention)
    clock.sleep(8 * DAY)
    assert deletions(api) == []


def test_what_a_forgotten_job_left_is_deleted_after_the_retention(finished, clock):
    job, api = finished(batch_retention=KEPT)
    clock.sleep(KEPT / 2)
    job.forget()
    clock.sleep(KEPT / 2 - 30.0)
    assert deletions(api) == []
    clock.sleep(60.0)
    assert len(deletions(api)) == 3


def test_what_a_provider_does_not_delete_is_left_to_expire(finished, clock):
    _, api = finished(batch_retention=KEPT, deletes=frozenset({RemoteKind.INPUT}))
    clock.sleep(2 * KEPT)
    assert deletions(api) == ["delete_file"]


@pytest.mark.parametrize("refused", [True, False])
def test_a_failed_deletion_is_repeated_unless_it_was_refused(refused, finished, clock, monkeypatch):
    job, api = finished(batch_retention=KEPT, deletes=frozenset({RemoteKind.BATCH}))
    sent = []

    def fail(batch_id, _):
        sent.append(batch_id)
        raise ProviderError("no", kind=ErrorKind.CLIENT_ERROR if refused else ErrorKind.AUTH_ERROR)

    monkeypatch.setattr(api, "delete_batch", fail)
    clock.sleep(KEPT + 4 * 600.0)
    assert (len(sent) == 1) is refused
    assert len(sent) < 6  # with pauses of some ten minutes, which grow
    assert job.status().done
    assert list(job.incidents()) == []


# -- the store -----------------------------------------------------------------------------------------------


def settled(store, bench, *, retention=HOUR, count=1, at=1.0):
    """Settle a shard whose batch left an input and an output, and return its job's lease."""
    _, lease = started(store, bench, count, policy=JobPolicy(retention=retention))
    shard = ingesting(store, bench, lease, 0)
    known = {"batch_id": "b-1", "file_id": "f-1", "remote": RemoteProgress(outputs=("o-1",))}
    shard = store.shards.advance(lease, shard, ShardState.INGESTING, **known)
    store.shards.ingest(lease, shard, [result(0)], at=at)
    store.shards.settle(lease, shard, at=at, cleaned_up=True)
    return lease


def taken(store, at, most=100):
    found = []
    while (one := store.remote_objects.take(SCOPE, at=at, most=most)) is not None:
        found.append(one)
    return found


def test_no_two_processes_delete_the_same_object_at_once(bench):
    store, other = bench.open(), bench.open()
    settled(store, bench)
    assert store.remote_objects.accounts(1.0 + HOUR - 1.0) == []
    [account] = other.remote_objects.accounts(1.0 + HOUR)
    assert (account.scope, account.model) == (SCOPE, "openai:m")
    mine = taken(store, 1.0 + HOUR)
    assert sorted((one.kind.value, one.id) for one in mine) == [
        ("batch", "b-1"),
        ("input", "f-1"),
        ("output", "o-1"),
    ]
    assert taken(other, 1.0 + HOUR + 599.0) == []
    store.remote_objects.remove(mine[0])
    assert [one.tries for one in taken(other, 1.0 + HOUR + 600.0)] == [1, 1]  # the others may have failed


def test_a_deletion_waits_for_the_end_of_its_job(store, bench):
    lease = settled(store, bench, count=2)
    assert store.jobs.get(lease.job_id).state is JobState.ACTIVE
    assert taken(store, 10 * HOUR) == []
    store.items.move_to_realtime(lease, [1])
    store.items.answer(
        lease, [result(item.ix) for item in store.items.claim_realtime(lease, 1)], at=20 * HOUR
    )
    assert taken(store, 21 * HOUR - 1.0) == []
    assert len(taken(store, 21 * HOUR)) == 3


def test_an_account_has_a_maximum_of_deletions_per_hour(store, bench):
    for _ in range(2):
        settled(store, bench)
    assert len(taken(store, 2 * HOUR, most=4)) == 4
    assert taken(store, 3 * HOUR - 1.0, most=4) == []
    assert len(taken(store, 3 * HOUR, most=4)) == 4


def test_records_of_what_is_never_deleted_end_when_it_has_expired(store, bench):
    settled(store, bench, retention=None)
    count = "SELECT count(*) FROM remote_object"
    settled(store, bench, retention=None, at=29 * DAY)
    assert bench.behind(count) == [(6,)]
    settled(store, bench, retention=None, at=31 * DAY)
    assert bench.behind(count) == [(6,)]
    assert taken(store, 100 * DAY) == []


# -- cleaning now --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retention", [KEPT, "none"])
def test_what_finished_jobs_left_can_be_deleted_at_once(retention, finished):
    job, api = finished(batch_retention=retention)
    engine = job._engine
    shown = engine.clean(remote=True, dry_run=True)
    assert sorted(one.kind.value for one in shown.deleted) == ["batch", "input", "output"]
    assert deletions(api) == []
    assert engine.clean(remote=False, dry_run=False).deleted == ()
    assert deletions(api) == []
    assert engine.clean(remote=True, dry_run=False) == shown
    assert len(deletions(api)) == 3
    assert engine.clean(remote=True, dry_run=False).deleted == ()
    assert len(list(job.results())) == 2


def test_other_workers_take_nothing_of_what_is_being_cleaned(finished, monkeypatch, clock):
    job, api = finished(batch_retention=KEPT)
    objects, delete_file = job._engine.store.remote_objects, api.delete_file
    due = []

    def delete(file_id, timeout):
        due.extend(objects.accounts(clock.wall()))
        return delete_file(file_id, timeout)

    monkeypatch.setattr(api, "delete_file", delete)
    cleaned = job._engine.clean(remote=True, dry_run=False)
    assert (len(cleaned.deleted), cleaned.left, cleaned.reasons, due) == (3, (), (), [])


def test_what_could_not_be_deleted_is_reported(finished, monkeypatch):
    job, api = finished(batch_retention=KEPT, deletes=frozenset({RemoteKind.INPUT, RemoteKind.BATCH}))

    def fail(batch_id, _):
        raise ProviderError("no", kind=ErrorKind.NETWORK_ERROR)

    monkeypatch.setattr(api, "delete_batch", fail)
    found = job._engine.clean(remote=True, dry_run=False)
    kinds = [[one.kind for one in each] for each in (found.deleted, found.left, found.undeletable)]
    assert kinds == [[RemoteKind.INPUT], [RemoteKind.BATCH], [RemoteKind.OUTPUT]]
    [reason] = found.reasons
    assert reason.endswith(": the deletion failed: no")


def test_an_hours_maximum_is_named_before_and_after_it_is_reached(finished, monkeypatch):
    job, api = finished(batch_retention=KEPT)
    of = StepLimits.of
    monkeypatch.setattr(StepLimits, "of", lambda config: evolve(of(config), deletions_per_hour=2))
    shown = job._engine.clean(remote=True, dry_run=True)
    assert (len(shown.deleted), shown.left, len(shown.reasons)) == (3, (), 1)
    assert "at most 2 are deleted per hour" in shown.reasons[0]
    found = job._engine.clean(remote=True, dry_run=False)
    assert (len(found.deleted), len(found.left), len(deletions(api))) == (2, 1, 2)
    assert found.reasons[0].startswith("1 in the account ")
    assert "at most 2 are deleted per hour" in found.reasons[0]


def test_objects_of_unfinished_jobs_are_not_cleaned(store, bench):
    settled(store, bench, count=2)
    assert store.remote_objects.of_finished_jobs(HOUR) == []
    settled(store, bench)
    assert len(store.remote_objects.of_finished_jobs(HOUR)) == 3


def test_a_cache_is_cleaned_unless_a_running_client_uses_it(store):
    def cleaned(at):
        return [one.no for one in store.remote_objects.of_finished_jobs(at)]

    record = store.caches.begin(SCOPE, "gemini:model", at=0.0, expires_at=100.0)
    assert cleaned(99.0) == []
    assert cleaned(100.0) == [record.no]
    store.caches.leave(record, due=50.0)
    assert cleaned(50.0) == [record.no]


def test_cleaning_removes_what_forgotten_jobs_left(store, bench):
    _, lease = started(store, bench, 1)
    shard = ingesting(store, bench, lease, 0, id="shard-needed")
    named = [evolve(item, name=ItemName(f"name {n}", "00")) for n, item in enumerate(new_items(600))]
    gone, _ = store.jobs.accept_named(bench.job(), named[:599])
    store.jobs.accept_named(bench.job(), named[599:])
    body = encode_error(RequestCancelled("no"))
    lost = store.leases.claim(gone.id, 60.0)
    store.actions.cancel(JobSelection(ids=(gone.id,)), "ada")
    store.items.drop_unsent(lost, body, at=1.0)
    store.jobs.forget(gone.id)
    for name in (f"{shard.id}.in", "shard-old.in", "shard-old.out0", "notes.txt"):
        (Path(store.spool) / name).touch()
    now = time.time()
    assert store.clean(at=now, dry_run=True) == (599, 0)  # the files are too young
    assert store.clean(at=now + 2 * DAY, dry_run=True) == (599, 2)
    assert store.clean(at=now + 2 * DAY, dry_run=False) == (599, 2)
    assert store.clean(at=now + 2 * DAY, dry_run=False) == (0, 0)
    assert (Path(store.spool) / f"{shard.id}.in").exists()
    assert (Path(store.spool) / "notes.txt").exists()
    assert list(store.jobs.find_named(["name 1", "name 599"])) == ["name 599"]


# -- full storage --------------------------------------------------------------------------------------------


class FullStorage:
    """Refuses the uploads of a provider until it is emptied."""

    def __init__(self, remote, clock, text="You have exceeded your file storage quota.", status=400):
        self.text, self.status = text, status
        self.full = True
        self.tried = []  # Unix seconds
        self._clock, self._upload = clock, remote.api.upload
        remote.api.upload = self.upload

    def upload(self, name, source, timeout):
        self.tried.append(self._clock.wall())
        if self.full:
            kind = ErrorKind.RATE_LIMIT if self.status == 429 else ErrorKind.CLIENT_ERROR
            raise ProviderError(self.text, kind=kind, status=self.status)
        return self._upload(name, source, timeout)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, "You have exceeded your file storage quota."),
        (429, "Resource exhausted: file storage limit of 20 GB reached"),
        (400, "You have exceeded the maximum number of files"),
        (400, "The quota for files without expiry is reached. The maximum is 500."),
    ],
)
def test_a_full_storage_pauses_all_uploads_of_its_account(status, text, client_of, clock):
    remote = Remote(clock)
    storage = FullStorage(remote, clock, text, status)
    client = client_of(remote)
    jobs = [client.submit_batch([f"a{number}", f"b{number}"]) for number in range(3)]
    clock.sleep(280.0)
    assert len(set(storage.tried)) == 1  # those that began before the first refusal
    for job in jobs:
        status = job.status()
        assert status.state == "active"
        assert text in status.note
        assert "smartbatch jobs clean --remote" in status.note
        assert status.remaining is None
    storage.full = False
    assert [job.wait(DAY).completed for job in jobs] == [2, 2, 2]
    assert [one.kind for job in jobs for one in job.incidents()] == ["storage_full"]


@pytest.mark.full
def test_uploads_to_a_full_storage_are_tried_at_growing_intervals(client_of, clock):
    remote = Remote(clock)
    storage = FullStorage(remote, clock)
    client = client_of(remote)
    jobs = [client.submit_batch([f"a{number}"]) for number in range(3)]
    clock.sleep(DAY)
    pauses = [after - before for before, after in pairwise(storage.tried)]
    pauses = pauses[storage.tried.count(storage.tried[0]) - 1 :]  # the jobs began at the same time
    assert min(pauses) >= 300.0
    assert min(pauses[3:]) >= 1800.0
    assert max(pauses) <= 3720.0
    assert sum(len(list(job.incidents())) for job in jobs) == 1


def test_deleted_files_end_the_pause_of_a_full_storage(client_of, clock):
    remote = Remote(clock)
    client = client_of(remote)
    done = client.submit_batch(["a"])
    done.wait(DAY)
    settle(done, clock)
    storage = FullStorage(remote, clock)
    waiting = client.submit_batch(["b"])
    clock.sleep(10.0)
    storage.full = False
    assert len(done._engine.clean(remote=True, dry_run=False).deleted) == 3
    clock.sleep(130.0)
    assert len(storage.tried) == 2
    assert waiting.wait(DAY).completed == 1


def test_a_job_need_not_wait_for_a_full_storage(client_of, clock):
    remote = Remote(clock)
    FullStorage(remote, clock)
    client = client_of(remote, batch_timeout=200.0, batch_fallback="individual")
    jobs = [client.submit_batch([prompt]) for prompt in "abc"]
    clock.sleep(20.0)
    jobs[0].cancel()
    assert jobs[0].wait(60.0).cancelled == 1
    assert [job.wait(240.0).completed for job in jobs[1:]] == [1, 1]
    assert sorted(remote.asked) == ["b", "c"]


def test_other_refusals_of_an_upload_do_not_hold_the_job(client_of, clock, monkeypatch):
    remote = Remote(clock)

    def refuse(name, source, timeout):
        raise ProviderError("the file is too large", kind=ErrorKind.CLIENT_ERROR, status=400)

    monkeypatch.setattr(remote.api, "upload", refuse)
    assert client_of(remote).submit_batch(["a", "b"]).wait(DAY).failed == 2


@pytest.mark.parametrize("counted", ["bytes", "files"])
def test_storage_that_is_nearly_full_is_reported_once_per_job(counted, client_of, clock):
    remote = Remote(clock)
    client = client_of(remote, batch_max_requests=1)
    first = client.submit_batch(["a", "b"])
    first.wait(DAY)
    settle(first, clock)
    objects = first._engine.store.remote_objects
    stored = objects.stored(remote.scope, at=clock.wall())
    [sizes] = {shard.bytes for shard in first._engine.store.shards.of_job(first.id)}
    assert stored.bytes > 2 * sizes  # inputs and results
    assert stored.inputs == 2
    # room for one more input, but not for two
    limit = (
        {"storage": (stored.bytes + sizes) / 0.9 + 1.0}
        if counted == "bytes"
        else {"input_files": 3 / 0.9 + 0.1}
    )
    remote.api.abilities = evolve(remote.api.abilities, **limit)
    second = client.submit_batch(["c", "d"])
    assert second.wait(DAY).completed == 2
    [incident] = second.incidents()
    assert incident.kind == "storage_nearly_full"
    assert ("3 input files" in incident.detail) == (counted == "files")
    assert list(first.incidents()) == []
    settle(second, clock)
    later = clock.wall() + 40 * DAY  # everything has expired
    assert (objects.stored(remote.scope, at=later).bytes, objects.stored(remote.scope, at=later).inputs) == (
        0,
        0,
    )
