"""Jobs, incidents and facts in stores on both databases, and interrupts."""

from __future__ import annotations

import threading

import pytest
from attrs import asdict, evolve
from ctrl_c import interrupted_at_every_moment
from jobs.sample_records import POLICY, PROGRESS
from jobs.stores import bench, ingesting, led, new_items, result, started, store
from realtime.scenes import eventually

from smartbatch.errors import InvalidRequest, JobNotFound, StoreError
from smartbatch.jobs.records import (
    IncidentRow,
    ItemName,
    ItemState,
    JobSelection,
    JobState,
    NamedPlace,
    NewItem,
)
from smartbatch.jobs.shard_records import ShardState
from smartbatch.jobs.store import jobs as jobs_module
from smartbatch.types import Usage
from tests.levels import sampled
from tests.threads_together import run_together

__all__ = ["bench", "store"]  # fixtures


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


def test_the_samples_of_records_differ_from_the_defaults_in_every_field():
    for sample in (POLICY, PROGRESS):
        unset = asdict(type(sample)())
        assert [name for name, value in asdict(sample).items() if value == unset[name]] == []


def test_an_accepted_job_is_found_by_another_process(bench):
    new = bench.job(key="mine", metadata={"team": "é"}, policy=POLICY, params=b"\x00\xff", digest=b"d")
    job, is_new = bench.open().jobs.accept(new, new_items(3))
    other = bench.open()
    assert is_new
    assert other.jobs.get(new.id) == other.jobs.get("mine") == job == other.jobs.latest()[0]
    assert (job.total, job.state, job.metadata, job.policy) == (3, JobState.ACTIVE, {"team": "é"}, POLICY)
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


def test_an_id_accepted_twice_is_one_job(store, bench):
    new = bench.job()
    assert store.jobs.accept(new, new_items(2)) == (store.jobs.get(new.id), True)
    assert store.jobs.accept(new, new_items(2)) == (store.jobs.get(new.id), False)


@pytest.mark.parametrize("count", [1, 2_500])
def test_threads_that_accept_one_key_at_once_get_one_job(bench, count, monkeypatch):
    monkeypatch.setattr(jobs_module, "PAGE_ITEMS", 1_000)
    stores = [bench.open() for _ in range(4)]
    together = threading.Barrier(4)
    got = []

    def accept(one):
        together.wait(10)
        row, is_new = one.jobs.accept(bench.job(key="same"), new_items(count))
        got.append((row.id, is_new))

    run_together(accept, stores)
    assert len({job_id for job_id, _ in got}) == 1
    assert sorted(is_new for _, is_new in got) == [False, False, False, True]
    assert bench.behind("SELECT count(*) FROM item") == [(count,)]
    assert bench.behind("SELECT count(*) FROM incomplete_job") == [(0,)]


@pytest.mark.parametrize("count", sampled([0, 1, 999, 1_000, 1_001, 3_500], keep=3))
def test_a_job_of_any_size_is_stored_whole(store, bench, count, monkeypatch):
    monkeypatch.setattr(jobs_module, "PAGE_ITEMS", 1_000)
    seen = 0

    def items():
        nonlocal seen
        for item in new_items(count):
            seen += 1
            yield item

    job, _ = store.jobs.accept(bench.job(), items(), digest=lambda: b"after %d" % seen)
    assert job.total == count == len(store.items.in_state(job.id))
    assert job.digest == b"after %d" % count
    assert [item.ix for item in store.items.in_state(job.id)] == list(range(count))
    assert bench.behind("SELECT count(*) FROM incomplete_job") == [(0,)]


def test_items_of_a_process_that_dies_during_the_input_are_deleted(bench, monkeypatch):
    monkeypatch.setattr(jobs_module, "PAGE_ITEMS", 10)
    dying, other = bench.open(), bench.open()

    def items():
        yield from new_items(25)
        dying.abandon()
        raise SystemExit

    monkeypatch.setattr(jobs_module, "delete_items", lambda *_: None)  # the dead do not clean up
    with pytest.raises(SystemExit):
        dying.jobs.accept(bench.job(key="k"), items())
    assert bench.behind("SELECT count(*) FROM item") == [(20,)]
    assert other.jobs.latest() == []
    assert other.jobs.get("k") is None
    job, _ = other.jobs.accept(bench.job(), new_items(1))

    def swept():
        bench.open().leases.claim(job.id, 60)  # who becomes an owner sweeps
        return bench.behind("SELECT count(*) FROM item") == [(1,)]

    assert eventually(swept)
    assert bench.behind("SELECT count(*) FROM payload") == [(1,)]


def test_an_input_that_still_arrives_is_not_swept(bench, monkeypatch):
    monkeypatch.setattr(jobs_module, "PAGE_ITEMS", 10)
    slow, other = bench.open(), bench.open()

    def items():
        yield from new_items(25)
        job, _ = other.jobs.accept(bench.job(), new_items(1))
        assert other.leases.claim(job.id, 60) is not None

    job, _ = slow.jobs.accept(bench.job(), items())
    assert len(other.items.in_state(job.id)) == 25


def test_an_input_that_fails_leaves_nothing_in_the_store(store, bench, monkeypatch):
    monkeypatch.setattr(jobs_module, "PAGE_ITEMS", 10)

    def items():
        yield from new_items(25)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.jobs.accept(bench.job(), items())
    for table in ("item", "payload", "incomplete_job", "job"):
        assert bench.behind(f"SELECT count(*) FROM {table}") == [(0,)]


def test_a_failed_row_has_the_error_of_the_row_it_follows(store, bench):
    items = [*new_items(2), NewItem("same", b"ask 0", 1, 1, leader=0)]
    job, _ = store.jobs.accept(bench.job(), items)
    lease = store.leases.claim(job.id, 60.0)
    shard = ingesting(store, bench, lease, 0, 1)
    store.shards.ingest(lease, shard, [result(0, "failed", b"no"), result(1, "cancelled", b"end")], at=5.0)
    ended = store.jobs.get(job.id)
    rows = [(row.ix, row.outcome, row.body) for row in store.overview.failed(ended, limit=9)]
    assert rows == [(0, "failed", b"no"), (1, "cancelled", b"end"), (2, "failed", b"no")]
    further = store.overview.failed(ended, first=1, limit=9, cancelled=False)
    assert [row.user_id for row in further] == ["same"]
    assert [row.ix for row in store.overview.failed(ended, limit=1)] == [0]


@pytest.mark.parametrize("before", ["a page", "the end"])
def test_an_input_whose_items_were_deleted_makes_no_job(bench, before, monkeypatch):
    monkeypatch.setattr(jobs_module, "PAGE_ITEMS", 10)
    slow, other = bench.open(), bench.open()
    fresh, _ = other.jobs.accept(bench.job(), new_items(1))

    def swept():
        bench.open().leases.claim(fresh.id, 60)
        return bench.behind("SELECT count(*) FROM item") == [(1,)]

    def taken_for_dead():
        assert bench.behind("SELECT count(*) FROM item") == [(21,)]
        slow.abandon()
        assert eventually(swept)

    def items():
        yield from new_items(25)
        if before == "a page":
            taken_for_dead()
            yield from new_items(10)

    def policy():
        if before == "the end":
            taken_for_dead()
        return POLICY

    with pytest.raises(StoreError, match="submit it again"):
        slow.jobs.accept(bench.job(key="k"), items(), policy=policy)
    assert other.jobs.get("k") is None
    for table, left in {"item": 1, "payload": 1, "incomplete_job": 0}.items():
        assert bench.behind(f"SELECT count(*) FROM {table}") == [(left,)], table
    job, new = slow.jobs.accept(bench.job(key="k"), new_items(25))
    assert (new, len(other.items.in_state(job.id))) == (True, 25)


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_users_come_back_as_they_were(store, bench, text):
    new = bench.job(key=text + "!", metadata={text: text})
    item = NewItem(text, text.encode("utf-8", "surrogatepass"), 1, 1, realtime=True)
    job, _ = store.jobs.accept(new, [item])
    assert store.jobs.get(text + "!") == job
    assert (job.key, job.metadata) == (text + "!", {text: text})
    lease = store.leases.claim(job.id, 60)
    store.jobs.note(lease, text)
    store.facts.remember(text, {"value": text})
    assert store.facts.add_incident(lease, IncidentRow("kind", job.id, None, text, None, 1.0))
    (asked,) = store.items.claim_realtime(lease, 5)
    store.items.answer(lease, [result(0, text=item.payload or b"e")], at=2.0)
    (got,) = store.items.results(job.id)
    assert (asked.user_id, asked.payload) == (got.user_id, got.payload) == (text, item.payload)
    assert store.facts.recall(text) == {"value": text}
    assert store.facts.incidents(job.id)[0].detail == text


def test_a_key_too_long_for_an_index_is_refused(store, bench):
    with pytest.raises(InvalidRequest, match="1,024 bytes"):
        store.jobs.accept(bench.job(key="é" * 513), [])
    assert store.jobs.accept(bench.job(key="é" * 512), [])[1]


def test_jobs_are_listed_newest_first(store, bench):
    made = [store.jobs.accept(bench.job(), new_items(n % 2))[0].id for n in range(6)]
    assert [job.id for job in store.jobs.latest()] == made[::-1]
    assert [job.id for job in store.jobs.latest(limit=2)] == [made[5], made[4]]
    assert [job.id for job in store.jobs.latest(unfinished=True)] == [made[5], made[3], made[1]]


def test_what_the_store_does_not_know_is_none_or_an_error(store, bench):
    assert store.jobs.get("job-x") is None
    assert store.jobs.get("nul \0") is None
    assert store.shards.get("s") is store.shards.with_nonce("n") is store.facts.recall("k") is None
    assert (store.shards.payloads("s", limit=1000), store.shards.unsettled("s")) == ({}, [])
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


def test_only_a_finished_job_is_forgotten_and_then_with_all_it_has(store, bench):
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


def test_a_forgetting_that_died_half_way_is_finished_by_the_next_owner(bench, monkeypatch):
    store, other = bench.open(), bench.open()
    job, lease = started(store, bench, 3)
    store.items.drop_unsent(lease, b"", at=1.0)
    monkeypatch.setattr(jobs_module, "delete_items", lambda *_: None)
    store.jobs.forget(job.id)
    assert bench.behind("SELECT count(*) FROM item") == [(3,)]
    fresh, _ = other.jobs.accept(bench.job(), new_items(1))
    assert other.leases.claim(fresh.id, 60) is not None
    assert bench.behind("SELECT count(*) FROM item") == [(1,)]


def test_items_of_a_job_are_found_by_their_names(store, bench):
    names = [ItemName(f"name {n}\udc80", f"digest {n}") for n in range(1_200)]
    items = [evolve(item, name=name) for item, name in zip(new_items(1_200), names, strict=True)]
    job, _ = store.jobs.accept(bench.job(), items)
    store.jobs.accept(bench.job(), new_items(3))
    asked = [name.text for name in names]
    found = store.jobs.find_named([*asked, "unknown"])
    assert found == {name.text: NamedPlace(job.id, ix, name.digest) for ix, name in enumerate(names)}
    other, _ = store.jobs.accept(bench.job(), items[:1])
    store.jobs.release({name: found[name] for name in asked[:1_000]})
    assert store.jobs.find_named(asked) == {
        asked[0]: NamedPlace(other.id, 0, "digest 0"),
        **{name: found[name] for name in asked[1_000:]},
    }


def test_a_name_says_whether_its_item_had_its_result(store, bench):
    items = [evolve(item, name=ItemName(str(ix), "digest")) for ix, item in enumerate(new_items(3))]
    job, _ = store.jobs.accept(bench.job(), items)
    lease = store.leases.claim(job.id, 60.0)
    store.items.fail_open(lease, [1], b"why", at=1.0)
    store.actions.cancel(JobSelection(ids=(job.id,)), "ada")
    assert {name: place.outcome for name, place in store.jobs.find_named(["0", "1"]).items()} == {
        "0": None,
        "1": "failed",
    }
    store.items.drop_unsent(lease, b"cancelled", at=2.0)
    assert list(store.jobs.find_named(["0", "1", "2"])) == ["1"]


def test_an_incident_told_twice_is_kept_once(bench):
    store, other = bench.open(), bench.open()
    job, lease = started(store, bench)
    first = IncidentRow("doubled_line", "job-1", "shard-1", "row 5", 0.25, 10.0)
    assert store.facts.add_incident(lease, first)
    store.leases.release(lease)
    anew = other.leases.claim(job.id, 60.0)
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


def test_own_batches_are_claimed_and_guesses_are_not(store, bench):
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


def test_turnarounds_come_back_newest_first_and_do_not_grow_for_ever(store, bench):
    for n in range(510):
        store.facts.observe_turnarounds("m", [(n, n / 2, float(n))])
        store.facts.observe_turnarounds("other", [(1, 1.0, 1.0)])
    assert store.facts.turnarounds("m", limit=2) == [(509, 254.5, 509.0), (508, 254.0, 508.0)]
    assert len(store.facts.turnarounds("m", limit=100)) == 100
    assert store.facts.turnarounds("none", limit=100) == []
    assert bench.behind("SELECT model, count(*) FROM turnaround GROUP BY model ORDER BY model") == [
        ("m", 500),
        ("other", 500),
    ]


OPERATIONS = {
    "a read": lambda store, _: store.facts.recall("k"),
    "a write": lambda store, _: store.facts.remember("k", 2),
    "a write under a lease": lambda store, lease: store.jobs.note(lease, "waits"),
}


def foreign(bench):
    if bench.kind == "sqlite":
        return ()
    from psycopg import Connection

    return {Connection.connect.__func__.__code__, Connection._notice_handler.__code__}


@pytest.mark.parametrize("operate", OPERATIONS.values(), ids=OPERATIONS)
def test_what_is_interrupted_at_any_moment_leaves_the_store_to_others(bench, operate):
    store, other = bench.open(), bench.open(busy_timeout=0.5)
    _, lease = started(store, bench)
    store.facts.remember("k", 1)
    for at in interrupted_at_every_moment(lambda: operate(store, lease), spared=foreign(bench)):
        going_on = threading.Thread(target=store.jobs.note, args=(lease, None), daemon=True)
        going_on.start()
        going_on.join(10)
        assert not going_on.is_alive(), f"blocked after an interrupt at moment {at}"
        other.facts.remember("of another process", at)
