"""OpenAI's Batch API from the adapter's side: files, creates, states, lists, and what each outcome means."""

from __future__ import annotations

import json
import socket

import pytest
from asking import KEY
from batching import MARK, create, creation, described, ended, fails, requests, results, spool, world
from raw_server import error, hangs, http, resets, says, vanishes

from smartbatch.errors import ErrorKind, InvalidRequest
from smartbatch.providers.batch_api import LineOutcome, RemoteState, enqueued_limit
from smartbatch.providers.openai.provider import OpenAIProvider
from smartbatch.testing import answer_for
from smartbatch.types import Embedding, Generation, Kind, Request


@pytest.fixture
def api(serve, connect):
    """``api(script, …)`` returns the Batch API of a provider whose server says that; and the server."""

    def start(*scripts, **options):
        server = serve(*scripts)
        return connect(server, **options).batches(), server

    return start


# a whole batch


def test_a_batch_from_the_upload_to_the_last_result(tmp_path):
    """What is created shows its mark, its file and its size; each request gets its own answer."""
    with world(batch_turnaround=0.05) as (emu, batches):
        batch = create(batches, tmp_path, requests(7))
        assert (batch.mark, batch.total) == (MARK, 7)
        batch = ended(batches, batch)
        assert (batch.state, batch.word) == (RemoteState.COMPLETED, "completed")
        assert (batch.completed, batch.failed, batch.error) == (7, 0, None)
        found = results(batches, batch)
        assert set(found) == {f"{MARK}-{number}" for number in range(7)}
        for number in range(7):
            line = found[f"{MARK}-{number}"]
            assert line.outcome is LineOutcome.OK
            assert line.answer.text == answer_for(f"prompt {number}", "m")
            assert line.answer.usage.input_tokens > 0
        [record] = emu.ledger.batches
        assert all(line.delivered for line in record.lines.values())


@pytest.mark.parametrize("way", ["chat", "responses"])
def test_lines_carry_the_very_body_of_a_real_time_call(serve, connect, way):
    """All parameters are in it, and the url is the endpoint's."""
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


def test_a_batch_of_vectors_is_the_real_time_vectors(tmp_path):
    """One text a line; the numbers are exact."""
    asked = [Request(prompt=f"text {n}", embedding=Embedding(dimensions=8)) for n in range(3)]
    with world() as (emu, batches):
        batch = ended(batches, create(batches, tmp_path, asked, kind=Kind.EMBED))
        found = results(batches, batch, Kind.EMBED)
        provider = OpenAIProvider(api_key=KEY, base_url=emu.base_url)
        answers = provider.embed(asked, model="m", attempt=0, timeout=10)
        provider.close()
        for number, answer in enumerate(answers):
            assert found[f"{MARK}-{number}"].answer.embedding == answer.embedding
            assert len(answer.embedding) == 8


def test_a_request_that_is_wrong_fails_alone(tmp_path):
    """Its line is in the error file, which is read too."""
    asked = [*requests(2), Request(prompt="x", params=Generation(temperature=0.1, extra={"messages": []}))]
    with world() as (_, batches):
        batch = ended(batches, create(batches, tmp_path, asked))
        assert len(batch.outputs) == 2
        found = results(batches, batch)
        wrong = found[f"{MARK}-2"]
        assert (wrong.outcome, wrong.error.kind) == (LineOutcome.FAILED, ErrorKind.CLIENT_ERROR)
        assert found[f"{MARK}-1"].outcome is LineOutcome.OK


@pytest.mark.parametrize(
    ("fault", "state"),
    [
        ("expire_all", RemoteState.EXPIRED),
        ("expire_part", RemoteState.EXPIRED),
        ("fail_validation", RemoteState.FAILED),
    ],
)
def test_every_end_is_told_apart_and_read(tmp_path, fault, state):
    """What has not run says so; a batch that failed as a whole says why."""
    with world(batch_faults={fault: 1.0}, batch_window=0.05) as (_, batches):
        batch = ended(batches, create(batches, tmp_path, requests(4)))
        assert batch.state is state
        if state is RemoteState.FAILED:
            assert batch.outputs == ()
            assert batch.error.kind is ErrorKind.CLIENT_ERROR
            assert batch.reason == batch.error.message
            assert batch.code == batch.error.code is not None
        else:
            outcomes = [line.outcome for line in results(batches, batch).values()]
            assert outcomes.count(LineOutcome.UNRUN) == (4 if fault == "expire_all" else 2)
            assert outcomes.count(LineOutcome.OK) == (0 if fault == "expire_all" else 2)


def test_a_cancelled_batch_keeps_what_came_and_is_cancelled_twice_in_peace(tmp_path):
    with world(batch_turnaround=3600) as (_, batches):
        batch = create(batches, tmp_path, requests(4))
        batches.cancel(batch.id, 5)
        batch = ended(batches, batch)
        assert batch.state is RemoteState.CANCELLED
        assert {line.outcome for line in results(batches, batch).values()} == {LineOutcome.UNRUN}
        batches.cancel(batch.id, 5)
    with world() as (_, batches):
        batch = ended(batches, create(batches, tmp_path, requests(1)))
        batches.cancel(batch.id, 5)  # it has completed: nothing to cancel, and no error


def test_the_quota_of_enqueued_tokens_keeps_its_code_and_its_number(tmp_path):
    """Refused at the create, or minutes later: both say so in the same words."""
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


# files


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
    """And under a name that ends as OpenAI asks."""
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
    """Page after page, and where a server does not say whether there is more, until nothing new comes."""

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
    """A fence that is not certain is none."""
    batches, server = api(says(body, status))
    if gone:
        batches.delete_file("file-1", 5)
    else:
        fails(lambda: batches.delete_file("file-1", 5))
    assert server.requests[0].head.startswith("DELETE /v1/files/file-1 ")


# creates


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


REFUSED = [(status, error("no", "invalid_request_error")) for status in (400, 401, 403, 404, 413, 422, 429)]
UNKNOWN = [
    *[(status, error("oh", "server_error")) for status in (408, 409, 500, 502, 503, 504)],
    *[(status, "<html>gateway</html>") for status in (400, 403, 404, 413, 429, 502)],
    (422, {"detail": "unreadable"}),
    (307, ""),
    (200, ""),
    (200, "<html>sign in</html>"),
    (200, '{"id": "batch_1", "sta'),
    (200, {"object": "batch"}),
    (200, described(id="../../files/file-1")),
    (200, error("no", "invalid_request_error")),
]


@pytest.mark.parametrize(("status", "body"), REFUSED)
def test_a_refusal_in_the_providers_words_created_nothing(api, status, body):
    batches, server = api(says(body, f"{status} No"))
    found = fails(lambda: batches.create(creation(), 5))
    assert (found.status, found.maybe_billed) == (status, False)
    assert len(server.requests) == 1


@pytest.mark.parametrize(("status", "body"), UNKNOWN)
def test_any_other_answer_may_have_created_a_batch(api, status, body):
    """And the create is not repeated, whatever the status is."""
    batches, server = api(says(body, f"{status} Hm", location="http://127.0.0.1:9/", retry_after="0"))
    assert fails(lambda: batches.create(creation(), 5)).maybe_billed
    assert (len(server.requests), server.connections) == (1, 1)


def cut_refusal(exchange):
    whole = http(json.dumps(error("no")).encode(), "400 No")
    exchange.send(whole[:-5])
    exchange.close()


@pytest.mark.parametrize("script", [resets, vanishes, hangs, cut_refusal, says(described(), "201 Created")])
def test_a_create_whose_answer_is_lost_is_unknown(api, script):
    batches, server = api(script)
    if script not in (resets, vanishes, hangs, cut_refusal):
        assert batches.create(creation(), 5).id == "batch_1"
        return
    assert fails(lambda: batches.create(creation(), 0.3)).maybe_billed
    assert len(server.requests) == 1


def test_a_create_that_reached_nobody_created_nothing(serve, connect):
    """Refused connections, unknown names, untrusted certificates, no time left, a closed provider."""
    server = serve(says(described()), tls=True)
    untrusted = connect(server).batches()
    found = fails(lambda: untrusted.create(creation(), 5))
    assert (found.code, found.maybe_billed) == ("tls", False)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    unreachable = OpenAIProvider(api_key=KEY, base_url=f"http://127.0.0.1:{port}/v1").batches()
    gone = fails(lambda: unreachable.create(creation(), 5))
    assert (gone.code, gone.maybe_billed) == ("refused", False)
    provider = OpenAIProvider(api_key=KEY, base_url="https://nowhere.invalid/v1")
    nowhere = provider.batches()
    assert not fails(lambda: nowhere.create(creation(), 5)).maybe_billed
    assert not fails(lambda: nowhere.create(creation(), 0)).maybe_billed
    provider.close()
    closed = fails(lambda: nowhere.create(creation(), 5))
    assert (closed.code, closed.maybe_billed) == ("closed", False)
    assert server.requests == []


def test_creates_that_vanish_are_found_in_the_list(tmp_path):
    """The emulator loses the answer; the batch is there, with its mark and its file."""
    with world(batch_faults={"lost_create": 1.0}) as (_, batches):
        assert fails(lambda: create(batches, tmp_path, requests(2))).maybe_billed
        [batch] = batches.page(None, 5).batches
        assert (batch.mark, batch.total) == (MARK, 2)
        assert batch.file_id == batches.find_file(f"sb-{MARK}", 5).id
    with world(batch_faults={"dropped_create": 1.0}) as (_, batches):
        assert fails(lambda: create(batches, tmp_path, requests(2))).maybe_billed
        assert batches.page(None, 5).batches == ()


# states


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
    """As Together answers a create."""
    batches, _ = api(says({"job": described(status="VALIDATING"), "warning": ""}, "201 Created"))
    assert batches.create(creation(), 5).mark == MARK


def test_both_files_are_read_and_one_that_is_there_twice_once(api):
    both = described(status="expired", output_file_id="file-2", error_file_id="file-3")
    batches, _ = api(
        says(both), says({**both, "error_file_id": "file-2"}), says({**both, "output_file_id": ""})
    )
    found = [batches.get("batch_1", 5) for _ in range(3)]
    assert [batch.outputs for batch in found] == [("file-2", "file-3"), ("file-2",), ("file-3",)]
    assert batches.output_files(found[0]) == ("file-2", "file-3")


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
    ("status", "body", "gone"),
    [
        ("404 Not Found", error("No batch found with id 'batch_1'", "invalid_request_error"), True),
        ("404 Not Found", "<html>", False),
        ("404 Not Found", {"detail": "Not Found"}, False),
        ("403 Forbidden", error("not yours"), False),
        ("500 Oh", error("oh"), False),
    ],
)
def test_a_batch_is_gone_only_by_the_providers_own_word(api, status, body, gone):
    batches, _ = api(says(body, status))
    if gone:
        assert batches.get("batch_1", 5) is None
    else:
        fails(lambda: batches.get("batch_1", 5))


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


# lists


def test_lists_are_followed_page_by_page(tmp_path):
    with world() as (_, batches):
        marks = [f"{MARK[:-3]}{number:03d}" for number in range(103)]
        for mark in marks:
            create(batches, tmp_path, requests(1), mark)
        first = batches.page(None, 5)
        assert [batch.mark for batch in first.batches] == marks[:2:-1]
        second = batches.page(first.next, 5)
        assert [batch.mark for batch in second.batches] == marks[2::-1]
        assert second.next is None


def test_a_list_tells_the_servers_time(api):
    batches, _ = api(says({"data": []}, date="Wed, 18 Nov 2026 12:26:40 GMT"), says({"data": []}, date="now"))
    assert batches.page(None, 5).server_time == 1795004800.0
    assert batches.page(None, 5).server_time is None


def test_a_strangers_unreadable_batch_hides_nothing_and_ours_is_an_error(api):
    """A list is evidence of absence: what may be ours must not be skipped."""
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


# hostile ids


HOSTILE = [
    "../files/file-1",
    "a/b",
    "a\\b",
    "a b",
    "a\r\nX: y",
    "a\0",
    "",
    ".",
    "..",
    "%2e%2e",
    "a?b",
    "ä",
    "x" * 10_000,
]


@pytest.mark.parametrize("bad", HOSTILE, ids=range(len(HOSTILE)))
def test_no_odd_id_is_ever_asked_for(api, bad):
    """It is refused before anything is sent, and when a server names it."""
    batches, server = api(says(described(id=bad)), says(described(output_file_id=bad or "/")))
    for call in (
        lambda: batches.get(bad, 5),
        lambda: batches.cancel(bad, 5),
        lambda: batches.delete_file(bad, 5),
        lambda: list(batches.download(None, bad, 5)),
    ):
        with pytest.raises(InvalidRequest) as caught:
            call()
        assert bad not in caught.value.message or len(bad) < 2
    assert server.requests == []
    for _ in range(2):
        assert fails(lambda: batches.get("batch_1", 5)).kind is ErrorKind.INVALID_RESPONSE


def test_long_ids_of_gateways_are_taken(api):
    """LiteLLM's are base64 texts of hundreds of characters."""
    long = "bGl0ZWxsbV9wcm94eTo" * 30 + "=="
    batches, server = api(says(described(id=long)))
    assert batches.get(long, 5).id == long
    assert server.requests[0].target == f"/v1/batches/{long.replace('=', '%3D')}"


# life


def test_the_batch_api_is_made_once_and_anew_after_a_close(serve, connect):
    server = serve(says(described()))
    provider = connect(server)
    batches = provider.batches()
    assert provider.batches() is batches
    assert (batches.name, batches.scope) == ("openai", provider.scope)
    provider.close()
    assert fails(lambda: batches.get("batch_1", 5)).code == "closed"
    provider.open(1)
    assert provider.batches().get("batch_1", 5).id == "batch_1"


def test_an_error_that_repeats_the_key_is_scrubbed(api):
    """In refusals, in reasons, and with a key that has no usual form."""
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
