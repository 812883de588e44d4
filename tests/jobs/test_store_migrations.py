"""Old stores open, newer ones are refused, and a migration happens whole or not at all (E9)."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from jobs.stores import Bench, bench, new_items, result, started

from smartbatch.errors import StoreError
from smartbatch.jobs.records import ItemState, JobState, ShardState
from smartbatch.jobs.store import open_store
from smartbatch.jobs.store.migrations import MIGRATIONS
from smartbatch.jobs.store.sqlite import APPLICATION
from smartbatch.jobs.versioned_records import JobPolicy

__all__ = ["bench"]  # a fixture

FORMS = sorted((Path(__file__).parent / "old_stores").glob("[0-9]*.sql"), key=lambda form: int(form.stem))
"""What ``sqlite3 FILE .dump`` said of a store of each form that was released."""

NEXT = (
    *MIGRATIONS,
    ("ALTER TABLE job ADD COLUMN colour TEXT", "UPDATE job SET colour = 'red'"),
    ("CREATE TABLE extra (no {key}, body {bytes})",),
)
BROKEN = (*NEXT[:-1], ("CREATE TABLE extra (no {key})", "INSERT INTO extra VALUES (1, 2, 3)"))


def version(bench: Bench) -> int:
    return int(bench.behind("SELECT version FROM schema_version")[0][0])


def test_there_is_a_sample_of_every_form() -> None:
    assert [form.stem for form in FORMS] == [str(n + 1) for n in range(len(MIGRATIONS))]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_a_store_of_any_release_opens_with_all_it_has(form: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "old.db")
    with sqlite3.connect(path) as old:
        old.executescript(form.read_text())
        old.execute(f"PRAGMA application_id = {APPLICATION}")
    old.close()
    store = open_store(path)
    job = store.jobs.get("the key")
    assert job is not None
    assert (job.id, job.total, job.succeeded, job.failed, job.state) == ("job-old", 6, 1, 1, JobState.ACTIVE)
    assert (job.metadata, job.policy, job.params) == ({"team": "é"}, JobPolicy(fallback="individual"), b"{}")
    assert [(r.ix, r.user_id, r.body, r.payload) for r in store.items.results(job.id)] == [
        (0, "row-0", b"answer 0", b"ask 0"),
        (2, "row-2", b"no", b"ask 2"),
    ]
    assert [shard.state for shard in store.shards.of_job(job.id)] == [
        ShardState.SETTLED,
        ShardState.UNCERTAIN,
    ]
    assert [(i.ix, i.tries) for i in store.items.in_state(job.id)] == [(1, 1), (5, 0)]
    assert [i.ix for i in store.items.in_state(job.id, state=ItemState.SHARDED)] == [3, 4]
    assert [incident.kind for incident in store.facts.incidents(job.id)] == ["doubled_line"]
    assert store.facts.recall("limit") == 5
    assert store.facts.turnarounds("openai:m", limit=100) == [(3, 60.0, 1.0)]
    lease = store.leases.claim(job.id, 60)
    assert lease is not None
    shard = store.shards.discard(
        lease, store.shards.of_job(job.id)[1], items=ItemState.OPEN, tried=True, note="", at=9.0
    )
    assert shard.state is ShardState.DEAD
    assert store.items.drop_unsent(lease, b"", at=9.0) == 4
    store.close()


def test_a_migration_leads_an_older_store_forward_and_keeps_what_it_has(bench: Bench) -> None:
    store = bench.open()
    job, _ = store.jobs.accept(bench.job(), new_items(2))
    store.close()
    later = bench.open(steps=NEXT)
    assert version(bench) == len(NEXT)
    assert later.jobs.get(job.id) == job
    assert bench.behind("SELECT colour FROM job") == [("red",)]
    assert bench.behind("SELECT count(*) FROM extra") == [(0,)]
    later.close()
    assert bench.open(steps=NEXT).jobs.get(job.id) == job


def test_a_migration_that_fails_half_way_changes_nothing(bench: Bench) -> None:
    store = bench.open()
    job, lease = started(store, bench)
    with pytest.raises(StoreError):
        bench.open(steps=BROKEN)
    assert version(bench) == len(MIGRATIONS)
    with pytest.raises((StoreError, Exception), match="colour"):
        bench.behind("SELECT colour FROM job")
    assert store.jobs.get(job.id) is not None
    store.jobs.note(lease, "goes on")
    again = bench.open()
    assert again.jobs.get(job.id).note == "goes on"  # type: ignore[union-attr]


def test_a_newer_store_is_refused_with_advice_and_left_as_it_is(bench: Bench) -> None:
    bench.open(steps=NEXT).close()
    with pytest.raises(StoreError, match=r"newer smartbatch wrote it; update smartbatch"):
        bench.open()
    assert version(bench) == len(NEXT)


def test_a_store_of_the_present_form_is_opened_without_a_write(bench: Bench) -> None:
    """So that looking at jobs works on a full disk and next to any writer."""
    bench.open()
    with bench.writing("UPDATE schema_version SET version = version"):
        assert bench.open(busy_timeout=0.2).jobs.latest() == []


def sample(store_path: str) -> None:
    """Write the sample of the present form; run by hand when a form is released."""
    folder = Path(store_path).parent
    made = Bench("sqlite", store_path, folder)
    store = made.open()
    from jobs.stores import led, new_job

    from smartbatch.jobs.records import IncidentRow

    job, _ = store.jobs.accept(new_job("job-old", key="the key", metadata={"team": "é"}), new_items(6))
    lease = store.leases.claim(job.id, 60)
    assert lease is not None
    shard = led(store, lease, store.shards.plan(lease, made.shard(0, 1, 2)), ShardState.INGESTING)
    store.shards.ingest(lease, shard, [result(0), result(1, "again", b"busy")], at=1.0)
    store.shards.settle(lease, shard, opened=[1], finals=[result(2, "failed", b"no")], at=2.0)
    led(store, lease, store.shards.plan(lease, made.shard(3, 4)), ShardState.UNCERTAIN)
    store.facts.add_incident(lease, IncidentRow("doubled_line", job.id, shard.id, "row 0", 0.5, 1.0))
    store.facts.remember("limit", 5)
    store.facts.observe_turnarounds("openai:m", [(3, 60.0, 1.0)])
    store.close()
    with sqlite3.connect(store_path) as connection:
        lines = [line for line in connection.iterdump() if "sqlite_sequence" not in line]
    connection.close()
    form = Path(__file__).parent / "old_stores" / f"{len(MIGRATIONS)}.sql"
    form.parent.mkdir(exist_ok=True)
    form.write_text("\n".join(lines) + "\n")
