"""The real anthropic SDK sends batches to the emulator, over HTTP and in virtual time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anthropic
import pytest
from anthropic_batch_world import MODEL, OLD, ROOT, counts_of, lines_of, params, refusal_of, requests, sdk_of
from raw_client import RawClient
from virtual_service import START, VirtualService

from smartbatch.testing import Emulator, answer_for


def test_the_sdk_sends_a_batch_over_http_and_reads_its_answers(emu: Emulator) -> None:
    """Create, look, list, read, delete; the results are at the emulator's own address; the ledger agrees."""
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


def test_a_bearer_token_is_a_key_too_and_no_key_is_refused(raw: RawClient) -> None:
    """As at the other paths of this API; so is a request that names no version."""
    version = "anthropic-version: 2023-06-01\r\n"
    assert raw.ask(method="GET", path=ROOT, headers=version)[0] == 200
    assert raw.ask(method="GET", path=ROOT, headers=version, key=None)[0] == 401
    status, _, body = raw.ask(method="GET", path=ROOT)
    assert (status, body["error"]["message"]) == (400, "anthropic-version: header is required")
    assert raw.ask(method="PUT", path=ROOT, headers=OLD)[0] == 405
    assert raw.ask(method="GET", path=f"{ROOT}/a/b", headers=OLD)[0] == 404


def test_all_counters_but_processing_are_zero_until_the_batch_has_ended() -> None:
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


def test_a_cancelled_batch_ends_with_what_was_done() -> None:
    """The lines that ran are answered and billed, the others are not; a second cancel comes too late."""
    virtual = VirtualService(batch_turnaround=100, batch_cancel_seconds=5)
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(10)).id
    virtual.now = START + 45
    found = sdk.messages.batches.cancel(batch)
    assert (found.processing_status, counts_of(found)) == ("canceling", {"processing": 10})
    assert found.cancel_initiated_at - found.created_at == timedelta(seconds=45)
    virtual.now = START + 50
    found = sdk.messages.batches.retrieve(batch)
    assert (found.processing_status, counts_of(found)) == ("ended", {"succeeded": 5, "canceled": 5})
    kinds = dict(lines_of(sdk, batch))
    assert [kinds[f"j-{n}"] for n in range(10)] == ["succeeded"] * 5 + ["canceled"] * 5
    assert virtual.ledger.summary()["batches"]["lines_billed"] == 5
    assert refusal_of(lambda: sdk.messages.batches.cancel(batch)).startswith("400 ")
    assert refusal_of(lambda: sdk.messages.batches.cancel("msgbatch_none")).startswith("404 not_found_error")


def test_what_has_not_run_after_a_day_expires_unbilled() -> None:
    """The batch ends at its window; its lines say what became of them."""
    virtual = VirtualService(batch_turnaround=200_000)
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(4)).id
    virtual.now = START + 86_400
    found = sdk.messages.batches.retrieve(batch)
    assert (found.processing_status, counts_of(found)) == ("ended", {"succeeded": 1, "expired": 3})
    assert sorted(kind for _, kind in lines_of(sdk, batch)) == ["expired"] * 3 + ["succeeded"]
    assert virtual.ledger.summary()["batches"]["lines_billed"] == 1


def test_results_are_gone_after_their_retention_and_the_batch_is_not() -> None:
    """It is archived then: there is no address of results any more."""
    virtual = VirtualService(batch_retention=1000)
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(1)).id
    virtual.now = START + 999
    assert sdk.messages.batches.retrieve(batch).archived_at is None
    virtual.now = START + 1000
    found = sdk.messages.batches.retrieve(batch)
    assert (found.results_url, found.archived_at - found.ended_at) == (None, timedelta(seconds=1000))
    assert refusal_of(lambda: sdk.get(f"{ROOT}/{batch}/results", cast_to=object)).startswith("404 ")


def test_lists_come_in_pages_from_the_newest_on() -> None:
    """Both directions, as the SDK walks them; another key sees its own batches only."""
    virtual = VirtualService()
    sdk = sdk_of(virtual)
    made = []
    for _ in range(5):
        virtual.now += 1
        made.insert(0, sdk.messages.batches.create(requests=requests(1)).id)
    first = sdk.messages.batches.list(limit=2)
    assert ([batch.id for batch in first.data], first.has_more) == (made[:2], True)
    assert (first.first_id, first.last_id) == (made[0], made[1])
    assert [batch.id for batch in first] == made  # all pages, one after the other
    before = sdk.messages.batches.list(limit=2, before_id=made[3])
    assert ([batch.id for batch in before.data], before.has_more) == (made[1:3], True)
    assert sdk.messages.batches.list(after_id=made[4]).data == []
    other = sdk_of(virtual, "another")
    assert other.messages.batches.list().data == []
    assert refusal_of(lambda: other.messages.batches.retrieve(made[0])).startswith("404 ")
    for wrong in ({"limit": 0}, {"limit": 1001}, {"after_id": made[0], "before_id": made[1]}):
        assert refusal_of(lambda wrong=wrong: sdk.messages.batches.list(**wrong)).startswith("400 ")


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
def test_what_is_wrong_with_the_batch_itself_is_refused_at_once(given: Any, message: str) -> None:
    virtual = VirtualService(batch_max_lines=5, batch_max_bytes=3000)
    sdk = sdk_of(virtual)
    found = refusal_of(lambda: sdk.post(ROOT, body=given, cast_to=object))
    assert found.startswith(message)
    assert virtual.ledger.summary()["batches"]["creates"] == 0


def test_errors_of_a_message_are_in_the_results_of_the_batch() -> None:
    """The batch is taken, and its other lines are answered; nothing is billed for the wrong ones."""
    virtual = VirtualService(models=[MODEL])
    sdk = sdk_of(virtual)
    wrong = [
        params("a", stream=True),
        params("a", speed="fast"),
        params("a", max_tokens=0),
        params("a", surprise=1),
        params("a", temperature=0.5),  # not known any more in the SDK's version of the API
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


def test_more_tokens_than_may_wait_are_refused_until_others_have_ended() -> None:
    virtual = VirtualService(batch_turnaround=100, batch_enqueued_tokens=6)
    sdk = sdk_of(virtual)
    sdk.messages.batches.create(requests=requests(4))
    assert refusal_of(lambda: sdk.messages.batches.create(requests=requests(4))).startswith("429 rate_limit")
    virtual.now += 100
    sdk.messages.batches.create(requests=requests(4))
    assert virtual.ledger.summary()["batches"]["by_outcome"] == {"created": 2, "refused": 1}


def test_a_prompt_asked_in_a_batch_and_in_real_time_is_paid_twice() -> None:
    virtual = VirtualService()
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(2)).id
    assert virtual.ledger.paid_twice() == []
    list(sdk.messages.batches.results(batch))
    again = params("j1")
    sdk.messages.create(**again)
    [call] = [call for call in virtual.ledger.calls if call.endpoint == "POST /v1/messages"]
    virtual.ledger.close(call, status=200, billed=5, delivered=True)  # as the wire does
    assert virtual.ledger.paid_twice() == [call.prompt]
