"""SQLite stores on full, limited, broken and read-only disks."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from jobs.sqlite_files import bench, connections, writer
from jobs.stores import Bench, led, new_items, result, started

from smartbatch.errors import StoreError
from smartbatch.jobs.records import NewItem
from smartbatch.jobs.shard_records import ShardState
from smartbatch.jobs.store import jobs as jobs_module

__all__ = ["bench", "connections"]  # fixtures


def test_a_full_disk_stops_writes_only_and_they_go_on_when_there_is_room(bench, connections):
    store = bench.open()
    job, lease = started(store, bench, 50)
    shard = led(store, lease, store.shards.plan(lease, bench.shard(*range(50))), ShardState.INGESTING)
    writing = writer(connections)
    writing.execute("PRAGMA max_page_count = 1")  # as many as there are
    large = [result(ix, text=bytes(9_000)) for ix in range(50)]
    with pytest.raises(StoreError, match="the disk is full"):
        store.shards.ingest(lease, shard, large, at=1.0)
    with pytest.raises(StoreError, match="the disk is full"):
        store.jobs.accept(bench.job(key="k"), [NewItem(None, bytes(9_000), 1, 1) for _ in range(50)])
    assert store.jobs.get("k") is None
    assert store.items.results(job.id) == []
    assert store.shards.get(shard.id) == shard
    assert len(store.shards.payloads(shard.id, limit=1000)) == 50
    writing.execute("PRAGMA max_page_count = 1000000")
    assert len(store.shards.ingest(lease, shard, large, at=1.0).final) == 50
    assert bench.behind("PRAGMA integrity_check") == [("ok",)]


LIMITED = """
import resource, sys
from smartbatch.errors import StoreError
from smartbatch.jobs.records import (NewItem, JobRow)
from smartbatch.jobs.records import JobPolicy
from smartbatch.jobs.store import open_store

store = open_store(sys.argv[1])
new = lambda n: JobRow(f"job-{n}", None, "s", "m", "generate", b"", {}, JobPolicy(), 1.0)
items = lambda n: [NewItem(None, bytes(3000), 1, 1) for _ in range(n)]
store.jobs.accept(new(0), items(3))
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
told = []
for n in range(1, 30):
    try:
        store.jobs.accept(new(n), items(20))
    except StoreError as error:
        told.append(n)
        assert "a file size limit" in str(error) or "full" in str(error), error
kept = {job.id for job in store.jobs.latest()}
assert told and kept == {f"job-{n}" for n in range(30) if n not in told}, (told, kept)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
assert store.jobs.accept(new(30), items(20))[1]
store.close()
print("fine", len(told))
"""


@pytest.mark.full
def test_a_limit_of_file_sizes_is_told_and_what_was_accepted_stays(bench):
    run = subprocess.run(
        [sys.executable, "-c", LIMITED, bench.place], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.stdout.startswith("fine"), run.stderr
    store = bench.open()
    for job in store.jobs.latest():
        assert len(store.items.in_state(job.id)) == job.total
    assert bench.behind("PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize("rollback_works", [True, False])
def test_a_commit_the_disk_refused_is_never_reported_as_stored(bench, connections, rollback_works):
    store = bench.open()
    job, lease = started(store, bench)
    before = len(connections)
    broken = writer(connections)
    broken.failing = {"COMMIT"} if rollback_works else {"COMMIT", "ROLLBACK"}
    with pytest.raises(StoreError, match="nothing was written"):
        store.shards.plan(lease, bench.shard(0, 1))
    broken.failing = set()
    assert store.shards.of_job(job.id) == []
    assert len(store.items.in_state(job.id)) == 3
    assert store.shards.plan(lease, bench.shard(0, 1)).no == 1
    assert (len(connections) == before) == rollback_works  # one that cannot roll back is given up


def test_a_job_keeps_its_items_if_its_commit_only_seemed_to_fail(bench, connections, monkeypatch):
    monkeypatch.setattr(jobs_module, "PAGE_ITEMS", 2)
    store = bench.open()

    def break_disk():
        broken = writer(connections)
        broken.failing, broken.done = {"COMMIT"}, True
        return b""

    with pytest.raises(StoreError, match="nothing was written"):
        store.jobs.accept(bench.job(key="k"), new_items(5), digest=break_disk)
    writer(connections).failing = set()
    job = bench.open().jobs.get("k")
    assert len(store.items.in_state(job.id)) == len(store.items.bodies(job.id, range(5))) == job.total == 5


READ_ONLY = """
import os, sys
from smartbatch.errors import StoreError
from smartbatch.jobs.records import (JobRow)
from smartbatch.jobs.records import JobPolicy
from smartbatch.jobs.store import open_store, sqlite
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
try:
    store = open_store(sys.argv[1])
    print("opened", len(store.jobs.latest()))
    store.jobs.accept(JobRow("job-1", None, "s", "m", "generate", b"", {}, JobPolicy(), 1.0), [])
    print("written")
except StoreError as error:
    print("refused:", error)
"""


@pytest.fixture
def shown():
    folder = Path(tempfile.mkdtemp(prefix="sbshown"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def as_nobody(place):
    run = subprocess.run(
        [sys.executable, "-c", READ_ONLY, str(place)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


@pytest.mark.full
def test_an_unwritable_folder_is_reported_before_anything_is_accepted(shown):
    shown.chmod(0o555)
    (told,) = as_nobody(shown / "jobs.db")
    assert told.startswith(f"refused: the store {shown}/jobs.db cannot be used (Permission denied)")
    (told,) = as_nobody(shown / "deeper" / "jobs.db")
    assert "Permission denied" in told
    assert list(shown.iterdir()) == []


@pytest.mark.full
def test_an_unwritable_file_is_reported_before_anything_is_accepted(shown):
    bench = Bench("sqlite", str(shown / "jobs.db"), shown)
    store = bench.open()
    store.jobs.accept(bench.job(), new_items(1))
    bench.close()
    (shown / "jobs.db").chmod(0o444)
    shown.chmod(0o777)
    opened, told = as_nobody(shown / "jobs.db")
    assert opened == "opened 1"
    assert "is read-only: make the file and its folder writable" in told
    shown.chmod(0o555)
    *_, told = as_nobody(shown / "jobs.db")
    assert told.startswith("refused: the store")
    (shown / "jobs.db").chmod(0o000)
    (told,) = as_nobody(shown / "jobs.db")
    assert told.startswith("refused: the store")
