"""The input file of an OpenAI batch: its lines, or why it fails its validation.

Sources: OpenAI's guide to the Batch API, and the error codes of Azure's documentation of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from attrs import define, field, frozen

from smartbatch.emulator.batches.batch_records import Entry, Problem, entry_of, wrong_entry
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.openai.parsing import Refused
from smartbatch.emulator.openai.tasks import TASKS
from smartbatch.emulator.provider_api import Parse
from smartbatch.emulator.settings import Settings

__all__ = ["ENDPOINTS", "Input", "read_input"]

ENDPOINTS: Mapping[str, Parse] = TASKS
"""What the lines of a batch may be sent to here."""
MAX_LINES = 50_000
MAX_BYTES = 200 * 1024 * 1024
MAX_INPUTS = 50_000
"""Lines and bytes of a file, texts to embed in all its lines (OpenAI, guide to the Batch API)."""
_MOST_PROBLEMS = 100


@frozen
class Input:
    """A file that was read.

    Attributes:
        entries: its lines; as many as were understood before its problems were too many.
        problems: why it fails; none when it is good.
        model: that of its lines.
    """

    entries: list[Entry]
    problems: list[Problem]
    model: str


def read_input(data: bytes, endpoint: str, head: Head, settings: Settings) -> Input:
    """Return the lines of a file.

    Args:
        data: its bytes.
        endpoint: what all its lines must name.
        head: the head of the create.
        settings: limits of lines and bytes, and the models that exist.
    """
    reader = _Reader(endpoint, head, settings)
    if len(data) > (most := settings.batch_max_bytes or MAX_BYTES):
        reader.note("file_too_large", f"The file has {len(data)} bytes, at most {most} are taken.", None)
    else:
        reader.read(data)
    return Input(reader.entries, reader.problems, reader.model or "")


@define
class _Reader:
    endpoint: str
    head: Head
    settings: Settings
    model: str | None = None
    entries: list[Entry] = field(factory=list)
    problems: list[Problem] = field(factory=list)
    ids: set[str] = field(factory=set)
    inputs: int = 0

    def note(self, code: str, message: str, line: int | None, param: str | None = None) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(Problem(code, message, line, param))

    def read(self, data: bytes) -> None:
        rows = [(number, row) for number, row in enumerate(data.split(b"\n"), 1) if row.strip()]
        most = self.settings.batch_max_lines or MAX_LINES
        if len(rows) > most:
            self.note("too_many_tasks", f"The file has {len(rows)} requests, at most {most} are taken.", None)
            return
        if not rows:
            self.note("empty_file", "The input file has no requests.", None)
        for number, row in rows:
            self._line(number, row)
        if self.inputs > MAX_INPUTS:
            self.note("too_many_tasks", f"The batch has more than {MAX_INPUTS} embedding inputs.", None)

    def _line(self, number: int, row: bytes) -> None:
        try:
            line = json.loads(row, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict):
            self.note("invalid_json_line", f"Line {number} is not a JSON object.", number)
            return
        custom_id, body = line.get("custom_id"), line.get("body")
        if not isinstance(custom_id, str) or not custom_id:
            self.note("invalid_request", "A line needs a 'custom_id'.", number, "custom_id")
        elif custom_id in self.ids:
            message = f"The custom_id '{custom_id}' is used more than once."
            self.note("duplicate_custom_id", message, number, "custom_id")
        elif line.get("method") != "POST":
            self.note("invalid_request", "The method of a line is 'POST'.", number, "method")
        elif line.get("url") != self.endpoint:
            message = f"The url of a line must be that of the batch, {self.endpoint}."
            self.note("url_mismatch", message, number, "url")
        elif not isinstance(body, dict):
            self.note("invalid_request", "A line needs a 'body', an object.", number, "body")
        elif self._same_model(number, body.get("model")):
            self.ids.add(custom_id)
            self.entries.append(self._entry(custom_id, body))

    def _same_model(self, number: int, model: Any) -> bool:
        if not isinstance(model, str) or not model:
            self.note("invalid_request", "A line needs a 'body.model'.", number, "body.model")
            return False
        models = self.settings.models
        if models is not None and model not in models:
            message = f"The provided model '{model}' is not supported by the Batch API."
            self.note("model_not_found", message, number, "body.model")
            return False
        if self.model is None:
            self.model = model
        if model != self.model:
            message = f"All lines of a batch have one model: this has '{model}', the first '{self.model}'."
            self.note("model_mismatch", message, number, "body.model")
            return False
        return True

    def _entry(self, custom_id: str, body: dict[str, Any]) -> Entry:
        if isinstance(given := body.get("input"), list) and self.endpoint == "/v1/embeddings":
            self.inputs += len(given)
        try:
            if body.get("stream"):
                raise Refused(400, "Streaming is not supported in the Batch API.", param="stream")
            return entry_of(custom_id, ENDPOINTS[self.endpoint](self.head, body), self.settings)
        except Refused as refused:
            return wrong_entry(custom_id, refused)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
