"""JSON within limits, and files that are read while they are sent.

JSON is read and written by ``orjson`` if it is installed (the extra ``fast``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from smartbatch.errors import ErrorKind, ProviderError

_loads: Callable[[bytes], Any] | None
_dumps: Callable[[Mapping[str, Any]], bytes] | None
try:
    from orjson import dumps as _dumps
    from orjson import loads as _loads
except ImportError:
    _dumps = _loads = None
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

MAX_DEPTH = 200  # maximum depth of an answer, which is copied, compared and written recursively
_MAX_VALUES = 4_000_000
_BYTES_PER_VALUE = 16
"""An answer may exceed the maximum number of values only if each value has this many bytes, as in vectors.
Small values take up to 80 times their size in memory."""


class TooComplex(RecursionError):
    """An answer has too many levels or values."""


def decode_json(text: bytes) -> Any:
    """Parse JSON text.

    The standard library parses what ``orjson`` rejects: NaN, infinity, lone surrogates, byte order
    marks and UTF-16. ``orjson`` converts integers beyond 64 bits to floats; no field of an answer has
    such integers.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    if _loads is not None:
        try:
            return _loads(text)
        except ValueError:
            pass
    return json.loads(text)


def decode_answer(text: bytes) -> Any:
    """Parse a server's JSON text, like :func:`decode_json`, within limits.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested deeper than :data:`MAX_DEPTH` levels, or has too many values.
    """
    opened = text.count(b"[") + text.count(b"{")
    if len(text) > _MAX_VALUES:  # fewer bytes cannot have more values
        values = opened + text.count(b",") + text.count(b":")
        if values > max(_MAX_VALUES, len(text) // _BYTES_PER_VALUE):
            raise TooComplex("has too many values")
    try:
        decoded = decode_json(text)
    except RecursionError:
        raise TooComplex("is nested too deeply") from None
    if opened > MAX_DEPTH:
        _check_depth(decoded)
    return decoded


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for each in level
            if isinstance(each, (dict, list))
            for item in (each.values() if isinstance(each, dict) else each)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return
    raise TooComplex("is nested too deeply")


def encode_json(body: Mapping[str, Any]) -> bytes:
    """Encode a body as compact JSON in ASCII; equal bodies give equal bytes.

    ASCII prevents servers from reading U+2028 or another separator in a string as a line end. The
    standard library writes what ``orjson`` cannot: integers beyond 64 bits, deep nesting, lone
    surrogates, text that is not ASCII, and bodies with a ``null``, which ``orjson`` also writes for
    numbers that are not finite. Only exponents of floats differ (``1e-7`` instead of ``1e-07``).

    Raises:
        ValueError: a number is not finite.
        TypeError: a value has no JSON form.
    """
    if _dumps is not None:
        try:
            written = _dumps(body)
        except TypeError:
            pass
        else:
            if written.isascii() and b"null" not in written:
                return written
    return _encode(body).encode("ascii")


_PIECE_BYTES = 65536


class SpooledBody:
    """The lines of a file as a body of known length, read while it is sent.

    An unreadable file raises an error with the code ``source``, even after sending has begun.

    Args:
        source: lines that each end with a line feed; must not change until the body is sent.
        before, after: bytes around the lines.
        between: one byte that replaces every line end but the last, which is dropped. By default, the
            file is sent unchanged.
    """

    def __init__(
        self, source: Path, *, before: bytes = b"", after: bytes = b"", between: bytes | None = None
    ) -> None:
        self._source = source
        self._before, self._after, self._between = before, after, between
        try:
            self.file_size = source.stat().st_size
            if between is not None:
                self.file_size -= _ends_with_a_line_end(source)
        except OSError as error:
            raise _unreadable(f"cannot be read ({error.strerror})", sent=False) from error

    def __len__(self) -> int:
        return len(self._before) + self.file_size + len(self._after)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the body in pieces. A file that has become shorter is an error."""
        if self._before:
            yield self._before
        left = self.file_size
        try:
            with open(self._source, "rb") as file:
                while left > 0 and (piece := file.read(min(_PIECE_BYTES, left))):
                    left -= len(piece)
                    yield piece if self._between is None else piece.replace(b"\n", self._between)
        except OSError as error:
            raise _unreadable(f"cannot be read ({error.strerror})") from error
        if left:
            raise _unreadable("became shorter while it was sent")
        if self._after:
            yield self._after


def upload_form(fields: Mapping[str, str], source: Path, filename: str) -> tuple[SpooledBody, str]:
    """Return the body and its content type."""
    from urllib3.filepost import encode_multipart_formdata  # the embedded provider does not need it

    file = ("file", (filename, b"", "application/octet-stream"))
    form, content_type = encode_multipart_formdata([*fields.items(), file])
    end = form.rindex(b"\r\n--")  # the file's bytes are inserted before it
    return SpooledBody(source, before=form[:end], after=form[end:]), content_type


def file_form(fields: Mapping[str, str], name: str, media_type: str, content: bytes) -> tuple[bytes, str]:
    """Return the body of a form with a file in memory, and its content type."""
    from urllib3.filepost import encode_multipart_formdata

    return encode_multipart_formdata([*fields.items(), ("file", (name, content, media_type))])


def _unreadable(what: str, *, sent: bool = True) -> ProviderError:
    return ProviderError(
        f"the local file of the batch's input {what}; it can be sent again",
        kind=ErrorKind.NETWORK_ERROR,
        code="source",
        maybe_billed=sent,
    )


def _ends_with_a_line_end(source: Path) -> bool:
    with open(source, "rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
