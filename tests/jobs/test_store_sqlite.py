"""SQLite stores: their place, other writers, network file systems and growth."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from jobs.sqlite_files import bench, connections, filled, writer
from jobs.stores import Bench, led, new_items, result, started

from smartbatch._clock import RealClock
from smartbatch.errors import StoreError
from smartbatch.jobs.records import NewItem
from smartbatch.jobs.shard_records import ShardState
from smartbatch.jobs.store import open_store
from smartbatch.jobs.store import sqlite as sqlite_module

__all__ = ["bench", "connections"]  # fixtures


def test_the_default_place_is_the_users_state_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    store = open_store()
    assert store.place == str(tmp_path / "state" / "smartbatch" / "jobs.db")
    store.close()
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path))
    store = open_store()
    assert store.place == str(tmp_path / ".local" / "state" / "smartbatch" / "jobs.db")
    store.close()


def test_a_place_may_be_written_as_a_url(tmp_path):
    store = open_store(f"sqlite:///{tmp_path}/a.db")
    assert store.place == f"{tmp_path}/a.db"
    assert store.spool == f"{tmp_path}/a.db.spool"
    store.close()


def test_files_and_folders_are_for_their_owner_only(tmp_path):
    before = os.umask(0)
    try:
        bench = Bench("sqlite", str(tmp_path / "new" / "jobs.db"), tmp_path)
        store = bench.open()
        started(store, bench)
        modes = {
            path.name: stat.S_IMODE(path.stat().st_mode)
            for path in (tmp_path / "new").rglob("*")
            if not path.name.endswith(".lock")
        }
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
        assert modes == {
            "jobs.db": 0o600,
            "jobs.db-wal": 0o600,
            "jobs.db-shm": 0o600,
            "jobs.db.spool": 0o700,
            "owners": 0o700,
        }
        assert [stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "new").rglob("*.lock")] == [0o600]
        bench.close()
        assert not list((tmp_path / "new").rglob("*.lock"))
    finally:
        os.umask(before)


def test_every_commit_is_synced_and_every_write_begins_as_one(bench, connections):
    store = bench.open()
    store.facts.remember("k", 1)
    writing = writer(connections)
    assert writing.execute("PRAGMA synchronous").fetchone() == (2,)
    assert writing.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    told = []
    writing.set_trace_callback(told.append)
    _, lease = started(store, bench, 20)
    shard = led(store, lease, store.shards.plan(lease, bench.shard(*range(10))), ShardState.INGESTING)
    store.shards.ingest(lease, shard, [result(ix) for ix in range(9)], at=1.0)
    store.shards.settle(lease, shard, realtime=[9], at=2.0)
    store.items.answer(lease, [result(d.ix) for d in store.items.claim_realtime(lease, 5)], at=3.0)
    store.items.drop_unsent(lease, b"", at=4.0)
    store.jobs.forget(lease.job_id)
    inside = False
    changes = 0
    for statement in told:
        word = statement.split()[0].upper()
        if word == "BEGIN":
            assert statement == "BEGIN IMMEDIATE"
            assert not inside
        changes += word in ("INSERT", "UPDATE", "DELETE")
        assert inside or word in ("BEGIN", "PRAGMA", "--"), statement
        inside = (inside or word == "BEGIN") and word not in ("COMMIT", "ROLLBACK")
    assert changes > 30


def test_a_locked_file_is_an_error_after_a_bounded_wait(bench):
    store = bench.open(busy_timeout=0.05)
    job, lease = started(store, bench)
    with sqlite3.connect(bench.place, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match=r"locked: another process .* 50 ms"):
            store.jobs.accept(bench.job(), new_items(1))
        with pytest.raises(StoreError, match="locked"):
            store.shards.plan(lease, bench.shard(0))
        assert store.jobs.get(job.id) is not None  # reading goes on
        assert len(store.items.in_state(job.id)) == 3
        other.execute("ROLLBACK")
    other.close()
    assert store.shards.plan(lease, bench.shard(0)).no == 1
    assert len(store.jobs.latest()) == 1


def test_giving_up_the_store_ends_waits_for_a_locked_file_soon(bench, monkeypatch):
    store, waits = bench.open(busy_timeout=60.0), threading.Event()

    class Clock(RealClock):
        @staticmethod
        def now():
            waits.set()
            return RealClock.now()

    with sqlite3.connect(bench.place, isolation_level=None) as other, ThreadPoolExecutor(1) as pool:
        other.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr(sqlite_module, "RealClock", Clock)
        waiting = pool.submit(store.jobs.accept, bench.job(), new_items(1))
        assert waits.wait(20.0)
        store.give_up()
        assert isinstance(waiting.exception(20.0), StoreError)
        other.execute("ROLLBACK")
    other.close()


def test_a_new_file_that_is_locked_while_it_is_opened_is_an_error(bench):
    filled(bench)
    with sqlite3.connect(bench.place, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        assert len(bench.open(busy_timeout=0.05).jobs.latest()) == 1
        other.execute("ROLLBACK")
        other.execute("DROP TABLE schema_version")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked"):
            bench.open(busy_timeout=0.05)
        other.execute("ROLLBACK")
    other.close()


def test_one_process_at_a_time_makes_the_file(bench, monkeypatch):
    lock, flock, waits = os.open(f"{bench.place}.new", os.O_RDWR | os.O_CREAT), fcntl.flock, threading.Event()

    def told(fd, operation):
        waits.set()
        flock(fd, operation)

    flock(lock, fcntl.LOCK_SH)  # the lock of one that makes it keeps out this, too
    monkeypatch.setattr(fcntl, "flock", told)
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(bench.open)
        try:
            assert waits.wait(30)
            assert not os.path.exists(bench.place)
            assert not opened.done()
        finally:
            os.close(lock)
        assert opened.result(30).jobs.latest() == []


MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 27 0:40 / /home rw,relatime shared:5 master:1 - nfs4 server:/home rw,vers=4.2
garbage
46 27 0:45
47 27 0:46 / /home rw
- tmpfs
41 40 8:1 / /home/local\\040disk rw - xfs /dev/sda1 rw
42 27 0:41 / /mnt/share rw - cifs //server/share rw
43 27 0:42 / /mnt/ssh rw - fuse.sshfs me@server: rw
44 27 0:43 / /mnt/over rw - nfs server:/x rw
45 44 0:44 / /mnt/over rw - tmpfs tmpfs rw
""".splitlines()


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/lib", "ext4"),
        ("/home", "nfs4"),
        ("/home/me/state", "nfs4"),
        ("/homes/me", "ext4"),
        ("/home/local disk/x", "xfs"),
        ("/mnt/share/a", "cifs"),
        ("/mnt/ssh", "fuse.sshfs"),
        ("/mnt/over/a", "tmpfs"),
    ],
)
def test_the_file_system_of_a_folder_is_that_of_its_nearest_mount(folder, kind):
    assert sqlite_module.file_system(folder, MOUNTS) == kind


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_a_network_file_system_is_refused_with_the_reason_and_what_to_do(kind, tmp_path):
    folder = tmp_path / "state"
    mounts = ["27 1 254:0 / / rw - ext4 /dev/vda rw", f"40 27 0:40 / {tmp_path} rw - {kind} server:/ rw"]
    with pytest.raises(StoreError, match="network file system") as told:
        sqlite_module.prepare_folder(f"{folder}/jobs.db", mounts)
    assert "SMARTBATCH_STORE" in str(told.value)
    assert "PostgreSQL" in str(told.value)
    assert not folder.exists()


def test_an_opened_store_asks_the_system_what_it_stands_on(monkeypatch, tmp_path):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / {tmp_path} rw - nfs4 server:/ rw\n")
    monkeypatch.setattr(sqlite_module, "_MOUNTS_FILE", str(mounts))
    with pytest.raises(StoreError, match="nfs4"):
        open_store(str(tmp_path / "deep" / "jobs.db"))
    assert not (tmp_path / "deep").exists()
    monkeypatch.setattr(sqlite_module, "_MOUNTS_FILE", str(tmp_path / "missing"))  # a system without the list
    open_store(str(tmp_path / "deep" / "jobs.db")).close()


def test_an_sqlite_without_returning_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(StoreError, match=r"needs SQLite 3\.35 or newer"):
        open_store(str(tmp_path / "jobs.db"))
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 35, 0))
    open_store(str(tmp_path / "jobs.db")).close()


@pytest.mark.full
def test_forgetting_gives_the_room_back(bench):
    store = bench.open()
    job, _ = store.jobs.accept(bench.job(), [NewItem(f"r{ix}", bytes(400), 1, 1) for ix in range(8_000)])
    lease = store.leases.claim(job.id, 60)
    store.items.drop_unsent(lease, b"cancelled", at=1.0)
    store.leases.release(lease)
    before = os.path.getsize(bench.place) + os.path.getsize(f"{bench.place}-wal")
    assert before > 3_000_000
    store.jobs.forget(job.id)
    after = os.path.getsize(bench.place) + os.path.getsize(f"{bench.place}-wal")
    assert after < before / 10


def test_many_stores_of_one_process_do_not_break_each_others_locks(bench):
    first = bench.open()

    def others():
        for _ in range(5):
            bench.open().close()
        with pytest.raises(StoreError, match="locked"):
            bench.open(busy_timeout=0.02).facts.remember("k", 1)
        return b""

    first.jobs.accept(bench.job(), new_items(1), digest=others)
    bench.open().facts.remember("k", 2)
    assert first.facts.recall("k") == 2
