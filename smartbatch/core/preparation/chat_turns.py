"""Chats as callers pass them become messages in one form, or an error that names the message.

Calls of tools and their results are taken in OpenAI's form (``tool_calls``, the role ``tool``), in
Anthropic's (parts ``tool_use`` and ``tool_result``), and as :class:`~smartbatch.types.Message`. Parts stay as
they are, so that a chat goes back to its own provider unchanged; adapters translate them for another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from smartbatch.core.preparation.field_checks import checked_text, copied_object, encodable, refuse
from smartbatch.core.preparation.json_snapshot import NotJson, snapshot
from smartbatch.types import Message, ToolCall

ROLES = ("system", "developer", "user", "assistant", "tool")
_KEYS = ("role", "content", "tool_calls", "tool_call_id", "reasoning", "reasoning_content")
_SILENT: tuple[Any, ...] = (None, [], {}, "")
"""Values of further fields that say nothing, as in the dump of an answer."""


def checked_messages(prompt: Sequence[Any]) -> tuple[Message, ...]:
    """Return the messages of a chat, copied and checked.

    Raises:
        InvalidRequest: for a message that no provider takes; a result without its call, or a call without its
            result, which all of them refuse.
    """
    messages = tuple(_message(message, f"prompt[{place}]") for place, message in enumerate(prompt))
    if any(
        message.tool_calls or type(message.content) is tuple or message.role == "tool" for message in messages
    ):
        _check_calls(messages)
    return messages


def _message(message: Any, field: str) -> Message:
    if isinstance(message, str):
        refuse(field, "is a text; a list of texts is a list of prompts: give it to map() or generate()")
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
        refuse(field, f"must be a message with role and content, not {type(message).__name__}")
    if role not in ROLES:
        refuse(f"{field}.role", f"must be one of {', '.join(ROLES)}{_role_shown(role)}")
    if calls and role != "assistant":
        refuse(f"{field}.tool_calls", "belong to a message of the role assistant")
    if role == "tool":
        answers = checked_text(answers, f"{field}.tool_call_id") if answers else None
        if answers is None:
            refuse(f"{field}.tool_call_id", "is missing: it is the id of the call that this is the result of")
    elif answers:
        refuse(f"{field}.tool_call_id", "belongs to a message of the role tool")
    return Message(
        role,
        _content(content, f"{field}.content", may_be_empty=bool(calls) or role == "tool"),
        tool_calls=_calls(calls, f"{field}.tool_calls") if calls else (),
        tool_call_id=answers or None,
        reasoning=checked_text(reasoning, f"{field}.reasoning") if reasoning else None,
    )


def _check_keys(message: Mapping[Any, Any], field: str) -> None:
    """Refuse what would be lost: fields that are not known and say something."""
    for key, value in message.items():
        if key in _KEYS or value in _SILENT or (key == "name" and message.get("role") == "tool"):
            continue
        if key == "function_call":
            refuse(field, "has 'function_call', which OpenAI replaced: use tool_calls, and the role tool")
        refuse(field, f"has {str(key)!r:.40}; a message has role, content, tool_calls and tool_call_id")


def _role_shown(role: Any) -> str:
    """Show a wrong role only where it looks like one: anything longer may be a prompt in the wrong place."""
    return f", not {role!r}" if isinstance(role, str) and len(role) <= 12 and role.isidentifier() else ""


def _content(content: Any, field: str, *, may_be_empty: bool) -> str | tuple[Mapping[str, Any], ...]:
    if may_be_empty and (content is None or isinstance(content, str) or content == []):
        return encodable(content, field) if content else ""
    if content is None:
        refuse(field, "is missing")
    if isinstance(content, str):
        return checked_text(content, field)
    if not isinstance(content, (list, tuple)):
        hint = "; write a result with json.dumps" if may_be_empty else ""
        refuse(field, f"must be a text or a list of content parts, not {type(content).__name__}{hint}")
    if not content and not may_be_empty:
        refuse(field, "is empty")
    return tuple(copied_object(part, f"{field}[{i}]") for i, part in enumerate(content))


# -- calls ---------------------------------------------------------------------------------------------------


def _calls(calls: Any, field: str) -> tuple[ToolCall, ...]:
    if not isinstance(calls, (list, tuple)):
        refuse(field, f"must be a list, not {type(calls).__name__}")
    return tuple(_call(call, f"{field}[{i}]") for i, call in enumerate(calls))


def _call(call: Any, field: str) -> ToolCall:
    """Return a call, in OpenAI's form or as :class:`ToolCall`."""
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
        if called is None and "name" in whole:  # as in a file of results
            called, whole = whole, whole.pop("extra", None) or {}
        if not isinstance(called, Mapping):
            refuse(field, "must have id, type 'function' and function, with name and arguments")
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
    """Return arguments as an object, or as the text that they are: logs hold what models wrote."""
    try:
        value = snapshot(json.loads(text)) if text.strip() else {}
    except (ValueError, RecursionError, NotJson):
        return None, text
    return (value, None) if isinstance(value, dict) else (None, text)


def _check_calls(messages: Sequence[Message]) -> None:
    """Refuse a result without its call, and a call whose result does not follow at once."""
    open_calls: dict[str, str] = {}
    for place, message in enumerate(messages):
        field = f"prompt[{place}]"
        for identity, where in _results(message, field):
            if open_calls.pop(identity, None) is None:
                refuse(
                    where,
                    f"is {identity!r:.80}, but the assistant's message before has no call of that id, or "
                    "that call has its result already",
                )
        if open_calls and message.role != "tool":
            refuse(*_without_result(open_calls))
        for identity, where in _calls_in(message, field):
            if identity in open_calls:
                refuse(where, f"is {identity!r:.80}, as that of another call in the message")
            open_calls[identity] = where
    if open_calls:
        refuse(*_without_result(open_calls))


def _without_result(open_calls: Mapping[str, str]) -> tuple[str, str]:
    identity, where = next(iter(open_calls.items()))
    return where, (
        f"is {identity!r:.80}, and the result of that call does not follow: put a message "
        '{"role": "tool", "tool_call_id": …, "content": …} behind the call, before anything else'
    )


def _results(message: Message, field: str) -> Iterator[tuple[str, str]]:
    """Yield the id that each result in a message names, and where it stands."""
    if message.role == "tool":
        yield str(message.tool_call_id), f"{field}.tool_call_id"
    elif message.role == "user":
        for place, part in _parts(message, "tool_result"):
            where = f"{field}.content[{place}].tool_use_id"
            yield checked_text(part.get("tool_use_id"), where), where


def _calls_in(message: Message, field: str) -> Iterator[tuple[str, str]]:
    """Yield the id of each call in a message, and where it stands."""
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
            if part.get("type") == kind:
                yield place, part
