"""Anthropic's Message Batches: create, get, list, cancel, delete, and the results.

Source: the types of the ``anthropic`` SDK 2.12 and Anthropic's API reference of November 2026.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from smartbatch.emulator.anthropic.batch_shapes import MAX_BYTES, batch_shape, line_bytes, parse_entries
from smartbatch.emulator.anthropic.parsing import api_error, check_version, parse_body
from smartbatch.emulator.batches.batch_records import BatchBackendError, BatchSnapshot
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.paging import page_after, parse_limit, position_of
from smartbatch.emulator.parsed_requests import ApiError, ModelCall
from smartbatch.emulator.provider_api import BatchContext, ServerReply, json_reply

_ROOT = "/v1/messages/batches"
_PATH = re.compile(_ROOT + r"(?:/([^/]+)(?:/(cancel|results))?)?/?")
_API = "anthropic"
_PAGE, _MAX_PAGE = 20, 1000
# The status of results that are requested before the end is not documented.
_STATUSES = {"not_found": 404, "gone": 404, "not_ended": 400, "enqueued": 429, "unavailable": 503}

_Parse = Callable[[Head, Mapping[str, Any]], ModelCall]


def is_about_batches(head: Head) -> bool:
    """True for every path at or under ``/v1/messages/batches``."""
    return head.path == _ROOT or head.path.startswith(_ROOT + "/")


def answer(head: Head, body: bytes, context: BatchContext, *, key: str, parse: _Parse) -> ServerReply:
    """Return the reply to a request about batches.

    Args:
        head: its head.
        body: its body.
        context: backend, settings and time.
        key: the caller's credential, which sees its own batches only.
        parse: parses the parameters of one message, or raises ``ApiError``.

    Raises:
        ApiError: in Anthropic's shape.
        AnswerLost: for a create whose answer never arrives.
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
                return _batch_reply(context.backend.batch(_API, key, name, context.now), name, context)
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
    batch = context.backend.create(_API, key, entries, now=context.now, endpoint="/v1/messages")
    return json_reply(batch_shape(batch, context))


def _list(head: Head, context: BatchContext, key: str) -> ServerReply:
    query = head.parameters
    limit = parse_limit(query.get("limit", [str(_PAGE)])[0], _MAX_PAGE)
    if limit is None:
        raise api_error(400, f"limit: Input should be from 1 to {_MAX_PAGE}")
    after, before = (query.get(name, [None])[0] for name in ("after_id", "before_id"))
    if after and before:
        raise api_error(400, "after_id and before_id cannot be used together")
    batches = context.backend.batches(_API, key, context.now)
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
    """Return a page of batches, newest first, and whether more follow in its direction."""
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
    batch = context.backend.batch(_API, key, name, context.now)
    if batch is not None and batch.ended:
        raise api_error(400, f"Batch {name} cannot be canceled: it has ended.")
    return _batch_reply(context.backend.cancel(_API, key, name, context.now), name, context)


def _delete(name: str, context: BatchContext, key: str) -> ServerReply:
    batch = context.backend.batch(_API, key, name, context.now)
    if batch is None:
        _raise_not_found(name)
    if not batch.ended:
        raise api_error(400, f"Batch {name} cannot be deleted while it is being processed; cancel it first.")
    context.backend.delete(_API, key, name, context.now)
    return json_reply({"id": name, "type": "message_batch_deleted"})


def _results(name: str, context: BatchContext, key: str) -> ServerReply:
    fetched = context.backend.fetch(_API, key, name, context.now, write=line_bytes)
    return ServerReply(200, fetched.body, content_type="application/x-jsonl", delivered=fetched.delivered)


def _batch_reply(batch: BatchSnapshot | None, name: str, context: BatchContext) -> ServerReply:
    return json_reply(batch_shape(batch, context)) if batch is not None else _raise_not_found(name)


def _raise_not_found(name: str) -> NoReturn:
    raise api_error(404, f"No batch found with id {name!r}")
