"""Parses Gemini's requests, in camel case and snake case, and creates the errors for invalid ones.

Source: the types of ``google-genai`` 3.4 and Google's API reference of November 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve

from smartbatch.emulator.composed_answers import OfferedTools, count_tokens
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.parsed_requests import (
    ApiError,
    GenerationRequest,
    MalformedBody,
    asked_schema,
    decode_object,
    measure_prompt,
)
from smartbatch.emulator.prompt_files import (
    FileRules,
    FindUpload,
    PromptFile,
    UploadGone,
    excess_of,
    file_of_base64,
    tokens_by_kind,
    uploaded_file,
)
from smartbatch.emulator.schema_rules import gemini_flaw

# the message of a 429 that names no quota
QUOTA_EXHAUSTED = "Resource has been exhausted (e.g. check quota)."
MAX_TEXTS = 100  # maximum requests of one ``batchEmbedContents``
MAX_DIMENSIONS = 3072  # default and maximum length of the vectors of ``gemini-embedding-001``

MAX_REQUEST_BYTES = 100_000_000
REQUEST_TOO_LARGE = "Request payload size exceeds the limit: {2} bytes."
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
_JSON_TYPE = "application/json"


def api_error(status: int, message: str, *details: dict[str, Any]) -> ApiError:
    """Return an error in Gemini's format.

    Args:
        details: ``google.rpc`` details.
    """
    return ApiError(status, message, error_body(status, message, *details))


def unknown_url(head: Head) -> ApiError:
    """Return the error for a path or method that the API does not have."""
    return api_error(404, f"The requested URL {head.path} was not found on this server.")


def no_such_file(name: str) -> ApiError:
    """Return the error for a missing file, the same as for a file of another account."""
    message = f"You do not have permission to access the File {name} or it may not exist."
    return api_error(403, message)


def error_body(status: int, message: str, *details: dict[str, Any]) -> bytes:
    error: dict[str, Any] = {"code": status, "message": message, "status": _STATUSES.get(status, "UNKNOWN")}
    if details:
        error["details"] = list(details)
    return json.dumps({"error": error}, indent=2).encode()


def found(fields: Mapping[str, Any], name: str) -> Any:
    """Return a field by its name in camel case or snake case, or ``None``."""
    value = fields.get(name)
    return value if value is not None else fields.get(re.sub("[A-Z]", lambda m: "_" + m[0].lower(), name))


def decode_body(body: bytes) -> dict[str, Any]:
    try:
        return decode_object(body)
    except MalformedBody as error:
        raise api_error(400, f"Invalid JSON payload received. {error}") from None


def fields_of(body: bytes) -> dict[str, Any]:
    fields = decode_body(body)
    check_fields(fields)
    return fields


def check_fields(fields: Mapping[str, Any]) -> None:
    for name in fields:
        if _camel(name) not in _FIELDS:
            raise api_error(400, f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.')


def generation(model: str, fields: Mapping[str, Any], find: FindUpload, *, stream: bool) -> GenerationRequest:
    contents = found(fields, "contents")
    if not isinstance(contents, list) or not contents:
        raise api_error(400, "* GenerateContentRequest.contents: contents is not specified")
    messages = [(_role(content), "".join(texts_of(content, "contents"))) for content in contents]
    instruction = found(fields, "systemInstruction")
    system = [] if instruction is None else texts_of(instruction, "system_instruction")
    config = found(fields, "generationConfig") or {}
    if not isinstance(config, Mapping):
        raise api_error(400, "Invalid value at 'generation_config'")
    _check_numbers(config)
    try:
        prompt, tokens = measure_prompt(model, messages, system)
    except UnicodeEncodeError:
        raise api_error(400, "Invalid JSON payload: a text contains half of a surrogate pair.") from None
    files = tuple(_files(contents, find))
    if (excess := excess_of(files, _RULES)) is not None:
        raise api_error(400, _EXCESSES[excess.limit].format(excess.where, excess.found, excess.most))
    counted = tokens_by_kind(model, files)
    return GenerationRequest(
        model=model,
        prompt=prompt,
        input_tokens=tokens + counted.total(),
        file_tokens=counted,
        max_tokens=found(config, "maxOutputTokens"),
        stop=_stops(found(config, "stopSequences")),
        choices=1,
        schema=asked_schema(_schema(config), system),
        stream=stream,
        include_usage=True,
        files=files,
        draws=True,
        tier=_tier(found(fields, "serviceTier")),
    )


def texts_of(content: Any, where: str) -> list[str]:
    """Return the texts of a content's parts, or raise :class:`ApiError`."""
    parts = content.get("parts") if isinstance(content, Mapping) else None
    if isinstance(parts, Mapping):  # in proto3 JSON a single part stands for a list of one
        parts = [parts]
    if not isinstance(parts, list) or not parts or not all(isinstance(part, Mapping) for part in parts):
        raise api_error(400, f"* GenerateContentRequest.{where}.parts: contents.parts must not be empty.")
    return [part["text"] for part in parts if isinstance(part.get("text"), str)]


_UPLOADED = re.compile(r"(?:https?://[^/]+/v1(?:beta)?/)?files/([^/]+)")
# Google's guides to file input methods and to images of November 2026
_RULES = FileRules(document_bytes=50_000_000, request_bytes=MAX_REQUEST_BYTES, images=3600)
_EXCESSES = {
    "document_bytes": "Invalid value at '{0}.inline_data': the document size exceeds the limit: {2} bytes.",
    "request_bytes": REQUEST_TOO_LARGE,
    "images": "{1} images exceed the limit of {2} images in a request.",
}
_PARTS = frozenset(
    {
        *("text", "inlineData", "fileData", "functionCall", "functionResponse", "thought"),
        *("thoughtSignature", "executableCode", "codeExecutionResult", "videoMetadata", "mediaResolution"),
    }
)


def _files(contents: Sequence[Any], find: FindUpload) -> Iterator[PromptFile]:
    """Yield all files, and check the fields of all parts."""
    for number, content in enumerate(contents):
        parts = content["parts"]
        for place, part in enumerate([parts] if isinstance(parts, Mapping) else parts):
            where = f"contents[{number}].parts[{place}]"
            if unknown := [name for name in part if _camel(name) not in _PARTS]:
                text = f"Invalid JSON payload received. Unknown name \"{unknown[0]}\" at '{where}'"
                raise api_error(400, f"{text}: Cannot find field.")
            reference = found(part, "fileData")
            if isinstance(reference, Mapping) and (name := uploaded_name(found(reference, "fileUri"))):
                yield _uploaded(name, where, find)
            blob = found(part, "inlineData")
            if not isinstance(blob, Mapping):
                continue
            if not found(blob, "mimeType"):
                raise api_error(400, f"* GenerateContentRequest.{where}.inline_data.mime_type: is required")
            try:
                yield file_of_base64(where, blob.get("data"))
            except ValueError:
                raise api_error(
                    400, f"Invalid value at '{where}.inline_data.data' (TYPE_BYTES), Base64 decoding failed"
                ) from None


def uploaded_name(address: Any) -> str | None:
    """Return the name of the uploaded file at an address; ``None`` for any other address."""
    file = _UPLOADED.fullmatch(address) if isinstance(address, str) else None
    return file and file[1]


def _uploaded(name: str, where: str, find: FindUpload) -> PromptFile:
    try:
        return uploaded_file(where, find(name).data)
    except UploadGone:
        raise no_such_file(name) from None


def embedded_texts(model: str, fields: Mapping[str, Any]) -> tuple[list[str], int]:
    """Return the text of each content to embed, and the length of the vectors.

    All parts of a content together are one text with one vector.
    """
    requests = found(fields, "requests")
    if not isinstance(requests, list) or not requests:
        raise api_error(400, "* BatchEmbedContentsRequest.requests: must not be empty")
    if len(requests) > MAX_TEXTS:
        message = f"* BatchEmbedContentsRequest.requests: at most {MAX_TEXTS} requests can be in one batch"
        raise api_error(400, message)
    texts, dimensions = [], MAX_DIMENSIONS
    for number, request in enumerate(requests):
        where = f"* BatchEmbedContentsRequest.requests[{number}]"
        if not isinstance(request, Mapping) or request.get("model") != f"models/{model}":
            raise api_error(400, f"{where}.model: must be the model of the path")
        text = "".join(texts_of(found(request, "content"), "content"))
        if not text:
            raise api_error(400, f"{where}.content: content is empty")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise api_error(400, f"{where}.content: a text contains half of a surrogate pair.") from None
        texts.append(text)
        dimensions = found(request, "outputDimensionality") or MAX_DIMENSIONS
        if type(dimensions) is not int or not 1 <= dimensions <= MAX_DIMENSIONS:
            raise api_error(400, f"{where}.output_dimensionality: must be from 1 to {MAX_DIMENSIONS}")
    return texts, dimensions


def _camel(name: str) -> str:
    return re.sub("_([a-z])", lambda m: m[1].upper(), name)


def _role(content: Any) -> str:
    role = content.get("role", "user") if isinstance(content, Mapping) else None
    if role not in ("user", "model", "function"):
        raise api_error(400, "Please use a valid role: user, model.")
    return str(role)


def _check_numbers(config: Mapping[str, Any]) -> None:
    for name, low, high in _RANGES:
        value = found(config, name)
        if value is not None and (type(value) not in (int, float) or not low <= value <= high):
            raise api_error(400, f"* GenerateContentRequest.generation_config.{name}: from {low} to {high}")
    for name in ("maxOutputTokens", "candidateCount"):
        value = found(config, name)
        if value is not None and (type(value) is not int or value < 1):
            raise api_error(400, f"* GenerateContentRequest.generation_config.{name}: must be positive")
    if (found(config, "candidateCount") or 1) > 1:
        raise api_error(400, "Multiple candidates is not enabled for this model")


def _tier(given: Any) -> str:
    if given is not None and (not isinstance(given, str) or given.lower() not in _TIERS):
        raise api_error(400, 'Invalid value at "service_tier" (type.googleapis.com/ServiceTier)')
    return "flex" if str(given).lower() == "flex" else "standard"


def _stops(given: Any) -> tuple[str, ...]:
    stops = given or []
    if not isinstance(stops, list) or len(stops) > 5 or not all(isinstance(stop, str) for stop in stops):
        raise api_error(
            400, "* GenerateContentRequest.generation_config.stop_sequences: must be at most 5 texts"
        )
    return tuple(stops)


def _schema(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    schema = found(config, "responseJsonSchema")
    if schema is None:
        schema = _with_lower_case_types(found(config, "responseSchema"))
    kind = found(config, "responseMimeType")
    if schema is None:
        return {} if kind == _JSON_TYPE else None
    if kind != _JSON_TYPE or not isinstance(schema, Mapping):
        raise api_error(400, f"* generation_config.response_mime_type: a schema needs {_JSON_TYPE}")
    if found(config, "responseJsonSchema") is not None and (flaw := gemini_flaw(schema)) is not None:
        raise api_error(400, f"* generation_config.response_json_schema: {flaw}")
    return schema


def _with_lower_case_types(schema: Any) -> Any:
    """Convert the upper-case types of an OpenAPI schema to those of JSON Schema."""
    if isinstance(schema, Mapping):
        return {
            name: value.lower()
            if name == "type" and isinstance(value, str)
            else _with_lower_case_types(value)
            for name, value in schema.items()
        }
    return [_with_lower_case_types(each) for each in schema] if isinstance(schema, list) else schema


_NAME = re.compile(r"[a-zA-Z_][\w.:-]{0,127}", re.ASCII)
_WORDS = {"AUTO": "auto", "VALIDATED": "auto", "NONE": "none", "ANY": "required"}


def with_tools(request: GenerationRequest, fields: Mapping[str, Any]) -> GenerationRequest:
    """Add tools and the other options of the answer to a parsed request.

    Raises:
        ApiError: the API rejects the tools, the choice or the turns.
    """
    answered = _check_turns(fields)
    config = found(fields, "generationConfig") or {}
    thinking = found(config, "thinkingConfig")
    counted = [part for content in _contents(fields) for part in _parts(content) if _is_of_tools(part)]
    tools = found(fields, "tools")
    asked = found(config, "responseLogprobs") is True
    alternatives = found(config, "logprobs")
    if alternatives is not None and not (asked and type(alternatives) is int and 0 <= alternatives <= 20):
        raise api_error(
            400, "* GenerateContentRequest.generation_config.logprobs: from 0 to 20, with response_logprobs"
        )
    return evolve(
        request,
        input_tokens=request.input_tokens + sum(count_tokens(json.dumps(e)) for e in (tools, *counted) if e),
        tools=_tools(tools, found(fields, "toolConfig"), answered),
        logprobs=(alternatives or 0) if asked else None,
        reasoning=isinstance(thinking, Mapping) and found(thinking, "includeThoughts") is True,
    )


def _contents(fields: Mapping[str, Any]) -> list[Any]:
    contents = found(fields, "contents")
    return contents if isinstance(contents, list) else []


def _parts(content: Any) -> list[Mapping[str, Any]]:
    parts = content.get("parts")
    return [parts] if isinstance(parts, Mapping) else parts


def _is_of_tools(part: Mapping[str, Any]) -> bool:
    return found(part, "functionCall") is not None or found(part, "functionResponse") is not None


def _check_turns(fields: Mapping[str, Any]) -> bool:
    """Check that calls are followed by the same number of results; return whether the last turn has any."""
    called: list[str] = []
    answered = False
    for content in _contents(fields):
        parts = _parts(content)
        results = [call["name"] for part in parts if (call := found(part, "functionResponse")) is not None]
        if sorted(results) != sorted(called):
            raise api_error(
                400,
                "Please ensure that the number of function response parts is equal to the number of function "
                "call parts of the function call turn.",
            )
        called = [call["name"] for part in parts if (call := found(part, "functionCall")) is not None]
        answered = bool(results)
    if called:
        raise api_error(
            400,
            "Please ensure that single turn requests end with a user role or the role field is empty: a "
            "function call turn has to be followed by its function responses.",
        )
    return answered


def _tools(given: Any, config: Any, answered: bool) -> OfferedTools | None:
    declared = [
        declaration for tool in given or () for declaration in found(tool, "functionDeclarations") or ()
    ]
    parameters: dict[str, Mapping[str, Any]] = {}
    for place, declaration in enumerate(declared):
        name = declaration.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise api_error(
                400,
                f"* GenerateContentRequest.tools[0].function_declarations[{place}].name: Invalid function "
                "name. Must start with a letter or an underscore.",
            )
        schema = found(declaration, "parametersJsonSchema") or found(declaration, "parameters")
        parameters[name] = schema or {"type": "object", "properties": {}}
    calling = found(config, "functionCallingConfig") if isinstance(config, Mapping) else None
    mode = str(found(calling, "mode") or "AUTO") if isinstance(calling, Mapping) else "AUTO"
    if mode not in _WORDS:
        raise api_error(400, f"Invalid value at 'tool_config.function_calling_config.mode': \"{mode}\"")
    allowed = (found(calling, "allowedFunctionNames") if isinstance(calling, Mapping) else None) or ()
    if any(name not in parameters for name in allowed) or (mode == "ANY" and not parameters):
        raise api_error(400, "Function calling config is set without function_declarations.")
    if not parameters:
        return None
    return OfferedTools(parameters, allowed[0] if allowed else _WORDS[mode], answered)
