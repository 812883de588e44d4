"""Uploads in a store: who sends a file, who uses it, and when it is deleted."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from attrs import evolve

from smartbatch import Document, Message, ProviderError, Request, StoreError
from smartbatch.jobs.store.uploads import SENDING_SECONDS, FileRef, Sending
from smartbatch.jobs.uploading import RealtimeUploads, send
from smartbatch.providers.file_api import RemoteUpload
from tests.jobs.stores import bench, new_items

__all__ = ["bench"]  # fixtures

DAY = 86_400.0
SCOPE = "scope"
FILE = FileRef(SCOPE, "sim:m", "key", ".pdf", needed_until=DAY, retention=100.0)


def upload(store, file=FILE, at=0.0, lease=None, **remote):
    sending = store.uploads.obtain(file, at=at, lease=lease)
    assert isinstance(sending, Sending)
    store.uploads.complete(sending, RemoteUpload("id", **remote), 7)
    return sending


def job_with_upload(bench, store):
    job = evolve(bench.job(), scope=SCOPE)
    row, _ = store.jobs.accept(job, new_items(2), uploaded=lambda: ["key"])
    assert store.uploads.missing(row.id, SCOPE, 0.0) == {"key"}
    return row


def test_one_owner_at_a_time_sends_a_file(bench):
    one, other = bench.open(), bench.open()
    sending = one.uploads.obtain(FILE, at=0.0)
    assert isinstance(sending, Sending)
    assert sending.is_new
    assert sending.name.startswith("sb-key-")
    assert sending.name.endswith(".pdf")
    assert (one.uploads.obtain(FILE, at=1.0), other.uploads.obtain(FILE, at=1.0)) == (None, None)
    later = other.uploads.obtain(FILE, at=SENDING_SECONDS)
    assert later == Sending(sending.no, sending.name, is_new=False)
    other.uploads.complete(later, RemoteUpload("id"), 7)
    assert one.uploads.obtain(FILE, at=SENDING_SECONDS + 1) == "id"


def test_an_upload_of_another_size_is_an_error_and_one_found_later_is_replaced(bench):
    store = bench.open()

    class CutFiles:
        def upload(self, *_):
            return RemoteUpload("cut", size=3)

        def find(self, *_):
            return RemoteUpload("cut", size=3)

    media = Document(b"%PDF-1.7").accepted("prompt")
    new = store.uploads.obtain(FILE, at=0.0)
    with pytest.raises(ProviderError, match="3 bytes of an uploaded file of 8"):
        send(store.uploads, CutFiles(), media, new, find=1.0, upload=1.0)
    uncertain = store.uploads.obtain(FILE, at=0.0)
    assert uncertain.no != new.no
    later = evolve(uncertain, is_new=False)
    assert send(store.uploads, CutFiles(), media, later, find=1.0, upload=1.0) is None
    assert store.uploads.obtain(FILE, at=0.0).no != uncertain.no


def test_an_interrupted_upload_is_searched_for_at_once_before_it_is_sent_again(bench):
    one, other = bench.open(), bench.open()

    class InterruptedFiles:
        def upload(self, *_):
            raise KeyboardInterrupt

        find = upload

    media = Document(b"%PDF-1.7").accepted("prompt")
    sending = one.uploads.obtain(FILE, at=0.0)
    for owner, taken in ((one, sending), (other, evolve(sending, is_new=False))):
        with pytest.raises(KeyboardInterrupt):
            send(owner.uploads, InterruptedFiles(), media, taken, find=1.0, upload=1.0)
        assert other.uploads.obtain(FILE, at=1.0) == evolve(sending, is_new=False)


def test_the_next_owner_searches_for_the_upload_of_a_dead_one(bench):
    one, other = bench.open(), bench.open()
    sending = one.uploads.obtain(FILE, at=0.0)
    one.abandon()
    assert other.uploads.obtain(FILE, at=1.0) == Sending(sending.no, sending.name, is_new=False)


def test_an_upload_that_expires_too_early_is_replaced_and_deleted_later(bench):
    store = bench.open()
    first = upload(store, expires_at=DAY)
    assert store.uploads.obtain(FILE, at=5.0) == "id"
    second = store.uploads.obtain(evolve(FILE, needed_until=DAY + 1), at=5.0)
    assert (second.is_new, second.no == first.no) == (True, False)
    taken = store.remote_objects.take(SCOPE, at=200.0, most=10)
    assert (taken.no, taken.id, taken.name) == (first.no, "id", first.name)


def test_an_upload_is_not_deleted_while_a_job_uses_it_and_not_used_while_it_is_deleted(bench):
    store = bench.open()
    row = job_with_upload(bench, store)
    lease = store.leases.claim(row.id, 60)
    sending = upload(store, lease=lease)
    assert store.uploads.missing(row.id, SCOPE, DAY) == set()
    assert store.uploads.missing(row.id, SCOPE, math.inf) == {"key"}
    assert store.uploads.ids_of(row.id) == {"key": "id"}
    assert store.remote_objects.take(SCOPE, at=150.0, most=10) is None
    store.items.fail_open(lease, (0, 1), b"{}", at=1000.0)
    assert store.remote_objects.take(SCOPE, at=1050.0, most=10) is None
    assert store.remote_objects.take(SCOPE, at=5000.0, most=10).no == sending.no
    assert store.uploads.ids_of(row.id) == {}
    assert store.uploads.obtain(FILE, at=5000.0).is_new


def test_a_forgotten_job_leaves_its_uploads_to_be_deleted(bench):
    store = bench.open()
    row = job_with_upload(bench, store)
    lease = store.leases.claim(row.id, 60)
    upload(store, lease=lease)
    store.items.fail_open(lease, (0, 1), b"{}", at=1000.0)
    store.jobs.forget(row.id)
    assert store.remote_objects.take(SCOPE, at=1099.0, most=10) is None
    assert store.remote_objects.take(SCOPE, at=1101.0, most=10).id == "id"


@pytest.mark.parametrize("retention", [100.0, None])
def test_an_upload_in_use_by_a_request_in_real_time_is_not_cleaned(retention, bench):
    store = bench.open()
    used = evolve(FILE, in_use=50.0, retention=retention)
    sending = upload(store, used)
    objects = store.remote_objects
    assert (objects.of_finished_jobs(49.0), objects.in_use(49.0)) == ([], 1)
    assert ([one.no for one in objects.of_finished_jobs(50.0)], objects.in_use(50.0)) == ([sending.no], 0)
    store.uploads.obtain(used, at=60.0)  # it came into use before it is due
    store.uploads.obtain(evolve(used, in_use=0.0), at=61.0)  # by a job
    objects.make_due([sending.no], at=70.0)
    assert objects.take(SCOPE, at=209.0, most=10) is None
    objects.make_due([sending.no], at=110.0)
    assert objects.take(SCOPE, at=110.0, most=10).no == sending.no
    assert [one.no for one in objects.of_finished_jobs(111.0)] == [sending.no]  # until it is deleted


def test_the_longest_retention_counts(bench):
    store = bench.open()
    upload(store)
    store.uploads.obtain(evolve(FILE, retention=1000.0, in_use=50.0), at=10.0)
    store.uploads.obtain(evolve(FILE, retention=1.0), at=20.0)
    assert store.remote_objects.take(SCOPE, at=1019.0, most=10) is None
    store.uploads.obtain(evolve(FILE, retention=None), at=1019.0)
    assert store.remote_objects.take(SCOPE, at=1e9, most=10) is None


def test_a_file_that_could_not_be_uploaded_is_sent_in_the_requests_of_its_job(bench):
    store = bench.open()
    row = job_with_upload(bench, store)
    store.uploads.send_inline(store.leases.claim(row.id, 60), "key")
    assert (store.uploads.keys_of(row.id), store.uploads.missing(row.id, SCOPE, 0.0)) == (set(), set())
    assert not store.uploads.is_chosen(SCOPE, "key")


def test_a_store_that_fails_does_not_hide_the_error_of_a_lost_file(clock):
    def store():
        raise StoreError("the disk is full")

    lost = ProviderError("no such file: file-1", status=404)
    provider = SimpleNamespace(scope=SCOPE, classify=lambda error: error)
    request = Request((Message("user", (Document(file_id="file-1"),)),))
    assert RealtimeUploads(clock, store, None).forget_lost(provider, [request], lost) is False
