"""Request bodies of the Gemini API as plain dictionaries, and its dialect of JSON Schema.

Sources: Google's reference for ``models.generateContent``, ``models.batchEmbedContents`` and
``GenerationConfig.responseJsonSchema`` (November 2026), and the requests of the ``google-genai``
SDK 3.4. The API accepts names in camel case and in snake case.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from smartbatch.errors import InvalidRequest
from smartbatch.providers.conversation import (
    INSTRUCTIONS,
    all_tools,
    arguments_sent,
    check_extra,
    check_format,
    check_tools,
    check_turns,
    own_turns,
    parts_of,
    text_of_result,
)
from smartbatch.providers.gemini.parts import PARTS
from smartbatch.providers.gemini.reasoning import add_effort, check_thinking
from smartbatch.providers.media_parts import translated
from smartbatch.providers.schema_forms import (
    Dialect,
    NotExpressible,
    in_dialect,
    instruction,
    once_per_schema,
)
from smartbatch.types import Generation, Message, Request, ToolCall

DIALECT = Dialect(
    keywords=frozenset({"format", "minimum", "maximum", "minItems", "maxItems"}),
    formats=frozenset({"date-time", "date", "time"}),
    open_objects=True,
    tuples=True,
    constants=(str, int, float),
    recursion="optional",
)


@once_per_schema
def sent_schema(schema: dict[str, Any]) -> Mapping[str, Any] | None:
    """``None`` if the API cannot enforce the schema."""
    try:
        return in_dialect(schema, DIALECT)
    except NotExpressible:
        return None


MAX_TEXTS = 100  # requests per ``batchEmbedContents``; larger calls are rejected
# tokens per call: 2,048 for each text of ``gemini-embedding-001``; no total is documented
MAX_TEXT_TOKENS = 100 * 2048

_MODEL = re.compile(r"(?:(?:models|tunedModels)/)?[\w.@-]{1,256}", re.ASCII)
_TOOL = re.compile(r"[a-zA-Z_]")
_ROLES = {"user": "user", "assistant": "model"}
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_JSON_CONTENT_TYPE = "application/json"
_RESERVED = ("model", "contents", "systemInstruction", "system_instruction", "requests")
_CONFIGS = ("generationConfig", "generation_config")
_FORMATS = (
    *("responseMimeType", "responseSchema", "responseJsonSchema"),
    *("response_mime_type", "response_schema", "response_json_schema"),
)


BETA = "v1beta/"
"""Begins the paths of calls about explicit caches and of calls that name one, because ``v1`` has none.

Sources: Google's reference (https://ai.google.dev/api/caching), and the tests of ``google-genai`` 3.6.1.
"""


def resource(model: str) -> str:
    """Add the prefix used in API paths, as in ``models/gemini-3.8-flash``."""
    return model if "/" in model else f"models/{model}"


def generate_body(request: Request, model: str) -> dict[str, Any]:
    params = request.params
    system: list[Mapping[str, Any]] = [] if params.system is None else [{"text": params.system}]
    contents: list[dict[str, Any]] = []
    prompt = translated(request.prompt, PARTS)
    if isinstance(prompt, str):
        contents.append({"role": "user", "parts": [{"text": prompt}]})
    else:
        names: dict[str, str] = {}  # call id -> tool, of the most recent calls
        for message in own_turns(prompt):
            if message.role in INSTRUCTIONS:
                system += _parts(message)
            elif message.role == "tool":
                _add_result(contents, message, names)
            else:
                names = {call.id: call.name for call in message.tool_calls}
                contents.append({"role": _ROLES[message.role], "parts": _parts(message)})
    schema = params.schema
    if schema is not None and sent_schema(schema) is None:
        system.append({"text": instruction(schema)})
    body: dict[str, Any] = {"contents": contents}
    if system:
        body["systemInstruction"] = {"parts": system}
    config = _config(request)
    for name, value in (params.extra or {}).items():
        if name in _CONFIGS:
            config |= value
        else:
            body[name] = value
    if params.reasoning_effort is not None:
        add_effort(config, params.reasoning_effort, model)
    if config:
        body["generationConfig"] = config
    if params.tools:
        declarations = []
        for tool in params.tools:
            described = {"name": tool.name}
            if tool.description is not None:
                described["description"] = tool.description
            declarations.append(
                {**described, "parametersJsonSchema": sent_schema(tool.parameters) or tool.parameters}
            )
        body["tools"] = all_tools([{"functionDeclarations": declarations}], params.extra)
    choice = params.tool_choice
    calling: dict[str, Any] = {}
    if any(tool.strict for tool in params.tools or ()) and choice in (None, "auto"):
        calling["mode"] = "VALIDATED"  # lets the model choose and enforces the parameters
    elif choice in _MODES:
        calling["mode"] = _MODES[choice]
    elif choice is not None:
        calling |= {"mode": "ANY", "allowedFunctionNames": [choice]}
    if calling:
        body["toolConfig"] = {"functionCallingConfig": calling}
    return body


def _add_result(contents: list[dict[str, Any]], message: Message, names: Mapping[str, str]) -> None:
    """The results of one turn form one content, in the order of their calls."""
    text = text_of_result(message) or ""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    response = value if isinstance(value, dict) else {"output": text}
    name = names[str(message.tool_call_id)]
    part = {"functionResponse": {"id": message.tool_call_id, "name": name, "response": response}}
    if not (contents and "functionResponse" in contents[-1]["parts"][0]):
        contents.append({"role": "user", "parts": []})
    contents[-1]["parts"].append(part)
    order = list(names)
    contents[-1]["parts"].sort(key=lambda each: order.index(each["functionResponse"]["id"]))


def embed_body(requests: Sequence[Request], model: str) -> dict[str, Any]:
    """Send one content per text: several texts in one content would return a single vector."""
    wanted = requests[0].embedding
    options: dict[str, Any] = {}
    if wanted is not None and wanted.task_type is not None:
        options["taskType"] = wanted.task_type
    if wanted is not None and wanted.dimensions is not None:
        options["outputDimensionality"] = wanted.dimensions
    name = resource(model)
    return {
        "requests": [
            {"model": name, "content": {"role": "user", "parts": [{"text": request.prompt}]}, **options}
            for request in requests
        ]
    }


def check_request(request: Request, model: str) -> None:
    if not _MODEL.fullmatch(model):
        raise InvalidRequest(
            "a model name may contain only letters, digits, '.', '_', '-', '@' and a leading models/",
            field="model",
        )
    if request.embedding is not None:
        return
    form = request.params.response_format
    if form is not None and form.get("type") not in ("text", "json_object"):
        raise InvalidRequest(
            "Gemini accepts only json_object or text as response_format; pass a JSON schema as schema=",
            field="response_format",
        )
    check_turns(request.prompt)
    prompt = translated(request.prompt, PARTS)
    for message in () if isinstance(prompt, str) else own_turns(prompt):
        if message.role == "tool" and text_of_result(message) is None:
            raise InvalidRequest(
                "a tool result has parts that are not text; Gemini accepts only text or JSON", field="prompt"
            )
    _check_extra(request.params)
    check_thinking(request.params, model, _CONFIGS)


def _check_extra(params: Generation) -> None:
    extra = params.extra or {}
    check_extra(extra, _RESERVED)
    check_tools(params, ("toolConfig", "tool_config"))
    for tool in params.tools or ():
        if not _TOOL.match(tool.name):
            raise InvalidRequest(
                f"tools: rename {tool.name!r}: for Gemini, a name must begin with a letter or _",
                field="tools",
            )
    for name in _CONFIGS:
        config = extra.get(name, {})
        if not isinstance(config, Mapping):
            raise InvalidRequest(f"extra[{name!r}] must be a mapping", field="extra")
        check_format(params, _FORMATS, within=name)
        if any(config.get(count, 1) != 1 for count in ("candidateCount", "candidate_count")):
            raise InvalidRequest(
                "extra cannot request several candidates: pass n to the call, as in submit(…, n=3)",
                field="extra",
            )


def _config(request: Request) -> dict[str, Any]:
    params = request.params
    named = (
        ("maxOutputTokens", params.max_tokens),
        ("temperature", params.temperature),
        ("topP", params.top_p),
        ("seed", params.seed),
    )
    config: dict[str, Any] = {name: value for name, value in named if value is not None}
    if params.logprobs:
        config["responseLogprobs"] = True
        if params.logprobs is not True:
            config["logprobs"] = params.logprobs
    if params.stop is not None:
        config["stopSequences"] = list(params.stop)
    if params.schema is not None:
        schema = sent_schema(params.schema)
        config["responseMimeType"] = _JSON_CONTENT_TYPE
        if schema is not None:
            config["responseJsonSchema"] = schema
    elif params.response_format is not None and params.response_format.get("type") == "json_object":
        config["responseMimeType"] = _JSON_CONTENT_TYPE
    return config


def _parts(message: Message) -> list[Mapping[str, Any]]:
    parts: list[Mapping[str, Any]]
    if isinstance(message.content, str):
        parts = [{"text": message.content}] if message.content or not message.tool_calls else []
    else:
        parts = parts_of(message)
    return [*parts, *map(_call, message.tool_calls)]


def _call(call: ToolCall) -> dict[str, Any]:
    part: dict[str, Any] = {"functionCall": {"id": call.id, "name": call.name, "args": arguments_sent(call)}}
    signature = (call.extra or {}).get("thoughtSignature")
    return part if signature is None else {**part, "thoughtSignature": signature}
