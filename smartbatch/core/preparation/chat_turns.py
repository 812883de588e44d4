"""Checks chat messages and tools from callers and converts them to a common form.

Tool calls and their results are accepted in OpenAI's form (``tool_calls``, the role ``tool``), in
Anthropic's (parts ``tool_use`` and ``tool_result``), and as :class:`~smartbatch.types.Message`.
Parts are left unchanged, so a chat goes back to its own provider unchanged; adapters convert parts for
other providers. Errors name the message or tool.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from attrs import evolve

from smartbatch.chats import Part
from smartbatch.core.preparation.class_schemas import PydanticType, schema_of
from smartbatch.core.preparation.json_recovery import NotJson, snapshot, surrogate_at
from smartbatch.core.preparation.json_schemas import check_schema, with_sorted_keywords
from smartbatch.errors import InvalidRequest, did_you_mean
from smartbatch.media import Media
from smartbatch.types import Message, Tool, ToolCall


def refuse(field: str, problem: str) -> NoReturn:
    raise InvalidRequest(f"{field} {problem}", field=field)


def checked_text(text: Any, field: str) -> str:
    """Reject text that is blank or that UTF-8 cannot encode."""
    if not isinstance(text, str):
        refuse(field, f"must be a string, not {type(text).__name__}")
    if not text or text.isspace():
        refuse(field, "is blank" if text else "is empty")
    return encodable(text, field)


def encodable(text: str, field: str) -> str:
    """Reject text that UTF-8 cannot encode."""
    if (position := surrogate_at(text)) is not None:
        refuse(field, f"has a lone surrogate at position {position}, which UTF-8 cannot encode: replace it")
    return text


def copied_object(value: Any, field: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        refuse(field, f"must be a JSON object (a dict), not {type(value).__name__}")
    try:
        copied: dict[str, Any] = snapshot(value)
    except NotJson as error:
        refuse(field, f"{error.path and 'at ' + error.path[:120] + ' '}{error.reason}")
    return copied


ROLES = ("system", "developer", "user", "assistant", "tool")
_MESSAGE_KEYS = ("role", "content", "tool_calls", "tool_call_id", "reasoning", "reasoning_content")
# values that carry no information, as in the unknown fields of a dumped answer
_EMPTY_VALUES: tuple[Any, ...] = (None, [], {}, "")


def checked_messages(prompt: Sequence[Any]) -> tuple[Message, ...]:
    """Copy and check the messages of a chat.

    Raises:
        InvalidRequest: no provider accepts a message, a tool result has no call, or a call has no
            result.
    """
    if any(isinstance(part, Media) for part in prompt):  # strings and files form one user message
        for place, part in enumerate(prompt):
            if not isinstance(part, (str, Media)):
                refuse(f"prompt[{place}]", "is neither a string nor a file: put files into a message")
        prompt = [Message("user", tuple(prompt))]
    messages = tuple(_message(message, f"prompt[{place}]") for place, message in enumerate(prompt))
    if any(
        message.tool_calls or type(message.content) is tuple or message.role == "tool" for message in messages
    ):
        _check_calls(messages)
    return messages


def _message(message: Any, field: str) -> Message:
    if isinstance(message, str):
        refuse(field, "is a string, not a message; to send a list of prompts, use map() or generate()")
    role: Any
    content: Any
    calls: Any
    answers: Any
    if isinstance(message, Message):
        role, content, calls = message.role, message.content, message.tool_calls
        answers, reasoning = message.tool_call_id, message.reasoning
    elif isinstance(message, Mapping):
        role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
        answers = message.get("tool_call_id")
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        _check_keys(message, field)
    else:
        refuse(field, f"must be a message with a role and content, not {type(message).__name__}")
    if role not in ROLES:
        # A longer role is not shown, because it may be a misplaced prompt.
        is_word = isinstance(role, str) and len(role) <= 12 and role.isidentifier()
        refuse(f"{field}.role", f"must be one of {', '.join(ROLES)}{f', not {role!r}' if is_word else ''}")
    if calls and role != "assistant":
        refuse(f"{field}.tool_calls", "are only allowed in a message with the role assistant")
    if role == "tool":
        answers = checked_text(answers, f"{field}.tool_call_id") if answers else None
        if answers is None:
            refuse(
                f"{field}.tool_call_id",
                "is missing: set it to the id of the tool call that this message answers",
            )
    elif answers:
        refuse(f"{field}.tool_call_id", "is only allowed in a message with the role tool")
    return Message(
        role,
        _content(content, f"{field}.content", may_be_empty=bool(calls) or role == "tool"),
        tool_calls=_calls(calls, f"{field}.tool_calls") if calls else (),
        tool_call_id=answers or None,
        reasoning=checked_text(reasoning, f"{field}.reasoning") if reasoning else None,
    )


def _check_keys(message: Mapping[Any, Any], field: str) -> None:
    """Reject unknown fields that carry information, because they would be lost."""
    for key, value in message.items():
        if (
            key in _MESSAGE_KEYS
            or value in _EMPTY_VALUES
            or (key == "name" and message.get("role") == "tool")
        ):
            continue
        if key == "function_call":
            refuse(field, "has 'function_call', which OpenAI has replaced: use tool_calls and the role tool")
        refuse(
            field,
            f"has the field {str(key)!r:.40}; a message has role, content, tool_calls and tool_call_id",
        )


def _content(content: Any, field: str, *, may_be_empty: bool) -> str | tuple[Part, ...]:
    if may_be_empty and (content is None or isinstance(content, str) or content == []):
        return encodable(content, field) if content else ""
    if content is None:
        refuse(field, "is missing")
    if isinstance(content, str):
        return checked_text(content, field)
    if not isinstance(content, (list, tuple)):
        hint = "; convert a result with json.dumps" if may_be_empty else ""
        refuse(field, f"must be a string or a list of content parts, not {type(content).__name__}{hint}")
    if not content and not may_be_empty:
        refuse(field, "is empty")
    return tuple(_part(part, f"{field}[{i}]") for i, part in enumerate(content))


def _part(part: Any, field: str) -> Part:
    if isinstance(part, Media):
        return part.accepted(field)
    if isinstance(part, str):
        return {"type": "text", "text": checked_text(part, field)}
    if isinstance(part, bytes) or hasattr(part, "__fspath__"):
        refuse(field, f"is {type(part).__name__}: pass Image(…), Document(…) or Audio(…)")
    return copied_object(part, field)


# -- calls ---------------------------------------------------------------------------------------------------


def _calls(calls: Any, field: str) -> tuple[ToolCall, ...]:
    if not isinstance(calls, (list, tuple)):
        refuse(field, f"must be a list, not {type(calls).__name__}")
    return tuple(_call(call, f"{field}[{i}]") for i, call in enumerate(calls))


def _call(call: Any, field: str) -> ToolCall:
    identity: Any
    name: Any
    arguments: Any
    if isinstance(call, ToolCall):
        identity, name, arguments, text, extra = (
            call.id,
            call.name,
            call.arguments,
            call.arguments_text,
            call.extra,
        )
        extra = None if extra is None else copied_object(extra, f"{field}.extra")
    else:
        whole = copied_object(call, field)
        identity, kind = whole.pop("id", None), whole.pop("type", "function")
        called = whole.pop(kind, None) if kind in ("function", "custom") else None
        if called is None and "name" in whole:  # the form in result files
            called, whole = whole, whole.pop("extra", None) or {}
        if not isinstance(called, Mapping):
            refuse(field, "must have an id, the type 'function', and a function with name and arguments")
        name, arguments, text = called.get("name"), called.get("arguments"), called.get("input")
        whole.pop("index", None)
        extra = {**whole, **({"type": "custom"} if kind == "custom" else {})} or None
        if isinstance(arguments, str):
            arguments, text = _decoded(arguments)
    if arguments is not None:
        arguments = copied_object(arguments, f"{field}.arguments")
    elif text is None:
        arguments = {}
    return ToolCall(
        checked_text(identity, f"{field}.id"),
        checked_text(name, f"{field}.name"),
        arguments,
        None if text is None else encodable(str(text), f"{field}.arguments_text"),
        extra,
    )


def _decoded(text: str) -> tuple[Any, str | None]:
    """Arguments that are not an object are kept as text, because models may write anything."""
    try:
        value = snapshot(json.loads(text)) if text.strip() else {}
    except (ValueError, RecursionError, NotJson):
        return None, text
    return (value, None) if isinstance(value, dict) else (None, text)


def _check_calls(messages: Sequence[Message]) -> None:
    """Reject a result without its call, and a call that is not followed by its result."""
    open_calls: dict[str, str] = {}
    for place, message in enumerate(messages):
        field = f"prompt[{place}]"
        for identity, where in _results(message, field):
            if open_calls.pop(identity, None) is None:
                refuse(
                    where,
                    f"is {identity!r:.80}, but the previous assistant message has no call with that id, or "
                    "that call already has a result",
                )
        if open_calls and message.role != "tool":
            refuse(*_without_result(open_calls))
        for identity, where in _calls_in(message, field):
            if identity in open_calls:
                refuse(where, f"is {identity!r:.80}, the id of another call in the same message")
            open_calls[identity] = where
    if open_calls:
        refuse(*_without_result(open_calls))


def _without_result(open_calls: Mapping[str, str]) -> tuple[str, str]:
    identity, where = next(iter(open_calls.items()))
    return where, (
        f"is {identity!r:.80}, but no result follows that call: put a message "
        '{"role": "tool", "tool_call_id": …, "content": …} directly after the call'
    )


def _results(message: Message, field: str) -> Iterator[tuple[str, str]]:
    if message.role == "tool":
        yield str(message.tool_call_id), f"{field}.tool_call_id"
    elif message.role == "user":
        for place, part in _parts(message, "tool_result"):
            where = f"{field}.content[{place}].tool_use_id"
            yield checked_text(part.get("tool_use_id"), where), where


def _calls_in(message: Message, field: str) -> Iterator[tuple[str, str]]:
    for place, call in enumerate(message.tool_calls):
        yield call.id, f"{field}.tool_calls[{place}].id"
    if message.role == "assistant":
        for place, part in _parts(message, "tool_use"):
            where = f"{field}.content[{place}]"
            checked_text(part.get("name"), f"{where}.name")
            yield checked_text(part.get("id"), f"{where}.id"), f"{where}.id"


def _parts(message: Message, kind: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if not isinstance(message.content, str):
        for place, part in enumerate(message.content):
            if isinstance(part, Mapping) and part.get("type") == kind:
                yield place, part


TOOL_CHOICES = ("auto", "none", "required")
MAX_TOOLS = 512  # far above the 128 of OpenAI and Gemini; the provider checks its own limit
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_TOOL_FORMS = (
    "pass a function with type hints, a Tool, or a dictionary with name, description and parameters in "
    "the form of OpenAI or Anthropic"
)
_TOOL_KEYS = ("name", "description", "parameters", "input_schema", "strict")


def checked_tools(value: Any, field: str) -> tuple[Tool, ...]:
    """Convert tools to a common form. Their names must differ."""
    if isinstance(value, (str, bytes, Mapping, Tool)) or not isinstance(value, Sequence):
        refuse(field, f"must be a list of tools, not {type(value).__name__}")
    if len(value) > MAX_TOOLS:
        refuse(field, f"has {len(value)} tools; the maximum is {MAX_TOOLS}")
    tools = tuple(_tool(tool, f"{field}[{place}]") for place, tool in enumerate(value))
    seen: set[str] = set()
    for place, tool in enumerate(tools):
        if tool.name in seen:
            refuse(
                f"{field}[{place}].name",
                f"is {tool.name!r}, the name of another tool: give each tool its own name",
            )
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
        refuse(field, f"is of type {type(value).__name__}: {_TOOL_FORMS}")
    if not isinstance(tool.name, str) or not _TOOL_NAME.fullmatch(tool.name):
        refuse(
            f"{field}.name",
            "must consist of 1 to 64 letters, digits, _ and -, because providers accept no others",
        )
    if tool.name in TOOL_CHOICES:
        refuse(f"{field}.name", f"is {tool.name!r}, which has a meaning in tool_choice: choose another name")
    if tool.description is not None:
        checked_text(tool.description, f"{field}.description")
    if tool.strict not in (None, True, False):
        refuse(f"{field}.strict", "must be True or False")
    return evolve(tool, parameters=_parameters(tool.parameters, f"{field}.parameters"))


def _described(value: Mapping[str, Any], field: str) -> Tool:
    """Accepts a plain dictionary, OpenAI's form (nested or flat) and Anthropic's."""
    if value.get("type", "function") not in ("function", "custom") or value.get("custom"):
        refuse(
            field,
            f"has the type {value.get('type')!r:.40}: pass tools that the provider runs itself in extra",
        )
    whole = {name: item for name, item in value.items() if name != "type"}
    if isinstance(value.get("function"), Mapping):
        whole = {**value["function"], **{name: item for name, item in whole.items() if name != "function"}}
    for name in whole:
        if name not in _TOOL_KEYS:
            near = did_you_mean(str(name), _TOOL_KEYS)
            refuse(
                field, f"has {str(name)!r:.40}, which not all providers accept{near or f'; {_TOOL_FORMS}'}"
            )
    parameters = whole.get("parameters", whole.get("input_schema"))
    if "name" not in whole:
        refuse(f"{field}.name", f"is missing; {_TOOL_FORMS}")
    if parameters is None:
        refuse(
            f"{field}.parameters",
            "are missing: pass the JSON schema of the arguments; if there are none, it is "
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
    return dict(with_sorted_keywords(parameters))


def _of_callable(function: Callable[..., Any], field: str) -> Tool:
    """Use the name, the first paragraph of the docstring, and a schema of the arguments."""
    name = getattr(function, "__name__", None)
    if name is None:
        refuse(field, f"is a {type(function).__name__} without a name: pass Tool(name, parameters=…) instead")
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
        refuse(field, "has no signature: pass Tool(name, parameters=…) instead")
    for argument in arguments:
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD, argument.POSITIONAL_ONLY):
            refuse(
                field,
                f"has the argument {argument}, which cannot be passed by name, as models do",
            )
        if argument.annotation is argument.empty:
            refuse(field, f"has the argument {argument.name} without a type: add a type hint")


def _schema_of_arguments(function: Callable[..., Any], field: str) -> dict[str, Any]:
    try:
        return PydanticType(function).schema
    except Exception as error:  # pydantic has a dozen classes of errors, and hints may raise their own
        refuse(
            field,
            f"has an argument that cannot be expressed in JSON schema ({type(error).__name__}: {error})"[
                :300
            ],
        )


def checked_choice(value: Any, field: str) -> str:
    """Accepts ``auto``, ``none``, ``required`` or a tool's name, and the forms of OpenAI and Anthropic."""
    if isinstance(value, Mapping):
        function = value.get("function")
        named = function.get("name") if isinstance(function, Mapping) else value.get("name")
        value = named or {"any": "required"}.get(str(value.get("type")), value.get("type"))
    if not isinstance(value, str) or not _TOOL_NAME.fullmatch(value):
        refuse(field, "must be 'auto', 'none', 'required' or the name of a tool")
    return value


def check_choice(tools: Sequence[Tool] | None, choice: str | None) -> None:
    if choice is None:
        return
    if not tools:
        refuse("tool_choice", "is set, but there are no tools: pass tools=, or leave it out")
    names = [tool.name for tool in tools]
    if choice not in (*TOOL_CHOICES, *names):
        near = did_you_mean(choice, [*TOOL_CHOICES, *names])
        refuse("tool_choice", f"is {choice!r}, which is not a tool of this request{near}")
