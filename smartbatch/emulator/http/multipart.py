"""Bodies of the type ``multipart/form-data``, with one file."""

from __future__ import annotations

import re
from collections.abc import Mapping

from attrs import field, frozen

from smartbatch.emulator.http.head import Head

_BOUNDARY = re.compile(r'boundary="?([^";,]+)"?')
_NAME = re.compile(rb'\bname="([^"]*)"')
_FILE_NAME = re.compile(rb'\bfilename="([^"]*)"')
_TYPE = re.compile(rb"content-type:\s*([^\s;]+)", re.IGNORECASE)


@frozen
class UploadForm:
    fields: Mapping[str, str]
    file_name: str | None = None
    file_type: str | None = None  # media type named by the client
    data: bytes | None = field(default=None, repr=False)  # ``None`` without a file


def read_form(head: Head, body: bytes) -> UploadForm | None:
    """Return the fields and the file of a form; ``None`` for any other body."""
    boundary = _BOUNDARY.search(head.headers.get("content-type", ""))
    if boundary is None:
        return None
    delimiter = b"--" + boundary[1].encode("latin-1")
    fields: dict[str, str] = {}
    name = media_type = data = None
    # Only the first delimiter has no line break before it.
    start = body.find(delimiter) + len(delimiter)
    while (end := body.find(b"\r\n" + delimiter, start)) >= 0:
        part_headers, _, value = body[start:end].partition(b"\r\n\r\n")
        start = end + len(delimiter) + 2
        field_name = _NAME.search(part_headers)
        if field_name is None:
            continue
        if field_name[1] == b"file" and (file_name := _FILE_NAME.search(part_headers)):
            name, data = file_name[1].decode(errors="replace"), value
            given = _TYPE.search(part_headers)
            media_type = given[1].decode("latin-1") if given else None
        else:
            fields[field_name[1].decode(errors="replace")] = value.decode(errors="replace")
    return UploadForm(fields, name, media_type, data)
