"""Actions from the dashboard: forms without JavaScript, done by those who may, noted with who did it."""

from __future__ import annotations

import re

import pytest
from jobs.stores import Bench, new_items, result, started

from smartbatch.dashboard import app
from smartbatch.errors import StoreError
from smartbatch.jobs.payload import encode_error
from smartbatch.jobs.records import JobState
from smartbatch.jobs.store import SqlStore
from tests.dashboard.visits import Answer, Visitor


def said(answer: Answer) -> str:
    found = re.search(r'<p role="status">(.*?)</p>', answer.text)
    assert found is not None
    return found[1]


def fields_of(page: str, act: str) -> dict[str, str]:
    [form] = re.findall(rf'<form[^>]*action="[^"]*/action/{act}"[^>]*>(.*?)</form>', page, re.S)
    pairs = re.findall(r'<input type="hidden" name="([a-z]+)" value="([^"]*)"/>', form)
    return dict(pairs)


def failed_job(store: SqlStore, shelf: Bench) -> str:
    job, _ = store.jobs.accept(shelf.job(), new_items(2, realtime=True))
    lease = store.leases.claim(job.id, 60.0)
    assert lease is not None
    store.items.claim_realtime(lease, 2)
    body = encode_error(StoreError("no"))
    store.items.answer(lease, [result(0), result(1, "failed", body, cost=0.0)], at=9.0)
    return job.id


def test_a_job_is_cancelled_by_the_form_of_its_page(visitor, opened, shelf):
    job, _ = started(opened, shelf)
    fields = fields_of(visitor.get(f"/jobs/{job.id}").text, "cancel")
    assert fields == {"id": job.id, "back": f"/jobs/{job.id}"}
    answer = visitor.post("/action/cancel", fields)
    assert (answer.status, said(answer).partition(" No")[0]) == (200, "1 job is being cancelled.")
    assert f'href="/jobs/{job.id}"' in answer.text
    assert opened.jobs.get(job.id).cancel_requested  # type: ignore[union-attr]
    again = visitor.post("/action/cancel", fields)
    assert said(again).startswith("No job changed")
    [action] = opened.controls.latest(limit=100)
    assert (action.name, action.by, action.job_id) == ("cancel", "token", job.id)


def test_it_says_where_nobody_carries_a_job_on(visitor, opened, shelf):
    job, lease = started(opened, shelf)
    opened.leases.release(lease)
    text = said(visitor.post("/action/cancel", {"id": job.id}))
    assert "No process is running this job" in text


def test_deadline_and_budget_are_set_and_what_is_none_is_refused(visitor, opened, shelf):
    job, _ = started(opened, shelf)
    assert said(visitor.post("/action/deadline", {"id": job.id, "deadline": "2h"})).endswith("is in 2h.")
    assert "neither spent nor reserved" in said(visitor.post("/action/budget", {"id": job.id, "budget": "5"}))
    policy = opened.jobs.get(job.id).policy  # type: ignore[union-attr]
    assert policy.budget == 5.0
    assert policy.deadline is not None
    for act, value in (("deadline", "-1s"), ("deadline", ""), ("budget", "much")):
        answer = visitor.post(f"/action/{act}", {"id": job.id, act: value})
        assert answer.status == 409
    assert "no longer has a budget" in said(visitor.post("/action/budget", {"id": job.id, "budget": "none"}))
    assert visitor.post("/action/budget", {"id": "job-none", "budget": "5"}).status == 404


def test_failed_requests_are_asked_again_and_a_finished_job_is_forgotten(visitor, opened, shelf):
    job_id = failed_job(opened, shelf)
    fields = fields_of(visitor.get(f"/jobs/{job_id}").text, "retry")
    assert said(visitor.post("/action/retry", fields)).startswith("1 failed request is being retried.")
    assert opened.jobs.get(job_id).state is JobState.ACTIVE  # type: ignore[union-attr]
    assert said(visitor.post("/action/forget", {"id": job_id})).startswith("No job changed")
    other = failed_job(opened, shelf)
    assert "1 job is forgotten" in said(visitor.post("/action/forget", {"id": other}))
    assert opened.jobs.get(other) is None


def test_actions_on_a_list_concern_the_jobs_of_its_state(visitor, opened, shelf):
    for model in ("openai:m", "openai:m", "openai:n"):
        started(opened, shelf, model=model)
    assert "/action/" not in visitor.get("/jobs").text  # a list of all jobs is no selection
    fields = fields_of(visitor.get("/jobs?state=active&model=openai:m").text, "cancel")
    assert said(visitor.post("/action/cancel", fields)) == "2 jobs are being cancelled."
    assert visitor.post("/action/cancel", {}).status == 409


def test_a_model_is_paused_limited_and_goes_on(visitor, opened):
    visitor.post("/action/pause", {"model": "openai:m", "reason": "<b>too dear</b>"})
    visitor.post("/action/limit", {"model": "openai:m", "requests": "60", "tokens": ""})
    page = visitor.get("/models").text
    assert "&lt;b&gt;too dear" in page
    assert "<b>" not in page
    assert "60 requests per minute" in page
    assert "openai:m is paused by token" in visitor.get("/").text
    assert [one.model for one in opened.controls.controls().pauses.values()] == ["openai:m"]
    assert said(visitor.post("/action/unpause", fields_of(page, "unpause"))).startswith("openai:m resumes")
    assert opened.controls.controls().pauses == {}
    for wrong in ({"model": ""}, {"model": "a b:\x00"}, {"model": "openai", "requests": "1"}):
        assert visitor.post("/action/limit", wrong).status == 409


def test_who_may_only_look_is_shown_no_form_and_does_nothing(reader_of, opened, shelf):
    job, _ = started(opened, shelf)
    reader = reader_of()
    for path in (f"/jobs/{job.id}", "/jobs?state=active", "/models"):
        assert "/action/" not in reader.get(path).text
    assert reader.post("/action/cancel", {"id": job.id}).status == 403
    assert opened.controls.latest(limit=100) == []


def test_the_user_of_the_host_application_is_noted(opened, shelf):
    board = app(store=shelf.place, shared="off", access=lambda environ: "all")
    Visitor(board, environ={"REMOTE_USER": "ada"}).post("/action/pause", {"model": "openai"})
    assert opened.controls.latest(limit=100)[0].by == "ada"


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({"back": "x" * 65_000}, 404),
        ({"back": "x" * 650_000}, 413),
        (dict.fromkeys(map(str, range(1_000)), "1"), 404),
        (dict.fromkeys(map(str, range(1_001)), "1"), 400),
        (dict.fromkeys(map(str, range(10_000)), "1"), 413),
    ],
)
def test_a_form_is_bounded_in_bytes_and_in_fields(visitor, form, status):
    assert visitor.post("/action/cancel", form).status == status


@pytest.mark.parametrize("length", ["-1", "many", "9" * 5_000])
def test_a_form_of_no_length_is_refused(visitor, length):
    environ = visitor._environ("POST", "/action/cancel", b"", {"Origin": "http://127.0.0.1:8137"})
    heard: list[str] = []
    visitor.app({**environ, "CONTENT_LENGTH": length}, lambda status, *_: heard.append(status) or print)  # type: ignore[func-returns-value]
    assert heard == ["413 Content Too Large"]


def test_an_action_on_a_job_makes_no_store(tmp_path):
    board = app(store=f"{tmp_path}/none.db", shared="off", access=lambda environ: "all")
    assert Visitor(board).post("/action/cancel", {"id": "job-1"}).status == 404
    assert "There is no store at" in Visitor(board).get("/models").text
