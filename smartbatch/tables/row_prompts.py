"""The prompt of a table's row: text made by a template, or the text or chat of a column."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self, get_args

from attrs import frozen

from smartbatch.tables.template import (
    BadField,
    Part,
    fields_of,
    fill,
    listed,
    missing_fields,
    parse_template,
)
from smartbatch.types import OnMissing

ON_MISSING: Final[tuple[OnMissing, ...]] = get_args(OnMissing)

_CHAT: Final = re.compile(r"""\s*(\[\s*)?\{\s*(\\?["'])(role|messages|content)\2\s*:""")
"""How a chat begins that was written as text."""
_MAX_DEPTH: Final = 200
"""Deepest nesting of a chat that is written as text."""


class MissingFields(BadField):
    """A row lacks fields of its prompt.

    Attributes:
        names: the fields that are absent, null or blank.
    """

    names: Sequence[str] = ()

    @property
    def reason(self) -> str:
        """The fields in words, without the row's content; equal for rows that lack the same."""
        return "blank " + ", ".join(f"`{name}`" for name in self.names)


@frozen
class SkippedRow:
    """Stands for the prompt of a row that is skipped.

    Attributes:
        reason: as of :class:`MissingFields`.
    """

    reason: str


@frozen
class RowPrompts:
    """Makes the prompts of rows.

    Attributes:
        fields: the fields that a prompt is made of; empty if each row decides.
        on_missing: what happens to rows that lack one.
    """

    fields: list[str]
    on_missing: OnMissing = "error"
    _parts: tuple[Part, ...] | None = None

    @classmethod
    def of(cls, template: str | None, column: str | None, on_missing: OnMissing = "error") -> Self:
        """Return the maker for a template or, without one, for a column.

        Raises:
            TemplateError: the template cannot be used.
        """
        if template is None:
            return cls([] if column is None else [column], on_missing)
        parts = parse_template(template)
        return cls(fields_of(parts), on_missing, parts)

    def prompt(self, row: Mapping[str, Any]) -> Any:
        """Return the prompt of a row, not validated yet: text, a list of messages, or something wrong.

        Raises:
            MissingFields: the row lacks a field, unless missing fields are left empty.
            BadField: a value does not fit its format, or is a chat that cannot be read.
        """
        names = self.fields or [_only_text(row)]
        if self.on_missing != "empty" or self._parts is None:
            self._check_present(names, row)
        if self._parts is not None:
            return fill(self._parts, row)
        value = row[names[0]]
        return _chat_of(value, names[0]) if isinstance(value, str) else value

    def _check_present(self, names: list[str], row: Mapping[str, Any]) -> None:
        missing = missing_fields(names, row)
        if not missing:
            return
        name = missing[0]
        if name not in row:
            message = f"no field {name!r}; the row has {listed(row)}"
        else:
            message = f"field {name!r} is {'blank' if isinstance(row[name], str) else 'null'}"
            if self.on_missing == "empty":
                message += ", and a prompt cannot be empty"
        raise MissingFields(message, names=missing)


def _only_text(row: Mapping[str, Any]) -> str:
    """Return the field that is the prompt of a row if nobody says which.

    Raises:
        BadField: it is unclear.
    """
    for name in ("prompt", "messages"):
        if name in row:
            return name
    others = [name for name in row if name != "id"]
    texts = [name for name in others if isinstance(row[name], str)]
    if len(texts) == 1:
        return texts[0]
    if len(others) == 1 and row[others[0]] is None:
        return others[0]
    raise BadField(
        f"cannot tell which field is the prompt; the row has {listed(row)}; say --prompt-field or --template"
    )


def _chat_of(text: str, name: str) -> Any:
    """Return the chat that a text is as JSON; every other text as it is.

    Raises:
        BadField: the text begins as a chat does, but is not one.
    """
    if not text.lstrip().startswith(("[", "{")):
        return text
    begins_so = _CHAT.match(text) is not None
    try:
        value = json.loads(text) if text.count("[") + text.count("{") <= _MAX_DEPTH or begins_so else None
    except (ValueError, RecursionError) as error:
        if not begins_so and name != "messages":
            return text
        where = f": {error.msg} (character {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        raise BadField(
            f"field {name!r} looks like a chat, but is not valid JSON{where}; write it with json.dumps"
        ) from None
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        value = value["messages"]
    elif isinstance(value, dict) and "role" in value and "content" in value:
        value = [value]
    if isinstance(value, list) and value and all(isinstance(one, dict) and "role" in one for one in value):
        return value
    if name == "messages":
        raise BadField(f"field {name!r} is JSON, but not a chat: a list of messages with role and content")
    return text
