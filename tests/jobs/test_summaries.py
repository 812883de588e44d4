"""Summaries for dashboards, on both databases."""

from __future__ import annotations

import math
import re
import threading

import pytest
from attrs import evolve
from jobs.decisions import decision
from jobs.stores import bench, led, new_items, result, started, store

from smartbatch.core.routing.outcome import ListDecision, Measured
from smartbatch.core.routing.workload import expected_usd
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.failure_groups import OTHER_MESSAGES
from smartbatch.jobs.actions import retry_failed
from smartbatch.jobs.payload import encode_error
from smartbatch.jobs.records import NewItem
from smartbatch.jobs.shard_records import ShardState
from smartbatch.jobs.store import summaries
from smartbatch.jobs.summary_records import Failures, Spending
from smartbatch.types import Route, Usage

__all__ = ["bench", "store"]  # fixtures

HOUR = 3600.0
AT = 1_000_000 * HOUR + 60.0
MEASURED = Measured(seconds=9.5, cost=0.25, individual_cost=0.5, batch_cost=0.2)


def refusal(message, kind=ErrorKind.SERVER_ERROR):
    return encode_error(ProviderError(message, kind=kind))


def write(store, *decisions, at=AT, part=0, **given):
    store.summaries.write(decisions, given.get("failures", ()), given.get("spent", ()), at=at, part=part)


def test_the_decision_on_a_job_is_stored_with_it_and_goes_with_it(store, bench):
    made = decision(strategy="batch")
    job, _ = store.jobs.accept(bench.job(), new_items(2), decision=made)
    plain, _ = store.jobs.accept(bench.job(), new_items(1))
    found = bench.open().summaries.decision(job.id)
    assert (found.decision, found.job_id, found.model, found.at) == (made, job.id, job.model, job.created_at)
    assert (found.p50, found.p95, found.cost) == (made.chosen.p50, made.chosen.p95, 0.5)
    assert (found.individual_p50, found.individual_cost) == (made.alone.p50, 1.0)
    assert (found.batch_p50, found.batch_cost) == (made.batch.p50, expected_usd(made.batch.cost))
    assert (found.route, found.requests, found.deadline, found.measured) == ("batch", 400, None, None)
    assert store.summaries.decision(plain.id) is None
    lease = store.leases.claim(job.id, 60.0)
    store.items.drop_unsent(lease, b"", at=2000.0)
    store.jobs.forget(job.id)
    assert store.summaries.decisions(limit=50) == []


def test_a_job_that_was_there_already_keeps_its_decision(store, bench):
    job = bench.job(key="k")
    store.jobs.accept(job, new_items(1), decision=decision(40))
    store.jobs.accept(bench.job(key="k"), new_items(1), decision=decision(50))
    assert [found.requests for found in store.summaries.decisions(limit=50)] == [40]


def test_what_a_decision_on_a_job_took_is_what_its_job_took(store, bench):
    job, lease = started(store, bench, 2, decision=decision(strategy="batch"), created_at=AT)
    shard = led(store, lease, store.shards.plan(lease, bench.shard(0, 1)), ShardState.INGESTING)
    store.shards.ingest(lease, shard, [result(0)], at=AT + 5)
    assert store.summaries.decision(job.id).measured is None
    store.shards.ingest(lease, shard, [result(1)], at=AT + 30)
    expected = Measured(seconds=30.0, cost=1.0, individual_cost=2.0, batch_cost=1.0)
    assert store.summaries.decision(job.id).measured == expected
    [listed] = store.summaries.decisions(limit=50)
    assert (listed.measured, listed.decision) == (expected, None)


def test_rows_that_run_again_later_change_nothing_of_what_a_decision_took(store, bench):
    made = decision(strategy="individual")
    job, lease = started(store, bench, 2, realtime=True, decision=made, created_at=AT)
    store.items.claim_realtime(lease, 2)
    store.items.answer(lease, [result(0), result(1, "failed", refusal("no"), cost=0.0)], at=AT + 5)
    expected = Measured(seconds=5.0, cost=0.5, individual_cost=2.0)
    assert store.summaries.decision(job.id).measured == expected
    retry_failed(store, job.id, None, "me", billed=False)
    store.items.claim_realtime(lease, 2)
    store.items.answer(lease, [result(1)], at=AT + 90_000)
    assert store.jobs.get(job.id).finished_at == AT + 90_000
    assert store.summaries.decision(job.id).measured == expected


@pytest.mark.parametrize(
    ("outcome", "cost", "expected"),
    [("failed", 0.5, None), ("succeeded", None, Measured(seconds=30.0, cost=None))],
)
def test_a_job_without_answers_or_prices_measures_nothing(store, bench, outcome, cost, expected):
    job, lease = started(store, bench, 1, decision=decision(strategy="batch"), created_at=AT)
    shard = led(store, lease, store.shards.plan(lease, bench.shard(0)), ShardState.INGESTING)
    store.shards.ingest(lease, shard, [result(0, outcome, cost=cost)], at=AT + 30)
    assert store.summaries.decision(job.id).measured == expected


def test_the_decision_on_a_list_is_written_once_and_measured_later(store):
    one = ListDecision(AT, "openai:m", decision(7))
    other = ListDecision(AT + 1, "openai:m", decision(8), MEASURED)
    write(store, one, other)
    one.measured = MEASURED
    assert [found.measured for found in store.summaries.decisions(limit=50)] == [MEASURED, None]
    write(store, one)
    found = store.summaries.decisions(limit=50)
    assert [(each.requests, each.job_id, each.measured) for each in found] == [
        (8, None, MEASURED),
        (7, None, MEASURED),
    ]
    assert one.no == found[1].no
    assert store.summaries.numbered(one.no).decision == one.decision
    assert store.summaries.numbered(99) is None


def test_decisions_are_read_page_by_page_newest_first(store):
    write(store, *(ListDecision(AT, "openai:m", decision(10 + each)) for each in range(5)))
    first = store.summaries.decisions(limit=2)
    second = store.summaries.decisions(before=first[-1].no, limit=2)
    assert [each.requests for each in first + second] == [14, 13, 12, 11]


def test_of_decisions_on_lists_the_latest_are_kept_and_of_jobs_all(store, bench, monkeypatch):
    monkeypatch.setattr(summaries, "MAX_DECISIONS", 3)
    store.jobs.accept(bench.job(), new_items(1), decision=decision(99))
    for count in range(10, 16):
        write(store, ListDecision(AT, "openai:m", decision(count)))
    assert [each.requests for each in store.summaries.decisions(limit=50)] == [15, 14, 13, 99]
    monkeypatch.undo()
    bench.behind("""INSERT INTO decision (at, model, route, requests, p50, p95, individual_p50, body)
        WITH RECURSIVE copy (no) AS (SELECT 1 UNION ALL SELECT no + 1 FROM copy WHERE no < 2000)
        SELECT at, model, route, requests, p50, p95, individual_p50, ''
        FROM decision, copy WHERE requests = 15""")
    write(store, ListDecision(AT, "openai:m", decision(16)))
    assert bench.behind("SELECT count(*) FROM decision WHERE job IS NULL") == [(2_000,)]


def test_a_decision_of_a_newer_release_is_shown_without_its_table(store, bench):
    write(store, ListDecision(AT, "openai:m", decision(7)))
    bench.behind("UPDATE decision SET body = ?", '{"version": 2}')
    [listed] = store.summaries.decisions(limit=50)
    found = store.summaries.numbered(listed.no)
    assert (found.decision, found.requests) == (None, 7)


def test_what_is_only_shown_makes_no_write_fail(store, bench):
    made = decision(strategy="individual")
    nan = evolve(made.chosen, p50=math.nan, p95=math.nan)
    odd = evolve(made, chosen=nan, alone=nan, options=(nan,), reason="nul \0, half \ud800")
    job, new = store.jobs.accept(bench.job(), new_items(1), decision=odd)
    assert new
    write(
        store,
        ListDecision(AT, "nul \0, half \ud800", odd, MEASURED),
        failures=[Failures("k\0", "nul \0, half \ud800", "m\0\ud800", 1, request_id="\0\ud800")],
        spent=[Spending("m\0\ud800", "individual", 1)],
    )
    found = store.summaries.decision(job.id)
    assert found.p50 == found.p95 == math.inf
    [listed, _] = store.summaries.decisions(limit=50)
    assert listed.model == "nul ?, half ?"
    [group] = store.summaries.error_groups()
    assert (group.kind, group.message, group.model) == ("k?", "nul \0, half \ud800", "m??")
    assert [each.model for each in store.summaries.spending(AT)] == ["m??"]


def test_errors_of_jobs_are_grouped_in_the_transaction_that_stores_them(store, bench):
    job, _ = store.jobs.accept(bench.job(), [*new_items(3), NewItem(None, b"ask 3", 1, 1)])
    lease = store.leases.claim(job.id, 60.0)
    shard = led(store, lease, store.shards.plan(lease, bench.shard(0, 1, 2, 3)), ShardState.INGESTING)
    slow = refusal("the provider answered 503: busy, try in 17s", ErrorKind.TIMEOUT)
    other = refusal("the provider answered 503: busy, try in 4s", ErrorKind.TIMEOUT)
    store.shards.ingest(lease, shard, [result(0, "failed", slow), result(1)], at=AT)
    store.shards.ingest(lease, shard, [result(0, "failed", slow)], at=AT + 1)  # read twice
    store.shards.ingest(lease, shard, [result(2, "failed", other), result(3, "failed", b"?")], at=AT + 2)
    strange, busy = sorted(bench.open().summaries.error_groups(), key=lambda group: group.count)
    assert (busy.kind, busy.message) == ("timeout", "the provider answered 503: busy, try in #")
    assert (busy.count, busy.first_at, busy.last_at, busy.model) == (2, AT, AT + 2, "openai:m")
    assert (busy.job_id, busy.row, busy.request_id) == (job.id, 2, "row-2")
    assert (strange.kind, strange.message, strange.request_id) == ("unknown", "", f"{job.id}-3")


def test_items_that_end_alike_are_one_group_of_their_count(store, bench):
    job, lease = started(store, bench, 3)
    shard = store.shards.plan(lease, bench.shard(0, 1, 2))
    store.shards.fail(lease, shard, refusal("the file was refused"), note="", at=AT)
    [group] = store.summaries.error_groups()
    assert (group.count, group.kind, group.job_id, group.row) == (3, "server_error", job.id, 0)


def test_the_example_of_a_forgotten_job_leads_nowhere(store, bench):
    job, lease = started(store, bench, 1)
    shard = store.shards.plan(lease, bench.shard(0))
    store.shards.fail(lease, shard, refusal("no"), note="", at=AT)
    store.leases.release(lease)
    store.jobs.forget(job.id)
    [group] = store.summaries.error_groups()
    assert (group.count, group.job_id, group.row, group.request_id) == (1, None, None, None)


def test_groups_are_few_whatever_providers_say(store, monkeypatch):
    letters = "abcdefghijklmnopqrstuvwxyz"
    said = [Failures("server_error", f"{one}{two}", "m", 1) for one in letters for two in letters[:2]]
    write(store, failures=[*said, Failures("timeout", "late", "m", 2, request_id="r")])
    counts = {(each.kind, each.message): each.count for each in store.summaries.error_groups()}
    assert len(counts) == 20 + 2
    assert counts["server_error", OTHER_MESSAGES] == len(said) - 20
    assert counts["timeout", OTHER_MESSAGES] == 2
    monkeypatch.setattr(summaries, "MAX_GROUPS", 3)
    write(store, failures=[Failures("timeout", "latest", "m", 1, request_id="r")], at=AT + 1)
    write(store)  # a server deletes before it adds
    left = store.summaries.error_groups()
    assert len(left) == 3
    assert (left[0].message, left[0].request_id) == ("latest", "r")
    monkeypatch.undo()
    for start in range(0, 520, 20):
        write(
            store,
            failures=[Failures("timeout", f"{n:c}" * 9, "m", 1) for n in range(300 + start, 320 + start)],
        )
    write(store)
    assert len(store.summaries.error_groups(limit=1_000)) == 500


def test_spending_is_counted_by_hour_model_and_route(store, bench):
    job, lease = started(store, bench, 3)
    shard = led(store, lease, store.shards.plan(lease, bench.shard(0, 1, 2)), ShardState.INGESTING)
    by_batch = {"route": Route.BATCH, "usage": Usage(10, 3)}
    store.shards.ingest(lease, shard, [result(0, **by_batch), result(1, "failed", **by_batch)], at=AT)
    store.shards.ingest(lease, shard, [result(2, cost=None, **by_batch)], at=AT + HOUR)
    live = Spending(job.model, "individual", 4, 1, 0.25, 0.25, 0, 40, 12)
    write(store, spent=[live], at=AT, part=1)
    write(store, spent=[live], at=AT, part=2)
    hour = AT // HOUR * HOUR
    assert bench.open().summaries.spending(AT) == [
        Spending(job.model, "batch", 2, 1, 1.0, 2.0, 0, 20, 6, hour),
        Spending(job.model, "individual", 8, 2, 0.5, 0.5, 0, 80, 24, hour),
        Spending(job.model, "batch", 1, 0, 0.0, 0.0, 1, 10, 3, hour + HOUR),
    ]
    assert [each.hour for each in store.summaries.spending(AT + HOUR)] == [hour + HOUR]


def test_spending_is_kept_for_two_weeks(store, bench):
    """Older rows are deleted with every twentieth job."""
    write(store, spent=[Spending("m", "individual", 1)], at=AT)
    write(store, spent=[Spending("m", "individual", 1)], at=AT + 14 * 24 * HOUR)
    assert len(store.summaries.spending(0.0)) == 2
    for number in range(1, 21):
        assert len(store.summaries.spending(0.0)) == 2, number
        store.jobs.accept(bench.job(created_at=AT + (14 * 24 + 1) * HOUR), new_items(1))
    assert len(store.summaries.spending(0.0)) == 1


@pytest.mark.full
def test_processes_that_add_to_the_same_rows_do_not_hold_each_other_up(bench):
    models = [f"provider:{each}" for each in range(6)]

    def add(own, order):
        for _ in range(20):
            write(
                own,
                spent=[Spending(model, "individual", 1) for model in order],
                failures=[Failures("timeout", model, model, 1) for model in order],
            )

    bench.open()
    threads = [
        threading.Thread(target=add, args=(bench.open(), models[turn:] + models[:turn])) for turn in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.requests for each in bench.open().summaries.spending(AT)] == [80] * len(models)
    assert [each.count for each in bench.open().summaries.error_groups()] == [80] * len(models)


def plans(store, monkeypatch):
    database = store.summaries.db
    seen = []
    rows = database.rows

    def noted(statement, *values):
        seen.append((statement, values))
        return rows(statement, *values)

    with monkeypatch.context() as patched:
        patched.setattr(database, "rows", noted)
        store.summaries.decision("job-x")
        store.summaries.decisions(limit=50)
        store.summaries.decisions(before=9, limit=50)
        store.summaries.numbered(3)
        store.summaries.error_groups()
        store.summaries.spending(AT)
    for statement, values in seen:
        for plan in rows(f"EXPLAIN QUERY PLAN {statement}", *values):
            yield statement, plan[-1]


@pytest.mark.parametrize("bench", ["sqlite"], indirect=True)  # PostgreSQL scans small tables
def test_pages_read_by_index_and_no_table_of_items(store, monkeypatch):
    found = list(plans(store, monkeypatch))
    assert len(found) >= 10
    ordered = re.compile(r"SCAN (d|e USING INDEX error_group_last)$")  # in the order that is asked for
    for statement, plan in found:
        assert not re.search(r"\b(FROM|JOIN) (item|result)\b", statement)
        assert ordered.match(plan) or plan.startswith("SEARCH"), (plan, statement)
