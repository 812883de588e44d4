"""Request bodies of OpenAI's generation and embeddings APIs, as plain dictionaries; nothing is sent here.

Source of the fields: OpenAI's OpenAPI document 2.3.0 (chat completions and responses).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smartbatch.errors import InvalidRequest
from smartbatch.providers.conversation import check_extra, check_format, content_of
from smartbatch.providers.openai.schema_modes import add_schema, check_tool_mode
from smartbatch.types import Embedding, Generation, Message, Request

MAX_TEXTS = 2048
"""Inputs of one call (OpenAI API reference, embeddings)."""
MAX_TEXT_TOKENS = 200_000
"""The API takes 300,000 tokens a call; our count is an estimate, so a third is kept free."""
MAX_STOPS = 4
_RESERVED = ("model", "messages", "input", "stream", "stream_options", "background")
_PART_TYPES = {"user": "input_text", "system": "input_text", "developer": "input_text"}


def chat_body(
    request: Request,
    model: str,
    max_tokens_field: str,
    *,
    send_seed: bool = True,
    schema_mode: str = "json_schema",
) -> dict[str, Any]:
    """Return the body of ``POST /chat/completions``; some servers know only ``max_tokens``, or no seed."""
    params = request.params
    messages: list[dict[str, Any]] = []
    if params.system is not None:
        messages.append({"role": "system", "content": params.system})
    if isinstance(request.prompt, str):
        messages.append({"role": "user", "content": request.prompt})
    else:
        messages += [{"role": m.role, "content": content_of(m)} for m in request.prompt]
    body: dict[str, Any] = {"model": model, "messages": messages}
    if params.max_tokens is not None:
        body[max_tokens_field] = params.max_tokens
    _add_sampling(body, params)
    if params.stop is not None:
        body["stop"] = list(params.stop)
    if params.seed is not None and send_seed:
        body["seed"] = params.seed
    if params.schema is not None:
        add_schema(body, params.schema, schema_mode)
    elif params.response_format is not None:
        body["response_format"] = params.response_format
    if params.extra:
        body.update(params.extra)
    return body


def response_body(request: Request, model: str, schema_mode: str = "json_schema") -> dict[str, Any]:
    """Return the body of ``POST /responses``; the provider stores nothing unless ``extra`` says so."""
    params = request.params
    prompt = request.prompt
    body: dict[str, Any] = {
        "model": model,
        "input": prompt if isinstance(prompt, str) else [_input_item(m) for m in prompt],
        "store": False,
    }
    if params.system is not None:
        body["instructions"] = params.system
    if params.max_tokens is not None:
        body["max_output_tokens"] = params.max_tokens
    _add_sampling(body, params)
    if params.extra:
        body.update(params.extra)
    if params.schema is not None:
        add_schema(body, params.schema, schema_mode)
    elif params.response_format is not None:
        body["text"] = {**(body.get("text") or {}), "format": _flat_format(params.response_format)}
    return body


def embeddings_body(
    requests: Sequence[Request], model: str, encoding_format: str | None = "base64"
) -> dict[str, Any]:
    """Return the body for the vectors of all ``requests``; base64 parses eight times cheaper than numbers."""
    body: dict[str, Any] = {"model": model, "input": [request.prompt for request in requests]}
    if encoding_format is not None:
        body["encoding_format"] = encoding_format
    wanted = requests[0].embedding
    if wanted is not None and wanted.dimensions is not None:
        body["dimensions"] = wanted.dimensions
    return body


def dropped_of(embedding: Embedding | None) -> tuple[tuple[str, str], ...]:
    """Return what of an embedding's constraints is not sent, each with the reason."""
    if embedding is None or embedding.task_type is None:
        return ()
    return (("task_type", "OpenAI's embeddings know no task types"),)


def check_params(params: Generation, api: str) -> None:
    """Refuse what cannot be sent, or would change the shape of the answer; names the field."""
    if params.stop is not None and len(params.stop) > MAX_STOPS:
        raise InvalidRequest(
            f"stop has {len(params.stop)} texts; at most {MAX_STOPS} are taken", field="stop"
        )
    if api == "responses":
        for field in ("stop", "seed"):
            if getattr(params, field) is not None:
                raise InvalidRequest(
                    f"{field} does not exist in the responses API; use api='chat'", field=field
                )
    check_tool_mode(params)
    extra = params.extra or {}
    check_extra(extra, _RESERVED)
    if api == "chat":
        check_format(params, ("response_format",))
    else:
        check_format(params, ("format",), within="text")
        if params.system is not None and "instructions" in extra:
            raise InvalidRequest("system is set twice, by the request and in extra", field="extra")
    if extra.get("n", 1) != 1:
        raise InvalidRequest("extra may not ask for n > 1: submit the prompt several times", field="extra")


def _input_item(message: Message) -> dict[str, Any]:
    """A chat message in the shape of the responses API, whose text parts name their direction."""
    if isinstance(message.content, str):
        return {"role": message.role, "content": message.content}
    kind = _PART_TYPES.get(message.role, "output_text")
    parts = [{**part, "type": kind} if part.get("type") == "text" else part for part in message.content]
    return {"role": message.role, "content": parts}


def _flat_format(form: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = form.get("json_schema")
    return {"type": "json_schema", **inner} if isinstance(inner, Mapping) else form


def _add_sampling(body: dict[str, Any], params: Generation) -> None:
    if params.temperature is not None:
        body["temperature"] = params.temperature
    if params.top_p is not None:
        body["top_p"] = params.top_p
