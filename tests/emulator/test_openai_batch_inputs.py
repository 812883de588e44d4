"""What OpenAI's uploads, creates and validation refuse."""

from __future__ import annotations

import openai
import pytest
import urllib3
from levels import sampled
from openai_batch_world import CHAT, KEY, line, world


@pytest.mark.parametrize(
    ("changes", "param"),
    sampled(
        [
            ({"endpoint": "/v1/completions2"}, "endpoint"),
            ({"completion_window": "7d"}, "completion_window"),
            ({"input_file_id": "file-none"}, "input_file_id"),
            ({"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
            ({"metadata": {"x" * 65: "x"}}, "metadata"),
            ({"metadata": {"x": "x" * 513}}, "metadata"),
        ],
        keep=2,
    ),
)
def test_a_create_with_a_wrong_field_is_refused(emu, customer, changes, param):
    asked = {
        "input_file_id": customer.upload([line(1)]).id,
        "endpoint": CHAT,
        "completion_window": "24h",
    } | changes
    with pytest.raises(openai.BadRequestError) as caught:
        customer.sdk.batches.create(**asked)
    assert caught.value.param == param
    assert customer.sdk.batches.list().data == []
    assert emu.ledger.summary()["batches"]["created"] == 0


def test_results_are_no_input(customer):
    output = customer.run(1).output_file_id
    with pytest.raises(openai.BadRequestError):
        customer.sdk.batches.create(input_file_id=output, endpoint=CHAT, completion_window="24h")


def test_uploads_are_checked(emu, customer):
    with pytest.raises(openai.BadRequestError, match="jsonl"):
        customer.upload([line(1)], name="job.txt")
    with pytest.raises(openai.BadRequestError, match="expires_after"):
        customer.sdk.files.create(
            file=("a.jsonl", b"x"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 5}
        )
    kept = customer.sdk.files.create(
        file=("a.jsonl", b"x"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert kept.expires_at - kept.created_at == 3600
    for fields, said in (
        ({"file": ("a.jsonl", b"x")}, "purpose"),
        ({"purpose": "batch"}, "file"),
        (None, "multipart"),
    ):
        answer = urllib3.request("POST", f"{emu.base_url}/files", fields=fields, headers=KEY)
        assert answer.status == 400
        assert said in answer.json()["error"]["message"]
    assert urllib3.request("PUT", f"{emu.base_url}/files", headers=KEY).status == 405


def test_an_upload_keeps_every_byte(customer):
    """Line ends, marks that look like the form's, and bytes that are no text."""
    data = b'\r\n--\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n\x00\xff' + b"\r\n" * 5
    assert customer.sdk.files.content(customer.upload(data).id).read() == data


@pytest.mark.full
def test_large_uploads_are_taken_whole_or_in_chunks(emu, customer):
    data = b"x" * (40 * 1024 * 1024)
    assert customer.upload(data).bytes == len(data)
    head = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
    head += b'Content-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    answer = urllib3.request(
        "POST",
        f"{emu.base_url}/files",
        body=iter([head, data, b"\r\n--b--\r\n"]),
        headers={**KEY, "content-type": "multipart/form-data; boundary=b"},
    )
    assert answer.json()["bytes"] == len(data)
    assert urllib3.request("POST", f"{emu.base_url}/responses", headers=KEY, body=data).status == 413


# validation


@pytest.mark.parametrize(
    ("lines", "code", "number"),
    sampled(
        [
            ([line(0), b"{not json\n"], "invalid_json_line", 2),
            ([line(0), b"[]\n"], "invalid_json_line", 2),
            ([line(0), b'{"custom_id": NaN}\n'], "invalid_json_line", 2),
            ([line(0), line(1), line(0)], "duplicate_custom_id", 3),
            ([line(0, custom_id=None)], "invalid_request", 1),
            ([line(0, custom_id="")], "invalid_request", 1),
            ([line(0, method="GET")], "invalid_request", 1),
            ([line(0), b"\n", line(1, url="/v1/responses")], "url_mismatch", 3),
            ([line(0, body=None)], "invalid_request", 1),
            ([line(0, body={})], "invalid_request", 1),
            ([line(0), line(1, body={"model": "other"})], "model_mismatch", 2),
            ([b"\n\n"], "empty_file", None),
            ([line(0), line(1), line(2), line(3)], "too_many_tasks", None),
            ([line(0, "x" * 5000)], "file_too_large", None),
        ],
        keep=4,
    ),
)
def test_a_wrong_input_file_fails_the_validation(lines, code, number):
    """The batch exists, then fails; its errors name the line; nothing is billed and there are no results."""
    with world(batch_max_lines=3, batch_max_bytes=4000) as (emu, customer):
        batch = customer.run(lines)
        assert batch.status == "failed"
        assert batch.failed_at is not None
        assert (batch.errors.data[0].code, batch.errors.data[0].line) == (code, number)
        assert (batch.output_file_id, batch.error_file_id) == (None, None)
        assert batch.request_counts.model_dump() == {"total": 0, "completed": 0, "failed": 0}
        assert emu.ledger.summary()["batches"]["lines_billed"] == 0


def test_a_model_that_does_not_exist_fails_the_validation():
    with world(models=["other"]) as (_, customer):
        assert customer.run().errors.data[0].code == "model_not_found"


def test_too_many_texts_to_embed_fail_the_validation(customer):
    body = {"model": "m", "input": ["a"] * 2000}
    given = [line(number, url="/v1/embeddings", body=body) for number in range(26)]
    assert customer.run(given, endpoint="/v1/embeddings").errors.data[0].code == "too_many_tasks"


def test_a_batch_above_the_enqueued_tokens_fails_or_is_refused():
    with world(batch_enqueued_tokens=15, batch_turnaround=3600) as (emu, customer):
        big = {"model": "m", "max_tokens": 5000, "messages": [{"role": "user", "content": "prompt 0"}]}
        first = customer.create([line(0, body=big), *(line(number) for number in range(1, 5))])
        assert first.status == "in_progress", "only prompts are counted, not what may come out"
        failed = customer.create()
        failed = customer.sdk.batches.retrieve(failed.id)
        assert (failed.status, failed.errors.data[0].code) == ("failed", "token_limit_exceeded")
        emu.configure(batch_enqueued_refusal="early")
        with pytest.raises(openai.RateLimitError) as caught:
            customer.create()
        assert caught.value.code == "token_limit_exceeded"
        customer.sdk.batches.cancel(first.id)
        again = customer.sdk.batches.create(
            input_file_id=failed.input_file_id, endpoint=CHAT, completion_window="24h"
        )
        assert again.status == "in_progress"
