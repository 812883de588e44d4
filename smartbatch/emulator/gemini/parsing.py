"""What the Gemini API accepts, in camel and in snake case, and how it refuses the rest."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from smartbatch.emulator.composed_answers import count_tokens
from smartbatch.emulator.openai.parsing import Asked, Refused, parse_body

__all__ = [
    "GeminiRefused",
    "check_fields",
    "embedded_texts",
    "error_body",
    "fields_of",
    "found",
    "generation",
    "no_such_file",
    "texts_of",
]

MAX_TEXTS = 100
"""Requests of one ``batchEmbedContents``."""
DIMENSIONS = 3072
"""The length of ``gemini-embedding-001``'s vectors, and the most there is."""

_STATUSES = {
    400: "INVALID_ARGUMENT",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
_FIELDS = frozenset(
    (
        *("contents", "systemInstruction", "generationConfig", "safetySettings", "tools", "toolConfig"),
        *("cachedContent", "serviceTier", "labels", "store", "model", "requests"),
    )
)
_RANGES = (("temperature", 0, 2), ("topP", 0, 1))
_TIERS = ("unspecified", "standard", "flex", "priority")
_JSON = "application/json"


class GeminiRefused(Refused):
    """A request the service answers with an error in the Gemini API's shape.

    Args:
        status: HTTP status.
        message: for people.
        details: ``google.rpc`` details.
    """

    def __init__(self, status: int, message: str, *details: dict[str, Any]) -> None:
        Exception.__init__(self, message)
        self.status = status
        self.body = error_body(status, message, *details)


def no_such_file(name: str) -> GeminiRefused:
    """Return the refusal of a file that does not exist; the service does not say which of both it is."""
    message = f"You do not have permission to access the File {name} or it may not exist."
    return GeminiRefused(403, message)


def error_body(status: int, message: str, *details: dict[str, Any]) -> bytes:
    """Return an error in the service's shape."""
    error: dict[str, Any] = {"code": status, "message": message, "status": _STATUSES.get(status, "UNKNOWN")}
    if details:
        error["details"] = list(details)
    return json.dumps({"error": error}, indent=2).encode()


def found(fields: Mapping[str, Any], name: str) -> Any:
    """Return a field by its name in camel case, or in snake case; ``None`` without it."""
    value = fields.get(name)
    return value if value is not None else fields.get(re.sub("[A-Z]", lambda m: "_" + m[0].lower(), name))


def fields_of(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a request's body, or raise :class:`GeminiRefused`."""
    try:
        fields = parse_body(body)
    except Refused as refused:
        raise GeminiRefused(400, f"Invalid JSON payload received. {refused}") from None
    check_fields(fields)
    return fields


def check_fields(fields: Mapping[str, Any]) -> None:
    """Raise :class:`GeminiRefused` for a field of a request that is unknown."""
    for name in fields:
        if _camel(name) not in _FIELDS:
            raise GeminiRefused(
                400, f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.'
            )


def generation(model: str, fields: Mapping[str, Any], *, stream: bool) -> Asked:
    """Return what a ``generateContent`` asks for, or raise :class:`GeminiRefused`."""
    contents = found(fields, "contents")
    if not isinstance(contents, list) or not contents:
        raise GeminiRefused(400, "* GenerateContentRequest.contents: contents is not specified")
    turns = [(_role(content), texts_of(content, "contents")) for content in contents]
    instruction = found(fields, "systemInstruction")
    said = [text for _, texts in turns for text in texts]
    if instruction is not None:
        said += texts_of(instruction, "system_instruction")
    config = found(fields, "generationConfig") or {}
    if not isinstance(config, Mapping):
        raise GeminiRefused(400, "Invalid value at 'generation_config'")
    _check_numbers(config)
    try:
        tokens = sum(count_tokens(text) for text in said if text) or 1
    except UnicodeEncodeError:
        raise GeminiRefused(400, "Invalid JSON payload: a text holds half of a surrogate pair.") from None
    spoken = ["".join(texts) for role, texts in turns if role == "user"]
    return Asked(
        model=model,
        prompt=spoken[-1] if spoken else "".join(turns[-1][1]),
        input_tokens=tokens,
        max_tokens=found(config, "maxOutputTokens"),
        stop=_stops(found(config, "stopSequences")),
        choices=1,
        form=_form(config),
        stream=stream,
        include_usage=True,
        tier=_tier(found(fields, "serviceTier")),
    )


def texts_of(content: Any, where: str) -> list[str]:
    """Return the texts of a content's parts, or raise :class:`GeminiRefused`."""
    parts = content.get("parts") if isinstance(content, Mapping) else None
    if isinstance(parts, Mapping):  # proto3 JSON takes a single part for a list of one
        parts = [parts]
    if not isinstance(parts, list) or not parts or not all(isinstance(part, Mapping) for part in parts):
        raise GeminiRefused(400, f"* GenerateContentRequest.{where}.parts: contents.parts must not be empty.")
    return [part["text"] for part in parts if isinstance(part.get("text"), str)]


def embedded_texts(model: str, fields: Mapping[str, Any]) -> tuple[list[str], int]:
    """Return the text of each content to embed, and the vectors' length.

    A content is one text and gets one vector, however many parts it has.
    """
    requests = found(fields, "requests")
    if not isinstance(requests, list) or not requests:
        raise GeminiRefused(400, "* BatchEmbedContentsRequest.requests: must not be empty")
    if len(requests) > MAX_TEXTS:
        message = f"* BatchEmbedContentsRequest.requests: at most {MAX_TEXTS} requests can be in one batch"
        raise GeminiRefused(400, message)
    texts, dimensions = [], DIMENSIONS
    for number, request in enumerate(requests):
        where = f"* BatchEmbedContentsRequest.requests[{number}]"
        if not isinstance(request, Mapping) or request.get("model") != f"models/{model}":
            raise GeminiRefused(400, f"{where}.model: must be the model of the path")
        text = "".join(texts_of(found(request, "content"), "content"))
        if not text:
            raise GeminiRefused(400, f"{where}.content: content is empty")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise GeminiRefused(400, f"{where}.content: a text holds half of a surrogate pair.") from None
        texts.append(text)
        dimensions = found(request, "outputDimensionality") or DIMENSIONS
        if type(dimensions) is not int or not 1 <= dimensions <= DIMENSIONS:
            raise GeminiRefused(400, f"{where}.output_dimensionality: must be from 1 to {DIMENSIONS}")
    return texts, dimensions


def _camel(name: str) -> str:
    return re.sub("_([a-z])", lambda m: m[1].upper(), name)


def _role(content: Any) -> str:
    role = content.get("role", "user") if isinstance(content, Mapping) else None
    if role not in ("user", "model", "function"):
        raise GeminiRefused(400, "Please use a valid role: user, model.")
    return str(role)


def _check_numbers(config: Mapping[str, Any]) -> None:
    for name, low, high in _RANGES:
        value = found(config, name)
        if value is not None and (type(value) not in (int, float) or not low <= value <= high):
            raise GeminiRefused(
                400, f"* GenerateContentRequest.generation_config.{name}: from {low} to {high}"
            )
    for name in ("maxOutputTokens", "candidateCount"):
        value = found(config, name)
        if value is not None and (type(value) is not int or value < 1):
            raise GeminiRefused(400, f"* GenerateContentRequest.generation_config.{name}: must be positive")
    if (found(config, "candidateCount") or 1) > 1:
        raise GeminiRefused(400, "Multiple candidates is not enabled for this model")


def _tier(given: Any) -> str:
    """Return the tier that serves a request; enumerated values may come in capitals."""
    if given is not None and (not isinstance(given, str) or given.lower() not in _TIERS):
        raise GeminiRefused(400, 'Invalid value at "service_tier" (type.googleapis.com/ServiceTier)')
    return "flex" if str(given).lower() == "flex" else "standard"


def _stops(given: Any) -> tuple[str, ...]:
    stops = given or []
    if not isinstance(stops, list) or len(stops) > 5 or not all(isinstance(stop, str) for stop in stops):
        raise GeminiRefused(400, "* GenerateContentRequest.generation_config.stop_sequences: up to 5 texts")
    return tuple(stops)


def _form(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    schema = found(config, "responseJsonSchema")
    if schema is None:
        schema = _lowered(found(config, "responseSchema"))
    kind = found(config, "responseMimeType")
    if schema is None:
        return {} if kind == _JSON else None
    if kind != _JSON or not isinstance(schema, Mapping):
        raise GeminiRefused(400, f"* generation_config.response_mime_type: a schema needs {_JSON}")
    return schema


def _lowered(schema: Any) -> Any:
    """Return an OpenAPI schema with its upper-case types as JSON Schema has them."""
    if isinstance(schema, Mapping):
        return {
            name: value.lower() if name == "type" and isinstance(value, str) else _lowered(value)
            for name, value in schema.items()
        }
    return [_lowered(each) for each in schema] if isinstance(schema, list) else schema
