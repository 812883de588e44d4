"""Together: uploads in two steps, lists without pages, and batches without metadata.

Sources: types and upload of the ``together`` SDK 3.1, and the guide to batch inference, November 2026.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from attrs import evolve, frozen

from smartbatch.emulator.batches.backend import UPLOAD_SECONDS
from smartbatch.emulator.batches.batch_records import BatchSnapshot, IdFormat, OutputLine, StoredFile
from smartbatch.emulator.hosts.host_batches import file_object, found_file, put_file, response_of
from smartbatch.emulator.hosts.host_dialect import (
    UNFENCED,
    BatchCall,
    CreateField,
    HostDialect,
    Variant,
    uuid_of,
)
from smartbatch.emulator.openai.batches import NOT_RUN, InputRules
from smartbatch.emulator.openai.files import form_of
from smartbatch.emulator.openai.parsing import api_error
from smartbatch.emulator.provider_api import ServerReply, json_reply

_STATUS_NAMES = {
    "validating": "VALIDATING",
    "queued": "IN_PROGRESS",
    "running": "IN_PROGRESS",
    "finalizing": "IN_PROGRESS",
    "cancelling": "IN_PROGRESS",
    "completed": "COMPLETED",
    "failed": "FAILED",
    "expired": "EXPIRED",
    "cancelled": "CANCELLED",
}


@frozen
class _BegunFile:
    """A file whose content must be, or was, sent to its own URL."""

    key: str
    name: str
    purpose: str
    checksum: str  # SHA-256 of the content (hexadecimal), as declared
    file_id: str
    expires_at: float  # monotonic seconds


def _error(_dialect: HostDialect, status: int, error: Mapping[str, Any], _path: str) -> tuple[int, Any]:
    code, type_ = error["code"], error["type"]
    match status:
        case 401:
            code = "invalid_api_key"
        case 429:
            code, type_ = None, "rate_limit"
        case 404 if code == "model_not_found":
            code = "model_not_available"
        case _ if status >= 500:
            code, type_ = "service_unavailable", "service_unavailable"
    return status, {"error": {**error, "code": code, "type": type_}}


def _begin_upload(call: BatchCall) -> ServerReply:
    """Answer with the URL to which the content must be sent, unless the account has the same file."""
    if call.head.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        fields = dict(parse_qsl(call.body.decode()))
    else:
        fields = dict(form_of(call.head, call.body).fields)
    for name in ("purpose", "file_name", "file_type", "checksum"):
        if not fields.get(name):
            raise api_error(400, f"Missing field: {name}", code="missing_required_parameter", param=name)
    if fields["purpose"] not in call.dialect.purposes:
        raise api_error(400, "Invalid purpose.", code="invalid_value", param="purpose")
    backend = call.context.backend
    for known in backend.open_uploads.values():
        same = (known.key, known.checksum) == (call.key, fields["checksum"])
        if same and backend.file(call.dialect.name, call.key, known.file_id, call.context.now) is not None:
            return _reply(409, {"message": "The file already exists.", "file_id": known.file_id})
    file_id = f"file-{uuid_of(backend.new_id())}"
    backend.open_uploads[file_id] = _BegunFile(
        call.key, fields["file_name"], fields["purpose"], fields["checksum"], file_id,
        call.context.now + UPLOAD_SECONDS,
    )  # fmt: skip
    headers = [("location", f"{call.context.url}/upload/{file_id}"), ("x-together-file-id", file_id)]
    return ServerReply(302, b"", headers)


def _put_content(call: BatchCall, file_id: str) -> ServerReply:
    """Store the content of a file. The URL itself gives access; the call has no key."""
    upload = call.context.backend.open_uploads.get(file_id)
    if upload is None:
        raise api_error(403, "The URL is not valid.")
    account = BatchCall(call.dialect, call.head, call.body, call.context, upload.key)
    file = put_file(account, upload.name, call.body, upload.purpose, identity=file_id)
    call.context.backend.open_uploads[file_id] = evolve(upload, expires_at=file.expires_at)
    return ServerReply(200, b"")


def _preprocess(call: BatchCall, file_id: str) -> ServerReply:
    return json_reply(file_object(found_file(call, file_id), call))


def _reply(status: int, value: Any) -> ServerReply:
    reply = json_reply(value)
    return ServerReply(status, reply.body)


def _job(batch: BatchSnapshot, call: BatchCall) -> dict[str, Any]:
    counts, time = batch.counts, call.context.rfc3339
    over = counts.total - counts.waiting
    job = {
        "id": batch.id,
        "user_id": "emulator",
        "input_file_id": batch.file_id,
        "file_size_bytes": None,
        "status": (batch.unknown_status or "").upper() or _STATUS_NAMES[batch.state],
        "job_deadline": time(batch.expires_at),
        "created_at": time(batch.created_at),
        "endpoint": batch.endpoint,
        "progress": 100.0 * over / counts.total if counts.total else 0.0,
        "model_id": batch.model or None,
        "output_file_id": batch.output_id,
        "error_file_id": batch.error_id,
        "error": batch.problems[0].message if batch.problems else None,
        "completed_at": time(batch.ended_at),
    }
    if not call.context.settings.batch_echo_input_file:
        del job["input_file_id"]
    return job


def _created(batch: BatchSnapshot, call: BatchCall) -> dict[str, Any]:
    return {"job": _job(batch, call), "warning": ""}


def _file(file: StoredFile, size: int, call: BatchCall) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": size,
        "created_at": call.unix(file.created_at),
        "filename": file.name,
        "purpose": "batch-api" if file.batch is None else "batch-generated",
        "FileType": "jsonl",
        "Processed": True,
        "LineCount": file.data.count(b"\n"),
        "processing_status": "COMPLETED",
    }


def _line(line: OutputLine, call: BatchCall) -> dict[str, Any]:
    """Return a result. In the error file, it has a reason instead of a response."""
    if line.outcome in NOT_RUN:
        code, message = NOT_RUN[line.outcome]
        return {"custom_id": line.custom_id, "error": {"message": message, "code": code}}
    status, body = response_of(line, call)
    if line.error is None:
        return {"custom_id": line.custom_id, "response": {"status_code": status, "body": body}}
    error = body["error"] if isinstance(body, dict) else {}
    shown = {"message": error.get("message", ""), "code": error.get("code") or str(status)}
    return {"custom_id": line.custom_id, "error": shown}


def _list(batches: Sequence[BatchSnapshot], call: BatchCall) -> ServerReply:
    return _reply(200, [_job(batch, call) for batch in batches])


TOGETHER = HostDialect(
    name="together",
    errors=_error,
    ids=IdFormat(batch=uuid_of, file=lambda digits: f"file-{uuid_of(digits)}"),
    rules=InputRules(max_lines=50_000, max_bytes=100_000_000, addressed=False, max_id_characters=64),
    purposes=("batch-api", "fine-tune", "eval"),
    open_paths=("/upload/",),
    create_fields={
        "endpoint": CreateField(required=True, values=("/v1/chat/completions",)),
        "input_file_id": CreateField(required=True),
        "completion_window": CreateField(values=("24h",)),
        "model_id": CreateField(),
        "priority": CreateField(int),
    },
    create_status=201,
    cancel_ended=400,
    not_run=False,
    line=_line,
    variants={
        "unfenced": UNFENCED,
        "refuses_unknown": Variant(
            "a create call with other fields, such as metadata, is refused", {"refuses_unknown": True}
        ),
        "openai_lines": Variant("the error file has OpenAI's format", {"line": None}),
        "not_run_lines": Variant("the error file includes requests that have not run", {"not_run": True}),
    },
    batch=_job,
    created=_created,
    file=_file,
    list_batches=_list,
    routes={
        ("POST", "/files"): _begin_upload,
        ("PUT", "/upload/([^/]+)"): _put_content,
        ("POST", "/files/([^/]+)/preprocess"): _preprocess,
    },
)
