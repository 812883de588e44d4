"""Gemini's files: resumable upload in two steps, lists, deletion, and downloads of results.

Source: the requests and responses of ``google-genai`` 3.4, and Google's API reference of November 2026. A
missing file is answered with 403, like a file of another account, as reported for the live service in
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

from attrs import define, field

from smartbatch.emulator.batches.backend import UPLOAD_SECONDS
from smartbatch.emulator.batches.batch_records import BatchBackendError, StoredFile
from smartbatch.emulator.gemini.batches import API_NAME, line_shape, page_of
from smartbatch.emulator.gemini.parsing import api_error, decode_body, found, no_such_file, unknown_url
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.parsed_requests import ApiError
from smartbatch.emulator.prompt_files import FindUpload
from smartbatch.emulator.provider_api import BatchContext, ServerReply, json_reply

FILE_LIFETIME_SECONDS = 48 * 3600.0  # seconds an uploaded file is kept

_UPLOAD = re.compile(r"/upload/(v1|v1beta)/files")
_PATH = re.compile(r"(?P<download>/download)?/(v1|v1beta)/files(?:/(?P<name>[^/:]+)(?P<media>:download)?)?")
_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
_PAGE, _MAX_PAGE = 10, 100
_MAX_DISPLAY_NAME = 512


@define
class _Upload:
    """A resumable upload that has not ended."""

    key: str = field(repr=False)
    identity: str | None
    display: str
    mime: str
    size: int | None
    expires_at: float  # monotonic seconds
    data: bytearray = field(factory=bytearray, repr=False)


def is_upload_chunk(head: Head) -> bool:
    """Whether a request continues an upload. The upload ID in its URL replaces the key."""
    return bool(_UPLOAD.fullmatch(head.path)) and "upload_id" in head.parameters


def start_or_continue(head: Head, body: bytes, context: BatchContext, *, key: str | None) -> ServerReply:
    """Reply to a step of an upload, or raise :class:`ApiError`.

    Args:
        body: the description of the file, or a chunk of it.
        key: the caller's credential; ``None`` for a chunk, which needs none.
    """
    if head.method != "POST" or _UPLOAD.fullmatch(head.path) is None:
        raise unknown_url(head)
    commands = [each.strip() for each in head.headers.get("x-goog-upload-command", "").split(",")]
    if key is not None:
        if head.headers.get("x-goog-upload-protocol") != "resumable" or commands != ["start"]:
            raise api_error(
                400,
                "Only resumable uploads are supported: send X-Goog-Upload-Protocol: resumable and "
                "X-Goog-Upload-Command: start.",
            )
        return _start(head, body, context, key)
    try:
        return _upload_chunk(head, body, context, commands)
    except ApiError as error:
        # Without this header the SDK sends the chunk again, up to three times.
        return ServerReply(error.status, error.body, headers=[("x-goog-upload-status", "final")])


def _upload_chunk(head: Head, body: bytes, context: BatchContext, commands: list[str]) -> ServerReply:
    name = head.parameters["upload_id"][0]
    upload = context.backend.open_uploads.get(name)
    if not isinstance(upload, _Upload):
        raise api_error(404, "Requested entity was not found.")
    if commands == ["query"]:
        return _unfinished(upload)
    if not {"upload", "finalize"}.issuperset(commands):
        raise api_error(400, f"Unknown upload command: {', '.join(commands)}")
    return _append(head, body, context, name, upload, last="finalize" in commands)


def _start(head: Head, body: bytes, context: BatchContext, key: str) -> ServerReply:
    given = decode_body(body).get("file") if body.strip() else {}
    file: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    identity = _requested_id(file.get("name"))
    display = found(file, "displayName") or ""
    if not isinstance(display, str) or len(display) > _MAX_DISPLAY_NAME:
        raise api_error(400, f"* CreateFileRequest.file.display_name: at most {_MAX_DISPLAY_NAME} characters")
    if identity is not None and context.backend.file(API_NAME, key, identity, context.now) is not None:
        raise _already_exists(identity)
    size = head.headers.get("x-goog-upload-header-content-length", "")
    mime = found(file, "mimeType") or head.headers.get("x-goog-upload-header-content-type", "")
    upload = _Upload(
        key, identity, display, str(mime), int(size) if size.isdigit() else None, context.now + UPLOAD_SECONDS
    )
    name = secrets.token_hex(16)
    context.backend.open_uploads[name] = upload
    address = f"{context.url}{head.path}?upload_id={name}&upload_protocol=resumable"
    headers = [("x-goog-upload-url", address), ("x-goog-upload-status", "active")]
    return ServerReply(200, b"{}", headers=headers)


def _requested_id(name: Any) -> str | None:
    if name is None or name == "":
        return None
    identity = name.removeprefix("files/") if isinstance(name, str) else ""
    if not _ID.fullmatch(identity):
        message = (
            "* CreateFileRequest.file.name: must be files/ and 1 to 40 of a-z, 0-9 and -, without a dash at "
            "either end"
        )
        raise api_error(400, message)
    return identity


def _append(
    head: Head, body: bytes, context: BatchContext, name: str, upload: _Upload, *, last: bool
) -> ServerReply:
    offset = head.headers.get("x-goog-upload-offset", "0")
    if offset != str(len(upload.data)):
        raise api_error(400, f"The upload offset is {offset}, but {len(upload.data)} bytes were received.")
    upload.data += body
    if not last:
        return _unfinished(upload)
    if upload.size is not None and upload.size != len(upload.data):
        raise api_error(400, f"{upload.size} bytes were announced, but {len(upload.data)} were received.")
    del context.backend.open_uploads[name]
    try:
        file = context.backend.put_file(
            API_NAME, upload.key, upload.display, bytes(upload.data), context.now,
            identity=upload.identity, purpose=upload.mime, lifetime=FILE_LIFETIME_SECONDS,
        )  # fmt: skip
    except BatchBackendError as error:
        if error.reason == "storage":
            raise api_error(429, "Quota exceeded for metric: file_storage_bytes") from None
        raise _already_exists(upload.identity) from None
    body = json.dumps({"file": _shape(file, context)}).encode()
    return ServerReply(200, body, headers=[("x-goog-upload-status", "final")])


def _unfinished(upload: _Upload) -> ServerReply:
    received = ("x-goog-upload-size-received", str(len(upload.data)))
    return ServerReply(200, b"", headers=[("x-goog-upload-status", "active"), received])


def _already_exists(identity: str | None) -> ApiError:
    return api_error(409, f"Requested entity already exists: files/{identity}")


def answer_files(head: Head, context: BatchContext, *, key: str) -> ServerReply:
    """Reply to a request about existing files, or raise :class:`ApiError`."""
    path = _PATH.fullmatch(head.path)
    if path is None or (path["download"] and not path["media"]):
        raise unknown_url(head)
    name = path["name"]
    if name is None and head.method == "GET":
        return _list(head, context, key)
    file = context.backend.file(API_NAME, key, name or "", context.now)
    if file is None:
        raise no_such_file(name or "")
    match head.method, bool(path["media"]):
        case "GET", True:
            return _download(file, context, key)
        case "GET", False:
            return json_reply(_shape(file, context))
        case "DELETE", False:
            context.backend.delete_file(API_NAME, key, name, context.now)
            return json_reply({})
    raise unknown_url(head)


def _list(head: Head, context: BatchContext, key: str) -> ServerReply:
    files = context.backend.files(API_NAME, key, context.now)
    page, token = page_of(head, files, _PAGE, _MAX_PAGE)
    shape: dict[str, Any] = {"files": [_shape(file, context) for file in page]} if page else {}
    return json_reply(shape | ({"nextPageToken": token} if token else {}))


def _download(file: StoredFile, context: BatchContext, key: str) -> ServerReply:
    if file.batch is None:
        raise api_error(400, "Only generated files can be downloaded.")
    batch = context.backend.batch(API_NAME, key, file.batch, context.now)
    if batch is None:
        raise no_such_file(file.id)
    try:
        fetched = context.backend.fetch(
            API_NAME, key, file.batch, context.now, part=file.part,
            write=lambda line: line_shape(line, batch.endpoint, context),
        )  # fmt: skip
    except BatchBackendError as error:
        if error.reason == "unavailable":
            raise api_error(503, "The service is currently unavailable.") from error
        raise no_such_file(file.id) from error
    return ServerReply(
        200, fetched.body, content_type="application/octet-stream", delivered=fetched.delivered
    )


def is_processing(file: StoredFile, context: BatchContext) -> bool:
    return context.now < file.created_at + context.settings.file_processing


def find_active(context: BatchContext, key: str) -> FindUpload:
    """Return the function that finds uploaded files, and raises ``ApiError`` for one that is processed."""

    def find(name: str) -> StoredFile:
        file = context.backend.upload(API_NAME, key, name, context.now)
        if is_processing(file, context):
            message = f"The File {name} is not in an ACTIVE state and usage is not allowed."
            raise api_error(400, message)
        return file

    return find


def _shape(file: StoredFile, context: BatchContext) -> dict[str, Any]:
    generated = file.batch is not None
    uri = f"{context.url}/v1beta/files/{file.id}"
    shape: dict[str, Any] = {
        "name": f"files/{file.id}",
        # In this API the purpose of an upload is its MIME type.
        "mimeType": "application/jsonl" if generated else file.purpose,
        "createTime": context.rfc3339(file.created_at),
        "updateTime": context.rfc3339(file.created_at),
        "expirationTime": context.rfc3339(file.expires_at),
        "uri": uri,
        "state": "PROCESSING" if not generated and is_processing(file, context) else "ACTIVE",
        "source": "GENERATED" if generated else "UPLOADED",
    }
    if file.name:
        shape["displayName"] = file.name
    if generated:
        return shape | {"downloadUri": f"{uri}:download?alt=media"}
    digest = hashlib.sha256(file.data).hexdigest().encode()
    return shape | {"sizeBytes": str(len(file.data)), "sha256Hash": base64.b64encode(digest).decode()}
