"""Request bodies of the Gemini API, as plain dictionaries; nothing is sent here.

Source of the fields: Google's reference of ``models.generateContent`` and ``models.batchEmbedContents``, and
the requests the ``google-genai`` SDK 3.4 makes. The API takes camel and snake case alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from smartbatch.errors import InvalidRequest
from smartbatch.providers.conversation import INSTRUCTIONS, check_extra, check_format, check_roles
from smartbatch.providers.gemini.schema_dialect import sent_schema
from smartbatch.providers.schema_forms import instruction
from smartbatch.types import Generation, Message, Request

MAX_TEXTS = 100
"""Requests of one ``batchEmbedContents``; more are answered "at most 100 requests can be in one batch"."""
MAX_TEXT_TOKENS = 100 * 2048
"""The texts of one call at ``gemini-embedding-001``'s 2,048 tokens for each; no total is documented."""

_MODEL = re.compile(r"(?:(?:models|tunedModels)/)?[\w.@-]{1,256}", re.ASCII)
_ROLES = {"user": "user", "assistant": "model"}
_JSON = "application/json"
_RESERVED = ("model", "contents", "systemInstruction", "system_instruction", "requests")
_CONFIGS = ("generationConfig", "generation_config")
_FORMATS = (
    *("responseMimeType", "responseSchema", "responseJsonSchema"),
    *("response_mime_type", "response_schema", "response_json_schema"),
)


def resource(model: str) -> str:
    """Return a model as the API's paths name it: ``models/gemini-3.8-flash``."""
    return model if "/" in model else f"models/{model}"


def generate_body(request: Request) -> dict[str, Any]:
    """Return the body of ``:generateContent`` and ``:streamGenerateContent`` for a request that was
    checked.
    """
    params = request.params
    system: list[Mapping[str, Any]] = [] if params.system is None else [{"text": params.system}]
    contents: list[dict[str, Any]] = []
    if isinstance(request.prompt, str):
        contents.append({"role": "user", "parts": [{"text": request.prompt}]})
    else:
        for message in request.prompt:
            if message.role in INSTRUCTIONS:
                system += _parts(message)
            else:
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
    if config:
        body["generationConfig"] = config
    return body


def embed_body(requests: Sequence[Request], model: str) -> dict[str, Any]:
    """Return the body of ``:batchEmbedContents``: one content for each text.

    Several texts in one content would come back as one vector for all of them.
    """
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
    """Refuse what cannot be sent, or would change the shape of the answer; names the field."""
    if not _MODEL.fullmatch(model):
        raise InvalidRequest(
            "the model's name may have letters, digits, '.', '_', '-' and a leading models/", field="model"
        )
    if request.embedding is not None:
        return
    form = request.params.response_format
    if form is not None and form.get("type") not in ("text", "json_object"):
        raise InvalidRequest(
            "Gemini takes the response_format json_object or text; pass a JSON schema as schema=",
            field="response_format",
        )
    check_roles(request.prompt, "Gemini")
    _check_extra(request.params)


def _check_extra(params: Generation) -> None:
    extra = params.extra or {}
    check_extra(extra, _RESERVED)
    for name in _CONFIGS:
        config = extra.get(name, {})
        if not isinstance(config, Mapping):
            raise InvalidRequest(f"extra[{name!r}] must be a mapping", field="extra")
        check_format(params, _FORMATS, within=name)
        if any(config.get(count, 1) != 1 for count in ("candidateCount", "candidate_count")):
            raise InvalidRequest(
                "extra may not ask for several candidates: submit the prompt several times", field="extra"
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
    if params.stop is not None:
        config["stopSequences"] = list(params.stop)
    if params.schema is not None:
        schema = sent_schema(params.schema)
        config["responseMimeType"] = _JSON
        if schema is not None:
            config["responseJsonSchema"] = schema
    elif params.response_format is not None and params.response_format.get("type") == "json_object":
        config["responseMimeType"] = _JSON
    return config


def _parts(message: Message) -> list[Mapping[str, Any]]:
    """The parts of a message; text parts in the chat style lose their ``type``, others go as they are."""
    if isinstance(message.content, str):
        return [{"text": message.content}]
    return [
        {"text": part.get("text", "")} if part.get("type") == "text" else part for part in message.content
    ]
