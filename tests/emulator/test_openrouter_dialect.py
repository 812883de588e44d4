from __future__ import annotations

import pytest
from host_world import Reply, Visitor, request, visiting


@pytest.fixture
def openrouter():
    with visiting("openrouter") as visitor:
        yield visitor


def create(visitor: Visitor, count: int = 4, **fields: object) -> Reply:
    job = {"endpoint": "/v1/chat/completions", "model": "m", **fields}
    return visitor.post("/batches", {**job, "requests": [request(number) for number in range(count)]})


def test_a_batch_is_accepted_with_202_and_has_results_and_cost(openrouter):
    created = create(openrouter)
    batch = openrouter.get(f"/batches/{created.json['id']}").json
    assert (created.status, created.json["results"], batch["status"]) == (202, None, "completed")
    assert [each["custom_id"] for each in batch["results"]] == [f"id-{number}" for number in range(4)]
    single = [each["response"]["body"]["usage"]["cost"] for each in batch["results"]]
    assert batch["usage"]["cost"] == pytest.approx(sum(single))
    assert openrouter.emu.ledger.summary()["batches"]["lines_delivered"] == 4


def test_an_answer_in_real_time_costs_twice_as_much(openrouter):
    batch = openrouter.get(f"/batches/{create(openrouter, 1).json['id']}").json
    single = openrouter.chat("prompt 0").json["usage"]["cost"]
    assert single == pytest.approx(2 * batch["usage"]["cost"])
    assert b'"cost": ' in openrouter.chat(stream=True, stream_options={"include_usage": True}).body


def test_a_failed_request_has_an_error_and_no_response():
    fault = {"batch_line_fault_for": lambda _b, at, _i: "item_error" if at == 2 else None}
    with visiting("openrouter", **fault) as host:
        batch = host.get(f"/batches/{create(host).json['id']}").json
    assert batch["request_counts"] == {"total": 4, "completed": 3, "failed": 1}
    assert (batch["results"][2]["response"], batch["results"][2]["error"]["type"]) == (None, "server")


@pytest.mark.parametrize(
    "change",
    [{"requests": []}, {"model": None}, {"completion_window": "48h"}, {"provider": "openai"}],
)
def test_an_invalid_create_call_is_refused(openrouter, change):
    refused = openrouter.post("/batches", {"endpoint": "/v1/chat/completions", "model": "m", **change})
    assert (refused.status, refused.json["error"]["code"]) == (400, 400)


def test_fields_after_the_requests_are_refused(openrouter):
    job = {"endpoint": "/v1/chat/completions", "requests": [request(1)], "model": "m"}
    refused = openrouter.post("/batches", job)
    assert (refused.status, "precede" in refused.json["error"]["message"]) == (400, True)


def test_more_than_5000_requests_are_refused(openrouter):
    assert create(openrouter, 5001).status == 400


def test_a_batch_cannot_be_cancelled_and_is_deleted_only_when_finished():
    with visiting("openrouter", batch_turnaround=60) as host:
        name = create(host).json["id"]
        assert host.post(f"/batches/{name}/cancel").status == 404
        assert host.send("DELETE", f"/batches/{name}").status == 409
        host.emu.configure(batch_turnaround=0)
        done = create(host).json["id"]
        assert host.send("DELETE", f"/batches/{done}").json["deletion"] == {"openrouter": "deleted"}


def test_lists_have_no_results_and_filter_by_status(openrouter):
    names = [create(openrouter, 1).json["id"] for _ in range(3)]
    listed = openrouter.get("/batches?limit=2&status=completed").json
    assert ([each["id"] for each in listed["data"]], listed["has_more"]) == (names[:0:-1], True)
    assert listed["data"][0]["results"] is None
    assert openrouter.get("/batches?status=failed").json["data"] == []


def test_there_are_no_files(openrouter):
    assert openrouter.get("/files").status == 404


def test_errors_can_be_part_of_an_answer_with_status_200():
    with visiting("openrouter", faults={"503": 1.0}) as host:
        assert host.chat().json["error"]["code"] == 503
        host.emu.configure(dialect_variants=["errors_in_200"])
        answer = host.chat()
    assert (answer.status, answer.json["error"]["code"]) == (200, 503)


def test_used_up_credit_is_a_402():
    with visiting("openrouter", faults={"no_money": 1.0}) as host:
        assert host.chat().status == 402
