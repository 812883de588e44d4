"""Anthropic's files: upload, list, metadata and deletion.

Source: the types of the ``anthropic`` SDK 2.14 and Anthropic's guide to the Files API of November 2026. With
version 2023-06-01, files are a beta feature that requests must name.
"""

from __future__ import annotations

import math
import re
from typing import Any

from smartbatch.emulator.anthropic.batches import API_NAME
from smartbatch.emulator.anthropic.parsing import FILES_BETA, api_error, check_version, has_files
from smartbatch.emulator.batches.batch_records import BatchBackendError, IdFormat, StoredFile
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.http.multipart import read_form
from smartbatch.emulator.provider_api import BatchContext, ServerReply, json_reply, page_after, parse_limit
from smartbatch.media_content import type_of_content

PATH = re.compile(r"/v1/files(?:/([^/]+)(/content)?)?")
MAX_FILE_BYTES = 500 * 2**20
_IDS = IdFormat(file="file_".__add__)
_FORBIDDEN = re.compile(r'[<>:"|?*\\/\x00-\x1f]')
_MAX_NAME = 255
_LIFETIMES = (3600, 7_776_000)  # seconds, from one hour to ninety days
_PAGE, _MAX_PAGE, _MAX_IDS = 20, 1000, 100


def answer(head: Head, body: bytes, context: BatchContext, *, key: str) -> ServerReply:
    """Return the reply to a request about files, or raise :class:`ApiError`."""
    check_version(head)
    if not has_files(head):
        raise api_error(400, f"anthropic-beta: {FILES_BETA} is required for the Files API")
    found = PATH.fullmatch(head.path)
    assert found is not None  # the endpoint was selected by this pattern
    file_id, content = found.groups()
    match head.method:
        case "POST" if file_id is None:
            return _upload(head, body, context, key)
        case "GET" if file_id is None:
            return _list(head, context, key)
        case "GET" if content:
            _found(file_id, context, key)
            raise api_error(400, f"File {file_id} is not downloadable.", "file_not_downloadable")
        case "GET":
            return json_reply(_shape(_found(file_id, context, key), context))
        case "DELETE" if file_id and not content:
            _found(file_id, context, key)
            context.backend.delete_file(API_NAME, key, file_id, context.now)
            return json_reply({"id": file_id, "type": "file_deleted"})
    raise api_error(405, "Method Not Allowed")


def _upload(head: Head, body: bytes, context: BatchContext, key: str) -> ServerReply:
    form = read_form(head, body)
    if form is None or form.data is None:
        raise api_error(400, "file: Field required")
    name = (form.file_name or "unnamed").rpartition("/")[2]
    if len(name) > _MAX_NAME or _FORBIDDEN.search(name):
        raise api_error(400, f'file: the filename must have 1 to {_MAX_NAME} characters, none of <>:"|?*\\/')
    if not form.data:
        raise api_error(400, "file: File is empty")
    if len(form.data) > MAX_FILE_BYTES:
        raise api_error(413, f"File exceeds the maximum size of {MAX_FILE_BYTES} bytes")
    media_type = type_of_content(form.data) or form.file_type or "application/octet-stream"
    try:
        file = context.backend.put_file(
            API_NAME, key, name, form.data, context.now, purpose=media_type,
            lifetime=_lifetime(form.fields.get("expires_in_seconds")), ids=_IDS,
        )  # fmt: skip
    except BatchBackendError:
        message = "The organization's file storage quota is exhausted."
        raise api_error(400, message, "storage_quota_exceeded") from None
    return json_reply(_shape(file, context))


def _lifetime(seconds: str | None) -> float:
    if seconds is None:
        return math.inf
    least, most = _LIFETIMES
    if not seconds.isdecimal() or not least <= int(seconds) <= most:
        raise api_error(400, f"expires_in_seconds: Input should be from {least} to {most}")
    return float(seconds)


def _list(head: Head, context: BatchContext, key: str) -> ServerReply:
    """Return a page of files, newest first, with the cursors of the current API and of its beta version."""
    query = head.parameters
    files = _uploaded(context, key)
    if named := query.get("ids[]", query.get("ids", [])):
        if len(set(named)) > _MAX_IDS:
            raise api_error(400, f"ids: at most {_MAX_IDS} are allowed")
        files = [file for file in files if file.id in named]
    limit = len(named) or parse_limit(query.get("limit", [str(_PAGE)])[0], _MAX_PAGE)
    if limit is None:
        raise api_error(400, f"limit: Input should be from 1 to {_MAX_PAGE}")
    cursor = query.get("page", query.get("after_id", [None]))[0]
    page = page_after(files, limit, cursor and cursor.removeprefix("page_"))
    if page is None:
        raise api_error(400, f"page: unknown cursor {cursor!r}")
    shown, more = page
    return json_reply(
        {
            "data": [_shape(file, context) for file in shown],
            "has_more": more,
            "first_id": shown[0].id if shown else None,
            "last_id": shown[-1].id if shown else None,
            "next_page": f"page_{shown[-1].id}" if more else None,
        }
    )


def _uploaded(context: BatchContext, key: str) -> list[StoredFile]:
    """Return all files, newest first. In this API, the results of batches are not files."""
    return [file for file in context.backend.files(API_NAME, key, context.now) if file.batch is None]


def _found(file_id: str, context: BatchContext, key: str) -> StoredFile:
    file = next((file for file in _uploaded(context, key) if file.id == file_id), None)
    if file is None:
        raise api_error(404, f"File not found: {file_id}")
    return file


def _shape(file: StoredFile, context: BatchContext) -> dict[str, Any]:
    expiry = file.expires_at if math.isfinite(file.expires_at) else None
    return {
        "id": file.id,
        "type": "file",
        "filename": file.name,
        "mime_type": file.purpose,
        "size_bytes": len(file.data),
        "created_at": context.rfc3339(file.created_at),
        "expires_at": context.rfc3339(expiry),
        "downloadable": False,
    }
