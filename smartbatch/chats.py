"""Messages of a conversation, and the tools offered and called in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from attrs import asdict, field, frozen

from smartbatch._words import short
from smartbatch.media import Media, media_form, media_identity, read_media

Part: TypeAlias = Mapping[str, Any] | Media
"""A content part: in a provider's form, or an image, a document or audio."""


@frozen
class Tool:
    """A function that the model may ask the caller to call.

    Args:
        name: 1 to 64 letters, digits, ``_`` and ``-``.
        description: what the function does, for the model.
        parameters: the JSON schema of its arguments, an object.
        strict: True for arguments that follow the schema exactly, if the provider can enforce this; ``None``
            for the provider's default.
    """

    name: str
    description: str | None = field(default=None, repr=short)
    parameters: Mapping[str, Any] = field(kw_only=True, repr=short)
    strict: bool | None = field(default=None, kw_only=True)


@frozen
class ToolCall:
    """A tool call requested by the model.

    Attributes:
        id: identifies the call in the message with its result. Generated for Gemini's models, which return
            none.
        name: the tool.
        arguments: decoded; ``None`` if the model did not write a JSON object.
        arguments_text: what the model wrote instead, unchanged.
        extra: further fields of the provider's call, such as Gemini's ``thoughtSignature``; sent back with
            the call.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] | None = field(default=None, repr=short)
    arguments_text: str | None = field(default=None, repr=short)
    extra: Mapping[str, Any] | None = field(default=None, repr=short)


@frozen
class TokenLogprob:
    """The log-probability of one token of an answer.

    Attributes:
        token: its text.
        logprob: natural logarithm of its probability.
        top: the most likely tokens at this position with their log-probabilities, as many as requested.
    """

    token: str = field(repr=short)
    logprob: float
    top: tuple[tuple[str, float], ...] = field(default=(), repr=short)


@frozen
class Message:
    """One message of a conversation.

    Args:
        role: ``system``, ``developer``, ``user``, ``assistant`` or ``tool``.
        content: text, or content parts: strings, :class:`~smartbatch.Image`, :class:`~smartbatch.Document`,
            :class:`~smartbatch.Audio`, and parts in the form of OpenAI, Anthropic or Gemini, which other
            providers receive in their own form. Empty for an assistant message that only calls tools.
        tool_calls: the calls in an assistant message.
        tool_call_id: in a ``tool`` message, the id of the call whose result ``content`` is.
        reasoning: the reasoning in an assistant message, for OpenAI-compatible servers that require it; not
            sent to other APIs.
    """

    role: str
    content: str | tuple[Part | str, ...] = field(default="", repr=short)
    tool_calls: tuple[ToolCall, ...] = field(default=(), kw_only=True)
    tool_call_id: str | None = field(default=None, kw_only=True)
    reasoning: str | None = field(default=None, kw_only=True, repr=short)


def texts_in(content: str | Sequence[Part | str]) -> Iterator[str]:
    """Yield the text of a message part by part, without files."""
    for part in (content,) if isinstance(content, str) else content:
        text = part.get("text") if isinstance(part, Mapping) else part
        if isinstance(text, str):
            yield text


def call_form(call: ToolCall) -> dict[str, Any]:
    return asdict(call, filter=lambda _, value: value is not None, recurse=False)


def read_call(form: Mapping[str, Any]) -> ToolCall:
    return ToolCall(**form)


def message_form(message: Message, of_media: Callable[[Media], dict[str, Any]] = media_form) -> list[Any]:
    """Return ``[role, content, other fields]``."""
    content: Any = message.content
    if type(content) is tuple:
        content = [of_media(part) if isinstance(part, Media) else part for part in content]
    form: list[Any] = [message.role, content]
    rest: dict[str, Any] = {}
    if message.tool_calls:
        rest["tool_calls"] = [call_form(call) for call in message.tool_calls]
    for name in ("tool_call_id", "reasoning"):
        if (value := getattr(message, name)) is not None:
            rest[name] = value
    return [*form, rest] if rest else form


def identity_form(message: Message) -> list[Any]:
    """Return the :func:`message_form` in which files are their hashes."""
    return message_form(message, media_identity)


def read_message(form: Sequence[Any], folder: str | None = None) -> Message:
    """Inverse of :func:`message_form`; for ``folder`` see :func:`~smartbatch.media.read_media`."""
    role, content, *others = form
    rest = dict(others[0]) if others else {}
    if "tool_calls" in rest:
        rest["tool_calls"] = tuple(map(read_call, rest["tool_calls"]))
    if not isinstance(content, str):
        content = tuple(read_media(part, folder) or part for part in content)
    return Message(role, content, **rest)


def _logprob_form(token: TokenLogprob) -> dict[str, Any]:
    top = [{"token": other, "logprob": value} for other, value in token.top]
    return {"token": token.token, "logprob": token.logprob, "top": top}


def _read_logprob(form: Mapping[str, Any]) -> TokenLogprob:
    top = tuple((other["token"], other["logprob"]) for other in form["top"])
    return TokenLogprob(form["token"], form["logprob"], top)


PART_FORMS: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tool_calls": (
        lambda calls: [call_form(call) for call in calls],
        lambda form: tuple(read_call(call) for call in form),
    ),
    "reasoning": (str, str),
    "logprobs": (
        lambda tokens: [_logprob_form(token) for token in tokens],
        lambda form: tuple(_read_logprob(token) for token in form),
    ),
    "extra": (dict, dict),
}
"""The parts of answers and results other than text, with functions to write and read their JSON form."""
