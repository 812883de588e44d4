"""Reserved and spent money together never exceed a job's budget."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from jobs.runtimes import job_runtime
from jobs.stores import bench, led, result, started

from smartbatch.core.limits.budget import Budget
from smartbatch.jobs.job_budget import JobBill, JobBudget, bill
from smartbatch.jobs.payload import Shared, encode_params, encode_request
from smartbatch.jobs.records import ItemState, JobPolicy, LeaseLost, NewItem, OverJobBudget
from smartbatch.jobs.shard_records import ShardState
from smartbatch.jobs.store.shards import ShardTable
from smartbatch.prices import Price
from smartbatch.providers.price_book import PriceBook
from smartbatch.types import Generation, Request, Usage

__all__ = ["bench"]  # a fixture


@pytest.fixture
def store(bench):
    return bench.open()


def seen(store, job):
    row = store.jobs.get(job.id)
    return round(row.cost, 9), round(row.reserved, 9)


def bounded(store, bench, budget, count=4):
    return started(store, bench, count, policy=JobPolicy(fallback="individual", budget=budget))


def test_a_shard_is_planned_only_where_its_most_fits(store, bench):
    job, lease = bounded(store, bench, 10.0)
    shard = store.shards.plan(lease, bench.shard(0, 1, reserved=6.0))
    assert shard.reserved == 6.0
    with pytest.raises(OverJobBudget, match=r"\$4.00 is left of the job's budget of \$10.00"):
        store.shards.plan(lease, bench.shard(2, reserved=4.1))
    assert [item.ix for item in store.items.in_state(job.id)] == [2, 3]
    assert len(store.shards.of_job(job.id)) == 1
    store.shards.plan(lease, bench.shard(2, 3, reserved=4.0))
    assert seen(store, job) == (0.0, 10.0)


def test_a_bill_says_what_a_job_has_cost_and_what_it_can_still_cost(store, bench):
    job, lease = bounded(store, bench, 10.0, count=1)
    shard = led(store, lease, store.shards.plan(lease, bench.shard(0, reserved=6.0)), ShardState.INGESTING)
    assert bill(store, job.id) == JobBill(0.0, False, None)
    store.shards.ingest(lease, shard, [result(0)], at=1.0)
    assert bill(store, job.id) == JobBill(0.5, False, 6.0)
    # something else was billed, too, and is lost
    store.shards.settle(lease, shard, at=2.0, reserved=2.0)
    assert bill(store, job.id) == JobBill(0.5, True, 2.0)
    store.jobs.forget(job.id)
    assert bill(store, job.id) == JobBill(0.0, True, None)


def test_a_batch_settled_while_its_bill_is_made_is_not_counted_twice(store, bench, monkeypatch):
    job, lease = bounded(store, bench, 10.0, count=1)
    shard = led(store, lease, store.shards.plan(lease, bench.shard(0, reserved=6.0)), ShardState.INGESTING)
    store.shards.ingest(lease, shard, [result(0)], at=1.0)
    look = ShardTable.of_job

    def settled_meanwhile(*args, **words):
        monkeypatch.undo()
        store.shards.settle(lease, shard, at=2.0)
        return look(*args, **words)

    monkeypatch.setattr(ShardTable, "of_job", settled_meanwhile)
    assert bill(store, job.id) == JobBill(0.5, True, 0.0)


def test_the_reservation_of_a_shard_ends_with_it(store, bench):
    job, lease = bounded(store, bench, 10.0)
    shard = store.shards.plan(lease, bench.shard(0, 1, reserved=6.0))
    store.shards.discard(lease, shard, items=ItemState.OPEN, tried=False, note="", at=1.0)
    assert seen(store, job) == (0.0, 0.0)
    shard = store.shards.plan(lease, bench.shard(0, reserved=3.0))
    dead = store.shards.discard(
        lease, shard, items=ItemState.OPEN, tried=False, note="", at=1.0, maybe_billed=True
    )
    assert (dead.reserved, seen(store, job)) == (3.0, (0.0, 3.0))
    store.shards.advance(lease, dead, ShardState.DEAD, reserved=1.0)  # the orphan came, and cost less
    assert seen(store, job) == (0.0, 1.0)
    shard = led(store, lease, store.shards.plan(lease, bench.shard(0, 1, reserved=4.0)), ShardState.INGESTING)
    store.shards.ingest(lease, shard, [result(0)], at=2.0)
    assert seen(store, job) == (0.5, 5.0)
    store.shards.settle(lease, shard, opened=[1], at=3.0, reserved=2.0)  # the other one is lost
    assert seen(store, job) == (0.5, 3.0)
    shard = store.shards.plan(lease, bench.shard(1, reserved=4.0))
    store.shards.fail(lease, shard, b"refused", note="", at=4.0)
    assert seen(store, job) == (0.5, 3.0)


def test_only_the_owner_reserves_and_the_reservation_outlives_it(store, bench):
    job, lease = bounded(store, bench, 10.0)
    store.jobs.reserve(lease, 4.0)
    bench.let_leases_run_out()
    other = bench.open()
    taken = other.leases.claim(job.id, 60)
    with pytest.raises(LeaseLost):
        store.jobs.reserve(lease, 1.0)
    with pytest.raises(OverJobBudget):
        other.jobs.reserve(taken, 6.1)
    other.jobs.reserve(taken, 6.0)
    other.jobs.reserve(taken, -2.0)
    assert seen(other, job) == (0.0, 8.0)


def test_an_answer_counts_and_frees_at_once(store, bench):
    job, lease = started(store, bench, 3, realtime=True, policy=JobPolicy(budget=10.0))
    store.items.claim_realtime(lease, 3)
    store.jobs.reserve(lease, 9.0)
    wasted = result(1, "unrun", usage=Usage(3, 1), cost=0.25)
    store.items.answer(lease, [result(0), wasted, result(2, "unrun")], at=1.0, freed=0.75)
    assert seen(store, job) == (0.75, 8.25)
    assert [item.ix for item in store.items.in_state(job.id, state=ItemState.REALTIME)] == [1, 2]


def test_a_real_time_answer_after_an_orphan_s_stays_reserved(store, bench):
    job, lease = started(store, bench, 3, policy=JobPolicy(budget=10.0))
    orphan = led(store, lease, store.shards.plan(lease, bench.shard(0, 1, 2)), ShardState.UNCERTAIN)
    orphan = store.shards.discard(lease, orphan, items=ItemState.REALTIME, tried=True, note="", at=1.0)
    store.items.claim_realtime(lease, 3)
    store.jobs.reserve(lease, 2.0)
    store.shards.ingest(lease, orphan, [result(ix, text=b"orphan") for ix in (0, 1)], at=2.0)
    late = [result(0, cost=0.25), result(1, "failed", cost=0.0), result(2)]
    stored = store.items.answer(lease, late, at=3.0, freed=0.75)
    assert (stored.final, stored.doubled) == ((2,), (0, 1))
    assert seen(store, job) == (1.5, 1.5)
    [told] = store.facts.incidents(job.id)
    assert (told.kind, told.money) == ("doubled_line", 0.25)
    assert told.detail.endswith("rows 0")


def test_concurrent_reservations_stay_within_the_budget(store, bench):
    job, lease = bounded(store, bench, 10.0)

    def reserve(_):
        try:
            store.jobs.reserve(lease, 0.7)
        except OverJobBudget:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(reserve, range(30))) == 14
    assert seen(store, job) == (0.0, pytest.approx(9.8))


BOOK = PriceBook({"openai:m": Price(input=0.0, output=1e6)})


def runtime(bench, store, **parts):
    return job_runtime(store, bench.clock, random.Random(1), prices=BOOK, **parts)


def realtime_budget(bench, budget, count):
    shared = Shared(Generation(max_tokens=3))
    payload = encode_request(Request("p", shared.params), shared)
    items = [NewItem(None, payload, 1, 1, realtime=True) for _ in range(count)]
    store = bench.open()
    job, _ = store.jobs.accept(
        bench.job(params=encode_params(shared.params), policy=JobPolicy(budget=budget)), items
    )
    lease = store.leases.claim(job.id, 60.0)
    assert lease is not None
    return store, job, lease, JobBudget(runtime(bench, store), lease, job)


def test_a_budget_reserves_before_it_pays_and_releases_what_is_left(bench):
    store, job, lease, budget = realtime_budget(bench, 10.0, 5)
    items = store.items.claim_realtime(lease, 5)
    refused = budget.reserve(items)
    assert refused == {3: 3.0, 4: 3.0}
    assert seen(store, job) == (0.0, 9.0)
    for cost in (1.0, 2.0):
        budget.calls.reconcile(budget.calls.reserve(3.0), cost)
    budget.store([result(0, cost=1.0), result(1, cost=2.0)], at=1.0)
    assert seen(store, job) == (3.0, 6.0)
    assert budget.reserve(items[3:]) == {4: 3.0}
    assert seen(store, job) == (3.0, 6.0)  # what the others left was reserved already
    budget.store([result(ix, cost=0.0) for ix in (2, 3)], at=2.0)
    assert seen(store, job) == (3.0, 0.0)
    assert budget.calls.left == 0.0


def test_a_try_that_was_billed_and_whose_answer_is_of_no_use_stays_paid(bench):
    store, job, lease, budget = realtime_budget(bench, 10.0, 1)
    items = store.items.claim_realtime(lease, 1)
    assert budget.reserve(items) == {}
    budget.calls.reconcile(budget.calls.reserve(3.0), 2.0)
    assert budget.calls.short(3.0) is not None
    assert budget.fell_short(0)
    budget.store([result(0, "unrun", cost=None)], at=1.0)  # its cost is unknown
    assert seen(store, job) == (0.0, 2.0)
    assert budget.reserve(store.items.claim_realtime(lease, 1)) == {}
    assert seen(store, job) == (0.0, 6.5)  # more is reserved for it than the first time


def test_a_call_in_flight_of_an_abandoned_request_stays_reserved(bench):
    store, job, lease, budget = realtime_budget(bench, 10.0, 1)
    assert budget.reserve(store.items.claim_realtime(lease, 1)) == {}
    budget.calls.reserve(3.0)
    budget.store([result(0, "unrun", cost=None)], at=1.0)
    assert seen(store, job) == (0.0, 3.0)


def test_a_budget_within_a_client_s_budget_knows_whose_money_is_short(bench):
    store, _, lease, _ = realtime_budget(bench, 10.0, 1)
    row = store.jobs.latest()[0]
    budget = JobBudget(runtime(bench, store, outer_budget=lambda _: Budget(2.0)), lease, row)
    assert budget.reserve(store.items.claim_realtime(lease, 1)) == {}
    assert not budget.fell_short(0)
