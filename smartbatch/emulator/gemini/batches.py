"""Gemini's batches under ``/v1`` and ``/v1beta``: create, get, list, cancel and delete.

Source: what ``google-genai`` 3.4 sends and reads, and Google's API reference of November 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve

from smartbatch.emulator.batches.batch_records import (
    BatchBackendError,
    BatchSnapshot,
    Entry,
    InputProblem,
    OutputLine,
)
from smartbatch.emulator.gemini.batch_input import entries_in_file, inline_entries, parse_creation
from smartbatch.emulator.gemini.batch_shapes import operation
from smartbatch.emulator.gemini.parsing import QUOTA_EXHAUSTED, api_error, no_such_file, unknown_url
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.paging import Item, page_after
from smartbatch.emulator.parsed_requests import ApiError, ModelCall
from smartbatch.emulator.provider_api import BatchContext, ServerReply, json_reply

_PATH = re.compile(r"/(?:v1|v1beta)/batches(?:/([^/:]+)(:cancel)?)?")
_API = "gemini"
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
        body: the body of the request.
        context: backend, settings and time.
        key: the caller's credential.
        model: the model of the path.
        method: ``batchGenerateContent`` or ``asyncBatchEmbedContent``.
        parse_request: parses the request of a line, or raises ``ApiError``.

    Raises:
        ApiError: for errors of the batch itself.
        AnswerLost: when the answer never arrives.
    """
    creation, settings = parse_creation(body), context.settings
    label = {"displayName": creation.display_name} if creation.display_name else {}
    file_id = None if creation.file is None else creation.file.removeprefix("files/")
    entries: list[Entry] = []
    problems: list[InputProblem] = []
    if creation.requests is not None:
        entries = inline_entries(creation.requests, parse_request, settings)
    # The backend refuses a missing file, as only it knows whether the create arrives.
    elif (file := context.backend.file(_API, key, file_id or "", context.now)) is not None:
        entries, problems = entries_in_file(file.data, parse_request, settings)
    try:
        batch = context.backend.create(
            _API, key, entries, now=context.now, label=label, model=model,
            endpoint=method, file_id=file_id, problems=problems,
        )  # fmt: skip
    except BatchBackendError as error:
        if error.reason == "no_such_file":
            raise no_such_file(file_id or "") from error
        raise api_error(429, QUOTA_EXHAUSTED) from error
    return json_reply(operation(batch, context))


def answer_batches(head: Head, context: BatchContext, *, key: str) -> ServerReply:
    """Return the reply to a request about batches that exist, or raise :class:`ApiError`."""
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
            if context.backend.cancel(_API, key, name, context.now) is None:
                raise _not_found()
            return json_reply({})
        case "DELETE", "one":
            if not context.backend.delete(_API, key, name, context.now):
                raise _not_found()
            return json_reply({})
    raise unknown_url(head)


def _get(name: str, context: BatchContext, key: str) -> ServerReply:
    batch = context.backend.batch(_API, key, name, context.now)
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
        return list(context.backend.outputs(_API, key, batch.id, context.now))
    except BatchBackendError as error:
        if error.reason == "unavailable":
            raise api_error(503, "The service is currently unavailable.") from error
        return []  # no longer kept


def _list(head: Head, context: BatchContext, key: str) -> ServerReply:
    batches = context.backend.batches(_API, key, context.now)
    page, token = page_of(head, batches, _PAGE, _MAX_PAGE)
    # Lists omit inline results.
    shape: dict[str, Any] = {"operations": [operation(batch, context) for batch in page]} if page else {}
    return json_reply(shape | ({"nextPageToken": token} if token else {}))


def page_of(head: Head, items: Sequence[Item], default: int, most: int) -> tuple[list[Item], str | None]:
    """Return a page of a list and the token of the next one, ``None`` after the last page.

    Args:
        head: has the size of the page and the token.
        items: all items, newest first.
        default: items of a page without a size.
        most: items of the longest page; a larger size is reduced to it.

    Raises:
        ApiError: for an invalid size or token.
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
