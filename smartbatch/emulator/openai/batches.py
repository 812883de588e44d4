"""OpenAI's batches: create, list, get, cancel, and the lines of their results.

Source: the types of the ``openai`` SDK and OpenAI's API reference and Batch guide of November 2026.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from attrs import define, field, frozen

from smartbatch.emulator.batches.batch_records import (
    BatchBackendError,
    BatchSnapshot,
    Entry,
    InputProblem,
    OutputLine,
    parse_entry,
)
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.openai import bodies, files
from smartbatch.emulator.openai.model_calls import MODEL_CALLS, parse_call
from smartbatch.emulator.openai.parsing import api_error, error_body, parse_body
from smartbatch.emulator.parsed_requests import ApiError, MalformedBody, ModelCall, decode_object
from smartbatch.emulator.provider_api import BatchContext, ServerReply, json_reply
from smartbatch.emulator.settings import EmulatorSettings

MAX_LINES = 50_000
MAX_BYTES = 200 * 1024 * 1024
# maximum lines and bytes of a file, and maximum texts to embed in all its lines (OpenAI's guide to the Batch
# API)
MAX_INPUTS = 50_000
_MAX_PROBLEMS = 100


@frozen(kw_only=True)
class InputRules:
    """What the input of a batch may contain.

    Attributes:
        max_lines: maximum requests, unless the settings have another limit.
        max_bytes: maximum bytes, unless the settings have another limit.
        addressed: whether each line names a method and a URL.
        one_endpoint: whether all lines have the URL of the batch.
        one_model: whether all lines have the same model.
        max_id_characters: maximum length of a custom ID; ``None`` for no limit.
        parse: parses the body of a line.
    """

    max_lines: int = MAX_LINES
    max_bytes: int = MAX_BYTES
    addressed: bool = True
    one_endpoint: bool = True
    one_model: bool = True
    max_id_characters: int | None = None
    parse: Callable[[str, Mapping[str, Any], EmulatorSettings], ModelCall] = parse_call


@frozen
class Input:
    entries: list[Entry]  # valid lines
    problems: list[InputProblem]  # reasons for a failed validation, at most 100; empty for a valid file
    model: str


def read_input(
    data: bytes,
    endpoint: str,
    settings: EmulatorSettings,
    rules: InputRules | None = None,
    model: str | None = None,
) -> Input:
    """Return the content of an input file.

    Args:
        endpoint: the endpoint that all lines must name.
        settings: limits of lines and bytes, and the existing models.
        rules: those of a host; ``None`` for OpenAI's.
        model: the model of lines without one; ``None`` if each line must name its own.
    """
    rules = rules or InputRules()
    reader = _InputReader(endpoint, settings, rules, model)
    if len(data) > (most := settings.batch_max_bytes or rules.max_bytes):
        reader.add_problem(
            "file_too_large", f"The file has {len(data)} bytes, but at most {most} are accepted.", None
        )
    else:
        reader.read(data)
    return Input(reader.entries, reader.problems, reader.model or "")


@define
class _InputReader:
    endpoint: str
    settings: EmulatorSettings
    rules: InputRules
    default_model: str | None
    model: str | None = None
    entries: list[Entry] = field(factory=list)
    problems: list[InputProblem] = field(factory=list)
    ids: set[str] = field(factory=set)
    inputs: int = 0

    def add_problem(self, code: str, message: str, line: int | None, param: str | None = None) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(InputProblem(code, message, line, param))

    def read(self, data: bytes) -> None:
        rows = [(number, row) for number, row in enumerate(data.split(b"\n"), 1) if row.strip()]
        most = self.settings.batch_max_lines or self.rules.max_lines
        if len(rows) > most:
            self.add_problem(
                "too_many_tasks", f"The file has {len(rows)} requests, but at most {most} are accepted.", None
            )
            return
        if not rows:
            self.add_problem("empty_file", "The input file has no requests.", None)
        for number, row in rows:
            self._line(number, row)
        if self.inputs > MAX_INPUTS:
            self.add_problem(
                "too_many_tasks", f"The batch has more than {MAX_INPUTS} embedding inputs.", None
            )

    def _line(self, number: int, row: bytes) -> None:
        try:
            line = decode_object(row)
        except MalformedBody:
            self.add_problem("invalid_json_line", f"Line {number} is not a JSON object.", number)
            return
        custom_id, body = line.get("custom_id"), line.get("body")
        if not isinstance(custom_id, str) or not custom_id:
            self.add_problem("invalid_request", "A line needs a 'custom_id'.", number, "custom_id")
        elif len(custom_id) > (self.rules.max_id_characters or len(custom_id)):
            message = f"A custom_id has more than {self.rules.max_id_characters} characters."
            self.add_problem("invalid_request", message, number, "custom_id")
        elif custom_id in self.ids:
            message = f"The custom_id '{custom_id}' is used more than once."
            self.add_problem("duplicate_custom_id", message, number, "custom_id")
        elif self.rules.addressed and line.get("method") != "POST":
            self.add_problem("invalid_request", "The method of a line must be 'POST'.", number, "method")
        elif self.rules.addressed and self.rules.one_endpoint and line.get("url") != self.endpoint:
            message = f"The url of a line must be that of the batch, {self.endpoint}."
            self.add_problem("url_mismatch", message, number, "url")
        elif not isinstance(body, dict):
            self.add_problem("invalid_request", "A line needs a 'body' that is an object.", number, "body")
        elif self._has_same_model(number, body.setdefault("model", self.default_model)):
            self.ids.add(custom_id)
            url = self.endpoint if self.rules.one_endpoint else str(line.get("url"))
            self.entries.append(self._entry(custom_id, url, body))

    def _has_same_model(self, number: int, model: Any) -> bool:
        if not isinstance(model, str) or not model:
            self.add_problem("invalid_request", "A line needs a 'body.model'.", number, "body.model")
            return False
        models = self.settings.models
        if models is not None and model not in models:
            message = f"The provided model '{model}' is not supported by the Batch API."
            self.add_problem("model_not_found", message, number, "body.model")
            return False
        if self.model is None:
            self.model = model
        if model != self.model and self.rules.one_model:
            message = (
                f"All lines of a batch must have the same model: this line has '{model}', the first line has "
                f"'{self.model}'."
            )
            self.add_problem("model_mismatch", message, number, "body.model")
            return False
        return True

    def _entry(self, custom_id: str, endpoint: str, body: dict[str, Any]) -> Entry:
        if isinstance(given := body.get("input"), list) and endpoint == "/v1/embeddings":
            self.inputs += len(given)

        def parse() -> ModelCall:
            if body.get("stream"):
                raise api_error(400, "Streaming is not supported in the Batch API.", param="stream")
            return self.rules.parse(endpoint, body, self.settings)

        return parse_entry(custom_id, parse, self.settings)


PATH = re.compile(r"/v1/(files|batches)(?:/([^/]+)(?:/(content|cancel))?)?")  # the paths of files and batches
API_NAME = "openai"
_STATUS_NAMES = {"queued": "in_progress", "running": "in_progress"}
_STATUSES = {"no_such_file": 400, "enqueued": 429, "not_found": 404, "not_ended": 400, "gone": 404}
_FAILED: dict[str, tuple[int, bytes]] = {
    "server": (500, error_body("The server had an error.", type_="server_error")),
    "invalid": (400, error_body("Invalid request.", type_="invalid_request_error", code="invalid_prompt")),
    "no_money": (429, bodies.INSUFFICIENT_QUOTA),
    "zero": (0, b'""'),
}
NOT_RUN = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "This request was not executed because the batch was cancelled."),
}


def answer(head: Head, body: bytes, context: BatchContext, key: str) -> ServerReply:
    """Answer a request about files or batches.

    Raises:
        ApiError: the request is invalid.
        AnswerLost: the answer to a create call never arrives.
    """
    found = PATH.fullmatch(head.path)
    assert found is not None  # the API was selected by this pattern
    try:
        match (head.method, *found.groups()):
            case ("POST", "files", None, None):
                return files.uploaded(head, body, context, key)
            case ("GET", "files", None, None):
                return files.listed(head, context, key, line_bytes)
            case ("GET", "files", str(name), None):
                return files.information(name, context, key, line_bytes)
            case ("GET", "files", str(name), "content"):
                return files.content(name, context, key, line_bytes)
            case ("DELETE", "files", str(name), None):
                return files.deleted(name, context, key)
            case ("POST", "batches", None, None):
                return _create(body, context, key)
            case ("GET", "batches", None, None):
                return _list(head, context, key)
            case ("GET", "batches", str(name), None):
                return _get(name, context, key)
            case ("POST", "batches", str(name), "cancel"):
                return _cancel(name, context, key)
    except BatchBackendError as error:
        raise _error(error) from None
    raise api_error(405, f"Not allowed to {head.method} on {head.path}")


def _create(body: bytes, context: BatchContext, key: str) -> ServerReply:
    fields = parse_body(body)
    endpoint, file_id = fields.get("endpoint"), fields.get("input_file_id")
    label, lifetime = _metadata(fields.get("metadata")), files.output_lifetime(fields)
    if not isinstance(endpoint, str) or endpoint not in MODEL_CALLS:
        names = ", ".join(MODEL_CALLS)
        raise api_error(
            400, f"Invalid value for 'endpoint'. Supported values are: {names}.", param="endpoint"
        )
    if fields.get("completion_window") != "24h":
        raise api_error(400, "Invalid value for 'completion_window': use '24h'.", param="completion_window")
    if not isinstance(file_id, str):
        raise api_error(400, "Missing required parameter: 'input_file_id'.", param="input_file_id")
    file = context.backend.file(API_NAME, key, file_id, context.now)
    if file is None or file.purpose != "batch":
        raise api_error(400, f"Invalid file: there is no batch file '{file_id}'.", param="input_file_id")
    rules = InputRules(parse=partial(parse_call, find=context.find_upload(API_NAME, key)))
    content = read_input(file.data, endpoint, context.settings, rules)
    batch = context.backend.create(
        API_NAME, key, content.entries, now=context.now, label=label, model=content.model, endpoint=endpoint,
        file_id=file_id, problems=content.problems, output_lifetime=lifetime,
    )  # fmt: skip
    return json_reply(batch_object(batch, context))


def _metadata(given: Any) -> dict[str, str]:
    """Return the metadata of a create call: at most 16 pairs of 64 and 512 characters (OpenAI's docs)."""
    if given is None:
        return {}
    if not isinstance(given, dict) or len(given) > 16:
        raise api_error(400, "Invalid 'metadata': expected an object of at most 16 pairs.", param="metadata")
    for name, value in given.items():
        if not isinstance(value, str) or len(name) > 64 or len(value) > 512:
            message = (
                "Invalid 'metadata': keys must have at most 64 characters, and values must be strings of at "
                "most 512."
            )
            raise api_error(400, message, param="metadata")
    return given


def _list(head: Head, context: BatchContext, key: str) -> ServerReply:
    found = context.backend.batches(API_NAME, key, context.now)
    shown, more = files.page(found, head.parameters, most=100, default=20)
    return json_reply(files.listing([batch_object(batch, context) for batch in shown], more))


def _get(name: str, context: BatchContext, key: str) -> ServerReply:
    batch = context.backend.batch(API_NAME, key, name, context.now)
    if batch is None:
        raise _missing(name)
    return json_reply(batch_object(batch, context))


def _cancel(name: str, context: BatchContext, key: str) -> ServerReply:
    before = context.backend.batch(API_NAME, key, name, context.now)
    if before is None:
        raise _missing(name)
    if before.state in ("completed", "failed", "expired"):
        raise api_error(409, f"Cannot cancel a batch with status '{before.state}'.")
    batch = context.backend.cancel(API_NAME, key, name, context.now)
    assert batch is not None
    return json_reply(batch_object(batch, context))


def _missing(name: str) -> ApiError:
    return api_error(404, f"No batch found with id '{name}'.")


def _error(error: BatchBackendError) -> ApiError:
    match error.reason:
        case "unavailable":
            return api_error(503, error.message, type_="server_error")
        case "storage":
            return api_error(
                400, f"{error.message} Delete files to free space.", code="storage_limit_exceeded"
            )
        case "enqueued":
            return api_error(429, error.message, type_="tokens", code="token_limit_exceeded")
    return api_error(_STATUSES[error.reason], error.message)


def batch_object(batch: BatchSnapshot, context: BatchContext) -> dict[str, Any]:
    state, counts = batch.state, batch.counts
    known = state not in ("validating", "failed")  # before the validation, lines are not counted
    shape = {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model or None,
        "errors": _problems(batch),
        "input_file_id": batch.file_id,
        "completion_window": "24h",
        "status": batch.unknown_status or _STATUS_NAMES.get(state, state),
        "output_file_id": batch.output_id,
        "error_file_id": batch.error_id,
        "request_counts": {
            "total": counts.total if known else 0,
            "completed": counts.succeeded,
            "failed": counts.errored,  # lines that did not run are not counted (observed at the service)
        },
        "usage": _usage(batch) if batch.ended else None,
        "metadata": dict(batch.label) or None,
        **_times(batch, context),
    }
    if not context.settings.batch_echo_metadata:
        shape["metadata"] = None
    if not context.settings.batch_echo_input_file:
        del shape["input_file_id"]
    return shape


def _problems(batch: BatchSnapshot) -> dict[str, Any] | None:
    if not batch.problems:
        return None
    data = [
        {"code": problem.code, "message": problem.message, "param": problem.param, "line": problem.line}
        for problem in batch.problems
    ]
    return {"object": "list", "data": data}


def _times(batch: BatchSnapshot, context: BatchContext) -> dict[str, int | None]:
    def unix(moment: float | None) -> int | None:
        return None if moment is None or math.isinf(moment) else int(context.backend.unix(moment))

    ends = {f"{end}_at": None for end in ("completed", "failed", "expired", "cancelled")}
    if batch.ended:
        ends[f"{batch.state}_at"] = unix(batch.ended_at)  # type: ignore[assignment]
    return {
        "created_at": unix(batch.created_at),
        "in_progress_at": unix(batch.started_at),
        "finalizing_at": unix(batch.finalizing_at),
        "cancelling_at": unix(batch.cancelling_at),
        "expires_at": unix(batch.expires_at),
        **ends,
    }


def _usage(batch: BatchSnapshot) -> Mapping[str, Any]:
    return {
        "input_tokens": batch.input_tokens,
        "input_tokens_details": {"cached_tokens": batch.cached_tokens},
        "output_tokens": batch.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": batch.input_tokens + batch.output_tokens,
    }


def answer_of(line: OutputLine) -> tuple[int, bytes]:
    """Return the status and body of a line that has run."""
    return (line.status, line.body) if line.error is None or line.error == "refused" else _FAILED[line.error]


def line_bytes(line: OutputLine) -> bytes:
    error, response = b"null", b"null"
    if line.outcome in NOT_RUN:
        code, message = NOT_RUN[line.outcome]
        error = json.dumps({"code": code, "message": message}).encode()
    else:
        status, body = answer_of(line)
        response = b'{"status_code": %d, "request_id": "req_%b", "body": %b}' % (
            status, line.identity.encode(), body,
        )  # fmt: skip
    custom_id = json.dumps(line.custom_id).encode()
    return b'{"id": "batch_req_%b", "custom_id": %b, "response": %b, "error": %b}' % (
        line.identity.encode(), custom_id, response, error,
    )  # fmt: skip
