"""The batch engine behind each dialect: lost, late and dropped create calls, streams and variants."""

from __future__ import annotations

import hashlib
import json
from http.client import RemoteDisconnected
from typing import Any

import pytest
from host_world import Reply, Visitor, addressed, request, visiting
from openai_batch_world import until

from smartbatch.emulator.hosts.host_api import DIALECTS

CHAT = "/v1/chat/completions"
LOST = (ConnectionResetError, RemoteDisconnected)
each = pytest.mark.parametrize("dialect", sorted(DIALECTS))


def upload(host: Visitor, count: int) -> str:
    """Upload requests in the form of the host and return the file's ID; empty for a host without files."""
    name = host.emu.settings.dialect
    if name == "together":
        data = b"".join(json.dumps(request(number, model="m")).encode() + b"\n" for number in range(count))
        form = {"purpose": "batch-api", "file_name": "job.jsonl", "file_type": "jsonl"}
        begun = host.form("/files", {**form, "checksum": hashlib.sha256(data).hexdigest()})
        host.send("PUT", begun.headers["location"], data)
        return begun.headers["x-together-file-id"]
    if name == "openrouter":
        return ""
    line = request if name == "mistral" else addressed
    return host.upload([line(number) for number in range(count)], purpose="" if name == "xai" else "batch")


def create(host: Visitor, file_id: str, count: int) -> Reply:
    job: dict[str, Any] = {"endpoint": CHAT, "input_file_id": file_id}
    match host.emu.settings.dialect:
        case "mistral":
            return host.post("/batch/jobs", {"endpoint": CHAT, "model": "m", "input_files": [file_id]})
        case "openrouter":
            requests = [request(number) for number in range(count)]
            return host.post("/batches", {"endpoint": CHAT, "model": "m", "requests": requests})
        case "xai":
            return host.post("/batches", {"name": "run", "input_file_id": file_id})
        case "azure" | "groq" | "dashscope":
            job["completion_window"] = "24h"
    return host.post("/batches", job)


def listed(host: Visitor) -> list[dict[str, Any]]:
    found = host.get(f"/{DIALECTS[host.emu.settings.dialect].jobs}").json
    return found if isinstance(found, list) else found.get("data", found.get("batches"))


@each
def test_a_batch_whose_create_answer_was_lost_is_in_the_list(dialect):
    with visiting(dialect, batch_faults={"lost_create": 1.0}) as host:
        with pytest.raises(LOST):
            create(host, upload(host, 2), 2)
        assert len(listed(host)) == 1
        (record,) = host.emu.ledger.batches
    assert (record.api, record.outcome, len(record.lines)) == (dialect, "lost", 2)


@each
def test_a_dropped_create_call_leaves_no_batch(dialect):
    with visiting(dialect, batch_faults={"dropped_create": 1.0}) as host:
        with pytest.raises(LOST):
            create(host, upload(host, 2), 2)
        assert listed(host) == []


@pytest.mark.full
@pytest.mark.parametrize(("variants", "found"), [((), "fenced"), (("unfenced",), "late")])
@pytest.mark.parametrize("dialect", sorted(DIALECTS.keys() - {"openrouter"}))
def test_deleting_the_input_file_stops_a_late_create_call_or_does_not(dialect, variants, found):
    late = {"batch_faults": {"late_create": 1.0}, "batch_late_seconds": 1}
    with visiting(dialect, dialect_variants=variants, **late) as host:
        file_id = upload(host, 2)
        with pytest.raises(LOST):
            create(host, file_id, 2)
        assert host.send("DELETE", f"/files/{file_id}").status == 200
        until(lambda: host.emu.ledger.batches[0], lambda batch: batch.created_at or batch.outcome == "fenced")
        assert host.emu.ledger.batches[0].outcome == found
        assert len(listed(host)) == (found == "late")


@each
def test_a_deleted_or_unknown_input_is_refused_and_billed_to_nobody(dialect):
    with visiting(dialect) as host:
        if dialect == "openrouter":
            assert create(host, "", 0).status == 400
        else:
            assert create(host, "unknown", 2).status in (400, 404, 422)
        assert host.emu.ledger.summary()["billed"] == 0


@each
def test_chats_stream_and_repeat_the_prompts_of_batches_in_the_ledger(dialect):
    with visiting(dialect) as host:
        create(host, upload(host, 1), 1)
        body = host.chat("prompt 0", stream=True).body
        assert body.endswith(b"data: [DONE]\n\n")
        assert len(host.emu.ledger.paid_twice()) == 1


@each
def test_every_variant_can_be_chosen(dialect):
    for variant in DIALECTS[dialect].variants:
        with visiting(dialect, dialect_variants=[variant]) as host:
            assert create(host, upload(host, 1), 1).status < 300
            assert len(listed(host)) == 1
