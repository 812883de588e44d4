"""Content blocks of Anthropic's Messages API.

Sources: the types of ``anthropic`` 2.14 and Anthropic's guides to vision, PDF support and the Files API
(November 2026). The API accepts no audio. On Bedrock and Vertex, it accepts neither URLs nor uploaded
files, and only images of at most 5 MB.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attrs import evolve

from smartbatch.media_content import PDF, PLAIN_TEXT
from smartbatch.providers.media_parts import ANY_TEXT, FileLimits, MediaPart, PartForm, check_type, refuse

IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"})

_API = "Anthropic"
_CLOUD_API = "Claude on Bedrock or Vertex"
_TYPES = frozenset(
    {
        *("text", "image", "document", "search_result", "thinking", "redacted_thinking"),
        *("tool_use", "tool_result", "tool_reference", "container_upload", "browser_state"),
    }
)


def _owns(part: Mapping[str, Any]) -> bool:
    """The provider's own tools add types, such as ``web_search_tool_result``."""
    kind = part.get("type")
    return isinstance(kind, str) and (kind in _TYPES or kind.endswith(("_tool_result", "_tool_use")))


def _write(part: MediaPart) -> dict[str, Any]:
    if part.kind == "text":
        return {"type": "text", "text": part.text}
    if part.kind == "audio" or (part.file_id is not None and part.owner not in (None, _API)):
        raise refuse(part, _API)
    source: dict[str, Any]
    if part.kind == "image":
        check_type(part, IMAGE_TYPES, _API)
    else:
        check_type(part, (PDF, ANY_TEXT), _API)
    if part.file_id is not None:
        source = {"type": "file", "file_id": part.file_id}
    elif part.url is not None:
        if part.is_text_file:
            raise refuse(part, _API)
        source = {"type": "url", "url": part.url}
    elif part.is_text_file:
        source = {"type": "text", "media_type": PLAIN_TEXT, "data": part.text_in_file()}
    else:
        source = {"type": "base64", "media_type": part.media_type, "data": part.data}
    title = {"title": part.name} if part.kind == "document" and part.name else {}
    return {"type": part.kind, "source": source, **title}


def _write_for_cloud(part: MediaPart) -> dict[str, Any]:
    if part.kind != "text" and part.data is None:
        raise refuse(part, _CLOUD_API)
    return _write(part)


# the guide to vision: 10 MB for an image; 32 MB and 600 images in a request; 8,000 pixels on each side,
# or 2,000 with more than 20 images
BLOCKS: Final = PartForm(
    _API,
    _owns,
    _write,
    FileLimits(image_bytes=10 * 2**20, request_bytes=32 * 2**20, images=600, side=8000, many=(20, 2000)),
    files_in_results=True,
    text_only=frozenset({"system", "developer"}),
)
CLOUD_BLOCKS: Final = evolve(
    BLOCKS, api=_CLOUD_API, write=_write_for_cloud, limits=evolve(BLOCKS.limits, image_bytes=5 * 2**20)
)
