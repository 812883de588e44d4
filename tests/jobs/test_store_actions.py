"""Actions on jobs and models are applied and recorded in one transaction."""

from __future__ import annotations

import pytest
from attrs import evolve
from jobs.stores import bench, led, new_items, result, started, store

from smartbatch.core.limits.model_controls import name_of
from smartbatch.errors import InvalidRequest, JobNotFound, StoreError, ValidationFailed
from smartbatch.jobs import records as actions
from smartbatch.jobs.actions import retry_failed
from smartbatch.jobs.payload import encode_error, encode_result
from smartbatch.jobs.records import (
    ActionResult,
    ItemState,
    JobPolicy,
    JobSelection,
    JobState,
    NewItem,
    RetriedRows,
)
from smartbatch.jobs.shard_records import ShardState
from smartbatch.jobs.store.job_actions import TRIM_INTERVAL
from smartbatch.types import Result, Usage

__all__ = ["bench", "store"]  # fixtures

BY = "ada@desk"


def failure(ix, text="no", **changes):
    body = encode_error(StoreError(text))
    return result(ix, "failed", body, **{"cost": 0.0, "realtime_cost": 0.0, **changes})


def refused(ix):
    said = Result("", "{", usage=Usage(7, 2), cost=0.25, error=ValidationFailed("it is no JSON"))
    return result(ix, "failed", encode_result(said), cost=0.25, usage=said.usage)


def answered(store, bench, *results, **changes):
    job, lease = started(store, bench, len(results), realtime=True, **changes)
    store.items.claim_realtime(lease, len(results))
    store.items.answer(lease, results, at=9.0)
    return job, lease


def row_of(store, job):
    return store.jobs.get(job.id)


def test_a_pause_is_kept_with_its_reason_until_it_is_ended(bench):
    store, other = bench.open(), bench.open()
    first = store.controls.pause("openai:m", "too dear \N{SNOWMAN}", BY)
    assert (first.model, first.reason, first.by) == ("openai:m", "too dear \N{SNOWMAN}", BY)
    assert other.controls.controls().pause_of("openai:m") == first
    assert other.controls.pause("openai:m", "another", "bob") == first  # the second changes nothing
    assert other.controls.resume("openai:m", "bob")
    assert not store.controls.resume("openai:m", BY)
    assert store.controls.controls().pauses == {}
    assert [(one.name, one.by, one.target) for one in store.controls.latest(limit=100)] == [
        ("resume_model", "bob", "openai:m"),
        ("pause_model", BY, "openai:m"),
    ]


def test_a_whole_provider_is_paused_by_one_name(store):
    store.controls.pause(name_of("openai", None), None, BY)
    found = store.controls.controls()
    assert found.pause_of("openai:any") is found.pauses["openai:*"]
    assert found.pause_of("anthropic:any") is None


@pytest.mark.parametrize(
    ("provider", "model"), [("", "m"), ("a:b", "m"), ("a", ""), ("a", "x\0"), ("a", "m" * 400)]
)
def test_what_names_no_model_is_refused(provider, model):
    with pytest.raises(InvalidRequest):
        name_of(provider, model)


def test_a_limit_holds_until_it_is_taken_back(store):
    assert store.controls.set_limit("openai:m", 60.0, None, BY)
    assert not store.controls.set_limit("openai:m", 60.0, None, BY)
    [limit] = store.controls.controls().limits.values()
    assert (limit.requests_per_minute, limit.tokens_per_minute, limit.by) == (60.0, None, BY)
    assert store.controls.set_limit("openai:m", None, None, BY)
    assert store.controls.controls().limits == {}
    assert [one.detail for one in store.controls.latest(limit=100)] == [
        "as configured",
        "60 requests per minute",
    ]


def test_actions_are_numbered_in_order_and_old_ones_go(store, monkeypatch):
    monkeypatch.setattr("smartbatch.jobs.store.job_actions.MAX_STORED_ACTIONS", 10)
    for at in range(TRIM_INTERVAL):
        store.controls.set_limit("openai:m", 1.0 + at, None, BY)
    assert [one.number for one in store.controls.after(0, limit=100)] == list(range(41, 51))
    assert store.controls.last() == 50
    assert [one.number for one in store.controls.latest(before=45, limit=2)] == [44, 43]


def test_a_filter_chooses_jobs_of_a_state_and_a_model_and_is_noted_once(store, bench):
    mine, other, ended = started(store, bench)[0], started(store, bench, model="openai:n")[0], bench.job()
    store.jobs.accept(ended, [])
    chosen = JobSelection(state="active", model="openai:m")
    assert store.actions.cancel(chosen, BY) == ActionResult(1, 0)
    assert store.actions.cancel(chosen, BY) == ActionResult(0, 0)  # the same action twice is one
    assert [row_of(store, job).cancel_requested for job in (mine, other, ended)] == [True, False, False]
    [action] = store.controls.latest(limit=100)
    assert (action.name, action.target, action.job_id, action.count) == ("cancel", mine.id, mine.id, 1)


def test_an_action_by_a_filter_is_bounded_and_says_what_it_left(store, bench, monkeypatch):
    monkeypatch.setattr("smartbatch.jobs.store.job_actions.MAX_JOBS_PER_ACTION", 2)
    monkeypatch.setattr("smartbatch.jobs.store.job_actions.MAX_COUNTED_JOBS", 2)
    jobs = [started(store, bench, 1) for _ in range(5)]
    for _, lease in jobs:
        store.jobs.note(lease, "look", hold=True)
    assert store.actions.resume(JobSelection(state="held"), BY) == ActionResult(2, 2)
    assert store.actions.resume(JobSelection(state="held"), BY) == ActionResult(2, 1)
    assert [row_of(store, job).state for job, _ in jobs].count(JobState.HELD) == 1
    assert [(one.target, one.count, one.left_out) for one in store.controls.latest(limit=100)] == [
        ("state held", 2, 1),
        ("state held", 2, 2),
    ]


def test_a_filter_of_nothing_is_refused():
    for wrong in ({}, {"state": "lost"}, {"ids": "job-1"}, {"model": "a\0"}):
        with pytest.raises(InvalidRequest):
            JobSelection(**wrong)


def test_a_policy_is_changed_past_its_owner_and_the_lease_stays(bench):
    store, other = bench.open(), bench.open()
    job, lease = started(store, bench)
    changed = other.actions.change_policy(
        job.id, lambda policy: evolve(policy, budget=5.0), "set_budget", "5 USD", BY
    )
    assert changed.policy.budget == row_of(store, job).policy.budget == 5.0
    store.jobs.reserve(lease, 4.0)  # the owner goes on, within the new budget
    other.actions.change_policy(job.id, lambda policy: policy, "set_budget", "5 USD", BY)
    [action] = store.controls.latest(job_id=job.id, limit=100)
    assert (action.name, action.detail, action.job_id) == ("set_budget", "5 USD", job.id)
    with pytest.raises(JobNotFound):
        other.actions.change_policy("job-none", lambda policy: policy, "set_budget", "", BY)


def test_failed_rows_run_again_and_their_results_stay(store, bench):
    job, lease = answered(store, bench, result(0), failure(1), failure(2))
    assert row_of(store, job).state is JobState.DONE
    assert retry_failed(store, job.id, None, BY, billed=False) == RetriedRows(2, 0, ())
    again = row_of(store, job)
    assert (again.state, again.failed, again.succeeded, again.finished_at) == (JobState.ACTIVE, 0, 1, None)
    assert again.cost == 0.5
    assert [one.ix for one in store.items.in_state(job.id, state=ItemState.REALTIME)] == [1, 2]
    assert retry_failed(store, job.id, None, BY, billed=False) == RetriedRows(0, 0, ())
    store.items.claim_realtime(lease, 10)
    store.items.answer(lease, [result(1), failure(2, "still")], at=11.0)
    done = row_of(store, job)
    assert (done.state, done.failed, done.succeeded, done.finished_at) == (JobState.DONE, 1, 2, 11.0)
    assert [(one.ix, one.outcome) for one in store.items.results(job.id)] == [
        (0, "succeeded"),
        (1, "succeeded"),
        (2, "failed"),
    ]
    assert [one.ix for one in store.actions.earlier_results(job.id, after=(-1, 0), limit=1000)] == [1, 2]
    [action] = store.controls.latest(limit=100)
    assert (action.name, action.count, action.left_out, action.job_id) == ("retry_failed", 2, 0, job.id)


def test_who_reads_as_results_come_passes_over_the_gap_that_rows_leave(store, bench):
    job, lease = answered(store, bench, *(failure(ix) for ix in range(5)), result(5))
    retry_failed(store, job.id, None, BY, billed=False)
    assert [one.ix for one in store.items.fresh(job.id, limit=2)] == [5]
    store.items.claim_realtime(lease, 10)
    store.items.answer(lease, [result(ix) for ix in range(5)], at=11.0)
    assert [one.ix for one in store.items.fresh(job.id, after=6, limit=9)] == [0, 1, 2, 3, 4]
    assert store.items.sequences(job.id, limit=2) == [(6, 5), (7, 0)]
    assert store.items.sequences(job.id, after=7, limit=2) == [(8, 1), (9, 2)]
    assert store.items.sequences(job.id, after=11) == []


def test_a_row_that_was_paid_for_is_asked_again_only_where_it_is_named(store, bench):
    unknown = failure(2, "lost", cost=None)
    job, lease = answered(store, bench, refused(0), failure(1), unknown)
    assert retry_failed(store, job.id, None, BY, billed=False) == RetriedRows(1, 2, (0, 2))
    assert store.facts.incidents(job.id) == []
    assert retry_failed(store, job.id, [0], BY, billed=False) == RetriedRows(1, 1, (0,))
    assert retry_failed(store, job.id, None, BY, billed=True) == RetriedRows(1, 0, (2,))
    told = [incident.detail for incident in store.facts.incidents(job.id)]
    assert ["rows 0 (" in told[0], "rows 2 (" in told[1]] == [True, True]
    assert {incident.kind for incident in store.facts.incidents(job.id)} == {"asked_again"}
    store.items.claim_realtime(lease, 10)
    store.items.answer(lease, [result(0), result(1), result(2)], at=11.0)
    first, second, third = store.items.results(job.id)
    assert (first.earlier.cost, first.earlier.usage) == (0.25, Usage(7, 2))
    assert second.earlier is None
    assert row_of(store, job).cost == 0.25 + 3 * 0.5
    assert third.outcome == "succeeded"


def test_rows_that_share_a_result_go_again_with_the_one_that_is_asked(store, bench):
    items = [NewItem(None, b"ask", 1, 1, realtime=True), NewItem(None, b"ask", 1, 1, leader=0)]
    job, _ = store.jobs.accept(bench.job(), items)
    lease = store.leases.claim(job.id, 60.0)
    store.items.claim_realtime(lease, 2)
    store.items.answer(lease, [failure(0)], at=9.0)
    assert row_of(store, job).failed == 2
    assert retry_failed(store, job.id, [1], BY, billed=False) == RetriedRows(2, 0, ())
    store.items.claim_realtime(lease, 2)
    store.items.answer(lease, [result(0)], at=9.5)
    assert row_of(store, job).succeeded == 2
    kept = store.actions.earlier_results(job.id, after=(-1, 0), limit=1000)
    assert [one.ix for one in kept] == [0, 1]
    assert kept[0].body == kept[1].body != b""
    assert store.actions.earlier_results(job.id, after=(kept[0].ix, kept[0].seq), limit=1000) == kept[1:]
    later, _ = store.jobs.accept(bench.job(), new_items(1))
    assert store.actions.earlier_results(later.id, after=(-1, 0), limit=1000) == []


def test_rows_of_a_batch_go_into_another_one_but_not_while_it_is_read(store, bench):
    job, lease = started(store, bench, 2)
    shard = led(store, lease, store.shards.plan(lease, bench.shard(0, 1)), ShardState.INGESTING)
    store.shards.ingest(lease, shard, [failure(0), result(1)], at=9.0)
    assert retry_failed(store, job.id, None, BY, billed=False).count == 0
    store.shards.settle(lease, shard, at=9.5)
    assert retry_failed(store, job.id, None, BY, billed=False).count == 1
    assert [(one.ix, one.tries) for one in store.items.in_state(job.id)] == [(0, 0)]
    assert store.shards.plan(lease, bench.shard(0)).size == 1


def test_a_job_that_is_being_cancelled_is_left_and_one_that_was_goes_on(store, bench):
    job, lease = answered(store, bench, failure(0))
    retry_failed(store, job.id, None, BY, billed=False)
    store.items.claim_realtime(lease, 1)
    store.actions.cancel(JobSelection(ids=(job.id,)), BY)
    with pytest.raises(StoreError, match="being cancelled"):
        retry_failed(store, job.id, None, BY, billed=False)
    store.items.answer(lease, [failure(0)], at=11.0)
    assert retry_failed(store, job.id, None, BY, billed=False).count == 1
    assert not row_of(store, job).cancel_requested


def test_a_deadline_that_has_passed_does_not_hurry_what_is_asked_again(store, bench):
    passed = JobPolicy(fallback="individual", deadline=1.0)
    job, _ = answered(store, bench, failure(0), policy=passed)
    retry_failed(store, job.id, None, BY, billed=False)
    assert row_of(store, job).policy == evolve(passed, deadline=None)


def test_positions_that_are_none_are_refused(store, bench):
    job, _ = answered(store, bench, failure(0))
    with pytest.raises(InvalidRequest, match="positions"):
        retry_failed(store, job.id, ["0"], BY, billed=False)
    assert retry_failed(store, job.id, [7, -1], BY, billed=False) == RetriedRows(0, 1, ())


def test_who_acts_is_one_short_line():
    assert actions.actor("ada\nlovelace\x00 ") == "ada lovelace"
    assert len(actions.actor("x" * 9_999)) == actions.MAX_TEXT_CHARS
    assert "@" in actions.actor(None)
