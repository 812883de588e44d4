"""OpenAI's files over HTTP: upload, list, information, content and deletion.

Source: the types of the ``openai`` SDK and OpenAI's API reference of November 2026.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from smartbatch.emulator.batch_service import Desk
from smartbatch.emulator.batches.batch_records import Fetched, Line, RemoteFile
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.openai.parsing import Refused
from smartbatch.emulator.provider_api import Reply

__all__ = ["content", "deleted", "information", "listed", "page", "uploaded"]

_LIFETIME = 30 * 86_400.0
"""Seconds a file with purpose ``batch`` is kept by default (OpenAI API reference, files)."""
_BOUNDARY = re.compile(r'boundary="?([^";,]+)"?')
_NAME = re.compile(rb'\bname="([^"]*)"')
_FILE_NAME = re.compile(rb'\bfilename="([^"]*)"')
_API = "openai"


def uploaded(head: Head, body: bytes, service: Desk, key: str) -> Reply:
    """Keep the file of an upload (``multipart/form-data``)."""
    fields, name, data = _form(head, body)
    purpose = fields.get("purpose")
    if not purpose:
        raise Refused(400, "'purpose' is a required property", param="purpose")
    if name is None or data is None:
        raise Refused(400, "'file' is a required property", param="file")
    if purpose == "batch" and not name.endswith(".jsonl"):
        raise Refused(400, "Invalid file format. The batch API takes .jsonl files.", param="file")
    lifetime = _LIFETIME if purpose == "batch" else math.inf
    if "expires_after[seconds]" in fields:
        seconds = fields["expires_after[seconds]"]
        if not seconds.isdecimal() or not 3600 <= int(seconds) <= 2_592_000:
            raise Refused(400, "expires_after is from 3600 to 2592000 seconds.", param="expires_after")
        lifetime = float(seconds)
    file = service.backend.put_file(_API, key, name, data, service.now, purpose=purpose, lifetime=lifetime)
    return _reply(_shape(file, service, len(data)))


def listed(head: Head, service: Desk, key: str, write: Callable[[Line], bytes]) -> Reply:
    """Return the files, the newest first or, with ``order=asc``, last."""
    query = parse_qs(head.query)
    files = service.backend.files(_API, key, service.now)
    if "purpose" in query:
        files = [file for file in files if file.purpose == query["purpose"][0]]
    if query.get("order", ["desc"])[0] == "asc":
        files.reverse()
    shown, more = page(files, query, most=10_000, default=10_000)
    shapes = [_shape(file, service, _size(file, service, key, write)) for file in shown]
    return _reply(listing(shapes, more))


def information(file_id: str, service: Desk, key: str, write: Callable[[Line], bytes]) -> Reply:
    """Return what is known of a file."""
    file = _found(file_id, service, key)
    return _reply(_shape(file, service, _size(file, service, key, write)))


def content(file_id: str, service: Desk, key: str, write: Callable[[Line], bytes]) -> Reply:
    """Return a file's bytes; results are made now."""
    file = _found(file_id, service, key)
    if file.batch is None:
        fetched = Fetched(file.data, lambda: None)
    else:
        fetched = service.backend.fetch(_API, key, file.batch, service.now, write=write, part=file.part)
    disposition = ("content-disposition", f'attachment; filename="{file.id}.jsonl"')
    return Reply(200, fetched.body, [disposition], "application/octet-stream", delivered=fetched.delivered)


def deleted(file_id: str, service: Desk, key: str) -> Reply:
    """Delete a file."""
    if not service.backend.delete_file(_API, key, file_id, service.now):
        raise _missing(file_id)
    return _reply({"id": file_id, "object": "file", "deleted": True})


def page(found: list[Any], query: dict[str, list[str]], *, most: int, default: int) -> tuple[list[Any], bool]:
    """Return a page of a list, and whether more follows.

    Args:
        found: everything, each with an ``id``.
        query: ``limit`` and ``after``.
        most: of a page.
        default: of a page whose size is not given.

    Raises:
        Refused: for a size out of range, or an ``after`` that is not in the list.
    """
    limit = query.get("limit", [str(default)])[0]
    if not limit.isdecimal() or not 1 <= int(limit) <= most:
        raise Refused(400, f"Invalid 'limit': expected 1 to {most}.", param="limit")
    begin = 0
    if "after" in query:
        after = query["after"][0]
        begin = next((number for number, each in enumerate(found, 1) if each.id == after), -1)
        if begin < 0:
            raise Refused(400, f"Invalid 'after': there is no '{after}'.", param="after")
    end = begin + int(limit)
    return found[begin:end], end < len(found)


def listing(shapes: list[dict[str, Any]], more: bool) -> dict[str, Any]:
    """Return a page as the service sends it."""
    first, last = (shapes[0]["id"], shapes[-1]["id"]) if shapes else (None, None)
    return {"object": "list", "data": shapes, "first_id": first, "last_id": last, "has_more": more}


def _found(file_id: str, service: Desk, key: str) -> RemoteFile:
    file = service.backend.file(_API, key, file_id, service.now)
    if file is None:
        raise _missing(file_id)
    return file


def _missing(file_id: str) -> Refused:
    return Refused(404, f"No such File object: {file_id}", param="id")


def _size(file: RemoteFile, service: Desk, key: str, write: Callable[[Line], bytes]) -> int:
    if file.batch is None or file.part is None:
        return len(file.data)
    return service.backend.size(_API, key, file.batch, service.now, write=write, part=file.part)


def _shape(file: RemoteFile, service: Desk, size: int) -> dict[str, Any]:
    unix = service.backend.unix
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


def _form(head: Head, body: bytes) -> tuple[dict[str, str], str | None, bytes | None]:
    """Return the fields of a form, and the name and bytes of its file."""
    boundary = _BOUNDARY.search(head.headers.get("content-type", ""))
    if boundary is None:
        raise Refused(400, "Expected a multipart/form-data body.")
    mark = b"--" + boundary[1].encode("latin-1")
    fields: dict[str, str] = {}
    name, data = None, None
    # A line end before the first mark makes all marks alike.
    begin = body.find(mark) + len(mark)
    while (end := body.find(b"\r\n" + mark, begin)) >= 0:
        about, _, value = body[begin:end].partition(b"\r\n\r\n")
        begin = end + len(mark) + 2
        called = _NAME.search(about)
        if called is None:
            continue
        if called[1] == b"file" and (file_name := _FILE_NAME.search(about)):
            name, data = file_name[1].decode(errors="replace"), value
        else:
            fields[called[1].decode(errors="replace")] = value.decode(errors="replace")
    return fields, name, data


def _reply(body: dict[str, Any]) -> Reply:
    return Reply(200, json.dumps(body).encode())
