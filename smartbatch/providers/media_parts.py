"""Content parts of one API, converted for another.

A part in its own API's form is sent unchanged. Any other part is read into a :class:`MediaPart` by the reader
of its form, and written by the function of the API that receives it (``parts.py`` in each adapter's folder).

Sources: the types of ``openai`` 3.57, ``anthropic`` 2.14 and ``google-genai`` 3.6.
"""

from __future__ import annotations

import base64
import binascii
import math
import mimetypes
import posixpath
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from attrs import evolve, field, frozen

from smartbatch._words import short
from smartbatch.errors import InvalidRequest
from smartbatch.media import Image, Media
from smartbatch.media_content import PDF, PLAIN_TEXT, MediaKind, kind_of_type, pixels_of, type_of_extension
from smartbatch.media_in_prompts import file_of_part
from smartbatch.types import Message

PartKind: TypeAlias = MediaKind | Literal["text"]

ANY_TEXT: Final = "text/*"


class Untranslatable(ValueError):
    """A part cannot be converted. The message completes a sentence that begins with the part's name."""


@frozen
class MediaPart:
    """One content part, independent of any API.

    Attributes:
        kind: what it contains.
        text: the text, if the kind is ``text``.
        data: the file in base64.
        url: where the provider reads the file.
        file_id: id or address of a file uploaded to :attr:`owner`.
        owner: where the file was uploaded: ``OpenAI``, ``Anthropic`` or ``Gemini``; ``None`` if unknown.
        media_type: in lower case, such as ``image/png``; ``None`` if unknown.
        name: the file's name or title.
        detail: OpenAI's level of detail.
        size: size of the file in base64, in bytes; 0 if it is not known yet.
        sides: width and height in pixels, if known.
    """

    kind: PartKind
    text: str = field(default="", kw_only=True, repr=short)
    data: str | None = field(default=None, kw_only=True, repr=short)
    url: str | None = field(default=None, kw_only=True, repr=short)
    file_id: str | None = field(default=None, kw_only=True)
    owner: str | None = field(default=None, kw_only=True)
    media_type: str | None = field(default=None, kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    detail: str | None = field(default=None, kw_only=True)
    size: int = field(default=0, kw_only=True)
    sides: tuple[int, int] | None = field(default=None, kw_only=True)

    def described(self) -> str:
        """Describe the part, for example as ``an image (image/heic)``."""
        noun = {"image": "an image", "document": "a document", "audio": "audio"}.get(self.kind, "text")
        return noun if self.media_type is None else f"{noun} ({self.media_type})"

    @property
    def is_text_file(self) -> bool:
        return self.media_type is not None and self.media_type.startswith("text/")

    def text_in_file(self) -> str:
        """Decode :attr:`data`."""
        try:
            return base64.b64decode(self.data or "", validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise Untranslatable("is a text that is not UTF-8") from None


@frozen(kw_only=True)
class FileLimits:
    """The limits that an API documents for the files in a request. Sizes are those of the base64 text."""

    image_bytes: float = math.inf  # of one image
    document_bytes: float = math.inf  # of one document
    request_bytes: float = math.inf  # of all files together
    images: float = math.inf  # number of images
    side: float = math.inf  # pixels of the longer side of an image
    many: tuple[int, int] | None = (
        None  # with more images than the first number, the second replaces ``side``
    )


@frozen
class PartForm:
    """What an API accepts in the content of messages.

    Attributes:
        api: its name in errors.
        owns: whether a part is in the API's own form, so that it is sent unchanged.
        write: writes any other part, or raises :class:`Untranslatable`.
        limits: limits for files given as ``Image``, ``Document`` or ``Audio``, and for converted parts.
        files_in_results: whether tool results may contain converted files.
        text_only: roles whose messages may not contain converted files.
    """

    api: str
    owns: Callable[[Mapping[str, Any]], bool]
    write: Callable[[MediaPart], dict[str, Any]]
    limits: FileLimits = FileLimits()
    files_in_results: bool = False
    text_only: frozenset[str] = frozenset()


def translated(prompt: str | Sequence[Message], form: PartForm) -> str | Sequence[Message]:
    """Return the messages with every part in the form of one API. Files are read.

    Raises:
        InvalidRequest: names the message, the part and what the API lacks, or the file that has changed.
    """
    return _translated(prompt, form, _with_content)


def check_parts(prompt: str | Sequence[Message], form: PartForm) -> None:
    """Raise the errors of :func:`translated`, without reading files."""
    _translated(prompt, form, lambda media, _: _without_content(media))


def _translated(prompt: str | Sequence[Message], form: PartForm, read: _ReadMedia) -> str | Sequence[Message]:
    if isinstance(prompt, str) or all(isinstance(message.content, str) for message in prompt):
        return prompt
    found = []
    files: list[tuple[str, MediaPart]] = []

    def noted(part: Any, field: str) -> MediaPart:
        media = read(part, field) if isinstance(part, Media) else _measured(read_part(part), part)
        if media.kind != "text":
            files.append((field, media))
        return media

    for place, message in enumerate(prompt):
        if not isinstance(message.content, str):
            field = f"prompt[{place}].content"
            where = _text_only(message.role, form)
            parts = _parts(message.content, field, form, noted, where)
            message = evolve(message, content=parts)
        found.append(message)
    if files:
        _check_limits(files, form)
    return found


def _check_limits(files: Sequence[tuple[str, MediaPart]], form: PartForm) -> None:
    limits, api = form.limits, form.api
    images = [part for _, part in files if part.kind == "image"]
    side = limits.side if limits.many is None or len(images) <= limits.many[0] else limits.many[1]
    for place, part in files:
        most = {"image": limits.image_bytes, "document": limits.document_bytes}.get(part.kind, math.inf)
        problem = ""
        if part.sides is not None and max(part.sides) > side:
            width, height = part.sides
            many = " with so many images" if side != limits.side else ""
            problem = f"{width:,} × {height:,} pixels; {api} takes at most {side:,.0f} on each side{many}"
        elif part.size > most:
            problem = f"{part.size:,} bytes in base64; {api} takes at most {most:,.0f}"
        if problem:
            advice = ": pass Image(…, max_pixels=…)" if part.kind == "image" else ""
            raise InvalidRequest(f"{place} is {part.described()} of {problem}{advice}", field=place)
    if len(images) > limits.images:
        text = f"prompt has {len(images):,} images; {api} takes at most {limits.images:,.0f} in a request"
        raise InvalidRequest(text, field="prompt")
    if (total := sum(part.size for _, part in files)) > limits.request_bytes:
        text = (
            f"prompt has files of {total:,} bytes in base64; {api} takes at most {limits.request_bytes:,.0f}"
        )
        raise InvalidRequest(f"{text} in a request", field="prompt")


_ReadMedia: TypeAlias = Callable[[Media, str], MediaPart]
_ReadPart: TypeAlias = Callable[[Any, str], MediaPart]


def _measured(read: MediaPart, part: Mapping[str, Any]) -> MediaPart:
    if read.data is None or read.kind == "text":
        return read
    file = file_of_part(part)
    sides = None if file is None or not (file.width and file.height) else (file.width, file.height)
    return evolve(read, size=len(read.data), sides=sides)


def _text_only(role: str, form: PartForm) -> str | None:
    """Describe a message of this role if the API takes only text there."""
    if role == "tool":
        return None if form.files_in_results else "a tool result"
    return f"a message of the role {role}" if role in form.text_only else None


def _parts(
    parts: Sequence[Any], field: str, form: PartForm, read: _ReadPart, text_only: str | None
) -> tuple[Mapping[str, Any], ...]:
    return tuple(_part(part, f"{field}[{at}]", form, read, text_only) for at, part in enumerate(parts))


# types of parts that ``conversation.own_turns`` converts, or leaves out, for each API
_TURNS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking"})


def _part(part: Any, field: str, form: PartForm, read: _ReadPart, text_only: str | None) -> Mapping[str, Any]:
    if isinstance(part, Mapping):
        kind, content = part.get("type"), part.get("content")
        if kind == "tool_result" and isinstance(content, (list, tuple)):
            where = _text_only("tool", form)
            return {**part, "content": list(_parts(content, f"{field}.content", form, read, where))}
        if form.owns(part) or kind in _TURNS:
            return part
    try:
        media = read(part, field)
        if text_only and media.kind != "text":
            raise Untranslatable(f"is {media.described()} in {text_only}, where {form.api} takes only text")
        return form.write(media)
    except Untranslatable as problem:
        which = f", {part.described()}," if isinstance(part, Media) else ""
        raise InvalidRequest(f"{field}{which} {problem}", field=field) from None


# -- what writers refuse -------------------------------------------------------------------------------------


def check_type(part: MediaPart, accepted: Collection[str], api: str) -> None:
    """Refuse a media type that ``api`` does not accept; an unknown type passes."""
    if part.is_text_file and ANY_TEXT in accepted:
        return
    if part.media_type is not None and part.media_type not in accepted:
        known = ", ".join(sorted(accepted))
        raise Untranslatable(f"is {part.described()}; {api} takes only {known}")


def refuse(part: MediaPart, api: str) -> Untranslatable:
    """Return the error for a part that ``api`` does not accept in any form."""
    if part.file_id is not None and part.owner not in (None, api):
        return Untranslatable(
            f"is a file uploaded to {part.owner}, which {api} cannot read: pass the file itself"
        )
    by = " by URL" if part.url is not None else " by the id of a file" if part.file_id is not None else ""
    instead = ": pass the file itself" if by and part.kind != "audio" else ""
    return Untranslatable(f"is {part.described()}, which {api} does not take{by}{instead}")


# -- readers, one per form -----------------------------------------------------------------------------------

# the same type under several names
_ALIASES = {
    "image/jpg": "image/jpeg",
    "audio/mp3": "audio/mpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/vnd.wave": "audio/wav",
    "audio/x-flac": "audio/flac",
    "audio/x-aiff": "audio/aiff",
    "application/x-pdf": PDF,
}
# fields that change the price or speed but not the answer; they are left out of converted parts
_HINTS = frozenset({"cache_control", "prompt_cache_breakpoint", "mediaResolution", "media_resolution"})
_GEMINI_FILES = ("https://generativelanguage.googleapis.com/", "gs://", "files/")
# how the ids of uploaded files begin; other ids may belong to any server
_OWNERS = (("file-", "OpenAI"), ("file_", "Anthropic"), *((start, "Gemini") for start in _GEMINI_FILES))


def _without_content(media: Media) -> MediaPart:
    if media.url is not None:
        media_type = media.media_type or _type_of_name(media.url)
        return MediaPart(media.kind, url=media.url, media_type=media_type, name=media.name)
    if media.file_id is None:
        part = MediaPart(media.kind, data="", media_type=media.media_type, name=media.name)
        if isinstance(media, Image) and media.is_scaled:  # size and type are known once it has been scaled
            return evolve(part, media_type=media.sent_type)
        sides = (media.width, media.height) if media.width and media.height else None
        return evolve(part, size=4 * -(-(media.size or 0) // 3), sides=sides)
    return MediaPart(
        media.kind,
        file_id=media.file_id,
        owner=next((owner for start, owner in _OWNERS if media.file_id.startswith(start)), None),
        media_type=media.media_type,
        name=media.name,
    )


def _with_content(media: Media, field: str) -> MediaPart:
    part = _without_content(media)
    if part.data is None:
        return part
    content = media.content(field)
    data = base64.b64encode(content).decode()
    return evolve(part, data=data, size=len(data), sides=pixels_of(content, part.media_type))


def read_part(part: Any) -> MediaPart:
    """Read a part in any known form.

    Raises:
        Untranslatable: the form is unknown or incomplete, or has a field that other APIs lack.
    """
    if not isinstance(part, Mapping):
        raise Untranslatable(f"is of the type {type(part).__name__}, not a JSON object")
    kind = part.get("type")
    reader = _read_gemini if kind is None else _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise Untranslatable(
            f"has the type {kind!r:.40}, which this API does not take; parts that are converted have the "
            f"type {', '.join(sorted(_READERS))}, or Gemini's inlineData or fileData"
        )
    return reader(part)


def _read_chat(part: Mapping[str, Any]) -> MediaPart:
    match part["type"]:
        case "text" | "refusal" as kind:
            return MediaPart("text", text=_text(part, kind))
        case "image_url":
            image = _object(part, "image_url", ("url", "detail"))
            return evolve(_at(_string(image, "url"), "image"), detail=image.get("detail"))
        case "input_audio":
            audio = _object(part, "input_audio", ("data", "format"))
            media_type = _media_type(f"audio/{_string(audio, 'format').lower()}")
            return MediaPart("audio", data=_string(audio, "data"), media_type=media_type)
    return _openai_file(_object(part, "file", ("file_data", "file_id", "filename")))


def _read_responses(part: Mapping[str, Any]) -> MediaPart:
    match part["type"]:
        case "input_text" | "output_text":
            return MediaPart("text", text=_text(part, "text"))
        case "input_image":
            _check_fields(part, ("type", "image_url", "file_id", "detail"))
            if part.get("file_id"):
                read = MediaPart("image", file_id=_string(part, "file_id"), owner="OpenAI")
            else:
                read = _at(_string(part, "image_url"), "image")
            return evolve(read, detail=part.get("detail"))
    _check_fields(part, ("type", "file_data", "file_id", "file_url", "filename", "detail"))
    return evolve(_openai_file(part), detail=part.get("detail"))


def _openai_file(file: Mapping[str, Any]) -> MediaPart:
    name = file.get("filename")
    if file.get("file_id"):
        return MediaPart("document", file_id=_string(file, "file_id"), owner="OpenAI", name=name)
    if file.get("file_url"):
        return evolve(_at(_string(file, "file_url"), "document"), name=name)
    data = _string(file, "file_data")
    if data.startswith("data:"):
        return evolve(_at(data, "document"), name=name)
    return MediaPart("document", data=data, media_type=_type_of_name(name or "") or PDF, name=name)


def _read_anthropic(part: Mapping[str, Any]) -> MediaPart:
    kind: PartKind = "image" if part["type"] == "image" else "document"
    _check_fields(part, ("type", "source", "title"))
    source = _object(part, "source", ("type", "media_type", "data", "url", "file_id"))
    name = part.get("title")
    match source.get("type"):
        case "base64":
            media_type = _media_type(_string(source, "media_type"))
            return MediaPart(kind, data=_string(source, "data"), media_type=media_type, name=name)
        case "text":
            data = base64.b64encode(_string(source, "data").encode()).decode()
            return MediaPart(kind, data=data, media_type=PLAIN_TEXT, name=name)
        case "url":
            return evolve(_at(_string(source, "url"), kind), name=name)
        case "file":
            return MediaPart(kind, file_id=_string(source, "file_id"), owner="Anthropic", name=name)
    raise Untranslatable(f"has a source of the type {source.get('type')!r:.40}, which cannot be converted")


def _read_gemini(part: Mapping[str, Any]) -> MediaPart:
    if "text" in part:
        _check_fields(part, ("text",))
        return MediaPart("text", text=_text(part, "text"))
    for name in ("inlineData", "inline_data", "fileData", "file_data"):
        if name in part:
            break
    else:
        raise Untranslatable(f"has no type, and its fields are {', '.join(map(str, part))!r:.80}")
    _check_fields(part, (name,))
    file = _object(
        part, name, ("mimeType", "mime_type", "data", "fileUri", "file_uri", "displayName", "display_name")
    )
    title = file.get("displayName") or file.get("display_name")
    given = file.get("mimeType") or file.get("mime_type")
    media_type = _media_type(given) if isinstance(given, str) else None
    if name in ("inlineData", "inline_data"):
        if media_type is None:
            raise Untranslatable("has no mimeType")
        kind = _kind_of(media_type)
        return MediaPart(kind, data=_string(file, "data"), media_type=media_type, name=title)
    address = _string(file, "fileUri" if "fileUri" in file else "file_uri")
    media_type = media_type or _type_of_name(address)
    kind = "document" if media_type is None else _kind_of(media_type)
    if address.startswith(_GEMINI_FILES):
        return MediaPart(kind, file_id=address, owner="Gemini", media_type=media_type, name=title)
    return MediaPart(kind, url=address, media_type=media_type, name=title)


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], MediaPart]]] = {
    **dict.fromkeys(("text", "refusal", "image_url", "input_audio", "file"), _read_chat),
    **dict.fromkeys(("input_text", "output_text", "input_image", "input_file"), _read_responses),
    **dict.fromkeys(("image", "document"), _read_anthropic),
}


def _text(part: Mapping[str, Any], name: str) -> str:
    return "" if part.get(name) == "" else _string(part, name)


def _string(mapping: Mapping[str, Any], name: str) -> str:
    value = mapping.get(name)
    if not isinstance(value, str) or not value:
        raise Untranslatable(f"has no {name}")
    return value


def _object(part: Mapping[str, Any], name: str, known: Collection[str]) -> Mapping[str, Any]:
    value = part.get(name)
    if name == "image_url" and isinstance(value, str):  # a short form that some servers accept
        return {"url": value}
    if not isinstance(value, Mapping):
        raise Untranslatable(f"has no object {name}")
    _check_fields(value, known)
    if part.get("type") in ("image_url", "input_audio", "file"):
        _check_fields(part, ("type", name))
    return value


def _check_fields(part: Mapping[str, Any], known: Collection[str]) -> None:
    for name, value in part.items():
        if name not in known and name not in _HINTS and value is not None:
            raise Untranslatable(f"has the field {str(name)!r:.40}, which cannot be converted: leave it out")


def _at(url: str, kind: PartKind) -> MediaPart:
    if not url.startswith("data:"):
        return MediaPart(kind, url=url, media_type=_type_of_name(url))
    head, _, data = url.removeprefix("data:").partition(",")
    media_type, *options = head.split(";")
    if "base64" not in options or not media_type or not data:
        raise Untranslatable("has a data URL that is not of the form data:image/png;base64,…")
    return MediaPart(kind, data=data, media_type=_media_type(media_type))


def _media_type(text: str) -> str:
    plain = text.partition(";")[0].strip().lower()
    return _ALIASES.get(plain, plain)


def _type_of_name(name: str) -> str | None:
    path = name.partition("?")[0].partition("#")[0]
    found = type_of_extension(posixpath.splitext(path)[1]) or mimetypes.guess_type(path)[0]
    return found and _media_type(found)


def _kind_of(media_type: str) -> PartKind:
    family = media_type.partition("/")[0]
    if family == "video":
        raise Untranslatable(f"is a video ({media_type}), which cannot be converted")
    return kind_of_type(media_type)
