"""Servers that reject a parameter of a batch as a whole: its requests go again without it, and none fails."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.faults.world import NewWorld, Seen, World, texts

REASON = "Unknown parameter: 'seed'."
ALL = ("max_tokens", "seed", "json_schema")
ANY_OBJECT = {"title": "Anything", "type": "object"}


def test_c18_a_create_is_repeated_without_a_rejected_parameter(new_world: NewWorld) -> None:
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


def test_c18_lines_are_refused_for_one_parameter_after_another(new_world: NewWorld) -> None:
    w = new_world(rejects=ALL)
    client = w.process(seed=7, max_tokens=50)
    job = client.submit_batch(texts(5), schema=ANY_OBJECT)
    results = w.results(job)
    assert [result.error for result in results] == [None] * 5
    assert len(w.creates) == len(ALL) + 1
    assert not w.requests("ask")
    assert {result.attempts for result in results} == {1}
    assert not w.incidents(job)


def test_c18_creates_are_refused_for_one_parameter_after_another(new_world: NewWorld) -> None:
    w = new_world()
    _refuse_creates(w, ('"max_tokens"', '"seed"', '"json_schema"'))
    client = w.process(seed=7, max_tokens=50)
    results = w.results(client.submit_batch(texts(5), schema=ANY_OBJECT))
    assert [result.error for result in results] == [None] * 5
    assert len(w.requests("create")) == len(ALL) + 1


@pytest.mark.parametrize("where", ["create", "lines"])
def test_c18_a_refusal_of_an_absent_parameter_fails_the_rows(where: str, new_world: NewWorld) -> None:
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
