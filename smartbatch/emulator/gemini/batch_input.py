"""What a create of Gemini's batches holds: requests inline, or the lines of an uploaded file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from smartbatch.emulator.batches.batch_records import Entry, Problem, entry_of, wrong_entry
from smartbatch.emulator.gemini.parsing import GeminiRefused, found
from smartbatch.emulator.openai.parsing import Refused, parse_body
from smartbatch.emulator.provider_api import Task
from smartbatch.emulator.settings import Settings

__all__ = ["MOST_INLINE", "Asked", "asked_of", "entries_in_file", "inline_entries"]

MOST_INLINE = 20 * 1024 * 1024
"""Bytes of a create with inline requests."""

Understand = Callable[[Mapping[str, Any]], Task]
"""Turns the ``request`` of a line into a task, or raises ``Refused``."""


@frozen
class Asked:
    """What a create asks for: either of both.

    Attributes:
        name: the display name, may be empty.
        file: the name of the input file, with its ``files/``.
        requests: those that came inline.
    """

    name: str
    file: str | None
    requests: list[Any] | None


def asked_of(body: bytes) -> Asked:
    """Return what is in the body of a create, or raise :class:`GeminiRefused`."""
    try:
        batch = parse_body(body).get("batch")
    except Refused as refused:
        raise GeminiRefused(400, f"Invalid JSON payload received. {refused}") from None
    config = found(batch, "inputConfig") if isinstance(batch, Mapping) else None
    if not isinstance(batch, Mapping) or not isinstance(config, Mapping):
        raise GeminiRefused(400, "* BatchGenerateContentRequest.batch.input_config: input_config is required")
    name = found(batch, "displayName") or ""
    if not isinstance(name, str):
        raise GeminiRefused(400, "Invalid value at 'batch.display_name' (TYPE_STRING)")
    file, inline = found(config, "fileName"), found(config, "requests")
    if (file is None) == (inline is None):
        raise GeminiRefused(400, "* input_config: exactly one of file_name and requests must be set")
    if file is not None:
        if not isinstance(file, str) or not file.startswith("files/"):
            raise GeminiRefused(400, "* input_config.file_name: must be the name of a file, files/…")
        return Asked(name, file, None)
    requests = inline.get("requests") if isinstance(inline, Mapping) else None
    if not isinstance(requests, list) or not requests:
        raise GeminiRefused(400, "* input_config.requests.requests: must not be empty")
    if len(body) > MOST_INLINE:
        raise GeminiRefused(400, f"Request payload size exceeds the limit: {MOST_INLINE} bytes.")
    return Asked(name, None, requests)


def inline_entries(requests: list[Any], understand: Understand, settings: Settings) -> list[Entry]:
    """Return the entries of inline requests, or raise :class:`GeminiRefused` for what is none."""
    entries = []
    for number, item in enumerate(requests):
        request = item.get("request") if isinstance(item, Mapping) else None
        if not isinstance(request, Mapping):
            raise GeminiRefused(400, f"* requests[{number}].request: request is required")
        note = item.get("metadata")
        if note is not None and not isinstance(note, Mapping):
            raise GeminiRefused(400, f"Invalid value at 'requests[{number}].metadata'")
        key = note.get("key") if note else None
        entries.append(_entry(key if isinstance(key, str) else None, request, understand, settings, note))
    return entries


def entries_in_file(
    data: bytes, understand: Understand, settings: Settings
) -> tuple[list[Entry], list[Problem]]:
    """Return the entries of a file of JSON lines, and what the whole batch fails its validation for."""
    entries: list[Entry] = []
    if len(data) > (settings.batch_max_bytes or len(data)):
        return [], [Problem("too_large", "The input file is larger than a batch may be.")]
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = parse_body(line)
        except Refused:
            return [], [
                Problem("invalid_json", f"Line {number} of the input file is no JSON object.", number)
            ]
        request, key = row.get("request"), row.get("key")
        if not isinstance(request, Mapping):
            return [], [Problem("no_request", f"Line {number} of the input file has no request.", number)]
        entries.append(_entry(key if isinstance(key, str) else None, request, understand, settings))
    if not entries:
        return [], [Problem("empty_file", "The input file has no requests.")]
    if len(entries) > (settings.batch_max_lines or len(entries)):
        return [], [Problem("too_many", "The input file has more requests than a batch may have.")]
    return entries, []


def _entry(
    key: str | None,
    request: Mapping[str, Any],
    understand: Understand,
    settings: Settings,
    note: Mapping[str, Any] | None = None,
) -> Entry:
    try:
        return entry_of(key, understand(request), settings, note=note)
    except Refused as wrong:
        return wrong_entry(key, wrong, note=note)
