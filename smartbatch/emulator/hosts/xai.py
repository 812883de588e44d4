"""xAI: batches with counters instead of a state, and results in pages.

Sources: the guide to the Batch API and the messages of the ``xai-sdk`` 1.21 (gRPC), November 2026.
Batches without an input file, to which requests are added later, are not served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from smartbatch.emulator.batches.batch_records import BatchSnapshot, IdFormat, OutputLine, StoredFile
from smartbatch.emulator.hosts.host_batches import found_batch, response_of, result_lines
from smartbatch.emulator.hosts.host_dialect import (
    UNFENCED,
    BatchCall,
    CreateField,
    HostDialect,
    Variant,
    uuid_of,
)
from smartbatch.emulator.openai.batches import NOT_RUN, InputRules
from smartbatch.emulator.openai.files import page
from smartbatch.emulator.openai.parsing import api_error
from smartbatch.emulator.provider_api import ServerReply, json_reply, parse_limit

_MAX_PAGE = 1000  # results and batches per page
_CODES = {
    400: ("invalid-argument", "Client specified an invalid argument"),
    401: ("unauthenticated", "The request does not have valid authentication credentials"),
    403: ("permission-denied", "The caller does not have permission to execute the specified operation"),
    404: ("not-found", "Some requested entity was not found"),
    429: ("resource-exhausted", "Some resource has been exhausted"),
    503: ("unavailable", "The service is currently unavailable"),
}
_UNKNOWN = ("internal", "Internal error")
# codes of google.rpc.Status
_CANCELLED, _INVALID, _EXPIRED, _EXHAUSTED, _INTERNAL = 1, 3, 4, 8, 13


def _error(dialect: HostDialect, status: int, error: Mapping[str, Any], _path: str) -> tuple[int, Any]:
    message = error["message"]
    if error["code"] == "invalid_api_key":
        message = "Incorrect API key provided. You can obtain an API key from https://console.x.ai."
        status = 401 if "wrong_key_401" in dialect.chosen else 400
    code, phrase = _CODES.get(status, _UNKNOWN)
    return status, {"code": phrase if "phrases" in dialect.chosen else code, "error": message}


def _batch(batch: BatchSnapshot, call: BatchCall) -> dict[str, Any]:
    counts, ended = batch.counts, batch.ended
    # before the input file has been read, and after it was rejected, all counters are 0
    known = batch.state not in ("validating", "failed")
    expired = 0 if "expired_cancelled" in call.dialect.chosen else counts.expired
    rejected = f"JSONL file validation failed: {batch.problems[0].message}" if batch.problems else None
    return {
        "batch_id": batch.id,
        "name": batch.label.get("name", ""),
        "create_time": _time(batch.created_at, call),
        "expire_time": _time(batch.expires_at, call),
        "create_api_key_id": "emulator",
        "cancel_time": _time(batch.ended_at if rejected else batch.cancelling_at, call),
        "cancel_by_xai_message": rejected,
        "state": {
            "num_requests": counts.total if known else 0,
            # requests that did not run before the time to expire remain pending
            "num_pending": (counts.waiting if not ended else expired) if known else 0,
            "num_success": counts.succeeded,
            "num_error": counts.errored,
            "num_cancelled": counts.cancelled + counts.expired - expired,
        },
        "cost_breakdown": None,
        **({"input_file_id": batch.file_id} if call.context.settings.batch_echo_input_file else {}),
    }


def _time(moment: float | None, call: BatchCall) -> str | None:
    """Return a date, as the REST API does, or the full time in the other interpretation."""
    text = call.context.rfc3339(moment)
    return text if text is None or "whole_times" in call.dialect.chosen else text[:10]


def _file(file: StoredFile, size: int, call: BatchCall) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": size,
        "created_at": call.unix(file.created_at),
        "expires_at": call.unix(file.expires_at),
        "filename": file.name,
        "purpose": "",
    }


def _list(batches: Sequence[BatchSnapshot], call: BatchCall) -> ServerReply:
    listed = list(reversed(batches)) if "oldest_first" in call.dialect.chosen else batches
    shown, more = page(listed, _page_query(call), most=_MAX_PAGE, default=100)
    token = shown[-1].id if more else None
    return json_reply({"batches": [_batch(batch, call) for batch in shown], "pagination_token": token})


def _page_query(call: BatchCall) -> dict[str, list[str]]:
    query = dict(call.head.parameters)
    if "pagination_token" in query:
        query["after"] = query.pop("pagination_token")
    return query


def _results(call: BatchCall, batch_id: str) -> ServerReply:
    """Return a page of results. An unfinished batch has none yet."""
    query = call.query
    batch = found_batch(call, batch_id)
    if not batch.ended or batch.state == "failed":
        return json_reply({"results": [], "pagination_token": None})
    lines = result_lines(call, batch_id)
    first, size = query.get("pagination_token", "0"), parse_limit(query.get("limit", "100"), _MAX_PAGE)
    if size is None or not first.isdecimal():
        raise api_error(400, f"Invalid page: the limit is at most {_MAX_PAGE}.", param="limit")
    last = int(first) + size
    shown = lines[int(first) : last]
    reply = json_reply(
        {
            "results": [_line(line, call) for line in shown],
            "pagination_token": str(last) if last < len(lines) else None,
        }
    )
    return evolve(reply, delivered=lambda: call.context.backend.delivered(batch_id, shown))


def _line(line: OutputLine, call: BatchCall) -> dict[str, Any]:
    if line.damage is not None:
        return {"batch_request_id": line.custom_id, "batch_result": {"response": {}}}
    if line.outcome in NOT_RUN:
        code = _CANCELLED if line.outcome == "cancelled" else _EXPIRED
        return _failed(line, code, NOT_RUN[line.outcome][1], call)
    status, body = response_of(line, call)
    if line.error is None:
        kind = "responses" if body.get("object") == "response" else "chat_get_completion"
        return {"batch_request_id": line.custom_id, "batch_result": {"response": {kind: body}}}
    message = body["error"] if isinstance(body, dict) else "unknown"
    codes = {400: _INVALID, 429: _EXHAUSTED}
    return _failed(line, codes.get(status, _INTERNAL), message, call)


def _failed(line: OutputLine, code: int, message: str, call: BatchCall) -> dict[str, Any]:
    result: dict[str, Any] = {"batch_request_id": line.custom_id}
    if "error_message" in call.dialect.chosen:
        return {**result, "error_message": message}
    return {**result, "batch_result": {"error": {"code": code, "message": message}}}


XAI = HostDialect(
    name="xai",
    endpoints=("/v1/chat/completions", "/v1/responses"),
    errors=_error,
    ids=IdFormat(
        batch=lambda digits: f"batch_{uuid_of(digits)}", file=lambda digits: f"file_{uuid_of(digits)}"
    ),
    cancel=":cancel",
    # the limit of requests is the number above which they may be throttled; that of bytes is not documented
    rules=InputRules(max_lines=1_000_000, max_bytes=512 * 1024 * 1024, one_endpoint=False, one_model=False),
    purposes=("", "batch", "assistants"),
    expires_field="expires_after",
    create_fields={"name": CreateField(required=True), "input_file_id": CreateField(required=True)},
    cancel_ended=None,
    not_run=False,
    variants={
        "unfenced": UNFENCED,
        "whole_times": Variant("times are RFC 3339 with hours and seconds, not dates"),
        "oldest_first": Variant("lists begin with the oldest batch"),
        "expired_cancelled": Variant("requests that did not run in time count as cancelled, not as pending"),
        "not_run_lines": Variant("the results include requests that have not run", {"not_run": True}),
        "error_message": Variant("a failed result has error_message instead of batch_result"),
        "phrases": Variant("codes of errors are phrases, such as Some resource has been exhausted"),
        "wrong_key_401": Variant("a wrong key is answered with 401, not 400"),
    },
    batch=_batch,
    file=_file,
    list_batches=_list,
    routes={("GET", "/batches/([^/:]+)/results"): _results},
)
