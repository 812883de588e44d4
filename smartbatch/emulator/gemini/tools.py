"""Tools in Gemini's requests, and the errors for what the API does not accept."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from attrs import evolve

from smartbatch.emulator.composed_answers import count_tokens
from smartbatch.emulator.gemini.parsing import api_error, found
from smartbatch.emulator.parsed_requests import GenerationRequest
from smartbatch.emulator.tool_calls import OfferedTools

_NAME = re.compile(r"[a-zA-Z_][\w.:-]{0,127}", re.ASCII)
_WORDS = {"AUTO": "auto", "VALIDATED": "auto", "NONE": "none", "ANY": "required"}


def with_tools(request: GenerationRequest, fields: Mapping[str, Any]) -> GenerationRequest:
    """Return a parsed request with its tools, and what else is asked for of the answer.

    Raises:
        ApiError: for tools, a choice or turns that the API refuses.
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
    """Check that each turn of calls is followed by as many results; return whether the last has results."""
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
