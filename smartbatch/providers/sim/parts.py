"""Content parts of the simulated provider: text, and files without their content."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import evolve

from smartbatch.media import Media, media_form, read_media, returned_file
from smartbatch.providers.media_parts import FileLimits, MediaPart, PartForm, Untranslatable
from smartbatch.types import Message

_FILE = "sim.file"


def _write(part: MediaPart) -> dict[str, Any]:
    if part.kind == "text":
        return {"type": "text", "text": part.text}
    if part.data is None:
        return {"type": _FILE}
    try:
        content = base64.b64decode(part.data, validate=True)
    except binascii.Error:
        raise Untranslatable("is not valid base64") from None
    return {"type": _FILE, "file": media_form(evolve(returned_file(content), source=""))}


# those of Anthropic, the strictest of the three providers
_LIMITS: Final = FileLimits(image_bytes=10 * 2**20, request_bytes=32 * 2**20)
PARTS: Final = PartForm(
    "sim:", lambda part: part.get("type") in ("text", _FILE), _write, _LIMITS, files_in_results=True
)


def files_in(prompt: str | Sequence[Message]) -> list[Media]:
    """Return the files in a prompt in the form of :data:`PARTS`, without their content."""
    parts = [part for message in (() if isinstance(prompt, str) else prompt) for part in message.content]
    found = [read_media(part["file"]) for part in parts if isinstance(part, Mapping) and "file" in part]
    return [media for media in found if media is not None]
