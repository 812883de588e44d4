from __future__ import annotations

import hashlib
import json

import pytest
from host_world import Reply, Visitor, request, visiting

LINES = b"".join(json.dumps(request(number, model="m")).encode() + b"\n" for number in range(4))


@pytest.fixture
def together():
    with visiting("together") as visitor:
        yield visitor


def begin(visitor: Visitor, data: bytes = LINES) -> Reply:
    checksum = hashlib.sha256(data).hexdigest()
    fields = {"purpose": "batch-api", "file_name": "job.jsonl", "file_type": "jsonl", "checksum": checksum}
    return visitor.form("/files", fields)


def upload(visitor: Visitor, data: bytes = LINES) -> str:
    begun = begin(visitor, data)
    assert visitor.send("PUT", begun.headers["location"], data).status == 200
    return begun.headers["x-together-file-id"]


def create(visitor: Visitor, data: bytes = LINES, **fields: object) -> Reply:
    job = {"input_file_id": upload(visitor, data), "endpoint": "/v1/chat/completions", **fields}
    return visitor.post("/batches", job)


def test_an_upload_has_two_steps_and_the_second_needs_no_key(together):
    begun = begin(together)
    file_id = begun.headers["x-together-file-id"]
    assert begun.status == 302
    assert together.get(f"/files/{file_id}").status == 404
    stranger = Visitor(together.emu, key="")
    assert stranger.send("PUT", begun.headers["location"], LINES).status == 200
    assert together.post(f"/files/{file_id}/preprocess").json["FileType"] == "jsonl"


def test_the_same_content_again_is_a_conflict_that_names_the_file(together):
    file_id = upload(together)
    again = begin(together)
    assert (again.status, again.json["file_id"]) == (409, file_id)
    together.send("DELETE", f"/files/{file_id}")
    assert begin(together).status == 302


def test_a_batch_is_created_with_201_and_listed_in_a_bare_array(together):
    created = create(together, metadata={"ignored": "yes"})
    listed = together.get("/batches").json
    assert (created.status, created.json["warning"]) == (201, "")
    assert [(job["id"], job["status"]) for job in listed] == [(created.json["job"]["id"], "COMPLETED")]
    assert "metadata" not in listed[0]
    assert len(together.get(f"/files/{listed[0]['output_file_id']}/content").lines) == 4


def test_the_error_file_pairs_ids_with_reasons():
    with visiting(
        "together", batch_line_fault_for=lambda _b, at, _i: "item_error" if at == 1 else None
    ) as host:
        job = create(host).json["job"]
        failed = host.get(f"/files/{job['error_file_id']}/content").lines
    assert set(failed["id-1"]) == {"custom_id", "error"}


@pytest.mark.parametrize(
    ("variant", "fields", "status"),
    [("refuses_unknown", {"metadata": {}}, 400), ("openai_lines", {}, 201)],
)
def test_other_readings_can_be_chosen(variant, fields, status):
    with visiting("together", dialect_variants=[variant]) as host:
        assert create(host, **fields).status == status


def test_only_an_unfinished_batch_can_be_cancelled():
    with visiting("together", batch_turnaround=60) as host:
        name = create(host).json["job"]["id"]
        assert host.post(f"/batches/{name}/cancel").json["status"] == "CANCELLED"
        host.emu.configure(batch_turnaround=0)
        other = create(host, LINES[1:]).json["job"]["id"]
        assert host.post(f"/batches/{other}/cancel").status == 400


def test_a_long_id_fails_the_batch(together):
    line = {**request(1, model="m"), "custom_id": "x" * 65}
    job = create(together, json.dumps(line).encode() + b"\n").json["job"]
    assert (job["status"], "64" in job["error"]) == ("FAILED", True)


def test_errors_have_togethers_codes():
    with visiting("together", keys={"k"}, models=("m",), faults={"429": 1.0}) as host:
        assert Visitor(host.emu, "wrong").chat().json["error"]["code"] == "invalid_api_key"
        assert host.chat(model="x").json["error"]["code"] == "model_not_available"
        assert host.chat().status == 429
