"""Azure, Groq and DashScope: differences from OpenAI's API."""

from __future__ import annotations

import json

import pytest
from host_world import Reply, Visitor, addressed, visiting

CHAT = "/v1/chat/completions"
DAY = 86_400


def create(visitor: Visitor, count: int = 3, **fields: object) -> Reply:
    file_id = visitor.upload([addressed(number) for number in range(count)])
    job = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h", **fields}
    return visitor.post("/batches", job)


@pytest.mark.parametrize(
    ("dialect", "path", "prefix"),
    [
        ("azure", "/openai/v1", "batch_"),
        ("groq", "/openai/v1", "batch_01"),
        ("dashscope", "/compatible-mode/v1", "batch_"),
    ],
)
def test_a_batch_runs_below_the_path_of_the_host(dialect, path, prefix):
    with visiting(dialect) as host:
        assert host.emu.base_url.endswith(path)
        batch = create(host, metadata={"run": "1"}).json
        assert batch["id"].startswith(prefix)
        assert (batch["status"], batch["metadata"]) == ("completed", {"run": "1"})
        assert len(host.get(f"/files/{batch['output_file_id']}/content").lines) == 3
        assert host.send("GET", f"{host.emu.url}/elsewhere/models").status == 404


def test_azure_takes_the_key_in_its_own_header():
    with visiting("azure", keys={"k"}) as host:
        stranger = Visitor(host.emu, "wrong")
        assert stranger.chat().json["error"]["code"] == "401"
        assert stranger.send("GET", "/files", headers={"api-key": "k"}).status == 200


def test_azure_never_expires_a_batch_and_has_both_files():
    with visiting("azure", batch_window=0.01, batch_turnaround=0.02, batch_cancel_seconds=0) as host:
        batch = create(host).json
        assert batch["expires_at"] is not None
        while (batch := host.get(f"/batches/{batch['id']}").json)["status"] != "completed":
            assert batch["status"] in ("in_progress", "finalizing")
        assert host.get(f"/files/{batch['error_file_id']}/content").body == b""


@pytest.mark.full
def test_azure_keeps_500_files_that_do_not_expire():
    with visiting("azure") as host:
        for _ in range(500):
            assert host.form("/files", {"purpose": "batch"}, b"{}").status == 200
        refused = host.form("/files", {"purpose": "batch"}, b"{}")
        expiring = host.form("/files", {"purpose": "batch", "expires_after[seconds]": str(14 * DAY)}, b"{}")
    assert (refused.status, expiring.status) == (400, 200)
    assert refused.json["error"]["code"] == "quotaExceeded"
    assert expiring.json["expires_at"] - expiring.json["created_at"] == 14 * DAY


def test_results_of_azure_are_kept_for_at_least_14_days():
    with visiting("azure") as host:
        short, long = (
            create(host, output_expires_after={"anchor": "created_at", "seconds": seconds})
            for seconds in (14 * DAY - 1, 14 * DAY)
        )
        assert (short.status, long.status) == (400, 200)
        result = host.get(f"/files/{long.json['output_file_id']}").json
        assert result["expires_at"] - result["created_at"] == 14 * DAY


def test_azure_has_deployments_and_content_filters():
    with visiting("azure", models=("deployed",), faults={"refusal": 1.0}) as host:
        missing = host.chat(model="other")
        assert (missing.status, missing.json["error"]["code"]) == (404, "DeploymentNotFound")
        filtered = host.chat(model="deployed")
        assert filtered.json["error"]["innererror"]["code"] == "ResponsibleAIPolicyViolation"


def test_azure_accepts_urls_without_a_version():
    with visiting("azure") as host:
        line = {**addressed(1), "url": "/chat/completions"}
        job = {"endpoint": "/chat/completions", "completion_window": "24h"}
        batch = host.post("/batches", {**job, "input_file_id": host.upload([line])}).json
        assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}


@pytest.mark.parametrize(
    ("window", "status"), [("24h", 200), ("7d", 200), ("8d", 400), ("1h", 400), ("x", 400)]
)
def test_groq_accepts_windows_from_a_day_to_a_week(window, status):
    with visiting("groq") as host:
        created = create(host, completion_window=window)
    assert created.status == status
    assert status == 400 or created.json["completion_window"] == window


def test_groq_lists_all_batches_unless_it_has_a_cursor():
    for variants, shown in (((), 3), (("cursor",), 2)):
        with visiting("groq", dialect_variants=variants) as host:
            for _ in range(3):
                create(host, 1)
            listed = host.get("/batches?limit=2").json
            assert (len(listed["data"]), "has_more" in listed) == (shown, shown == 2)


@pytest.mark.full
def test_groq_takes_100_mb_or_200_in_the_other_reading():
    data = json.dumps(addressed(1, pad="x" * 101_000_000)).encode()
    for variants, status in (((), "failed"), (("bytes_200",), "completed")):
        with visiting("groq", dialect_variants=variants) as host:
            file_id = host.form("/files", {"purpose": "batch"}, data).json["id"]
            job = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
            assert host.post("/batches", job).json["status"] == status


def test_groq_answers_498_without_flex_capacity_and_names_unsupported_fields():
    with visiting("groq", faults={"no_room": 1.0}) as host:
        assert host.chat(service_tier="flex").status == 498
        refused = host.chat(logprobs=True)
    assert (refused.status, "'logprobs' is unsupported" in refused.json["error"]["message"]) == (400, True)


def test_dashscope_has_a_test_endpoint_and_a_code_for_overdue_bills():
    with visiting("dashscope") as host:
        line = {**addressed(1), "url": "/v1/chat/ds-test"}
        file_id = host.upload([line])
        assert file_id.startswith("file-batch-")
        job = {"input_file_id": file_id, "endpoint": "/v1/chat/ds-test", "completion_window": "48h"}
        assert host.post("/batches", job).json["status"] == "completed"
        host.emu.configure(faults={"no_money": 1.0})
        assert host.chat().json["error"]["code"] == "Arrearage"
