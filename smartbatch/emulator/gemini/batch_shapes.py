"""Gemini's batches in JSON: the long-running operation of a batch, and the lines of its results.

Source: the types and converters of ``google-genai`` 3.4 and Google's API reference of November 2026.
Counts are encoded as texts, and fields that are zero are omitted, as everywhere in this API.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from smartbatch.emulator.batches.batch_records import BatchSnapshot, Counts, OutputLine
from smartbatch.emulator.provider_api import BatchContext

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


def operation(
    batch: BatchSnapshot, context: BatchContext, inline: Sequence[OutputLine] | None = None
) -> dict[str, Any]:
    """Return the long-running operation of a batch.

    Args:
        batch: its present state.
        context: time and settings.
        inline: its inline results; ``None`` to omit them.
    """
    kind = _KINDS[batch.endpoint]
    metadata = {
        "@type": _TYPE + kind,
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


def _output(
    batch: BatchSnapshot, context: BatchContext, inline: Sequence[OutputLine] | None
) -> dict[str, Any] | None:
    """Return the file with the results, or the inline results; ``None`` without results.

    A batch that expired before any line succeeded has no results.
    """
    if batch.output_id is None or (batch.state == "expired" and not batch.counts.succeeded):
        return None
    if batch.file_id is not None:
        return {"responsesFile": f"files/{batch.output_id}"}
    return None if inline is None else inline_output(inline, batch.endpoint, context)


def inline_output(lines: Sequence[OutputLine], endpoint: str, context: BatchContext) -> dict[str, Any]:
    """Return the inline results of a batch."""
    shapes = [_inline(line, endpoint, context) for line in lines]
    return {_INLINE[endpoint]: {"inlinedResponses": shapes}}


def _inline(line: OutputLine, endpoint: str, context: BatchContext) -> dict[str, Any]:
    # A line that is malformed in a file is an empty object here.
    shape = {} if line.damage else _outcome(line, endpoint, context)
    metadata = line.metadata
    if metadata is None and line.position is None and endpoint == GENERATE:
        metadata = {"key": line.custom_id}
    return (
        {**shape, "metadata": dict(metadata)}
        if metadata and context.settings.batch_inline_metadata
        else shape
    )


def line_shape(line: OutputLine, endpoint: str, context: BatchContext) -> bytes:
    """Return a line of a file of results as JSON, without its line end."""
    key = {} if line.custom_id is None else {"key": line.custom_id}
    shape = _outcome(line, endpoint, context)
    # The order of the fields varies, as it does in the service's files.
    whole = {**key, **shape} if int(line.identity[-1], 16) % 2 else {**shape, **key}
    return json.dumps(whole).encode()


def _outcome(line: OutputLine, endpoint: str, context: BatchContext) -> dict[str, Any]:
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
    return {"error": _error(line, context)}


def _error(line: OutputLine, context: BatchContext) -> dict[str, Any]:
    code, message = 0, ""
    if line.error == "refused":
        error_fields = json.loads(line.body)["error"]
        code, message = (5 if error_fields["code"] == 404 else _INVALID), error_fields["message"]
    elif line.error in _ERRORS:
        code, message = _ERRORS[line.error]
    error: dict[str, Any] = {"code": code, "message": message}
    return error | {"details": [_RETRY]} if context.settings.batch_error_details else error


_ERRORS = {
    "server": (_UNAVAILABLE, "The model is overloaded. Please try again later."),
    "invalid": (_INVALID, "Request contains an invalid argument."),
    "no_money": (
        _EXHAUSTED,
        "Your prepayment credits are depleted. Manage your project's billing in AI Studio.",
    ),
}


def _failure(batch: BatchSnapshot) -> Mapping[str, Any] | None:
    """Return the error of a batch that failed, expired or was cancelled."""
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
