"""Anthropic's Message Batches: states, results, lines and the body of a create."""

from __future__ import annotations

import json

import pytest
from asking import KEY, request_of, url_of
from batch_sides import ANTHROPIC, claude_batch
from batching import MARK, PATIENCE, fails, two_pages
from claude import error, message
from raw_server import says

from smartbatch.errors import ErrorKind
from smartbatch.providers import AnthropicProvider
from smartbatch.providers.batch_api import Creation, Line, LineOutcome, RemoteBatch, RemoteState
from smartbatch.types import Kind, Usage

BATCH = RemoteBatch(id="msgbatch_1", state=RemoteState.COMPLETED)


@pytest.fixture
def side():
    return ANTHROPIC


def counts(**given: int) -> dict[str, int]:
    return {
        name: given.get(name, 0) for name in ("processing", "succeeded", "errored", "canceled", "expired")
    }


def looked_at(api, **changes) -> RemoteBatch:
    batches, _ = api(says(claude_batch(**changes)))
    found = batches.get("msgbatch_1", PATIENCE)
    assert found is not None
    return found


def line_of(result, wire_id="n-0") -> Line:
    api = AnthropicProvider(KEY).batches()
    return api.read_line(json.dumps({"custom_id": wire_id, "result": result}).encode(), Kind.GENERATE)


@pytest.mark.parametrize(
    ("word", "given", "state"),
    [
        ("in_progress", counts(processing=5), RemoteState.RUNNING),
        ("canceling", counts(processing=5), RemoteState.ENDING),
        ("ended", counts(succeeded=5), RemoteState.COMPLETED),
        ("ended", counts(errored=5), RemoteState.COMPLETED),
        ("ended", counts(succeeded=2, canceled=3), RemoteState.COMPLETED),
        ("ended", counts(succeeded=2, expired=3), RemoteState.COMPLETED),
        ("ended", counts(canceled=5), RemoteState.CANCELLED),
        ("ended", counts(expired=5), RemoteState.EXPIRED),
        ("ended", None, RemoteState.COMPLETED),
        ("resting", counts(processing=5), RemoteState.RUNNING),
        (None, counts(processing=5), RemoteState.RUNNING),
        (7, counts(succeeded=5), RemoteState.RUNNING),
    ],
)
def test_a_state_is_read_from_its_word_and_the_counts(api, word, given, state):
    found = looked_at(api, status=word, request_counts=given)
    assert found.state is state
    assert found.outputs == (("/v1/messages/batches/msgbatch_1/results",) if state.ended else ())
    assert found.total == (5 if given else None)


def test_a_batch_tells_its_size_and_its_age_and_ignores_what_is_new(api):
    given = counts(processing=1, succeeded=3, errored=1)
    found = looked_at(api, request_counts={**given, "paused": 9}, novelty={"a": [1]})
    assert (found.total, found.completed, found.failed) == (5, 3, 1)
    assert found.created_at == 1795168800.0
    assert (found.mark, found.file_id, found.error, found.word) == (None, None, None, "in_progress")


@pytest.mark.parametrize("absurd", [-1, True, "5", 10**30, None, 2.5])
def test_absurd_counts_and_times_are_unknown(api, absurd):
    found = looked_at(api, request_counts=dict.fromkeys(counts(), absurd), created_at=absurd)
    assert (found.total, found.created_at) == (None, None)


def test_results_are_fetched_from_the_address_in_the_batch_if_same_server(api):
    batches, server = api(says(b"{}\n"))
    place = f"{url_of(server)}/v1/messages/batches/msgbatch_1/results"
    assert b"".join(batches.download(BATCH, place, PATIENCE)) == b"{}\n"
    [request] = server.requests
    assert (request.target, request.headers["accept"]) == (
        "/v1/messages/batches/msgbatch_1/results",
        "application/binary",
    )
    assert request.headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "place",
    [
        "https://evil.example/v1/messages/batches/msgbatch_1/results",
        "http://127.0.0.1:1/v1/messages/batches/msgbatch_1/results",
        "//evil.example/results",
        "file:///etc/passwd",
        "http://user:pass@127.0.0.1/x",
        "http://[::1/x",
        "results",
        "x" * 5000,
        7,
    ],
)
def test_results_are_never_fetched_from_another_server(api, place):
    usual = "/v1/messages/batches/msgbatch_1/results"
    batches, server = api(says(claude_batch("ended", results_url=place)), says(b"{}\n"))
    batch = batches.get("msgbatch_1", PATIENCE)
    assert batch.outputs == (usual,)
    assert b"".join(batches.download(batch, batch.outputs[0], PATIENCE)) == b"{}\n"
    assert server.requests[1].target == usual
    if place != "results":
        assert fails(lambda: list(batches.download(BATCH, str(place), PATIENCE))).code == "id"
    assert len(server.requests) == 2


@pytest.mark.parametrize("output", ["/v1/../../x", "/v1/a?b=c", "/v1/a%2fb", "/v1/a\r\nx: y", "/v1/é"])
def test_an_odd_place_of_results_is_not_asked_for(api, output):
    batches, server = api(says(b"{}"))
    assert fails(lambda: list(batches.download(BATCH, output, PATIENCE))).code == "id"
    assert server.requests == []


def test_an_answer_is_read_as_in_real_time():
    line = line_of({"type": "succeeded", "message": message("Lima", stop_reason="max_tokens")})
    assert (line.wire_id, line.outcome, line.error) == ("n-0", LineOutcome.OK, None)
    answer = line.answer
    assert (answer.text, answer.finish_reason, answer.provider_request_id) == ("Lima", "length", "msg_1")
    assert answer.usage == Usage(138, 14, 100, 5, cache_write_tokens=7)


def test_an_answer_that_is_none_may_be_asked_for_again_and_was_billed():
    line = line_of({"type": "succeeded", "message": message(content=None)})
    assert (line.outcome, line.error.kind) == (LineOutcome.RETRY, ErrorKind.INVALID_RESPONSE)
    assert (line.error.usage, line.error.maybe_billed) == (Usage(138, 14, 100, 5, cache_write_tokens=7), True)


@pytest.mark.parametrize(
    ("type_", "text", "kind", "outcome"),
    [
        ("invalid_request_error", "max_tokens: Field required", ErrorKind.CLIENT_ERROR, LineOutcome.FAILED),
        (
            "invalid_request_error",
            "prompt is too long: 213462 tokens > 200000 maximum",
            ErrorKind.CONTEXT_TOO_LONG,
            LineOutcome.FAILED,
        ),
        ("permission_error", "no", ErrorKind.AUTH_ERROR, LineOutcome.FAILED),
        ("billing_error", "no", ErrorKind.NO_MONEY, LineOutcome.UNRUN),
        (
            "invalid_request_error",
            "Your credit balance is too low.",
            ErrorKind.NO_MONEY,
            LineOutcome.UNRUN,
        ),
        ("rate_limit_error", "no", ErrorKind.RATE_LIMIT, LineOutcome.RETRY),
        ("api_error", "no", ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        ("brand_new_error", "no", ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
        (None, "no", ErrorKind.SERVER_ERROR, LineOutcome.RETRY),
    ],
)
def test_an_error_line_means_what_the_error_means_in_real_time(type_, text, kind, outcome):
    for shape in (error(type_, text), {"type": type_, "message": text}):
        line = line_of({"type": "errored", "error": shape})
        assert (line.outcome, line.error.kind, line.answer) == (outcome, kind, None)
        assert not line.error.maybe_billed
        assert text in line.error.message
        assert "stream" not in line.error.message


@pytest.mark.parametrize(("word", "code"), [("canceled", "batch_cancelled"), ("expired", "batch_expired")])
def test_what_was_not_run_says_so(word, code):
    line = line_of({"type": word})
    assert (line.outcome, line.error.code, line.error.maybe_billed) == (LineOutcome.UNRUN, code, False)


@pytest.mark.parametrize(
    "result",
    [{"type": "novel"}, {}, {"type": "succeeded"}, {"type": "errored"}, {"type": "errored", "error": "x"}],
)
def test_a_result_nobody_understands_is_not_lost(result):
    line = line_of(result)
    assert (line.outcome, line.error.kind) == (LineOutcome.RETRY, ErrorKind.INVALID_RESPONSE)


@pytest.mark.parametrize("line", [b'{"custom_id": "n-0"}', b'{"custom_id": "n-0", "result": null}'])
def test_a_line_without_a_result_is_none(line):
    with pytest.raises(ValueError, match="the line"):
        AnthropicProvider(KEY).batches().read_line(line, Kind.GENERATE)


def test_the_key_does_not_come_back_in_a_line():
    line = line_of({"type": "errored", "error": error("api_error", f"bad key {KEY}, sorry")})
    assert KEY not in repr(line.error.__dict__)
    assert "sorry" in line.error.message


def test_a_create_holds_every_line_as_it_was_written(api, tmp_path):
    batches, server = api(says(claude_batch()))
    asked = [request_of(f"prompt {n} ä\n\u2028", temperature=0.5) for n in range(500)]
    lines = [batches.encode(each, model="m", wire_id=f"{MARK}-{n}") for n, each in enumerate(asked)]
    path = tmp_path / "in"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    batches.create(Creation(MARK, "m", Kind.GENERATE, 500, lines=path), PATIENCE)
    [request] = server.requests
    assert request.json() == {"requests": [json.loads(line) for line in lines]}
    assert len(request.body) == path.stat().st_size + batches.overhead(500) - 1
    assert request.headers["content-length"] == str(len(request.body))
    assert request.headers["anthropic-version"] == "2026-10-21"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["x-stainless-retry-count"] == "0"


def test_a_create_without_its_input_is_refused(api):
    batches, server = api(says(claude_batch()))
    found = fails(lambda: batches.create(Creation(MARK, "m", Kind.GENERATE, 1), PATIENCE))
    assert (found.kind, found.maybe_billed) == (ErrorKind.CLIENT_ERROR, False)
    assert server.requests == []


def test_the_lists_next_page_begins_after_its_last_batch(api):
    more = {"data": [claude_batch(), claude_batch(name="msgbatch_0")], "has_more": True}
    batches, server = api(says(more), says({"data": [], "has_more": True}))
    assert two_pages(batches) == ["msgbatch_0", None]
    assert [request.target for request in server.requests] == [
        "/v1/messages/batches?limit=100",
        "/v1/messages/batches?limit=100&after_id=msgbatch_0",
    ]
