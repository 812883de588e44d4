"""The faults Anthropic's batches and their lines can meet, as the real SDK sees them."""

from __future__ import annotations

import json

import anthropic
import httpx2
import pytest
from anthropic_batch_world import MODEL, ROOT, counts_of, lines_of, refusal_of, requests, sdk_of
from virtual_service import check_lost_create_and_cut_download, check_odd_lines, one_batch

from smartbatch.testing import Emulator, answer_for


@pytest.mark.parametrize(
    ("fault", "expected", "billed", "delivered"),
    [
        ("missing_lines", ["succeeded", None, "succeeded"], 3, 2),
        ("item_error", ["succeeded", "errored api_error", "succeeded"], 2, 2),
        ("item_invalid", ["succeeded", "errored invalid_request_error", "succeeded"], 2, 2),
        ("status_zero", ["succeeded", "errored unknown_error", "succeeded"], 2, 2),
    ],
)
def test_a_line_can_fail_or_be_missing(fault: str, expected: list, billed: int, delivered: int) -> None:
    """Only what ran to its end is billed, and only what came out whole is delivered."""
    virtual = one_batch(line_fault=fault)
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(3)).id
    kinds = dict(lines_of(sdk, batch))
    assert [kinds.get(f"j-{n}") for n in range(3)] == expected
    figures = virtual.ledger.summary()["batches"]
    assert (figures["lines_billed"], figures["lines_delivered"]) == (billed, delivered)


def test_a_line_can_be_doubled_foreign_swapped_without_usage_or_no_json() -> None:
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


def test_shuffled_results_carry_the_right_ids() -> None:
    """Another order than that of the requests, and every answer under its own id."""
    virtual = one_batch("shuffled")
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(20)).id
    found = [
        (line.custom_id, line.result.message.content[0].text) for line in sdk.messages.batches.results(batch)
    ]
    wanted = [(f"j-{n}", answer_for(f"j{n}", MODEL)) for n in range(20)]
    assert found != wanted
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize(
    ("fault", "counts", "kinds"),
    [
        ("fail_validation", {"errored": 4}, {"errored invalid_request_error"}),
        ("no_money_lines", {"errored": 4}, {"errored rate_limit_error"}),
        ("expire_all", {"expired": 4}, {"expired"}),
        ("expire_part", {"succeeded": 2, "expired": 2}, {"succeeded", "expired"}),
        ("wrong_counts", {"succeeded": 3}, {"succeeded"}),
    ],
)
def test_a_batch_can_fail_or_expire(fault: str, counts: dict, kinds: set) -> None:
    """This API has no failed batches: each line says it. The lines are right where the counts are not."""
    virtual = one_batch(fault)
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(4))
    assert (batch.processing_status, counts_of(batch)) == ("ended", counts)
    lines = lines_of(sdk, batch.id)
    assert sorted(name for name, _ in lines) == [f"j-{n}" for n in range(4)]
    assert {kind for _, kind in lines} == kinds


def test_a_create_whose_answer_is_lost_exists_at_once_later_or_never() -> None:
    """The list shows what became of it; the ledger knows all three."""
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


def test_a_lost_create_and_a_cut_download_are_such_on_a_socket(emu: Emulator) -> None:
    """A reset instead of an answer; a body in chunks that ends early without an error."""
    emu.configure(batch_faults={"lost_create": 1.0, "cut_download": 1.0})
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0, timeout=10) as sdk:
        with pytest.raises(anthropic.APIConnectionError):
            sdk.messages.batches.create(requests=requests(20))
        [batch] = sdk.messages.batches.list()
        url = f"{ROOT}/{batch.id}/results"
        downloads = [sdk.get(url, cast_to=httpx2.Response).content for _ in range(2)]
    check_lost_create_and_cut_download(emu, downloads)


def test_a_batch_can_be_hidden_from_lists_and_lookups_for_a_while() -> None:
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


def test_results_can_be_out_of_reach_or_cut_the_first_time() -> None:
    """503 for a while after the end; a download that ends early and looks whole."""
    virtual = one_batch("results_unavailable", batch_results_outage=60)
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(2)).id
    assert refusal_of(lambda: lines_of(sdk, batch)).startswith("503 api_error")
    virtual.now += 60
    assert len(lines_of(sdk, batch)) == 2

    virtual = one_batch("cut_download")
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(20)).id
    url = f"{ROOT}/{batch}/results"
    first = sdk.get(url, cast_to=httpx2.Response).content
    second = sdk.get(url, cast_to=httpx2.Response).content
    assert len(first) < len(second)
    assert second.startswith(first)
    assert second.count(b"\n") == 20


def test_a_batch_can_be_stuck_have_an_odd_status_or_ignore_a_cancel() -> None:
    virtual = one_batch("odd_status", batch_turnaround=100)
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(2)).id
    virtual.now += 10
    assert sdk.messages.batches.retrieve(batch).processing_status not in ("in_progress", "canceling", "ended")
    virtual.now += 90
    assert sdk.messages.batches.retrieve(batch).processing_status == "ended"

    virtual = one_batch("stuck", batch_turnaround=100)
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(4)).id
    virtual.now += 80_000
    assert sdk.messages.batches.retrieve(batch).processing_status == "in_progress"
    sdk.messages.batches.cancel(batch)
    assert counts_of(sdk.messages.batches.retrieve(batch)) == {"succeeded": 2, "canceled": 2}

    virtual = one_batch("cancel_completes", batch_turnaround=100)
    sdk = sdk_of(virtual)
    batch = sdk.messages.batches.create(requests=requests(4)).id
    sdk.messages.batches.cancel(batch)
    virtual.now += 100
    assert counts_of(sdk.messages.batches.retrieve(batch)) == {"succeeded": 4}
