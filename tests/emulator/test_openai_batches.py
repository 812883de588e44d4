"""OpenAI's batches over HTTP, with the real SDK."""

from __future__ import annotations

import hashlib
import time

import openai
import pytest
from levels import sampled
from openai_batch_world import CHAT, ENDS, Customer, line, until, world
from raw_client import RawClient, chat

from smartbatch.testing import answer_for


def test_a_batch_from_the_upload_to_the_deletion(emu, customer):
    """All calls of the SDK; every answer is that of a real-time call, and is recorded as delivered."""
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


@pytest.mark.full
def test_a_running_batch_tells_its_progress(emu, customer):
    emu.configure(batch_validating=3600)
    assert customer.create().status == "validating"
    emu.configure(batch_validating=0, batch_turnaround=0.4)
    seen = []
    batch = customer.create(20)
    while batch.status != "completed":
        seen.append((batch.status, batch.request_counts.completed))
        assert (batch.output_file_id, batch.error_file_id, batch.usage) == (None, None, None)
        batch = customer.sdk.batches.retrieve(batch.id)
    assert {status for status, _ in seen} <= {"in_progress", "finalizing"}
    assert [count for _, count in seen] == sorted(count for _, count in seen)
    assert customer.sdk.batches.list().data[1].request_counts.total == 0


def test_lists_come_in_pages(customer):
    """Newest first, followed with ``after``; files also the other way round and by purpose."""
    names = [customer.create(1).id for _ in range(5)][::-1]
    page = customer.sdk.batches.list(limit=2)
    assert ([batch.id for batch in page.data], page.has_more) == (names[:2], True)
    assert [batch.id for batch in page] == names
    assert [batch.id for batch in customer.sdk.batches.list(after=names[3], limit=100)] == names[4:]
    files = [file.id for file in customer.sdk.files.list(purpose="batch", limit=3)]
    assert len(files) == 5
    assert [file.id for file in customer.sdk.files.list(purpose="batch", order="asc")] == files[::-1]
    assert len(list(customer.sdk.files.list())) == 10
    for wrong in ({"limit": 0}, {"limit": 101}, {"after": "batch_none"}):
        with pytest.raises(openai.BadRequestError):
            customer.sdk.batches.list(**wrong)


def test_a_result_file_says_its_size(customer):
    batch = customer.run()
    file = customer.sdk.files.retrieve(batch.output_file_id)
    assert (file.purpose, file.bytes) == ("batch_output", len(customer.sdk.files.content(file.id).read()))
    assert file.bytes in [each.bytes for each in customer.sdk.files.list()]


# ends


def test_a_batch_in_which_everything_failed_has_only_an_error_file(customer):
    batch = customer.run([line(0, body={"model": "m", "messages": []}), line(1, body={"model": "m"})])
    assert (batch.status, batch.output_file_id) == ("completed", None)
    assert batch.request_counts.model_dump() == {"total": 2, "completed": 0, "failed": 2}
    for found in customer.lines(batch.error_file_id).values():
        assert found["response"]["status_code"] == 400
        assert found["response"]["body"]["error"]["param"] == "messages"


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


def test_what_did_not_run_before_the_expiry_is_not_counted_as_failed():
    """Finished lines in the output file, the others in the error file; the counts do not add up."""
    with world(batch_faults={"expire_part": 1.0}) as (emu, customer):
        batch = customer.run(5)
        assert batch.status == "expired"
        assert batch.expired_at is not None
        assert batch.request_counts.model_dump() == {"total": 5, "completed": 2, "failed": 0}
        assert set(customer.lines(batch.output_file_id)) == {"id-0", "id-1"}
        unrun = customer.lines(batch.error_file_id)
        assert {found["error"]["code"] for found in unrun.values()} == {"batch_expired"}
        assert [found["response"] for found in unrun.values()] == [None] * 3
        assert emu.ledger.summary()["batches"]["lines_billed"] == 2


@pytest.mark.full
def test_a_cancelled_batch_keeps_its_finished_lines():
    """While it is cancelling there are no files; afterwards both; a second cancel is no error."""
    with world(batch_turnaround=3.0, batch_cancel_seconds=0.2) as (_, customer):
        name = customer.create(20).id
        batch = until(
            lambda: customer.sdk.batches.retrieve(name), lambda batch: batch.request_counts.completed > 0
        )
        cancelling = customer.sdk.batches.cancel(batch.id)
        assert (cancelling.status, cancelling.output_file_id) == ("cancelling", None)
        batch = until(lambda: customer.sdk.batches.retrieve(batch.id), lambda batch: batch.status in ENDS)
        assert batch.status == "cancelled"
        assert batch.cancelling_at <= batch.cancelled_at
        done, unrun = customer.lines(batch.output_file_id), customer.lines(batch.error_file_id)
        assert len(done) == batch.request_counts.completed > 0
        assert len(done) + len(unrun) == 20
        assert {found["error"]["code"] for found in unrun.values()} == {"batch_cancelled"}
        assert batch.request_counts.failed == 0
        assert customer.sdk.batches.cancel(batch.id).status == "cancelled"


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
    """Lines run, and are billed, also when the client is away; after the end of the emulator nothing is."""
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
