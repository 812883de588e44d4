"""Gemini's batches in JSON: the long-running operation of a batch, and the lines of its results.

Source: the types and converters of ``google-genai`` 3.4 and Google's API reference of November 2026.
Counts are texts, and fields that are zero are left out, as everywhere in this API.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from smartbatch.emulator.batch_service import Desk
from smartbatch.emulator.batches.batch_records import Counts, Line, RemoteBatch

__all__ = ["EMBED", "GENERATE", "inline_output", "line_shape", "operation"]

GENERATE = "batchGenerateContent"
EMBED = "asyncBatchEmbedContent"
_TYPE = "type.googleapis.com/google.ai.generativelanguage.v1main."
_KINDS = {GENERATE: "GenerateContentBatch", EMBED: "EmbedContentBatch"}
_INLINE = {GENERATE: "inlinedResponses", EMBED: "inlinedEmbedContentResponses"}
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
_INVALID, _DEADLINE, _CANCELLED, _EXHAUSTED, _UNAVAILABLE = 3, 4, 1, 8, 14
"""Codes of ``google.rpc.Code``."""
_RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1s"}


def operation(batch: RemoteBatch, service: Desk, inline: Sequence[Line] | None = None) -> dict[str, Any]:
    """Return a batch as the service tells it.

    Args:
        batch: as it is now.
        service: has the clock and the settings.
        inline: its results where it came inline and they are to be told.
    """
    kind = _KINDS[batch.endpoint]
    metadata = {
        "@type": _TYPE + kind,
        "name": f"batches/{batch.id}",
        "model": f"models/{batch.model}",
        "state": f"BATCH_STATE_{(batch.odd or _STATES[batch.state]).upper()}",
        "createTime": service.say(batch.created_at),
        "updateTime": service.say(min(service.now, batch.ended_at or service.now)),
        "batchStats": _stats(batch.counts),
    }
    if batch.label:
        metadata["displayName"] = batch.label["displayName"]
    if batch.file_id is not None:
        metadata["inputConfig"] = {"fileName": f"files/{batch.file_id}"}
    if batch.ended_at is not None:
        metadata["endTime"] = service.say(batch.ended_at)
    shape: dict[str, Any] = {"name": f"batches/{batch.id}", "metadata": metadata}
    output = _output(batch, service, inline)
    if output is not None:
        metadata["output"] = output
    if batch.ended:
        shape["done"] = True
    if (error := _failure(batch)) is not None:
        shape["error"] = error
    elif output is not None:
        shape["response"] = {"@type": f"{_TYPE}{kind}Output", **output}
    return shape


def _stats(counts: Counts) -> dict[str, str]:
    stats = {
        "requestCount": counts.total,
        "successfulRequestCount": counts.succeeded,
        "failedRequestCount": counts.errored + counts.cancelled + counts.expired,
        "pendingRequestCount": counts.waiting,
    }
    return {name: str(count) for name, count in stats.items() if count}


def _output(batch: RemoteBatch, service: Desk, inline: Sequence[Line] | None) -> dict[str, Any] | None:
    """Return where the results are, or they themselves; ``None`` while, and where, there are none.

    A batch that expired may have no results at all: it has none when nothing of it was done.
    """
    if batch.output_id is None or (batch.state == "expired" and not batch.counts.succeeded):
        return None
    if batch.file_id is not None:
        return {"responsesFile": f"files/{batch.output_id}"}
    return None if inline is None else inline_output(inline, batch.endpoint, service)


def inline_output(lines: Sequence[Line], endpoint: str, service: Desk) -> dict[str, Any]:
    """Return results as they stand in the batch itself."""
    shapes = [_inline(line, endpoint, service) for line in lines]
    return {_INLINE[endpoint]: {"inlinedResponses": shapes}}


def _inline(line: Line, endpoint: str, service: Desk) -> dict[str, Any]:
    # A line that is spoiled in a file is here one that says nothing.
    shape = {} if line.torn else _outcome(line, endpoint, service)
    note = line.note
    if note is None and line.position is None and endpoint == GENERATE:
        note = {"key": line.custom_id}
    return {**shape, "metadata": dict(note)} if note and service.settings.batch_inline_metadata else shape


def line_shape(line: Line, endpoint: str, service: Desk) -> bytes:
    """Return a line of a file of results as JSON, without its end."""
    named = {} if line.custom_id is None else {"key": line.custom_id}
    shape = _outcome(line, endpoint, service)
    # The order of the fields varies, as it does in the service's files.
    whole = {**named, **shape} if int(line.identity[-1], 16) % 2 else {**shape, **named}
    return json.dumps(whole).encode()


def _outcome(line: Line, endpoint: str, service: Desk) -> dict[str, Any]:
    match line.outcome:
        case "succeeded":
            response: dict[str, Any] = json.loads(line.body)
            if endpoint == GENERATE:
                response["responseId"] = line.identity
            return {"response": response}
        case "cancelled":
            return {"error": {"code": _CANCELLED, "message": "The operation was cancelled."}}
        case "expired":
            return {"error": {"code": _DEADLINE, "message": "The batch expired before the request ran."}}
    return {"error": _error(line, service)}


def _error(line: Line, service: Desk) -> dict[str, Any]:
    code, message = 0, ""
    if line.error == "refused":
        refusal = json.loads(line.body)["error"]
        code, message = (5 if refusal["code"] == 404 else _INVALID), refusal["message"]
    elif line.error in _ERRORS:
        code, message = _ERRORS[line.error]
    error: dict[str, Any] = {"code": code, "message": message}
    return error | {"details": [_RETRY]} if service.settings.batch_error_details else error


_ERRORS = {
    "server": (_UNAVAILABLE, "The model is overloaded. Please try again later."),
    "invalid": (_INVALID, "Request contains an invalid argument."),
    "no_money": (
        _EXHAUSTED,
        "Your prepayment credits are depleted. Manage your project's billing in AI Studio.",
    ),
}


def _failure(batch: RemoteBatch) -> Mapping[str, Any] | None:
    """Return why a batch as a whole came to no good end."""
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
