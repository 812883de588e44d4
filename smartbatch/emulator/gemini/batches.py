"""Gemini's batches under ``/v1`` and ``/v1beta``: create, get, list, cancel and delete.

Source: the requests and responses of ``google-genai`` 3.4, and Google's API reference of November 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import evolve, frozen

from smartbatch.emulator.batches.batch_records import (
    BatchBackendError,
    BatchSnapshot,
    Counts,
    Entry,
    InputProblem,
    OutputLine,
    parse_entry,
)
from smartbatch.emulator.gemini.parsing import (
    QUOTA_EXHAUSTED,
    api_error,
    decode_body,
    found,
    no_such_file,
    unknown_url,
)
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.parsed_requests import ApiError, MalformedBody, ModelCall, decode_object
from smartbatch.emulator.provider_api import BatchContext, Item, ServerReply, json_reply, page_after
from smartbatch.emulator.settings import EmulatorSettings

GENERATE_METHOD = "batchGenerateContent"
EMBED_METHOD = "asyncBatchEmbedContent"
_TYPE_PREFIX = "type.googleapis.com/google.ai.generativelanguage.v1main."
_KINDS = {GENERATE_METHOD: "GenerateContentBatch", EMBED_METHOD: "EmbedContentBatch"}
_INLINE = {GENERATE_METHOD: "inlinedResponses", EMBED_METHOD: "inlinedEmbedContentResponses"}
_STATES = {
    "validating": "PENDING",
    "queued": "PENDING",
    "running": "RUNNING",
    "finalizing": "RUNNING",
    "cancelling": "RUNNING",
    "completed": "SUCCEEDED",
    "failed": "FAILED",
    "cancelled": "CANCELLED",
    "expired": "EXPIRED",
}
_INVALID, _DEADLINE, _CANCELLED, _EXHAUSTED, _UNAVAILABLE = 3, 4, 1, 8, 14  # codes of ``google.rpc.Code``
_RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1s"}


def operation(
    batch: BatchSnapshot, context: BatchContext, inline: Sequence[OutputLine] | None = None
) -> dict[str, Any]:
    """Return the long-running operation of a batch.

    Args:
        inline: the batch's inline results; ``None`` to omit them.
    """
    kind = _KINDS[batch.endpoint]
    metadata = {
        "@type": _TYPE_PREFIX + kind,
        "name": f"batches/{batch.id}",
        "model": f"models/{batch.model}",
        "state": f"BATCH_STATE_{(batch.unknown_status or _STATES[batch.state]).upper()}",
        "createTime": context.rfc3339(batch.created_at),
        "updateTime": context.rfc3339(min(context.now, batch.ended_at or context.now)),
        "batchStats": _stats(batch.counts),
    }
    if batch.label:
        metadata["displayName"] = batch.label["displayName"]
    if batch.file_id is not None:
        metadata["inputConfig"] = {"fileName": f"files/{batch.file_id}"}
    if batch.ended_at is not None:
        metadata["endTime"] = context.rfc3339(batch.ended_at)
    shape: dict[str, Any] = {"name": f"batches/{batch.id}", "metadata": metadata}
    output = _output(batch, context, inline)
    if output is not None:
        metadata["output"] = output
    if batch.ended:
        shape["done"] = True
    if (error := _failure(batch)) is not None:
        shape["error"] = error
    elif output is not None:
        shape["response"] = {"@type": f"{_TYPE_PREFIX}{kind}Output", **output}
    return shape


def _stats(counts: Counts) -> dict[str, str]:
    stats = {
        "requestCount": counts.total,
        "successfulRequestCount": counts.succeeded,
        "failedRequestCount": counts.errored + counts.cancelled + counts.expired,
        "pendingRequestCount": counts.waiting,
    }
    return {name: str(count) for name, count in stats.items() if count}


def _output(
    batch: BatchSnapshot, context: BatchContext, inline: Sequence[OutputLine] | None
) -> dict[str, Any] | None:
    """Return the file with the results, or the inline results.

    A batch that expired before any line succeeded has no results.
    """
    if batch.output_id is None or (batch.state == "expired" and not batch.counts.succeeded):
        return None
    if batch.file_id is not None:
        return {"responsesFile": f"files/{batch.output_id}"}
    return None if inline is None else inline_output(inline, batch.endpoint, context)


def inline_output(lines: Sequence[OutputLine], endpoint: str, context: BatchContext) -> dict[str, Any]:
    shapes = [_inline(line, endpoint, context) for line in lines]
    return {_INLINE[endpoint]: {"inlinedResponses": shapes}}


def _inline(line: OutputLine, endpoint: str, context: BatchContext) -> dict[str, Any]:
    # A line that is malformed in a file is an empty object in inline results.
    shape = {} if line.damage else _outcome(line, endpoint, context)
    metadata = line.metadata
    if metadata is None and line.position is None and endpoint == GENERATE_METHOD:
        metadata = {"key": line.custom_id}
    return (
        {**shape, "metadata": dict(metadata)}
        if metadata and context.settings.batch_inline_metadata
        else shape
    )


def line_shape(line: OutputLine, endpoint: str, context: BatchContext) -> bytes:
    """Return a line of a results file as JSON, without its line break."""
    key = {} if line.custom_id is None else {"key": line.custom_id}
    shape = _outcome(line, endpoint, context)
    # As in the service's files, the order of the fields varies.
    whole = {**key, **shape} if int(line.identity[-1], 16) % 2 else {**shape, **key}
    return json.dumps(whole).encode()


def _outcome(line: OutputLine, endpoint: str, context: BatchContext) -> dict[str, Any]:
    match line.outcome:
        case "succeeded":
            response: dict[str, Any] = json.loads(line.body)
            if endpoint == GENERATE_METHOD:
                response["responseId"] = line.identity
            return {"response": response}
        case "cancelled":
            return {"error": {"code": _CANCELLED, "message": "The operation was cancelled."}}
        case "expired":
            return {"error": {"code": _DEADLINE, "message": "The batch expired before the request ran."}}
    return {"error": _error(line, context)}


def _error(line: OutputLine, context: BatchContext) -> dict[str, Any]:
    code, message = 0, ""
    if line.error == "refused":
        error_fields = json.loads(line.body)["error"]
        code, message = _CODES.get(error_fields["code"], _INVALID), error_fields["message"]
    elif line.error in _ERRORS:
        code, message = _ERRORS[line.error]
    error: dict[str, Any] = {"code": code, "message": message}
    return error | {"details": [_RETRY]} if context.settings.batch_error_details else error


_CODES = {403: 7, 404: 5}  # those of gRPC, by HTTP status
_ERRORS = {
    "server": (_UNAVAILABLE, "The model is overloaded. Please try again later."),
    "invalid": (_INVALID, "Request contains an invalid argument."),
    "no_money": (
        _EXHAUSTED,
        "Your prepayment credits are depleted. Manage your project's billing in AI Studio.",
    ),
}


def _failure(batch: BatchSnapshot) -> Mapping[str, Any] | None:
    """Return the error of a batch that failed, expired or was canceled."""
    match batch.state:
        case "failed":
            message = "; ".join(problem.message for problem in batch.problems)
            full = any(problem.code == "token_limit_exceeded" for problem in batch.problems)
            return {"code": _EXHAUSTED if full else _INVALID, "message": message}
        case "cancelled":
            return {"code": _CANCELLED, "message": "The operation was cancelled."}
        case "expired":
            return {"code": _DEADLINE, "message": "The batch did not end within its time."}
    return None


MAX_INLINE_BYTES = 20 * 1024 * 1024  # bytes of a create call with inline requests

ParseRequest = Callable[[Mapping[str, Any]], ModelCall]


@frozen
class ParsedCreate:
    """A parsed create call, with either a file or inline requests."""

    display_name: str  # may be empty
    file: str | None
    requests: list[Any] | None
    callbacks: tuple[str, ...]  # addresses for an event when the batch ends


def parse_creation(body: bytes) -> ParsedCreate:
    batch = decode_body(body).get("batch")
    config = found(batch, "inputConfig") if isinstance(batch, Mapping) else None
    if not isinstance(batch, Mapping) or not isinstance(config, Mapping):
        raise api_error(400, "* BatchGenerateContentRequest.batch.input_config: input_config is required")
    name = found(batch, "displayName") or ""
    if not isinstance(name, str):
        raise api_error(400, "Invalid value at 'batch.display_name' (TYPE_STRING)")
    callbacks = _callbacks(found(batch, "webhookConfig"))
    file, inline = found(config, "fileName"), found(config, "requests")
    if (file is None) == (inline is None):
        raise api_error(400, "* input_config: exactly one of file_name and requests must be set")
    if file is not None:
        if not isinstance(file, str) or not file.startswith("files/"):
            raise api_error(400, "* input_config.file_name: must be the name of a file, files/…")
        return ParsedCreate(name, file, None, callbacks)
    requests = inline.get("requests") if isinstance(inline, Mapping) else None
    if not isinstance(requests, list) or not requests:
        raise api_error(400, "* input_config.requests.requests: must not be empty")
    if len(body) > MAX_INLINE_BYTES:
        raise api_error(400, f"Request payload size exceeds the limit: {MAX_INLINE_BYTES} bytes.")
    return ParsedCreate(name, None, requests, callbacks)


def _callbacks(config: Any) -> tuple[str, ...]:
    if config is None:
        return ()
    addresses = found(config, "uris") if isinstance(config, Mapping) else None
    if not isinstance(addresses, list) or not all(isinstance(each, str) for each in addresses):
        raise api_error(400, "Invalid value at 'batch.webhook_config.uris' (TYPE_STRING)")
    return tuple(addresses)


def inline_entries(
    requests: list[Any], parse_request: ParseRequest, settings: EmulatorSettings
) -> list[Entry]:
    """Return the entries of inline requests, or raise :class:`ApiError` for an invalid one."""
    entries = []
    for number, item in enumerate(requests):
        request = item.get("request") if isinstance(item, Mapping) else None
        if not isinstance(request, Mapping):
            raise api_error(400, f"* requests[{number}].request: request is required")
        metadata = item.get("metadata")
        if metadata is not None and not isinstance(metadata, Mapping):
            raise api_error(400, f"Invalid value at 'requests[{number}].metadata'")
        key = _text_or_none(metadata.get("key") if metadata else None)
        entries.append(parse_entry(key, partial(parse_request, request), settings, metadata=metadata))
    return entries


def entries_in_file(
    data: bytes, parse_request: ParseRequest, settings: EmulatorSettings
) -> tuple[list[Entry], list[InputProblem]]:
    """Return the entries of a JSON Lines file, and the problems found by its validation."""
    entries: list[Entry] = []
    if len(data) > (settings.batch_max_bytes or len(data)):
        return [], [InputProblem("too_large", "The input file is larger than allowed for a batch.")]
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = decode_object(line)
        except MalformedBody:
            message = f"Line {number} of the input file is not a JSON object."
            return [], [InputProblem("invalid_json", message, number)]
        request, key = row.get("request"), row.get("key")
        if not isinstance(request, Mapping):
            return [], [
                InputProblem("no_request", f"Line {number} of the input file has no request.", number)
            ]
        entries.append(parse_entry(_text_or_none(key), partial(parse_request, request), settings))
    if not entries:
        return [], [InputProblem("empty_file", "The input file has no requests.")]
    if len(entries) > (settings.batch_max_lines or len(entries)):
        return [], [InputProblem("too_many", "The input file has more requests than allowed in a batch.")]
    return entries, []


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


_PATH = re.compile(r"/(?:v1|v1beta)/batches(?:/([^/:]+)(:cancel)?)?")
API_NAME = "gemini"
_PAGE, _MAX_PAGE = 50, 1000


def create(
    body: bytes,
    context: BatchContext,
    *,
    key: str,
    model: str,
    method: str,
    parse_request: Callable[[Mapping[str, Any]], ModelCall],
) -> ServerReply:
    """Create a batch.

    Args:
        model: the model in the path.
        method: ``batchGenerateContent`` or ``asyncBatchEmbedContent``.
        parse_request: parses the request of a line, or raises ``ApiError``.

    Raises:
        ApiError: the batch itself is invalid.
        AnswerLost: the answer never arrives.
    """
    creation, settings = parse_creation(body), context.settings
    label = {"displayName": creation.display_name} if creation.display_name else {}
    file_id = None if creation.file is None else creation.file.removeprefix("files/")
    entries: list[Entry] = []
    problems: list[InputProblem] = []
    if creation.requests is not None:
        entries = inline_entries(creation.requests, parse_request, settings)
    # The backend rejects a missing file, because only the backend knows whether the create call arrives.
    elif (file := context.backend.file(API_NAME, key, file_id or "", context.now)) is not None:
        entries, problems = entries_in_file(file.data, parse_request, settings)
    try:
        batch = context.backend.create(
            API_NAME, key, entries, now=context.now, label=label, model=model,
            endpoint=method, file_id=file_id, problems=problems, callbacks=creation.callbacks,
        )  # fmt: skip
    except BatchBackendError as error:
        if error.reason == "no_such_file":
            raise no_such_file(file_id or "") from error
        raise api_error(429, QUOTA_EXHAUSTED) from error
    return json_reply(operation(batch, context))


def answer_batches(head: Head, context: BatchContext, *, key: str) -> ServerReply:
    """Reply to a request about existing batches, or raise :class:`ApiError`."""
    path = _PATH.fullmatch(head.path)
    if path is None:
        raise unknown_url(head)
    name = path[1]
    match head.method, "cancel" if path[2] else "one" if name else "all":
        case "GET", "all":
            return _list(head, context, key)
        case "GET", "one":
            return _get(name, context, key)
        case "POST", "cancel":
            if context.backend.cancel(API_NAME, key, name, context.now) is None:
                raise _not_found()
            return json_reply({})
        case "DELETE", "one":
            if not context.backend.delete(API_NAME, key, name, context.now):
                raise _not_found()
            return json_reply({})
    raise unknown_url(head)


def _get(name: str, context: BatchContext, key: str) -> ServerReply:
    batch = context.backend.batch(API_NAME, key, name, context.now)
    if batch is None:
        raise _not_found()
    if batch.file_id is not None or not batch.ended or batch.state == "failed":
        return json_reply(operation(batch, context))
    lines = _inline_lines(batch, context, key)
    shape = operation(batch, context, lines)
    reply = json_reply(shape)
    if "output" not in shape["metadata"]:
        return reply
    return evolve(reply, delivered=lambda: context.backend.delivered(batch.id, lines))


def _inline_lines(batch: BatchSnapshot, context: BatchContext, key: str) -> list[OutputLine]:
    try:
        return list(context.backend.outputs(API_NAME, key, batch.id, context.now))
    except BatchBackendError as error:
        if error.reason == "unavailable":
            raise api_error(503, "The service is currently unavailable.") from error
        return []  # no longer kept


def _list(head: Head, context: BatchContext, key: str) -> ServerReply:
    batches = context.backend.batches(API_NAME, key, context.now)
    page, token = page_of(head, batches, _PAGE, _MAX_PAGE)
    # Lists omit inline results.
    shape: dict[str, Any] = {"operations": [operation(batch, context) for batch in page]} if page else {}
    return json_reply(shape | ({"nextPageToken": token} if token else {}))


def page_of(head: Head, items: Sequence[Item], default: int, most: int) -> tuple[list[Item], str | None]:
    """Return a page of a list and the token of the next page, ``None`` after the last page.

    Args:
        head: contains the page size and the token.
        items: all items, newest first.
        default: default page size.
        most: maximum page size; a larger size is reduced to it.

    Raises:
        ApiError: the size or the token is invalid.
    """
    query = head.parameters
    size = query.get("pageSize", [str(default)])[0]
    if not size.isascii() or not size.isdigit():
        raise api_error(400, f"Invalid value at 'page_size' (TYPE_INT32), {json.dumps(size)}")
    found = page_after(items, min(int(size) or default, most), query.get("pageToken", [None])[0])
    if found is None:
        raise api_error(400, "Invalid page token.")
    page, more = found
    return page, page[-1].id if more else None


def _not_found() -> ApiError:
    return api_error(404, "Requested entity was not found.")
