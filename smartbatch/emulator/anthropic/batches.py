"""Anthropic's Message Batches: create, get, list, cancel, delete, and the results.

Source: the types of the ``anthropic`` SDK 2.12 and Anthropic's API reference of November 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from smartbatch.emulator.anthropic.parsing import api_error, check_version, error_body, parse_body
from smartbatch.emulator.batches.batch_records import (
    BatchBackendError,
    BatchSnapshot,
    Entry,
    OutputLine,
    parse_entry,
)
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.parsed_requests import ApiError, ModelCall
from smartbatch.emulator.provider_api import (
    BatchContext,
    ServerReply,
    json_reply,
    page_after,
    parse_limit,
    position_of,
)
from smartbatch.emulator.settings import EmulatorSettings

MAX_LINES = 100_000
MAX_BYTES = 256 * 1024 * 1024
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_UNSUPPORTED = ("stream", "speed")  # parameters of a message that a batch does not accept
# the body of a 429 when the credit is used up, in real time and in batch lines
SPEND_LIMIT_REACHED = error_body(
    429, "You have reached your enforced spend limit.", "enforced_spend_limit_reached"
)


def parse_entries(
    fields: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], ModelCall], settings: EmulatorSettings
) -> list[Entry]:
    """Return the requests of a batch to create.

    As with the service, errors in the parameters of a message appear only in the results of the batch: such
    an entry fails when it runs.

    Args:
        parse: parses the parameters of one message, or raises ``ApiError``.

    Raises:
        ApiError: the batch itself is invalid.
    """
    given = fields.get("requests")
    if not isinstance(given, list):
        problem = "Field required" if given is None else "Input should be a valid list"
        raise api_error(400, f"requests: {problem}")
    if not given:
        raise api_error(400, "requests: List should have at least 1 item after validation, not 0")
    most = settings.batch_max_lines or MAX_LINES
    if len(given) > most:
        raise api_error(413, f"requests: a batch has at most {most:,} requests, not {len(given):,}")
    seen: set[str] = set()
    entries = []
    for number, item in enumerate(given):
        custom_id, params = _item(item, f"requests.{number}")
        if custom_id in seen:
            raise api_error(400, f"requests.{number}.custom_id: duplicate custom_id: {custom_id}")
        seen.add(custom_id)
        entries.append(_entry(custom_id, params, parse, settings))
    return entries


def _item(item: Any, where: str) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(item, Mapping):
        raise api_error(400, f"{where}: Input should be a valid dictionary")
    custom_id, params = item.get("custom_id"), item.get("params")
    if custom_id is None or params is None:
        raise api_error(400, f"{where}.{'custom_id' if custom_id is None else 'params'}: Field required")
    if not isinstance(custom_id, str) or not _CUSTOM_ID.fullmatch(custom_id):
        raise api_error(400, f"{where}.custom_id: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
    if not isinstance(params, Mapping):
        raise api_error(400, f"{where}.params: Input should be a valid dictionary")
    return custom_id, params


def _entry(
    custom_id: str,
    params: Mapping[str, Any],
    parse: Callable[[Mapping[str, Any]], ModelCall],
    settings: EmulatorSettings,
) -> Entry:
    def parse_params() -> ModelCall:
        for name in _UNSUPPORTED:
            if params.get(name):
                raise api_error(400, f"{name}: not supported in batches")
        if params.get("max_tokens") == 0:
            raise api_error(400, "max_tokens: must be at least 1 in batches")
        return parse(params)

    return parse_entry(custom_id, parse_params, settings)


def batch_shape(batch: BatchSnapshot, context: BatchContext) -> dict[str, Any]:
    """Return the JSON of a batch. The URL of its results is on the emulator."""
    expiry = None if batch.ended_at is None else batch.ended_at + context.settings.batch_retention
    available = expiry is not None and context.now < expiry
    status = "ended" if batch.ended else "canceling" if batch.cancelling_at is not None else "in_progress"
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": batch.unknown_status or status,
        "request_counts": _counts(batch),
        "created_at": context.rfc3339(batch.created_at),
        "expires_at": context.rfc3339(batch.expires_at),
        "ended_at": context.rfc3339(batch.ended_at),
        "cancel_initiated_at": context.rfc3339(batch.cancelling_at),
        "archived_at": None if available else context.rfc3339(expiry),
        "results_url": f"{context.url}/v1/messages/batches/{batch.id}/results" if available else None,
    }


def _counts(batch: BatchSnapshot) -> dict[str, int]:
    """Return the counters. All except ``processing`` are zero until the batch has ended."""
    counts, ended = batch.counts, batch.ended
    # This API has no failed batches: each request fails instead.
    errored = counts.total if batch.state == "failed" else counts.errored
    return {
        "processing": 0 if ended else counts.total,
        "succeeded": counts.succeeded if ended else 0,
        "errored": errored if ended else 0,
        "canceled": counts.cancelled if ended else 0,
        "expired": counts.expired if ended else 0,
    }


def line_bytes(line: OutputLine) -> bytes:
    result: dict[str, Any]
    match line.outcome:
        case "succeeded":
            result = {"type": "succeeded", "message": _message_of_line(json.loads(line.body), line.identity)}
        case "errored":
            result = {"type": "errored", "error": _error(line)}
        case "cancelled":
            result = {"type": "canceled"}
        case "expired":
            result = {"type": "expired"}
    return json.dumps({"custom_id": line.custom_id, "result": result}).encode()


def _message_of_line(message: dict[str, Any], identity: str) -> dict[str, Any]:
    message["id"] = f"msg_{identity}"
    if "usage" in message:
        message["usage"]["service_tier"] = "batch"
    return message


def _error(line: OutputLine) -> dict[str, Any]:
    body = line.body if line.error == "refused" else _ERRORS[line.error or "zero"]
    error: dict[str, Any] = json.loads(body)
    return error | {"request_id": f"req_{line.identity}"}


_ERRORS = {
    "server": error_body(500, "Internal server error"),
    "invalid": error_body(400, "messages: the request is refused"),
    "no_money": SPEND_LIMIT_REACHED,
    "zero": b'{"type": "error", "error": {"type": "unknown_error", "message": ""}}',
}


_BATCHES_PATH = "/v1/messages/batches"
_PATH = re.compile(_BATCHES_PATH + r"(?:/([^/]+)(?:/(cancel|results))?)?/?")
API_NAME = "anthropic"
_PAGE, _MAX_PAGE = 20, 1000
# The documentation does not say which status early requests for results return.
_STATUSES = {"not_found": 404, "gone": 404, "not_ended": 400, "enqueued": 429, "unavailable": 503}

_Parse = Callable[[Head, Mapping[str, Any]], ModelCall]


def is_about_batches(head: Head) -> bool:
    return head.path == _BATCHES_PATH or head.path.startswith(_BATCHES_PATH + "/")


def answer(head: Head, body: bytes, context: BatchContext, *, key: str, parse: _Parse) -> ServerReply:
    """Return the reply to a request about batches.

    Args:
        key: the caller's credential, which gives access to its own batches only.
        parse: parses the parameters of one message, or raises ``ApiError``.

    Raises:
        ApiError: the request is invalid.
        AnswerLost: the answer to a create call never arrives.
    """
    check_version(head)
    found = _PATH.fullmatch(head.path)
    if found is None:
        raise api_error(404, "Not found")
    name, action = found[1], found[2]
    try:
        match head.method, action:
            case "POST", None if name is None:
                return _create(head, body, context, key, parse)
            case "GET", None if name is None:
                return _list(head, context, key)
            case "GET", None:
                return _batch_reply(context.backend.batch(API_NAME, key, name, context.now), name, context)
            case "DELETE", None if name is not None:
                return _delete(name, context, key)
            case "POST", "cancel":
                return _cancel(name, context, key)
            case "GET", "results":
                return _results(name, context, key)
    except BatchBackendError as error:
        raise api_error(_STATUSES.get(error.reason, 400), error.message) from error
    raise api_error(405, "Method Not Allowed")


def _create(head: Head, body: bytes, context: BatchContext, key: str, parse: _Parse) -> ServerReply:
    most = context.settings.batch_max_bytes or MAX_BYTES
    if len(body) > most:
        raise api_error(413, f"Request exceeds the maximum size of {most:,} bytes")
    entries = parse_entries(parse_body(body), lambda params: parse(head, params), context.settings)
    batch = context.backend.create(API_NAME, key, entries, now=context.now, endpoint="/v1/messages")
    return json_reply(batch_shape(batch, context))


def _list(head: Head, context: BatchContext, key: str) -> ServerReply:
    query = head.parameters
    limit = parse_limit(query.get("limit", [str(_PAGE)])[0], _MAX_PAGE)
    if limit is None:
        raise api_error(400, f"limit: Input should be from 1 to {_MAX_PAGE}")
    after, before = (query.get(name, [None])[0] for name in ("after_id", "before_id"))
    if after and before:
        raise api_error(400, "after_id and before_id cannot be used together")
    batches = context.backend.batches(API_NAME, key, context.now)
    page, more = _page(batches, limit, after, before)
    return json_reply(
        {
            "data": [batch_shape(batch, context) for batch in page],
            "has_more": more,
            "first_id": page[0].id if page else None,
            "last_id": page[-1].id if page else None,
        }
    )


def _page(
    batches: list[BatchSnapshot], limit: int, after: str | None, before: str | None
) -> tuple[list[BatchSnapshot], bool]:
    """Return a page of batches, newest first, and whether more follow in that direction."""
    if before is not None:
        position = position_of(batches, before)
        if position is None:
            raise _unknown_cursor("before_id", before)
        newer = batches[:position]
        return newer[-limit:], len(newer) > limit
    page = page_after(batches, limit, after)
    if page is None:
        raise _unknown_cursor("after_id", after)
    return page


def _unknown_cursor(field: str, name: str | None) -> ApiError:
    return api_error(404, f"{field}: No batch found with id {name!r}")


def _cancel(name: str, context: BatchContext, key: str) -> ServerReply:
    batch = context.backend.batch(API_NAME, key, name, context.now)
    if batch is not None and batch.ended:
        raise api_error(400, f"Batch {name} cannot be canceled: it has ended.")
    return _batch_reply(context.backend.cancel(API_NAME, key, name, context.now), name, context)


def _delete(name: str, context: BatchContext, key: str) -> ServerReply:
    batch = context.backend.batch(API_NAME, key, name, context.now)
    if batch is None:
        _raise_not_found(name)
    if not batch.ended:
        raise api_error(400, f"Batch {name} cannot be deleted while it is being processed; cancel it first.")
    context.backend.delete(API_NAME, key, name, context.now)
    return json_reply({"id": name, "type": "message_batch_deleted"})


def _results(name: str, context: BatchContext, key: str) -> ServerReply:
    fetched = context.backend.fetch(API_NAME, key, name, context.now, write=line_bytes)
    return ServerReply(200, fetched.body, content_type="application/x-jsonl", delivered=fetched.delivered)


def _batch_reply(batch: BatchSnapshot | None, name: str, context: BatchContext) -> ServerReply:
    return json_reply(batch_shape(batch, context)) if batch is not None else _raise_not_found(name)


def _raise_not_found(name: str) -> NoReturn:
    raise api_error(404, f"No batch found with id {name!r}")
