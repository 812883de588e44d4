"""The faults Gemini's batches and their lines can meet, as the real SDK sees them."""

from __future__ import annotations

import json

import httpx2
import pytest
from gemini_batch_world import (
    MODEL,
    create,
    jsonl,
    kinds_of,
    raw_of,
    read,
    refusal_of,
    rows,
    sdk_of,
    text_of,
    upload,
)
from google import genai
from google.genai import types
from levels import sampled
from virtual_service import check_lost_create_and_cut_download, check_odd_lines, one_batch

from smartbatch.testing import Emulator, answer_for


@pytest.mark.parametrize(
    ("fault", "expected", "billed", "delivered"),
    sampled(
        [
            ("missing_lines", {"j-0": 0, "j-2": 0}, 3, 2),
            ("item_error", {"j-0": 0, "j-1": 14, "j-2": 0}, 2, 2),
            ("item_invalid", {"j-0": 0, "j-1": 3, "j-2": 0}, 2, 2),
            ("status_zero", {"j-0": 0, "j-1": 0, "j-2": 0}, 2, 2),
        ],
        keep=2,
    ),
)
def test_a_line_can_fail_or_be_missing(fault: str, expected: dict, billed: int, delivered: int) -> None:
    """Only what ran to its end is billed, and only what came out whole is delivered."""
    virtual = one_batch(line_fault=fault)
    sdk = sdk_of(virtual)
    lines = read(sdk, create(sdk, rows(3)))
    assert kinds_of(lines) == expected
    assert sum("response" in line for line in lines) == delivered
    figures = virtual.ledger.summary()["batches"]
    assert (figures["lines_billed"], figures["lines_delivered"]) == (billed, delivered)


def test_a_line_can_be_doubled_foreign_swapped_or_without_usage() -> None:
    def texts(fault: str) -> list[tuple[str, str]]:
        sdk = sdk_of(one_batch(line_fault=fault))
        return [(line["key"], text_of(line)) for line in read(sdk, create(sdk, rows(3)))]

    check_odd_lines(texts, MODEL)
    sdk = sdk_of(one_batch(line_fault="no_usage"))
    lines = read(sdk, create(sdk, rows(2)))
    assert ["usageMetadata" in line["response"] for line in lines] == [True, False]


def test_a_line_can_be_cut_or_no_json_at_all() -> None:
    """In a file the lines around it are whole; inline it says nothing."""
    virtual = one_batch(line_fault="malformed_lines")
    sdk = sdk_of(virtual)
    batch = create(sdk, rows(3))
    data = sdk.files.download(file=sdk.batches.get(name=batch).dest.file_name).split(b"\n")
    assert [json.loads(data[n])["key"] for n in (0, 2)] == ["j-0", "j-2"]
    with pytest.raises(ValueError):
        json.loads(data[1])
    inline = [types.InlinedRequest(contents=f"j{n}", metadata={"key": f"j-{n}"}) for n in range(2)]
    batch = sdk.batches.create(model=MODEL, src=inline, config={"display_name": "m"}).name
    found = raw_of(virtual, sdk, batch)["metadata"]["output"]["inlinedResponses"]["inlinedResponses"]
    assert found[1] == {"metadata": {"key": "j-1"}}


def test_results_come_in_any_order_also_inline() -> None:
    """Every answer under its own key, as it was reported of large inline batches."""
    virtual = one_batch("shuffled")
    sdk = sdk_of(virtual)
    inline = [types.InlinedRequest(contents=f"j{n}", metadata={"key": f"j-{n}"}) for n in range(20)]
    batch = sdk.batches.create(model=MODEL, src=inline, config={"display_name": "m"}).name
    responses = sdk.batches.get(name=batch).dest.inlined_responses
    found = [(each.metadata["key"], each.response.text) for each in responses]
    wanted = [(f"j-{n}", answer_for(f"j{n}", MODEL)) for n in range(20)]
    assert found != wanted
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize(
    ("fault", "state", "expected"),
    sampled(
        [
            ("no_money_lines", "SUCCEEDED", dict.fromkeys(("j-0", "j-1", "j-2", "j-3"), 8)),
            ("expire_part", "EXPIRED", {"j-0": 0, "j-1": 0, "j-2": 4, "j-3": 4}),
            ("wrong_counts", "SUCCEEDED", dict.fromkeys(("j-0", "j-1", "j-2", "j-3"), 0)),
            ("expire_all", "EXPIRED", None),
            ("fail_validation", "FAILED", None),
        ],
        keep=2,
    ),
)
def test_a_batch_can_fail_or_expire(fault: str, state: str, expected: dict | None) -> None:
    """The state says nothing about the lines; an expired or failed batch may have no results at all."""
    virtual = one_batch(fault)
    sdk = sdk_of(virtual)
    batch = create(sdk, rows(4))
    raw = raw_of(virtual, sdk, batch)
    assert (raw["metadata"]["state"], raw["done"]) == (f"BATCH_STATE_{state}", True)
    if expected is None:
        assert "output" not in raw["metadata"]
        assert virtual.ledger.summary()["batches"]["lines_ran"] == 0
    else:
        assert kinds_of(read(sdk, batch)) == expected
    if fault == "wrong_counts":
        assert raw["metadata"]["batchStats"]["successfulRequestCount"] == "3"


def test_a_create_whose_answer_is_lost_exists_at_once_or_never() -> None:
    for fault, names in (("lost_create", ["mark"]), ("dropped_create", [])):
        virtual = one_batch(fault)
        sdk = sdk_of(virtual)
        file = upload(sdk, jsonl(rows(2)))
        with pytest.raises(httpx2.ReadError):
            sdk.batches.create(model=MODEL, src=file, config={"display_name": "mark"})
        assert [batch.display_name for batch in sdk.batches.list()] == names


def test_a_lost_create_and_a_cut_download_are_such_on_a_socket(emu: Emulator) -> None:
    """A reset instead of an answer; a body in chunks that ends early without an error."""
    emu.configure(batch_faults={"lost_create": 1.0, "cut_download": 1.0})
    options = types.HttpOptions(base_url=emu.url, timeout=10_000)
    with genai.Client(api_key="k", vertexai=False, http_options=options) as sdk:
        file = upload(sdk, jsonl(rows(20)))
        with pytest.raises(httpx2.TransportError):
            sdk.batches.create(model=MODEL, src=file, config={"display_name": "mark"})
        [batch] = sdk.batches.list()
        results = sdk.batches.get(name=batch.name).dest.file_name
        downloads = [sdk.files.download(file=results) for _ in range(2)]
    check_lost_create_and_cut_download(emu, downloads)


def test_a_batch_can_be_hidden_from_lists_and_lookups_for_a_while() -> None:
    virtual = one_batch("list_lag", batch_list_lag=60)
    sdk = sdk_of(virtual)
    batch = create(sdk, rows(1))
    assert list(sdk.batches.list()) == []
    assert sdk.batches.get(name=batch).name == batch
    virtual.now += 60
    assert [each.name for each in sdk.batches.list()] == [batch]

    virtual = one_batch("get_lag", batch_get_lag=60)
    sdk = sdk_of(virtual)
    batch = create(sdk, rows(1))
    assert refusal_of(lambda: sdk.batches.get(name=batch)).startswith("404 ")
    assert [each.name for each in sdk.batches.list()] == [batch]


def test_results_can_be_out_of_reach_or_cut_the_first_time() -> None:
    """503 for a while after the end, inline results too; a download that ends early and looks whole."""
    virtual = one_batch("results_unavailable", batch_results_outage=60)
    sdk = sdk_of(virtual)
    batch = create(sdk, rows(2))
    assert refusal_of(lambda: read(sdk, batch)).startswith("503 UNAVAILABLE")
    virtual.now += 60
    assert len(read(sdk, batch)) == 2

    virtual = one_batch("results_unavailable", batch_results_outage=60)
    sdk = sdk_of(virtual)
    inline = [types.InlinedRequest(contents="j0")]
    batch = sdk.batches.create(model=MODEL, src=inline, config={"display_name": "m"}).name
    assert refusal_of(lambda: sdk.batches.get(name=batch)).startswith("503 UNAVAILABLE")
    virtual.now += 60
    assert sdk.batches.get(name=batch).dest.inlined_responses[0].response.text == answer_for("j0", MODEL)

    virtual = one_batch("cut_download")
    sdk = sdk_of(virtual)
    file = sdk.batches.get(name=create(sdk, rows(20))).dest.file_name
    first, second = sdk.files.download(file=file), sdk.files.download(file=file)
    assert len(first) < len(second)
    assert second.startswith(first)
    assert second.count(b"\n") == 20


def test_results_are_gone_after_their_retention() -> None:
    virtual = one_batch(batch_retention=1000)
    sdk = sdk_of(virtual)
    batch = create(sdk, rows(1))
    virtual.now += 1000
    assert refusal_of(lambda: read(sdk, batch)).startswith("403 ")
    assert sdk.batches.get(name=batch).state == "JOB_STATE_SUCCEEDED"


def test_a_batch_can_be_stuck_have_an_odd_status_or_ignore_a_cancel() -> None:
    """An undocumented state is not final; the SDK passes it on with a warning."""
    virtual = one_batch("odd_status", batch_turnaround=100, batch_validating=5)
    sdk = sdk_of(virtual)
    batch = create(sdk, rows(2))
    virtual.now += 10
    with pytest.warns(UserWarning, match="BATCH_STATE_"):
        found = sdk.batches.get(name=batch)
    assert not found.done
    virtual.now += 90
    assert sdk.batches.get(name=batch).done

    virtual = one_batch("stuck", batch_turnaround=100)
    sdk = sdk_of(virtual)
    batch = create(sdk, rows(4))
    virtual.now += 80_000
    assert sdk.batches.get(name=batch).state == "JOB_STATE_RUNNING"
    sdk.batches.cancel(name=batch)
    assert kinds_of(read(sdk, batch)) == {"j-0": 0, "j-1": 0, "j-2": 1, "j-3": 1}

    virtual = one_batch("cancel_completes", batch_turnaround=100)
    sdk = sdk_of(virtual)
    batch = create(sdk, rows(4))
    sdk.batches.cancel(name=batch)
    virtual.now += 100
    assert sdk.batches.get(name=batch).state == "JOB_STATE_SUCCEEDED"
