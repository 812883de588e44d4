"""The contract of every store, on SQLite and on PostgreSQL (D3, D4; E2, E12, E13, E15 of the catalogue)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterator
from types import CodeType
from typing import Any

import pytest
from attrs import asdict, evolve
from ctrl_c import interrupted_at_every_moment
from jobs.stores import Bench, bench, led, new_items, new_job, postgres_address, result, started, store

from smartbatch.errors import InvalidRequest, JobNotFound, StoreError
from smartbatch.jobs.act_records import JobSelection
from smartbatch.jobs.records import (
    OPEN_SHARDS,
    TRANSITIONS,
    EarlierTries,
    IncidentRow,
    ItemSize,
    ItemState,
    JobLease,
    JobState,
    LeaseLost,
    NewItem,
    ShardState,
    StoredCounts,
    StoredItem,
)
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.store import item_table as items_module
from smartbatch.jobs.store import items_of_job as deleting_module
from smartbatch.jobs.store import job_table as jobs_module
from smartbatch.jobs.store import outcomes as outcomes_module
from smartbatch.jobs.store import rows as rows_module
from smartbatch.jobs.store.shard_table import check_change
from smartbatch.jobs.versioned_records import JobPolicy, RemoteProgress
from smartbatch.jobs.wire_ids import new_nonce
from smartbatch.providers.batch_api import RemoteState
from smartbatch.types import Route, Usage

__all__ = ["bench", "postgres_address", "store"]  # fixtures

HOSTILE = [
    "",
    "plain",
    "nul \0 in it",
    "half \ud800 of it",
    "line\nbreak  \u2028",
    "'; DROP TABLE job; --",
    "émoji 🎉",
    "{}?%s",
]


def ingesting(store: SqlStore, bench: Bench, lease: JobLease, *items: int, **changes: Any):
    return led(store, lease, store.shards.plan(lease, bench.shard(*items, **changes)), ShardState.INGESTING)


POLICY = JobPolicy(
    fallback="individual",
    on_unknown="hold",
    timeout=1.5,
    settle=2.5,
    max_requests=3,
    deadline=4.5,
    late_penalty=5.5,
    budget=6.5,
    budget_account="account",
    retention=7.5,
    exclusive_workspace=True,
    route=Route.FLEX,
    attended=True,
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)
PROGRESS = RemoteProgress(
    state=RemoteState.COMPLETED,
    status="finished",
    completed=3,
    failed=0,
    outputs=("file-1", "file-2"),
    cancel_sent_at=1.5,
    uploads=2,
    results_fetched=True,
    results_refetched=2,
    results_cut=2,
    results_size=4_711,
    results_gone=True,
    held_job=True,
    checked_for_duplicates=True,
    suspected_duplicates=("batch-2",),
    searched_since=5.5,
    fenced_since=6.5,
)


def test_the_samples_of_records_differ_from_the_defaults_in_every_field() -> None:
    for sample in (POLICY, PROGRESS):
        unset = asdict(type(sample)())
        assert [name for name, value in asdict(sample).items() if value == unset[name]] == []


# -- jobs ----------------------------------------------------------------------------------------------------


def test_an_accepted_job_is_found_by_another_process(bench: Bench) -> None:
    new = bench.job(key="mine", metadata={"team": "é"}, policy=POLICY, params=b"\x00\xff", digest=b"d")
    job, is_new = bench.open().jobs.accept(new, new_items(3))
    other = bench.open()
    assert is_new
    assert other.jobs.get(new.id) == other.jobs.get("mine") == job == other.jobs.latest()[0]
    assert (job.total, job.state, job.metadata, job.policy) == (
        3,
        JobState.ACTIVE,
        {"team": "é"},
        POLICY,
    )
    assert (job.params, job.digest, job.epoch, job.owner, job.finished_at) == (
        b"\x00\xff",
        b"d",
        0,
        None,
        None,
    )
    assert [(i.ix, i.size, i.tokens, i.tries) for i in other.items.in_state(job.id)] == [
        (0, 100, 10, 0),
        (1, 101, 11, 0),
        (2, 102, 12, 0),
    ]


def test_a_key_accepted_twice_is_one_job_whose_items_are_not_read_again(
    store: SqlStore, bench: Bench
) -> None:
    def unread() -> Iterator[NewItem]:
        raise AssertionError("read")
        yield

    first, _ = store.jobs.accept(bench.job(key="k"), new_items(2))
    again, is_new = store.jobs.accept(bench.job(key="k"), unread())
    assert (again, is_new) == (first, False)
    assert len(store.jobs.latest()) == 1


def test_an_id_accepted_twice_is_one_job(store: SqlStore, bench: Bench) -> None:
    new = bench.job()
    assert store.jobs.accept(new, new_items(2)) == (store.jobs.get(new.id), True)
    assert store.jobs.accept(new, new_items(2)) == (store.jobs.get(new.id), False)


@pytest.mark.parametrize("count", [1, 2_500])
def test_threads_that_accept_one_key_at_once_get_one_job(bench: Bench, count: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(jobs_module, "PAGE_ITEMS", 1_000)
    stores = [bench.open() for _ in range(4)]
    together = threading.Barrier(4)
    got: list[tuple[str, bool]] = []

    def accept(one: SqlStore) -> None:
        together.wait(10)
        row, is_new = one.jobs.accept(bench.job(key="same"), new_items(count))
        got.append((row.id, is_new))

    threads = [threading.Thread(target=accept, args=(one,)) for one in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({job_id for job_id, _ in got}) == 1
    assert sorted(is_new for _, is_new in got) == [False, False, False, True]
    assert bench.behind("SELECT count(*) FROM item") == [(count,)]
    assert bench.behind("SELECT count(*) FROM incomplete_job") == [(0,)]


@pytest.mark.parametrize("count", [0, 1, 999, 1_000, 1_001, 3_500])
def test_a_job_of_any_size_is_stored_whole(
    store: SqlStore, bench: Bench, count: int, monkeypatch: Any
) -> None:
    monkeypatch.setattr(jobs_module, "PAGE_ITEMS", 1_000)
    seen = 0

    def items() -> Iterator[NewItem]:
        nonlocal seen
        for item in new_items(count):
            seen += 1
            yield item

    job, _ = store.jobs.accept(bench.job(), items(), digest=lambda: b"after %d" % seen)
    assert job.total == count == len(store.items.in_state(job.id))
    assert job.digest == b"after %d" % count
    assert [item.ix for item in store.items.in_state(job.id)] == list(range(count))
    assert bench.behind("SELECT count(*) FROM incomplete_job") == [(0,)]


def test_pages_end_at_their_bytes_too(store: SqlStore, bench: Bench, monkeypatch: Any) -> None:
    monkeypatch.setattr(jobs_module, "PAGE_BYTES", 1_000)
    before = bench.behind("SELECT count(*) FROM job")
    items = [NewItem(None, bytes([ix]) * 700, 1, 1) for ix in range(5)]
    job, _ = store.jobs.accept(bench.job(), items)
    lease = store.leases.claim(job.id, 60)
    assert lease is not None
    shard = store.shards.plan(lease, bench.shard(4, 0, 2))
    assert before == [(0,)]
    assert [p.payload[:1] for p in store.shards.payloads(shard.id).values()] == [b"\x04", b"\x00", b"\x02"]


@pytest.mark.parametrize("good", [0, 3, 2_500])
def test_an_input_that_fails_half_way_leaves_nothing(
    store: SqlStore, bench: Bench, good: int, monkeypatch: Any
) -> None:
    monkeypatch.setattr(jobs_module, "PAGE_ITEMS", 1_000)

    def items() -> Iterator[NewItem]:
        yield from new_items(good)
        raise ZeroDivisionError("row")

    with pytest.raises(ZeroDivisionError):
        store.jobs.accept(bench.job(key="k"), items())
    assert store.jobs.get("k") is None
    for table in ("job", "job_params", "item", "payload", "incomplete_job"):
        assert bench.behind(f"SELECT count(*) FROM {table}") == [(0,)], table
    assert store.jobs.accept(bench.job(key="k"), new_items(1))[1]


def test_a_process_that_dies_while_its_input_arrives_leaves_no_job_and_its_items_are_swept(
    bench: Bench, monkeypatch: Any
) -> None:
    monkeypatch.setattr(jobs_module, "PAGE_ITEMS", 10)
    dying, other = bench.open(), bench.open()

    def items() -> Iterator[NewItem]:
        yield from new_items(25)
        dying.abandon()
        raise SystemExit

    monkeypatch.setattr(jobs_module, "delete_items", lambda db, no: None)  # the dead do not clean up
    with pytest.raises(SystemExit):
        dying.jobs.accept(bench.job(key="k"), items())
    assert bench.behind("SELECT count(*) FROM item") == [(20,)]
    assert other.jobs.latest() == []
    assert other.jobs.get("k") is None
    job, _ = other.jobs.accept(bench.job(), new_items(1))
    assert other.leases.claim(job.id, 60) is not None  # who becomes an owner sweeps
    assert bench.behind("SELECT count(*) FROM item") == [(1,)]
    assert bench.behind("SELECT count(*) FROM payload") == [(1,)]


def test_an_input_that_still_arrives_is_not_swept(bench: Bench, monkeypatch: Any) -> None:
    monkeypatch.setattr(jobs_module, "PAGE_ITEMS", 10)
    slow, other = bench.open(), bench.open()

    def items() -> Iterator[NewItem]:
        yield from new_items(25)
        job, _ = other.jobs.accept(bench.job(), new_items(1))
        assert other.leases.claim(job.id, 60) is not None

    job, _ = slow.jobs.accept(bench.job(), items())
    assert len(other.items.in_state(job.id)) == 25


def test_a_job_without_items_is_done(store: SqlStore, bench: Bench) -> None:
    job, _ = store.jobs.accept(bench.job(created_at=7.0), [])
    assert (job.state, job.finished_at, job.total) == (JobState.DONE, 7.0, 0)
    assert store.leases.claimable() == []


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_users_come_back_as_they_were(store: SqlStore, bench: Bench, text: str) -> None:
    new = bench.job(key=text + "!", metadata={text: text})
    item = NewItem(text, text.encode("utf-8", "surrogatepass"), 1, 1, realtime=True)
    job, _ = store.jobs.accept(new, [item])
    assert store.jobs.get(text + "!") == job
    assert (job.key, job.metadata) == (text + "!", {text: text})
    lease = store.leases.claim(job.id, 60)
    assert lease is not None
    store.jobs.note(lease, text)
    store.facts.remember(text, {"value": text})
    assert store.facts.add_incident(lease, IncidentRow("kind", job.id, None, text, None, 1.0))
    (asked,) = store.items.claim_realtime(lease, 5)
    store.items.answer(lease, [result(0, text=item.payload or b"e")], at=2.0)
    (got,) = store.items.results(job.id)
    assert (asked.user_id, asked.payload) == (got.user_id, got.payload) == (text, item.payload)
    assert store.facts.recall(text) == {"value": text}
    assert store.facts.incidents(job.id)[0].detail == text


def test_a_key_too_long_for_an_index_is_refused(store: SqlStore, bench: Bench) -> None:
    with pytest.raises(InvalidRequest, match="1,024 bytes"):
        store.jobs.accept(bench.job(key="é" * 513), [])
    assert store.jobs.accept(bench.job(key="é" * 512), [])[1]


def test_jobs_are_listed_newest_first(store: SqlStore, bench: Bench) -> None:
    made = [store.jobs.accept(bench.job(), new_items(n % 2))[0].id for n in range(6)]
    assert [job.id for job in store.jobs.latest()] == made[::-1]
    assert [job.id for job in store.jobs.latest(limit=2)] == [made[5], made[4]]
    assert [job.id for job in store.jobs.latest(unfinished=True)] == [made[5], made[3], made[1]]


def test_what_the_store_does_not_know_is_none_or_an_error(store: SqlStore, bench: Bench) -> None:
    assert store.jobs.get("job-x") is None
    assert store.jobs.get("nul \0") is None
    assert store.shards.get("s") is store.shards.with_nonce("n") is store.facts.recall("k") is None
    assert (store.shards.payloads("s"), store.shards.unsettled("s")) == ({}, [])
    assert store.shards.items_at("s", [0]) == store.shards.measures("s") == {}
    assert store.leases.claim("job-x", 60) is None
    for verb in (
        store.jobs.forget,
        store.jobs.unhold,
        store.items.in_state,
        store.items.results,
        store.shards.of_job,
    ):
        with pytest.raises(JobNotFound, match="job-x"):
            verb("job-x")


def test_only_a_finished_job_is_forgotten_and_then_with_all_it_has(store: SqlStore, bench: Bench) -> None:
    job, lease = started(store, bench, 3, key="k")
    kept, _ = store.jobs.accept(bench.job(), new_items(2))
    shard = ingesting(store, bench, lease, 0, 1)
    store.shards.ingest(lease, shard, [result(0), result(1, "again", usage=Usage(5))], at=1.0)
    assert bench.behind("SELECT count(*) FROM earlier_tries") == [(1,)]
    store.facts.add_incident(lease, IncidentRow("kind", job.id, shard.id, "x", None, 1.0))
    with pytest.raises(StoreError, match="not finished"):
        store.jobs.forget(job.id)
    store.shards.settle(lease, shard, opened=[1], at=2.0)
    store.items.drop_unsent(lease, b"", at=3.0)
    store.jobs.forget(job.id)
    assert store.jobs.get(job.id) is store.jobs.get("k") is store.shards.get(shard.id) is None
    assert store.facts.incidents(job.id) == []
    for table, left in {
        "item": 2,
        "payload": 2,
        "result": 0,
        "verdict": 0,
        "earlier_tries": 0,
        "shard": 0,
        "shard_items": 0,
    }.items():
        assert bench.behind(f"SELECT count(*) FROM {table}") == [(left,)], table
    assert len(store.items.in_state(kept.id)) == 2
    assert store.jobs.accept(bench.job(key="k"), [])[1]


def test_a_forgetting_that_died_half_way_is_finished_by_the_next_owner(
    bench: Bench, monkeypatch: Any
) -> None:
    store, other = bench.open(), bench.open()
    job, lease = started(store, bench, 3)
    store.items.drop_unsent(lease, b"", at=1.0)
    monkeypatch.setattr(jobs_module, "delete_items", lambda db, no: None)
    store.jobs.forget(job.id)
    assert bench.behind("SELECT count(*) FROM item") == [(3,)]
    fresh, _ = other.jobs.accept(bench.job(), new_items(1))
    assert other.leases.claim(fresh.id, 60) is not None
    assert bench.behind("SELECT count(*) FROM item") == [(1,)]


def test_anybody_may_ask_to_cancel_a_job_that_is_not_done(bench: Bench) -> None:
    store, other = bench.open(), bench.open()
    job, _lease = started(store, bench, 1)
    other.acts.cancel(JobSelection(ids=(job.id,)), "ada")
    found = store.jobs.get(job.id)
    assert found is not None
    assert found.cancel_requested
    done, _ = store.jobs.accept(bench.job(), [])
    other.acts.cancel(JobSelection(ids=(done.id,)), "ada")
    found = store.jobs.get(done.id)
    assert found is not None
    assert not found.cancel_requested


def test_a_held_job_waits_until_somebody_frees_it(store: SqlStore, bench: Bench) -> None:
    job, lease = started(store, bench, 1)
    store.jobs.note(lease, "the outcome is unknown: look", hold=True)
    held = store.jobs.get(job.id)
    assert held is not None
    assert (held.state, held.note) == (JobState.HELD, "the outcome is unknown: look")
    store.jobs.note(lease, "still")
    assert store.jobs.get(job.id).state is JobState.HELD  # type: ignore[union-attr]
    store.jobs.unhold(job.id)
    freed = store.jobs.get(job.id)
    assert freed is not None
    assert (freed.state, freed.note) == (JobState.ACTIVE, None)
    store.jobs.note(lease, "quota", hold=True)
    store.items.drop_unsent(lease, b"", at=9.0)
    done = store.jobs.get(job.id)
    assert done is not None
    assert (done.state, done.note, done.finished_at) == (JobState.DONE, None, 9.0)
    store.jobs.note(lease, "late", hold=True)
    assert store.jobs.get(job.id).state is JobState.DONE  # type: ignore[union-attr]


def test_what_is_done_to_one_job_leaves_the_others_as_they_are(store: SqlStore, bench: Bench) -> None:
    def shown() -> list[tuple[JobState, str | None, bool]]:
        return [(row.state, row.note, row.cancel_requested) for row in map(store.jobs.get, ids) if row]

    held = [started(store, bench, 1) for _ in range(3)]
    ids = [job.id for job, _ in held]
    for number, (_, lease) in enumerate(held):
        store.jobs.note(lease, f"look at {number}", hold=True)
    assert shown() == [(JobState.HELD, f"look at {number}", False) for number in range(3)]
    store.jobs.unhold(ids[1])
    store.acts.cancel(JobSelection(ids=(ids[2],)), "ada")
    store.jobs.note(held[0][1], "still")
    assert shown() == [
        (JobState.HELD, "still", False),
        (JobState.ACTIVE, None, False),
        (JobState.HELD, "look at 2", True),
    ]


# -- ownership -----------------------------------------------------------------------------------------------


def test_one_store_owns_a_job_and_others_wait(bench: Bench) -> None:
    mine, other = bench.open(), bench.open()
    job, _ = mine.jobs.accept(bench.job(), new_items(1))
    assert [row.id for row in other.leases.claimable()] == [job.id]
    lease = mine.leases.claim(job.id, 60)
    assert lease == JobLease(job.id, 1)
    assert mine.leases.claim(job.id, 60) is None  # it has it already
    assert other.leases.claim(job.id, 60) is None
    assert mine.leases.claimable() == other.leases.claimable() == []


def test_a_job_given_back_is_taken_at_once_and_the_old_lease_is_lost(bench: Bench) -> None:
    mine, other = bench.open(), bench.open()
    job, lease = started(mine, bench)
    mine.leases.release(lease)
    with pytest.raises(LeaseLost):
        mine.jobs.note(lease, "x")
    assert [row.id for row in other.leases.claimable()] == [job.id]
    assert other.leases.claim(job.id, 60) == JobLease(job.id, 2)
    mine.leases.release(lease)  # too late, and harmless
    assert other.leases.renew([JobLease(job.id, 2)], 60) == [JobLease(job.id, 2)]


def test_a_lease_that_ran_out_is_taken_over_although_its_owner_lives(bench: Bench) -> None:
    frozen, other = bench.open(), bench.open()
    job, _lease = started(frozen, bench)
    bench.let_leases_run_out()
    assert [row.id for row in other.leases.claimable()] == [job.id]
    assert other.leases.claim(job.id, 60) == JobLease(job.id, 2)


def test_a_lease_that_ran_out_still_counts_while_nobody_else_took_the_job(bench: Bench) -> None:
    store = bench.open()
    _, lease = started(store, bench)
    bench.let_leases_run_out()
    store.jobs.note(lease, "awake")
    assert store.leases.renew([lease], 60) == [lease]
    assert bench.open().leases.claimable() == []


def test_an_owner_that_died_is_known_at_once_whatever_its_lease(bench: Bench) -> None:
    dead, other = bench.open(), bench.open()
    job, _ = started(dead, bench)
    dead.abandon()
    assert [row.id for row in other.leases.claimable()] == [job.id]
    assert other.leases.claim(job.id, 60) == JobLease(job.id, 2)


def test_a_lease_is_no_good_in_the_hands_of_another_store(bench: Bench) -> None:
    mine, other = bench.open(), bench.open()
    _, lease = started(mine, bench)
    started(other, bench)
    with pytest.raises(LeaseLost):
        other.jobs.note(lease, "x")
    assert other.leases.renew([lease], 60) == []


def test_renewing_tells_which_leases_are_still_held(bench: Bench) -> None:
    mine, other = bench.open(), bench.open()
    first, second = started(mine, bench)[1], started(mine, bench)[1]
    bench.let_leases_run_out()
    assert other.leases.claim(first.job_id, 60)
    assert mine.leases.renew([first, second], 60) == [second]
    assert mine.leases.renew([], 60) == []
    assert other.leases.claim(second.job_id, 60) is None


def test_a_closed_store_has_given_everything_back(bench: Bench) -> None:
    mine, other = bench.open(), bench.open()
    job, _ = started(mine, bench)
    mine.close()
    mine.close()
    found = other.jobs.get(job.id)
    assert found is not None
    assert found.owner is None
    assert other.leases.claim(job.id, 60)
    assert len(bench.behind("SELECT id FROM owner")) == 1
    with pytest.raises(StoreError, match="closed"):
        mine.jobs.latest()
    with pytest.raises(StoreError, match="closed"):
        mine.jobs.accept(bench.job(), [])


def test_a_frozen_owner_that_wakes_writes_nothing(bench: Bench) -> None:
    """Every verb that names a lease is refused; the store is byte for byte as the new owner left it."""
    frozen, other = bench.open(), bench.open()
    job, lease = started(frozen, bench, 8)
    planned = frozen.shards.plan(lease, bench.shard(0))
    ready = led(frozen, lease, frozen.shards.plan(lease, bench.shard(1)), ShardState.READY)
    taking = ingesting(frozen, bench, lease, 2, 3)
    bench.let_leases_run_out()
    assert other.leases.claim(job.id, 60)

    def contents() -> list[Any]:
        tables = ("job", "item", "shard", "shard_items", "result", "verdict", "incident")
        return [bench.behind(f"SELECT * FROM {table} ORDER BY 1") for table in tables]

    before = contents()
    at = 1.0
    verbs = [
        lambda: frozen.shards.plan(lease, bench.shard(4)),
        lambda: frozen.shards.advance(lease, planned, ShardState.UPLOADING),
        lambda: frozen.shards.advance(lease, planned, ShardState.PLANNED, tries=3),
        lambda: frozen.shards.mark_submitting(lease, ready, exclusive=False),
        lambda: frozen.shards.discard(lease, planned, items=ItemState.OPEN, tried=True, note="n", at=at),
        lambda: frozen.shards.fail(lease, planned, b"no", note="n", at=at),
        lambda: frozen.shards.ingest(lease, taking, [result(2)], at=at),
        lambda: frozen.shards.settle(lease, taking, opened=[2, 3], at=at),
        lambda: frozen.items.claim_realtime(lease, 5),
        lambda: frozen.items.answer(lease, [result(4)], at=at),
        lambda: frozen.items.drop_unsent(lease, b"", at=at),
        lambda: frozen.jobs.note(lease, "mine!", hold=True),
    ]
    for verb in verbs:
        with pytest.raises(LeaseLost):
            verb()
    frozen.leases.release(lease)
    assert frozen.leases.renew([lease], 60) == []
    assert contents() == before


def test_claimable_jobs_are_the_unfinished_ones_then_those_to_be_cleaned_up(bench: Bench) -> None:
    store, other = bench.open(), bench.open()
    settled, lease = started(store, bench, 1)
    shard = ingesting(store, bench, lease, 0)
    shard = store.shards.advance(lease, shard, ShardState.INGESTING, batch_id="b-1")
    store.shards.ingest(lease, shard, [result(0)], at=1.0)
    shard = store.shards.settle(lease, shard, at=1.0)
    _never_sent, lease_2 = started(store, bench, 1)
    store.shards.fail(lease_2, store.shards.plan(lease_2, bench.shard(0)), b"", note="refused", at=1.0)
    fresh, _ = store.jobs.accept(bench.job(), new_items(1))
    held, lease_3 = started(store, bench, 1)
    store.jobs.note(lease_3, "?", hold=True)
    for one in (lease, lease_2, lease_3):
        store.leases.release(one)
    assert [job.id for job in other.leases.claimable()] == [fresh.id, held.id, settled.id]
    again = other.leases.claim(settled.id, 60)
    assert again is not None
    other.shards.advance(again, shard, ShardState.SETTLED, cleaned_up=True)
    other.leases.release(again)
    assert [job.id for job in other.leases.claimable()] == [fresh.id, held.id]


def test_two_who_claim_at_once_are_never_both_the_owner(bench: Bench) -> None:
    stores = [bench.open() for _ in range(4)]
    jobs = [stores[0].jobs.accept(bench.job(), new_items(1))[0].id for _ in range(10)]
    together = threading.Barrier(4)
    got: list[JobLease] = []

    def claim_all(one: SqlStore) -> None:
        together.wait(10)
        got.extend(lease for job in jobs if (lease := one.leases.claim(job, 60)))

    threads = [threading.Thread(target=claim_all, args=(one,)) for one in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(lease.job_id for lease in got) == sorted(jobs)


@pytest.mark.parametrize("unknown", [None, b"not known"])
def test_items_found_asking_after_a_death_are_told_of(bench: Bench, unknown: bytes | None) -> None:
    """They may have been billed: asked again with a try more, or ended where the job sends nothing twice."""
    dead, other = bench.open(), bench.open()
    job, _ = dead.jobs.accept(bench.job(), new_items(4, realtime=True))
    lease = dead.leases.claim(job.id, 60)
    assert lease is not None
    assert [item.ix for item in dead.items.claim_realtime(lease, 2)] == [0, 1]
    dead.abandon()
    bench.clock.sleep(5)
    taken = other.leases.claim(job.id, 60, unknown=unknown)
    assert taken is not None
    (incident,) = other.facts.incidents(job.id)
    assert (incident.kind, incident.job_id, incident.shard_id) == ("maybe_billed", job.id, None)
    assert "2 requests" in incident.detail
    assert "rows 0, 1" in incident.detail
    found = other.jobs.get(job.id)
    assert found is not None
    if unknown is None:
        claimed = other.items.claim_realtime(taken, 9)
        assert [(i.ix, i.tries) for i in claimed] == [(0, 1), (1, 1), (2, 0), (3, 0)]
        assert (found.failed, found.unpriced) == (0, 0)
    else:
        assert [(r.ix, r.outcome, r.body, r.cost) for r in other.items.results(job.id)] == [
            (0, "failed", b"not known", None),
            (1, "failed", b"not known", None),
        ]
        assert (found.failed, found.unpriced, found.cost) == (2, 2, 0.0)
        assert [item.ix for item in other.items.claim_realtime(taken, 9)] == [2, 3]


def test_a_second_death_in_the_same_call_is_a_second_incident(bench: Bench) -> None:
    first = bench.open()
    job, _ = first.jobs.accept(bench.job(), new_items(1, realtime=True))
    for taking in range(3):
        lease = first.leases.claim(job.id, 60)
        assert lease is not None
        assert len(first.facts.incidents(job.id)) == taking
        assert [item.tries for item in first.items.claim_realtime(lease, 1)] == [taking]
        first.abandon()


# -- shards --------------------------------------------------------------------------------------------------


def test_a_planned_shard_holds_its_items_in_its_own_order(store: SqlStore, bench: Bench) -> None:
    job, lease = started(store, bench, 5)
    new = bench.shard(3, 0, 4)
    shard = store.shards.plan(lease, new)
    assert (shard.id, shard.nonce, shard.job_id, shard.no, shard.size) == (new.id, new.nonce, job.id, 1, 3)
    assert (shard.scope, shard.model, shard.state, shard.due_at) == (
        "scope-1",
        "openai:m",
        ShardState.PLANNED,
        5.0,
    )
    assert (shard.remote, shard.foreign_batches, shard.cleaned_up, shard.cancelled) == (
        RemoteProgress(),
        (),
        False,
        False,
    )
    assert (
        store.shards.get(new.id)
        == store.shards.with_nonce(new.nonce)
        == shard
        == store.shards.of_job(job.id)[0]
    )
    assert [item.ix for item in store.items.in_state(job.id)] == [1, 2]
    assert [item.ix for item in store.items.in_state(job.id, state=ItemState.SHARDED)] == [0, 3, 4]
    third = StoredItem(3, "row-3", b"ask 3", tokens=13, tries=0)
    first = StoredItem(0, "row-0", b"ask 0", tokens=10, tries=0)
    fourth = StoredItem(4, "row-4", b"ask 4", tokens=14, tries=0)
    assert store.shards.payloads(shard.id) == {0: third, 1: first, 2: fourth}
    assert store.shards.payloads(shard.id, after=0, limit=1) == {1: first}
    assert store.shards.payloads(shard.id, after=2) == {}
    assert store.shards.measures(shard.id) == {0: ItemSize(5, 13), 1: ItemSize(5, 10), 2: ItemSize(5, 14)}
    at = store.shards.items_at(shard.id, [2, 0, 7, -1])
    assert {position: (i.ix, i.user_id, i.payload, i.tokens) for position, i in at.items()} == {
        0: (3, "row-3", b"ask 3", 13),
        2: (4, "row-4", b"ask 4", 14),
    }
    assert store.shards.plan(lease, bench.shard(1)).no == 2


@pytest.mark.parametrize("items", [(0, 1), (9,), (1, 0)])
def test_no_item_is_in_two_shards(store: SqlStore, bench: Bench, items: tuple[int, ...]) -> None:
    job, lease = started(store, bench, 3)
    store.shards.plan(lease, bench.shard(0))
    with pytest.raises(LeaseLost, match="not every item"):
        store.shards.plan(lease, bench.shard(*items))
    assert len(store.shards.of_job(job.id)) == 1
    assert [item.ix for item in store.items.in_state(job.id)] == [1, 2]


@pytest.mark.parametrize("items", [(), (1, 1)])
def test_a_shard_needs_items_and_each_once(store: SqlStore, bench: Bench, items: tuple[int, ...]) -> None:
    _, lease = started(store, bench, 3)
    with pytest.raises(ValueError, match="at least one item"):
        store.shards.plan(lease, bench.shard(*items))


def test_a_nonce_is_never_used_twice(store: SqlStore, bench: Bench) -> None:
    job, lease = started(store, bench, 3)
    first = store.shards.plan(lease, bench.shard(0))
    with pytest.raises(StoreError):
        store.shards.plan(lease, bench.shard(1, nonce=first.nonce))
    assert [item.ix for item in store.items.in_state(job.id)] == [1, 2]


def test_every_column_of_a_shard_that_may_change_is_kept(bench: Bench) -> None:
    store = bench.open()
    _, lease = started(store, bench, 1)
    changes = {
        "due_at": 1.5,
        "tries": 3,
        "file_id": "f",
        "batch_id": "b",
        "watermark": "w",
        "server_time": 2.5,
        "submitted_at": 3.5,
        "uncertain_since": 4.5,
        "fenced_at": 5.5,
        "candidate": "c",
        "foreign_batches": ("x", "y"),
        "remote": PROGRESS,
        "cancelled": True,
        "ended_at": 6.5,
        "settled_at": 7.5,
        "died_at": 8.5,
        "cleaned_up": True,
        "results_until": 9.5,
        "cost": 0.25,
        "note": "why",
        "bytes": 77,
    }
    shard = store.shards.plan(lease, bench.shard(0))
    moved = store.shards.advance(lease, shard, ShardState.READY, **changes)
    assert moved == evolve(shard, state=ShardState.READY, **changes)
    assert bench.open().shards.get(shard.id) == moved
    cleared = store.shards.advance(
        lease, moved, ShardState.READY, note=None, batch_id=None, foreign_batches=(), cost=None
    )
    assert (cleared.note, cleared.batch_id, cleared.foreign_batches, cleared.cost) == (None, None, (), None)
    assert cleared.remote == moved.remote


@pytest.mark.parametrize("name", ["id", "job_id", "no", "nonce", "scope", "size", "state", "x = 1; --"])
def test_what_a_shard_is_does_not_change(store: SqlStore, bench: Bench, name: str) -> None:
    _, lease = started(store, bench, 1)
    shard = store.shards.plan(lease, bench.shard(0))
    changes: dict[str, Any] = {name: "x"}
    with pytest.raises(ValueError, match="do not change"):
        check_change(shard, ShardState.READY, changes)


def test_only_transitions_of_the_table_happen(bench: Bench) -> None:
    """From every state to every other: those of the table go, all else is refused and changes nothing."""
    store = bench.open()
    _, lease = started(store, bench, 200)
    free = iter(range(200))
    own_verbs = {ShardState.DEAD, ShardState.SETTLED}
    for start, to in itertools.product(OPEN_SHARDS, ShardState):
        shard = led(store, lease, store.shards.plan(lease, bench.shard(next(free))), start)
        allowed = (to in TRANSITIONS[start] or to is start) and to not in own_verbs
        if allowed and to is not start and to is ShardState.SUBMITTING:
            continue  # by intend, which led() took
        if allowed:
            assert store.shards.advance(lease, shard, to).state is to
        else:
            with pytest.raises(ValueError):
                store.shards.advance(lease, shard, to)
            assert store.shards.get(shard.id) == shard


def test_submitting_begins_with_mark_submitting_only(store: SqlStore, bench: Bench) -> None:
    _, lease = started(store, bench, 1)
    shard = led(store, lease, store.shards.plan(lease, bench.shard(0)), ShardState.READY)
    with pytest.raises(ValueError, match="mark_submitting"):
        store.shards.advance(lease, shard, ShardState.SUBMITTING)
    intended = store.shards.mark_submitting(lease, shard, exclusive=False, watermark="w", submitted_at=4.0)
    assert intended is not None
    assert (intended.state, intended.watermark, intended.submitted_at) == (ShardState.SUBMITTING, "w", 4.0)
    with pytest.raises(ValueError, match="only a ready shard"):
        store.shards.mark_submitting(lease, intended, exclusive=False)


def test_who_comes_second_with_a_shard_loses(store: SqlStore, bench: Bench) -> None:
    _, lease = started(store, bench, 1)
    ready = led(store, lease, store.shards.plan(lease, bench.shard(0)), ShardState.READY)
    assert store.shards.mark_submitting(lease, ready, exclusive=False)
    for second in (
        lambda: store.shards.mark_submitting(lease, ready, exclusive=False),
        lambda: store.shards.advance(lease, ready, ShardState.UPLOADING),
        lambda: store.shards.advance(lease, ready, ShardState.READY, tries=1),
        lambda: store.shards.discard(lease, ready, items=ItemState.OPEN, tried=True, note="", at=1.0),
        lambda: store.shards.fail(lease, ready, b"", note="", at=1.0),
    ):
        with pytest.raises(LeaseLost, match="no longer ready"):
            second()


@pytest.mark.parametrize("state", [ShardState.SUBMITTING, ShardState.UNCERTAIN, ShardState.PROVISIONAL])
def test_an_exclusive_create_waits_for_others_of_the_account(bench: Bench, state: ShardState) -> None:
    store, other = bench.open(), bench.open()
    _, lease = started(store, bench, 1)
    _, theirs = started(other, bench, 1)
    _, far = started(other, bench, 1, scope="scope-2")
    unresolved = led(store, lease, store.shards.plan(lease, bench.shard(0)), state)
    ready = led(other, theirs, other.shards.plan(theirs, bench.shard(0)), ShardState.READY)
    elsewhere = led(other, far, other.shards.plan(far, bench.shard(0)), ShardState.READY)
    assert other.shards.mark_submitting(theirs, ready, exclusive=True) is None
    assert other.shards.get(ready.id) == ready
    assert other.shards.mark_submitting(far, elsewhere, exclusive=True) is not None
    store.shards.advance(lease, unresolved, ShardState.SUBMITTED)
    assert other.shards.mark_submitting(theirs, ready, exclusive=True) is not None


def test_of_exclusive_creates_at_once_one_goes(bench: Bench) -> None:
    stores = [bench.open() for _ in range(4)]
    ready = []
    for one in stores:
        _, lease = started(one, bench, 1)
        ready.append((one, lease, led(one, lease, one.shards.plan(lease, bench.shard(0)), ShardState.READY)))
    together = threading.Barrier(4)
    went: list[bool] = []

    def mark_submitting(one: SqlStore, lease: JobLease, shard: Any) -> None:
        together.wait(10)
        went.append(one.shards.mark_submitting(lease, shard, exclusive=True) is not None)

    threads = [threading.Thread(target=mark_submitting, args=row) for row in ready]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(went) == [False, False, False, True]


@pytest.mark.parametrize("items", [ItemState.OPEN, ItemState.REALTIME])
@pytest.mark.parametrize("tried", [True, False])
def test_a_discarded_shard_frees_its_items(
    store: SqlStore, bench: Bench, items: ItemState, tried: bool
) -> None:
    job, lease = started(store, bench, 4)
    other = store.shards.plan(lease, bench.shard(1))
    shard = led(store, lease, store.shards.plan(lease, bench.shard(0, 2)), ShardState.FENCED)
    dead = store.shards.discard(lease, shard, items=items, tried=tried, note="never came", at=50.0)
    assert (dead.state, dead.note, dead.died_at) == (ShardState.DEAD, "never came", 50.0)
    freed = [(i.ix, i.tries) for i in store.items.in_state(job.id, state=items) if i.ix != 3]
    assert freed == [(0, int(tried)), (2, int(tried))]
    assert store.shards.get(other.id) == other
    assert [item.ix for item in store.items.in_state(job.id, state=ItemState.SHARDED)] == [1]
    assert {at: item.ix for at, item in store.shards.items_at(dead.id, [0, 1]).items()} == {0: 0, 1: 2}


def test_a_shard_that_cannot_die_is_not_discarded(store: SqlStore, bench: Bench) -> None:
    _, lease = started(store, bench, 1)
    shard = led(store, lease, store.shards.plan(lease, bench.shard(0)), ShardState.PROVISIONAL)
    with pytest.raises(ValueError, match="does not become dead"):
        store.shards.discard(lease, shard, items=ItemState.OPEN, tried=True, note="", at=1.0)
    with pytest.raises(ValueError, match="open or real time"):
        store.shards.discard(lease, shard, items=ItemState.FINAL, tried=True, note="", at=1.0)


def test_a_refused_shard_ends_its_items_and_costs_nothing(store: SqlStore, bench: Bench) -> None:
    job, lease = started(store, bench, 3)
    shard = store.shards.plan(lease, bench.shard(2, 0))
    dead = store.shards.fail(lease, shard, b"why", note="refused", at=50.0)
    assert (dead.state, dead.note, dead.died_at) == (ShardState.DEAD, "refused", 50.0)
    assert [(r.ix, r.outcome, r.body, r.cost, r.user_id) for r in store.items.results(job.id)] == [
        (0, "failed", b"why", 0.0, "row-0"),
        (2, "failed", b"why", 0.0, "row-2"),
    ]
    found = store.jobs.get(job.id)
    assert found is not None
    assert (found.failed, found.finished, found.unpriced, found.state) == (2, 2, 0, JobState.ACTIVE)
    store.shards.fail(lease, store.shards.plan(lease, bench.shard(1)), b"why", note="refused", at=60.0)
    found = store.jobs.get(job.id)
    assert found is not None
    assert (found.state, found.finished_at) == (JobState.DONE, 60.0)


def test_shards_are_found_by_state_and_account(store: SqlStore, bench: Bench) -> None:
    job, lease = started(store, bench, 3)
    _far, far_lease = started(store, bench, 1, scope="scope-2")
    first = store.shards.plan(lease, bench.shard(0))
    second = led(store, lease, store.shards.plan(lease, bench.shard(1)), ShardState.SUBMITTED)
    third = store.shards.discard(
        lease, store.shards.plan(lease, bench.shard(2)), items=ItemState.OPEN, tried=False, note="", at=1.0
    )
    elsewhere = store.shards.plan(far_lease, bench.shard(0))
    assert store.shards.of_job(job.id) == [first, second, third]
    assert store.shards.of_job(job.id, states=[ShardState.DEAD, ShardState.PLANNED]) == [first, third]
    assert store.shards.of_job(job.id, states=[]) == []
    assert store.shards.of_job(job.id, states=OPEN_SHARDS) == [first, second]
    assert store.shards.in_scope("scope-1", states=list(ShardState)) == [first, second, third]
    assert store.shards.in_scope("scope-2", states=[ShardState.PLANNED]) == [elsewhere]
    assert store.shards.in_scope("scope-3", states=list(ShardState)) == []


def test_a_large_shard_keeps_its_positions(store: SqlStore, bench: Bench) -> None:
    _job, lease = started(store, bench, 12_000)
    order = list(range(12_000))
    bench.rng.shuffle(order)
    shard = store.shards.plan(lease, bench.shard(*order))
    seen, after = [], -1
    while page := store.shards.payloads(shard.id, after=after, limit=5_000):
        seen += [(position, item.ix) for position, item in page.items()]
        assert all(item.payload == b"ask %d" % item.ix for item in page.values())
        after = max(page)
    assert seen == list(enumerate(order))


def test_pages_of_large_requests_and_answers_end_early_and_no_row_is_skipped(
    store: SqlStore, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "PAGE_BYTES", 100)
    sizes = [10, 20, 500, 60, 40, 30]
    items = [evolve(item, payload=b"x" * size) for item, size in zip(new_items(6), sizes, strict=True)]
    job, _ = store.jobs.accept(bench.job(), items)
    lease = store.leases.claim(job.id, 15.0)
    assert lease is not None
    shard = led(store, lease, store.shards.plan(lease, bench.shard(*range(6))), ShardState.INGESTING)
    store.shards.ingest(lease, shard, [result(ix, text=b"12345678") for ix in (5, 0, 1, 2, 3, 4)], at=1.0)

    pages, after = [], -1
    while page := store.shards.payloads(shard.id, after=after):
        pages.append([len(request.payload) for request in page.values()])
        after = max(page)
    assert pages == [[10, 20], [500], [60, 40], [30]]

    found, after = [], -1
    while rows := store.items.results(job.id, after=after, limit=2):
        found.append([row.ix for row in rows])
        after = rows[-1].ix
    assert found == [[0, 1], [2], [3], [4, 5]]

    found, after = [], 0
    while rows := store.items.fresh(job.id, after=after):
        found.append([row.ix for row in rows])
        after = rows[-1].seq
    assert found == [[5, 0, 1], [2], [3], [4]]


# -- results -------------------------------------------------------------------------------------------------


def test_results_behind_a_gap_longer_than_a_page_are_found(store: SqlStore, bench: Bench) -> None:
    job, lease = started(store, bench, 40)
    shard = ingesting(store, bench, lease, *range(40))
    store.shards.ingest(lease, shard, [result(ix) for ix in (39, 0, 30)], at=1.0)
    pages, after = [], -1
    while rows := store.items.results(job.id, after=after, limit=10):
        pages.append([row.ix for row in rows])
        after = rows[-1].ix
    assert pages == [[0], [30, 39]]
    assert [row.ix for row in store.items.results(job.id, after=38, limit=10)] == [39]
    assert store.items.results(job.id, after=39) == []


def test_a_large_job_is_cancelled_and_forgotten_in_pages_and_nothing_of_it_stays(
    store: SqlStore, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items_module, "PAGE_DROPPED", 7)
    monkeypatch.setattr(deleting_module, "PAGE_DELETED", 7)
    other, _ = store.jobs.accept(bench.job(), new_items(3))
    job, lease = started(store, bench, 21)
    last, _ = store.jobs.accept(bench.job(), new_items(3))
    assert store.items.drop_unsent(lease, b"cancelled", at=5.0) == 21
    done = store.jobs.get(job.id)
    assert done is not None
    assert (done.cancelled, done.state, done.finished_at) == (21, JobState.DONE, 5.0)
    assert [(row.ix, row.seq) for row in store.items.fresh(job.id)] == [(ix, ix + 1) for ix in range(21)]
    store.jobs.forget(job.id)
    assert bench.behind("SELECT count(*) FROM item") == bench.behind("SELECT count(*) FROM payload") == [(6,)]
    assert (
        bench.behind("SELECT count(*) FROM result")
        == bench.behind("SELECT count(*) FROM incomplete_job")
        == [(0,)]
    )
    assert [len(store.items.in_state(one.id)) for one in (other, last)] == [3, 3]


def test_results_are_kept_counted_and_read_by_place_and_by_arrival(store: SqlStore, bench: Bench) -> None:
    job, lease = started(store, bench, 4)
    shard = ingesting(store, bench, lease, 0, 1, 2, 3)
    told = store.shards.ingest(
        lease,
        shard,
        [
            result(2, cost=0.25, realtime_cost=0.5, usage=Usage(10, 3)),
            result(0, "failed", b"bad", cost=None, realtime_cost=None),
        ],
        at=10.0,
    )
    assert (told.final, told.doubled) == ((2, 0), ())
    store.shards.ingest(lease, shard, [result(1, "cancelled", cost=0.0, realtime_cost=None)], at=11.0)
    found = store.jobs.get(job.id)
    assert found is not None
    assert (found.succeeded, found.failed, found.cancelled, found.finished) == (1, 1, 1, 3)
    assert (found.cost, found.realtime_cost, found.unpriced) == (0.25, 0.5, 1)
    assert (found.input_tokens, found.output_tokens, found.state) == (10, 3, JobState.ACTIVE)
    by_place = store.items.results(job.id)
    assert [(r.ix, r.user_id, r.outcome, r.body, r.payload, r.cost) for r in by_place] == [
        (0, "row-0", "failed", b"bad", b"ask 0", None),
        (1, "row-1", "cancelled", b"answer 1", b"ask 1", 0.0),
        (2, "row-2", "succeeded", b"answer 2", b"ask 2", 0.25),
    ]
    assert [r.ix for r in store.items.results(job.id, after=0, limit=1)] == [1]
    assert [(r.ix, r.seq) for r in store.items.fresh(job.id)] == [(2, 1), (0, 2), (1, 3)]
    assert [r.ix for r in store.items.fresh(job.id, after=1, limit=1)] == [0]
    store.shards.ingest(lease, shard, [result(3)], at=12.5)
    done = store.jobs.get(job.id)
    assert done is not None
    assert (done.state, done.finished_at) == (JobState.DONE, 12.5)


def test_results_of_one_job_are_not_those_of_its_neighbours(store: SqlStore, bench: Bench) -> None:
    jobs = []
    for _ in range(3):
        job, lease = started(store, bench, 2)
        store.shards.ingest(lease, ingesting(store, bench, lease, 0, 1), [result(0), result(1)], at=1.0)
        jobs.append(job.id)
    for job_id in jobs:
        assert [r.ix for r in store.items.results(job_id)] == [0, 1]
        assert [r.seq for r in store.items.fresh(job_id)] == [1, 2]
        assert [i.ix for i in store.items.in_state(job_id, state=ItemState.FINAL)] == [0, 1]


def test_where_the_real_time_price_is_unknown_no_saving_is_claimed(store: SqlStore, bench: Bench) -> None:
    job, lease = started(store, bench, 2)
    shard = ingesting(store, bench, lease, 0, 1)
    store.shards.ingest(lease, shard, [result(0, cost=0.5, realtime_cost=None), result(1, cost=0.5)], at=1.0)
    found = store.jobs.get(job.id)
    assert found is not None
    assert (found.cost, found.realtime_cost) == (1.0, 1.5)


def test_tries_that_did_not_end_an_item_are_told_with_its_end_whatever_that_is(
    store: SqlStore, bench: Bench
) -> None:
    """What two batches billed is added up, once for each line; the last answer that was refused is kept."""
    job, lease = started(store, bench, 3)
    for answer in (b"no", b"never"):
        shard = ingesting(store, bench, lease, 0, 1, 2)
        tried = [
            result(0, "again", answer, usage=Usage(3, 1)),
            result(1, "again", answer, usage=Usage(5, 2), cost=None),
            result(2, "unrun", answer),
        ]
        store.shards.ingest(lease, shard, tried, at=1.0)
        store.shards.ingest(lease, shard, tried, at=1.0)
        store.shards.settle(lease, shard, opened=[0, 1, 2], at=2.0)
    shard = ingesting(store, bench, lease, 0)
    store.shards.ingest(lease, shard, [result(0, cost=1.0)], at=3.0)
    assert store.items.drop_unsent(lease, b"", at=4.0) == 2
    assert [(row.cost, row.earlier) for row in store.items.results(job.id)] == [
        (1.0, EarlierTries(1.0, Usage(6, 2), b"never")),
        (0.0, EarlierTries(None, Usage(10, 4), b"never")),
        (0.0, None),
    ]


def test_the_first_result_wins_the_same_again_is_nothing_and_another_is_told(
    store: SqlStore, bench: Bench
) -> None:
    job, lease = started(store, bench, 3)
    shard = ingesting(store, bench, lease, 0, 1, 2)
    store.shards.ingest(lease, shard, [result(0, text=b"first")], at=1.0)
    before = store.jobs.get(job.id)
    same = store.shards.ingest(lease, shard, [result(0, text=b"first")], at=2.0)
    other = store.shards.ingest(lease, shard, [result(0, text=b"second")], at=3.0)
    at_once = store.shards.ingest(
        lease, shard, [result(1, text=b"a"), result(1, text=b"b"), result(1, text=b"a")], at=4.0
    )
    assert (same.final, same.doubled) == ((), ())
    assert (other.final, other.doubled) == ((), (0,))
    assert (at_once.final, at_once.doubled) == ((1,), (1,))
    assert [(r.ix, r.body) for r in store.items.results(job.id)] == [(0, b"first"), (1, b"a")]
    assert before is not None
    assert before.cost == 0.5
    assert store.jobs.get(job.id).cost == 1.0  # type: ignore[union-attr]


def test_a_result_beats_a_verdict_whichever_came_first(store: SqlStore, bench: Bench) -> None:
    job, lease = started(store, bench, 3)
    shard = ingesting(store, bench, lease, 0, 1, 2)
    first = store.shards.ingest(lease, shard, [result(0, "again"), result(1)], at=1.0)
    second = store.shards.ingest(lease, shard, [result(0), result(1, "again")], at=2.0)
    third = store.shards.ingest(lease, shard, [result(2, "unrun", b"u"), result(2, "unrun", b"u")], at=3.0)
    fourth = store.shards.ingest(lease, shard, [result(2, "again", b"v")], at=3.0)
    assert (first.final, first.doubled) == ((1,), ())
    assert (second.final, second.doubled) == ((0,), (1,))
    assert (third.final, third.doubled) == ((), ())
    assert (fourth.final, fourth.doubled) == ((), (2,))
    assert [(u.ix, u.verdict, u.body) for u in store.shards.unsettled(shard.id)] == [(2, "unrun", b"u")]
    assert [r.ix for r in store.items.results(job.id)] == [0, 1]


def test_a_line_read_again_is_nothing_new_though_its_item_has_ended_meanwhile(
    store: SqlStore, bench: Bench
) -> None:
    """A file is read from its beginning after a crash."""
    _, lease = started(store, bench, 1)
    shard = ingesting(store, bench, lease, 0)
    store.shards.ingest(lease, shard, [result(0, "again", b"busy")], at=1.0)
    store.shards.ingest(lease, shard, [result(0)], at=2.0)
    assert store.shards.ingest(lease, shard, [result(0, "again", b"busy")], at=3.0).doubled == ()
    assert store.shards.ingest(lease, shard, [result(0, "again", b"other")], at=4.0).doubled == (0,)


def test_what_is_unsettled_says_why(store: SqlStore, bench: Bench) -> None:
    _, lease = started(store, bench, 5)
    dead = store.shards.plan(lease, bench.shard(3))
    store.shards.discard(lease, dead, items=ItemState.OPEN, tried=True, note="", at=0.0)
    shard = ingesting(store, bench, lease, 4, 3, 1, 0)
    store.shards.ingest(
        lease, shard, [result(1), result(0, "again", b"busy"), result(3, "unrun", b"late")], at=1.0
    )
    assert [(u.ix, u.verdict, u.body, u.tries) for u in store.shards.unsettled(shard.id)] == [
        (4, None, None, 0),
        (3, "unrun", b"late", 1),
        (0, "again", b"busy", 0),
    ]


def test_a_result_of_an_item_that_is_not_in_the_shard_is_refused(store: SqlStore, bench: Bench) -> None:
    job, lease = started(store, bench, 3)
    store.shards.plan(lease, bench.shard(1))
    shard = ingesting(store, bench, lease, 0)
    for ix in (1, 2, 77):
        with pytest.raises(ValueError, match=f"item {ix} is not in shard"):
            store.shards.ingest(lease, shard, [result(0), result(ix)], at=1.0)
    assert store.items.results(job.id) == []


@pytest.mark.parametrize("state", [ShardState.PLANNED, ShardState.SUBMITTED, ShardState.ENDED])
def test_a_shard_that_is_not_being_read_takes_no_results(
    store: SqlStore, bench: Bench, state: ShardState
) -> None:
    _, lease = started(store, bench, 1)
    shard = led(store, lease, store.shards.plan(lease, bench.shard(0)), state)
    with pytest.raises(ValueError, match="has no results to take"):
        store.shards.ingest(lease, shard, [result(0)], at=1.0)
    with pytest.raises(LeaseLost, match="no longer ingesting"):
        store.shards.ingest(lease, evolve(shard, state=ShardState.INGESTING), [result(0)], at=1.0)


def test_answers_of_a_orphan_are_used_for_items_that_have_none(store: SqlStore, bench: Bench) -> None:
    job, lease = started(store, bench, 5)
    orphan = led(store, lease, store.shards.plan(lease, bench.shard(0, 1, 2, 3)), ShardState.UNCERTAIN)
    orphan = store.shards.discard(lease, orphan, items=ItemState.OPEN, tried=True, note="", at=1.0)
    again = ingesting(store, bench, lease, 0, 1)
    store.shards.ingest(lease, again, [result(0, text=b"new")], at=2.0)
    told = store.shards.ingest(
        lease, orphan, [*(result(ix, text=b"orphan") for ix in (0, 1, 2)), result(3, "again")], at=3.0
    )
    assert (told.final, told.doubled) == ((1, 2), (0,))
    assert [(r.ix, r.body) for r in store.items.results(job.id)] == [
        (0, b"new"),
        (1, b"orphan"),
        (2, b"orphan"),
    ]
    assert [u.ix for u in store.shards.unsettled(again.id)] == []
    late = store.shards.ingest(lease, again, [result(1, text=b"late")], at=4.0)
    assert late.doubled == (1,)
    settled = store.shards.settle(lease, again, at=5.0)
    assert settled.state is ShardState.SETTLED
    assert [item.ix for item in store.items.in_state(job.id)] == [3, 4]


def test_settling_sends_every_item_somewhere(store: SqlStore, bench: Bench) -> None:
    job, lease = started(store, bench, 6)
    shard = ingesting(store, bench, lease, 0, 1, 2, 3)
    store.shards.ingest(lease, shard, [result(0), result(1, "again")], at=1.0)
    with pytest.raises(ValueError, match=r"3 items of shard .* go nowhere"):
        store.shards.settle(lease, shard, at=2.0)
    with pytest.raises(ValueError, match="1 items"):
        store.shards.settle(lease, shard, opened=[1], realtime=[2], at=2.0)
    with pytest.raises(ValueError, match="one way only"):
        store.shards.settle(lease, shard, opened=[1, 2], realtime=[2, 3], at=2.0)
    with pytest.raises(ValueError, match="final"):
        store.shards.settle(lease, shard, opened=[1, 2], finals=[result(3, "again")], at=2.0)
    assert store.shards.get(shard.id) == shard
    settled = store.shards.settle(
        lease, shard, opened=[1], realtime=[2], finals=[result(3, "failed")], at=3.0, cost=1.25, note="n"
    )
    assert (settled.state, settled.settled_at, settled.cost, settled.note) == (
        ShardState.SETTLED,
        3.0,
        1.25,
        "n",
    )
    assert [(i.ix, i.tries) for i in store.items.in_state(job.id)] == [(1, 1), (4, 0), (5, 0)]
    assert [(i.ix, i.tries) for i in store.items.in_state(job.id, state=ItemState.REALTIME)] == [(2, 1)]
    assert [(r.ix, r.outcome) for r in store.items.results(job.id)] == [(0, "succeeded"), (3, "failed")]
    with pytest.raises(LeaseLost):
        store.shards.settle(lease, shard, opened=[1], realtime=[2], at=4.0)


def test_a_verdict_of_an_earlier_shard_does_not_follow_its_item(store: SqlStore, bench: Bench) -> None:
    _, lease = started(store, bench, 1)
    shard = ingesting(store, bench, lease, 0)
    store.shards.ingest(lease, shard, [result(0, "again")], at=1.0)
    store.shards.settle(lease, shard, opened=[0], at=2.0)
    shard = ingesting(store, bench, lease, 0)
    assert [(u.verdict, u.tries) for u in store.shards.unsettled(shard.id)] == [(None, 1)]


def test_realtime_items_are_claimed_in_order_and_once(store: SqlStore, bench: Bench) -> None:
    job, _ = store.jobs.accept(bench.job(), new_items(5, realtime=True))
    lease = store.leases.claim(job.id, 60)
    assert lease is not None
    assert [(d.ix, d.user_id, d.payload, d.tries) for d in store.items.claim_realtime(lease, 2)] == [
        (0, "row-0", b"ask 0", 0),
        (1, "row-1", b"ask 1", 0),
    ]
    assert [d.ix for d in store.items.claim_realtime(lease, 2)] == [2, 3]
    assert [i.ix for i in store.items.in_state(job.id, state=ItemState.IN_FLIGHT)] == [0, 1, 2, 3]
    told = store.items.answer(lease, [result(1), result(0, "again"), result(2, "unrun")], at=1.0)
    assert (told.final, told.doubled) == ((1,), ())
    assert [(d.ix, d.tries) for d in store.items.claim_realtime(lease, 9)] == [(0, 1), (2, 0), (4, 0)]
    assert store.items.answer(lease, [result(1, text=b"other")], at=2.0).doubled == (1,)
    assert store.items.claim_realtime(lease, 9) == []
    with pytest.raises(ValueError, match="no item 9"):
        store.items.answer(lease, [result(9)], at=2.0)
    store.items.answer(lease, [result(ix) for ix in (0, 2, 3, 4)], at=8.0)
    done = store.jobs.get(job.id)
    assert done is not None
    assert (done.state, done.finished_at, done.succeeded) == (JobState.DONE, 8.0, 5)


def test_a_cancelled_job_drops_what_was_not_sent(store: SqlStore, bench: Bench) -> None:
    job, lease = started(store, bench, 6)
    sent = led(store, lease, store.shards.plan(lease, bench.shard(0)), ShardState.SUBMITTED)
    dead = store.shards.plan(lease, bench.shard(1, 2))
    store.shards.discard(lease, dead, items=ItemState.REALTIME, tried=False, note="", at=0.0)
    assert [d.ix for d in store.items.claim_realtime(lease, 1)] == [1]
    assert store.items.drop_unsent(lease, b"cancelled", at=5.0) == 4
    assert store.items.drop_unsent(lease, b"cancelled", at=5.0) == 0
    assert [(r.ix, r.outcome, r.body, r.cost) for r in store.items.results(job.id)] == [
        (ix, "cancelled", b"cancelled", 0.0) for ix in (2, 3, 4, 5)
    ]
    assert [r.ix for r in store.items.fresh(job.id)] == [2, 3, 4, 5]
    found = store.jobs.get(job.id)
    assert found is not None
    assert (found.cancelled, found.finished, found.unpriced) == (4, 4, 0)
    assert store.shards.get(sent.id) == sent


def test_no_reader_misses_a_result_while_others_write(bench: Bench) -> None:
    """A reader follows ``seq`` from another store while two threads store results of one job."""
    store, reader = bench.open(), bench.open()
    job, lease = started(store, bench, 400)
    shards = [ingesting(store, bench, lease, *range(at, at + 100)) for at in range(0, 400, 100)]

    def write(mine: list[Any]) -> None:
        for shard, first in mine:
            for ix in range(first, first + 100, 10):
                store.shards.ingest(lease, shard, [result(i) for i in range(ix, ix + 10)], at=1.0)

    parts = [[(shard, n * 100) for n, shard in enumerate(shards) if n % 2 == side] for side in (0, 1)]
    threads = [threading.Thread(target=write, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    seen: list[int] = []
    after = 0
    for _ in range(100_000):
        page = reader.items.fresh(job.id, after=after, limit=7)
        assert [row.seq for row in page] == list(range(after + 1, after + 1 + len(page)))
        seen += [row.ix for row in page]
        after += len(page)
        if len(seen) == 400:
            break
    for thread in threads:
        thread.join(60)
    assert sorted(seen) == list(range(400))


def test_results_that_are_stored_while_a_gap_is_looked_for_are_not_passed_over(
    store: SqlStore, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, lease = started(store, bench, 9)
    shard = ingesting(store, bench, lease, *range(9))
    real = items_module.first_in

    def meanwhile(*asked: Any, **named: Any) -> int | None:
        store.shards.ingest(lease, shard, [result(ix) for ix in range(9)], at=1.0)
        return real(*asked, **named)

    with monkeypatch.context() as patched:
        patched.setattr(items_module, "first_in", meanwhile)
        assert [row.seq for row in store.items.fresh(job.id, limit=4)] == [1, 2, 3, 4]
    assert [row.seq for row in store.items.fresh(job.id, after=4, limit=9)] == [5, 6, 7, 8, 9]


# -- notes ---------------------------------------------------------------------------------------------------


def test_an_incident_told_twice_is_kept_once(bench: Bench) -> None:
    store, other = bench.open(), bench.open()
    job, lease = started(store, bench)
    first = IncidentRow("doubled_line", "job-1", "shard-1", "row 5", 0.25, 10.0)
    assert store.facts.add_incident(lease, first)
    store.leases.release(lease)
    anew = other.leases.claim(job.id, 60.0)
    assert anew is not None
    assert not other.facts.add_incident(anew, evolve(first, at=20.0, money=None))
    different = [
        evolve(first, kind="foreign_line"),
        evolve(first, job_id="job-2"),
        evolve(first, shard_id=None),
        evolve(first, detail="row 6"),
    ]
    assert all(other.facts.add_incident(anew, incident) for incident in different)
    assert store.facts.incidents("job-1") == [first, different[0], *different[2:]]
    assert store.facts.incidents("job-2") == [different[1]]


def test_what_a_former_owner_believes_is_no_incident(store: SqlStore, bench: Bench) -> None:
    job, lease = started(store, bench)
    told = IncidentRow("batch_vanished", job.id, None, "", None, 10.0)
    store.leases.release(lease)
    with pytest.raises(LeaseLost):
        store.facts.add_incident(lease, told)
    assert store.facts.incidents(job.id) == []
    anew = store.leases.claim(job.id, 30.0)
    assert anew is not None
    assert store.facts.add_incident(anew, told)
    assert store.facts.incidents(job.id) == [told]


def test_batches_that_are_ours_or_are_being_proven_are_claimed_and_mere_guesses_are_not(
    store: SqlStore, bench: Bench
) -> None:
    _, lease = started(store, bench, 3)
    _, far = started(store, bench, 1, scope="scope-2")
    submitted = led(store, lease, store.shards.plan(lease, bench.shard(0)), ShardState.SUBMITTING)
    store.shards.advance(lease, submitted, ShardState.SUBMITTED, batch_id="ours")
    unsure = led(store, lease, store.shards.plan(lease, bench.shard(1)), ShardState.UNCERTAIN)
    unsure = store.shards.advance(
        lease, unsure, ShardState.PROVISIONAL, candidate="maybe", foreign_batches=("alien", "other")
    )
    store.shards.advance(far, store.shards.plan(far, bench.shard(0)), ShardState.READY, batch_id="far")
    given_up = led(store, lease, store.shards.plan(lease, bench.shard(2)), ShardState.UNCERTAIN)
    dead = store.shards.discard(lease, given_up, items=ItemState.OPEN, tried=False, note="", at=1.0)
    store.shards.advance(lease, dead, ShardState.DEAD, candidate="orphan")
    asked = ["ours", "maybe", "alien", "orphan", "new", "far"]
    assert store.shards.claimed_batches("scope-1", asked) == {"ours", "maybe"}
    assert store.shards.claimed_batches("scope-1", []) == set()


def test_turnarounds_come_back_newest_first_and_do_not_grow_for_ever(store: SqlStore, bench: Bench) -> None:
    for n in range(560):
        store.facts.observe_turnarounds("m", [(n, n / 2, float(n))])
    store.facts.observe_turnarounds("other", [(1, 1.0, 1.0)])
    assert store.facts.turnarounds("m", limit=2) == [(559, 279.5, 559.0), (558, 279.0, 558.0)]
    assert len(store.facts.turnarounds("m")) == 100
    assert store.facts.turnarounds("none") == []
    assert bench.behind("SELECT count(*) FROM turnaround WHERE model = 'm'")[0][0] <= 550


def test_facts_are_remembered_and_replaced(bench: Bench) -> None:
    store, other = bench.open(), bench.open()
    store.facts.remember("limit", {"tokens": 5})
    store.facts.remember("limit", [1, None, "x"])
    assert other.facts.recall("limit") == [1, None, "x"]


def test_the_spool_is_a_folder_for_its_owner_only(store: SqlStore) -> None:
    import os
    import stat

    assert stat.S_IMODE(os.stat(store.spool).st_mode) == 0o700
    assert os.path.isdir(store.spool)


def test_a_nonce_of_the_wire_fits(store: SqlStore, bench: Bench) -> None:
    _, lease = started(store, bench, 1)
    nonce = new_nonce(bench.rng)
    store.shards.plan(lease, bench.shard(0, nonce=nonce))
    assert store.shards.with_nonce(nonce) is not None
    assert new_job("job-1").id == "job-1"


@pytest.mark.parametrize("way", ["batch", "real time", "refused", "dropped", "in flight at a kill"])
def test_followers_end_with_their_leader_however_it_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """In the same transaction, a few at a time, for nothing, and told once."""
    monkeypatch.setattr(outcomes_module, "PAGE_FOLLOWERS", 2)
    told: list[StoredCounts] = []
    store = bench.open(counted=lambda _, counts: told.append(counts))
    first = new_items(1, realtime=way in ("real time", "in flight at a kill"))
    following = [evolve(item, leader=0) for item in new_items(6)[1:]]
    job, _ = store.jobs.accept(bench.job(), [*first, *following])
    lease = store.leases.claim(job.id, 60.0)
    assert lease is not None
    if way == "batch":
        shard = led(store, lease, store.shards.plan(lease, bench.shard(0)), ShardState.INGESTING)
        store.shards.ingest(lease, shard, [result(0)], at=9.0)
    elif way == "real time":
        store.items.claim_realtime(lease, 5)
        store.leases.tell_counts(job.id, store.items.answer(lease, [result(0)], at=9.0).counts)
    elif way == "refused":
        store.shards.fail(lease, store.shards.plan(lease, bench.shard(0)), b"no", note="", at=9.0)
    elif way == "dropped":
        store.items.drop_unsent(lease, b"no", at=9.0)
    else:
        store.items.claim_realtime(lease, 5)
        store.leases.release(lease)
        assert store.leases.claim(job.id, 60.0, unknown=b"no") is not None
    row = store.jobs.get(job.id)
    assert row is not None
    assert (row.state, row.finished) == (JobState.DONE, 6)
    assert row.cost == (0.5 if way in ("batch", "real time") else 0.0)
    found = store.items.results(job.id)
    assert [each.ix for each in found] == list(range(6))
    assert [each.follower for each in found] == [False] + [True] * 5
    assert len({(each.outcome, each.body) for each in found}) == 1
    assert [each.payload for each in found] == [b"ask %d" % ix for ix in range(6)]
    assert [each.ix for each in store.items.fresh(job.id)] == list(range(6))
    assert sum(each.succeeded + each.failed + each.cancelled for each in told) == 6
    assert sum(each.deduplicated for each in told) == 5
    store.jobs.forget(job.id)
    assert bench.behind("SELECT count(*) FROM follower") == [(0,)]


# -- interrupts ----------------------------------------------------------------------------------------------


Act = Callable[[SqlStore, JobLease], object]
ACTS: dict[str, Act] = {
    "a read": lambda store, _: store.facts.recall("k"),
    "a write": lambda store, _: store.facts.remember("k", 2),
    "a write under a lease": lambda store, lease: store.jobs.note(lease, "waits"),
}


def foreign(bench: Bench) -> Collection[CodeType]:
    """Return what leaves a session to the collector where it is interrupted, or drops the interrupt."""
    if bench.kind == "sqlite":
        return ()
    from psycopg import Connection

    return {Connection.connect.__func__.__code__, Connection._notice_handler.__code__}  # type: ignore[attr-defined]


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_what_is_interrupted_at_any_moment_leaves_the_store_to_others(bench: Bench, act: Act) -> None:
    """The traceback keeps all frames, as a notebook does: no lock and no transaction may stay with them."""
    store, other = bench.open(), bench.open(busy_timeout=0.5)
    _, lease = started(store, bench)
    store.facts.remember("k", 1)
    for at in interrupted_at_every_moment(lambda: act(store, lease), spared=foreign(bench)):
        going_on = threading.Thread(target=store.jobs.note, args=(lease, None), daemon=True)
        going_on.start()
        going_on.join(10)
        assert not going_on.is_alive(), f"blocked after an interrupt at moment {at}"
        other.facts.remember("of another process", at)
