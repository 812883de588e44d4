"""Request checks that all APIs share, and message content as it is sent."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import evolve

from smartbatch.errors import InvalidRequest
from smartbatch.types import Generation, Message, Tool, ToolCall

CHOICES = ("auto", "none", "required")  # ``tool_choice`` values that are not tool names
INSTRUCTIONS = ("system", "developer")  # roles of instructions to the model


def content_of(message: Message) -> str | list[Mapping[str, Any]]:
    return message.content if isinstance(message.content, str) else parts_of(message)


def parts_of(message: Message) -> list[Mapping[str, Any]]:
    """Return the parts of a message whose parts are in the API's form."""
    return [part for part in message.content if isinstance(part, Mapping)]


def check_extra(extra: Mapping[str, Any], reserved: Collection[str]) -> None:
    for field in reserved:
        if field in extra:
            own = "; pass model= instead" if field == "model" else "; the client sets it"
            raise InvalidRequest(f"extra cannot set {field!r}{own}", field="extra")


def check_format(params: Generation, names: Collection[str], within: str | None = None) -> None:
    """Reject an ``extra`` that sets the answer's format in addition to ``schema`` or
    ``response_format``.

    ``names`` are the fields that set the format. They are in the object ``within`` of the body or,
    without it, in the body itself.
    """
    own = next((name for name in ("schema", "response_format") if getattr(params, name) is not None), None)
    extra = params.extra or {}
    fields = extra if within is None else extra.get(within)
    if own is None or fields is None:
        return
    if not isinstance(fields, Mapping):
        raise InvalidRequest(f"extra[{within!r}] must be a mapping", field="extra")
    if any(name in fields for name in names):
        raise InvalidRequest(f"the format is set twice, by {own} and in extra", field="extra")


def check_turns(prompt: str | Sequence[Message]) -> None:
    """Reject a conversation that contains only instructions."""
    if not isinstance(prompt, str) and all(message.role in INSTRUCTIONS for message in prompt):
        raise InvalidRequest("the conversation needs a user message", field="prompt")


# -- reasoning -----------------------------------------------------------------------------------------------

THINKING_BUDGETS: Final = {"minimal": 1024, "low": 1024, "medium": 8192, "high": 24_576}
"""Tokens for models that take a budget instead of a level, as in Google's OpenAI-compatible API."""


def check_effort(effort: str, model: str, levels: Collection[str] | None) -> None:
    """``levels`` are those that the model has: none if it does not reason, ``None`` if they are unknown."""
    if levels is None or effort in levels:
        return
    if not levels:
        text = f"{model} does not reason: leave reasoning_effort out"
    else:
        text = f"{model} has no reasoning_effort={effort!r}; use one of {', '.join(levels)}"
    raise InvalidRequest(text, field="reasoning_effort")


def refuse_second_control(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"the effort is set twice, by reasoning_effort and by {name} in extra: leave one out",
        field="reasoning_effort",
    )


# -- tools ---------------------------------------------------------------------------------------------------


def check_tools(params: Generation, choice_fields: Collection[str], log_fields: Collection[str] = ()) -> None:
    """Reject an ``extra`` that repeats ``tool_choice`` or ``logprobs``."""
    extra = params.extra or {}
    for name, names in (("tool_choice", choice_fields), ("logprobs", log_fields)):
        if getattr(params, name) is not None and any(field in extra for field in names):
            raise InvalidRequest(f"{name} is set twice, by the request and in extra", field="extra")
    if params.tools and not isinstance(extra.get("tools", []), list):
        raise InvalidRequest(
            "extra['tools'] must be a list; it is sent after the request's tools", field="extra"
        )


def all_tools(own: Sequence[Any], extra: Mapping[str, Any] | None) -> list[Any]:
    """The request's tools come first, then the provider's own tools in ``extra``."""
    return [*own, *(extra or {}).get("tools", ())]


def refuse_strict(tool: Tool, provider: str) -> InvalidRequest:
    return InvalidRequest(
        f"tools: {provider} cannot enforce the parameters of {tool.name!r} with strict=True: leave strict "
        "out, or write a simpler schema",
        field="tools",
    )


def arguments_sent(call: ToolCall) -> Mapping[str, Any]:
    """Text that is not JSON is wrapped in an object, as Anthropic recommends."""
    return {"INVALID_JSON": call.arguments_text or ""} if call.arguments is None else call.arguments


def arguments_text(call: ToolCall) -> str:
    return call.arguments_text or "" if call.arguments is None else json.dumps(call.arguments)


def own_turns(prompt: Sequence[Message]) -> Iterator[Message]:
    """Yield messages with calls in ``tool_calls`` and one message per result, for APIs without ``tool_use``
    and ``tool_result`` parts. Signed or encrypted thoughts of Anthropic's models are left out.
    """
    for message in prompt:
        if isinstance(message.content, str) or message.role not in ("user", "assistant"):
            yield message
            continue
        rest: list[Mapping[str, Any]] = []
        calls = list(message.tool_calls)
        for part in parts_of(message):
            kind = part.get("type")
            if kind == "tool_use" and message.role == "assistant":
                calls.append(ToolCall(part["id"], part["name"], part.get("input") or {}))
            elif kind == "tool_result" and message.role == "user":
                content = part.get("content") or ""
                result = content if isinstance(content, str) else tuple(content)
                yield Message("tool", result, tool_call_id=part["tool_use_id"])
            elif kind not in ("thinking", "redacted_thinking"):
                rest.append(part)
        if rest or calls:
            yield evolve(message, content=tuple(rest) or "", tool_calls=tuple(calls))


def text_of_result(message: Message) -> str | None:
    """``None`` if the result has parts that are not text."""
    if isinstance(message.content, str):
        return message.content
    texts = [part.get("text") for part in parts_of(message)]
    return "".join(text for text in texts if text) if all(isinstance(text, str) for text in texts) else None
