"""The requests of a Gemini batch: inline in its create, or the lines of an uploaded file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from attrs import frozen

from smartbatch.emulator.batches.batch_records import Entry, InputProblem, parse_entry
from smartbatch.emulator.gemini.parsing import api_error, decode_body, found
from smartbatch.emulator.parsed_requests import MalformedBody, ModelCall, decode_object
from smartbatch.emulator.settings import EmulatorSettings

MAX_INLINE = 20 * 1024 * 1024
"""The most bytes of a create with inline requests."""

ParseRequest = Callable[[Mapping[str, Any]], ModelCall]
"""Parses the ``request`` of a line, or raises ``ApiError``."""


@frozen
class ParsedCreate:
    """A parsed create; it has either a file or inline requests.

    Attributes:
        display_name: empty without one.
        file: the name of the input file, with its prefix ``files/``.
        requests: the inline requests.
    """

    display_name: str
    file: str | None
    requests: list[Any] | None


def parse_creation(body: bytes) -> ParsedCreate:
    """Parse the body of a create, or raise :class:`ApiError`."""
    batch = decode_body(body).get("batch")
    config = found(batch, "inputConfig") if isinstance(batch, Mapping) else None
    if not isinstance(batch, Mapping) or not isinstance(config, Mapping):
        raise api_error(400, "* BatchGenerateContentRequest.batch.input_config: input_config is required")
    name = found(batch, "displayName") or ""
    if not isinstance(name, str):
        raise api_error(400, "Invalid value at 'batch.display_name' (TYPE_STRING)")
    file, inline = found(config, "fileName"), found(config, "requests")
    if (file is None) == (inline is None):
        raise api_error(400, "* input_config: exactly one of file_name and requests must be set")
    if file is not None:
        if not isinstance(file, str) or not file.startswith("files/"):
            raise api_error(400, "* input_config.file_name: must be the name of a file, files/…")
        return ParsedCreate(name, file, None)
    requests = inline.get("requests") if isinstance(inline, Mapping) else None
    if not isinstance(requests, list) or not requests:
        raise api_error(400, "* input_config.requests.requests: must not be empty")
    if len(body) > MAX_INLINE:
        raise api_error(400, f"Request payload size exceeds the limit: {MAX_INLINE} bytes.")
    return ParsedCreate(name, None, requests)


def inline_entries(
    requests: list[Any], parse_request: ParseRequest, settings: EmulatorSettings
) -> list[Entry]:
    """Return the entries of inline requests, or raise :class:`ApiError` for an invalid one."""
    entries = []
    for number, item in enumerate(requests):
        request = item.get("request") if isinstance(item, Mapping) else None
        if not isinstance(request, Mapping):
            raise api_error(400, f"* requests[{number}].request: request is required")
        metadata = item.get("metadata")
        if metadata is not None and not isinstance(metadata, Mapping):
            raise api_error(400, f"Invalid value at 'requests[{number}].metadata'")
        key = _text_or_none(metadata.get("key") if metadata else None)
        entries.append(parse_entry(key, partial(parse_request, request), settings, metadata=metadata))
    return entries


def entries_in_file(
    data: bytes, parse_request: ParseRequest, settings: EmulatorSettings
) -> tuple[list[Entry], list[InputProblem]]:
    """Return the entries of a file of JSON lines, and the problems that its validation finds."""
    entries: list[Entry] = []
    if len(data) > (settings.batch_max_bytes or len(data)):
        return [], [InputProblem("too_large", "The input file is larger than a batch may be.")]
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = decode_object(line)
        except MalformedBody:
            message = f"Line {number} of the input file is no JSON object."
            return [], [InputProblem("invalid_json", message, number)]
        request, key = row.get("request"), row.get("key")
        if not isinstance(request, Mapping):
            return [], [
                InputProblem("no_request", f"Line {number} of the input file has no request.", number)
            ]
        entries.append(parse_entry(_text_or_none(key), partial(parse_request, request), settings))
    if not entries:
        return [], [InputProblem("empty_file", "The input file has no requests.")]
    if len(entries) > (settings.batch_max_lines or len(entries)):
        return [], [InputProblem("too_many", "The input file has more requests than a batch may have.")]
    return entries, []


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None
