"""Finds the files in a prompt, including base64 text in a provider's own form."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import evolve

from smartbatch.media import MEDIA_CLASSES, Document, Media
from smartbatch.media_content import PLAIN_TEXT, kind_of_type, type_of_content
from smartbatch.types import Request

_TEXT_FIELDS: Final = ("text", "input", "thinking")
# objects with a file in the forms of OpenAI, Anthropic and Gemini; in OpenAI's responses it is in the part
_HOLDERS: Final = ("image_url", "input_audio", "file", "source", "inlineData", "inline_data")
_CONTENTS: Final = ("url", "data", "file_data", "image_url")
_MAX_KNOWN: Final = 4096
# by hash and length of the base64 text, because a request is estimated several times
_known: dict[tuple[int, int], Media | None] = {}


def text_of_part(part: Mapping[str, Any]) -> Any:
    """Return the text of a part, or the arguments of a call; ``None`` for a file or a tool result."""
    return next((part[name] for name in _TEXT_FIELDS if name in part), None)


def files_of(request: Request) -> Iterator[Media | Mapping[str, Any]]:
    """Yield the files of a prompt and of its tool results, as ``Media`` or in a provider's form."""
    if not isinstance(request.prompt, str):
        for message in request.prompt:
            if not isinstance(message.content, str):
                yield from _files_in(message.content)


def _files_in(parts: Sequence[Any]) -> Iterator[Media | Mapping[str, Any]]:
    for part in parts:
        if isinstance(part, Media):
            yield part
        elif isinstance(part, Mapping) and text_of_part(part) is None:
            if part.get("type") != "tool_result":
                yield part
            elif isinstance(content := part.get("content"), Sequence) and not isinstance(content, str):
                yield from _files_in(content)


def file_of_part(part: Media | Mapping[str, Any]) -> Media | None:
    """Return the file with its size, pixels, pages or seconds, but without its content.

    ``None`` for a URL or an uploaded file in a provider's form, and for content of an unknown type.
    """
    if isinstance(part, Media):
        return part
    holder = next((inner for name in _HOLDERS if isinstance(inner := part.get(name), Mapping)), part)
    content = next((text for name in _CONTENTS if isinstance(text := holder.get(name), str)), None)
    if content is None:
        return None
    if holder.get("type") == "text":
        return Document(file_id="inline", media_type=PLAIN_TEXT, size=len(content.encode()))
    key = hash(content), len(content)
    try:
        return _known[key]
    except KeyError:
        found = _examined(content)
    if len(_known) >= _MAX_KNOWN:
        _known.clear()  # by any thread, so nothing is read from it again
    _known[key] = found
    return found


def _examined(content: str) -> Media | None:
    if content.startswith("data:"):
        content = content.partition(",")[2]
    try:
        data = base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):  # a URL
        return None
    media_type = type_of_content(data)
    if media_type is None or not data:
        return None
    found = MEDIA_CLASSES[kind_of_type(media_type)](data).accepted("prompt")
    return evolve(found, source=None, file_id="inline")
