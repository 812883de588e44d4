"""OpenAI's files: upload, list, information, content and deletion.

Source: the types of the ``openai`` SDK and OpenAI's API reference of November 2026.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smartbatch.emulator.batches.batch_records import Download, OutputLine, StoredFile
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.http.multipart import UploadForm, read_form
from smartbatch.emulator.openai.parsing import api_error
from smartbatch.emulator.parsed_requests import ApiError
from smartbatch.emulator.provider_api import (
    BatchContext,
    Item,
    ServerReply,
    json_reply,
    page_after,
    parse_limit,
)

# seconds a file with purpose ``batch`` is kept by default, and how long other lifetimes may be (OpenAI's API
# reference, files)
_FILE_LIFETIME_SECONDS = 30 * 86_400.0
MIN_LIFETIME_SECONDS, MAX_LIFETIME_SECONDS = 3600, 2_592_000
_PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
MAX_FILE_BYTES = 512 * 2**20  # of one upload (OpenAI's API reference, files)
_API_NAME = "openai"


def uploaded(head: Head, body: bytes, context: BatchContext, key: str) -> ServerReply:
    """Store the file of an upload (``multipart/form-data``)."""
    form = form_of(head, body)
    fields, name, data = form.fields, form.file_name, form.data
    purpose = fields.get("purpose")
    if not purpose:
        raise api_error(400, "'purpose' is a required property", param="purpose")
    if purpose not in _PURPOSES:
        accepted = ", ".join(f"'{each}'" for each in _PURPOSES)
        raise api_error(400, f"'{purpose}' is not one of [{accepted}] - 'purpose'", param="purpose")
    if name is None or data is None:
        raise api_error(400, "'file' is a required property", param="file")
    if len(data) > MAX_FILE_BYTES:
        message = f"The file is larger than the maximum of {MAX_FILE_BYTES} bytes."
        raise api_error(413, message, param="file")
    if purpose == "batch" and not name.endswith(".jsonl"):
        raise api_error(400, "Invalid file format. The Batch API accepts .jsonl files only.", param="file")
    lifetime = _FILE_LIFETIME_SECONDS if purpose == "batch" else math.inf
    if "expires_after[seconds]" in fields:
        lifetime = checked_lifetime(fields["expires_after[seconds]"], "expires_after")
    file = context.backend.put_file(
        _API_NAME, key, name, data, context.now, purpose=purpose, lifetime=lifetime
    )
    return json_reply(file_object(file, context, len(data)))


def listed(head: Head, context: BatchContext, key: str, write: Callable[[OutputLine], bytes]) -> ServerReply:
    """Return the list of files, newest first, or oldest first with ``order=asc``."""
    query = head.parameters
    files = context.backend.files(_API_NAME, key, context.now)
    if "purpose" in query:
        files = [file for file in files if file.purpose == query["purpose"][0]]
    if query.get("order", ["desc"])[0] == "asc":
        files.reverse()
    shown, more = page(files, query, most=10_000, default=10_000)
    shapes = [file_object(file, context, _size(file, context, key, write)) for file in shown]
    return json_reply(listing(shapes, more))


def information(
    file_id: str, context: BatchContext, key: str, write: Callable[[OutputLine], bytes]
) -> ServerReply:
    file = _found(file_id, context, key)
    return json_reply(file_object(file, context, _size(file, context, key, write)))


def content(
    file_id: str, context: BatchContext, key: str, write: Callable[[OutputLine], bytes]
) -> ServerReply:
    """Return a file's bytes. The results of a batch are built for each download."""
    file = _found(file_id, context, key)
    if file.batch is None:
        fetched = Download(file.data, lambda: None)
    else:
        fetched = context.backend.fetch(_API_NAME, key, file.batch, context.now, write=write, part=file.part)
    disposition = ("content-disposition", f'attachment; filename="{file.id}.jsonl"')
    return ServerReply(
        200, fetched.body, [disposition], "application/octet-stream", delivered=fetched.delivered
    )


def deleted(file_id: str, context: BatchContext, key: str) -> ServerReply:
    if not context.backend.delete_file(_API_NAME, key, file_id, context.now):
        raise _missing(file_id)
    return json_reply({"id": file_id, "object": "file", "deleted": True})


def checked_lifetime(seconds: Any, param: str, *, least: int = MIN_LIFETIME_SECONDS) -> float:
    """Return the seconds until a file expires, given as a number or as the text of a form field.

    Raises:
        ApiError: it is not a whole number from ``least`` to 30 days.
    """
    text = seconds if isinstance(seconds, str) else str(seconds) if type(seconds) is int else ""
    if not text.isdecimal() or not least <= int(text) <= MAX_LIFETIME_SECONDS:
        message = f"{param} must be from {least} to {MAX_LIFETIME_SECONDS} seconds."
        raise api_error(400, message, code="invalid_value", param=param)
    return float(text)


def output_lifetime(fields: Mapping[str, Any], *, least: int = MIN_LIFETIME_SECONDS) -> float:
    """Return the seconds until the result files of a new batch expire; infinity if it names none.

    Raises:
        ApiError: ``output_expires_after`` is invalid.
    """
    given, param = fields.get("output_expires_after"), "output_expires_after"
    if given is None:
        return math.inf
    if not isinstance(given, dict) or given.get("anchor") != "created_at":
        message = f"Invalid value for '{param}.anchor': use 'created_at'."
        raise api_error(400, message, code="invalid_value", param=param)
    return checked_lifetime(given.get("seconds"), param, least=least)


def page(
    items: Sequence[Item], query: Mapping[str, list[str]], *, most: int, default: int
) -> tuple[list[Item], bool]:
    """Return a page of a list, and whether more items follow.

    Args:
        query: ``limit`` and ``after``.
        most: maximum items per page.
        default: items per page without ``limit``.

    Raises:
        ApiError: the size is out of range, or ``after`` is not in the list.
    """
    limit = parse_limit(query.get("limit", [str(default)])[0], most)
    if limit is None:
        raise api_error(400, f"Invalid 'limit': expected 1 to {most}.", param="limit")
    after = query.get("after", [None])[0]
    found = page_after(items, limit, after)
    if found is None:
        raise api_error(400, f"Invalid 'after': '{after}' does not exist.", param="after")
    return found


def listing(shapes: list[dict[str, Any]], more: bool) -> dict[str, Any]:
    first, last = (shapes[0]["id"], shapes[-1]["id"]) if shapes else (None, None)
    return {"object": "list", "data": shapes, "first_id": first, "last_id": last, "has_more": more}


def _found(file_id: str, context: BatchContext, key: str) -> StoredFile:
    file = context.backend.file(_API_NAME, key, file_id, context.now)
    if file is None:
        raise _missing(file_id)
    return file


def _missing(file_id: str) -> ApiError:
    return api_error(404, f"No such File object: {file_id}", param="id")


def _size(file: StoredFile, context: BatchContext, key: str, write: Callable[[OutputLine], bytes]) -> int:
    if file.batch is None or file.part is None:
        return len(file.data)
    return context.backend.size(_API_NAME, key, file.batch, context.now, write=write, part=file.part)


def file_object(file: StoredFile, context: BatchContext, size: int) -> dict[str, Any]:
    unix = context.backend.unix
    return {
        "id": file.id,
        "object": "file",
        "bytes": size,
        "created_at": int(unix(file.created_at)),
        "expires_at": int(unix(file.expires_at)) if math.isfinite(file.expires_at) else None,
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def form_of(head: Head, body: bytes) -> UploadForm:
    form = read_form(head, body)
    if form is None:
        raise api_error(400, "Expected a multipart/form-data body.")
    return form
