"""OpenAI's Batch API: files, creates, states and lists."""

from __future__ import annotations

import json
from functools import partial

import pytest
from asking import KEY
from batch_sides import OPENAI, create
from batch_sides import world as world_of
from batching import MARK, creation, described, ended, fails, requests, results, spool
from raw_server import error, says

from smartbatch.errors import ErrorKind
from smartbatch.providers.batch_api import RemoteState, enqueued_limit
from smartbatch.testing import answer_for
from smartbatch.types import Generation, Kind, Request

world = partial(world_of, OPENAI)


@pytest.fixture
def side():
    return OPENAI


@pytest.mark.parametrize("way", ["chat", "responses"])
def test_lines_carry_the_very_body_of_a_real_time_call(serve, connect, way):
    server = serve(says({"error": "no"}, "400 Bad Request"))
    provider = connect(server, api=way)
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    params = Generation(system="Be brief. ä", max_tokens=7, temperature=0.5, schema=schema)
    request = Request(prompt="Größe 猫?", params=params)
    fails(lambda: provider.generate(request, model="m", attempt=0, timeout=5))
    line = provider.batches().encode(request, model="m", wire_id="n-0")
    assert b"\n" not in line
    url = "/v1/chat/completions" if way == "chat" else "/v1/responses"
    assert json.loads(line) == {
        "custom_id": "n-0",
        "method": "POST",
        "url": url,
        "body": server.requests[0].json(),
    }
    assert line == provider.batches().encode(request, model="m", wire_id="n-0")


def test_a_batch_of_responses(tmp_path):
    with world(provider={"api": "responses"}) as (_, batches):
        found = results(batches, ended(batches, create(batches, tmp_path, requests(3))))
        assert found[f"{MARK}-2"].answer.text == answer_for("prompt 2", "m")


def test_the_quota_of_enqueued_tokens_keeps_its_code_and_its_number(tmp_path):
    limit = {"batch_enqueued_tokens": 10, "batch_turnaround": 3600}
    asked = requests(40)
    with world(**limit) as (_, batches):
        batch = ended(batches, create(batches, tmp_path, asked))
        assert (batch.state, batch.code) == (RemoteState.FAILED, "token_limit_exceeded")
        assert batch.error.kind is ErrorKind.RATE_LIMIT
        assert enqueued_limit(batch.reason) == 10
    with world(batch_enqueued_refusal="early", **limit) as (_, batches):
        found = fails(lambda: create(batches, tmp_path, asked))
        assert (found.code, found.kind) == ("token_limit_exceeded", ErrorKind.RATE_LIMIT)
        assert not found.maybe_billed
        assert enqueued_limit(found.message) == 10


def test_an_upload_is_found_by_its_name_and_deleted_twice_in_peace(tmp_path):
    with world() as (_, batches):
        source = spool(batches, tmp_path, requests(3))
        assert batches.find_file(f"sb-{MARK}", 5) is None
        file = batches.upload(f"sb-{MARK}", source, 5)
        assert (file.name, file.size, file.ready) == (f"sb-{MARK}", source.stat().st_size, True)
        assert batches.find_file(f"sb-{MARK}", 5) == file
        assert batches.find_file(f"sb-{MARK[:-1]}", 5) is None
        batches.delete_file(file.id, 5)
        batches.delete_file(file.id, 5)
        assert batches.find_file(f"sb-{MARK}", 5) is None


def test_a_create_after_its_file_is_deleted_is_refused_for_certain(tmp_path):
    with world() as (_, batches):
        file = batches.upload("sb-x", spool(batches, tmp_path, requests(1)), 5)
        batches.delete_file(file.id, 5)
        assert not fails(lambda: batches.create(creation(file.id), 5)).maybe_billed
        assert batches.page(None, 5).batches == ()


def test_the_form_is_multipart_with_the_bytes_of_the_file(api, tmp_path):
    batches, server = api(says({"id": "file-9", "bytes": 4, "filename": "sb-x.jsonl"}), batch_purpose="b-api")
    source = tmp_path / "lines"
    source.write_bytes(b"a\r\nb")
    assert batches.upload("sb-x", source, 5).id == "file-9"
    [sent] = server.requests
    boundary = sent.headers["content-type"].partition("boundary=")[2]
    parts = sent.body.split(f"--{boundary}".encode())
    assert parts[0] == b""
    assert parts[3] == b"--\r\n"
    assert parts[1] == b'\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nb-api\r\n'
    assert b'name="file"; filename="sb-x.jsonl"' in parts[2]
    assert parts[2].endswith(b"\r\n\r\na\r\nb\r\n")


def test_a_server_that_has_no_files_says_so_by_whatever_404(api, tmp_path):
    (tmp_path / "lines").write_bytes(b"{}\n")
    for body, kind in (("<p>No such page", "text/html"), (error("no route"), "application/json")):
        batches, _ = api(says(body, "404 Not Found", content_type=kind))
        assert fails(lambda: batches.upload("sb-x", tmp_path / "lines", 5)).kind is ErrorKind.CLIENT_ERROR  # noqa: B023


def test_an_upload_of_other_bytes_is_no_success(api, tmp_path):
    batches, _ = api(says({"id": "file-9", "bytes": 3, "filename": "sb-x.jsonl"}))
    (tmp_path / "lines").write_bytes(b"abcd")
    assert fails(lambda: batches.upload("sb-x", tmp_path / "lines", 5)).code == "truncated"


def test_a_file_that_is_still_processed_is_not_ready(api):
    listed = {"id": "file-1", "filename": "sb-x.jsonl", "bytes": 3, "status": "pending"}
    batches, _ = api(says({"data": [listed]}), says({"data": [{**listed, "status": "error"}]}))
    assert batches.find_file("sb-x", 5).ready is False
    assert fails(lambda: batches.find_file("sb-x", 5)).code == "file_error"


def test_a_file_is_looked_for_to_the_end_of_the_list(api):

    def files(*numbers, **more):
        return says({"data": [{"id": f"file-{n}", "filename": f"f{n}.jsonl"} for n in numbers], **more})

    batches, server = api(files(9, 8, has_more=True), files(7, 6, has_more=False))
    assert batches.find_file("f6", 5).id == "file-6"
    assert [request.target.partition("&after=")[2] for request in server.requests] == ["", "file-8"]
    assert "limit=10000" in server.requests[0].target
    for scripts, asked in [((files(9, 8), files(7), files()), 3), ((files(9, 8),), 2)]:
        batches, server = api(*scripts)
        assert batches.find_file("f1", 5) is None
        assert len(server.requests) == asked
    batches, _ = api(files(9, 8, has_more=True))
    assert fails(lambda: batches.find_file("f1", 5)).code == "endless"


@pytest.mark.parametrize(
    ("status", "body", "gone"),
    [
        ("200 OK", {"id": "file-1", "deleted": True}, True),
        ("204 No Content", "", True),
        ("404 Not Found", error("No such File object", "invalid_request_error"), True),
        ("200 OK", {"id": "file-1", "deleted": False}, False),
        ("404 Not Found", "<html>no such page</html>", False),
        ("403 Forbidden", error("no"), False),
        ("500 Internal Server Error", error("oh"), False),
    ],
)
def test_a_file_is_deleted_only_by_the_providers_own_word(api, status, body, gone):
    batches, server = api(says(body, status))
    if gone:
        batches.delete_file("file-1", 5)
    else:
        fails(lambda: batches.delete_file("file-1", 5))
    assert server.requests[0].head.startswith("DELETE /v1/files/file-1 ")


def test_a_create_is_one_request_that_says_all_it_should(api):
    batches, server = api(says(described()), batch_window="1h")
    batch = batches.create(creation(kind=Kind.EMBED), 5)
    [sent] = server.requests
    assert sent.head.startswith("POST /v1/batches ")
    assert sent.json() == {
        "input_file_id": "file-1",
        "endpoint": "/v1/embeddings",
        "completion_window": "1h",
        "metadata": {"sb": MARK, "sbn": "5"},
    }
    assert sent.headers["idempotency-key"] == MARK
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    assert (batch.id, batch.mark, batch.created_at) == ("batch_1", MARK, 1795000000.0)


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("validating", RemoteState.RUNNING),
        ("in_progress", RemoteState.RUNNING),
        ("QUEUED", RemoteState.RUNNING),
        ("finalizing", RemoteState.ENDING),
        ("cancelling", RemoteState.ENDING),
        ("completed", RemoteState.COMPLETED),
        ("COMPLETED", RemoteState.COMPLETED),
        ("failed", RemoteState.FAILED),
        ("EXPIRED", RemoteState.EXPIRED),
        ("cancelled", RemoteState.CANCELLED),
        ("a_word_of_tomorrow", RemoteState.RUNNING),
    ],
)
def test_each_word_has_its_meaning(api, word, state):
    batches, _ = api(says(described(status=word)))
    batch = batches.get("batch_1", 5)
    assert (batch.state, batch.word) == (state, word)
    assert (batch.total, batch.completed, batch.failed) == (5, 2, 1)


@pytest.mark.parametrize(
    "told",
    [
        {"id": "batch_1", "status": "COMPLETED", "created_at": "2026-11-18T12:26:40Z"},
        {"id": "batch_1", "job": {"id": "other"}, "status": "completed", "created_at": 1795004800},
        described(status="completed", created_at=1795004800.0, request_counts=None, metadata=None),
        described(
            status="completed", created_at=1795004800, new_field={"a": 1}, request_counts={"total": -1}
        ),
    ],
)
def test_what_servers_leave_out_or_write_otherwise_is_tolerated(api, told):
    batches, _ = api(says(told))
    batch = batches.get("batch_1", 5)
    assert (batch.state, batch.created_at) == (RemoteState.COMPLETED, 1795004800.0)
    assert (batch.total, batch.completed) in [(None, 0)]


def test_a_job_in_a_wrapping_is_unwrapped(api):
    batches, _ = api(says({"job": described(status="VALIDATING"), "warning": ""}, "201 Created"))
    assert batches.create(creation(), 5).mark == MARK


def test_both_files_are_read_and_one_that_is_there_twice_once(api):
    both = described(status="expired", output_file_id="file-2", error_file_id="file-3")
    batches, _ = api(
        says(both), says({**both, "error_file_id": "file-2"}), says({**both, "output_file_id": ""})
    )
    found = [batches.get("batch_1", 5) for _ in range(3)]
    assert [batch.outputs for batch in found] == [("file-2", "file-3"), ("file-2",), ("file-3",)]


@pytest.mark.parametrize(
    ("errors", "kind", "code"),
    [
        ({"data": [{"code": "invalid_json_line", "line": 3}]}, ErrorKind.CLIENT_ERROR, "invalid_json_line"),
        ({"data": [{"code": "insufficient_quota"}]}, ErrorKind.NO_MONEY, "insufficient_quota"),
        ({"data": [{"code": "server_error"}]}, ErrorKind.SERVER_ERROR, "server_error"),
        ([{"message": "Enqueued token limit reached"}], ErrorKind.RATE_LIMIT, "token_limit_exceeded"),
        ({"data": []}, ErrorKind.CLIENT_ERROR, None),
        ("odd", ErrorKind.CLIENT_ERROR, None),
        (None, ErrorKind.CLIENT_ERROR, None),
    ],
)  # fmt: skip
def test_why_a_batch_failed(api, errors, kind, code):
    batches, _ = api(says(described(status="failed", errors=errors)))
    batch = batches.get("batch_1", 5)
    assert (batch.error.kind, batch.error.code, batch.code) == (kind, code, code)
    assert batch.reason.startswith("the batch failed")


@pytest.mark.parametrize(
    ("status", "body", "good"),
    [
        ("200 OK", described(status="cancelling"), True),
        ("409 Conflict", error("Cannot cancel a batch with status 'completed'."), True),
        ("400 Bad Request", error("Cannot cancel"), True),
        ("400 Bad Request", "<html>", False),
        ("404 Not Found", error("none"), False),
        ("500 Oh", error("oh"), False),
    ],
)
def test_a_cancel_is_done_when_there_is_nothing_left_to_cancel(api, status, body, good):
    batches, server = api(says(body, status))
    if good:
        batches.cancel("batch_1", 5)
    else:
        fails(lambda: batches.cancel("batch_1", 5))
    assert server.requests[0].head.startswith("POST /v1/batches/batch_1/cancel ")
    assert server.requests[0].headers["content-length"] == "0"


def test_a_foreign_unreadable_batch_hides_nothing_and_ours_is_an_error(api):
    strange = described(id="a/b", metadata={"job": "j"})
    batches, _ = api(says({"data": [strange, described()], "has_more": False}))
    assert [batch.id for batch in batches.page(None, 5).batches] == ["batch_1"]
    batches, _ = api(says({"data": [described(id="a/b")], "has_more": False}))
    assert fails(lambda: batches.page(None, 5)).kind is ErrorKind.INVALID_RESPONSE


@pytest.mark.parametrize("body", ["[]", {"data": None}, {}, "<html>", '{"data": ['])
def test_what_is_no_list_is_not_an_empty_one(api, body):
    batches, _ = api(says(body))
    fails(lambda: batches.page(None, 5))
    fails(lambda: batches.find_file("sb-x", 5))


def test_a_list_that_turns_in_a_circle_is_an_error(api):
    batches, _ = api(says({"data": [described()], "has_more": True}))
    assert batches.page(None, 5).next == "batch_1"
    assert fails(lambda: batches.page("batch_1", 5)).code == "endless"


def test_long_ids_of_gateways_are_taken(api):
    long = "bGl0ZWxsbV9wcm94eTo" * 30 + "=="
    batches, server = api(says(described(id=long)))
    assert batches.get(long, 5).id == long
    assert server.requests[0].target == f"/v1/batches/{long.replace('=', '%3D')}"


def test_an_error_that_repeats_the_key_is_scrubbed(api):
    key = "canary+of+an+unusual+form"
    text = f"key {key} is wrong"
    batches, _ = api(
        says(error(text), "401 No"),
        says(described(status="failed", errors={"data": [{"code": "x", "message": text}]})),
        api_key=key,
    )
    assert fails(lambda: batches.get("batch_1", 5)).kind is ErrorKind.AUTH_ERROR
    assert "canary" not in repr(batches.get("batch_1", 5))
    line = json.dumps({"custom_id": "n-0", "response": None, "error": {"code": "x", "message": text}})
    assert "canary" not in repr(batches.read_line(line.encode(), Kind.GENERATE))
