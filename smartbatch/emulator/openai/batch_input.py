"""The input file of an OpenAI batch: its requests, or the problems that its validation finds.

Sources: OpenAI's guide to the Batch API, and the error codes of Azure's documentation of it.
"""

from __future__ import annotations

from typing import Any

from attrs import define, field, frozen

from smartbatch.emulator.batches.batch_records import Entry, InputProblem, parse_entry
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.openai.model_calls import parse_call
from smartbatch.emulator.openai.parsing import api_error
from smartbatch.emulator.parsed_requests import MalformedBody, ModelCall, decode_object
from smartbatch.emulator.settings import EmulatorSettings

MAX_LINES = 50_000
MAX_BYTES = 200 * 1024 * 1024
MAX_INPUTS = 50_000
"""Lines of a file, its bytes, and the texts to embed in all its lines (OpenAI, guide to the Batch API)."""
_MAX_PROBLEMS = 100


@frozen
class Input:
    """The content of an input file.

    Attributes:
        entries: its valid lines.
        problems: why its validation fails, at most 100; empty for a valid file.
        model: the model of its lines.
    """

    entries: list[Entry]
    problems: list[InputProblem]
    model: str


def read_input(data: bytes, endpoint: str, head: Head, settings: EmulatorSettings) -> Input:
    """Return the content of an input file.

    Args:
        data: its bytes.
        endpoint: the endpoint that all lines must name.
        head: the head of the create.
        settings: limits of lines and bytes, and the existing models.
    """
    reader = _Reader(endpoint, head, settings)
    if len(data) > (most := settings.batch_max_bytes or MAX_BYTES):
        reader.add_problem(
            "file_too_large", f"The file has {len(data)} bytes, at most {most} are taken.", None
        )
    else:
        reader.read(data)
    return Input(reader.entries, reader.problems, reader.model or "")


@define
class _Reader:
    endpoint: str
    head: Head
    settings: EmulatorSettings
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
        most = self.settings.batch_max_lines or MAX_LINES
        if len(rows) > most:
            self.add_problem(
                "too_many_tasks", f"The file has {len(rows)} requests, at most {most} are taken.", None
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
        elif custom_id in self.ids:
            message = f"The custom_id '{custom_id}' is used more than once."
            self.add_problem("duplicate_custom_id", message, number, "custom_id")
        elif line.get("method") != "POST":
            self.add_problem("invalid_request", "The method of a line is 'POST'.", number, "method")
        elif line.get("url") != self.endpoint:
            message = f"The url of a line must be that of the batch, {self.endpoint}."
            self.add_problem("url_mismatch", message, number, "url")
        elif not isinstance(body, dict):
            self.add_problem("invalid_request", "A line needs a 'body', an object.", number, "body")
        elif self._has_same_model(number, body.get("model")):
            self.ids.add(custom_id)
            self.entries.append(self._entry(custom_id, body))

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
        if model != self.model:
            message = f"All lines of a batch have one model: this has '{model}', the first '{self.model}'."
            self.add_problem("model_mismatch", message, number, "body.model")
            return False
        return True

    def _entry(self, custom_id: str, body: dict[str, Any]) -> Entry:
        if isinstance(given := body.get("input"), list) and self.endpoint == "/v1/embeddings":
            self.inputs += len(given)

        def parse() -> ModelCall:
            if body.get("stream"):
                raise api_error(400, "Streaming is not supported in the Batch API.", param="stream")
            return parse_call(self.endpoint, self.head, body, self.settings)

        return parse_entry(custom_id, parse, self.settings)
