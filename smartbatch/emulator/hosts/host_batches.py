"""Files and batches of a host: the calls that all hosts have, as the dialect describes them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve

from smartbatch.emulator.batches.batch_records import (
    BatchBackendError,
    BatchSnapshot,
    Download,
    OutputLine,
    StoredFile,
)
from smartbatch.emulator.hosts.host_dialect import BatchCall
from smartbatch.emulator.openai.batches import NOT_RUN, answer_of, read_input
from smartbatch.emulator.openai.files import checked_lifetime, form_of, output_lifetime
from smartbatch.emulator.openai.parsing import api_error, parse_body
from smartbatch.emulator.parsed_requests import ApiError
from smartbatch.emulator.provider_api import ServerReply, json_reply

_STATUSES = {"no_such_file": 400, "enqueued": 429, "not_found": 404, "not_ended": 400, "gone": 404}


def answer(call: BatchCall) -> ServerReply:
    """Answer a request about files or batches.

    Raises:
        ApiError: the request is invalid.
        AnswerLost: the answer to a create call never arrives.
    """
    dialect = call.dialect
    path = call.head.path.removeprefix(dialect.path)
    status = 404
    try:
        for (method, pattern), respond in {**_routes(call), **dialect.routes}.items():
            if (found := re.fullmatch(pattern, path)) is not None:
                if method == call.head.method:
                    return respond(call, *found.groups())
                status = 405
    except BatchBackendError as error:
        raise api_error(_STATUSES.get(error.reason, 503), error.message, code=error.reason) from None
    raise api_error(status, f"Invalid URL ({call.head.method} {call.head.path})")


def _routes(call: BatchCall) -> dict[tuple[str, str], Callable[..., ServerReply]]:
    jobs, one = f"/{call.dialect.jobs}", "/([^/:]+)"
    routes: dict[tuple[str, str], Callable[..., ServerReply]] = {
        ("POST", jobs): create,
        ("GET", jobs): list_batches,
        ("GET", jobs + one): get_batch,
    }
    if call.dialect.cancel is not None:
        routes["POST", jobs + one + call.dialect.cancel] = cancel
    if call.dialect.purposes:
        routes["POST", "/files"] = upload
        routes["GET", "/files"] = list_files
        routes["GET", f"/files{one}"] = get_file
        routes["GET", f"/files{one}/content"] = download
        routes["DELETE", f"/files{one}"] = delete_file
    return routes


def upload(call: BatchCall) -> ServerReply:
    """Store the file of an upload (``multipart/form-data``)."""
    form = form_of(call.head, call.body)
    fields, name, data = form.fields, form.file_name, form.data
    purpose = fields.get("purpose", call.dialect.purposes[0])
    if name is None or data is None:
        raise api_error(400, "'file' is required", code="missing_required_parameter", param="file")
    if purpose not in call.dialect.purposes:
        accepted = ", ".join(call.dialect.purposes)
        message = f"Invalid value for 'purpose'. Supported values are: {accepted}."
        raise api_error(400, message, code="invalid_value", param="purpose")
    lifetime = math.inf
    if (seconds := fields.get(call.dialect.expires_field)) is not None:
        lifetime = checked_lifetime(seconds, "expires_after", least=call.dialect.min_lifetime)
    return json_reply(file_object(put_file(call, name, data, purpose, lifetime), call))


def put_file(
    call: BatchCall,
    name: str,
    data: bytes,
    purpose: str,
    lifetime: float = math.inf,
    identity: str | None = None,
) -> StoredFile:
    """Store a file, unless the account has too many.

    Args:
        lifetime: seconds until it expires.
        identity: its ID; ``None`` generates one.
    """
    backend, now, account = call.context.backend, call.context.now, call.dialect.name
    expires = math.isfinite(lifetime)
    most = call.dialect.max_expiring_files if expires else call.dialect.max_files
    if most is not None:
        kept = [
            each
            for each in backend.files(account, call.key, now)
            if each.batch is None and math.isfinite(each.expires_at) is expires
        ]
        if len(kept) >= most:
            which = "with" if expires else "without"
            message = f"The quota for files {which} expiry is reached. The maximum is {most}."
            raise api_error(400, message, code="quotaExceeded")
    return backend.put_file(
        account, call.key, name, data, now, purpose=purpose, lifetime=lifetime, ids=call.dialect.ids,
        identity=identity,
    )  # fmt: skip


def list_files(call: BatchCall) -> ServerReply:
    files = call.context.backend.files(call.dialect.name, call.key, call.context.now)
    return json_reply({"object": "list", "data": [file_object(each, call) for each in files]})


def get_file(call: BatchCall, file_id: str) -> ServerReply:
    return json_reply(file_object(found_file(call, file_id), call))


def delete_file(call: BatchCall, file_id: str) -> ServerReply:
    if not call.context.backend.delete_file(call.dialect.name, call.key, file_id, call.context.now):
        raise missing_file(file_id)
    return json_reply({"id": file_id, "object": "file", "deleted": True})


def download(call: BatchCall, file_id: str) -> ServerReply:
    """Return a file's bytes. The results of a batch are built for each download."""
    file = found_file(call, file_id)
    fetched = Download(file.data, lambda: None)
    if file.batch is not None:
        fetched = call.context.backend.fetch(
            call.dialect.name, call.key, file.batch, call.context.now,
            write=lambda line: line_bytes(line, call), part=_part(file, call),
        )  # fmt: skip
    return ServerReply(200, fetched.body, [], "application/octet-stream", delivered=fetched.delivered)


def _part(file: StoredFile, call: BatchCall) -> str | None:
    return "errored" if file.part == "failed" and not call.dialect.not_run else file.part


def found_file(call: BatchCall, file_id: str) -> StoredFile:
    file = call.context.backend.file(call.dialect.name, call.key, file_id, call.context.now)
    if file is None:
        raise missing_file(file_id)
    return file


def missing_file(file_id: str) -> ApiError:
    return api_error(404, f"No such File object: {file_id}", code="not_found", param="id")


def file_object(file: StoredFile, call: BatchCall) -> dict[str, Any]:
    """Return the JSON object of a file. The size of results is that of a download."""
    size = len(file.data)
    if file.batch is not None and (part := _part(file, call)) is not None:
        size = call.context.backend.size(
            call.dialect.name, call.key, file.batch, call.context.now,
            write=lambda line: line_bytes(line, call), part=part,
        )  # fmt: skip
    return call.dialect.file(file, size, call)


def create(call: BatchCall) -> ServerReply:
    """Create a batch from one input file or from the requests in the call."""
    dialect, fields = call.dialect, parse_body(call.body)
    dialect.check_fields(fields)
    data, file_id = _input(call, fields)
    endpoint = fields.get("endpoint", "")
    rules = evolve(dialect.rules, parse=dialect.parse_line)
    content = read_input(data, endpoint, call.context.settings, rules, fields.get("model"))
    if dialect.refuses_input and content.problems:
        problem = content.problems[0]
        raise api_error(400, problem.message, code=problem.code, param=problem.param)
    batch = call.context.backend.create(
        dialect.name, call.key, content.entries, now=call.context.now, label=_label(fields),
        model=content.model or fields.get("model") or "", endpoint=endpoint, file_id=file_id,
        problems=content.problems, ids=dialect.ids, windows=_windows(call, fields),
        needs_file=dialect.needs_file,
        output_lifetime=output_lifetime(fields, least=dialect.min_lifetime),
        callbacks=[url] if (url := fields.get("callback_url")) else [],
    )  # fmt: skip
    shape = (dialect.created or dialect.batch)(batch, call)
    return evolve(json_reply(shape), status=dialect.create_status)


def _input(call: BatchCall, fields: Mapping[str, Any]) -> tuple[bytes, str | None]:
    """Return the lines of a batch and the ID of their file; ``None`` for requests in the call."""
    name = next((each for each in ("input_file_id", "input_files") if fields.get(each)), None)
    if name is None:
        requests = fields.get("requests")
        if not requests:
            raise api_error(400, "The batch has no input.", code="missing_required_parameter", param="input")
        return b"\n".join(json.dumps(each).encode() for each in requests), None
    given = fields[name]
    file_ids = given if isinstance(given, list) else [given]
    if len(file_ids) > 1:
        raise api_error(400, "The emulator accepts one input file per batch.", param=name)
    file = call.context.backend.file(call.dialect.name, call.key, str(file_ids[0]), call.context.now)
    if file is None or file.purpose not in call.dialect.purposes:
        raise api_error(400, f"Invalid file: there is no file '{file_ids[0]}'.", code="not_found", param=name)
    return file.data, file.id


def _label(fields: Mapping[str, Any]) -> dict[str, str]:
    metadata = fields.get("metadata") or {}
    return {"name": fields["name"]} if "name" in fields else metadata


def _windows(call: BatchCall, fields: Mapping[str, Any]) -> float:
    """Return the time until the requests expire, in days of ``batch_window`` seconds."""
    found = re.fullmatch(r"(\d+)([hd])", fields.get("completion_window") or "24h")
    hours = int(found[1]) * (24 if found[2] == "d" else 1) if found is not None else 0
    hours = fields.get("timeout_hours") or hours
    shortest, longest = call.dialect.windows
    if not shortest <= hours <= longest:
        name = "timeout_hours" if "timeout_hours" in fields else "completion_window"
        message = f"Invalid value for '{name}': use {shortest} to {longest} hours."
        raise api_error(400, message, code="invalid_value", param=name)
    return hours / 24 if call.dialect.expires else math.inf


def list_batches(call: BatchCall) -> ServerReply:
    found = call.context.backend.batches(call.dialect.name, call.key, call.context.now)
    return call.dialect.list_batches(found, call)


def get_batch(call: BatchCall, batch_id: str) -> ServerReply:
    batch, dialect = found_batch(call, batch_id), call.dialect
    value = dialect.batch(batch, call)
    asked = dialect.inline_query is None or call.query.get(dialect.inline_query) == "true"
    if dialect.inline is None or not asked or not batch.ended or batch.state == "failed":
        return json_reply(value)
    lines = result_lines(call, batch_id)
    value[dialect.inline] = [line_object(line, call) for line in lines]
    return evolve(json_reply(value), delivered=lambda: call.context.backend.delivered(batch_id, lines))


def cancel(call: BatchCall, batch_id: str) -> ServerReply:
    before, status = found_batch(call, batch_id), call.dialect.cancel_ended
    if before.ended and before.state != "cancelled" and status is not None:
        raise api_error(status, f"Cannot cancel a batch with status '{before.state}'.")
    batch = call.context.backend.cancel(call.dialect.name, call.key, batch_id, call.context.now)
    assert batch is not None
    return json_reply(call.dialect.batch(batch, call))


def found_batch(call: BatchCall, batch_id: str) -> BatchSnapshot:
    batch = call.context.backend.batch(call.dialect.name, call.key, batch_id, call.context.now)
    if batch is None:
        raise api_error(404, f"No batch found with id '{batch_id}'.", code="not_found")
    return batch


def line_bytes(line: OutputLine, call: BatchCall) -> bytes:
    return json.dumps(line_object(line, call)).encode()


def line_object(line: OutputLine, call: BatchCall) -> dict[str, Any]:
    """Return a result in the host's own format, or else in OpenAI's with errors in the host's."""
    if call.dialect.inline is not None and line.damage is not None:
        return {"custom_id": line.custom_id}  # a malformed line would invalidate the whole batch
    if call.dialect.line is not None:
        return call.dialect.line(line, call)
    response, error = None, None
    if line.outcome in NOT_RUN:
        code, message = NOT_RUN[line.outcome]
        error = {"code": code, "message": message}
    else:
        status, body = response_of(line, call)
        response = {"status_code": status, "request_id": f"req_{line.identity}", "body": body}
    result = {"id": f"batch_req_{line.identity}", "custom_id": line.custom_id}
    return {**result, "response": response, "error": error}


def result_lines(call: BatchCall, batch_id: str) -> list[OutputLine]:
    """Return the results of a batch that has ended, without those that the host leaves out."""
    lines = call.context.backend.outputs(call.dialect.name, call.key, batch_id, call.context.now)
    return [line for line in lines if call.dialect.not_run or line.outcome not in NOT_RUN]


def response_of(line: OutputLine, call: BatchCall) -> tuple[int, Any]:
    """Return the status and JSON value of the answer to a request that has run."""
    status, body = answer_of(line)
    if line.error is None or not status:
        return status, json.loads(body)
    return call.dialect.error(status, body, "/v1/chat/completions")
