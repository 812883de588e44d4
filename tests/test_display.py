"""Notebooks and shells show HTML of a few rows, and reprs that fit a screen."""

from __future__ import annotations

import base64
import io
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from attrs import evolve

from smartbatch.client import BatchingClient
from smartbatch.config import BatchingConfig
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.jobs.records import StoredResult
from smartbatch.media import returned_file
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


def test_images_are_shown_next_to_their_answers(tmp_path, monkeypatch):
    pictures = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    for name, size in {"large.png": (900, 600), "small.png": (30, 20), "gone.png": (30, 20)}.items():
        pictures.new("RGB", size, "red").save(name)
    Path("a.txt").write_text("words")
    pictures.new("1", (10_000, 6_000)).save("huge.png", compress_level=1)
    Path("broken.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    names = ["large.png", "small.png", "gone.png", "huge.png", "broken.png", "https://a.example/b.png?key"]
    rows_of_table = [{"photo": name, "scan": "a.txt", "note": SCRIPT} for name in names]
    with BatchingClient("mock", provider=MockProvider(lambda request: "ok")) as client:
        files: Any = {"photo": "image", "scan": "document"}
        results = client.generate(rows_of_table, template="{note}{photo}{scan}", files=files)
        preview = client.preview(rows_of_table[:1], sample=1, template="{photo}{scan}{note}", files=files)
    Path("gone.png").unlink()

    html = results._repr_html_()
    shown = [image.attrib for image in parsed(html).iter("img")]
    assert [image["alt"] for image in shown] == [f"the file '{tmp_path}/{name}'" for name in names[:2]]
    sizes = []
    for image in shown:
        content = base64.b64decode(image["src"].removeprefix("data:image/png;base64,"), validate=True)
        sizes.append(pictures.open(io.BytesIO(content)).size)
    assert sizes == [(173, 115), (30, 20)]
    cells = [row[1] for row in rows(html)[1:]]
    assert cells[0] == f"{SCRIPT} [large.png] [a.txt]"
    assert cells[5] == f"{SCRIPT} [the URL 'https://a.example/b.png'] [a.txt]"
    assert len(list(parsed(preview._repr_html_()).iter("img"))) == 1


def test_images_in_answers_are_shown():
    pictures = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    pictures.new("RGB", (30, 20)).save(file, "JPEG")
    html = ResultList([evolve(answered(0), files=(returned_file(file.getvalue()),))])._repr_html_()
    (image,) = parsed(html).iter("img")
    assert image.attrib["src"] == f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


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
        "a vector of length 768",
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
