"""Creates prompts from table rows, by filling in a template or by reading a column."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Self, get_args

from attrs import frozen

from smartbatch.tables.cells import BadField, check_present, listed
from smartbatch.tables.templates import Template, template_of
from smartbatch.types import OnMissing, TemplateSource

ON_MISSING: Final[tuple[OnMissing, ...]] = get_args(OnMissing)

# beginning of a chat written as text
_CHAT_START: Final = re.compile(r"""\s*(\[\s*)?\{\s*(\\?["'])(role|messages|content)\2\s*:""")
_MAX_DEPTH: Final = 200  # nesting depth of a chat written as text


@frozen
class SkippedRow:
    """Takes the place of the prompt of a skipped row."""

    reason: str


@frozen
class RowPrompts:
    fields: list[str]  # fields that prompts name; empty if each row decides
    on_missing: OnMissing = "error"
    _template: Template | None = None

    @classmethod
    def of(cls, template: TemplateSource | None, column: str | None, on_missing: OnMissing = "error") -> Self:
        """Create prompts with a template or, without one, from a column.

        Raises:
            TemplateError: the template is invalid, or its file cannot be read.
        """
        if template is None:
            return cls([] if column is None else [column], on_missing)
        found = template_of(template, allows_blanks=on_missing == "empty")
        return cls(found.fields, on_missing, found)

    @property
    def reads_all_fields(self) -> bool:
        """Whether prompts may contain fields that are not in :attr:`fields`."""
        return self._template is not None and self._template.reads_all_fields

    def prompt(self, row: Mapping[str, Any]) -> Any:
        """Return the unvalidated prompt of a row: a string, a list of messages, or an invalid value.

        Raises:
            MissingFields: the row lacks a field that must not be left empty.
            BadField: a value does not fit its format, or looks like a chat but cannot be read.
        """
        if self._template is not None:
            return self._template.fill(row)
        name = self.fields[0] if self.fields else _only_text(row)
        check_present([name], row, ", and a prompt cannot be empty" if self.on_missing == "empty" else "")
        value = row[name]
        return _chat_of(value, name) if isinstance(value, str) else value


def _only_text(row: Mapping[str, Any]) -> str:
    """Return the name of the prompt field, if none was configured.

    Raises:
        BadField: several fields are possible.
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
        f"the prompt field is ambiguous; the row has {listed(row)}; use --prompt-field or --template"
    )


def _chat_of(text: str, name: str) -> Any:
    """Return the chat that a string contains as JSON, or any other string unchanged.

    Raises:
        BadField: the string begins like a chat but is not one.
    """
    if not text.lstrip().startswith(("[", "{")):
        return text
    begins_so = _CHAT_START.match(text) is not None
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
