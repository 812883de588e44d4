"""OpenRouter: batches without files, whose requests and results are part of the batch, with their cost.

Sources: the guide to the Batch API, the API reference, and the types of the ``openrouter`` SDK 1.3, November
2026.
Results in pages (``/batches/{id}/results``) are not served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smartbatch.emulator.batches.batch_records import BatchSnapshot, IdFormat, OutputLine, StoredFile
from smartbatch.emulator.hosts.host_batches import found_batch, response_of
from smartbatch.emulator.hosts.host_dialect import BatchCall, CreateField, HostDialect, Variant
from smartbatch.emulator.openai.batches import NOT_RUN, InputRules
from smartbatch.emulator.openai.files import listing, page
from smartbatch.emulator.openai.parsing import api_error
from smartbatch.emulator.provider_api import ServerReply, json_reply

_STATUS_NAMES = {"queued": "in_progress", "running": "in_progress"}
_LISTED = ("validating", "in_progress", "completed", "failed", "expired", "cancelled")
# canonical types of errors by status
_ERROR_TYPES = {400: "invalid_request", 402: "payment_required", 404: "not_found", 429: "rate_limit_exceeded"}
_PRICE = 0.000001  # USD per token in real time, of every model


def _error(dialect: HostDialect, status: int, error: Mapping[str, Any], _path: str) -> tuple[int, Any]:
    if error["code"] == "insufficient_quota":
        status = 402
    if error["code"] == "model_not_found":
        status = 400
    shown = {"message": error["message"], "code": status}
    if status == 429:
        shown["metadata"] = {"error_type": "rate_limit_exceeded"}
    if status >= 500 and "errors_in_200" in dialect.chosen:
        return 200, {"id": "gen-emulator", "choices": [], "error": shown}
    return status, {"error": shown, "user_id": "user_emulator"}


def _check_order(dialect: HostDialect, fields: Mapping[str, Any]) -> None:
    """Raise ``ApiError`` for a field after the requests. The vendor's SDK puts some of them there."""
    names = list(fields)
    late = names[names.index("requests") + 1 :] if "requests" in names else []
    if "strict_order" not in dialect.chosen:
        late = [name for name in late if name in ("endpoint", "model", "callback_url")]
    if late:
        raise api_error(400, f"'{late[0]}' must precede 'requests' in the body.", param=late[0])


def _batch(batch: BatchSnapshot, call: BatchCall) -> dict[str, Any]:
    counts, usage = batch.counts, None
    if batch.state == "completed":
        tokens = batch.input_tokens + batch.output_tokens
        usage = {
            "prompt_tokens": batch.input_tokens,
            "completion_tokens": batch.output_tokens,
            "total_tokens": tokens,
            "cost": tokens * _PRICE * call.dialect.batch_share,
            "is_byok": False,
        }
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "provider": None if batch.state == "validating" else "Emulator",
        "completion_window": "24h",
        "status": batch.unknown_status or _STATUS_NAMES.get(batch.state, batch.state),
        "created_at": call.unix(batch.created_at),
        "expires_at": call.unix(batch.expires_at),
        "finalized_at": call.unix(batch.ended_at),
        "request_counts": {"total": counts.total, "completed": counts.succeeded, "failed": counts.errored},
        "usage": usage,
        "error": {"message": batch.problems[0].message} if batch.problems else None,
        "results": None,
    }


def _line(line: OutputLine, call: BatchCall) -> dict[str, Any]:
    result = {"id": f"batch_req_{line.identity}", "custom_id": line.custom_id}
    if line.outcome in NOT_RUN:
        code, message = NOT_RUN[line.outcome]
        return {**result, "response": None, "error": {"code": code, "message": message}}
    status, body = response_of(line, call)
    if line.error is not None:
        message = body["error"]["message"] if isinstance(body, dict) else "unknown"
        if "numeric_codes" in call.dialect.chosen:
            return {**result, "response": None, "error": {"message": message, "code": status}}
        kind = _ERROR_TYPES.get(status, "server")
        error = {"message": message, "type": kind, "param": None, "error_type": kind}
        return {**result, "response": None, "error": error}
    response = {"status_code": status, "request_id": f"gen-{line.identity}", "body": body}
    return {**result, "response": response, "error": None}


def _list(batches: Sequence[BatchSnapshot], call: BatchCall) -> ServerReply:
    wanted = call.head.parameters.get("status", [])
    if unknown := [name for name in wanted if name not in _LISTED]:
        raise api_error(400, f"Invalid status: {unknown[0]}", param="status")
    shapes = [_batch(batch, call) for batch in batches]
    kept = [
        batch for batch, shape in zip(batches, shapes, strict=True) if not wanted or shape["status"] in wanted
    ]
    shown, more = page(kept, call.head.parameters, most=100, default=20)
    return json_reply(listing([_batch(batch, call) for batch in shown], more))


def _delete(call: BatchCall, batch_id: str) -> ServerReply:
    if not found_batch(call, batch_id).ended:
        raise api_error(409, "Only a finished batch can be deleted.")
    call.context.backend.delete(call.dialect.name, call.key, batch_id, call.context.now)
    return json_reply({"id": batch_id, "object": "batch", "deletion": {"openrouter": "deleted"}})


def _no_file(_file: StoredFile, _size: int, _call: BatchCall) -> dict[str, Any]:
    raise api_error(404, "Not found")


OPENROUTER = HostDialect(
    name="openrouter",
    path="/api/v1",
    endpoints=("/v1/chat/completions", "/v1/responses", "/v1/embeddings"),
    errors=_error,
    price=_PRICE,
    ids=IdFormat(batch="batch-".__add__),
    cancel=None,
    rules=InputRules(max_lines=5000, max_bytes=200_000_000, addressed=False),
    purposes=(),
    create_fields={
        "endpoint": CreateField(
            required=True, values=("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings")
        ),
        "model": CreateField(required=True),
        "requests": CreateField(list, required=True),
        "provider": CreateField(dict),
        "completion_window": CreateField(values=("24h",)),
        "callback_url": CreateField(),
    },
    check_create=_check_order,
    refuses_input=True,
    create_status=202,
    inline="results",
    variants={
        "refuses_unknown": Variant("a create call with unknown fields is refused", {"refuses_unknown": True}),
        "strict_order": Variant("every field after the requests is refused"),
        "numeric_codes": Variant("a failed result has an HTTP status as code, not a type"),
        "no_expiry": Variant("a batch never expires, and expires_at is null", {"expires": False}),
        "not_run_left_out": Variant("the results leave out requests that have not run", {"not_run": False}),
        "errors_in_200": Variant("errors of the service are part of answers with status 200"),
    },
    batch=_batch,
    line=_line,
    file=_no_file,
    list_batches=_list,
    routes={("DELETE", "/batches/([^/:]+)"): _delete},
)
