"""How a schema reaches a server: natively, in JSON mode, in the prompt alone, or as the only tool to call.

Whatever the mode, the answer is validated on this side.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from attrs import evolve

from smartbatch.errors import InvalidRequest
from smartbatch.providers.conversation import INSTRUCTIONS
from smartbatch.providers.openai.schema_dialect import sent_schema
from smartbatch.types import Answer, Generation

ANSWER_TOOL: Final = "structured_answer"
"""The function that a model has to call in the mode ``tool``."""

_INSTRUCTION = (
    "Answer with one JSON value that follows this JSON schema, and with nothing else: no explanation and no "
    "code fence.\n"
)


def add_schema(body: dict[str, Any], schema: Mapping[str, Any], mode: str) -> None:
    """Put a schema into the body of a chat or a response.

    Args:
        body: has ``messages``, or the ``input`` of a response; changed in place.
        schema: a JSON schema.
        mode: ``json_schema``, ``json_object``, ``prompt`` or ``tool``.
    """
    sent = sent_schema(schema)
    named = {"name": "answer", "strict": sent.strict, "schema": sent.schema}
    chat = "messages" in body
    if mode == "tool":
        forced = {"name": ANSWER_TOOL}
        function = {
            **forced,
            "description": "Takes the whole answer.",
            "strict": sent.strict,
            "parameters": sent.schema,
        }
        body["tools"] = [{"type": "function", **({"function": function} if chat else function)}]
        body["tool_choice"] = {"type": "function", **({"function": forced} if chat else forced)}
        return
    if mode != "json_schema":
        _instruct(body, _INSTRUCTION + json.dumps(sent.schema, ensure_ascii=False))
    if mode == "json_schema":
        form = {"type": "json_schema", **({"json_schema": named} if chat else named)}
    elif mode == "json_object":
        form = {"type": "json_object"}
    else:
        return
    if chat:
        body["response_format"] = form
    else:
        body["text"] = {**(body.get("text") or {}), "format": form}


def form_of(body: Mapping[str, Any]) -> str | None:
    """Return the type of output that a body requests; ``None`` if it leaves it to the model."""
    form = body["response_format"] if "response_format" in body else (body.get("text") or {}).get("format")
    kind = form.get("type") if isinstance(form, Mapping) else None
    return kind if isinstance(kind, str) else None


def check_tool_mode(params: Generation) -> None:
    """Refuse tools next to the mode that uses a tool itself.

    Raises:
        InvalidRequest: names the field.
    """
    tools = params.tools or (params.extra or {}).get("tools")
    if params.schema is not None and params.schema_mode == "tool" and tools:
        raise InvalidRequest(
            "schema_mode='tool' forces a tool of its own: use another mode next to tools", field="schema_mode"
        )


def read_tool_answer(answer: Answer) -> Answer:
    """Return an answer whose only call is that of :data:`ANSWER_TOOL` with the arguments as its text."""
    if len(answer.tool_calls) != 1 or answer.tool_calls[0].name != ANSWER_TOOL:
        return answer
    call = answer.tool_calls[0]
    text = (
        call.arguments_text or ""
        if call.arguments is None
        else json.dumps(call.arguments, ensure_ascii=False)
    )
    reason = "stop" if answer.finish_reason == "tool_calls" else answer.finish_reason
    return evolve(answer, text=text, tool_calls=(), finish_reason=reason)


def _instruct(body: dict[str, Any], text: str) -> None:
    """Add an instruction to those of the conversation: some servers take one system message, as the first."""
    if "messages" not in body:
        own = body.get("instructions")
        body["instructions"] = f"{own}\n\n{text}" if own else text
        return
    first, *others = body["messages"]
    content = first.get("content")
    if first["role"] not in INSTRUCTIONS:
        body["messages"] = [{"role": "system", "content": text}, first, *others]
    elif isinstance(content, str):
        body["messages"] = [{**first, "content": f"{content}\n\n{text}"}, *others]
    else:
        body["messages"] = [{**first, "content": [*content, {"type": "text", "text": text}]}, *others]
