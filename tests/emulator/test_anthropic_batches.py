"""The real anthropic SDK sends batches to the emulator, over HTTP and in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types.messages import MessageBatch
from virtual_service import START, VirtualService, check_odd_lines, one_batch

from smartbatch.testing import answer_for

MODEL = "claude-haiku-5-5"
ROOT = "/v1/messages/batches"
OLD = "x-api-key: k\r\nanthropic-version: 2023-06-01\r\n"


def sdk_of(virtual: VirtualService, key: str = "k") -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url="http://emulator.localhost", api_key=key, max_retries=0, http_client=virtual.client()
    )


def params(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 50, "messages": [{"role": "user", "content": prompt}], **fields}


def requests(count: int, mark: str = "j", **fields: Any) -> list[dict[str, Any]]:
    return [{"custom_id": f"{mark}-{n}", "params": params(f"{mark}{n}", **fields)} for n in range(count)]


def lines_of(sdk: anthropic.Anthropic, batch: str) -> list[tuple[str, str]]:
    found = []
    for line in sdk.messages.batches.results(batch):
        result = line.result
        kind = f"errored {result.error.error.type}" if result.type == "errored" else result.type
        found.append((line.custom_id, kind))
    return found


def counts_of(batch: MessageBatch) -> dict[str, int]:
    return {name: count for name, count in batch.request_counts.model_dump().items() if count}


def refusal_of(call: Callable[[], object]) -> str:
    with pytest.raises(anthropic.APIStatusError) as caught:
        call()
    error = caught.value.body["error"]
    return f"{caught.value.status_code} {error['type']}: {error['message']}"


def test_the_sdk_sends_a_batch_over_http_and_reads_its_answers(emu):
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0, timeout=10) as sdk:
        made = sdk.messages.batches.create(requests=requests(3))
        found = sdk.messages.batches.retrieve(made.id)
        assert (found.processing_status, counts_of(found)) == ("ended", {"succeeded": 3})
        assert found.results_url == f"{emu.url}{ROOT}/{made.id}/results"
        assert found.expires_at - found.created_at == timedelta(days=1)
        texts = {}
        for line in sdk.messages.batches.results(made.id):
            assert line.result.message.usage.service_tier == "batch"
            texts[line.custom_id] = line.result.message.content[0].text
        assert texts == {f"j-{n}": answer_for(f"j{n}", MODEL) for n in range(3)}
        assert [batch.id for batch in sdk.messages.batches.list()] == [made.id]
        assert sdk.messages.batches.delete(made.id).type == "message_batch_deleted"
        with pytest.raises(anthropic.NotFoundError):
            sdk.messages.batches.retrieve(made.id)
    [record] = emu.ledger.batches
    assert (record.id, record.outcome, record.state) == (made.id, "created", "completed")
    assert record.custom_id == "j-0"
    assert all(line.billed and line.delivered for line in record.lines.values())


def test_a_bearer_token_is_a_key_too_and_no_key_is_refused(raw):
    version = "anthropic-version: 2023-06-01\r\n"
    assert raw.ask(method="GET", path=ROOT, headers=version)[0] == 200
    assert raw.ask(method="GET", path=ROOT, headers=version, key=None)[0] == 401
    status, _, body = raw.ask(method="GET", path=ROOT)
    assert (status, body["error"]["message"]) == (400, "anthropic-version: header is required")
    assert raw.ask(method="PUT", path=ROOT, headers=OLD)[0] == 405
    assert raw.ask(method="GET", path=f"{ROOT}/a/b", headers=OLD)[0] == 404


def test_all_counters_but_processing_are_zero_until_the_batch_has_ended():
    virtual = VirtualService(batch_turnaround=100, batch_validating=10, batch_queueing=10)
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(10)).id
    for moment in (1, 15, 60, 99):
        virtual.now = START + moment
        found = sdk.messages.batches.retrieve(batch)
        assert (found.processing_status, found.results_url, found.ended_at) == ("in_progress", None, None)
        assert counts_of(found) == {"processing": 10}
    path = f"{ROOT}/{batch}/results"
    assert refusal_of(lambda: sdk.get(path, cast_to=object)).startswith("400 invalid_request_error")
    assert refusal_of(lambda: sdk.messages.batches.delete(batch)).startswith("400 invalid_request_error")
    virtual.now = START + 100
    found = sdk.messages.batches.retrieve(batch)
    assert (found.processing_status, counts_of(found)) == ("ended", {"succeeded": 10})
    assert found.ended_at - found.created_at == timedelta(seconds=100)


def test_what_has_not_run_after_a_day_expires_unbilled():
    virtual = VirtualService(batch_turnaround=200_000)
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(4)).id
    virtual.now = START + 86_400
    found = sdk.messages.batches.retrieve(batch)
    assert (found.processing_status, counts_of(found)) == ("ended", {"succeeded": 1, "expired": 3})
    assert sorted(kind for _, kind in lines_of(sdk, batch)) == ["expired"] * 3 + ["succeeded"]
    assert virtual.ledger.summary()["batches"]["lines_billed"] == 1


def test_results_are_gone_after_their_retention_and_the_batch_is_not():
    virtual = VirtualService(batch_retention=1000)
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(1)).id
    virtual.now = START + 999
    assert sdk.messages.batches.retrieve(batch).archived_at is None
    virtual.now = START + 1000
    found = sdk.messages.batches.retrieve(batch)
    assert (found.results_url, found.archived_at - found.ended_at) == (None, timedelta(seconds=1000))
    assert refusal_of(lambda: sdk.get(f"{ROOT}/{batch}/results", cast_to=object)).startswith("404 ")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "400 invalid_request_error: requests: Field required"),
        ({"requests": {}}, "400 invalid_request_error: requests: Input should be a valid list"),
        ({"requests": []}, "400 invalid_request_error: requests: List should have at least 1 item"),
        ({"requests": [1]}, "400 invalid_request_error: requests.0: Input should be"),
        ({"requests": [{"params": {}}]}, "400 invalid_request_error: requests.0.custom_id: Field required"),
        ({"requests": [{"custom_id": "a"}]}, "400 invalid_request_error: requests.0.params: Field required"),
        ({"requests": [{"custom_id": "a", "params": 1}]}, "400 invalid_request_error: requests.0.params"),
        (
            {"requests": [{"custom_id": "a b", "params": {}}]},
            "400 invalid_request_error: requests.0.custom_id",
        ),
        (
            {"requests": [{"custom_id": "a" * 65, "params": {}}]},
            "400 invalid_request_error: requests.0.custom",
        ),
        (
            {"requests": requests(2) + requests(2)},
            "400 invalid_request_error: requests.2.custom_id: duplicate",
        ),
        ({"requests": requests(6)}, "413 request_too_large: requests: a batch has at most 5"),
        ({"requests": requests(1, system="x" * 3000)}, "413 request_too_large: Request exceeds"),
    ],
)
def test_what_is_wrong_with_the_batch_itself_is_refused_at_once(given, message):
    virtual = VirtualService(batch_max_lines=5, batch_max_bytes=3000)
    sdk = sdk_of(virtual)
    found = refusal_of(lambda: sdk.post(ROOT, body=given, cast_to=object))
    assert found.startswith(message)
    assert virtual.ledger.summary()["batches"]["creates"] == 0


def test_errors_of_a_message_are_in_the_results_of_the_batch():
    virtual = VirtualService(models=[MODEL])
    sdk = sdk_of(virtual)
    wrong = [
        params("a", stream=True),
        params("a", speed="fast"),
        params("a", max_tokens=0),
        params("a", surprise=1),
        params("a", temperature=0.5),  # unknown in the SDK's version of the API
        {"max_tokens": 5},
        params("a", model="none"),
    ]
    rows = [{"custom_id": f"w-{n}", "params": each} for n, each in enumerate(wrong)] + requests(1)
    batch = sdk.messages.batches.create(requests=rows)
    assert counts_of(batch) == {"succeeded": 1, "errored": 7}
    kinds = dict(lines_of(sdk, batch.id))
    assert kinds.pop("j-0") == "succeeded"
    assert kinds.pop("w-6") == "errored not_found_error"
    assert set(kinds.values()) == {"errored invalid_request_error"}
    assert virtual.ledger.summary()["batches"]["lines_billed"] == 1


def test_more_tokens_than_may_wait_are_refused_until_others_have_ended():
    virtual = VirtualService(batch_turnaround=100, batch_enqueued_tokens=6)
    sdk = sdk_of(virtual)
    sdk.messages.batches.create(requests=requests(4))
    assert refusal_of(lambda: sdk.messages.batches.create(requests=requests(4))).startswith("429 rate_limit")
    virtual.now += 100
    sdk.messages.batches.create(requests=requests(4))
    assert virtual.ledger.summary()["batches"]["by_outcome"] == {"created": 2, "refused": 1}


@pytest.mark.parametrize(
    ("fault", "expected", "billed", "delivered"),
    [
        ("missing_lines", ["succeeded", None, "succeeded"], 3, 2),
        ("item_error", ["succeeded", "errored api_error", "succeeded"], 2, 2),
        ("item_invalid", ["succeeded", "errored invalid_request_error", "succeeded"], 2, 2),
        ("status_zero", ["succeeded", "errored unknown_error", "succeeded"], 2, 2),
    ],
)
def test_a_line_can_fail_or_be_missing(fault, expected, billed, delivered):
    virtual = one_batch(line_fault=fault)
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(3)).id
    kinds = dict(lines_of(sdk, batch))
    assert [kinds.get(f"j-{n}") for n in range(3)] == expected
    figures = virtual.ledger.summary()["batches"]
    assert (figures["lines_billed"], figures["lines_delivered"]) == (billed, delivered)


def test_a_line_can_be_doubled_foreign_swapped_without_usage_or_no_json():
    def texts(fault: str) -> list[tuple[str, str]]:
        virtual = one_batch(line_fault=fault)
        sdk = sdk_of(virtual)
        batch = sdk.messages.batches.create(requests=requests(3)).id
        results = sdk.messages.batches.results(batch)
        return [(line.custom_id, line.result.message.content[0].text) for line in results]

    check_odd_lines(texts, MODEL)
    virtual = one_batch(line_fault="no_usage")
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(2)).id
    found = [
        hasattr(line.result.message.usage, "input_tokens") for line in sdk.messages.batches.results(batch)
    ]
    assert found == [True, False]

    virtual = one_batch(line_fault="malformed_lines")
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(3)).id
    with pytest.raises(ValueError):
        list(sdk.messages.batches.results(batch))
    rows = virtual.replies[-1].content.split(b"\n")
    assert [json.loads(rows[n])["custom_id"] for n in (0, 2)] == ["j-0", "j-2"]
    with pytest.raises(ValueError):
        json.loads(rows[1])


def test_a_create_whose_answer_is_lost_exists_at_once_later_or_never():
    for outcome, fault, at_once, later in (
        ("lost", "lost_create", 1, 1),
        ("late", "late_create", 0, 1),
        ("dropped", "dropped_create", 0, 0),
    ):
        virtual = one_batch(fault, batch_late_seconds=60)
        sdk = sdk_of(virtual)
        with pytest.raises(anthropic.APIConnectionError):
            sdk.messages.batches.create(requests=requests(2))
        assert len(sdk.messages.batches.list().data) == at_once
        virtual.now += 60
        assert len(sdk.messages.batches.list().data) == later
        [record] = virtual.ledger.batches
        assert (record.outcome, record.created_at is not None) == (outcome, bool(later))


def test_a_lost_create_and_a_cut_download_are_such_on_a_socket(emu):
    emu.configure(batch_faults={"lost_create": 1.0, "cut_download": 1.0})
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0, timeout=10) as sdk:
        with pytest.raises(anthropic.APIConnectionError):
            sdk.messages.batches.create(requests=requests(20))
        [batch] = sdk.messages.batches.list()
        url = f"{ROOT}/{batch.id}/results"
        downloads = [sdk.get(url, cast_to=httpx2.Response).content for _ in range(2)]
    first, second = downloads
    assert len(first) < len(second)
    assert second.startswith(first)
    [record] = emu.ledger.batches
    assert (record.outcome, sum(line.delivered for line in record.lines.values())) == ("lost", 20)


def test_a_batch_can_be_hidden_from_lists_and_lookups_for_a_while():
    virtual = one_batch("list_lag", batch_list_lag=60)
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(1)).id
    assert sdk.messages.batches.list().data == []
    assert sdk.messages.batches.retrieve(batch).id == batch
    virtual.now += 60
    assert [each.id for each in sdk.messages.batches.list()] == [batch]

    virtual = one_batch("get_lag", batch_get_lag=60)
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(1)).id
    assert refusal_of(lambda: sdk.messages.batches.retrieve(batch)).startswith("404 ")
    assert [each.id for each in sdk.messages.batches.list()] == [batch]
    virtual.now += 60
    assert sdk.messages.batches.retrieve(batch).id == batch


def test_results_can_be_out_of_reach():
    virtual = one_batch("results_unavailable", batch_results_outage=60)
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(2)).id
    assert refusal_of(lambda: lines_of(sdk, batch)).startswith("503 api_error")
    virtual.now += 60
    assert len(lines_of(sdk, batch)) == 2


def test_an_odd_status_is_not_final():
    virtual = one_batch("odd_status", batch_turnaround=100)
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(2)).id
    virtual.now += 10
    assert sdk.messages.batches.retrieve(batch).processing_status not in ("in_progress", "canceling", "ended")
    virtual.now += 90
    assert sdk.messages.batches.retrieve(batch).processing_status == "ended"
