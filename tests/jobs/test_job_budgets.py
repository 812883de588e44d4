"""Budgets checked against the ledger of the provider. A token costs 0.1 cent, and half of it in a batch."""

from __future__ import annotations

import random
from contextlib import contextmanager

import pytest
from inside import inside

from smartbatch import Price
from smartbatch.core.preparation.calibration import Calibration
from smartbatch.errors import BudgetExceeded, ConfigError
from smartbatch.events import JobFinished, ShardChanged
from smartbatch.jobs.store import open_store
from smartbatch.types import Generation, Request, Route
from tests.faults.world import HOUR, MINUTE, PROVIDERS, world
from tests.levels import sampled

TOKEN = 0.001
PRICE = Price(input=1000.0, output=1000.0)
TINY = 1e-6


def texts(count, mark="question"):
    return [f"{mark} {number + 100} of a few" for number in range(count)]


MOST = TOKEN * Calibration().most(Request(texts(1)[0], Generation(max_tokens=6))).total_tokens / 2

each_provider = pytest.mark.parametrize("provider", sampled(PROVIDERS, first=2))


@contextmanager
def market(provider, folder, **settings):
    with world(provider, folder, rare=60, **{"batch_turnaround": 10 * MINUTE, **settings}) as w:
        yield w


def buyer(w, **settings):
    return w.process(**{"prices": {f"{w.provider}:{w.model}": PRICE}, "max_tokens": 6, **settings})


def paid(w):
    lines = [line for batch in w.creates for line in batch.lines.values()]
    return TOKEN * (sum(call.billed for call in w.emu.ledger.calls) + sum(line.billed for line in lines) / 2)


def row_of(client, job_id):
    return inside(client).jobs.engine.store.jobs.get(job_id)


def answered(results):
    rest = [result for result in results if not result.ok]
    assert all(isinstance(result.error, BudgetExceeded) for result in rest), {str(r.error) for r in rest}
    return len(results) - len(rest)


@pytest.mark.full
@each_provider
def test_a_job_stops_before_its_budget_does_and_keeps_what_was_answered(provider, tmp_path):
    with market(provider, tmp_path) as w:
        client = buyer(w, budget=0.2)
        job = client.submit_batch(texts(80))
        results = w.results(job)
        assert 0.2 - MOST < paid(w) <= 0.2
        assert 40 <= answered(results) < 80
        assert [result.text for result in results if result.ok] == [
            text for text, result in zip(w.right(texts(80)), results, strict=True) if result.ok
        ]
        told = str(next(result.error for result in results if not result.ok))
        assert "requests were not sent" in told
        assert "of the job's budget of $0.20" in told
        w.pass_time(10 * MINUTE)
        assert row_of(client, job.id).reserved == pytest.approx(0.0, abs=TINY)
        assert client.spent == pytest.approx(paid(w))


@pytest.mark.full
def test_what_batches_leave_over_buys_further_ones(tmp_path):
    with market("gemini", tmp_path) as w:
        client = buyer(w, budget=60 * MOST * 0.7)
        job = client.submit_batch(texts(60))
        assert [result.text for result in w.results(job)] == w.right(texts(60))
        assert len(w.creates) > 1
        assert paid(w) <= 60 * MOST * 0.7


def test_requests_asked_alone_keep_to_the_budget_of_their_job(tmp_path):
    with market("anthropic", tmp_path) as w:
        client = buyer(w, budget=0.3, batch_enabled=False)
        job = client.submit_batch(texts(80), batch_fallback="individual")
        results = w.results(job)
        assert 0.3 - 4 * MOST < paid(w) <= 0.3
        assert 20 < answered(results) < 80
        assert not w.creates
        assert row_of(client, job.id).reserved == pytest.approx(0.0, abs=TINY)
        assert client.spent == pytest.approx(paid(w))


@pytest.mark.full
@pytest.mark.parametrize("own", [None, 5.0])
def test_a_run_in_real_time_keeps_to_the_budget_of_its_plan(tmp_path, own):
    with market("anthropic", tmp_path) as w:
        client = buyer(w, budget=own)
        plan = client.forecast(texts(10), strategy="individual", budget=0.3)
        results = w.results(client.submit_run(texts(80), plan))
        assert 0.3 - 4 * MOST < paid(w) <= 0.3
        assert 20 < answered(results) < 80


@pytest.mark.full
def test_items_waiting_for_money_of_batches_go_when_the_last_one_ends(tmp_path):
    with market("gemini", tmp_path, batch_turnaround=10.0) as w:
        client = buyer(w, max_tokens=100)
        plan = client.forecast(texts(40), strategy="hybrid", budget=0.42)
        results = w.results(client.submit_run(texts(40), plan))
        assert [result.route for result in results[: plan.first]] == [Route.INDIVIDUAL] * plan.first
        assert answered(results) == 40
        w.pass_time(MINUTE)  # a batch is settled after its results are there
        changes = [event for event in w.events if isinstance(event, ShardChanged)]
        (finished,) = [event.at for event in w.events if isinstance(event, JobFinished)]
        assert changes[-1].after == "settled"
        assert finished - changes[-1].at < 5


@pytest.mark.full
def test_what_may_have_been_billed_counts_at_its_most(tmp_path):
    def fault(batch, position, custom_id):
        return "missing_lines" if batch == 0 and position % 2 else None

    with market("openai", tmp_path, batch_line_fault_for=fault) as w:
        client = buyer(w, budget=40 * MOST)
        job = client.submit_batch(texts(40))
        assert answered(w.results(job)) == 40
        assert paid(w) <= 40 * MOST
        w.pass_time(10 * MINUTE)
        row = row_of(client, job.id)
        billed = [line.billed for line in w.creates[0].lines.values()]
        assert len(billed) == 40
        assert TOKEN / 2 * sum(billed) / 2 <= row.reserved <= 20 * MOST
        assert client.spent + client.unconfirmed_cost == pytest.approx(row.cost + row.reserved)


@pytest.mark.full
def test_a_create_that_may_have_arrived_keeps_its_reservation(tmp_path):
    """A late create of Anthropic cannot be fenced."""
    late = {"batch_late_seconds": HOUR, "batch_turnaround": 10 * MINUTE}
    named = {"batch_fault_for": lambda index, label: ("late_create",) if index == 0 else ()}
    with market("anthropic", tmp_path, **late, **named) as w:
        client = buyer(w, budget=21.2 * MOST, batch_settle=MINUTE)
        job = client.submit_batch(texts(20))
        assert 1 <= answered(w.results(job)) <= 2
        w.pass_time(3 * HOUR)
        assert [record.outcome for record in w.creates][:2] == ["late", "created"]
        assert paid(w) <= 21.2 * MOST
        assert w.incidents(job) == {"double_submission": 1}


@pytest.mark.full
def test_a_request_whose_asking_nobody_saw_the_end_of_stays_paid_for(tmp_path):
    alone = 2 * MOST
    with market("openai", tmp_path) as w:
        first = buyer(w, budget=20 * alone, batch_enabled=False)
        w.service.meet = lambda seen: w.refusal(401)
        job = first.submit_batch(texts(60), batch_fallback="individual")
        w.pass_time(MINUTE)
        assert job.status().state == "held"
        w.stop(first)
        dead = open_store(w.store, wall=w.clock.wall, rng=random.Random(1))
        lease = dead.leases.claim(job.id, 15.0)
        assert lease is not None
        assert len(dead.items.claim_realtime(lease, 10)) == 10
        dead.jobs.reserve(lease, 10 * alone)
        w.pass_time(MINUTE)
        w.service.meet = lambda seen: None
        second = buyer(w, batch_enabled=False)
        again = second.job(job.id)
        again.resume()
        results = w.results(again)
        assert 0 < answered(results) < 60
        assert 10 * alone - 2 * alone < paid(w) <= 10 * alone
        assert row_of(second, job.id).reserved == pytest.approx(10 * alone)
        dead.close()


FAULTS = (
    {},
    {"lost_create": 0.3, "dropped_create": 0.3},
    {"expire_part": 0.5, "item_error": 0.1},
    {"missing_lines": 0.1, "malformed_lines": 0.1, "fail_validation": 0.3},
    {"late_create": 0.5},
)


@pytest.mark.full
@pytest.mark.parametrize("seed", sampled(range(10)))
def test_no_fault_at_the_provider_exceeds_a_budget(seed, tmp_path):
    rng = random.Random(seed)
    provider = rng.choice(PROVIDERS)
    faults = {"batch_faults": rng.choice(FAULTS), "faults": {"500": 0.1, "reset_before": 0.1, "reset": 0.1}}
    budget = rng.uniform(5, 60) * MOST
    with market(provider, tmp_path, batch_late_seconds=20 * MINUTE, batch_turnaround=MINUTE, **faults) as w:
        client = buyer(w, budget=budget, batch_settle=5 * MINUTE, batch_max_requests=rng.choice([7, 20, 500]))
        count = rng.randint(5, 50)
        way = rng.choice(["batch", "individual"])
        job = client.submit_batch(texts(count), batch_fallback=way)
        results = w.results(job)
        assert len(results) == count
        assert paid(w) <= budget + TINY
        w.pass_time(HOUR)  # a late create is counted, too
        assert paid(w) <= budget + TINY
        assert client.spent <= budget + TINY


@pytest.mark.full
def test_a_client_and_its_jobs_spend_one_budget(tmp_path):
    with market("openai", tmp_path) as w:
        client = buyer(w, budget=0.4)
        job = client.submit_batch(texts(40), budget="0.35 USD")
        with pytest.raises(BudgetExceeded):
            client.submit(texts(1, "direct")[0], max_tokens=100).result().raise_for_error()
        assert answered(w.results(job)) == 40
        w.pass_time(10 * MINUTE)
        assert client.spent == pytest.approx(paid(w))
        assert client.submit(texts(1, "direct")[0], max_tokens=100).result().ok
        rest = list(client.map(iter(texts(60, "after"))))
        assert 0 < answered(rest) < 60
        assert client.spent == pytest.approx(paid(w))
        assert paid(w) <= 0.4


@pytest.mark.full
def test_each_list_by_batch_leaves_room_for_the_next_one(tmp_path):
    """A list ends before its batch is settled, but unused money must be free immediately."""
    with market("gemini", tmp_path) as w:
        client = buyer(w, budget=100 * MOST)
        for mark in ("first", "second", "third", "fourth"):
            results = client.generate(texts(20, mark), strategy="batch")
            assert [result.text for result in results] == w.right(texts(20, mark))
        assert len(w.creates) == 4
        w.pass_time(10 * MINUTE)
        assert client.spent == pytest.approx(paid(w))
        assert inside(client).realtime.budget.reserved == 0.0


@pytest.mark.full
def test_the_same_job_again_holds_back_what_it_can_still_spend(tmp_path):
    with market("openai", tmp_path) as w:
        first = buyer(w, budget=0.8)
        job = first.submit_batch(texts(30), key="one", budget="0.7 USD")
        w.pass_time(MINUTE)
        w.stop(first)
        assert first.spent == 0.0
        second = buyer(w, budget=0.9)
        assert second.submit_batch(texts(30), key="one", budget="0.7 USD").id == job.id
        assert inside(second).realtime.budget.reserved == pytest.approx(0.7)
        w.wait(job := second.job(job.id))
        w.pass_time(10 * MINUTE)
        assert inside(second).realtime.budget.reserved == 0.0
        assert second.spent == pytest.approx(paid(w))


@pytest.mark.full
def test_jobs_lease_what_they_can_cost_of_a_budget_that_processes_share(tmp_path):
    with market("openai", tmp_path) as w:
        shared = {"budget": 62.5 * MOST, "budget_scope": "shared:team", "batch_fallback": "batch"}
        place = f"sqlite:///{tmp_path / 'limits.db'}"
        first, second = (buyer(w, **shared, shared=place) for _ in range(2))
        jobs = [
            (first, first.submit_batch(texts(30, "question"))),
            (second, second.submit_batch(texts(30, "sentence"))),
        ]
        assert [row_of(client, job.id).policy.budget for client, job in jobs] == [
            pytest.approx(30 * MOST)
        ] * 2
        last = second.submit_batch(texts(30, "chapters"))
        assert row_of(second, last.id).policy.budget == pytest.approx(2.5 * MOST)
        assert [answered(w.results(job)) for _, job in jobs] == [30, 30]
        assert 2 <= answered(w.results(last)) < 30
        w.pass_time(10 * MINUTE)
        assert first.spent + second.spent == pytest.approx(paid(w))
        assert answered(w.results(first.submit_batch(texts(5, "after")))) == 5


def test_a_budget_is_refused_where_it_could_not_be_kept(tmp_path):
    with market("openai", tmp_path) as w:
        client = w.process(model="no-such-model", max_tokens=6)
        for asked in (lambda: client.submit_batch(texts(3), budget=1.0), lambda: limited(client)):
            with pytest.raises(ConfigError, match="price of openai:no-such-model is unknown"):
                asked()
        assert not client.jobs()
        assert not w.service.seen


def limited(client):
    return next(client.map(iter(texts(3)), budget="1 USD"))
