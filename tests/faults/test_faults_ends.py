"""How batches may end, late, half done, refused or not at all: rows C14 to C18, C20, C21 and C24."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from smartbatch.emulator.anthropic.parsing import error_body
from smartbatch.emulator.provider_api import ServerReply
from smartbatch.errors import ProviderError
from smartbatch.jobs.job import Job
from tests.faults.simulation import simulated_world as simulation
from tests.faults.simulation.scenario import Plan, Scenario
from tests.faults.world import DAY, HOUR, KEY, MINUTE, PROVIDERS, World, in_batch, texts
from tests.levels import sampled

SLOW = {"batch_poll_interval": 30 * MINUTE}

each_provider = pytest.mark.parametrize("provider", sampled(PROVIDERS, first=1))


@pytest.mark.full
@each_provider
@pytest.mark.parametrize(
    ("fault", "reason"), [("expire_all", "was not processed in 3"), ("missing_lines", "had no result in 3")]
)
def test_c15_items_without_a_result_in_three_batches_fail_with_a_reason(fault, reason, new_world):
    w = new_world(rare=240, may_pay_twice=True, batch_turnaround=HOUR, batch_faults={fault: 1.0})
    results = w.results(w.process(**SLOW).submit_batch(texts(4)))
    assert [record.total for record in w.creates] == [4, 4, 4]
    for result in results:
        assert isinstance(result.error, ProviderError)
        assert f"{reason} batches" in str(result.error)
        assert "submit it again, or send it in real time" in str(result.error)


@each_provider
@pytest.mark.parametrize("results", sampled(["every line", "finished lines", "no file"], first=1))
def test_c16_a_cancelled_job_ends_with_its_batch(provider, results, new_world):
    """Providers write a line for unprocessed requests, omit it, or return no results at all."""
    w = new_world(batch_turnaround=10 * MINUTE, batch_cancel_seconds=5.0)
    job = w.process().submit_batch(texts(20))
    w.pass_time(5 * MINUTE + 7)  # not while it is polled
    if results == "finished lines":
        w.rewrite_results(lambda lines: [one for one in lines if w.answer_of(json.loads(one))])
    elif results == "no file":
        w.edit_json({"get"}, _without_results)
    cancelled = w.clock.now()
    job.cancel()
    status = w.wait(job)
    assert w.clock.now() - cancelled <= 5 + 10
    assert not w.incidents(job)
    ran = 0 if results == "no file" and provider != "anthropic" else status.succeeded
    assert (status.succeeded, status.cancelled) == (ran, 20 - ran)


def _without_results(said: dict[str, Any]) -> None:
    said.pop("response", None)
    said.get("metadata", {}).pop("output", None)
    for name in ("output_file_id", "error_file_id"):
        if name in said:
            said[name] = None


@pytest.mark.full
@each_provider
def test_c16_a_batch_far_beyond_the_promise_is_told_and_waited_for(new_world):
    w = new_world(rare=600, batch_window=9 * DAY, batch_turnaround=3 * DAY)
    prompts = texts(6)
    job = w.process(batch_poll_interval=HOUR).submit_batch(prompts)
    w.pass_time(23 * HOUR)
    assert job.status().note is None
    w.pass_time(25 * HOUR)
    note = job.status().note
    assert note is not None
    assert "more than 24 h" in note
    assert "batch_fallback='individual'" in note
    assert len(w.creates) == 1
    assert [result.text for result in w.results(job)] == w.right(prompts)
    assert len(w.creates) == 1
    assert not w.requests("ask")


@each_provider
def test_c17_a_cancel_during_an_outage_is_repeated_after_it(new_world):
    settings = {"batch_turnaround": 4 * HOUR, "batch_cancel_seconds": MINUTE}
    w = new_world(rare=60, batch_faults={"stuck": 1.0}, **settings)
    prompts = texts(10)
    client = w.process(batch_timeout=3 * HOUR, **SLOW)
    job = client.submit_batch(prompts, batch_fallback="individual")
    w.service.meet = lambda seen: (
        ServerReply(0, b"", damage="reset_before") if 3 * HOUR <= seen.at < 3.5 * HOUR else None
    )
    assert [result.text for result in w.results(job)] == w.right(prompts)
    assert len(w.requests("cancel")) > 1
    [record] = w.creates
    assert record.state == "cancelled"
    assert 0 < len(w.requests("ask")) < 10  # what the batch had run is kept
    assert not w.incidents(job)


@pytest.mark.full
@pytest.mark.parametrize("count", [250, pytest.param(1000, marks=pytest.mark.soak)])
def test_c17_hundreds_of_races_of_end_and_cancel(count, monkeypatch, tmp_path):
    """In the simulation, whose judge compares every paid answer with the results."""
    usual = simulation.scenario

    def racing(plan: Plan) -> Scenario:
        calm = dict.fromkeys(("lost", "dropped", "late", "lags", "lines", "calls", "freezes", "foreign"), 0.0)
        what = evolve(usual(plan), items=6, turnaround=400.0, ends=0.15, workers=1, cancel_at=None, **calm)
        return evolve(what, enqueued_tokens=None)

    monkeypatch.setattr(simulation, "scenario", racing)
    policy = (("fallback", "individual"), ("timeout", 130.0), ("max_requests", 3))
    races: Counter[str | None] = Counter()
    seed = 0
    while races.total() < count:
        for flavour in ("openai", "gemini", "anthropic"):
            plan = Plan(seed=seed, flavour=flavour, policy=policy)
            races += _raced(plan, tmp_path / f"{flavour} {seed}")
        seed += 1
    assert races["completed"] >= count / 10  # they were done although they were cancelled
    assert races["cancelled"] >= count / 2


def _raced(plan: Plan, folder: Path) -> Counter[str | None]:
    """Run a plan and return the final states of the batches it cancelled."""
    folder.mkdir()
    run = simulation.World(plan, folder)
    try:
        run.run()
        return Counter(each.state for each in run.ledger.batches if each.cancelled_at is not None)
    finally:
        run.close()


@pytest.mark.full
@each_provider
def test_c21_results_at_risk_are_reported_at_half_of_their_time(provider, new_world):
    keeps = {"openai": 29 * DAY, "anthropic": 29 * DAY, "gemini": 2 * DAY}[provider]
    outage = {"batch_results_outage": 0.5 * keeps + 2 * HOUR, "batch_retention": keeps}
    w = new_world(rare=240, batch_faults={"results_unavailable": 1.0}, **outage)
    prompts = texts(5)
    away = w.process()
    job = away.submit_batch(prompts)
    w.pass_time(MINUTE)
    w.stop(away)
    w.pass_time(0.5 * keeps - 2 * HOUR)
    job = w.process().job(job.id)
    w.pass_time(HOUR)
    assert not w.incidents(job)
    assert [result.text for result in w.results(job)] == w.right(prompts)
    assert w.incidents(job) == {"results_at_risk": 1}


@each_provider
def test_c21_deleted_results_fail_their_requests_without_further_cost(new_world):
    w = new_world(batch_turnaround=HOUR, batch_retention=20 * DAY)
    away = w.process()
    job = away.submit_batch(texts(5))
    w.pass_time(MINUTE)
    w.stop(away)
    w.pass_time(35 * DAY)
    found = w.process().job(job.id)
    results = w.results(found)
    for result in results:
        assert isinstance(result.error, ProviderError)
        assert "no longer stores" in str(result.error)
    assert w.incidents(found) == {"results_gone": 1}
    assert len(w.creates) == 1  # paid for once, and not again without the user's word
    assert not w.requests("ask")


@pytest.mark.full
@each_provider
def test_c24_without_credit_no_item_loses_its_tries(new_world):
    rounds = 4
    no_money = {"batch_fault_for": lambda index, label: ("no_money_lines",) if index < rounds else ()}
    w = new_world(rare=240, batch_turnaround=MINUTE, **no_money)
    prompts = texts(6)
    job = w.process().submit_batch(prompts)
    for number in range(1, rounds + 1):
        _until_held(w, job)
        assert len(w.creates) == number
        status = job.status()
        assert (status.completed, status.failed, status.cancelled) == (0, 0, 0)
        assert status.note is not None
        assert "no credit" in status.note
        w.pass_time(DAY)
        assert len(w.creates) == number  # nothing is sent while it is held
        job.resume()
    assert [result.text for result in w.results(job)] == w.right(prompts)


def _until_held(w: World, job: Job) -> None:
    for _ in range(20):
        w.pass_time(MINUTE)
        if job.status().state == "held":
            return
    raise AssertionError(f"the job is not held: {job.status()}")


@each_provider
def test_c24_answers_before_the_end_of_the_credit_are_kept(provider, new_world):
    w = new_world()
    spent = in_batch(0, "item_error", {3, 4, 5})
    w.emu.configure(batch_line_fault_for=spent)
    w.rewrite_results(lambda lines: [_without_credit(provider, line) for line in lines])
    prompts = texts(6)
    job = w.process().submit_batch(prompts)
    _until_held(w, job)
    assert job.status().completed == 3
    w.service.alter = lambda seen, reply: reply
    job.resume()
    assert [result.text for result in w.results(job)] == w.right(prompts)
    assert [record.total for record in w.creates] == [6, 3]


def _without_credit(provider: str, raw: bytes) -> bytes:
    """Turn the service error in a line into one for lack of credit."""
    line = json.loads(raw)
    match provider:
        case "openai" if line["response"]["status_code"] == 500:
            error = {
                "message": "You exceeded your current quota.",
                "type": "insufficient_quota",
                "code": "insufficient_quota",
            }
            line["response"].update(status_code=429, body={"error": error})
        case "anthropic" if line["result"]["type"] == "errored":
            line["result"]["error"] = json.loads(
                error_body(429, "You have reached your spend limit.", "enforced_spend_limit_reached")
            )
        case "gemini" if "error" in line:
            line["error"] = {"code": 8, "message": "Your prepayment credits are depleted."}
    return json.dumps(line).encode()


def cancel_in_console(w: World, batch: str) -> None:
    paths = {
        "openai": f"/v1/batches/{batch}/cancel",
        "anthropic": f"/v1/messages/batches/{batch}/cancel",
        "gemini": f"/v1beta/batches/{batch}:cancel",
    }
    headers = {
        "openai": {"Authorization": f"Bearer {KEY}"},
        "anthropic": {"x-api-key": KEY, "anthropic-version": "2023-06-01"},
        "gemini": {"x-goog-api-key": KEY},
    }
    request = urllib.request.Request(w.emu.url + paths[w.provider], b"", headers[w.provider], method="POST")
    with urllib.request.urlopen(request) as reply:
        assert reply.status == 200


@each_provider
@pytest.mark.parametrize("fallback", sampled(["batch", "individual"], first=1))
def test_c17_a_batch_cancelled_in_the_console_holds_its_job(fallback, new_world):
    w = new_world(rare=240, batch_turnaround=HOUR, batch_cancel_seconds=90.0)
    prompts = texts(20)
    client = w.process(batch_timeout=20 * HOUR)
    job = client.submit_batch(prompts, batch_fallback=fallback)
    w.pass_time(30 * MINUTE)
    cancel_in_console(w, w.creates[0].id)
    w.pass_time(HOUR)
    status = job.status()
    assert status.state == "held"
    assert f"smartbatch jobs resume {job.id}" in str(status.note)
    assert 0 < status.completed < 20  # what was done by then is kept
    assert w.incidents(job) == {"batch_cancelled": 1}
    w.stop(client)
    again = w.process(batch_timeout=20 * HOUR)  # also after a restart nothing is sent by itself
    w.pass_time(5 * HOUR)
    assert len(w.creates) == 1
    assert not w.requests("ask")
    again.job(job.id).resume()
    resumed = again.job(job.id)
    assert [result.text for result in w.results(resumed)] == w.right(prompts)
    assert len(w.creates) == (2 if fallback == "batch" else 1)


@each_provider
def test_c17_a_deadline_does_not_override_a_cancel_in_the_console(new_world):
    w = new_world(rare=240, batch_turnaround=HOUR, batch_cancel_seconds=90.0)
    job = w.process().submit_batch(texts(20), deadline="6h")
    w.pass_time(30 * MINUTE)
    cancel_in_console(w, w.creates[0].id)
    w.pass_time(10 * HOUR)
    assert job.status().state == "held"
    assert not w.requests("ask")
