"""Anthropic's Message Batches over HTTP: create, look, list, cancel, delete, and the results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn
from urllib.parse import parse_qs

from smartbatch.emulator.anthropic.batch_shapes import MOST_BYTES, batch_shape, entries_of, line_bytes
from smartbatch.emulator.anthropic.parsing import refused, version_of
from smartbatch.emulator.batch_service import Desk
from smartbatch.emulator.batches.batch_records import BatchBackendError, RemoteBatch
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.openai.parsing import Refused, parse_body
from smartbatch.emulator.provider_api import Reply, Task

__all__ = ["answer", "is_about_batches"]

_ROOT = "/v1/messages/batches"
_PATH = re.compile(_ROOT + r"(?:/([^/]+)(?:/(cancel|results))?)?/?")
_API = "anthropic"
_PAGE, _LONGEST_PAGE = 20, 1000
# The service's own status for results before the end is not documented; it is a refusal in any case.
_STATUSES = {"not_found": 404, "gone": 404, "not_ended": 400, "enqueued": 429, "unavailable": 503}

_Parse = Callable[[Head, Mapping[str, Any]], Task]


def is_about_batches(head: Head) -> bool:
    """True for every path at or under ``/v1/messages/batches``."""
    return head.path == _ROOT or head.path.startswith(_ROOT + "/")


def answer(head: Head, body: bytes, service: Desk, *, key: str, parse: _Parse) -> Reply:
    """Return the reply to a request about batches.

    Args:
        head: its head.
        body: its body.
        service: has the house.
        key: the caller's credential: it sees its own batches only.
        parse: turns the parameters of one message into a task, or raises ``Refused``.

    Raises:
        Refused: in the service's shape.
        Lost: for a create whose answer never arrives.
    """
    version_of(head)
    found = _PATH.fullmatch(head.path)
    if found is None:
        raise refused(404, "Not found")
    name, verb = found[1], found[2]
    try:
        match head.method, verb:
            case "POST", None if name is None:
                return _create(head, body, service, key, parse)
            case "GET", None if name is None:
                return _list(head, service, key)
            case "GET", None:
                return _shown(service.backend.batch(_API, key, name, service.now), name, service)
            case "DELETE", None if name is not None:
                return _delete(name, service, key)
            case "POST", "cancel":
                return _cancel(name, service, key)
            case "GET", "results":
                return _results(name, service, key)
    except BatchBackendError as error:
        raise refused(_STATUSES.get(error.reason, 400), error.message) from error
    raise refused(405, "Method Not Allowed")


def _create(head: Head, body: bytes, service: Desk, key: str, parse: _Parse) -> Reply:
    most = service.settings.batch_max_bytes or MOST_BYTES
    if len(body) > most:
        raise refused(413, f"Request exceeds the maximum size of {most:,} bytes")
    try:
        fields = parse_body(body)
    except Refused:
        raise refused(400, "The request body is not valid JSON") from None
    entries = entries_of(fields, lambda params: parse(head, params), service.settings)
    batch = service.backend.create(_API, key, entries, now=service.now, endpoint="/v1/messages")
    return _json(batch_shape(batch, service))


def _list(head: Head, service: Desk, key: str) -> Reply:
    query = parse_qs(head.query)
    limit = query.get("limit", [str(_PAGE)])[0]
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit) <= _LONGEST_PAGE:
        raise refused(400, f"limit: Input should be from 1 to {_LONGEST_PAGE}")
    after, before = (query.get(name, [None])[0] for name in ("after_id", "before_id"))
    if after and before:
        raise refused(400, "after_id and before_id cannot be used together")
    batches = service.backend.batches(_API, key, service.now)
    page, more = _page(batches, int(limit), after, before)
    return _json(
        {
            "data": [batch_shape(batch, service) for batch in page],
            "has_more": more,
            "first_id": page[0].id if page else None,
            "last_id": page[-1].id if page else None,
        }
    )


def _page(
    batches: list[RemoteBatch], limit: int, after: str | None, before: str | None
) -> tuple[list[RemoteBatch], bool]:
    """Return a page of batches, newest first, and whether there are more in its direction."""
    if before is not None:
        newer = batches[: _place(batches, before, "before_id")]
        return newer[-limit:], len(newer) > limit
    older = batches if after is None else batches[_place(batches, after, "after_id") + 1 :]
    return older[:limit], len(older) > limit


def _place(batches: list[RemoteBatch], name: str, field: str) -> int:
    for place, batch in enumerate(batches):
        if batch.id == name:
            return place
    raise refused(404, f"{field}: No batch found with id {name!r}")


def _cancel(name: str, service: Desk, key: str) -> Reply:
    batch = service.backend.batch(_API, key, name, service.now)
    if batch is not None and batch.ended:
        raise refused(400, f"Batch {name} cannot be canceled: it has ended.")
    return _shown(service.backend.cancel(_API, key, name, service.now), name, service)


def _delete(name: str, service: Desk, key: str) -> Reply:
    batch = service.backend.batch(_API, key, name, service.now)
    if batch is None:
        _missing(name)
    if not batch.ended:
        raise refused(400, f"Batch {name} cannot be deleted while it is being processed; cancel it first.")
    service.backend.delete(_API, key, name, service.now)
    return _json({"id": name, "type": "message_batch_deleted"})


def _results(name: str, service: Desk, key: str) -> Reply:
    fetched = service.backend.fetch(_API, key, name, service.now, write=line_bytes)
    return Reply(200, fetched.body, content_type="application/x-jsonl", delivered=fetched.delivered)


def _shown(batch: RemoteBatch | None, name: str, service: Desk) -> Reply:
    return _json(batch_shape(batch, service)) if batch is not None else _missing(name)


def _missing(name: str) -> NoReturn:
    raise refused(404, f"No batch found with id {name!r}")


def _json(shape: Mapping[str, Any]) -> Reply:
    return Reply(200, json.dumps(shape).encode())
