"""Checks of texts and JSON objects that callers pass; each error names the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from smartbatch.core.preparation.json_snapshot import NotJson, snapshot, surrogate_at
from smartbatch.errors import InvalidRequest


def refuse(field: str, problem: str) -> NoReturn:
    """Raise the error that says what is wrong with a field."""
    raise InvalidRequest(f"{field} {problem}", field=field)


def checked_text(text: Any, field: str) -> str:
    """Return a text that is not blank and that UTF-8 can encode."""
    if not isinstance(text, str):
        refuse(field, f"must be a text, not {type(text).__name__}")
    if not text or text.isspace():
        refuse(field, "is blank: it holds nothing but space" if text else "is empty")
    return encodable(text, field)


def encodable(text: str, field: str) -> str:
    """Return a text that UTF-8 can encode; it may be empty."""
    if (position := surrogate_at(text)) is not None:
        refuse(field, f"has a lone surrogate at position {position}; UTF-8 cannot carry it: replace it")
    return text


def copied_object(value: Any, field: str) -> dict[str, Any]:
    """Return a copy of a JSON object."""
    if not isinstance(value, Mapping):
        refuse(field, f"must be a JSON object (a dict), not {type(value).__name__}")
    try:
        copied: dict[str, Any] = snapshot(value)
    except NotJson as error:
        refuse(field, f"{error.path and 'at ' + error.path[:120] + ' '}{error.reason}")
    return copied
