"""OpenAI's batches over HTTP, with the real SDK."""

from __future__ import annotations

import hashlib
import json
import time

import httpx2
import openai
import pytest
import urllib3
from levels import sampled
from openai_batch_world import CHAT, KEY, Customer, line, read, until, world
from raw_client import RawClient, chat, request_bytes

from smartbatch.testing import answer_for


def test_a_batch_from_the_upload_to_the_deletion(emu, customer):
    emu.configure(batch_turnaround=0.05)
    file = customer.upload([line(number) for number in range(5)])
    assert (file.filename, file.purpose, file.status) == ("job.jsonl", "batch", "processed")
    assert customer.sdk.files.retrieve(file.id) == file
    assert file.expires_at - file.created_at == 30 * 86_400
    batch = customer.sdk.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"sb": "nonce"}
    )
    assert batch.status in ("in_progress", "finalizing", "completed")
    batch = until(lambda: customer.sdk.batches.retrieve(batch.id), lambda batch: batch.status == "completed")
    assert (batch.input_file_id, batch.metadata, batch.model) == (file.id, {"sb": "nonce"}, "m")
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    assert batch.expires_at - batch.created_at == 86_400
    assert batch.request_counts.model_dump() == {"total": 5, "completed": 5, "failed": 0}
    assert batch.error_file_id is None
    assert [each.id for each in customer.sdk.batches.list()] == [batch.id]
    found = customer.lines(batch.output_file_id)
    tokens = 0
    for number in range(5):
        answer = found[f"id-{number}"]
        assert (answer["error"], answer["response"]["status_code"]) == (None, 200)
        body = openai.types.chat.ChatCompletion.model_validate(answer["response"]["body"])
        assert body.choices[0].message.content == answer_for(f"prompt {number}", "m")
        tokens += body.usage.total_tokens
    assert batch.usage.total_tokens == tokens
    [record] = emu.ledger.batches
    assert record.state == "completed"
    assert all(each.delivered and each.billed for each in record.lines.values())
    assert record.lines[2].prompt == hashlib.sha256(b"prompt 2").hexdigest()
    for name in (file.id, batch.output_file_id):
        assert customer.sdk.files.delete(name).deleted
        with pytest.raises(openai.NotFoundError):
            customer.sdk.files.content(name)


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [("/v1/responses", {"input": "hello"}), ("/v1/embeddings", {"input": ["a", "b"], "dimensions": 4})],
)
def test_other_endpoints_take_batches_too(customer, endpoint, body):
    batch = customer.run([line(1, url=endpoint, body={"model": "m", **body})], endpoint=endpoint)
    answer = customer.lines(batch.output_file_id)["id-1"]["response"]["body"]
    if endpoint == "/v1/responses":
        assert answer["output"][0]["content"][0]["text"] == answer_for("hello", "m")
    else:
        assert sorted(item["index"] for item in answer["data"]) == [0, 1]
        assert {len(item["embedding"]) for item in answer["data"]} == {4}


def test_a_result_file_says_its_size(customer):
    batch = customer.run()
    file = customer.sdk.files.retrieve(batch.output_file_id)
    assert (file.purpose, file.bytes) == ("batch_output", len(customer.sdk.files.content(file.id).read()))
    assert file.bytes in [each.bytes for each in customer.sdk.files.list()]


# ends


def test_lines_cannot_be_streamed(customer):
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    found = customer.lines(customer.run([line(0, body=body)]).error_file_id)
    assert found["id-0"]["response"]["body"]["error"]["param"] == "stream"


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    sampled(
        [
            ("status_zero", 0, None),
            ("item_error", 500, None),
            ("item_invalid", 400, "invalid_prompt"),
            ("no_money_lines", 429, "insufficient_quota"),
        ],
        keep=2,
    ),
)
def test_failed_lines_are_in_the_error_file(fault, status, code):
    with world(batch_faults={fault: 1.0}) as (emu, customer):
        batch = customer.run(3)
        assert batch.output_file_id is None
        for found in customer.lines(batch.error_file_id).values():
            response = found["response"]
            assert (response["status_code"], found["error"]) == (status, None)
            if status:
                assert response["body"]["error"]["code"] == code
            else:
                assert response["body"] == ""
        assert emu.ledger.summary()["batches"]["lines_billed"] == 0


def test_an_ended_batch_cannot_be_cancelled(customer):
    with pytest.raises(openai.ConflictError):
        customer.sdk.batches.cancel(customer.run(1).id)
    with pytest.raises(openai.NotFoundError):
        customer.sdk.batches.cancel("batch_none")


# keys and the ledger


def test_keys_are_checked_and_keep_their_things_apart():
    with world(keys=["k", "other"]) as (emu, customer), Customer(emu, "other") as other:
        batch = customer.run()
        assert other.sdk.batches.list().data == other.sdk.files.list().data == []
        for ask in (
            lambda: other.sdk.batches.retrieve(batch.id),
            lambda: other.sdk.files.content(batch.output_file_id),
            lambda: other.sdk.files.delete(batch.input_file_id),
        ):
            with pytest.raises(openai.NotFoundError):
                ask()
        with Customer(emu, "wrong") as unknown, pytest.raises(openai.AuthenticationError):
            unknown.sdk.batches.list()


def test_the_ledger_is_served_with_its_batches(emu, customer):
    customer.run(3)
    with RawClient(emu.port) as raw:
        raw.ask(chat("prompt 1"))
        page = raw.ask(method="GET", path="/_ledger", key=None)[2]
        assert page["batches"]["lines_billed"] == 3
        assert page["paid_twice"] == 1
        full = raw.ask(method="GET", path="/_ledger?full=1", key=None)[2]
        assert [each["custom_id"] for each in full["batch_records"][0]["lines"]] == ["id-0", "id-1", "id-2"]
        raw.ask(method="POST", path="/_ledger/reset", key=None)
        assert raw.ask(method="GET", path="/_ledger", key=None)[2]["batches"]["creates"] == 0
    assert customer.sdk.batches.list().data == []


@pytest.mark.full
def test_the_ledger_knows_what_became_due_without_anybody_asking(emu, customer):
    emu.configure(batch_turnaround=0.05)
    customer.create(3)
    until(lambda: emu.ledger.batches[0].state, lambda state: state == "completed")
    emu.configure(batch_turnaround=0.2)
    customer.create(3)
    emu.stop()
    figures = emu.ledger.summary()
    time_is_over = time.monotonic() + 0.25
    until(time.monotonic, lambda now: now > time_is_over)
    assert emu.ledger.summary() == figures


def test_a_create_whose_answer_is_lost_can_be_found_by_its_metadata():
    with world(batch_faults={"lost_create": 1.0}) as (emu, customer):
        with pytest.raises(openai.APIConnectionError):
            customer.create(metadata={"sb": "nonce"})
        [batch] = customer.sdk.batches.list().data
        assert batch.metadata == {"sb": "nonce"}
        assert emu.ledger.batches[0].outcome == "lost"
        assert emu.ledger.summary()["by_fault"] == {"reset": 1}


def test_results_are_gone_after_their_retention():
    with world(batch_retention=0) as (_, customer), pytest.raises(openai.NotFoundError):
        customer.sdk.files.content(customer.run().output_file_id)


def test_a_cut_download_looks_whole():
    with world(batch_faults={"cut_download": 1.0}) as (_, customer):
        output = customer.run(20).output_file_id
        first = customer.sdk.files.with_raw_response.content(output)
        assert "content-length" not in first.headers
        cut, whole = first.content, customer.sdk.files.content(output).read()
        assert whole.startswith(cut)
        assert len(cut) < len(whole)
        assert len(read(whole)) == 20


def test_spoiled_lines_leave_the_others_whole():
    faults = {0: "missing_lines", 1: "doubled_lines", 2: "malformed_lines", 3: "foreign_lines"}
    with world(
        batch_faults={"shuffled": 1.0}, batch_line_fault_for=lambda index, place, name: faults.get(place)
    ) as (emu, customer):
        data = customer.sdk.files.content(customer.run(10).output_file_id).read()
        found: list[str] = []
        broken = 0
        for row in data.split(b"\n")[:-1]:
            try:
                found.append(json.loads(row)["custom_id"])
            except ValueError:
                broken += 1
        assert broken == 1
        assert sorted(name for name in found if name.startswith("id-")) == [
            "id-1", "id-1", *(f"id-{number}" for number in range(3, 10)),
        ]  # fmt: skip
        assert len(found) == 10
        assert found != sorted(found)
        figures = emu.ledger.summary()["batches"]
        assert (figures["lines_billed"], figures["lines_delivered"], figures["lines_lost"]) == (10, 8, 2)


def test_compatible_servers_may_drop_what_a_batch_is_known_by(emu, customer):
    emu.configure(batch_echo_metadata=False, batch_echo_input_file=False)
    batch = customer.run(metadata={"sb": "nonce"})
    assert batch.metadata is None
    assert "input_file_id" not in batch.model_dump(exclude_unset=True)
    assert emu.ledger.batches[0].label == {"sb": "nonce"}


@pytest.mark.parametrize(
    ("fault", "error", "created"),
    sampled(
        [
            ("500", openai.InternalServerError, 1),
            ("503", openai.InternalServerError, 0),
            ("429", openai.RateLimitError, 0),
            ("reset", openai.APIConnectionError, 1),
            ("reset_before", openai.APIConnectionError, 0),
            ("hang", openai.APIConnectionError, 1),
            ("html", openai.InternalServerError, 1),
        ],
        keep=2,
    ),
)
def test_a_create_meets_the_faults_of_the_connection(fault, error, created):
    with world(fault_for=lambda index, fields: fault if fields["path"] == "/v1/batches" else None) as (
        emu,
        customer,
    ):
        with pytest.raises(error):
            customer.create()
        assert emu.ledger.summary()["batches"]["created"] == created


@pytest.mark.parametrize("fault", sampled(["truncated", "reset", "stall", "empty"], keep=1))
def test_a_download_that_broke_off_is_not_booked_as_delivered(fault):
    broken = [True]
    with world(
        fault_for=lambda index, fields: fault if fields["path"].endswith("content") and broken.pop() else None
    ) as (emu, customer):
        output = customer.run().output_file_id
        broken[:] = [False, True]
        try:
            assert customer.sdk.files.content(output).read() == b""
            assert fault == "empty"
        except (openai.APIConnectionError, httpx2.HTTPError):
            assert fault != "empty"
        assert emu.ledger.summary()["batches"]["lines_delivered"] == 0
        assert len(customer.lines(output)) == 5
        assert emu.ledger.summary()["batches"]["lines_delivered"] == 5


@pytest.mark.full
def test_lines_are_delivered_only_when_the_last_byte_has_left():
    with world(answers={f"prompt {number}": "x" * 4_000_000 for number in range(8)}) as (emu, customer):
        output = customer.run(8).output_file_id
        with RawClient(emu.port) as leaving:
            leaving.send(request_bytes(method="GET", path=f"/v1/files/{output}/content"))
            assert leaving.socket.recv(10)
        assert customer.sdk.batches.list().data
        assert emu.ledger.summary()["batches"]["lines_delivered"] == 0
        assert len(customer.lines(output)) == 8
        assert emu.ledger.summary()["batches"]["lines_delivered"] == 8


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
            ({"output_expires_after": {"anchor": "created_at", "seconds": 3599}}, "output_expires_after"),
            ({"output_expires_after": {"anchor": "ended_at", "seconds": 3600}}, "output_expires_after"),
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


def test_results_expire_when_the_create_call_says(customer):
    expiry = {"anchor": "created_at", "seconds": 3600}
    batch = customer.run([line(1)], output_expires_after=expiry)
    kept = customer.sdk.files.retrieve(batch.output_file_id)
    assert kept.expires_at - kept.created_at == 3600


def test_an_upload_keeps_every_byte(customer):
    data = b'\r\n--\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n\x00\xff' + b"\r\n" * 5
    assert customer.sdk.files.content(customer.upload(data).id).read() == data


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
