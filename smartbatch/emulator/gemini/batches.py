"""Gemini's batches over HTTP, under ``/v1`` and ``/v1beta``: create, look, list, cancel and delete."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn
from urllib.parse import parse_qs

from smartbatch.emulator.batch_service import Desk
from smartbatch.emulator.batches.batch_records import BatchBackendError, Entry, Line, Problem, RemoteBatch
from smartbatch.emulator.gemini.batch_input import asked_of, entries_in_file, inline_entries
from smartbatch.emulator.gemini.batch_shapes import operation
from smartbatch.emulator.gemini.parsing import GeminiRefused, no_such_file
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.provider_api import Reply, Task

__all__ = ["answer_batches", "create", "page_of"]

_PATH = re.compile(r"/(?:v1|v1beta)/batches(?:/([^/:]+)(:cancel)?)?")
_API = "gemini"
_PAGE, _LONGEST_PAGE = 50, 1000


def create(
    body: bytes,
    service: Desk,
    *,
    key: str,
    model: str,
    method: str,
    understand: Callable[[Mapping[str, Any]], Task],
) -> Reply:
    """Create a batch.

    Args:
        body: of the request.
        service: has the house.
        key: the caller's credential.
        model: the model of the path.
        method: ``batchGenerateContent`` or ``asyncBatchEmbedContent``.
        understand: turns the request of a line into a task, or raises ``Refused``.

    Raises:
        GeminiRefused: for what is wrong with the batch itself.
        Lost: when the answer never arrives.
    """
    asked, settings = asked_of(body), service.settings
    label = {"displayName": asked.name} if asked.name else {}
    file_id = None if asked.file is None else asked.file.removeprefix("files/")
    entries: list[Entry] = []
    problems: list[Problem] = []
    if asked.requests is not None:
        entries = inline_entries(asked.requests, understand, settings)
    # A file that is gone is the house's to refuse: it knows whether the create arrives at all.
    elif (file := service.backend.file(_API, key, file_id or "", service.now)) is not None:
        entries, problems = entries_in_file(file.data, understand, settings)
    try:
        batch = service.backend.create(
            _API, key, entries, now=service.now, label=label, model=model,
            endpoint=method, file_id=file_id, problems=problems,
        )  # fmt: skip
    except BatchBackendError as error:
        if error.reason == "no_such_file":
            raise no_such_file(file_id or "") from error
        raise GeminiRefused(429, "Resource has been exhausted (e.g. check quota).") from error
    return _json(operation(batch, service))


def answer_batches(head: Head, service: Desk, *, key: str) -> Reply:
    """Return the reply to a request about batches that exist, or raise :class:`GeminiRefused`."""
    path = _PATH.fullmatch(head.path)
    if path is None:
        raise GeminiRefused(404, f"The requested URL {head.path} was not found on this server.")
    name = path[1]
    match head.method, "cancel" if path[2] else "one" if name else "all":
        case "GET", "all":
            return _list(head, service, key)
        case "GET", "one":
            return _shown(name, service, key)
        case "POST", "cancel":
            if service.backend.cancel(_API, key, name, service.now) is None:
                _missing()
            return _json({})
        case "DELETE", "one":
            if not service.backend.delete(_API, key, name, service.now):
                _missing()
            return _json({})
    raise GeminiRefused(404, f"The requested URL {head.path} was not found on this server.")


def _shown(name: str, service: Desk, key: str) -> Reply:
    batch = service.backend.batch(_API, key, name, service.now)
    if batch is None:
        _missing()
    if batch.file_id is not None or not batch.ended or batch.state == "failed":
        return _json(operation(batch, service))
    lines = _inline_lines(batch, service, key)
    shape = operation(batch, service, lines)
    told = "output" in shape["metadata"]
    reply = _json(shape)
    if not told:
        return reply
    return Reply(200, reply.body, delivered=lambda: service.backend.delivered(batch.id, lines))


def _inline_lines(batch: RemoteBatch, service: Desk, key: str) -> list[Line]:
    try:
        return service.backend.outputs(_API, key, batch.id, service.now)
    except BatchBackendError as error:
        if error.reason == "unavailable":
            raise GeminiRefused(503, "The service is currently unavailable.") from error
        return []  # no longer kept


def _list(head: Head, service: Desk, key: str) -> Reply:
    batches = service.backend.batches(_API, key, service.now)
    page, token = page_of(head, [batch.id for batch in batches], _PAGE, _LONGEST_PAGE)
    shown = {batch.id: batch for batch in batches}
    # Inline results are left out of lists.
    shape: dict[str, Any] = {"operations": [operation(shown[name], service) for name in page]} if page else {}
    return _json(shape | ({"nextPageToken": token} if token else {}))


def page_of(head: Head, names: list[str], usual: int, longest: int) -> tuple[list[str], str | None]:
    """Return a page of a list and the token of the next one.

    The token is the name of the last that was shown, so what comes to the front meanwhile moves nothing.

    Args:
        head: has the page's size and the last token.
        names: all there are, newest first.
        usual: a page's size unless another is asked for.
        longest: a page's largest size; a larger one is cut to it.
    """
    query = parse_qs(head.query)
    size = query.get("pageSize", [str(usual)])[0]
    if not size.isascii() or not size.isdigit():
        raise GeminiRefused(400, f"Invalid value at 'page_size' (TYPE_INT32), {json.dumps(size)}")
    token = query.get("pageToken", [None])[0]
    if token is not None and token not in names:
        raise GeminiRefused(400, "Invalid page token.")
    begin = 0 if token is None else names.index(token) + 1
    end = begin + min(int(size) or usual, longest)
    page = names[begin:end]
    return page, page[-1] if end < len(names) else None


def _missing() -> NoReturn:
    raise GeminiRefused(404, "Requested entity was not found.")


def _json(shape: Mapping[str, Any]) -> Reply:
    return Reply(200, json.dumps(shape).encode())
