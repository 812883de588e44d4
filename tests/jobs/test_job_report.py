"""Reports of jobs, and the chart of their progress."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from attrs import evolve, fields_dict

from smartbatch._words import money
from smartbatch.client import BatchingClient
from smartbatch.jobs.job_report import job_report
from smartbatch.jobs.records import IncidentRow, JobPolicy, JobRow
from smartbatch.jobs.report_view import (
    ReportedRequests,
    ReportedRun,
    RequestFigures,
    SeenResults,
    report_view,
    totals,
)
from smartbatch.jobs.shard_records import RemoteProgress, ShardRow, ShardState
from smartbatch.jobs.status import ShardStatus, progress_chart
from smartbatch.jobs.store import open_store
from smartbatch.views.html import MAX_BYTES, Report
from smartbatch.views.model import ProgressOverTime
from tests.hostile import HOSTILE
from tests.levels import sampled

PRICES = {"sim:demo": {"input": 1000.0, "output": 4000.0, "batch_discount": 0.5}}
SIM = "sim:demo?latency=0&batch_seconds=0"


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.setenv("SMARTBATCH_SIM_DIR", str(tmp_path / "sim"))
    settings = {"store": str(tmp_path / "jobs.db"), "batch_poll_interval": 0.01, "prices": PRICES}
    with BatchingClient(SIM, **settings) as client:
        yield client


def parsed(report):
    html = report.html.removeprefix("<!doctype html>")
    return ElementTree.fromstring(re.sub(r' xmlns="[^"]*"', "", html))


def section(report, name):
    found = parsed(report).find(f".//section[@id='{name}']")
    return " ".join(" ".join(found.itertext()).split())


def done(client, prompts, **params):
    job = client.submit_batch(prompts, **params)
    job.wait(60)
    return job


def test_a_report_says_what_was_asked_what_came_and_what_it_cost(client):
    job = done(client, ["one two", "three"], key="nightly", max_tokens=3, temperature=0.5)
    report = job.report()
    status = job.status()
    assert "requests 2 model sim:demo kind generate max_tokens 3 temperature 0.5" in section(report, "asked")
    results = section(report, "results")
    assert "answered 2 truncated 2 failed 0 cancelled 0 without a result 0" in results
    assert f"cost {money(status.cost)}" in results
    assert f"{money(status.cost)} less than if all requests had been sent in real time." in section(
        report, "cost"
    ), "half price"
    assert "Answered by route: batch 100 %." in section(report, "route")
    assert "batches 1" in section(report, "time")
    assert "1 settled 2 2" in section(report, "time")
    assert "batch latency" in section(report, "distributions")
    assert "No request failed." in section(report, "failures")
    assert "No incidents." in section(report, "incidents")
    assert parsed(report).findtext("head/title") == "Job nightly – smartbatch report"


def test_what_is_not_recorded_is_unknown(client):
    ended = done(client, ["a"]).report()
    assert "always batch unknown unknown unknown unknown unknown" in section(ended, "cost")
    assert "The reason is not recorded" in section(ended, "route")
    with BatchingClient("sim:demo?batch_seconds=600", store=client.config.store) as slow:
        report = slow.submit_batch(["c"]).report()
        assert "finished unknown took still running" in section(report, "time")
        assert "actual unknown unknown" in section(report, "cost")
        assert "1 have no result yet" in report.html


def test_a_report_contains_no_prompt_and_no_answer(client):
    schema = {"type": "object", "properties": {"SECRET3": {"type": "string"}}, "required": ["SECRET3"]}
    job = done(
        client, ["SECRET1"], system="SECRET2", schema=schema, stop=["SECRET4"], context={"row": "SECRET5"}
    )
    (result,) = job.results()
    html = job.report().html
    assert "SECRET" not in html
    assert result.text is not None
    assert result.text not in html
    assert "system 7 characters" in section(job.report(), "asked")
    assert "schema 1 properties" in section(job.report(), "asked")


@pytest.mark.parametrize("name", sampled(HOSTILE, first=10))
def test_foreign_texts_stay_text_and_are_cut(name):
    text = HOSTILE[name]
    incident = IncidentRow(text, text, None, text, 1.0, 0.0)
    shard = ShardStatus(1, text, text, 2, 1, 1.0, text, 0.1, text)
    status = evolve(
        totals(text, total=500, completed=1, failed=499, cost=0.1),
        state=text,
        note=text,
        shards=(shard,) * 500,
        incidents=(incident,) * 500,
    )
    run = ReportedRun(
        title=text,
        job=status,
        route=text,
        settings=((text, text),),
        created=0.0,
        finished=9.0,
        paid=1.0,
        individual_cost=2.0,
        batch_cost=None,
        progress=ProgressOverTime(text, ((0.0, 0.0), (9.0, 500.0)), 500),
    )
    asked = ReportedRequests(
        kind=text,
        models=(text,) * 99,
        parameters=((text, text),) * 20,
        labels=((text, text),) * 99,
        place=text,
        made_at=0.0,
    )
    seen = SeenResults(dropped={f"{text}{n}": text for n in range(99)}, failures_read=499)
    for number in range(200):
        seen.sample.take(RequestFigures(text, 1.0, 0.1, 1, 1, 1))
        seen.failures.count(text, f"{text}{number}", text)
    report = Report(report_view(text, status, seen, (run,) * 5, asked), 500)
    page = list(parsed(report).iter())
    assert not {each.tag for each in page} & {"script", "img", "b", "a", "iframe", "link", "form"}
    assert not {attribute for each in page for attribute in each.attrib if attribute.startswith("on")}
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", report.html)
    assert len(report.html.encode()) <= MAX_BYTES


@pytest.mark.full
def test_failures_are_told_by_kind_and_message(tmp_path, monkeypatch):
    monkeypatch.setenv("SMARTBATCH_SIM_DIR", str(tmp_path / "sim"))
    settings = {"store": str(tmp_path / "jobs.db"), "batch_poll_interval": 0.01, "retries": 0}
    with BatchingClient("sim:demo?latency=0&faults=timeout:1", **settings) as client:
        report = done(client, ["a", "b"]).report()
    assert "0 of 2 requests were answered" in report.html
    assert "timeout simulated: no answer in time 2 " in section(report, "failures")
    assert "No request was answered." in section(report, "distributions")


def test_the_answer_of_an_equal_request_is_in_no_distribution(client):
    report = done(client, ["a", "b", "a", "a"]).report()
    assert "answers of identical requests 2" in section(report, "results")
    assert "Of 2 answered requests." in section(report, "distributions")


def test_what_an_incident_cost_is_part_of_what_was_paid(client):
    job = done(client, ["a"])
    client.stop(timeout=5)
    store = open_store(client.config.store)
    lease = store.leases.claim(job.id, 60.0)
    store.facts.add_incident(
        lease, IncidentRow("double_submission", job.id, None, "it came twice", 0.25, 60.0)
    )
    row = store.jobs.get(job.id)
    report = job_report(store, row, 0.0)
    store.close()
    told = section(report, "incidents")
    assert "1970-01-01 00:01:00 A batch was created twice $0.25 it came twice" in told
    assert "actual unknown $0.25" in section(report, "cost")
    assert "$0.25 more than if all requests had been sent in real time." in section(report, "cost")


def test_cancelled_requests_are_no_failures(client):
    with BatchingClient("sim:demo?batch_seconds=600", store=client.config.store) as slow:
        job = slow.submit_batch(["a", "b"])
        job.cancel()
        job.wait(60)
        report = job.report()
    assert "answered 0 failed 0 cancelled 2" in section(report, "results")
    assert "No request failed." in section(report, "failures")


def test_a_report_is_saved_and_shown_in_a_frame_of_its_own(client, tmp_path):
    report = done(client, ["a"]).report()
    report.save(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text("utf-8") == report.html
    frame = ElementTree.fromstring(report._repr_html_())
    assert (frame.tag, frame.get("sandbox")) == ("iframe", "")
    assert (frame.get("srcdoc") or "").split() == report.html.split()
    assert repr(report).startswith("<Report Job job-")


@pytest.mark.full
def test_a_report_of_a_large_job_is_small_and_a_sample(client):
    job = done(client, [f"prompt {number}" for number in range(30_000)])
    report = job.report()
    assert len(report.html.encode()) <= MAX_BYTES
    assert "Of 30,000 answered requests" in section(report, "distributions")
    assert "estimated from an evenly spaced sample of" in section(report, "distributions")


JOB = JobRow("job-1", None, "a", "openai:m", "generate", b"{}", {}, JobPolicy(), 100.0, total=10)


def shard(ended_at, size):
    plain = dict.fromkeys(fields_dict(ShardRow))
    plain |= {"no": 1, "state": ShardState.SETTLED, "remote": RemoteProgress(), "cancelled": False}
    return evolve(ShardRow(**plain), size=size, ended_at=ended_at)


def test_each_batch_is_a_step_at_its_end():
    shards = [shard(300.0, 4), shard(200.0, 3), shard(None, 3)]
    chart = progress_chart(evolve(JOB, succeeded=7), shards, 400.0)
    steps = ((100.0, 0.0), (200.0, 0.0), (200.0, 3.0), (300.0, 3.0), (300.0, 7.0), (400.0, 7.0))
    assert (chart.points, chart.total) == (steps, 10)


def test_requests_in_real_time_are_a_line_up_to_now_or_to_the_end():
    running = progress_chart(evolve(JOB, succeeded=3, failed=1), [], 400.0)
    assert running.points == ((100.0, 0.0), (400.0, 4.0))
    done = progress_chart(evolve(JOB, succeeded=10, finished_at=250.0), [], 400.0)
    assert done.points == ((100.0, 0.0), (250.0, 10.0))


def test_it_has_the_deadline_and_the_expected_end():
    row = evolve(JOB, policy=JobPolicy(deadline=900.0))
    chart = progress_chart(row, [], 400.0, (500.0, 600.0))
    assert (chart.deadline, chart.expected) == (900.0, (500.0, 600.0))
