"""What a list tells its user: messages while it runs, and its report."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
from jobs.remote import Remote

from smartbatch import BatchingClient, Price, ResultList
from smartbatch.views.html import MAX_BYTES


@pytest.fixture
def client(client_of, clock, tmp_path):
    remote = Remote(clock, latency=1.0, turnaround=600.0, priced=True)
    price = {"remote:default": Price(input=1000.0, output=1000.0)}
    return client_of(remote, store=f"{tmp_path}/jobs.db", prices=price, max_tokens=10)


def words_of(page: str, name: str) -> str:
    found = re.search(rf'<section id="{name}".*?</section>', page, re.DOTALL)
    assert found is not None
    return " ".join(re.sub(r"<[^>]*>", " ", found[0]).split())


@pytest.mark.parametrize("strategy", ["individual", "hybrid", pytest.param("batch", marks=pytest.mark.full)])
def test_a_list_has_a_report_with_its_decision_and_the_alternatives(client, strategy, tmp_path):
    results = client.generate([f"a secret prompt {n}" for n in range(12)], strategy=strategy)
    report = results.report()
    page = report.html
    assert len(page.encode()) <= MAX_BYTES
    assert "requests 12 model remote:default kind generate" in words_of(page, "asked")
    route = words_of(page, "route")
    assert f"Route: {strategy}" in route
    assert "was requested" in route
    cost = words_of(page, "cost")
    assert re.search(r"actual \$[\d.]+ \(\$[\d.]+ to \$[\d.]+\) \$[\d.]+ .* always individual", cost), cost
    assert "For the other routes, the cost is calculated" in cost
    assert "accepted" in words_of(page, "time")
    assert "Incidents are recorded only for jobs" in words_of(page, "incidents")
    assert "secret" not in page
    report.save(tmp_path / "list.html")
    assert (tmp_path / "list.html").read_text("utf-8") == page


def test_a_list_that_was_read_lazily_says_what_came(client):
    report = client.generate(str(number) for number in range(5)).report()
    assert "Route: individual" in words_of(report.html, "route")
    assert "5 of 5 requests were answered" in report.html


def test_results_that_were_put_together_elsewhere_have_no_report(client):
    results = client.generate(["a", "b"])
    for others in (ResultList(results), pickle.loads(pickle.dumps(results))):
        assert [result.text for result in others] == results.texts
        with pytest.raises(ValueError, match=r"job\.report\(\)"):
            others.report()


def test_a_list_that_was_sent_as_a_job_has_the_report_of_the_job(client):
    results = client.submit_and_wait(["a", "b"], key="letters")
    assert "Job letters" in results.report().html


ClientOf = Callable[..., BatchingClient]
PROMPTS = [f"question {n}" for n in range(30)]


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "smartbatch"]


@pytest.mark.parametrize("key", [None, "labels"])
def test_only_a_list_that_is_sent_as_a_batch_is_announced(client_of, clock, store, caplog, key):
    client = client_of(Remote(clock), store=store, prices={"remote:default": Price(1, 1)})
    assert client.generate(PROMPTS, strategy="individual").succeeded == 30
    assert messages(caplog) == []
    assert client.generate(PROMPTS, strategy="batch", key=key).succeeded == 30
    [told] = messages(caplog)
    assert told.startswith("remote:default: sent 30 requests as a batch: usually done in ")
    job = client.jobs()[0]
    again = f"smartbatch.job({job.id!r}).results()" if key is None else "the same call with key='labels'"
    assert f"The process may exit; {again} returns the answers" in told


def test_a_budget_without_max_tokens_warns_once(client_of, clock, caplog):
    settings: dict[str, Any] = {"budget": 5.0, "prices": {"remote:default": Price(1, 10)}, "parallelism": 3}
    client_of(Remote(clock, priced=True), max_tokens=10, **settings).generate(PROMPTS[:3])
    assert messages(caplog) == []
    client = client_of(Remote(clock, priced=True), **settings)
    client.generate(PROMPTS[:3])
    client.submit("one more").result()
    [told] = messages(caplog)
    assert "the budget can be exceeded by one call per worker (parallelism is 3)" in told
    assert told.endswith("set max_tokens")
