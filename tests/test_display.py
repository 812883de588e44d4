"""Notebooks and shells show HTML of a few rows, and reprs that fit a screen."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest
from attrs import evolve

from smartbatch.client import BatchingClient
from smartbatch.config import BatchingConfig
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.jobs.records import StoredResult
from smartbatch.observe.participants import LaneStatus, Participant, Participants, RealtimeStatus
from smartbatch.prices import Price
from smartbatch.results import ResultList
from smartbatch.testing import MockProvider
from smartbatch.types import Answer, Generation, Message, Request, Result, Route

BIG = "x" * 100_000
SCRIPT = "<script>alert('&')</script>"


def answered(number: int, text: str = "") -> Result:
    return Result(f"r{number}", text=text or f"answer {number}", cost=0.5, route=Route.INDIVIDUAL)


def parsed(html: str) -> ElementTree.Element:
    """Raises if the HTML is not well-formed."""
    return ElementTree.fromstring(f"<div>{html}</div>")


def words(html: str) -> str:
    return " ".join(" ".join(parsed(html).itertext()).split())


def rows(html: str) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row] for row in parsed(html).iter("tr")]


def test_a_list_shows_its_sums_and_its_first_and_last_results():
    results = ResultList([answered(number) for number in range(1000)])
    results[999] = Result("r999", error=ProviderError("it broke"), route=Route.BATCH)
    html = results._repr_html_()
    assert "1,000 results: 999 succeeded, 1 failed; at least $499.50" in words(html)
    assert "individual 999, batch 1" in words(html)
    groups, shown = rows(html)[:2], rows(html)[3:]
    assert groups[1] == ["unknown", "it broke", "1", "999", "see the message, then send the rows again"]
    assert [row[0] for row in shown] == ["999", *"01234", "…", *map(str, range(994, 999))]
    assert shown[0][-1] == "ProviderError: it broke"
    assert shown[1][1:3] == ["answer 0", "individual"]


def test_a_short_list_is_shown_as_a_whole():
    results = ResultList([answered(number) for number in range(11)])
    assert [row[0] for row in rows(results._repr_html_())[1:]] == list(map(str, range(11)))


def test_a_list_shows_its_prompts_and_the_index_of_its_frame():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"text": [SCRIPT, BIG, "fine"]}, index=["k-1", "l-7", SCRIPT])
    provider = MockProvider(
        {f"Judge: {SCRIPT}": ProviderError(SCRIPT), f"Judge: {BIG}": BIG, "Judge: fine": "x"}
    )
    with BatchingClient("mock", provider=provider, retries=0) as client:
        results = client.generate(table, template="Judge: {text}")
    groups, shown = rows(results._repr_html_())[:2], rows(results._repr_html_())[2:]
    assert groups[1][:4] == ["unknown", SCRIPT, "1", "k-1"]
    assert [row[:2] for row in shown[:2]] == [["index", "prompt"], ["k-1", f"Judge: {SCRIPT}"]]
    assert [row[0] for row in shown[2:]] == ["l-7", SCRIPT]
    assert shown[2][1].startswith("Judge: xxx")
    assert "<script" not in results._repr_html_()
    assert len(results._repr_html_()) < 4_000
    assert [row[0] for row in rows(results.failures._repr_html_())[3:]] == ["k-1"]


def test_a_list_without_results_cost_nothing():
    assert repr(ResultList()) == "<ResultList 0 results: 0 succeeded; $0>"


def test_what_an_answer_holds_is_text_and_is_cut():
    html = ResultList([answered(0, SCRIPT), answered(1, BIG)])._repr_html_()
    assert "<script" not in html
    assert rows(html)[1][1] == SCRIPT
    assert len(html) < 2_000


def test_an_answer_that_is_no_text_is_told_by_its_kind():
    vector, found = Result("v", embedding=array("f", [0.5] * 768)), Result("p", parsed={"city": "Rome"})
    assert [row[1] for row in rows(ResultList([vector, found])._repr_html_())[1:]] == [
        "a vector of 768",
        "{'city': 'Rome'}",
    ]


def test_a_plan_shows_its_table_with_the_chosen_route_in_bold():
    options = {"api_key": "sk-secret", "base_url": "http://127.0.0.1:9/v1"}
    with BatchingClient("openai:gpt-5-mini", provider_options=options) as client:
        plan = client.plan([f"Summarise {n}" for n in range(500)], deadline="20h", prefer="cost")
    html = plan._repr_html_()
    routes = [option.route.value for option in plan.options]
    assert {row[0].split(" (")[0] for row in rows(html)[1:]} >= set(routes)
    assert next(parsed(html).iter("b")).text == plan.route.value
    assert plan.reason in words(html)
    assert "sk-secret" not in html


def test_a_job_and_its_status_show_how_it_stands(tmp_path):
    model = "sim:demo?latency=0&batch_seconds=0"
    with BatchingClient(model, store=str(tmp_path / "jobs.db"), batch_poll_interval=0.01) as client:
        job = client.submit_batch(["a", "b"], key=f"labels {SCRIPT}")
        status = job.wait()
        for html in (job._repr_html_(), status._repr_html_()):
            assert next(parsed(html).iter("progress")).get("value") == "1"
            assert "2 total, 2 submitted, 2 completed, 0 failed" in words(html)
            assert "<script" not in html
        job.forget()
        assert repr(job) in words(job._repr_html_())
        shard = status.shards[0]
        many = evolve(
            status, state="active", shards=tuple(evolve(shard, no=n, state="ready") for n in range(500))
        )
        assert "490 more batches" in words(many._repr_html_())
        assert len(repr(many)) < 2_000


def test_metrics_show_the_figures_that_are_not_zero_and_what_they_mean():
    with BatchingClient("sim:demo?latency=0") as client:
        client.submit("a").result()
    found = {row[0]: row for row in rows(client.metrics._repr_html_())}
    assert found["submitted"] == ["submitted", "1", "Requests accepted, including joined ones."]
    assert "mean" in found["response_time"][1]
    assert "failed" not in found
    assert repr(client.metrics).startswith("<BatchMetrics 1 submitted: 0 waiting, 0 in flight, 1 succeeded")


VALUES: dict[str, Callable[[], Any]] = {
    "results": lambda: ResultList([answered(number, BIG) for number in range(100)]),
    "result": lambda: Result(
        BIG,
        text=BIG,
        parsed={"a": [BIG] * 10, "b": {str(number): number for number in range(1000)}},
        embedding=array("f", [0.1] * 3072),
        context=[BIG] * 5,
        error=ProviderError(BIG),
        dropped=((BIG, BIG),) * 10,
    ),
    "request": lambda: Request(
        (Message("user", BIG),) * 20,
        params=Generation(
            BIG, stop=(BIG,) * 4, schema={BIG: BIG}, response_format={BIG: BIG}, extra={BIG: BIG}
        ),
        context=BIG,
        id=BIG,
        purpose=BIG,
        isolation_key=BIG,
    ),
    "message": lambda: Message("user", ({"type": "text", "text": BIG},) * 50),
    "answer": lambda: Answer(
        BIG, value=[BIG] * 9, embedding=array("f", [0.1] * 3072), dropped=((BIG, BIG),) * 9
    ),
    "stored result": lambda: StoredResult(0, 1, VALUES["result"]()),
    "settings": lambda: BatchingConfig(prices={f"model {n}": Price(1, 2) for n in range(500)}),
    "metrics": lambda: BatchingClient("sim:demo").metrics.snapshot(),
    "participants": lambda: Participants(
        place="here", processes=(VALUES["participant"](),) * 50, sums=dict.fromkeys(map(str, range(200)), 1.0)
    ),
    "participant": lambda: Participant(
        member="m",
        host="h",
        pid=1,
        library="0",
        started=0.0,
        sums=dict.fromkeys(map(str, range(200)), 1.0),
        errors=dict.fromkeys(ErrorKind, 1.0),
        realtime=RealtimeStatus(lanes=(LaneStatus(model="sim:demo"),) * 32),
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_repr_fits_a_screen(name):
    assert len(repr(VALUES[name]())) < 2_200
