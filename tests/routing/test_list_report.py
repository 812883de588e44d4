"""The report of a list: by which route it went and why, and what is known of those it did not take."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs.remote import Remote

from smartbatch import BatchingClient, Price, ResultList
from smartbatch._clock import VirtualClock
from smartbatch.views.html import MAX_BYTES


@pytest.fixture
def client(client_of: Callable[..., BatchingClient], clock: VirtualClock, tmp_path: Path) -> BatchingClient:
    remote = Remote(clock, latency=1.0, turnaround=600.0, priced=True)
    price = {"remote:default": Price(input=1000.0, output=1000.0)}
    return client_of(remote, store=f"{tmp_path}/jobs.db", prices=price, max_tokens=10)


def words_of(page: str, name: str) -> str:
    found = re.search(rf'<section id="{name}".*?</section>', page, re.DOTALL)
    assert found is not None
    return " ".join(re.sub(r"<[^>]*>", " ", found[0]).split())


@pytest.mark.parametrize("strategy", ["individual", "hybrid", pytest.param("batch", marks=pytest.mark.full)])
def test_a_list_has_a_report_with_its_decision_and_the_alternatives(
    client: BatchingClient, strategy: str, tmp_path: Path
) -> None:
    results = client.generate([f"a secret prompt {n}" for n in range(12)], strategy=strategy)
    report = results.report()
    page = report.html
    assert len(page.encode()) <= MAX_BYTES
    assert "requests 12 model remote:default kind generate" in words_of(page, "asked")
    route = words_of(page, "route")
    assert f"Route: {strategy}" in route
    assert "was requested" in route
    cost = words_of(page, "cost")
    assert re.search(
        r"as it was done \$[\d.]+ \(\$[\d.]+ to \$[\d.]+\) \$[\d.]+ .* always individual", cost
    ), cost
    assert "Routes not taken were not measured" in cost
    assert "accepted" in words_of(page, "time")
    assert "Incidents are stored with jobs" in words_of(page, "incidents")
    assert "secret" not in page
    report.save(tmp_path / "list.html")
    assert (tmp_path / "list.html").read_text("utf-8") == page


def test_a_list_that_was_read_lazily_says_what_came(client: BatchingClient) -> None:
    report = client.generate(str(number) for number in range(5)).report()
    assert "Route: individual" in words_of(report.html, "route")
    assert "5 of 5 requests were answered" in report.html


def test_results_that_were_put_together_elsewhere_have_no_report(client: BatchingClient) -> None:
    results = client.generate(["a", "b"])
    for others in (ResultList(results), pickle.loads(pickle.dumps(results))):
        assert [result.text for result in others] == results.texts
        with pytest.raises(ValueError, match=r"job\.report\(\)"):
            others.report()


def test_a_list_that_was_sent_as_a_job_has_the_report_of_the_job(client: BatchingClient) -> None:
    results = client.submit_and_wait(["a", "b"], key="letters")
    assert "Job letters" in results.report().html
