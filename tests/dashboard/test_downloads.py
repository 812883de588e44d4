"""Results as files: as the command line writes them, for those who may have answers."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from smartbatch import BatchingClient, Message
from smartbatch.jobs.payload import encode_result
from smartbatch.jobs.shard_records import ShardState
from smartbatch.types import Result
from tests.jobs.stores import led, result, started

ROWS = 500


@pytest.fixture
def job_id(shelf, opened):
    job, lease = started(opened, shelf, ROWS)
    shard = led(opened, lease, opened.shards.plan(lease, shelf.shard(*range(ROWS))), ShardState.INGESTING)
    texts = [encode_result(Result(f"row-{ix}", text=f"answer é {ix} " + "x" * 300)) for ix in range(ROWS)]
    opened.shards.ingest(lease, shard, [result(ix, text=text) for ix, text in enumerate(texts)], at=1.0)
    return job.id


def test_json_lines_are_streamed_in_blocks(visitor, job_id):
    answer = visitor.get(f"/download/{job_id}?format=jsonl")
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{job_id}.jsonl"'
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert [line["index"] for line in lines] == list(range(ROWS))
    assert lines[7]["text"].startswith("answer é 7 x")
    _, body = visitor.open(f"/download/{job_id}?format=jsonl")
    assert len(list(body)) > 2


@pytest.mark.full
def test_tables_have_all_rows(visitor, job_id):
    rows = list(csv.DictReader(io.StringIO(visitor.get(f"/download/{job_id}?format=csv").body.decode())))
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(io.BytesIO(visitor.get(f"/download/{job_id}?format=parquet").body))
    assert [row["id"] for row in rows] == table["id"].to_pylist() == [f"row-{ix}" for ix in range(ROWS)]
    assert rows[3]["text"] == table["text"][3].as_py()


def test_no_cell_of_a_table_is_a_formula(visitor, shelf, opened):
    texts = ["=1+1", "+cmd", "-cmd", "@SUM(A1)", "\t=1", "-5", "plain"]
    job, lease = started(opened, shelf, len(texts))
    shard = led(
        opened, lease, opened.shards.plan(lease, shelf.shard(*range(len(texts)))), ShardState.INGESTING
    )
    stored = [encode_result(Result("", text=text)) for text in texts]
    opened.shards.ingest(lease, shard, [result(ix, text=text) for ix, text in enumerate(stored)], at=1.0)
    body = visitor.get(f"/download/{job.id}?format=csv").body.decode()
    cells = [row["text"] for row in csv.DictReader(io.StringIO(body, newline=""))]
    assert cells == ["'=1+1", "'+cmd", "'-cmd", "'@SUM(A1)", "'\t=1", "-5", "plain"]
    lines = visitor.get(f"/download/{job.id}?format=jsonl").body.splitlines()
    assert [json.loads(line)["text"] for line in lines] == texts


def test_a_download_holds_answers_so_it_needs_a_right(reader_of, visitor, job_id):
    reader = reader_of()
    assert "/download/" not in reader.get(f"/jobs/{job_id}").text
    assert reader.get(f"/download/{job_id}?format=jsonl").status == 403
    assert reader_of(show_content=True).get(f"/download/{job_id}?format=jsonl").status == 200
    assert "/download/" in visitor.get(f"/jobs/{job_id}").text


def test_what_cannot_be_downloaded_is_not_found(visitor, job_id):
    assert visitor.get(f"/download/{job_id}?format=exe").status == 404
    assert visitor.get("/download/nobody?format=csv").status == 404
    assert visitor.ask("HEAD", f"/download/{job_id}?format=csv").body == b""


@pytest.fixture
def real_job_id(shelf):
    options = {"store": shelf.place, "shared": "off", "batch_poll_interval": 0.01}
    with BatchingClient("sim:demo?batch_seconds=0", **options) as client:
        prompts = [f"question {ix}" for ix in range(28)] + ["question 26"]
        job = client.submit_batch([*prompts, [Message("system", "be brief"), Message("user", "why?")]])
        job.wait(60)
    return job.id


@pytest.mark.full
def test_prompts_and_answers_are_shown_only_with_content(visitor, reader_of, real_job_id):
    place = f"/answers/{real_job_id}"
    assert "Show answers" not in visitor.get(f"/jobs/{real_job_id}").text
    refused = visitor.get(place)
    assert (refused.status, "question" in refused.text) == (403, False)
    reader = reader_of(show_content=True)
    assert f'href="{place}">Show answers' in reader.get(f"/jobs/{real_job_id}").text
    seen = reader.get(place)
    assert "Input prompt question 0 Answer answer" in seen.words
    assert "question 25" not in seen.words
    (link,) = re.findall(r'href="([^"]*)">Next answers', seen.text)
    assert "Input prompt question 25 Answer answer" in reader.get(link).words
    assert reader.get(link).words.count("question 26") == 2
    assert "system: be brief user: why?" in reader.get(link).words
    assert "<form" not in seen.text


def test_answers_of_no_job_are_not_found(visitor, reader_of, opened):
    assert reader_of(show_content=True).get("/answers/nothing").status == 404
    assert visitor.get("/answers/nothing").status == 403
