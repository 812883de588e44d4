"""JSON of requests and answers, by ``orjson`` where it is installed (the extra ``fast``)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

_loads: Callable[[bytes], Any] | None
_dumps: Callable[[Mapping[str, Any]], bytes] | None
try:
    from orjson import dumps as _dumps
    from orjson import loads as _loads
except ImportError:
    _dumps = _loads = None
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

MAX_DEPTH = 200
"""Levels of an answer: what is read of it is copied, compared and written, level by level."""
_MAX_VALUES = 4_000_000
_BYTES_OF_A_VALUE = 16
"""Values of an answer: that many, or more where they have so many bytes each, as the numbers of vectors do.
Small ones take up to 80 times their bytes in memory."""


class TooComplex(RecursionError):
    """An answer of too many levels or values; the text says which."""


def decode_json(text: bytes) -> Any:
    """Return what JSON text says.

    What ``orjson`` refuses is left to the standard library, which takes NaN, infinity, lone surrogates, byte
    order marks and UTF-16. Of integers beyond 64 bits, which no field of an answer has, it makes floats.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    if _loads is not None:
        try:
            return _loads(text)
        except ValueError:
            pass
    return json.loads(text)


def decode_answer(text: bytes) -> Any:
    """Return what JSON text of a server says, as :func:`decode_json` does, within bounds.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested deeper than :data:`MAX_DEPTH` levels, or has too many values.
    """
    opened = text.count(b"[") + text.count(b"{")
    if len(text) > _MAX_VALUES:  # fewer bytes have fewer values
        values = opened + text.count(b",") + text.count(b":")
        if values > max(_MAX_VALUES, len(text) // _BYTES_OF_A_VALUE):
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
    """Return a body as compact JSON in ASCII, the same bytes every time: no server takes U+2028 or another
    separator in a text for the end of a line.

    The standard library writes what ``orjson`` refuses (integers beyond 64 bits, deep nesting, lone
    surrogates), what is not ASCII, which it does not escape, and what has a ``null``, which it writes for
    numbers that are not finite, too. The exponents of floats are the one difference (``1e-7`` for ``1e-07``).

    Raises:
        ValueError: a number is not finite.
        TypeError: something in it has no JSON form.
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
