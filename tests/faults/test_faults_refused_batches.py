"""Batches that are refused before anything has run: because of some of their lines, or of their size."""

from __future__ import annotations

import json
from typing import Any

import pytest
from attrs import evolve

from smartbatch.emulator.provider_api import ServerReply
from smartbatch.errors import ErrorKind, ProviderError
from tests.faults.world import HOUR, PROVIDERS, Seen, World, in_batch, texts
from tests.levels import sampled

each_provider = pytest.mark.parametrize("provider", sampled(PROVIDERS, first=2))


def creates(w: World) -> list[int]:
    return [record.total for record in w.creates if record.outcome == "created"]


@each_provider
def test_c18_refused_lines_fail_and_the_others_are_sent_again(provider, new_world):
    bad = in_batch(0, "refused_lines", {3, 7})
    w = new_world(rare=240, batch_turnaround=HOUR, batch_line_fault_for=bad)
    prompts = texts(10)
    job = w.process().submit_batch(prompts)
    results = w.results(job)
    failed = [row for row, result in enumerate(results) if not result.ok]
    assert failed == ([3] if provider == "anthropic" else [3, 7])  # it names the first one only
    for row in failed:
        error = results[row].error
        assert isinstance(error, ProviderError)
        assert error.kind is ErrorKind.CLIENT_ERROR
        assert "rejected this request" in error.message
    right = w.right(prompts)
    assert [result.text for row, result in enumerate(results) if row not in failed] == [
        text for row, text in enumerate(right) if row not in failed
    ]
    assert [record.total for record in w.creates] == [10, 10 - len(failed)]
    assert not w.incidents(job)


@each_provider
@pytest.mark.parametrize("wording", sampled(["custom_id", "path", "line", "lines"], first=2))
def test_c18_refused_lines_are_found_in_the_texts_of_many_servers(wording, new_world):
    w = new_world()
    refused: list[bytes] = []

    def meet(seen: Seen) -> ServerReply | None:
        if seen.what == "upload" and b'"batch"' in seen.body:
            refused.append(seen.body)
        if seen.what != "create" or w.requests("create")[0] is not seen:
            return None
        return w.refusal(400, _text(wording, _ids(w, seen)))

    w.service.meet = meet
    results = w.results(w.process().submit_batch(texts(6)))
    wrong = [2, 4] if wording == "lines" else [2]
    assert [row for row, result in enumerate(results) if not result.ok] == wrong
    assert creates(w) == [6 - len(wrong)]


def _ids(w: World, create: Seen) -> list[str]:
    if w.provider == "anthropic":
        return [each["custom_id"] for each in json.loads(create.body)["requests"]]
    upload = w.requests("upload")[-1].body
    lines = [line for line in upload.splitlines() if line.startswith(b'{"') and b"question" in line]
    return [w.id_of(json.loads(line)) for line in lines]


def _text(wording: str, ids: list[str]) -> str:
    match wording:
        case "custom_id":
            return f"Invalid value for content of the request {ids[2]}"
        case "path":
            return "requests[2].contents: must not be empty"
        case "line":
            return "Line 3: expected an object"
    return "The lines 3 and 5 of the input are not valid"


@pytest.mark.parametrize(
    "text",
    [
        "Line 99 of the input is not valid",
        "Expecting value: line 1 column 5 (char 4)",
        "Invalid value: 'see line 3 of the poem'",
        "the model is not known",
    ],
)
def test_c18_a_refusal_without_lines_blames_none(text, new_world):
    w = new_world()
    w.service.meet = lambda seen: w.refusal(400, text) if seen.what == "create" else None
    results = w.results(w.process().submit_batch(texts(4)))
    assert all(str(result.error).startswith("the provider answered 400") for result in results)
    assert not creates(w)


def test_c18_a_refused_model_is_not_the_fault_of_lines(new_world):
    w = new_world(models=["another"])
    results = w.results(w.process().submit_batch(texts(4)))
    assert all("the batch failed in line 1 (model_not_found)" in str(r.error) for r in results)


def test_c18_a_batch_failed_by_the_provider_is_created_again_twice(new_world):
    w = new_world(may_pay_twice=True, rare=240, batch_turnaround=HOUR)
    failed: set[str] = set()

    def fail_two(seen: Seen, reply: ServerReply) -> ServerReply:
        if seen.what != "get" or (len(failed) == 2 and seen.path not in failed):
            return reply
        failed.add(seen.path)
        errors = {"data": [{"code": "server_error", "message": "The server had an error."}]}
        batch = {**json.loads(reply.body), "status": "failed", "errors": errors}
        return evolve(reply, body=json.dumps(batch).encode())

    w.service.alter = fail_two
    prompts = texts(4)
    assert [result.text for result in w.results(w.process().submit_batch(prompts))] == w.right(prompts)
    assert creates(w) == [4, 4, 4]


# -- limits --------------------------------------------------------------------------------------------------


@each_provider
@pytest.mark.parametrize("limit", sampled([{"batch_max_lines": 3}, {"batch_max_bytes": 1000}]))
def test_b12_a_batch_above_a_limit_is_halved_and_so_are_later_jobs(limit, new_world):
    w = new_world(**limit)
    prompts = texts(12)
    client, other = w.process(), w.process()
    assert [result.text for result in w.results(client.submit_batch(prompts))] == w.right(prompts)
    w.stop(client)
    refused = len(w.requests("create"))
    assert max(record.total for record in w.creates if record.state == "completed") < 12
    more = texts(12, "exercise")
    assert [result.text for result in w.results(other.submit_batch(more))] == w.right(more)
    later = w.creates[-(len(w.requests("create")) - refused) :]
    assert all(record.state == "completed" for record in later)  # none is refused any more
    assert sum(record.total for record in later) == 12


@each_provider
def test_b12_a_413_of_a_gateway_is_a_limit_as_well(provider, new_world):
    page = b"<html><head><title>413 Request Entity Too Large</title></head></html>"
    w = new_world()
    stage = "create" if provider == "anthropic" else "upload"

    def meet(seen: Seen) -> ServerReply | None:
        large = seen.what == stage and seen.body.count(b"question") > 3
        return ServerReply(413, page, content_type="text/html") if large else None

    w.service.meet = meet
    w.answered_job(texts(8))
    assert sorted(creates(w)) == ([1, 2, 2, 3] if provider == "anthropic" else [2, 2, 2, 2])


@each_provider
def test_b12_one_request_that_is_too_large_fails_alone(new_world):
    w = new_world(batch_max_bytes=1500)
    prompts = [*texts(5), "long " * 500, *texts(5, "more")]
    results = w.results(w.process().submit_batch(prompts))
    assert [row for row, result in enumerate(results) if not result.ok] == [5]
    error = results[5].error
    assert isinstance(error, ProviderError)


REASON = "Unknown parameter: 'seed'."
ALL = ("max_tokens", "seed", "json_schema")
ANY_OBJECT = {"title": "Anything", "type": "object"}


def test_c18_a_create_is_repeated_without_a_rejected_parameter(new_world):
    w = new_world()
    uploads: list[bytes] = []

    def meet(seen: Seen) -> object:
        if seen.what == "upload":
            uploads.append(seen.body)
        rejected = seen.what == "create" and b'"seed"' in uploads[-1]
        return w.refusal(400, REASON) if rejected else None

    w.service.meet = meet
    client = w.process(seed=7)
    job = client.submit_batch(texts(5))
    results = w.results(job)
    assert [result.ok for result in results] == [True] * 5
    assert ["seed" in json.loads(_line(body))["body"] for body in uploads] == [True, False]
    assert {name for result in results for name, _ in result.dropped} == {"seed"}
    assert client.metrics.snapshot().parameters_dropped == 1 + 5
    assert not w.incidents(job)


@pytest.mark.parametrize("where", ["create", "lines"])
def test_c18_parameters_are_refused_one_after_another(where, new_world):
    w = new_world(rejects=ALL if where == "lines" else ())
    if where == "create":
        _refuse_creates(w, ('"max_tokens"', '"seed"', '"json_schema"'))
    job = w.process(seed=7, max_tokens=50).submit_batch(texts(5), schema=ANY_OBJECT)
    results = w.results(job)
    assert [result.error for result in results] == [None] * 5
    assert len(w.requests("create")) == len(ALL) + 1
    assert not w.requests("ask")
    assert {result.attempts for result in results} == {1}
    assert not w.incidents(job)


@pytest.mark.parametrize("where", ["create", "lines"])
def test_c18_a_refusal_of_an_absent_parameter_fails_the_rows(where, new_world):
    w = new_world(may_pay_twice=True)
    if where == "create":
        w.service.meet = lambda seen: w.refusal(400, REASON) if seen.what == "create" else None
    else:
        w.rewrite_results(lambda lines: [_refused(json.loads(line)) for line in lines])
    job = w.process().submit_batch(texts(5))
    results = w.results(job)
    assert ["Unknown parameter" in str(result.error) for result in results] == [True] * 5
    assert len(w.requests("create")) <= 4


def _refused(line: dict[str, Any]) -> bytes:
    error = {"message": REASON, "type": "invalid_request_error"}
    response = {"status_code": 400, "request_id": "r", "body": {"error": error}}
    return json.dumps({**line, "response": response, "error": None}).encode()


def _refuse_creates(w: World, markers: tuple[str, ...]) -> None:
    uploads: list[bytes] = []

    def meet(seen: Seen) -> object:
        if seen.what == "upload":
            uploads.append(seen.body)
        if seen.what != "create":
            return None
        found = next((marker for marker in markers if marker.encode() in uploads[-1]), None)
        return None if found is None else w.refusal(400, f"Unknown parameter: '{found[1:-1]}'.")

    w.service.meet = meet


def _line(upload: bytes) -> bytes:
    return next(line for line in upload.splitlines() if line.startswith(b'{"custom_id"'))
