"""Parts of Gemini's contents.

Sources: the types of ``google-genai`` 3.6 and Google's guides to file input methods, images, documents and
audio (November 2026). Files may be given as public URLs, but only with their media type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from smartbatch.media_content import PDF
from smartbatch.providers.media_parts import (
    ANY_TEXT,
    FileLimits,
    MediaPart,
    PartForm,
    Untranslatable,
    check_type,
    refuse,
)

IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"})
AUDIO_TYPES: Final = {
    "audio/wav": "audio/wav",
    "audio/mpeg": "audio/mp3",
    "audio/aiff": "audio/aiff",
    "audio/aac": "audio/aac",
    "audio/ogg": "audio/ogg",
    "audio/flac": "audio/flac",
}
"""Accepted types of audio, with Google's name for each."""

_API = "Gemini"
_FIELDS = (
    *("text", "inlineData", "fileData", "functionCall", "functionResponse"),
    *("executableCode", "codeExecutionResult", "toolCall", "toolResponse"),
    *("inline_data", "file_data", "function_call", "function_response"),
    *("executable_code", "code_execution_result", "tool_call", "tool_response"),
)


def _owns(part: Mapping[str, Any]) -> bool:
    return "type" not in part and any(name in part for name in _FIELDS)


def _write(part: MediaPart) -> dict[str, Any]:
    if part.kind == "text":
        return {"text": part.text}
    if part.file_id is not None:
        if part.owner not in (None, _API):
            raise refuse(part, _API)
        named = {} if part.media_type is None else {"mimeType": _name_of(part.media_type)}
        return {"fileData": {**named, "fileUri": part.file_id}}
    accepted = {"image": IMAGE_TYPES, "audio": AUDIO_TYPES}.get(part.kind, (PDF, ANY_TEXT))
    check_type(part, accepted, _API)
    if part.media_type is None:
        raise Untranslatable(
            f"is the URL of {part.described()} without an ending such as .png, and {_API} needs the media "
            "type: pass the file itself"
        )
    media_type = _name_of(part.media_type)
    if part.url is not None:
        return {"fileData": {"mimeType": media_type, "fileUri": part.url}}
    return {"inlineData": {"mimeType": media_type, "data": part.data}}


def _name_of(media_type: str) -> str:
    return AUDIO_TYPES.get(media_type, media_type)


# the guide to file input methods: 100 MB in a request, 50 MB for a PDF
PARTS: Final = PartForm(
    _API,
    _owns,
    _write,
    FileLimits(document_bytes=50_000_000, request_bytes=100_000_000),
    text_only=frozenset({"system", "developer"}),
)
