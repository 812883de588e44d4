"""Mistral: jobs at ``/v1/batch/jobs``, whose model is a field of the job.

Source: the types of the ``mistralai`` SDK 3.7 and the guide to batch inference, November 2026.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from smartbatch.emulator.batches.batch_records import BatchSnapshot, IdFormat, StoredFile
from smartbatch.emulator.hosts.host_batches import found_batch
from smartbatch.emulator.hosts.host_dialect import (
    UNFENCED,
    BatchCall,
    CreateField,
    HostDialect,
    Variant,
    uuid_of,
)
from smartbatch.emulator.openai.batches import InputRules
from smartbatch.emulator.openai.parsing import api_error
from smartbatch.emulator.provider_api import ServerReply, json_reply

_STATUS_NAMES = {
    "validating": "QUEUED",
    "queued": "QUEUED",
    "running": "RUNNING",
    "finalizing": "RUNNING",
    "cancelling": "CANCELLATION_REQUESTED",
    "completed": "SUCCESS",
    "failed": "FAILED",
    "expired": "TIMEOUT_EXCEEDED",
    "cancelled": "CANCELLED",
}
_LIST_PARAMETERS = frozenset(
    {"page", "page_size", "model", "agent_id", "metadata", "created_after", "created_by_me"}
    | {"status", "order_by"}
)
# types and messages of the entries of a 422 (pydantic), by OpenAI's codes
_DETAILS = {
    "missing_required_parameter": ("missing", "Field required"),
    "unknown_parameter": ("extra_forbidden", "Extra inputs are not permitted"),
}


def _error(dialect: HostDialect, status: int, error: Mapping[str, Any], path: str) -> tuple[int, Any]:
    param, code, message = error["param"], error["code"], error["message"]
    if status == 401:
        if "unauthorized_message" in dialect.chosen:
            return 401, {"message": "Unauthorized", "request_id": "0123456789abcdef0123456789abcdef"}
        return 401, {"detail": "Unauthorized"}
    if code == "model_not_found":
        return 400, _error_object(400, f"Invalid model: {message}", "invalid_model", "1500")
    if status == 429:
        return 429, _error_object(429, "Rate limit exceeded", "rate_limited", "1300")
    if status == 400 and param is not None:
        type_, text = _DETAILS.get(code, ("value_error", message))
        detail = {"detail": [{"type": type_, "loc": ["body", *param.split(".")], "msg": text, "input": None}]}
        if "/batch/" in path or "/files" in path:
            return 422, detail
        return 422, _error_object(422, detail, "invalid_request_error", None)
    if "/batch/" in path or "/files" in path:
        return status, {"detail": message}
    type_ = "internal_server_error" if status >= 500 else "invalid_request_error"
    return status, _error_object(status, message, type_, "3000" if status >= 500 else None)


def _error_object(status: int, message: Any, type_: str, code: str | None) -> dict[str, Any]:
    error = {"object": "error", "message": message, "type": type_, "param": None, "code": code}
    return {**error, "raw_status_code": status}


def _job(batch: BatchSnapshot, call: BatchCall) -> dict[str, Any]:
    counts = batch.counts
    job = {
        "id": batch.id,
        "object": "batch",
        "input_files": [] if batch.file_id is None else [batch.file_id],
        "metadata": dict(batch.label) or None,
        "endpoint": batch.endpoint,
        "model": batch.model or None,
        "agent_id": None,
        "output_file": batch.output_id,
        "error_file": batch.error_id if counts.errored or call.dialect.not_run else None,
        "errors": [{"message": problem.message, "count": 1} for problem in batch.problems],
        "status": (batch.unknown_status or "").upper() or _STATUS_NAMES[batch.state],
        "created_at": call.unix(batch.created_at),
        "total_requests": counts.total,
        "completed_requests": counts.succeeded + counts.errored,
        "succeeded_requests": counts.succeeded,
        "failed_requests": counts.errored,
        "started_at": call.unix(batch.started_at),
        "completed_at": call.unix(batch.ended_at),
        "outputs": None,
    }
    if not call.context.settings.batch_echo_metadata:
        job["metadata"] = None
    return job


def _file(file: StoredFile, size: int, call: BatchCall) -> dict[str, Any]:
    part = {"succeeded": "batch_result", "failed": "batch_error"}.get(file.part or "", "batch_request")
    return {
        "id": file.id,
        "object": "file",
        "bytes": size,
        "created_at": call.unix(file.created_at),
        "filename": file.name,
        "purpose": "batch",
        "sample_type": part,
        "source": "upload" if file.batch is None else "mistral",
        "num_lines": file.data.count(b"\n") if file.batch is None else None,
        "mimetype": "application/jsonl",
        "signature": None,
        "expires_at": call.unix(file.expires_at),
    }


def _list(batches: Sequence[BatchSnapshot], call: BatchCall) -> ServerReply:
    """Return a page of jobs. Pages are numbered from 0, so that a new job shifts them."""
    query = call.query
    page, size = query.get("page", "0"), query.get("page_size", "100")
    for name, value in (("page", page), ("page_size", size)):
        if not value.isdecimal():
            raise api_error(400, "Input should be a valid integer", code="invalid_type", param=name)
    shown = [batch for batch in batches if _matches(batch, call)]
    if query.get("order_by") == "created":
        shown.reverse()
    first = int(page) * int(size)
    data = [_job(batch, call) for batch in shown[first : first + int(size)]]
    return json_reply({"object": "list", "data": data, "total": len(shown)})


def _matches(batch: BatchSnapshot, call: BatchCall) -> bool:
    query = call.query
    if "status" in query and _STATUS_NAMES[batch.state] not in call.head.parameters["status"]:
        return False
    if query.get("model", batch.model) != batch.model:
        return False
    after = query.get("created_after")
    if after is not None:
        created = call.context.backend.unix(batch.created_at)
        if created <= datetime.fromisoformat(after).timestamp():
            return False
    return (
        "unfiltered_metadata" in call.dialect.chosen or _asked_metadata(call).items() <= batch.label.items()
    )


def _asked_metadata(call: BatchCall) -> dict[str, str]:
    """Return the pairs of the filter ``metadata``, in any of the notations of an object in a query.

    The SDK writes each pair as a parameter of its own. Whether the service accepts JSON or
    ``metadata[key]=value`` is not documented.
    """
    found = json.loads(call.query.get("metadata") or "{}")
    for name, value in call.query.items():
        if name.startswith("metadata["):
            found[name[len("metadata[") : -1]] = value
        elif name not in _LIST_PARAMETERS:
            found[name] = value
    return found  # type: ignore[no-any-return]


def _delete(call: BatchCall, batch_id: str) -> ServerReply:
    found_batch(call, batch_id)
    call.context.backend.delete(call.dialect.name, call.key, batch_id, call.context.now)
    return json_reply({"id": batch_id, "object": "batch", "deleted": True})


MISTRAL = HostDialect(
    name="mistral",
    # all fields of a chat in the SDK
    body_fields=frozenset(
        {"model", "messages", "temperature", "top_p", "max_tokens", "stream", "stop", "random_seed"}
        | {"metadata", "response_format", "tools", "tool_choice", "presence_penalty", "frequency_penalty"}
        | {"min_tokens", "repetition_penalty", "top_k", "logprobs", "top_logprobs", "prompt_logprobs"}
        | {"top_prompt_logprobs", "n", "prediction", "parallel_tool_calls", "reasoning_effort"}
        | {"prompt_mode", "guardrails", "prompt_cache_key", "service_tier", "safe_prompt"}
    ),
    always_usage=True,
    errors=_error,
    ids=IdFormat(batch=uuid_of, file=uuid_of),
    jobs="batch/jobs",
    rules=InputRules(max_lines=1_000_000, max_bytes=512 * 1024 * 1024, addressed=False),
    purposes=("batch",),
    create_fields={
        "endpoint": CreateField(required=True, values=("/v1/chat/completions", "/v1/embeddings")),
        "input_files": CreateField(list),
        "requests": CreateField(list),
        "model": CreateField(),
        "agent_id": CreateField(),
        "metadata": CreateField(dict),
        "timeout_hours": CreateField(int),
    },
    windows=(1, 7 * 24),
    refuses_unknown=True,
    cancel_ended=None,
    not_run=False,
    inline="outputs",
    inline_query="inline",
    variants={
        "unfenced": UNFENCED,
        "unauthorized_message": Variant("a 401 has message and request_id instead of detail"),
        "unfiltered_metadata": Variant("lists ignore the filter by metadata"),
        "not_run_lines": Variant("the error file includes requests that have not run", {"not_run": True}),
    },
    batch=_job,
    file=_file,
    list_batches=_list,
    routes={("DELETE", "/batch/jobs/([^/:]+)"): _delete},
)
