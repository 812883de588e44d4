"""Anthropic's Message Batches in JSON: what a create holds, how a batch and the lines of its results look.

Source: the types of the ``anthropic`` SDK 2.12 and Anthropic's API reference of November 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from smartbatch.emulator.anthropic.parsing import error_body, refused
from smartbatch.emulator.batch_service import Desk
from smartbatch.emulator.batches.batch_records import Entry, Line, RemoteBatch, entry_of, wrong_entry
from smartbatch.emulator.openai.parsing import Refused
from smartbatch.emulator.provider_api import Task
from smartbatch.emulator.settings import Settings

__all__ = ["MOST_BYTES", "MOST_LINES", "batch_shape", "entries_of", "line_bytes"]

MOST_LINES = 100_000
MOST_BYTES = 256 * 1024 * 1024
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NEVER = ("stream", "speed")
"""Parameters of a message that a batch does not take."""


def entries_of(
    fields: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], Task], settings: Settings
) -> list[Entry]:
    """Return the requests of a create.

    What is wrong with the parameters of a message is told at the end of the batch only, as it is by the
    service: such an entry is refused when it runs.

    Args:
        fields: the decoded body.
        parse: turns the parameters of one message into a task, or raises ``Refused``.
        settings: have the answers, and the most lines of a batch.

    Raises:
        Refused: for what is wrong with the batch itself.
    """
    given = fields.get("requests")
    if not isinstance(given, list):
        problem = "Field required" if given is None else "Input should be a valid list"
        raise refused(400, f"requests: {problem}")
    if not given:
        raise refused(400, "requests: List should have at least 1 item after validation, not 0")
    most = settings.batch_max_lines or MOST_LINES
    if len(given) > most:
        raise refused(413, f"requests: a batch has at most {most:,} requests, not {len(given):,}")
    seen: set[str] = set()
    entries = []
    for number, item in enumerate(given):
        custom_id, params = _item(item, f"requests.{number}")
        if custom_id in seen:
            raise refused(400, f"requests.{number}.custom_id: duplicate custom_id: {custom_id}")
        seen.add(custom_id)
        entries.append(_entry(custom_id, params, parse, settings))
    return entries


def _item(item: Any, where: str) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(item, Mapping):
        raise refused(400, f"{where}: Input should be a valid dictionary")
    custom_id, params = item.get("custom_id"), item.get("params")
    if custom_id is None or params is None:
        raise refused(400, f"{where}.{'custom_id' if custom_id is None else 'params'}: Field required")
    if not isinstance(custom_id, str) or not _CUSTOM_ID.fullmatch(custom_id):
        raise refused(400, f"{where}.custom_id: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
    if not isinstance(params, Mapping):
        raise refused(400, f"{where}.params: Input should be a valid dictionary")
    return custom_id, params


def _entry(
    custom_id: str, params: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], Task], settings: Settings
) -> Entry:
    try:
        for name in _NEVER:
            if params.get(name):
                raise refused(400, f"{name}: not supported in batches")
        if params.get("max_tokens") == 0:
            raise refused(400, "max_tokens: must be at least 1 in batches")
        return entry_of(custom_id, parse(params), settings)
    except Refused as wrong:
        return wrong_entry(custom_id, wrong)


def batch_shape(batch: RemoteBatch, service: Desk) -> dict[str, Any]:
    """Return a batch as the service tells it; the address of its results is the server's own."""
    gone = None if batch.ended_at is None else batch.ended_at + service.settings.batch_retention
    kept = gone is not None and service.now < gone
    status = "ended" if batch.ended else "canceling" if batch.cancelling_at is not None else "in_progress"
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": batch.odd or status,
        "request_counts": _counts(batch),
        "created_at": service.say(batch.created_at),
        "expires_at": service.say(batch.expires_at),
        "ended_at": service.say(batch.ended_at),
        "cancel_initiated_at": service.say(batch.cancelling_at),
        "archived_at": None if kept else service.say(gone),
        "results_url": f"{service.url}/v1/messages/batches/{batch.id}/results" if kept else None,
    }


def _counts(batch: RemoteBatch) -> dict[str, int]:
    """Return the counters: all but ``processing`` are zero until the whole batch has ended."""
    counts, ended = batch.counts, batch.ended
    # A batch cannot fail as a whole here: where the house says so, each of its requests has.
    errored = counts.total if batch.state == "failed" else counts.errored
    return {
        "processing": 0 if ended else counts.total,
        "succeeded": counts.succeeded if ended else 0,
        "errored": errored if ended else 0,
        "canceled": counts.cancelled if ended else 0,
        "expired": counts.expired if ended else 0,
    }


def line_bytes(line: Line) -> bytes:
    """Return a line of results as JSON, without its end."""
    result: dict[str, Any]
    match line.outcome:
        case "succeeded":
            result = {"type": "succeeded", "message": _own(json.loads(line.body), line.identity)}
        case "errored":
            result = {"type": "errored", "error": _error(line)}
        case "cancelled":
            result = {"type": "canceled"}
        case "expired":
            result = {"type": "expired"}
    return json.dumps({"custom_id": line.custom_id, "result": result}).encode()


def _own(message: dict[str, Any], identity: str) -> dict[str, Any]:
    message["id"] = f"msg_{identity}"
    if "usage" in message:
        message["usage"]["service_tier"] = "batch"
    return message


def _error(line: Line) -> dict[str, Any]:
    body = line.body if line.error == "refused" else _ERRORS[line.error or "zero"]
    error: dict[str, Any] = json.loads(body)
    return error | {"request_id": f"req_{line.identity}"}


_ERRORS = {
    "server": error_body(500, "Internal server error"),
    "invalid": error_body(400, "messages: the request is refused"),
    "no_money": error_body(
        429, "You have reached your enforced spend limit.", "enforced_spend_limit_reached"
    ),
    "zero": b'{"type": "error", "error": {"type": "unknown_error", "message": ""}}',
}
