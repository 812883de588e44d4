"""What every API refuses in a request, and how a message's content goes on the wire."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from smartbatch.errors import InvalidRequest
from smartbatch.types import Generation, Message

INSTRUCTIONS = ("system", "developer")
"""Roles of messages that instruct the model."""


def content_of(message: Message) -> str | list[Mapping[str, Any]]:
    """Return a message's text, or its parts as a list."""
    return message.content if isinstance(message.content, str) else list(message.content)


def check_extra(extra: Mapping[str, Any], reserved: Collection[str]) -> None:
    """Refuse fields in ``extra`` that the client sets itself; names the field."""
    for field in reserved:
        if field in extra:
            raise InvalidRequest(f"extra may not set {field!r}; the client sets it", field="extra")


def check_format(params: Generation, names: Collection[str], within: str | None = None) -> None:
    """Refuse an ``extra`` that sets the answer's format where ``schema`` or ``response_format`` does so.

    Args:
        names: the fields that set it.
        within: the object of the body that has them, which joins the client's own; else the body has them.
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


def check_roles(prompt: str | Sequence[Message], provider: str) -> None:
    """Refuse a conversation with other roles than user, assistant and instructions, or without the first
    two.
    """
    if isinstance(prompt, str):
        return
    for message in prompt:
        if message.role not in ("user", "assistant", *INSTRUCTIONS):
            raise InvalidRequest(
                f"a message has the role {message.role!r}; {provider} takes user, assistant and system "
                "(results of tools are content parts of a user message)",
                field="prompt",
            )
    if all(message.role in INSTRUCTIONS for message in prompt):
        raise InvalidRequest("the conversation needs a user message", field="prompt")
