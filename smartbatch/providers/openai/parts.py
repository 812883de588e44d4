"""Content parts of OpenAI's two APIs.

Sources: the types of ``openai`` 3.57 and OpenAI's guides to images and to file inputs (November 2026): the
chat API takes only PDFs as files, no URLs of files and no ids of uploaded images. Other servers with the chat
API add types, such as vLLM's ``audio_url`` and Mistral's ``document_url``. The section "Modalities" of
a model's page (https://developers.openai.com/api/docs/models) says what the model takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from attrs import evolve

from smartbatch.media_content import PDF, MediaKind
from smartbatch.providers.media_parts import (
    ANY_TEXT,
    FileLimits,
    MediaPart,
    PartForm,
    Untranslatable,
    check_type,
    refuse,
)

IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"})
AUDIO_FORMATS: Final = {"audio/wav": "wav", "audio/mpeg": "mp3"}

_OWN = ("OpenAI", None)
_CHAT_API = "the chat completions API"
_RESPONSES_API = "the responses API"
_CHAT_TYPES = frozenset(
    {
        *("text", "refusal", "image_url", "input_audio", "file"),
        *("audio_url", "video_url", "input_video", "image_embeds", "audio_embeds"),  # vLLM, OpenRouter
        *("document_url", "reference"),  # Mistral
    }
)
_RESPONSES_TYPES = frozenset(
    {"input_text", "output_text", "refusal", "input_image", "input_file", "reasoning", "message"}
)


def _write_chat(part: MediaPart) -> dict[str, Any]:
    match part.kind:
        case "text":
            return {"type": "text", "text": part.text}
        case "image" if part.file_id is None:
            return {
                "type": "image_url",
                "image_url": {"url": _image_address(part, _CHAT_API), **_detail(part)},
            }
        case "audio" if part.data is not None:
            check_type(part, AUDIO_FORMATS, _CHAT_API)
            sound = {"data": part.data, "format": AUDIO_FORMATS[part.media_type or ""]}
            return {"type": "input_audio", "input_audio": sound}
        case "document" if part.file_id is not None and part.owner in _OWN:
            return {"type": "file", "file": {"file_id": part.file_id}}
        case "document" if part.data is not None and part.is_text_file:
            return {"type": "text", "text": part.text_in_file()}
        case "document" if part.data is not None:
            check_type(part, (PDF, ANY_TEXT), _CHAT_API)
            return {"type": "file", "file": _file(part, "document.pdf")}
    raise _refused(part, _CHAT_API)


def _write_responses(part: MediaPart) -> dict[str, Any]:
    match part.kind:
        case "text":
            return {"type": "text", "text": part.text}  # becomes input_text or output_text when it is sent
        case "image" if part.file_id is not None and part.owner in _OWN:
            return {"type": "input_image", "file_id": part.file_id, **_detail(part)}
        case "image" if part.file_id is None:
            address = _image_address(part, _RESPONSES_API)
            return {"type": "input_image", "image_url": address, **_detail(part)}
        case "document" if part.file_id is not None and part.owner in _OWN:
            return {"type": "input_file", "file_id": part.file_id, **_detail(part)}
        case "document" if part.url is not None:
            return {"type": "input_file", "file_url": part.url, **_detail(part)}
        case "document" if part.data is not None:
            usual = "document.txt" if part.is_text_file else "document.pdf"
            return {"type": "input_file", **_file(part, usual), **_detail(part)}
    raise _refused(part, _RESPONSES_API)


def _image_address(part: MediaPart, api: str) -> str:
    check_type(part, IMAGE_TYPES, api)
    return part.url or f"data:{part.media_type};base64,{part.data}"


def _file(part: MediaPart, usual_name: str) -> dict[str, Any]:
    data = f"data:{part.media_type};base64,{part.data}"
    return {"filename": part.name or usual_name, "file_data": data}


def _detail(part: MediaPart) -> dict[str, Any]:
    return {} if part.detail is None else {"detail": part.detail}


def _refused(part: MediaPart, api: str) -> Untranslatable:
    """Point to the other API if it takes the part."""
    if api == _RESPONSES_API and part.kind == "audio" and part.data is not None:
        return Untranslatable(f"is {part.described()}, which {api} does not take: use api='chat'")
    is_image_id = part.kind == "image" and part.file_id is not None and part.owner in _OWN
    by_responses = is_image_id or (part.kind == "document" and part.url is not None)
    if api == _CHAT_API and by_responses:
        what = "an uploaded image" if is_image_id else "the address of a document"
        return Untranslatable(f"is {what}, which {api} does not take: use api='responses', or pass the file")
    return refuse(part, api)


# the same guides: 50 MB for each file; 1,500 images and 512 MB in a request
_LIMITS = FileLimits(document_bytes=50_000_000, request_bytes=512_000_000, images=1500)

CHAT: Final = PartForm(
    _CHAT_API,
    lambda part: part.get("type") in _CHAT_TYPES,
    _write_chat,
    _LIMITS,
    text_only=frozenset({"system", "developer", "assistant"}),
)
RESPONSES: Final = PartForm(
    _RESPONSES_API,
    lambda part: part.get("type") in _RESPONSES_TYPES,
    _write_responses,
    _LIMITS,
    files_in_results=True,
)

_IMAGES: Final[frozenset[MediaKind]] = frozenset({"image", "document"})
_AUDIO: Final[frozenset[MediaKind]] = frozenset({"audio"})
_TEXT_ONLY: Final[frozenset[MediaKind]] = frozenset()
_TAKEN: Final[Mapping[str, frozenset[MediaKind]]] = {
    **dict.fromkeys(("gpt-4-turbo", "gpt-4-vision", "gpt-4.", "gpt-4o", "gpt-5", "o1", "o3", "o4"), _IMAGES),
    **dict.fromkeys(("gpt-audio", "gpt-4o-audio", "gpt-4o-mini-audio"), _AUDIO),
    **dict.fromkeys(("gpt-3.5", "gpt-4", "gpt-4-turbo-preview"), _TEXT_ONLY),
    **dict.fromkeys(("o1-mini", "o1-preview", "o3-mini"), _TEXT_ONLY),
}
"""Files that OpenAI's models take, by prefix of their names, of which the longest applies. Models that take
images also take PDFs. Any other name is that of an unknown model, which may take everything."""


@lru_cache(maxsize=256)
def form_for(form: PartForm, model: str) -> PartForm:
    """Return a form that also refuses the files that one of OpenAI's own models does not take."""
    known = [name for name in _TAKEN if model.startswith(name)]
    if not known:
        return form
    taken = _TAKEN[max(known, key=len)]

    def write(part: MediaPart) -> dict[str, Any]:
        if part.kind != "text" and not part.is_text_file and part.kind not in taken:
            raise Untranslatable(f"is {part.described()}, which the model {model} does not take")
        return form.write(part)

    return evolve(form, write=write)
