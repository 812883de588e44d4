"""Tools as callers pass them become :class:`~smartbatch.types.Tool`, or an error that names the field."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve

from smartbatch.core.preparation.field_checks import checked_text, copied_object, refuse
from smartbatch.core.preparation.plain_schemas import check_schema
from smartbatch.core.preparation.pydantic_types import PydanticType
from smartbatch.core.preparation.schemas import schema_of
from smartbatch.errors import InvalidRequest, did_you_mean
from smartbatch.types import Tool

CHOICES = ("auto", "none", "required")
MAX_TOOLS = 512  # far above the 128 of OpenAI and Gemini; the provider knows its own
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FORMS = (
    "give a function with type hints, a Tool, or a dictionary with name, description and parameters, as "
    "OpenAI and Anthropic take it"
)
_KEYS = ("name", "description", "parameters", "input_schema", "strict")


def checked_tools(value: Any, field: str) -> tuple[Tool, ...]:
    """Return tools in one form; their names differ.

    Raises:
        InvalidRequest: names the tool by its place.
    """
    if isinstance(value, (str, bytes, Mapping, Tool)) or not isinstance(value, Sequence):
        refuse(field, f"must be a list of tools, not {type(value).__name__}")
    if len(value) > MAX_TOOLS:
        refuse(field, f"has {len(value)} tools; at most {MAX_TOOLS} are taken")
    tools = tuple(_tool(tool, f"{field}[{place}]") for place, tool in enumerate(value))
    seen: set[str] = set()
    for place, tool in enumerate(tools):
        if tool.name in seen:
            refuse(f"{field}[{place}].name", f"is {tool.name!r}, as that of another tool: each needs its own")
        seen.add(tool.name)
    return tools


def _tool(value: Any, field: str) -> Tool:
    if isinstance(value, Mapping):
        tool = _described(value, field)
    elif isinstance(value, Tool):
        tool = value
    elif callable(value):
        tool = _of_callable(value, field)
    else:
        refuse(field, f"is of type {type(value).__name__}: {_FORMS}")
    if not isinstance(tool.name, str) or not _NAME.fullmatch(tool.name):
        refuse(f"{field}.name", "must be 1 to 64 letters, digits, _ and -, as the providers take no other")
    if tool.name in CHOICES:
        refuse(f"{field}.name", f"is {tool.name!r}, which is a word of tool_choice: give it another")
    if tool.description is not None:
        checked_text(tool.description, f"{field}.description")
    if tool.strict not in (None, True, False):
        refuse(f"{field}.strict", "must be True or False")
    return evolve(tool, parameters=_parameters(tool.parameters, f"{field}.parameters"))


def _described(value: Mapping[str, Any], field: str) -> Tool:
    """Return a tool from a dictionary, in the form of OpenAI (nested or flat), Anthropic, or a plain one."""
    if value.get("type", "function") not in ("function", "custom") or value.get("custom"):
        refuse(field, f"has the type {value.get('type')!r:.40}: what a provider runs itself goes into extra")
    whole = {name: item for name, item in value.items() if name != "type"}
    if isinstance(value.get("function"), Mapping):
        whole = {**value["function"], **{name: item for name, item in whole.items() if name != "function"}}
    for name in whole:
        if name not in _KEYS:
            near = did_you_mean(str(name), _KEYS)
            refuse(field, f"has {str(name)!r:.40}, which not all providers take{near or f'; {_FORMS}'}")
    parameters = whole.get("parameters", whole.get("input_schema"))
    if "name" not in whole:
        refuse(f"{field}.name", f"is missing; {_FORMS}")
    if parameters is None:
        refuse(
            f"{field}.parameters",
            "are missing: give the JSON schema of the arguments, which for none is "
            '{"type": "object", "properties": {}}',
        )
    return Tool(
        whole["name"], whole.get("description") or None, parameters=parameters, strict=whole.get("strict")
    )


def _parameters(value: Any, field: str) -> dict[str, Any]:
    parameters = copied_object(value, field)
    if parameters.get("type") != "object":
        refuse(field, 'must be the JSON schema of an object, with "type": "object"')
    try:
        check_schema(parameters)
    except InvalidRequest:
        raise
    except ValueError as error:
        refuse(field, str(error))
    return parameters


def _of_callable(function: Callable[..., Any], field: str) -> Tool:
    """Return the tool of a function or a class: its name, the first paragraph of its docstring, and the
    schema of its arguments.
    """
    name = getattr(function, "__name__", None)
    if name is None:
        refuse(field, f"is a {type(function).__name__} without a name: give Tool(name, parameters=…) for it")
    if isinstance(function, type):
        parameters = schema_of(function)[0]
    else:
        _check_hints(function, f"{field} ({name})")
        parameters = _schema_of_arguments(function, f"{field} ({name})")
    described = (inspect.getdoc(function) or "").partition("\n\n")[0]
    return Tool(name, " ".join(described.split()) or None, parameters=parameters)


def _check_hints(function: Callable[..., Any], field: str) -> None:
    try:
        arguments = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        refuse(field, "has no signature: give Tool(name, parameters=…) for it")
    for argument in arguments:
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD, argument.POSITIONAL_ONLY):
            refuse(
                field,
                f"has the argument {argument}, which no name stands for: a model gives arguments by name",
            )
        if argument.annotation is argument.empty:
            refuse(field, f"has the argument {argument.name} without a type: add a type hint")


def _schema_of_arguments(function: Callable[..., Any], field: str) -> dict[str, Any]:
    try:
        return PydanticType(function).schema
    except Exception as error:  # pydantic has a dozen classes of errors, and hints may raise their own
        refuse(
            field,
            f"has an argument of which no JSON schema can be made ({type(error).__name__}: {error})"[:300],
        )


def checked_choice(value: Any, field: str) -> str:
    """Return a choice: ``auto``, ``none``, ``required`` or the name of a tool; also from the forms of OpenAI
    and Anthropic.
    """
    if isinstance(value, Mapping):
        function = value.get("function")
        named = function.get("name") if isinstance(function, Mapping) else value.get("name")
        value = named or {"any": "required"}.get(str(value.get("type")), value.get("type"))
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        refuse(field, "must be 'auto', 'none', 'required' or the name of a tool")
    return value


def check_choice(tools: Sequence[Tool] | None, choice: str | None) -> None:
    """Refuse a choice that the tools do not offer."""
    if choice is None:
        return
    if not tools:
        refuse("tool_choice", "is set, but there are no tools: give tools=, or leave it out")
    names = [tool.name for tool in tools]
    if choice not in (*CHOICES, *names):
        near = did_you_mean(choice, [*CHOICES, *names])
        refuse("tool_choice", f"is {choice!r}, which is no tool of this request{near}")
