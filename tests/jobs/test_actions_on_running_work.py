"""Actions reach running processes: pauses, limits, deadlines, budgets and retries."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime

import pytest
from inside import inside
from jobs.remote import LONG, Remote

from smartbatch import ActionResult, JobSelection, Price, RetriedRows, StoredJobs
from smartbatch._words import money
from smartbatch.config import BatchingConfig
from smartbatch.errors import (
    BudgetExceeded,
    ConfigError,
    ErrorKind,
    InvalidRequest,
    JobTimeout,
    ProviderError,
    RequestTimeout,
)
from smartbatch.events import JobFinished, LimitChanged, PauseChanged
from smartbatch.providers.batch_api import Line, LineOutcome

HEARD = 2.0  # seconds until every process has read an action
MODEL = ("remote", "default")


@pytest.fixture
def place(tmp_path):
    return f"{tmp_path}/jobs.db"


@pytest.fixture
def elsewhere(place, clock):
    stored = StoredJobs(BatchingConfig(store=place), clock)
    yield stored
    stored.close(0)


def hear(clock):
    """Wait until every process has read the action; the second wait is for readers."""
    clock.sleep(HEARD)
    clock.sleep(0.001)


def test_a_paused_model_is_asked_nothing_until_its_pause_ends(client_of, remote, place, elsewhere, clock):
    told = []
    client = client_of(remote, store=place, observers=[told.append])
    assert client.submit("before").result().text == "re: before"
    pause = elsewhere.pause(*MODEL, reason="too dear", by="ada")
    assert pause.model == "remote:default"
    hear(clock)
    waiting = [client.submit(f"p{n}") for n in range(3)]
    clock.sleep(60.0)
    assert remote.asked == ["before"]
    assert client.counts.waiting == 3
    assert elsewhere.resume(*MODEL, by="ada")
    hear(clock)
    assert [future.result(timeout=30).text for future in waiting] == ["re: p0", "re: p1", "re: p2"]
    changes = [(one.model, one.paused, one.reason, one.by) for one in told if isinstance(one, PauseChanged)]
    assert changes == [("remote:default", True, "too dear", "ada"), ("remote:default", False, None, None)]
    assert [(action.name, action.by) for action in elsewhere.actions()] == [
        ("resume_model", "ada"),
        ("pause_model", "ada"),
    ]


def test_a_request_keeps_its_time_out_while_its_model_is_paused(client_of, remote, place, elsewhere, clock):
    elsewhere.pause("remote")
    future = client_of(remote, store=place).submit("p", timeout=5.0)
    clock.sleep(6.0)
    assert isinstance(future.exception(timeout=30), RequestTimeout)
    assert remote.asked == []


def test_a_pause_outlives_its_processes(client_of, remote, place, elsewhere, clock):
    elsewhere.pause(*MODEL, reason="in use")
    assert [str(pause).partition(" by ")[0] for pause in elsewhere.paused()] == ["remote:default is paused"]
    client = client_of(remote, store=place)
    future = client.submit("p")
    clock.sleep(30.0)
    assert remote.asked == []
    stopping = threading.Thread(target=client.stop)
    stopping.start()
    elsewhere.resume(*MODEL)
    hear(clock)
    stopping.join()
    assert future.result(timeout=0).text == "re: p"


def test_other_models_go_on_while_one_is_paused(client_of, place, elsewhere, clock):
    elsewhere.pause("first")
    first, second = (Remote(clock, name=name, scope=name) for name in ("first", "second"))
    client_of(first, store=place).submit("p")
    assert client_of(second, store=place).submit("q").result(timeout=30).text == "re: q"
    assert first.asked == []


def test_a_set_limit_replaces_that_of_the_settings(client_of, remote, place, elsewhere, clock):
    told = []
    client = client_of(remote, store=place, max_rpm=6_000, observers=[told.append])
    client.submit("first").result()
    elsewhere.set_limit(*MODEL, requests_per_minute=60, by="ada")
    hear(clock)
    began = clock.now()
    for future in [client.submit(f"p{n}") for n in range(100)]:
        future.result(timeout=30)
    assert clock.now() - began > 30.0
    elsewhere.set_limit(*MODEL, by="ada")
    clock.sleep(120.0)
    began = clock.now()
    for future in [client.submit(f"q{n}") for n in range(100)]:
        future.result(timeout=30)
    assert clock.now() - began < 10.0
    limits = [one.requests_per_minute for one in told if isinstance(one, LimitChanged)]
    assert limits == [60.0, None]


@pytest.mark.parametrize("wrong", [0, -1, float("inf"), pytest.param(10**400, id="huge"), "60", True])
def test_a_limit_that_is_none_is_refused(elsewhere, wrong):
    with pytest.raises(InvalidRequest, match="requests_per_minute"):
        elsewhere.set_limit(*MODEL, requests_per_minute=wrong)
    assert elsewhere.limits() == []


def test_a_paused_model_gets_no_further_batch(client_of, remote, place, elsewhere, clock):
    client = client_of(remote, store=place)
    running = client.submit_batch([f"p{n}" for n in range(20)])
    clock.sleep(10.0)
    elsewhere.pause(*MODEL, reason="too dear", by="ada")
    hear(clock)
    later = client.submit_batch([f"q{n}" for n in range(20)])
    assert running.wait(LONG).completed == 20
    clock.sleep(60.0)
    assert len(remote.api.made) == 1
    assert later.status().note == "remote:default is paused by ada: too dear"
    elsewhere.resume(*MODEL)
    assert later.wait(LONG).completed == 20
    assert len(remote.api.made) == 2


def test_items_of_a_paused_model_are_recalled_and_sent_once_after_it(client_of, place, elsewhere, clock):
    """Items must not stay in the queue, where a crash would leave them possibly paid for."""
    remote = Remote(clock, latency=10.0)
    client = client_of(remote, store=place, parallelism=2)
    plan = client.forecast(["p"], strategy="individual")
    job = client.submit_run([f"p{n}" for n in range(8)], plan)
    clock.sleep(5.0)
    elsewhere.pause(*MODEL)
    hear(clock)
    clock.sleep(100.0)
    assert sorted(remote.asked) == ["p0", "p1"]
    assert job.status().submitted == 2
    elsewhere.resume(*MODEL)
    assert job.wait(LONG).completed == 8
    assert sorted(remote.asked) == [f"p{n}" for n in range(8)]


def test_a_deadline_that_comes_later_has_a_batch_taken_back(client_of, clock, place, elsewhere):
    remote = Remote(clock, turnaround=36_000.0)
    job = client_of(remote, store=place).submit_batch([f"p{n}" for n in range(20)])
    clock.sleep(60.0)
    assert remote.asked == []
    elsewhere.job(job.id).set_deadline("10min", by="ada")
    began = clock.now()
    assert job.wait(LONG).completed == 20
    assert clock.now() - began < 900.0
    assert len(remote.asked) == 20
    [action] = elsewhere.actions(job_id=job.id)
    assert (action.name, action.by, action.detail) == ("set_deadline", "ada", "in 10 min")


@pytest.mark.full
def test_a_deadline_that_has_passed_is_refused_and_none_is_none(client_of, clock, place):
    remote = Remote(clock, turnaround=1_500.0)
    job = client_of(remote, store=place).submit_batch([f"p{n}" for n in range(20)])
    for wrong in (datetime(2020, 1, 1, tzinfo=UTC), "-1s", 0):
        with pytest.raises(ConfigError, match="deadline"):
            job.set_deadline(wrong)
    job.set_deadline("10min")
    job.set_deadline(None)
    clock.sleep(1200.0)
    assert remote.asked == []
    assert job.wait(LONG).completed == 20


def test_a_raised_budget_lets_rows_go_that_waited_for_it(client_of, clock, place, elsewhere):
    remote = Remote(clock, latency=100.0, priced=True)
    price = Price(input=1000.0, output=1000.0)
    client = client_of(remote, store=place, prices={"remote:default": price}, max_tokens=10, parallelism=8)
    elsewhere.pause(*MODEL)
    plan = client.forecast([f"p{n}" for n in range(4)], strategy="individual", budget=1.0)
    job = client.submit_run([f"p{n}" for n in range(4)], plan)
    assert elsewhere.job(job.id).set_budget(0.05, by="ada") == 0.05
    elsewhere.resume(*MODEL)
    hear(clock)
    assert len(remote.asked) == 1
    assert elsewhere.job(job.id).set_budget("1 USD", by="ada") > 0.9
    hear(clock)
    assert len(remote.asked) == 4
    assert job.wait(LONG).completed == 4


@pytest.mark.full
def test_a_budget_below_what_is_reserved_ends_what_was_not_sent(client_of, clock, place, elsewhere):
    remote = Remote(clock, latency=100.0, priced=True)
    price = Price(input=1000.0, output=1000.0)
    client = client_of(remote, store=place, prices={"remote:default": price}, max_tokens=10, parallelism=2)
    plan = client.forecast([f"p{n}" for n in range(300)], strategy="individual", budget=100.0)
    job = client.submit_run([f"p{n}" for n in range(300)], plan)
    job.set_budget(100.0)
    clock.sleep(105.0)
    assert elsewhere.job(job.id).set_budget(0.001) < 0
    status = job.wait(LONG)
    assert status.completed + status.failed == 300
    assert 2 <= status.completed < 300
    assert {type(result.error) for result in job.results() if not result.ok} == {BudgetExceeded}


@pytest.mark.parametrize("wrong", [-1, "much", True, float("nan"), pytest.param(10**400, id="huge")])
def test_an_amount_that_is_none_is_refused(client_of, remote, place, wrong):
    job = client_of(remote, store=place).submit_batch(["p"] * 3)
    with pytest.raises(InvalidRequest, match="budget"):
        job.set_budget(wrong)


@pytest.mark.parametrize(
    "wrong", ["5", "x", -1, True, 1.5, float("nan"), pytest.param(10**400, id="huge"), object()]
)
def test_a_count_that_is_none_is_refused_by_name(client_of, remote, elsewhere, place, wrong):
    client = client_of(remote, store=place)
    job = client.submit_batch(["p"] * 3)
    with pytest.raises(ConfigError, match=r"count = .* is not a whole number of 0 or more"):
        client.forecast(iter(["p"]), count=wrong)
    looks = (client.jobs, elsewhere.statuses, elsewhere.jobs, elsewhere.actions, job.earlier_results)
    for look in looks:
        with pytest.raises(ConfigError, match=r"limit = .* is not a whole number of 0 or more"):
            look(limit=wrong)
    with pytest.raises(ConfigError, match="before"):
        elsewhere.actions(before=wrong)
    assert (client.jobs(limit=0), len(client.jobs(limit=2**63 - 1))) == ([], 1)


def test_failed_rows_are_asked_again_and_their_job_ends_once_more(client_of, clock, place):
    down = {"p1", "p2"}

    def reply(prompt):
        if prompt in down:
            raise ProviderError("refused", kind=ErrorKind.CLIENT_ERROR, status=400)
        return prompt.upper()

    told = []
    client = client_of(Remote(clock, reply=reply), store=place, observers=[told.append])
    plan = client.forecast(["p"], strategy="individual")
    job = client.submit_run([f"p{n}" for n in range(3)], plan)
    assert job.wait(LONG).failed == 2
    down.clear()
    assert job.retry_failed(by="ada") == RetriedRows(2, 0, ())
    status = job.wait(LONG)
    assert (status.completed, status.failed) == (3, 0)
    assert [result.text for result in job.results()] == ["P0", "P1", "P2"]
    assert sorted(result.text for result in job.results(ordered=False)) == ["P0", "P1", "P2"]
    kept = job.earlier_results()
    assert [(one.index, type(one.result.error)) for one in kept] == [(1, ProviderError), (2, ProviderError)]
    assert [one.index for one in job.earlier_results(after=kept[0])] == [2]
    hear(clock)
    assert len([one for one in told if isinstance(one, JobFinished)]) == 2
    assert job.retry_failed() == RetriedRows(0, 0, ())


def failed_batch(client_of, clock, place, monkeypatch):
    """A client with a budget of 0.5 USD, and its job of 20 rows that failed in a batch without cost."""
    remote = Remote(clock, priced=True)
    api = remote.api
    assert api is not None
    price = Price(input=1000.0, output=1000.0)
    client = client_of(remote, store=place, prices={"remote:default": price}, max_tokens=4, budget=0.5)
    error = ProviderError("refused", kind=ErrorKind.CLIENT_ERROR)
    with monkeypatch.context() as refusing:
        failing = lambda line, _: Line(json.loads(line)["id"], LineOutcome.FAILED, error=error)  # noqa: E731
        refusing.setattr(api, "read_line", failing)
        job = client.submit_batch([f"question {n}" for n in range(100, 120)])
        assert job.wait(LONG).failed == 20
        clock.sleep(600.0)
    assert inside(client).realtime.budget.reserved == 0.0
    return client, api, job


@pytest.mark.full
def test_retried_rows_spend_what_the_client_has_left(client_of, clock, place, elsewhere, monkeypatch):
    client, api, job = failed_batch(client_of, clock, place, monkeypatch)
    others = [client.submit(f"question {n}").result() for n in range(100, 130)]
    spent = sum(other.cost or 0.0 for other in others)
    assert job.retry_failed().count == 20
    status = job.wait(LONG)
    clock.sleep(600.0)
    assert 0 < status.completed < 20
    assert sum(len(batch.lines) for batch in api.made.values()) == 20 + status.completed
    assert {type(one.error) for one in job.results() if not one.ok} == {BudgetExceeded}
    assert client.spent == pytest.approx(spent + status.cost)
    assert client.spent <= 0.5
    [noted] = elsewhere.actions(job_id=job.id)
    assert (noted.name, noted.detail) == ("retry_failed", f"budget {money(0.5 - spent)}")


def test_nothing_is_left_for_others_while_rows_are_asked_again(client_of, clock, place, monkeypatch):
    client, _, job = failed_batch(client_of, clock, place, monkeypatch)
    assert job.retry_failed().count == 20
    assert inside(client).realtime.budget.left == 0.0
    status = job.wait(LONG)
    assert status.completed == 20
    clock.sleep(600.0)
    assert inside(client).realtime.budget.left == pytest.approx(0.5 - status.cost)
    assert job.retry_failed().count == 0
    assert inside(client).realtime.budget.left == pytest.approx(0.5 - status.cost)


def test_actions_on_many_jobs_are_done_by_those_who_carry_them_on(client_of, clock, place, elsewhere):
    remote = Remote(clock, turnaround=3_600.0)
    client = client_of(remote, store=place)
    jobs = [client.submit_batch([f"{mark}{n}" for n in range(5)]) for mark in "abc"]
    clock.sleep(60.0)
    chosen = JobSelection(state="active", model="remote:default")
    assert elsewhere.cancel_jobs(chosen, by="ada") == ActionResult(3, 0)
    assert {job.wait(LONG).cancelled for job in jobs} == {5}
    assert elsewhere.forget_jobs(JobSelection(state="done")) == ActionResult(3, 0)
    assert elsewhere.jobs() == []
    assert [action.name for action in elsewhere.actions()] == ["forget", "forget", "forget", "cancel"]


def test_a_reader_in_storage_order_gets_the_results_of_retried_rows(client_of, clock, place):
    down = {"p0"}

    def reply(prompt):
        if prompt in down:
            raise ProviderError("refused", kind=ErrorKind.CLIENT_ERROR, status=400)
        return prompt

    client = client_of(Remote(clock, reply=reply, latency=10.0), store=place, parallelism=1)
    plan = client.forecast(["p"], strategy="individual")
    job = client.submit_run([f"p{n}" for n in range(4)], plan)
    read = job.results(ordered=False, timeout=LONG)
    texts = [next(read).text]
    down.clear()
    assert job.retry_failed().count == 1
    texts += [result.text for result in read]
    assert texts[0] is None
    assert sorted(str(text) for text in texts[1:]) == ["p0", "p1", "p2", "p3"]


def test_a_job_whose_first_requests_fail_alike_is_held(client_of, clock, place):
    wrong = [True]

    def reply(prompt):
        if wrong:
            raise ProviderError("no such model", kind=ErrorKind.CLIENT_ERROR, status=400)
        return prompt

    client = client_of(Remote(clock, reply=reply), store=place, batch_enabled=False, parallelism=2)
    job = client.submit_batch([f"p{n}" for n in range(100)], batch_fallback="individual")
    with pytest.raises(JobTimeout, match="held: the first requests all failed with the same error"):
        job.wait(60.0)
    before = job.status()
    assert (before.state, before.completed) == ("held", 0)
    assert 20 <= before.failed < 40
    wrong.clear()
    job.resume()
    after = job.wait(LONG)
    assert (after.failed, after.completed) == (before.failed, 100 - before.failed)
