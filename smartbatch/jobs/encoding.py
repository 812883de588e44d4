"""The parts that rows of the store are made of: JSON that holds anything, counts, vectors and errors."""

from __future__ import annotations

import base64
import json
import sys
from array import array
from collections.abc import Mapping
from typing import Any

from smartbatch import errors
from smartbatch.errors import ErrorKind, ProviderError, SmartbatchError, StoreError, scrub
from smartbatch.types import Usage

__all__ = [
    "VERSION",
    "counts",
    "damaged",
    "error_form",
    "error_of",
    "packed",
    "read",
    "strict",
    "unpacked",
    "written",
]

VERSION = 1
MESSAGE = 1000
"""Letters of an error's text that are kept."""

strict = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_lenient = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_escaping = json.JSONEncoder(separators=(",", ":")).encode
"""Python reads back what the last two write: NaN, infinities, and surrogates as escapes."""


def written(form: dict[str, Any]) -> bytes:
    """Write a result whatever is in it; objects without a form are left out."""
    for doubtful in ("parsed", "context"):
        try:
            text = _lenient(form)
            break
        except (TypeError, ValueError, RecursionError):
            form.pop(doubtful, None)
    else:
        text = _lenient(form)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _escaping(form).encode()


def read(data: bytes) -> dict[str, Any]:
    """Return what was written.

    Raises:
        StoreError: it is damaged, or of another version.
    """
    try:
        form = json.loads(data)
        version = form["v"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise damaged() from None
    if version != VERSION:
        raise StoreError(
            f"a row of the store has form {version!r:.20}, this smartbatch reads form {VERSION}: update it"
        )
    return form  # type: ignore[no-any-return]


def damaged() -> StoreError:
    """Return the error of bytes that nobody here has written."""
    return StoreError("a row of the store is damaged and was left as it is; restore the store from a copy")


def counts(usage: Usage) -> list[Any]:
    """Return the arguments that make ``usage`` again."""
    told = [usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens]
    return [*told, True] if usage.estimated else told


def packed(vector: Any) -> str:
    """Return 32-bit floats, little-endian, in base64: exact to the bit."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()


def unpacked(text: str) -> array[float]:
    """Return the vector :func:`packed` wrote; ``ValueError`` for anything else."""
    numbers = array("f", base64.b64decode(text, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


_DETAILS: Mapping[str, type[Any] | tuple[type[Any], ...]] = {
    "batch_id": str,
    "code": str,
    "cost": (int, float),
    "field": str,
    "finish_reason": str,
    "job_id": str,
    "maybe_billed": bool,
    "provider_request_id": str,
    "retry_after": (int, float),
    "row": int,
    "status": int,
    "tries": int,
}
"""What errors know besides kind and text, by name; other things, such as causes, stay with the process."""


def error_form(error: SmartbatchError) -> dict[str, Any]:
    """Return what is kept of an error; its texts pass :func:`scrub` once more."""
    known = next(kind for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
    form: dict[str, Any] = {"class": known.__name__, "message": scrub(str(error.message), limit=MESSAGE)}
    if error.kind is not None:
        form["kind"] = error.kind.value
    for name, type_ in _DETAILS.items():
        value = error.__dict__.get(name)
        if isinstance(value, type_):
            form[name] = scrub(value) if isinstance(value, str) else value
    if isinstance(usage := error.__dict__.get("usage"), Usage):
        form["usage"] = counts(usage)
    return form


def error_of(form: Mapping[str, Any], request_id: str | None) -> SmartbatchError:
    """Return the error of its class again; of a class not known here, the nearest."""
    kind = form.get("kind")
    found = getattr(errors, form["class"], None)
    if not (isinstance(found, type) and issubclass(found, SmartbatchError)):
        found = SmartbatchError if kind is None else ProviderError  # of a later version
    details: dict[str, Any] = {name: form[name] for name in _DETAILS if name in form}
    if kind is not None:
        details["kind"] = ErrorKind(kind) if kind in _KINDS else ErrorKind.UNKNOWN
    if "usage" in form:
        details["usage"] = Usage(*form["usage"])
    return found(form["message"], request_id=request_id, **details)


_KINDS = frozenset(kind.value for kind in ErrorKind)
