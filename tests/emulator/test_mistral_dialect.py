from __future__ import annotations

import pytest
from host_world import Visitor, request, visiting

from smartbatch.errors import ConfigError
from smartbatch.testing import emulator

CHAT = "/v1/chat/completions"


@pytest.fixture
def mistral():
    with visiting("mistral") as visitor:
        yield visitor


def create(visitor: Visitor, count: int = 4, **fields: object):
    file_id = visitor.upload([request(number) for number in range(count)])
    job = {"input_files": [file_id], "endpoint": CHAT, "model": "m", **fields}
    return visitor.post("/batch/jobs", job)


def test_a_job_runs_with_its_own_model_and_words(mistral):
    created = create(mistral, metadata={"run": "7"})
    job = mistral.get(f"/batch/jobs/{created.json['id']}").json
    assert (created.status, job["status"], job["succeeded_requests"]) == (200, "SUCCESS", 4)
    assert (job["model"], job["metadata"], job["error_file"]) == ("m", {"run": "7"}, None)
    results = mistral.get(f"/files/{job['output_file']}/content").lines
    assert results["id-3"]["response"]["body"]["choices"][0]["message"]["content"].startswith("answer")


def test_a_failed_line_is_in_the_error_file_in_mistrals_format():
    with visiting(
        "mistral", batch_line_fault_for=lambda _b, at, _i: "item_error" if at == 2 else None
    ) as host:
        job = create(host).json
        failed = host.get(f"/files/{job['error_file']}/content").lines
    assert list(failed) == ["id-2"]
    assert failed["id-2"]["response"]["body"]["object"] == "error"


def test_requests_can_be_in_the_call_and_results_in_the_job(mistral):
    job = {"requests": [request(1), request(2)], "endpoint": CHAT, "model": "m"}
    name = mistral.post("/batch/jobs", job).json["id"]
    assert mistral.get(f"/batch/jobs/{name}").json["outputs"] is None
    outputs = mistral.get(f"/batch/jobs/{name}?inline=true").json["outputs"]
    assert [each["custom_id"] for each in outputs] == ["id-1", "id-2"]


@pytest.mark.parametrize(
    ("change", "type_", "field"),
    [
        ({"endpoint": None}, "missing", "endpoint"),
        ({"completion_window": "24h"}, "extra_forbidden", "completion_window"),
        ({"timeout_hours": "1"}, "value_error", "timeout_hours"),
    ],
)
def test_an_invalid_job_is_refused_with_422_and_detail(mistral, change, type_, field):
    refused = create(mistral, **change)
    detail = refused.json["detail"][0]
    assert (refused.status, detail["type"], detail["loc"]) == (422, type_, ["body", field])


def test_lists_have_numbered_pages_and_filter_by_metadata(mistral):
    names = [create(mistral, 1, metadata={"run": str(number)}).json["id"] for number in range(3)]
    page = mistral.get("/batch/jobs?page=1&page_size=2").json
    assert ([each["id"] for each in page["data"]], page["total"]) == ([names[0]], 3)
    for filter_ in ("run=1", "metadata[run]=1", "metadata=%7B%22run%22%3A%221%22%7D"):
        found = mistral.get(f"/batch/jobs?{filter_}").json
        assert [each["id"] for each in found["data"]] == [names[1]]


def test_the_other_reading_of_lists_ignores_the_filter():
    with visiting("mistral", dialect_variants={"unfiltered_metadata"}) as host:
        create(host, 1, metadata={"run": "1"})
        assert host.get("/batch/jobs?run=2").json["total"] == 1


def test_a_running_job_can_be_cancelled_and_deleted():
    with visiting("mistral", batch_turnaround=60, batch_cancel_seconds=30) as host:
        name = create(host).json["id"]
        assert host.post(f"/batch/jobs/{name}/cancel").json["status"] == "CANCELLATION_REQUESTED"
        assert host.send("DELETE", f"/batch/jobs/{name}").json["deleted"] is True
        assert host.get(f"/batch/jobs/{name}").status == 404


def test_chats_refuse_unknown_fields_and_report_a_wrong_key_as_mistral_does():
    with visiting("mistral", keys={"k"}, models=("m",)) as host:
        refused = host.chat(seed=1)
        assert refused.status == 422
        assert refused.json["message"]["detail"][0]["loc"] == ["body", "seed"]
        unknown = host.chat(model="x")
        assert (unknown.status, unknown.json["type"]) == (400, "invalid_model")
        assert Visitor(host.emu, "wrong").chat().json == {"detail": "Unauthorized"}


def test_a_429_has_mistrals_type_and_code():
    with visiting("mistral", faults={"429": 1.0}) as host:
        refused = host.chat()
    assert (refused.status, refused.json["type"], refused.json["code"]) == (429, "rate_limited", "1300")


def test_wrong_names_of_dialects_and_variants_list_the_known_ones():
    with pytest.raises(ConfigError, match=r"mistral.*did you mean mistral"):
        emulator(dialect="mistal")
    with pytest.raises(ConfigError, match="unfiltered_metadata"):
        emulator(dialect="mistral", dialect_variants=["x"])
