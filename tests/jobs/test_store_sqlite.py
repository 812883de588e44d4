"""An SQLite store under all that a disk, a file system and other processes do to it (E1 to E8, E13, E14)."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from jobs.stores import Bench, led, new_items, result, started

from smartbatch.errors import StoreError
from smartbatch.jobs.records import ItemState, NewItem, ShardState
from smartbatch.jobs.store import SqlStore, checks, job_table, open_store
from smartbatch.jobs.store import sqlite as sqlite_module


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench("sqlite", str(tmp_path / "jobs.db"), tmp_path)
    yield made
    made.close()


class Watched(sqlite3.Connection):
    """A connection of a store.

    Attributes:
        failing: statements that fail as a broken disk makes them fail.
        done: they are done all the same.
    """

    failing: frozenset[str] | set[str] = frozenset()
    done = False

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if statement in self.failing:
            if self.done:
                super().execute(statement, *values)
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        return super().execute(statement, *values)


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    """All connections that are opened, in order."""
    made: list[Watched] = []
    connect = sqlite3.connect

    def watched(*args: Any, **settings: Any) -> Watched:
        made.append(connect(*args, **{**settings, "factory": Watched}))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", watched)
    return made


def writer(connections: list[Watched]) -> Watched:
    """Return the open connection that may write."""
    for connection in reversed(connections):
        with contextlib.suppress(sqlite3.ProgrammingError):  # it is closed
            if connection.execute("PRAGMA query_only").fetchone() == (0,):
                return connection
    raise LookupError("no connection writes")


def filled(bench: Bench, count: int = 500) -> str:
    """Make a file with a job in it, close it, and return its path."""
    store = bench.open()
    _, lease = started(store, bench, count)
    shard = led(store, lease, store.shards.plan(lease, bench.shard(*range(count // 2))), ShardState.INGESTING)
    store.shards.ingest(lease, shard, [result(ix) for ix in range(count // 4)], at=1.0)
    store.leases.release(lease)
    store.close()
    return bench.place


def digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def spoil(path: str, at: int, length: int = 200) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(bytes(random.Random(at).randbytes(length)))


# -- where it is ---------------------------------------------------------------------------------------------


def test_the_default_place_is_the_users_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    store = open_store()
    assert store.place == str(tmp_path / "state" / "smartbatch" / "jobs.db")
    store.close()
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path))
    store = open_store()
    assert store.place == str(tmp_path / ".local" / "state" / "smartbatch" / "jobs.db")
    store.close()


def test_a_place_may_be_written_as_a_url(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/a.db")
    assert store.place == f"{tmp_path}/a.db"
    assert store.spool == f"{tmp_path}/a.db.spool"
    store.close()


def test_an_abandoned_store_has_no_file_open(bench: Bench) -> None:
    """Nor does it hold its owner's lock: others take its jobs as those of a process that died."""
    store = bench.open()
    job, _ = started(store, bench)
    store.abandon()
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    assert not [link for link in links if os.path.exists(link) and bench.place in os.readlink(link)]
    assert bench.open().leases.claim(job.id, 60.0)


def test_files_and_folders_are_for_their_owner_only(tmp_path: Path) -> None:
    """Prompts and answers are in them, whatever the umask says (G4)."""
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


def test_every_commit_is_synced_and_every_write_begins_as_one(
    bench: Bench, connections: list[Watched]
) -> None:
    """No statement changes anything outside of BEGIN IMMEDIATE … COMMIT (E2)."""
    store = bench.open()
    store.facts.remember("k", 1)
    writing = writer(connections)
    assert writing.execute("PRAGMA synchronous").fetchone() == (2,)
    assert writing.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    told: list[str] = []
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


# -- others write --------------------------------------------------------------------------------------------


def test_a_file_that_another_process_keeps_locked_is_an_error_after_a_bounded_wait(bench: Bench) -> None:
    store = bench.open(busy_timeout=0.05)
    job, lease = started(store, bench)
    with sqlite3.connect(bench.place, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match=r"locked: another process .* 0\.05 s"):
            store.jobs.accept(bench.job(), new_items(1))
        with pytest.raises(StoreError, match="locked"):
            store.shards.plan(lease, bench.shard(0))
        assert store.jobs.get(job.id) is not None  # reading goes on
        assert len(store.items.in_state(job.id)) == 3
        other.execute("ROLLBACK")
    other.close()
    assert store.shards.plan(lease, bench.shard(0)).no == 1
    assert len(store.jobs.latest()) == 1


def test_a_new_file_that_is_locked_while_it_is_opened_is_an_error(bench: Bench) -> None:
    """A file whose form is old needs a write; one of the present form opens next to any writer."""
    filled(bench)
    with sqlite3.connect(bench.place, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        assert len(bench.open(busy_timeout=0.05).jobs.latest()) == 1
        more = (*sqlite_module.MIGRATIONS, ("ALTER TABLE job ADD COLUMN colour TEXT",))
        with pytest.raises(StoreError, match="locked"):
            bench.open(busy_timeout=0.05, steps=more)
        other.execute("ROLLBACK")
    other.close()


def test_one_process_at_a_time_makes_the_file(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes meanwhile waits, and finds it whole."""
    lock, flock, waits = os.open(f"{bench.place}.new", os.O_RDWR | os.O_CREAT), fcntl.flock, threading.Event()

    def told(fd: int, operation: int) -> None:
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


# -- the disk ------------------------------------------------------------------------------------------------


def test_a_full_disk_stops_writes_only_and_they_go_on_when_there_is_room(
    bench: Bench, connections: list[Watched]
) -> None:
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
    assert len(store.shards.payloads(shard.id)) == 50
    writing.execute("PRAGMA max_page_count = 1000000")
    assert len(store.shards.ingest(lease, shard, large, at=1.0).final) == 50
    assert bench.behind("PRAGMA integrity_check") == [("ok",)]


@pytest.fixture
def small_disk() -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix="sbsmall")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        os.rmdir(folder)
        pytest.skip("needs the right to mount a small tmpfs; a limit of file sizes stands in for it")
    yield Path(folder)
    subprocess.run(["umount", "--lazy", folder], check=True)
    os.rmdir(folder)


def test_a_disk_that_is_really_full_costs_no_job(small_disk: Path) -> None:
    bench = Bench("sqlite", str(small_disk / "jobs.db"), small_disk)
    store = bench.open()
    job, lease = started(store, bench)
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(bytes(2 << 20))
    failures = 0
    for _ in range(20):
        try:
            store.jobs.accept(bench.job(), [NewItem(None, bytes(3_000), 1, 1) for _ in range(20)])
        except StoreError as error:
            assert "full" in str(error)
            failures += 1
    assert failures >= 19
    assert store.jobs.get(job.id) is not None
    other = bench.open()
    assert len(other.items.in_state(job.id)) == 3
    ballast.unlink()
    assert store.shards.plan(lease, bench.shard(0, 1, 2)).size == 3
    assert bench.behind("PRAGMA integrity_check") == [("ok",)]
    bench.close()


LIMITED = """
import resource, sys
from smartbatch.errors import StoreError
from smartbatch.jobs.records import (NewItem, JobRow)
from smartbatch.jobs.versioned_records import JobPolicy
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
        assert "a limit of file sizes" in str(error) or "full" in str(error), error
kept = {job.id for job in store.jobs.latest()}
assert told and kept == {f"job-{n}" for n in range(30) if n not in told}, (told, kept)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
assert store.jobs.accept(new(30), items(20))[1]
store.close()
print("fine", len(told))
"""


def test_a_limit_of_file_sizes_is_told_and_what_was_accepted_stays(bench: Bench) -> None:
    run = subprocess.run(
        [sys.executable, "-c", LIMITED, bench.place], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.stdout.startswith("fine"), run.stderr
    store = bench.open()
    for job in store.jobs.latest():
        assert len(store.items.in_state(job.id)) == job.total
    assert bench.behind("PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize("rollback_works", [True, False])
def test_a_commit_the_disk_refused_is_never_reported_as_stored(
    bench: Bench, connections: list[Watched], rollback_works: bool
) -> None:
    store = bench.open()
    job, lease = started(store, bench)
    before = len(connections)
    broken = writer(connections)
    broken.failing = {"COMMIT"} if rollback_works else {"COMMIT", "ROLLBACK"}
    with pytest.raises(StoreError, match="nothing of this write counts"):
        store.shards.plan(lease, bench.shard(0, 1))
    broken.failing = set()
    assert store.shards.of_job(job.id) == []
    assert len(store.items.in_state(job.id)) == 3
    assert store.shards.plan(lease, bench.shard(0, 1)).no == 1
    assert (len(connections) == before) == rollback_works  # one that cannot roll back is given up


def test_a_job_whose_commit_was_told_as_failed_and_is_there_keeps_its_items(
    bench: Bench, connections: list[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of several pages: what was stored early is deleted only while no job has it."""
    monkeypatch.setattr(job_table, "PAGE_ITEMS", 2)
    store = bench.open()

    def break_disk() -> bytes:
        """Called in the middle of the last write."""
        broken = writer(connections)
        broken.failing, broken.done = {"COMMIT"}, True
        return b""

    with pytest.raises(StoreError, match="nothing of this write counts"):
        store.jobs.accept(bench.job(key="k"), new_items(5), digest=break_disk)
    writer(connections).failing = set()
    job = bench.open().jobs.get("k")
    assert job is not None
    assert len(store.items.in_state(job.id)) == len(store.items.bodies(job.id, range(5))) == job.total == 5


READ_ONLY = """
import os, sys
from smartbatch.errors import StoreError
from smartbatch.jobs.records import (JobRow)
from smartbatch.jobs.versioned_records import JobPolicy
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
def shown() -> Iterator[Path]:
    """A folder others may look into."""
    folder = Path(tempfile.mkdtemp(prefix="sbshown"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def as_nobody(place: Path) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-c", READ_ONLY, str(place)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_accepted(shown: Path) -> None:
    shown.chmod(0o555)
    (told,) = as_nobody(shown / "jobs.db")
    assert told.startswith(f"refused: the store {shown}/jobs.db cannot be used (Permission denied)")
    (told,) = as_nobody(shown / "deeper" / "jobs.db")
    assert "Permission denied" in told
    assert list(shown.iterdir()) == []


def test_a_file_that_cannot_be_written_is_told_before_anything_is_accepted(shown: Path) -> None:
    bench = Bench("sqlite", str(shown / "jobs.db"), shown)
    store = bench.open()
    store.jobs.accept(bench.job(), new_items(1))
    bench.close()
    (shown / "jobs.db").chmod(0o444)
    shown.chmod(0o777)
    opened, told = as_nobody(shown / "jobs.db")
    assert opened == "opened 1"
    assert "is read-only: make file and folder writable" in told
    shown.chmod(0o555)
    *_, told = as_nobody(shown / "jobs.db")
    assert told.startswith("refused: the store")
    (shown / "jobs.db").chmod(0o000)
    (told,) = as_nobody(shown / "jobs.db")
    assert told.startswith("refused: the store")


# -- network file systems ------------------------------------------------------------------------------------

MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 27 0:40 / /home rw,relatime shared:5 master:1 - nfs4 server:/home rw,vers=4.2
41 40 8:1 / /home/local\\040disk rw - xfs /dev/sda1 rw
42 27 0:41 / /mnt/share rw - cifs //server/share rw
43 27 0:42 / /mnt/ssh rw - fuse.sshfs me@server: rw
44 27 0:43 / /mnt/over rw - nfs server:/x rw
45 44 0:44 / /mnt/over rw - tmpfs tmpfs rw
garbage
46 27 0:45
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
def test_the_file_system_of_a_folder_is_that_of_its_nearest_mount(folder: str, kind: str) -> None:
    assert checks.file_system(folder, MOUNTS) == kind


@pytest.mark.parametrize("folder", ["/home/me/state", "/mnt/share/a", "/mnt/ssh/b"])
def test_a_network_file_system_is_refused_with_the_reason_and_what_to_do(folder: str) -> None:
    with pytest.raises(StoreError, match="network file system") as told:
        checks.prepare_folder(f"{folder}/jobs.db", MOUNTS)
    assert "SMARTBATCH_STORE" in str(told.value)
    assert "PostgreSQL" in str(told.value)
    assert not os.path.exists(folder)


def test_an_opened_store_asks_the_system_what_it_stands_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / {tmp_path} rw - nfs4 server:/ rw\n")
    monkeypatch.setattr(checks, "_MOUNTS", str(mounts))
    with pytest.raises(StoreError, match="nfs4"):
        open_store(str(tmp_path / "deep" / "jobs.db"))
    assert not (tmp_path / "deep").exists()
    monkeypatch.setattr(checks, "_MOUNTS", str(tmp_path / "missing"))  # a system without the list
    open_store(str(tmp_path / "deep" / "jobs.db")).close()


# -- damage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"# notes\n" * 100, bytes(8192), b"SQLite format 3\0" + bytes(50)])
def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "jobs.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"damaged|no store of jobs"):
        open_store(str(path))
    assert path.read_bytes() == content


@pytest.mark.parametrize("state", ["first page only", "hot journal"])
def test_a_file_whose_maker_died_at_once_is_made_all_the_same(tmp_path: Path, state: str) -> None:
    """Killed between the first write and the mark, which are two transactions, or in the middle of one."""
    dead, path = tmp_path / "dead.db", tmp_path / "jobs.db"
    theirs = sqlite3.connect(dead, isolation_level=None)
    if state == "first page only":
        theirs.execute("CREATE TABLE t (x)")
        theirs.execute("DROP TABLE t")
    else:
        theirs.execute("PRAGMA cache_size = 1")  # so that pages reach the file before the commit
        theirs.execute("BEGIN")
        theirs.execute("CREATE TABLE t (x)")
        theirs.executemany("INSERT INTO t VALUES (zeroblob(20000))", [()] * 20)
        shutil.copy(f"{dead}-journal", f"{path}-journal")
    shutil.copy(dead, path)
    theirs.close()
    assert path.stat().st_size > 0
    store = open_store(str(path))
    store.facts.remember("k", 1)
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as look:
        assert look.execute("PRAGMA auto_vacuum").fetchone() == (2,)  # incremental
        assert look.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert look.execute("SELECT count(*) FROM sqlite_master WHERE name = 't'").fetchone() == (0,)
    assert open_store(str(path)).facts.recall("k") == 1


def test_an_empty_database_with_a_mark_of_somebody_else_is_left_as_it_is(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    with contextlib.closing(sqlite3.connect(path)) as theirs:
        theirs.execute("PRAGMA user_version = 7")
    before = digest(path)
    with pytest.raises(StoreError, match="no store of jobs: it was not touched"):
        open_store(path)
    assert digest(path) == before


def test_a_database_of_somebody_else_is_left_as_it_is(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE job (mine TEXT)")
    theirs.close()
    before = digest(path)
    with pytest.raises(StoreError, match="no store of jobs: it was not touched"):
        open_store(path)
    assert digest(path) == before


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.touch()
    store = open_store(str(path))
    assert store.jobs.latest() == []
    store.close()


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder; name a file in it"):
        open_store(str(tmp_path))


@pytest.mark.parametrize("page", [0, 1, 2, 5, 9, 14, 20])
def test_a_damaged_file_is_refused_or_right_and_never_overwritten(bench: Bench, page: int) -> None:
    path = filled(bench)
    spoil(path, page * 4096 + (0 if page == 0 else 8))
    before = digest(path)
    with pytest.raises(StoreError, match="damaged"):
        bench.open()
    assert digest(path) == before


def test_a_large_file_shows_its_damage_at_the_first_error_and_is_not_written_after(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = filled(bench, 3_000)
    monkeypatch.setattr(sqlite_module, "CHECKED_AT_OPEN", 0)
    for page in range(os.path.getsize(path) // 8192, os.path.getsize(path) // 4096):
        spoil(path, page * 4096 + 8)
    before = digest(path)
    store = bench.open()
    (job,) = store.jobs.latest()
    with pytest.raises(StoreError, match=r"damaged .* keep a copy"):
        store.items.results(job.id, limit=100_000)
    with pytest.raises(StoreError, match="damaged"):
        store.facts.remember("k", 1)
    assert digest(path) == before


def test_a_log_cut_anywhere_leaves_a_whole_store_of_an_earlier_moment(bench: Bench, tmp_path: Path) -> None:
    """Power lost in the middle of a write: what opens is whole, and a moment that was (A13)."""
    store = bench.open()
    job, lease = started(store, bench, 40)
    moments = {0}
    shard = led(store, lease, store.shards.plan(lease, bench.shard(*range(40))), ShardState.INGESTING)
    for at in range(0, 40, 4):
        store.shards.ingest(lease, shard, [result(ix) for ix in range(at, at + 4)], at=1.0)
        moments.add(at + 4)
    log = Path(f"{bench.place}-wal").read_bytes()
    whole = Path(bench.place).read_bytes()
    seen = set()
    for number, length in enumerate(range(len(log), 0, -max(1, len(log) // 60))):
        folder = tmp_path / f"cut{number}"
        folder.mkdir()
        (folder / "jobs.db").write_bytes(whole)
        (folder / "jobs.db-wal").write_bytes(log[:length])
        try:
            cut = open_store(str(folder / "jobs.db"))
        except StoreError as error:
            # nothing was in the file itself yet: without its log it is an empty or unmarked one
            assert "no store of jobs" in str(error)
            continue
        row = cut.jobs.get(job.id)
        if row is not None:
            assert row.finished == len(cut.items.results(job.id)) == len(cut.items.fresh(job.id))
            assert len(cut.items.in_state(job.id, state=ItemState.FINAL)) == row.finished
            seen.add(row.finished)
        cut.close()
    assert seen <= moments
    assert {40, 20} <= seen


# -- the file goes away --------------------------------------------------------------------------------------


def removed(path: Path) -> None:
    path.unlink()


def moved(path: Path) -> None:
    path.rename(path.with_suffix(".old"))


def replaced(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").rename(path)


def log_removed(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def folder_removed(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


@pytest.mark.parametrize("away", [removed, moved, replaced, log_removed, folder_removed])
def test_a_file_that_goes_away_under_us_is_never_written_to(tmp_path: Path, away: Any) -> None:
    (tmp_path / "here").mkdir()
    bench = Bench("sqlite", str(tmp_path / "here" / "jobs.db"), tmp_path)
    store = bench.open()
    _, lease = started(store, bench)
    away(Path(bench.place))
    with pytest.raises(StoreError, match="deleted or replaced"):
        store.jobs.accept(bench.job(), new_items(1))
    with pytest.raises(StoreError, match="deleted or replaced"):
        store.shards.plan(lease, bench.shard(0))
    if away is not log_removed:
        with pytest.raises(StoreError, match="deleted or replaced"):
            store.jobs.latest()
    store.close()


def test_a_file_that_goes_away_during_a_write_is_not_reported_as_written(bench: Bench) -> None:
    store = bench.open()

    def items() -> Iterator[NewItem]:
        yield from new_items(3)
        os.unlink(bench.place)

    with pytest.raises(StoreError, match="deleted or replaced"):
        store.jobs.accept(bench.job(), items())


def test_a_file_that_comes_back_is_used_again(bench: Bench) -> None:
    store = bench.open()
    _, lease = started(store, bench)
    aside = f"{bench.place}.aside"
    os.rename(bench.place, aside)
    with pytest.raises(StoreError, match="deleted or replaced"):
        store.shards.plan(lease, bench.shard(0))
    os.rename(aside, bench.place)
    assert store.shards.plan(lease, bench.shard(0)).no == 1


# -- growth --------------------------------------------------------------------------------------------------


def test_forgetting_gives_the_room_back(bench: Bench) -> None:
    store: SqlStore = bench.open()
    job, _ = store.jobs.accept(bench.job(), [NewItem(f"r{ix}", bytes(400), 1, 1) for ix in range(8_000)])
    lease = store.leases.claim(job.id, 60)
    assert lease is not None
    store.items.drop_unsent(lease, b"cancelled", at=1.0)
    store.leases.release(lease)
    before = os.path.getsize(bench.place) + os.path.getsize(f"{bench.place}-wal")
    assert before > 3_000_000
    store.jobs.forget(job.id)
    after = os.path.getsize(bench.place) + os.path.getsize(f"{bench.place}-wal")
    assert after < before / 10


def test_many_stores_of_one_process_do_not_break_each_others_locks(bench: Bench) -> None:
    """The system drops a process's locks on a file when any descriptor of it is closed: none is opened."""
    first = bench.open()

    def others() -> bytes:
        """Called in the middle of a write."""
        for _ in range(5):
            bench.open().close()
        with pytest.raises(StoreError, match="locked"):
            bench.open(busy_timeout=0.02).facts.remember("k", 1)
        return b""

    first.jobs.accept(bench.job(), new_items(1), digest=others)
    bench.open().facts.remember("k", 2)
    assert first.facts.recall("k") == 2
