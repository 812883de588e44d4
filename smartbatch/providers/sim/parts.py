"""Content parts of the simulated provider: text, and the hashes of files."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from smartbatch.providers.media_parts import MediaPart, PartForm, Untranslatable
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
    return {"type": _FILE, "sha256": hashlib.sha256(content).hexdigest()}


PARTS: Final = PartForm(
    "sim:", lambda part: part.get("type") in ("text", _FILE), _write, files_in_results=True
)


def hashes_in(prompt: str | Sequence[Message]) -> tuple[str, ...]:
    """Return the SHA-256 of each file in a prompt in the form of :data:`PARTS`."""
    return tuple(
        part["sha256"]
        for message in (() if isinstance(prompt, str) else prompt)
        for part in message.content
        if isinstance(part, Mapping) and "sha256" in part
    )
