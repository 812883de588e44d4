"""Gemini's batches with the real SDK, and with raw replies for what the SDK drops."""

from __future__ import annotations

import io
import json

import httpx2
import pytest
from gemini_batch_world import (
    EMBEDDER,
    MODEL,
    contents,
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
from pydantic import ValidationError
from virtual_service import START, VirtualService, check_odd_lines, one_batch

from smartbatch.emulator.composed_answers import vector_for
from smartbatch.testing import answer_for

INLINE = {"display_name": "inline"}


def inlined(count: int) -> list[types.InlinedRequest]:
    return [types.InlinedRequest(contents=f"j{n}", metadata={"key": f"j-{n}"}) for n in range(count)]


@pytest.mark.parametrize("version", ["v1", "v1beta"])
def test_the_sdk_sends_a_file_over_http_and_reads_its_answers(emu, version):
    options = types.HttpOptions(base_url=emu.url, api_version=version, timeout=10_000)
    with genai.Client(api_key="k", vertexai=False, http_options=options) as sdk:
        config = types.UploadFileConfig(mime_type="application/jsonl", name="sb-1")
        file = sdk.files.upload(file=io.BytesIO(jsonl(rows(3))), config=config)
        config = {"display_name": "mark", "webhook_config": {"uris": ["https://jobs.example/hooks"]}}
        made = sdk.batches.create(model=MODEL, src=file.name, config=config)
        found = sdk.batches.get(name=made.name)
        assert (found.state, found.display_name, found.model) == (
            "JOB_STATE_SUCCEEDED", "mark", f"models/{MODEL}",
        )  # fmt: skip
        assert {line["key"]: text_of(line) for line in read(sdk, made.name)} == {
            f"j-{n}": answer_for(f"j{n}", MODEL) for n in range(3)
        }
        assert [batch.name for batch in sdk.batches.list()] == [made.name]
        sdk.batches.cancel(name=made.name)  # has ended, so nothing changes
        assert sdk.batches.get(name=made.name).state == "JOB_STATE_SUCCEEDED"
        sdk.batches.delete(name=made.name)
        assert refusal_of(lambda: sdk.batches.get(name=made.name)).startswith("404 NOT_FOUND")
        sdk.files.delete(name=file.name)
    [record] = emu.ledger.batches
    assert (record.outcome, record.state) == ("created", "completed")
    assert dict(record.label) == {"displayName": "mark"}
    assert all(line.billed and line.delivered for line in record.lines.values())


def test_the_sdk_sends_inline_requests_and_finds_the_answers_in_the_batch():
    virtual = VirtualService()
    sdk = sdk_of(virtual)
    requests = [*inlined(2), types.InlinedRequest(contents="j2", metadata={"other": "x"})]
    batch = sdk.batches.create(model=MODEL, src=requests, config=INLINE).name
    found = sdk.batches.get(name=batch).dest.inlined_responses
    assert [each.metadata for each in found] == [{"key": "j-0"}, {"key": "j-1"}, {"other": "x"}]
    assert [each.response.text for each in found] == [answer_for(f"j{n}", MODEL) for n in range(3)]
    assert [each.dest for each in sdk.batches.list()] == [None]
    assert virtual.ledger.summary()["batches"]["lines_delivered"] == 3
    assert sdk.files.list().page == []  # no file of results


def test_the_sdk_sends_embeddings_inline_and_as_a_file():
    virtual = VirtualService()
    sdk = sdk_of(virtual)
    config = types.EmbedContentConfig(output_dimensionality=8)
    batch = types.EmbedContentBatch(contents=["a", "b"], config=config)
    source = types.EmbeddingsBatchJobSource(inlined_requests=batch)
    with pytest.warns(Warning, match="experimental"):
        made = sdk.batches.create_embeddings(model=EMBEDDER, src=source, config=INLINE)
    found = sdk.batches.get(name=made.name).dest.inlined_embed_content_responses
    assert [each.response.embedding.values for each in found] == [
        list(vector_for(text, EMBEDDER, 8)) for text in "ab"
    ]
    lines = [
        {"key": f"e-{n}", "request": {"output_dimensionality": 8, "content": {"parts": [{"text": text}]}}}
        for n, text in enumerate("ab")
    ]
    lines.append({"key": "e-2", "request": {"content": {"parts": [{"text": "\udc80"}]}}})
    source = types.EmbeddingsBatchJobSource(file_name=upload(sdk, jsonl(lines)))
    with pytest.warns(Warning, match="experimental"):
        made = sdk.batches.create_embeddings(model=EMBEDDER, src=source, config={"display_name": "file"})
    answers = {line["key"]: line for line in read(sdk, made.name)}
    for n, text in enumerate("ab"):
        response = answers[f"e-{n}"]["response"]
        assert response == {
            "embedding": {"values": list(vector_for(text, EMBEDDER, 8))}, "tokenCount": "1",
        }  # fmt: skip
    assert answers["e-2"]["error"]["code"] == 3


def test_the_operation_tells_states_and_counts_as_the_service_does():
    virtual = VirtualService(batch_turnaround=100, batch_validating=10)
    sdk = sdk_of(virtual)
    batch = create(sdk, [*rows(9), {"key": "wrong", "request": {}}], "sb-1")
    shown = raw_of(virtual, sdk, batch)
    assert shown.keys() == {"name", "metadata"}
    assert shown["metadata"]["state"] == "BATCH_STATE_PENDING"
    assert shown["metadata"]["batchStats"] == {"requestCount": "10", "pendingRequestCount": "10"}
    assert shown["metadata"]["inputConfig"] == {"fileName": "files/sb-1"}
    assert "endTime" not in shown["metadata"]
    virtual.now = START + 52
    shown = raw_of(virtual, sdk, batch)
    assert shown["metadata"]["state"] == "BATCH_STATE_RUNNING"
    stats = {"requestCount": "10", "successfulRequestCount": "5", "pendingRequestCount": "5"}
    assert shown["metadata"]["batchStats"] == stats
    assert "done" not in shown
    virtual.now = START + 100
    shown = raw_of(virtual, sdk, batch)
    assert (shown["done"], shown["metadata"]["state"]) == (True, "BATCH_STATE_SUCCEEDED")
    stats = {"requestCount": "10", "successfulRequestCount": "9", "failedRequestCount": "1"}
    assert shown["metadata"]["batchStats"] == stats
    output = shown["metadata"]["output"]
    assert output.keys() == {"responsesFile"}
    assert shown["response"].items() >= output.items()
    assert kinds_of(read(sdk, batch)) == {f"j-{n}": 0 for n in range(9)} | {"wrong": 3}


def test_inline_results_can_lack_metadata_or_have_unreadable_errors():
    """Both as they were reported of the service; only the raw answer helps."""
    virtual = VirtualService(batch_inline_metadata=False)
    sdk = sdk_of(virtual)
    batch = sdk.batches.create(model=MODEL, src=inlined(2), config=INLINE).name
    assert [each.metadata for each in sdk.batches.get(name=batch).dest.inlined_responses] == [None, None]

    virtual = VirtualService(
        batch_error_details=True, batch_line_fault_for=lambda _i, n, _id: "item_error" if n else ()
    )
    sdk = sdk_of(virtual)
    batch = sdk.batches.create(model=MODEL, src=inlined(2), config=INLINE).name
    with pytest.raises(ValidationError):
        sdk.batches.get(name=batch)
    [good, bad] = json.loads(virtual.replies[-1].content)["metadata"]["output"]["inlinedResponses"][
        "inlinedResponses"
    ]
    assert text_of(good) == answer_for("j0", MODEL)
    assert (bad["error"]["code"], bad["error"]["details"][0]["retryDelay"]) == (14, "1s")


@pytest.mark.parametrize(
    ("lines", "message"),
    sampled(
        [
            ([*rows(1), b'{"key": '], "Line 2 of the input file is not a JSON object."),
            ([*rows(1), {"key": "a"}], "Line 2 of the input file has no request."),
            ([b""], "The input file has no requests."),
            (rows(6), "The input file has more requests than allowed in a batch."),
            (
                [{"key": "a", "request": contents("x" * 2000)}],
                "The input file is larger than allowed for a batch.",
            ),
        ],
        keep=2,
    ),
)
def test_a_file_that_is_wrong_fails_the_whole_batch_after_its_validation(lines, message):
    virtual = VirtualService(batch_validating=10, batch_max_lines=5, batch_max_bytes=1000)
    sdk = sdk_of(virtual)
    batch = create(sdk, lines)
    assert sdk.batches.get(name=batch).state == "JOB_STATE_PENDING"
    virtual.now += 10
    found = sdk.batches.get(name=batch)
    assert (found.state, found.dest, found.error) == ("JOB_STATE_FAILED", None, None)
    shown = raw_of(virtual, sdk, batch)
    assert shown["error"] == {"code": 3, "message": message}
    assert "response" not in shown
    assert virtual.ledger.summary()["batches"]["lines_ran"] == 0


@pytest.mark.parametrize(
    "given",
    sampled(
        [
            b"{",
            {},
            {"batch": {"displayName": "m"}},
            {"batch": {"displayName": 1, "inputConfig": {"fileName": "files/a"}}},
            {"batch": {"inputConfig": {}}},
            {"batch": {"inputConfig": {"fileName": "a"}}},
            {"batch": {"inputConfig": {"requests": {"requests": []}}}},
            {"batch": {"inputConfig": {"requests": {"requests": [{}]}}}},
            {"batch": {"inputConfig": {"requests": {"requests": [{"request": {}, "metadata": 1}]}}}},
            {"batch": {"inputConfig": {"requests": {"requests": [{"request": {}}]}, "file_name": "files/a"}}},
            {"batch": {"inputConfig": {"fileName": "files/a"}, "webhookConfig": {"uris": "x"}}},
            {"batch": {"inputConfig": {"requests": {"requests": [{"request": {"x": "y" * 21_000_000}}]}}}},
        ],
        keep=5,
    ),
    ids=range(12),
)
def test_a_create_that_is_wrong_is_refused_at_once(given):
    virtual = VirtualService()
    body = given if isinstance(given, bytes) else json.dumps(given).encode()
    with virtual.client() as client:
        reply = client.post(
            f"/v1beta/models/{MODEL}:batchGenerateContent", content=body, headers={"x-goog-api-key": "k"}
        )
    assert (reply.status_code, reply.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert virtual.ledger.summary()["batches"]["creates"] == 0


def test_keys_models_and_paths_are_checked():
    virtual = VirtualService(models=[MODEL])
    sdk = sdk_of(virtual)
    batch = create(sdk, rows(1))
    other = sdk_of(virtual, "another")
    assert refusal_of(lambda: other.batches.get(name=batch)).startswith("404 ")
    assert list(other.batches.list()) == []
    wrong = lambda: sdk.batches.create(model="none", src=inlined(1), config=INLINE)  # noqa: E731
    assert refusal_of(wrong).startswith("404 NOT_FOUND: models/none")
    with virtual.client() as client:
        key = {"x-goog-api-key": "k"}
        assert client.get(f"/v1beta/models/{MODEL}:batchGenerateContent", headers=key).status_code == 404
        assert client.post(f"/v1beta/{batch}:explode", headers=key).status_code == 404
        assert client.put(f"/v1beta/{batch}", headers=key).status_code == 404
        assert client.get(f"/v1beta/{batch}").status_code == 403
        assert client.get("/v1beta/batches?pageSize=x", headers=key).status_code == 400


def test_a_late_create_whose_file_was_deleted_never_is():
    for delete, outcome, created in ((True, "fenced", 0), (False, "late", 1)):
        virtual = VirtualService(batch_fault_for=lambda _i, _label: "late_create", batch_late_seconds=60)
        sdk = sdk_of(virtual)
        file = upload(sdk, jsonl(rows(2)), "sb-1")
        with pytest.raises(httpx2.ReadError):
            sdk.batches.create(model=MODEL, src=file, config=INLINE)
        if delete:
            sdk.files.delete(name=file)
        virtual.now += 60
        assert len(list(sdk.batches.list())) == created
        figures = virtual.ledger.summary()["batches"]
        assert (figures["by_outcome"], figures["lines_billed"]) == ({outcome: 1}, 2 * created)

    virtual = VirtualService(batch_turnaround=100)
    sdk = sdk_of(virtual)
    batch = create(sdk, rows(2), "sb-1")
    sdk.files.delete(name="files/sb-1")
    virtual.now += 100
    assert set(kinds_of(read(sdk, batch)).values()) == {0}
    gone = lambda: sdk.batches.create(model=MODEL, src="files/sb-1", config=INLINE)  # noqa: E731
    assert refusal_of(gone).startswith("403 PERMISSION_DENIED")
    assert virtual.ledger.summary()["batches"]["by_outcome"] == {"created": 1, "refused": 1}


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
def test_a_line_can_fail_or_be_missing(fault, expected, billed, delivered):
    virtual = one_batch(line_fault=fault)
    sdk = sdk_of(virtual)
    lines = read(sdk, create(sdk, rows(3)))
    assert kinds_of(lines) == expected
    assert sum("response" in line for line in lines) == delivered
    figures = virtual.ledger.summary()["batches"]
    assert (figures["lines_billed"], figures["lines_delivered"]) == (billed, delivered)


def test_a_line_can_be_doubled_foreign_swapped_or_without_usage():
    def texts(fault: str) -> list[tuple[str, str]]:
        sdk = sdk_of(one_batch(line_fault=fault))
        return [(line["key"], text_of(line)) for line in read(sdk, create(sdk, rows(3)))]

    check_odd_lines(texts, MODEL)
    sdk = sdk_of(one_batch(line_fault="no_usage"))
    lines = read(sdk, create(sdk, rows(2)))
    assert ["usageMetadata" in line["response"] for line in lines] == [True, False]


def test_a_line_can_be_cut_or_no_json_at_all():
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
def test_a_batch_can_fail_or_expire(fault, state, expected):
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


def test_a_create_whose_answer_is_lost_exists_at_once_or_never():
    for fault, names in (("lost_create", ["mark"]), ("dropped_create", [])):
        virtual = one_batch(fault)
        sdk = sdk_of(virtual)
        file = upload(sdk, jsonl(rows(2)))
        with pytest.raises(httpx2.ReadError):
            sdk.batches.create(model=MODEL, src=file, config={"display_name": "mark"})
        assert [batch.display_name for batch in sdk.batches.list()] == names


def test_results_can_be_out_of_reach():
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


def test_results_are_gone_after_their_retention():
    virtual = one_batch(batch_retention=1000)
    sdk = sdk_of(virtual)
    batch = create(sdk, rows(1))
    virtual.now += 1000
    assert refusal_of(lambda: read(sdk, batch)).startswith("403 ")
    assert sdk.batches.get(name=batch).state == "JOB_STATE_SUCCEEDED"


def test_an_odd_status_is_not_final():
    virtual = one_batch("odd_status", batch_turnaround=100, batch_validating=5)
    sdk = sdk_of(virtual)
    batch = create(sdk, rows(2))
    virtual.now += 10
    with pytest.warns(UserWarning, match="BATCH_STATE_"):
        found = sdk.batches.get(name=batch)
    assert not found.done
    virtual.now += 90
    assert sdk.batches.get(name=batch).done
