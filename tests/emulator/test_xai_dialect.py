from __future__ import annotations

import re

import pytest
from host_world import Reply, Visitor, addressed, visiting


@pytest.fixture
def xai():
    with visiting("xai") as visitor:
        yield visitor


def create(visitor: Visitor, count: int = 4, **fields: object) -> Reply:
    file_id = visitor.upload([addressed(number) for number in range(count)], purpose="")
    return visitor.post("/batches", {"name": "run", "input_file_id": file_id, **fields})


def results(visitor: Visitor, batch_id: str, limit: int = 100) -> list[dict]:
    found, token = [], ""
    while token is not None:
        page = visitor.get(f"/batches/{batch_id}/results?limit={limit}{token}").json
        found += page["results"]
        token = page["pagination_token"] and f"&pagination_token={page['pagination_token']}"
    return found


def test_a_batch_has_counters_and_dates_instead_of_a_state(xai):
    batch = create(xai).json
    assert batch["state"] == {
        "num_requests": 4,
        "num_pending": 0,
        "num_success": 4,
        "num_error": 0,
        "num_cancelled": 0,
    }
    assert (batch["name"], batch["cancel_time"]) == ("run", None)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", batch["create_time"])


def test_results_come_in_pages_in_the_order_of_the_requests(xai):
    found = results(xai, create(xai).json["batch_id"], limit=3)
    assert [each["batch_request_id"] for each in found] == [f"id-{number}" for number in range(4)]
    completion = found[0]["batch_result"]["response"]["chat_get_completion"]
    assert completion["choices"][0]["message"]["content"].startswith("answer")
    assert xai.emu.ledger.summary()["batches"]["lines_delivered"] == 4


@pytest.mark.parametrize(("variants", "key"), [((), "batch_result"), (("error_message",), "error_message")])
def test_a_failed_request_has_a_code_or_a_message(variants, key):
    fault = {"batch_line_fault_for": lambda _b, at, _i: "item_invalid" if at == 2 else None}
    with visiting("xai", dialect_variants=variants, **fault) as host:
        batch = create(host).json
        assert batch["state"]["num_error"] == 1
        assert set(results(host, batch["batch_id"])[2]) == {"batch_request_id", key}


def test_a_rejected_file_leaves_all_counters_at_zero_and_a_message():
    with visiting("xai", models=("other",)) as host:
        batch = create(host).json
    assert set(batch["state"].values()) == {0}
    assert "not supported" in batch["cancel_by_xai_message"]
    assert batch["cancel_time"] is not None


def test_a_running_batch_is_cancelled_with_a_colon_in_the_path():
    with visiting("xai", batch_turnaround=60) as host:
        name = create(host).json["batch_id"]
        assert host.get(f"/batches/{name}/results").json == {"results": [], "pagination_token": None}
        cancelled = host.post(f"/batches/{name}:cancel").json
    assert (cancelled["state"]["num_pending"], cancelled["state"]["num_cancelled"]) == (0, 4)
    assert cancelled["cancel_time"] is not None


def test_lines_of_a_file_may_have_different_endpoints_and_models(xai):
    other = {**addressed(2), "url": "/v1/responses", "body": {"model": "other", "input": "hello"}}
    file_id = xai.upload([addressed(1), other], purpose="")
    batch = xai.post("/batches", {"name": "run", "input_file_id": file_id}).json
    assert batch["state"]["num_success"] == 2


def test_lists_continue_after_a_token(xai):
    names = [create(xai, 1).json["batch_id"] for _ in range(3)]
    first = xai.get("/batches?limit=2").json
    second = xai.get(f"/batches?limit=2&pagination_token={first['pagination_token']}").json
    assert [each["batch_id"] for each in first["batches"] + second["batches"]] == names[::-1]
    assert second["pagination_token"] is None


def test_requests_out_of_time_stay_pending_or_count_as_cancelled():
    for variants, expected in (((), (4, 0)), (("expired_cancelled",), (0, 4))):
        with visiting("xai", dialect_variants=variants, batch_faults={"expire_all": 1.0}) as host:
            state = create(host).json["state"]
            assert (state["num_pending"], state["num_cancelled"]) == expected


def test_a_wrong_key_is_an_invalid_argument_in_xais_format():
    with visiting("xai", keys={"k"}) as host:
        wrong = Visitor(host.emu, "wrong").chat()
        assert (wrong.status, wrong.json["code"]) == (400, "invalid-argument")
        assert "Incorrect API key" in wrong.json["error"]
