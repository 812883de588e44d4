"""What is Gemini's alone about its batches: operations, named files and their uploads, lines, vectors."""

from __future__ import annotations

import json
from array import array

import pytest
from asking import request_of, url_of
from batch_sides import FILE, GEMINI, create, gemini_batch, world
from batching import MARK, PATIENCE, ended, fails, results, two_pages
from gemini_asking import GEMINI_KEY, gemini_error, retry_in, says_gemini, violation
from raw_server import hangs, resets, says

from smartbatch.errors import ErrorKind
from smartbatch.providers.batch_api import (
    Creation,
    Line,
    LineOutcome,
    RemoteBatch,
    RemoteState,
    enqueued_limit,
)
from smartbatch.providers.gemini.batches import file_id_of
from smartbatch.providers.gemini.provider import GeminiProvider
from smartbatch.types import Embedding, Kind, Request, Usage

OUTPUT = {"responsesFile": "files/batch-abc1"}
MAY_NOT_EXIST = gemini_error(
    403, "PERMISSION_DENIED", "You do not have permission to access the File x or it may not exist."
)


@pytest.fixture
def side():
    return GEMINI


def looked_at(api, *given, **changes) -> RemoteBatch:
    batches, _ = api(says(gemini_batch(*given, **changes)))
    found = batches.get("abc1", PATIENCE)
    assert found is not None
    return found


def line_of(kind=Kind.GENERATE, **fields) -> Line:
    api = GeminiProvider(GEMINI_KEY).batches()
    return api.read_line(json.dumps({"key": "n-0", **fields}).encode(), kind)


# operations


@pytest.mark.parametrize("prefix", ["BATCH_STATE_", "JOB_STATE_", ""])
@pytest.mark.parametrize(
    ("word", "state"),
    [
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
    ],
)
def test_a_state_is_read_from_its_word(api, prefix, word, state):
    """Under each of its names; an unknown state has not ended."""
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
    """And one that has succeeded without saying where its results are has not ended yet."""
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
    """The SDK reads one of both places only."""
    found = looked_at(api, "BATCH_STATE_SUCCEEDED", top=top, **changes)
    assert found.outputs == ("files/batch-abc1",)
    batches, _ = api(says(b""))
    assert batches.output_files(found) == ("files/batch-abc1",)


def test_counts_are_texts_and_zero_is_left_out(api):
    """Mark, file and time are told as well."""
    found = looked_at(api, batchStats={"requestCount": "12", "successfulRequestCount": "7"}, novelty=[1])
    assert (found.total, found.completed, found.failed) == (12, 7, 0)
    assert (found.mark, found.file_id, found.created_at) == (MARK, FILE, 1795168800.1)


@pytest.mark.parametrize("odd", [None, "nonsense", -1, "-1", 2.5, True, {"a": 1}, "9" * 50])
def test_odd_counts_names_and_times_are_unknown(api, odd):
    """They are never guessed."""
    found = looked_at(
        api, batchStats={"requestCount": odd, "failedRequestCount": odd}, createTime=odd, displayName=odd
    )
    assert (found.total, found.failed, found.created_at, found.mark) == (None, 0, None, None)
    assert looked_at(api, batchStats=odd, inputConfig=None).total is None


def test_a_batch_that_failed_says_why(api):
    """The SDK ignores that."""
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
    """Late or at once, so that the next create can wait for room."""
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
    """The state says it already."""
    for word in ("CANCELLED", "EXPIRED"):
        found = looked_at(
            api, f"BATCH_STATE_{word}", top={"done": True, "error": {"code": 1, "message": "x"}}
        )
        assert (found.error, found.code, found.reason) == (None, None, None)


@pytest.mark.parametrize("bad", ["files/../x", "files/a b", "files/", "x", 7, "files/" + "x" * 500])
def test_an_output_nobody_could_name_is_not_asked_for(api, bad):
    """Neither when it is told, nor when it comes from a store."""
    told = gemini_batch("BATCH_STATE_SUCCEEDED", output={"responsesFile": bad})
    batches, server = api(says(told))
    assert fails(lambda: batches.get("abc1", PATIENCE)).code == "id"
    batch = RemoteBatch(id="abc1", state=RemoteState.COMPLETED)
    assert fails(lambda: list(batches.download(batch, str(bad), PATIENCE))).code == "id"
    assert len(server.requests) == 1


def test_the_next_page_is_asked_for_with_its_token(api):
    """Whatever characters it has."""
    batches, server = api(says({"operations": [gemini_batch()], "nextPageToken": "a/b+c=&d"}), says({}))
    assert two_pages(batches) == ["a/b+c=&d", None]
    assert [request.target for request in server.requests] == [
        "/v1/batches?pageSize=100",
        "/v1/batches?pageSize=100&pageToken=a%2Fb%2Bc%3D%26d",
    ]
    batches, _ = api(says({"operations": [], "nextPageToken": ["x"]}))
    assert fails(lambda: batches.page(None, PATIENCE)).kind is ErrorKind.INVALID_RESPONSE


# creates


@pytest.mark.parametrize(
    ("kind", "method"), [(Kind.GENERATE, "batchGenerateContent"), (Kind.EMBED, "asyncBatchEmbedContent")]
)
def test_a_create_names_its_file_and_its_mark(api, kind, method):
    """And nothing else."""
    batches, server = api(says(gemini_batch()))
    batches.create(Creation(MARK, "gemini-3.8-flash", kind, 5, file_id=FILE), PATIENCE)
    [request] = server.requests
    assert request.target == f"/v1/models/gemini-3.8-flash:{method}"
    assert request.json() == {"batch": {"displayName": f"sb-{MARK}", "inputConfig": {"fileName": FILE}}}
    assert request.headers["x-goog-api-key"] == GEMINI_KEY


@pytest.mark.parametrize("bad", [None, "", "files/../x", "x", "files/a?b"])
def test_a_create_without_a_file_is_refused(api, bad):
    """Nothing is sent, so nothing was created."""
    batches, server = api(says(gemini_batch()))
    found = fails(lambda: batches.create(Creation(MARK, "m", Kind.GENERATE, 5, file_id=bad), PATIENCE))
    assert (found.code, found.maybe_billed) == ("id", False)
    assert server.requests == []


def test_a_create_that_names_a_deleted_file_is_refused_for_certain(tmp_path):
    """The fence of this API; it is no fault of the key's, although it is answered 403."""
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


# files


def test_a_files_id_follows_from_its_name_and_keeps_every_bit_of_it():
    """Lower-case, at most 40 characters; names that differ in case only have different ids."""
    ids = {file_id_of(name) for name in ("sb-AbC", "sb-aBC", "sb-abc", "sb-ABC", "x" * 500, "ä")}
    assert len(ids) == 6
    assert all(len(name.removeprefix("files/")) <= 40 for name in ids)
    assert all(name == name.lower() for name in ids)
    assert file_id_of("sb-AbC") == "files/sb-pqqq7s3cw3k43pkafxfintattcvu2j6mwt2a"


def test_an_upload_meets_itself(tmp_path):
    """A second upload under its name returns the first, and another name gets another file."""
    path = tmp_path / "in"
    path.write_bytes(b"x" * 2500)
    with world(GEMINI) as (_, api):
        assert api.find_file("sb-x", PATIENCE) is None
        file = api.upload("sb-x", path, PATIENCE)
        assert (file.size, file.ready, file.name, file.id) == (2500, True, "sb-x", file_id_of("sb-x"))
        assert api.find_file("sb-x", PATIENCE) == file
        assert api.upload("sb-x", path, PATIENCE) == file
        assert api.upload("sb-y", path, PATIENCE).id != file.id


@pytest.mark.parametrize("size", [0, 999, 2500])
def test_an_upload_goes_to_where_the_service_says(api, tmp_path, size):
    """Announced with its length and sent whole; the key goes with the start only."""
    path = tmp_path / "in"
    path.write_bytes(b"x" * size)
    done = {"file": {"name": file_id_of("sb-x"), "sizeBytes": str(size), "state": "PROCESSING"}}

    def answer(exchange):
        if exchange.target.startswith("/upload/v1/files?"):
            says(done, x_goog_upload_status="final")(exchange)
        else:
            place = f"{url_of(exchange.server)}/upload/v1/files?upload_id=u1"
            says({}, x_goog_upload_url=place, x_goog_upload_status="active")(exchange)

    batches, server = api(answer, headers={"x-gateway": "letmein1"})
    file = batches.upload("sb-x", path, PATIENCE)
    assert (file.size, file.ready) == (size, False)
    start, sent = server.requests
    assert start.target == "/upload/v1/files"
    assert start.headers["x-goog-upload-header-content-length"] == str(size)
    assert start.json()["file"] == {
        "name": file_id_of("sb-x"),
        "display_name": "sb-x",
        "mime_type": "application/jsonl",
        "size_bytes": size,
    }
    assert sent.body == path.read_bytes()
    assert sent.target == "/upload/v1/files?upload_id=u1"
    assert sent.headers["x-goog-upload-command"] == "upload, finalize"
    assert sent.headers["x-goog-upload-offset"] == "0"
    assert "x-goog-api-key" not in sent.headers
    assert all(request.headers["x-gateway"] == "letmein1" for request in server.requests)


@pytest.mark.parametrize(
    "place",
    ["https://evil.example/upload/v1/files?upload_id=u1", "http://127.0.0.1:1/upload/v1/files?upload_id=u1"],
)
def test_prompts_go_to_no_other_server_than_the_base_urls(api, tmp_path, place):
    """Behind a gateway the service's own address is asked of the gateway."""
    path = tmp_path / "in"
    path.write_bytes(b"{}\n")
    done = {"file": {"name": file_id_of("sb-x")}}
    batches, server = api(says({}, x_goog_upload_url=place), says(done, x_goog_upload_status="final"))
    assert batches.upload("sb-x", path, PATIENCE).ready
    assert [request.target for request in server.requests][1] == "/upload/v1/files?upload_id=u1"


@pytest.mark.parametrize(
    "place", ["", "nowhere", "ftp://x/y", "http://a b/", "http://[::1/x", "http://x/" + "y" * 9000]
)
def test_an_upload_that_is_not_told_where_to_go_fails(api, tmp_path, place):
    """Nothing of it was sent."""
    path = tmp_path / "in"
    path.write_bytes(b"{}\n")
    batches, server = api(says({}, x_goog_upload_url=place))
    assert fails(lambda: batches.upload("sb-x", path, PATIENCE)).kind is ErrorKind.INVALID_RESPONSE
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [None, "cancelled", "active"])
def test_an_upload_that_breaks_off_fails_and_is_not_repeated(api, tmp_path, status):
    """Where the service does not say that it has all bytes, there is no file."""
    path = tmp_path / "in"
    path.write_bytes(b"x" * 10)
    extra = {} if status is None else {"x_goog_upload_status": status}
    batches, server = api(says({}, x_goog_upload_url="http://x/upload?id=1"), says({"file": {}}, **extra))
    assert fails(lambda: batches.upload("sb-x", path, PATIENCE)).kind is ErrorKind.INVALID_RESPONSE
    assert len(server.requests) == 2


def test_an_upload_ends_at_its_total_deadline(api, tmp_path):
    """Both calls together."""
    path = tmp_path / "in"
    path.write_bytes(b"x" * 10)
    batches, _ = api(says({}, x_goog_upload_url="http://x/upload?id=1"), hangs)
    assert fails(lambda: batches.upload("sb-x", path, 0.3)).kind is ErrorKind.TIMEOUT


def test_a_name_that_is_taken_is_looked_up(api, tmp_path):
    """With its size, by which the caller knows whether it is the same."""
    path = tmp_path / "in"
    path.write_bytes(b"x" * 10)
    taken = says(gemini_error(409, "ALREADY_EXISTS"), "409 Conflict")
    there = {"name": file_id_of("sb-x"), "sizeBytes": "7", "state": "ACTIVE"}
    batches, server = api(taken, says(there), taken, says(MAY_NOT_EXIST, "403 No"))
    found = batches.upload("sb-x", path, PATIENCE)
    assert (found.size, found.ready) == (7, True)
    assert fails(lambda: batches.upload("sb-x", path, PATIENCE)).status == 409
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("state", "ready"), [("ACTIVE", True), ("PROCESSING", False), (None, True), ("NEWSTATE", False)]
)
def test_a_file_is_ready_once_it_is_active(api, state, ready):
    """Until then no batch may name it."""
    batches, _ = api(says({"name": file_id_of("sb-x"), "state": state, "sizeBytes": 12}))
    found = batches.find_file("sb-x", PATIENCE)
    assert (found.ready, found.size) == (ready, 12)


def test_a_file_that_could_not_be_processed_is_an_error(api):
    """Its name is used up."""
    batches, _ = api(says({"name": file_id_of("sb-x"), "state": "FAILED"}))
    found = fails(lambda: batches.find_file("sb-x", PATIENCE))
    assert (found.kind, found.code) == (ErrorKind.CLIENT_ERROR, "file_failed")


def test_only_the_services_own_words_say_that_there_is_no_file(api):
    """Other refusals of the key, and pages of a gateway, are errors: a fence must be certain."""
    gone = (says(MAY_NOT_EXIST, "403 No"), says(gemini_error(404, "NOT_FOUND"), "404 No"))
    batches, _ = api(*gone, *gone)
    for _ in gone:
        assert batches.find_file("sb-x", PATIENCE) is None
    for _ in gone:
        batches.delete_file("files/x", PATIENCE)
    for script in (
        says(gemini_error(403, "PERMISSION_DENIED", "The key was leaked."), "403 No"),
        says(b"<html>it may not exist</html>", "404 No", content_type="text/html"),
        says(b"it may not exist", "403 No"),
        says(gemini_error(503, "UNAVAILABLE", "it may not exist"), "503 No"),
        resets,
    ):
        batches, _ = api(script)
        assert fails(lambda batches=batches: batches.find_file("sb-x", PATIENCE)).kind
        assert fails(lambda batches=batches: batches.delete_file("files/x", PATIENCE)).kind


@pytest.mark.parametrize("bad", ["files/../x", "batches/x", "", "files/a/b", "files/" + "x" * 999])
def test_an_odd_file_is_not_deleted(api, bad):
    """Nothing is sent."""
    batches, server = api(says({}))
    assert fails(lambda: batches.delete_file(bad, PATIENCE)).code == "id"
    assert server.requests == []


# lines


def test_an_answer_is_read_as_in_real_time():
    """Text, tokens with thoughts, model and why it ended."""
    line = line_of(response=says_gemini("Li", "ma", finish="MAX_TOKENS"))
    answer = line.answer
    assert (line.wire_id, line.outcome, answer.text, answer.finish_reason) == (
        "n-0",
        LineOutcome.OK,
        "Lima",
        "length",
    )
    assert answer.usage == Usage(31, 78, 5, 64)
    assert (answer.model, answer.provider_request_id) == ("gemini-3.8-flash-001", "r-1")


def test_a_blocked_prompt_is_an_answer_as_in_real_time():
    """Empty, with the reason as its end."""
    line = line_of(
        response={"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}}
    )
    assert (line.outcome, line.answer.text, line.answer.finish_reason) == (
        LineOutcome.OK,
        "",
        "content_filter",
    )


@pytest.mark.parametrize("response", [{}, {"candidates": []}, {"candidates": [7]}, None, [], "x"])
def test_an_answer_that_is_none_may_be_asked_for_again(response):
    """It may have been billed."""
    line = line_of(response=response)
    assert (line.outcome, line.error.kind) == (LineOutcome.RETRY, ErrorKind.INVALID_RESPONSE)
    assert line.error.maybe_billed


@pytest.mark.parametrize(
    ("code", "kind", "outcome"),
    [
        (0, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        (2, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        (3, ErrorKind.CLIENT_ERROR, LineOutcome.FAILED),
        (4, ErrorKind.TIMEOUT, LineOutcome.RETRY),
        (5, ErrorKind.CLIENT_ERROR, LineOutcome.FAILED),
        (6, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        (7, ErrorKind.AUTH_ERROR, LineOutcome.FAILED),
        (8, ErrorKind.RATE_LIMIT, LineOutcome.RETRY),
        (9, ErrorKind.CLIENT_ERROR, LineOutcome.FAILED),
        (10, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        (11, ErrorKind.CLIENT_ERROR, LineOutcome.FAILED),
        (12, ErrorKind.CLIENT_ERROR, LineOutcome.FAILED),
        (13, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        (14, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        (15, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        (16, ErrorKind.AUTH_ERROR, LineOutcome.FAILED),
        (99, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        (400, ErrorKind.CLIENT_ERROR, LineOutcome.FAILED),
        (503, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        ("3", ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        (None, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        (True, ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
    ],
)
def test_an_error_line_means_what_its_code_means(code, kind, outcome):
    """With details, on which the SDK breaks, and without."""
    for details in (
        {},
        {"details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1s"}]},
    ):
        line = line_of(error={"code": code, "message": "some text", **details})
        assert (line.outcome, line.error.kind, line.answer) == (outcome, kind, None)
        assert not line.error.maybe_billed
        assert "some text" in line.error.message


@pytest.mark.parametrize(
    ("error", "kind", "outcome"),
    [
        (
            {
                "code": 3,
                "message": "The input token count (1200000) exceeds the maximum number of tokens allowed",
            },
            ErrorKind.CONTEXT_TOO_LONG,
            LineOutcome.FAILED,
        ),
        (
            {"code": 8, "message": "Your prepayment credits are depleted."},
            ErrorKind.NO_MONEY,
            LineOutcome.UNRUN,
        ),
        (
            {
                "code": 8,
                "message": "no",
                "details": [violation("GenerateRequestsPerDayPerProject", "250"), retry_in("2s")],
            },
            ErrorKind.NO_MONEY,
            LineOutcome.UNRUN,
        ),
        ({"code": 9, "message": "Please enable billing"}, ErrorKind.NO_MONEY, LineOutcome.UNRUN),
        ("broken", ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
    ],
)
def test_an_error_line_says_more_in_its_text_and_details(error, kind, outcome):
    """Without money nothing was run, and nothing is wrong with the request."""
    line = line_of(error=error)
    assert (line.outcome, line.error.kind) == (outcome, kind)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"code": 1, "message": "The operation was cancelled."}, "batch_cancelled"),
        ({"code": 1}, "batch_cancelled"),
        ({"code": 4, "message": "The batch expired before the request ran."}, "batch_expired"),
    ],
)
def test_what_was_not_run_says_so(error, code):
    """Not billed, and not the request's fault."""
    line = line_of(error=error)
    assert (line.outcome, line.error.code, line.error.maybe_billed) == (LineOutcome.UNRUN, code, False)


@pytest.mark.parametrize(
    "line",
    [
        b'{"response": {}}',
        b'{"key": 7, "response": {}}',
        b'{"key": "a b", "response": {}}',
        b'{"key": "n-0", "respo',
    ],
)
def test_what_is_no_line_is_refused(line):
    """Without repeating any of it."""
    api = GeminiProvider(GEMINI_KEY).batches()
    with pytest.raises(ValueError, match="the line") as caught:
        api.read_line(line, Kind.GENERATE)
    assert caught.value.__cause__ is None


def test_the_key_does_not_come_back_in_a_line():
    """Errors of lines are scrubbed as all are."""
    line = line_of(error={"code": 13, "message": f"bad key {GEMINI_KEY}, sorry"})
    assert GEMINI_KEY not in repr(line.error.__dict__)
    assert "sorry" in line.error.message


# vectors


def test_a_batch_of_vectors_is_the_real_time_vectors(tmp_path):
    """One text a line; the numbers are exact."""
    asked = [Request(prompt=f"text {n}", embedding=Embedding(dimensions=8)) for n in range(3)]
    with world(GEMINI) as (emu, api):
        found = results(api, ended(api, create(api, tmp_path, asked, kind=Kind.EMBED)), Kind.EMBED)
        provider = GeminiProvider(GEMINI_KEY, emu.url)
        answers = provider.embed(asked, model="m", attempt=0, timeout=10)
        provider.close()
        for number, answer in enumerate(answers):
            assert found[f"{MARK}-{number}"].answer.embedding == answer.embedding
            assert len(answer.embedding) == 8
            assert found[f"{MARK}-{number}"].answer.usage.input_tokens > 0


def test_a_line_for_a_vector_has_the_options_of_real_time_and_no_model():
    """The model is the batch's."""
    api = GeminiProvider(GEMINI_KEY).batches()
    request = Request(prompt="a", embedding=Embedding(dimensions=64, task_type="CLUSTERING"))
    assert json.loads(api.encode(request, model="gemini-embedding-001", wire_id="n-0")) == {
        "key": "n-0",
        "request": {
            "content": {"role": "user", "parts": [{"text": "a"}]},
            "taskType": "CLUSTERING",
            "outputDimensionality": 64,
        },
    }


def test_a_vector_is_exact_and_its_tokens_are_texts():
    """As the API writes 64-bit numbers."""
    line = line_of(Kind.EMBED, response={"embedding": {"values": [0.1, -2, 3e-5]}, "tokenCount": "5"})
    assert line.answer.embedding == array("f", [0.1, -2, 3e-5])
    assert line.answer.usage == Usage(input_tokens=5)


@pytest.mark.parametrize(
    "values",
    [[], None, "AACA", [1, None], [1, "2"], [float("nan")], [float("inf")], [1e300], {"0": 1}, [True]],
)
def test_a_vector_that_is_none_is_not_delivered(values):
    """Its tokens are kept: they were billed."""
    line = line_of(Kind.EMBED, response={"embedding": {"values": values}, "tokenCount": "5"})
    assert (line.outcome, line.error.kind) == (LineOutcome.RETRY, ErrorKind.INVALID_RESPONSE)
    assert line.error.usage == Usage(input_tokens=5)
    assert line_of(Kind.EMBED, response={}).outcome is LineOutcome.RETRY


@pytest.mark.parametrize("tokens", ["x", "-1", -1, 2.5, "9" * 30, None, [], True])
def test_odd_token_counts_are_unknown(tokens):
    """The vector is as good."""
    line = line_of(Kind.EMBED, response={"embedding": {"values": [1.0]}, "tokenCount": tokens})
    assert (line.outcome, line.answer.usage) == (LineOutcome.OK, None)


def test_what_gemini_can_do():
    """Files, labels and a fence; both kinds."""
    abilities = GeminiProvider(GEMINI_KEY).batches().abilities
    assert abilities.files
    assert abilities.labels
    assert abilities.fence
    assert abilities.counts
    assert abilities.kinds == {Kind.GENERATE, Kind.EMBED}
