"""``smartbatch report``: of outputs and jobs, to a file, with a picture where there is a browser."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from smartbatch import BatchingClient
from smartbatch.cli import report_command
from smartbatch.cli.main import main
from smartbatch.tables.result_files import FIRST_COLUMNS, LAST_COLUMNS, write_table
from smartbatch.views.html import MAX_BYTES
from tests.frameworks.browser import browser
from tests.hostile import HOSTILE
from tests.levels import sampled

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def client(folder):
    with BatchingClient("sim:demo?latency=0&batch_seconds=0", batch_poll_interval=0.01) as client:
        yield client


def report(*args: str) -> int:
    return main(["report", *args])


def line(index: int, **changes: Any) -> dict[str, Any]:
    usage = {"input_tokens": 3, "output_tokens": 5}
    whole = {"index": index, "id": f"r{index}", "model": "sim:demo", "text": "SECRET", "usage": usage}
    return {**whole, "cost": 0.5, "latency": 0.25, "attempts": 1, "dropped": {}, "error": None, **changes}


def failed(index: int, message: str = "it broke") -> dict[str, Any]:
    return line(index, error={"kind": "timeout", "message": message}, cost=None)


def written(folder: Path, *lines: dict[str, Any]) -> str:
    (folder / "out.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return "out.jsonl"


def test_of_an_output_the_report_has_its_sums_and_no_answer(folder, capfd):
    assert report(written(folder, line(0), line(1, cost=None), failed(2)), "-o", "r.html") == 0
    assert "report of 3 requests in r.html" in capfd.readouterr().err
    html = (folder / "r.html").read_text("utf-8")
    assert "2 of 3 requests were answered, 1 failed. They cost $0.50, without 2 results" in html
    assert "it broke" in html
    assert "allow more time per call" in html
    assert "SECRET" not in html
    assert "the store has no job for it" in html


def test_of_lines_of_one_row_the_answered_one_counts(folder):
    path = written(folder, failed(0), line(1), failed(2, "first"), line(0), failed(2, "last"), failed(1))
    figures, _ = report_command.figures_of_output(path)
    status = figures.status()
    assert (status.total, status.completed, status.failed, status.cost) == (3, 2, 1, 1.0)
    assert [group.message for group in figures.seen.failures.largest()] == ["last"]


def test_the_report_scores_answers_against_a_column(folder, capfd):
    rows = [
        line(at, input={"mood": label}, text=text)
        for at, (label, text) in enumerate(
            [("Good", "good"), ("bad", "good"), ("bad", "SECRET"), ("", "bad")]
        )
    ]
    path = written(folder, *rows)
    assert report(path, "-o", "r.html", "--label-column", "mood") == 0
    html = (folder / "r.html").read_text("utf-8")
    assert "33.3 % (95 %: 6.1 to 79.2 %) of 3 answers equal the label (mood)." in html
    assert "Not scored: 1 row without a label." in html
    assert "SECRET" not in html
    assert "secret" not in html
    capfd.readouterr()
    assert report(path, "-o", "r.html", "--label-column", "moo") == 2
    assert "no row has a label in the column 'moo'" in capfd.readouterr().err
    assert report(path, "-o", "r.html", "--label-field", "mood") == 2
    assert report("a-job", "-o", "r.html", "--label-column", "mood") == 1


def test_skipped_rows_are_no_failed_requests(folder, capfd):
    skipped = {"kind": "row_skipped", "message": "skipped: blank `text`"}
    rows = (line(0), *(line(index, error=skipped, text=None, cost=0.0) for index in (1, 2)), failed(3))
    path = written(folder, *rows)
    assert report(path, "-o", "r.html") == 0
    assert "report of 2 requests in r.html" in capfd.readouterr().err
    html = (folder / "r.html").read_text("utf-8")
    assert "1 of 2 requests were answered, 1 failed. They cost $0.50" in html
    assert "2 rows were skipped." in html
    assert "rows skipped, not sent" in html
    assert "blank" not in html
    figures, _ = report_command.figures_of_output(path)
    assert figures.counts == {"succeeded": 1, "failed": 1, "skipped": 2, "unpriced": 1}


def test_a_torn_last_line_is_left_out(folder):
    path = written(folder, line(0))
    with open(path, "a") as file:
        file.write('{"index": 1, "id')
    assert report_command.output_report(path, (), 0.0).requests == 1


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        '{"index": -1, "error": null}',
        '{"index": 1e999, "error": null}',
        '{"index": 999999999999, "error": null}',
        '{"index": 0, "error": "x"}',
        '{"index": 0, "error": null, "cost": "1"}',
        '{"index": 0, "error": null, "cost": -1}',
        f'{{"index": 0, "error": null, "cost": {10**400}}}',
        '{"index": 0, "error": null, "usage": 7}',
        '{"index": 0, "error": null, "dropped": 7}',
    ],
)
def test_a_file_that_is_no_output_is_refused(folder, text, capfd):
    (folder / "x.jsonl").write_text(text + "\n")
    assert report("x.jsonl") == 2
    assert "x.jsonl: line 1 is no" in capfd.readouterr().err
    assert not (folder / "report.html").exists()


def told(path: str) -> dict[str, Any]:
    figures, _ = report_command.figures_of_output(path)
    seen = figures.seen
    return {
        "status": figures.status(),
        "models": figures.models,
        "tokens": (seen.input_tokens, seen.output_tokens),
        "dropped": seen.dropped,
        "sample": seen.sample.sampled(),
        "failures": seen.failures.largest(),
    }


FORMATS = ("csv", "parquet")


@pytest.mark.parametrize("format", sampled(FORMATS))
def test_the_report_of_a_table_tells_what_that_of_the_lines_tells(folder, format):
    lines = [
        line(0, latency=0.5, dropped={"seed": "not known to the model"}),
        line(1, cost=None, attempts=3, parsed={"cost": 7.5, "label": "ä"}),
        failed(2, "row 2: it broke"),
    ]
    path = written(folder, *lines)
    for each in lines:
        each |= {"finish_reason": "stop", "input": {"cost": "9", "id": "own"}, "key": f"{each['index']:064x}"}
    with open(f"out.{format}", "wb") as file:
        write_table(format, lambda: iter(lines), file)
    expected = told(path)
    assert (expected["status"].cost, *expected["tokens"]) == (0.5, 9, 15)
    assert [group.example for group in expected["failures"]] == ["r2"]
    assert told(f"out.{format}") == expected


@pytest.mark.parametrize("format", sampled(FORMATS))
def test_results_of_a_job_are_an_output_too_as_lines_and_as_a_table(client, folder, format):
    client.submit_batch(["a", "b"], key="letters").wait(20)
    for name in ("results.jsonl", f"results.{format}"):
        assert main(["jobs", "results", "letters", "-o", name]) == 0
    expected = told("results.jsonl")
    assert expected["status"].completed == 2
    assert expected["tokens"][1] > 0
    assert told(f"results.{format}") == expected


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (None, "was not written by smartbatch run or jobs results"),
        ({"index": "x"}, "line 2 has no index"),
        ({"index": "-1"}, "row 1 is not a result"),
        ({"cost": "much"}, "row 1 is not a result"),
        ({"output_tokens": "nan"}, "row 1 is not a result"),
        ({"dropped": "[1]"}, "row 1 is not a result"),
    ],
)
def test_a_table_that_is_no_output_is_refused_by_its_report(folder, row, what, capfd):
    names = [*FIRST_COLUMNS, *LAST_COLUMNS] if row is not None else ["a", "b"]
    cells = {"index": "0", **(row or {})}
    (folder / "x.csv").write_text(
        ",".join(names) + "\n" + ",".join(cells.get(name, "") for name in names) + "\n"
    )
    assert report("x.csv") == 2
    said = capfd.readouterr().err
    assert f"x.csv: {what}; pass a job, or an output of smartbatch run or jobs results" in said


def test_the_job_of_an_output_is_found_in_the_store(folder):
    (folder / "in.txt").write_text("a\nb\n")
    by_batch = ["--strategy", "batch", "--batch-poll-interval", "0.01", "--quiet"]
    model = "sim:demo?batch_seconds=0"
    assert main(["run", "in.txt", "--model", model, "-o", "out.jsonl", *by_batch]) == 0
    assert report("out.jsonl") == 0
    html = (folder / "report.html").read_text("utf-8")
    assert "Route: batch" in html
    assert "2 requests, about " in html
    assert "<caption>Batches</caption>" in html


@pytest.mark.parametrize("name", ["out.jsonl", pytest.param("out.csv", marks=pytest.mark.full)])
def test_a_run_in_real_time_leaves_the_decision_for_its_report(folder, name):
    for rows in ("a\nb\n", "c\nd\ne\n"):
        (folder / "in.txt").write_text(rows)
        (folder / name).unlink(missing_ok=True)
        model = "sim:demo?latency=0"
        assert (
            main(["run", "in.txt", "--model", model, "-o", name, "--quiet", "--strategy", "individual"]) == 0
        )
    assert report(name) == 0
    html = (folder / "report.html").read_text("utf-8")
    assert html.count("Route: individual") == 1
    assert "3 requests, about " in html
    assert "Forecast and outcome of " in html
    assert "3 of 3 requests were answered in" in html


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["individual", "batch"])
def test_outputs_of_one_name_in_two_folders_have_reports_of_their_own(folder, strategy):
    model = ["--model", "sim:demo?latency=0&batch_seconds=0", "--quiet", "--strategy", strategy]
    if strategy == "batch":
        model += ["--batch-poll-interval", "0.01"]
    for name, rows in (("one", "a\nb\n"), ("two", "c\nd\ne\n")):
        (folder / name).mkdir()
        (folder / "in.txt").write_text(rows)
        assert main(["run", "in.txt", *model, "-o", f"{name}/out.jsonl"]) == 0
    shutil.copytree("one", "copied")
    for name, told in (
        ("one", "2 requests, about"),
        ("two", "3 requests, about"),
        ("copied", "store has no job for it"),
    ):
        assert report(f"{name}/out.jsonl") == 0
        html = (folder / "report.html").read_text("utf-8")
        assert told in html
        assert html.count("Route: ") == (name != "copied")


def test_of_a_job_by_id_and_by_key(client, folder):
    job = client.submit_batch(["a", "b"], key="letters")
    job.wait(20)
    for name in (job.id, "letters"):
        assert report(name) == 0
        assert "<title>Job letters – smartbatch report</title>" in (folder / "report.html").read_text("utf-8")


def test_a_job_that_is_not_there_is_told(client, capfd):
    assert report("nobody", "--store", "none.db") == 1
    place = Path("none.db").absolute()
    assert f"'nobody' is not a file, and there is no store at {place}" in capfd.readouterr().err
    assert not Path("none.db").exists()
    client.submit_batch(["a"]).wait(20)
    assert report("nobody") == 1
    assert "has no job with the id or key 'nobody'" in capfd.readouterr().err


def test_only_a_report_is_replaced(folder, capfd):
    path = written(folder, line(0))
    assert report(path, "-o", "r.html") == report(path, "-o", "r.html") == 0
    (folder / "mine.html").write_text("<!doctype html><title>mine</title>")
    assert report(path, "-o", "mine.html") == 2
    assert report(path, "-o", path) == 2
    told = capfd.readouterr().err
    assert "mine.html: already exists and is not a report" in told
    assert "out.jsonl: a report is HTML" in told
    assert "mine" in (folder / "mine.html").read_text()


def test_a_picture_without_a_browser_is_refused(folder, monkeypatch, capfd):
    path = written(folder, line(0))
    monkeypatch.setenv("PATH", str(folder))
    assert report(path, "--png") == 2
    assert "a picture needs Chromium, Chrome or Edge, and none is installed" in capfd.readouterr().err
    assert not (folder / "report.html").exists()


@pytest.mark.full
def test_a_picture_is_as_high_as_the_report(folder):
    report_command.browser()
    assert report(written(folder, line(0), failed(1)), "--png") == 0
    picture = (folder / "report.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    width, height = int.from_bytes(picture[16:20], "big"), int.from_bytes(picture[20:24], "big")
    assert width == 1100
    assert 1000 < height < 3000


@pytest.mark.parametrize("name", sampled(HOSTILE))
def test_texts_of_a_file_stay_text(folder, name):
    text = HOSTILE[name]
    error = {"kind": text, "message": text}
    path = written(folder, line(0, model=text, dropped={text: text}), line(1, id=text, error=error))
    page = report_command.output_report(path, (), 0.0).html
    assert "<script>" not in page
    assert "<img" not in page
    assert len(page.encode()) < MAX_BYTES


@pytest.mark.full
def test_a_report_of_a_large_output_is_small(folder):
    with open("out.jsonl", "w") as file:
        for number in range(100_000):
            file.write(
                json.dumps(line(number) if number % 3 else failed(number, f"row {number + 10_000}: no"))
                + "\n"
            )
    figures, _ = report_command.figures_of_output("out.jsonl")
    assert (figures.counts["succeeded"], figures.counts["failed"]) == (66_666, 33_334)
    assert figures.seen.sample.seen == 66_666
    assert [group.count for group in figures.seen.failures.largest()] == [33_334], (
        "numbers tell no groups apart"
    )
    assert len(report_command.output_report("out.jsonl", (), 0.0).html.encode()) <= MAX_BYTES


@pytest.mark.full
def test_a_browser_shows_a_report_without_a_complaint(client, folder):
    job = client.submit_batch([f"prompt {number}" for number in range(50)])
    job.wait(20)
    job.report().save(folder / "job.html")
    with browser(folder) as page:
        page.get((folder / "job.html").as_uri())
        assert page.title == f"Job {job.id} – smartbatch report"
        assert page.get_log("browser") == []
        loaded = page.execute_script("return performance.getEntriesByType('resource').length")
        assert loaded == 0
        font = page.execute_script("return getComputedStyle(document.querySelector('h1')).fontSize")
        assert font == "32px", "the style sheet is in force"
        wide = page.execute_script("return document.documentElement.scrollWidth > innerWidth")
        assert not wide
