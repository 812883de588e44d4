"""SQLite files that are damaged, foreign or removed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import sqlite3
from pathlib import Path

import pytest
from jobs.sqlite_files import bench, filled
from jobs.stores import Bench, led, new_items, result, started

from smartbatch.errors import StoreError
from smartbatch.jobs.records import ItemState
from smartbatch.jobs.shard_records import ShardState
from smartbatch.jobs.store import open_store
from smartbatch.jobs.store import sqlite as sqlite_module
from tests.levels import sampled

__all__ = ["bench"]  # fixtures


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def spoil(path, at, length=200):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(bytes(random.Random(at).randbytes(length)))


@pytest.mark.parametrize("content", [b"# notes\n" * 100, bytes(8192), b"SQLite format 3\0" + bytes(50)])
def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path, content):
    path = tmp_path / "jobs.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"damaged|not a store of jobs"):
        open_store(str(path))
    assert path.read_bytes() == content


@pytest.mark.parametrize("state", ["first page only", "hot journal"])
def test_a_file_whose_maker_died_at_once_is_made_all_the_same(tmp_path, state):
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


def test_a_database_of_somebody_else_is_left_as_it_is(tmp_path):
    path = str(tmp_path / "jobs.db")
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE job (mine TEXT)")
    theirs.close()
    before = digest(path)
    with pytest.raises(StoreError, match="not a store of jobs; it was not changed"):
        open_store(path)
    assert digest(path) == before


def test_an_empty_file_becomes_a_store(tmp_path):
    path = tmp_path / "jobs.db"
    path.touch()
    store = open_store(str(path))
    assert store.jobs.latest() == []
    store.close()


def test_a_folder_is_no_store(tmp_path):
    with pytest.raises(StoreError, match="is a folder; use a file in it"):
        open_store(str(tmp_path))


@pytest.mark.parametrize("place", ["mysql://me:canary@db/jobs", "redis://:canary@db/0", "sqlite://jobs.db"])
def test_the_address_of_another_kind_of_server_is_no_name_of_a_file(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match="its address must be sqlite:///FILE, postgresql://") as caught:
        open_store(place)
    assert "canary" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("page", sampled([0, 1, 2, 5, 9, 14, 20], keep=3))
def test_a_damaged_file_is_refused_or_right_and_never_overwritten(bench, page):
    path = filled(bench)
    spoil(path, page * 4096 + (0 if page == 0 else 8))
    before = digest(path)
    with pytest.raises(StoreError, match="damaged"):
        bench.open()
    assert digest(path) == before


def test_a_damaged_large_file_is_not_written_after_the_first_error(bench, monkeypatch):
    path = filled(bench, 3_000)
    monkeypatch.setattr(sqlite_module, "MAX_CHECKED_BYTES", 0)
    for page in range(os.path.getsize(path) * 2 // 3 // 4096, os.path.getsize(path) // 4096):
        spoil(path, page * 4096 + 8)
    before = digest(path)
    store = bench.open()
    (job,) = store.jobs.latest()
    with pytest.raises(StoreError, match=r"damaged .* make a copy"):
        store.items.results(job.id, limit=100_000)
    with pytest.raises(StoreError, match="damaged"):
        store.facts.remember("k", 1)
    assert digest(path) == before


@pytest.mark.full
def test_a_log_cut_anywhere_leaves_a_whole_store_of_an_earlier_moment(bench, tmp_path):
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
            assert "not a store of jobs" in str(error)
            continue
        row = cut.jobs.get(job.id)
        if row is not None:
            assert row.finished == len(cut.items.results(job.id)) == len(cut.items.fresh(job.id, limit=1000))
            assert len(cut.items.in_state(job.id, state=ItemState.FINAL)) == row.finished
            seen.add(row.finished)
        cut.close()
    assert seen <= moments
    assert {40, 20} <= seen


def replaced(path):
    shutil.copy(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").rename(path)


AWAY = {
    "removed": lambda path: path.unlink(),
    "moved": lambda path: path.rename(path.with_suffix(".old")),
    "replaced": replaced,
    "log removed": lambda path: Path(f"{path}-wal").unlink(),
    "folder removed": lambda path: path.parent.rename(path.parent.with_name("elsewhere")),
}


@pytest.mark.parametrize("away", AWAY)
def test_a_file_that_goes_away_under_us_is_never_written_to(tmp_path, away):
    (tmp_path / "here").mkdir()
    bench = Bench("sqlite", str(tmp_path / "here" / "jobs.db"), tmp_path)
    store = bench.open()
    _, lease = started(store, bench)
    AWAY[away](Path(bench.place))
    with pytest.raises(StoreError, match="deleted or replaced"):
        store.jobs.accept(bench.job(), new_items(1))
    with pytest.raises(StoreError, match="deleted or replaced"):
        store.shards.plan(lease, bench.shard(0))
    if away != "log removed":
        with pytest.raises(StoreError, match="deleted or replaced"):
            store.jobs.latest()
    store.close()


def test_a_file_that_goes_away_during_a_write_is_not_reported_as_written(bench):
    store = bench.open()

    def items():
        yield from new_items(3)
        os.unlink(bench.place)

    with pytest.raises(StoreError, match="deleted or replaced"):
        store.jobs.accept(bench.job(), items())


def test_a_file_that_comes_back_is_used_again(bench):
    store = bench.open()
    _, lease = started(store, bench)
    aside = f"{bench.place}.aside"
    os.rename(bench.place, aside)
    with pytest.raises(StoreError, match="deleted or replaced"):
        store.shards.plan(lease, bench.shard(0))
    os.rename(aside, bench.place)
    assert store.shards.plan(lease, bench.shard(0)).no == 1
