"""Gemini's batches: operations, pages and creates."""

from __future__ import annotations

import pytest
from asking import request_of
from batch_sides import FILE, GEMINI, gemini_batch, world
from batching import MARK, PATIENCE, fails, two_pages
from gemini_asking import GEMINI_KEY, gemini_error
from raw_server import says

from smartbatch.errors import ErrorKind
from smartbatch.providers.batch_api import Creation, RemoteBatch, RemoteState, enqueued_limit
from smartbatch.types import Kind
from tests.levels import sampled

OUTPUT = {"responsesFile": "files/batch-abc1"}


@pytest.fixture
def side():
    return GEMINI


def looked_at(api, *given, **changes) -> RemoteBatch:
    batches, _ = api(says(gemini_batch(*given, **changes)))
    found = batches.get("abc1", PATIENCE)
    assert found is not None
    return found


STATES = [
    ("PENDING", RemoteState.RUNNING),
    ("QUEUED", RemoteState.RUNNING),
    ("RUNNING", RemoteState.RUNNING),
    ("PAUSED", RemoteState.RUNNING),
    ("UPDATING", RemoteState.RUNNING),
    ("DREAMING", RemoteState.RUNNING),
    ("CANCELLING", RemoteState.ENDING),
    ("SUCCEEDED", RemoteState.COMPLETED),
    ("PARTIALLY_SUCCEEDED", RemoteState.COMPLETED),
    ("FAILED", RemoteState.FAILED),
    ("CANCELLED", RemoteState.CANCELLED),
    ("EXPIRED", RemoteState.EXPIRED),
]


@pytest.mark.parametrize(
    ("word", "state", "prefix"),
    sampled(
        [
            pytest.param(word, state, prefix, id=f"{word}-{state}-{prefix}")
            for word, state in STATES
            for prefix in ("BATCH_STATE_", "JOB_STATE_", "")
        ],
        keep=13,  # keeps each word and prefix, because 13 shares no factor with their numbers
    ),
)
def test_a_state_is_read_from_its_word(api, prefix, word, state):
    found = looked_at(api, prefix + word, output=OUTPUT)
    assert (found.state, found.word) == (state, word)


@pytest.mark.parametrize(
    ("state", "top", "expected"),
    [
        (None, {}, RemoteState.RUNNING),
        (None, {"done": False}, RemoteState.RUNNING),
        (None, {"done": True, "response": OUTPUT}, RemoteState.COMPLETED),
        (None, {"done": True, "error": {"code": 3, "message": "bad"}}, RemoteState.FAILED),
        ("BATCH_STATE_UNSPECIFIED", {"done": True, "response": OUTPUT}, RemoteState.COMPLETED),
        ("BATCH_STATE_RUNNING", {"done": True}, RemoteState.RUNNING),
        ("BATCH_STATE_SUCCEEDED", {"done": True}, RemoteState.ENDING),
        (None, {"done": True}, RemoteState.ENDING),
    ],
)
def test_an_operation_without_a_state_is_judged_by_what_else_it_says(api, state, top, expected):
    assert looked_at(api, state, top=top).state is expected


@pytest.mark.parametrize(
    ("changes", "top"),
    [
        ({"output": OUTPUT}, {}),
        ({}, {"response": OUTPUT}),
        ({"output": OUTPUT}, {"response": {"@type": "x", **OUTPUT}}),
    ],
)
def test_results_are_found_wherever_they_are_told(api, changes, top):
    found = looked_at(api, "BATCH_STATE_SUCCEEDED", top=top, **changes)
    assert found.outputs == ("files/batch-abc1",)


def test_counts_are_texts_and_zero_is_left_out(api):
    found = looked_at(api, batchStats={"requestCount": "12", "successfulRequestCount": "7"}, novelty=[1])
    assert (found.total, found.completed, found.failed) == (12, 7, 0)
    assert (found.mark, found.file_id, found.created_at) == (MARK, FILE, 1795168800.1)


@pytest.mark.parametrize("odd", sampled([None, "nonsense", -1, "-1", 2.5, True, {"a": 1}, "9" * 50], keep=3))
def test_odd_counts_names_and_times_are_unknown(api, odd):
    found = looked_at(
        api, batchStats={"requestCount": odd, "failedRequestCount": odd}, createTime=odd, displayName=odd
    )
    assert (found.total, found.failed, found.created_at, found.mark) == (None, 0, None, None)
    assert looked_at(api, batchStats=odd, inputConfig=None).total is None


def test_a_batch_that_failed_says_why(api):
    problem = {
        "code": 3,
        "message": f"Line 7 of the input is no JSON (key {GEMINI_KEY})",
        "details": [{"a": 1}],
    }
    found = looked_at(api, "BATCH_STATE_FAILED", top={"done": True, "error": problem})
    assert found.state is RemoteState.FAILED
    assert (found.error.kind, found.code) == (ErrorKind.CLIENT_ERROR, "INVALID_ARGUMENT")
    assert "Line 7" in found.reason
    assert GEMINI_KEY not in repr(found)


def test_a_full_quota_of_enqueued_tokens_has_a_code_of_its_own(api):
    text = "Enqueued token limit reached for gemini-3.8-flash. Limit: 3,000,000 enqueued tokens."
    found = looked_at(api, "BATCH_STATE_FAILED", top={"done": True, "error": {"code": 8, "message": text}})
    assert (found.code, found.error.kind) == ("token_limit_exceeded", ErrorKind.RATE_LIMIT)
    assert enqueued_limit(found.reason) == 3_000_000
    batches, _ = api(says(gemini_error(429, "RESOURCE_EXHAUSTED", text), "429 No"))
    refused = fails(lambda: batches.create(Creation(MARK, "m", Kind.GENERATE, 5, file_id=FILE), PATIENCE))
    assert (refused.code, refused.kind, refused.maybe_billed) == (
        "token_limit_exceeded",
        ErrorKind.RATE_LIMIT,
        False,
    )


def test_what_cancelled_and_expired_batches_say_is_no_failure(api):
    for word in ("CANCELLED", "EXPIRED"):
        found = looked_at(
            api, f"BATCH_STATE_{word}", top={"done": True, "error": {"code": 1, "message": "x"}}
        )
        assert (found.error, found.code, found.reason) == (None, None, None)


@pytest.mark.parametrize("bad", ["files/../x", "files/a b", "files/", "x", 7, "files/" + "x" * 500])
def test_an_output_nobody_could_name_is_not_asked_for(api, bad):
    told = gemini_batch("BATCH_STATE_SUCCEEDED", output={"responsesFile": bad})
    batches, server = api(says(told))
    assert fails(lambda: batches.get("abc1", PATIENCE)).code == "id"
    batch = RemoteBatch(id="abc1", state=RemoteState.COMPLETED)
    assert fails(lambda: list(batches.download(batch, str(bad), PATIENCE))).code == "id"
    assert len(server.requests) == 1


def test_the_next_page_is_asked_for_with_its_token(api):
    batches, server = api(says({"operations": [gemini_batch()], "nextPageToken": "a/b+c=&d"}), says({}))
    assert two_pages(batches) == ["a/b+c=&d", None]
    assert [request.target for request in server.requests] == [
        "/v1/batches?pageSize=100",
        "/v1/batches?pageSize=100&pageToken=a%2Fb%2Bc%3D%26d",
    ]
    batches, _ = api(says({"operations": [], "nextPageToken": ["x"]}))
    assert fails(lambda: batches.page(None, PATIENCE)).kind is ErrorKind.INVALID_RESPONSE


@pytest.mark.parametrize(
    ("kind", "method"), [(Kind.GENERATE, "batchGenerateContent"), (Kind.EMBED, "asyncBatchEmbedContent")]
)
def test_a_create_names_its_file_and_its_mark(api, kind, method):
    batches, server = api(says(gemini_batch()))
    batches.create(Creation(MARK, "gemini-3.8-flash", kind, 5, file_id=FILE), PATIENCE)
    [request] = server.requests
    assert request.target == f"/v1/models/gemini-3.8-flash:{method}"
    assert request.json() == {"batch": {"displayName": f"sb-{MARK}", "inputConfig": {"fileName": FILE}}}
    assert request.headers["x-goog-api-key"] == GEMINI_KEY


def test_a_create_names_the_address_for_an_event(api):
    batches, server = api(says(gemini_batch()))
    address = "https://jobs.example/hooks?token=secret"
    batches.create(Creation(MARK, "m", Kind.GENERATE, 5, file_id=FILE, callback_url=address), PATIENCE)
    assert server.requests[0].json()["batch"]["webhookConfig"] == {"uris": [address]}


@pytest.mark.parametrize("bad", [None, "", "files/../x", "x", "files/a?b"])
def test_a_create_without_a_file_is_refused(api, bad):
    batches, server = api(says(gemini_batch()))
    found = fails(lambda: batches.create(Creation(MARK, "m", Kind.GENERATE, 5, file_id=bad), PATIENCE))
    assert (found.code, found.maybe_billed) == ("id", False)
    assert server.requests == []


def test_a_create_that_names_a_deleted_file_is_refused_for_certain(tmp_path):
    with world(GEMINI) as (emu, api):
        path = tmp_path / "in"
        path.write_bytes(api.encode(request_of(), model="m", wire_id="n-0") + b"\n")
        file = api.upload("sb-x", path, PATIENCE)
        api.delete_file(file.id, PATIENCE)
        api.delete_file(file.id, PATIENCE)
        assert api.find_file("sb-x", PATIENCE) is None
        found = fails(lambda: api.create(Creation(MARK, "m", Kind.GENERATE, 1, file_id=file.id), PATIENCE))
        assert (found.kind, found.code, found.maybe_billed) == (ErrorKind.CLIENT_ERROR, "no_such_file", False)
        assert [record.outcome for record in emu.ledger.batches] == ["refused"]
