"""Gemini's files over HTTP: the resumable upload in two steps, lists, deletion, and downloads of results.

Source: what ``google-genai`` 3.4 sends and reads, and Google's API reference of November 2026. A file that
does not exist is refused with 403, as another account's is: reported of the live service in
google-gemini/deprecated-generative-ai-js, issue 236.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from attrs import define, field

from smartbatch.emulator.batch_service import Desk
from smartbatch.emulator.batches.batch_records import BatchBackendError, RemoteFile
from smartbatch.emulator.gemini.batch_shapes import line_shape
from smartbatch.emulator.gemini.batches import page_of
from smartbatch.emulator.gemini.parsing import GeminiRefused, found, no_such_file
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.openai.parsing import Refused, parse_body
from smartbatch.emulator.provider_api import Reply

__all__ = ["LIFETIME", "answer_files", "is_piece", "start_or_continue"]

LIFETIME = 48 * 3600.0
"""Seconds an uploaded file is kept."""

_API = "gemini"
_UPLOAD = re.compile(r"/upload/(v1|v1beta)/files")
_PATH = re.compile(r"(?P<download>/download)?/(v1|v1beta)/files(?:/(?P<name>[^/:]+)(?P<media>:download)?)?")
_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
_PAGE, _LONGEST_PAGE = 10, 100
_LONGEST_NAME = 512


@define
class _Upload:
    """An upload that has begun."""

    key: str = field(repr=False)
    identity: str | None
    display: str
    mime: str
    size: int | None
    data: bytearray = field(factory=bytearray, repr=False)


def is_piece(head: Head) -> bool:
    """True for a request that continues an upload: its address stands for the key."""
    return bool(_UPLOAD.fullmatch(head.path)) and "upload_id" in parse_qs(head.query)


def start_or_continue(head: Head, body: bytes, service: Desk, *, key: str | None) -> Reply:
    """Return the reply to a step of an upload, or raise :class:`GeminiRefused`.

    Args:
        head: has the command.
        body: what the file is, or a piece of it.
        service: has the house.
        key: the caller's credential; ``None`` for a piece, which needs none.
    """
    if head.method != "POST" or _UPLOAD.fullmatch(head.path) is None:
        raise GeminiRefused(404, f"The requested URL {head.path} was not found on this server.")
    commands = [each.strip() for each in head.headers.get("x-goog-upload-command", "").split(",")]
    if key is not None:
        if head.headers.get("x-goog-upload-protocol") != "resumable" or commands != ["start"]:
            raise GeminiRefused(400, "Uploads are resumable here: X-Goog-Upload-Protocol: resumable, start.")
        return _start(head, body, service, key)
    try:
        return _go_on(head, body, service, commands)
    except GeminiRefused as wrong:
        # Without this header the SDK sends the piece again, up to three times.
        return Reply(wrong.status, wrong.body, headers=[("x-goog-upload-status", "final")])


def _go_on(head: Head, body: bytes, service: Desk, commands: list[str]) -> Reply:
    name = parse_qs(head.query)["upload_id"][0]
    upload = service.backend.begun.get(name)
    if not isinstance(upload, _Upload):
        raise GeminiRefused(404, "Requested entity was not found.")
    if commands == ["query"]:
        return _active(upload)
    if not {"upload", "finalize"}.issuperset(commands):
        raise GeminiRefused(400, f"Unknown upload command: {', '.join(commands)}")
    return _continue(head, body, service, name, upload, last="finalize" in commands)


def _start(head: Head, body: bytes, service: Desk, key: str) -> Reply:
    try:
        given = parse_body(body).get("file") if body.strip() else {}
    except Refused as refused:
        raise GeminiRefused(400, f"Invalid JSON payload received. {refused}") from None
    file: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    identity = _chosen(file.get("name"))
    display = found(file, "displayName") or ""
    if not isinstance(display, str) or len(display) > _LONGEST_NAME:
        raise GeminiRefused(400, f"* CreateFileRequest.file.display_name: at most {_LONGEST_NAME} characters")
    if identity is not None and service.backend.file(_API, key, identity, service.now) is not None:
        _taken(identity)
    size = head.headers.get("x-goog-upload-header-content-length", "")
    mime = found(file, "mimeType") or head.headers.get("x-goog-upload-header-content-type", "")
    upload = _Upload(key, identity, display, str(mime), int(size) if size.isdigit() else None)
    name = secrets.token_hex(16)
    service.backend.begun[name] = upload
    address = f"{service.url}{head.path}?upload_id={name}&upload_protocol=resumable"
    headers = [("x-goog-upload-url", address), ("x-goog-upload-status", "active")]
    return Reply(200, b"{}", headers=headers)


def _chosen(name: Any) -> str | None:
    if name is None or name == "":
        return None
    identity = name.removeprefix("files/") if isinstance(name, str) else ""
    if not _ID.fullmatch(identity):
        message = "* CreateFileRequest.file.name: files/ and 1 to 40 of a-z, 0-9 and -, no dash at either end"
        raise GeminiRefused(400, message)
    return identity


def _continue(head: Head, body: bytes, service: Desk, name: str, upload: _Upload, *, last: bool) -> Reply:
    offset = head.headers.get("x-goog-upload-offset", "0")
    if offset != str(len(upload.data)):
        raise GeminiRefused(400, f"The upload offset is {offset}, but {len(upload.data)} bytes are here.")
    upload.data += body
    if not last:
        return _active(upload)
    if upload.size is not None and upload.size != len(upload.data):
        raise GeminiRefused(400, f"{upload.size} bytes were announced, {len(upload.data)} came.")
    del service.backend.begun[name]
    try:
        file = service.backend.put_file(
            _API, upload.key, upload.display, bytes(upload.data), service.now,
            identity=upload.identity, purpose=upload.mime, lifetime=LIFETIME,
        )  # fmt: skip
    except BatchBackendError:
        _taken(upload.identity)
    body = json.dumps({"file": _shape(file, service)}).encode()
    return Reply(200, body, headers=[("x-goog-upload-status", "final")])


def _active(upload: _Upload) -> Reply:
    received = ("x-goog-upload-size-received", str(len(upload.data)))
    return Reply(200, b"", headers=[("x-goog-upload-status", "active"), received])


def _taken(identity: str | None) -> None:
    raise GeminiRefused(409, f"Requested entity already exists: files/{identity}")


def answer_files(head: Head, service: Desk, *, key: str) -> Reply:
    """Return the reply to a request about files that exist, or raise :class:`GeminiRefused`."""
    path = _PATH.fullmatch(head.path)
    if path is None or (path["download"] and not path["media"]):
        raise GeminiRefused(404, f"The requested URL {head.path} was not found on this server.")
    name = path["name"]
    if name is None and head.method == "GET":
        return _list(head, service, key)
    file = service.backend.file(_API, key, name or "", service.now)
    if file is None:
        raise no_such_file(name or "")
    match head.method, bool(path["media"]):
        case "GET", True:
            return _download(file, service, key)
        case "GET", False:
            return _json(_shape(file, service))
        case "DELETE", False:
            service.backend.delete_file(_API, key, name, service.now)
            return _json({})
    raise GeminiRefused(404, f"The requested URL {head.path} was not found on this server.")


def _list(head: Head, service: Desk, key: str) -> Reply:
    files = {file.id: file for file in service.backend.files(_API, key, service.now)}
    page, token = page_of(head, list(files), _PAGE, _LONGEST_PAGE)
    shape: dict[str, Any] = {"files": [_shape(files[name], service) for name in page]} if page else {}
    return _json(shape | ({"nextPageToken": token} if token else {}))


def _download(file: RemoteFile, service: Desk, key: str) -> Reply:
    if file.batch is None:
        raise GeminiRefused(400, "Only generated files can be downloaded.")
    batch = service.backend.batch(_API, key, file.batch, service.now)
    if batch is None:
        raise no_such_file(file.id)
    try:
        fetched = service.backend.fetch(
            _API, key, file.batch, service.now, part=file.part,
            write=lambda line: line_shape(line, batch.endpoint, service),
        )  # fmt: skip
    except BatchBackendError as error:
        if error.reason == "unavailable":
            raise GeminiRefused(503, "The service is currently unavailable.") from error
        raise no_such_file(file.id) from error
    return Reply(200, fetched.body, content_type="application/octet-stream", delivered=fetched.delivered)


def _shape(file: RemoteFile, service: Desk) -> dict[str, Any]:
    generated = file.batch is not None
    uri = f"{service.url}/v1beta/files/{file.id}"
    shape: dict[str, Any] = {
        "name": f"files/{file.id}",
        # What an upload is for is its type here.
        "mimeType": "application/jsonl" if generated else file.purpose,
        "createTime": service.say(file.created_at),
        "updateTime": service.say(file.created_at),
        "expirationTime": service.say(file.expires_at),
        "uri": uri,
        "state": "ACTIVE",
        "source": "GENERATED" if generated else "UPLOADED",
    }
    if file.name:
        shape["displayName"] = file.name
    if generated:
        return shape | {"downloadUri": f"{uri}:download?alt=media"}
    digest = hashlib.sha256(file.data).hexdigest().encode()
    return shape | {"sizeBytes": str(len(file.data)), "sha256Hash": base64.b64encode(digest).decode()}


def _json(shape: Mapping[str, Any]) -> Reply:
    return Reply(200, json.dumps(shape).encode())
