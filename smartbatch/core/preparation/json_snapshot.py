"""A deep copy of a JSON value, or the reason why the value has no JSON form.

Callers may change their dictionaries after they submitted them; what is sent is what was submitted. Copying
also checks: what it accepts, ``json.dumps(…, allow_nan=False)`` and UTF-8 accept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 200
"""Levels. Python's own JSON reader fails near 1,000; the schema of no API comes near 200."""
MAX_INTEGER_BITS = 14_000
"""Below the 4,300 digits beyond which Python refuses to print an integer."""


class NotJson(ValueError):
    """The value has no JSON form.

    Args:
        path: where in the value, such as ``["properties"]["x"]``.
        reason: what is wrong there.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path = path
        self.reason = reason


def surrogate_at(text: str) -> int | None:
    """Return the position of the first lone surrogate, which UTF-8 cannot carry, or ``None``."""
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def snapshot(value: Any) -> Any:
    """Return a deep copy of ``value`` made of dictionaries, lists, texts, numbers, booleans and ``None``.

    Raises:
        NotJson: for any other type, NaN and infinities, keys that are no text, lone surrogates, more than
            :data:`MAX_DEPTH` levels (so also for a value that contains itself).
    """
    return _copy(value, "", 0)


def _copy(value: Any, path: str, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, (int, float)):
        return _number(value, path)
    if depth >= MAX_DEPTH:
        raise NotJson("", f"is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        return {_key(key, path): _copy(item, f'{path}["{key}"]', depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copy(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise NotJson(path, f"is {type(value).__name__}, which has no JSON form; pass a text or a number")


def _text(value: str, path: str) -> str:
    if (position := surrogate_at(value)) is not None:
        raise NotJson(path, f"has a lone surrogate at position {position}; UTF-8 cannot carry it")
    return value


def _number(value: int | float, path: str) -> int | float:
    if isinstance(value, float) and not math.isfinite(value):
        raise NotJson(path, f"is {value}, which has no JSON form")
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        raise NotJson(path, "is an integer of more than 4,000 digits")
    return value


def _key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise NotJson(path, f"has a key of type {type(key).__name__}; keys must be texts")
    if surrogate_at(key) is not None:
        raise NotJson(path, "has a key with a lone surrogate; UTF-8 cannot carry it")
    return key
