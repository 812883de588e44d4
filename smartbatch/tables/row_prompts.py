"""Creates prompts from table rows, by filling in a template or by reading a column."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time
from typing import Any, Final, Self, TypeAlias, get_args

from attrs import frozen

from smartbatch.errors import SmartbatchError
from smartbatch.types import OnMissing

_MAX_LISTED_NAMES = 12  # field names in one error
_TEMPLATE_HINT = "write {field} or {field:.2f} for a field, {{ and }} for braces"
_MAX_WIDTH: Final = 1000  # maximum width and number of digits in a format
_SPEC: Final = re.compile(
    r"(?:(?P<fill>.)?(?P<align>[<>=^]))?(?P<sign>[-+ ])?(?P<flags>z?#?0?)(?P<width>\d+)?(?P<group>[_,])?"
    r"(?:\.(?P<digits>\d+))?(?P<type>[bcdeEfFgGnosxX%])?"
)
_NUMBER: Final = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?")
_DECIMAL_COMMA: Final = re.compile(r"[-+]?[\d.]*,\d+")
_WHOLE_TYPES: Final = frozenset("bcdoxX")

Part: TypeAlias = "tuple[str, str | None, str]"  # literal text, the following field, and the field's format


class TemplateError(SmartbatchError, ValueError):
    pass


class BadField(SmartbatchError, ValueError):
    """A field is unusable for a prompt or an id. The error names the field but not its content."""


def parse_template(template: str) -> tuple[Part, ...]:
    """Split a template with ``str.format`` placeholders into literals, field names and formats.

    Attribute access, indexing, conversions and nested formats are rejected, so that a template cannot run
    code. ``{{`` and ``}}`` stand for braces.

    Raises:
        TemplateError: the template is invalid; the error says where.
    """
    try:
        pieces = list(string.Formatter().parse(template))
    except ValueError as error:
        raise TemplateError(f"{error}; {_TEMPLATE_HINT}") from error
    for _, name, spec, conversion in pieces:
        if name is None:
            continue
        if not name or conversion or any(c in name for c in ".[]{}"):
            written = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            raise TemplateError(f"{{{written}}} is not a plain field name; {_TEMPLATE_HINT}")
        if spec and not (_is_format(spec) or _is_date_format(spec)):
            raise TemplateError(f"{{{name}:{spec}}} has an unsupported format; {_TEMPLATE_HINT}")
    if all(name is None for _, name, _, _ in pieces):
        raise TemplateError(
            f"without a field in the template, all prompts would be identical; {_TEMPLATE_HINT}"
        )
    return tuple((literal, name, spec or "") for literal, name, spec, _ in pieces)


def _is_format(spec: str) -> bool:
    found = _SPEC.fullmatch(spec)
    return found is not None and all(
        len(size) <= len(str(_MAX_WIDTH)) and int(size) <= _MAX_WIDTH
        for size in (found["width"] or "0", found["digits"] or "0")
    )


def _is_date_format(spec: str) -> bool:
    return "%" in spec and _SPEC.fullmatch(spec) is None and not set("{}") & set(spec)


def fields_of(parts: Iterable[Part]) -> list[str]:
    """Return the fields of a template without duplicates."""
    return list(dict.fromkeys(name for _, name, _ in parts if name is not None))


def fill(parts: Iterable[Part], fields: Mapping[str, Any]) -> str:
    """Return the prompt of a row. Strings are inserted unchanged, other values as JSON, and fields with a
    format in that format. A missing field is empty.

    Raises:
        BadField: a value does not fit its format.
    """
    pieces: list[str] = []
    for literal, name, spec in parts:
        pieces.append(literal)
        if name is None or is_missing(value := fields.get(name)) or value == "":
            continue
        if not spec:
            pieces.append(text_of(value))
            continue
        try:
            pieces.append(_formatted(value, spec))
        except (TypeError, ValueError, OverflowError):
            kind = "date" if _is_date_format(spec) else "number" if _is_numeric(spec) else "value"
            problem = f"field {name!r} is not a {kind} that {{{name}:{spec}}} can format"
            if kind == "number" and isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value.strip()):
                problem += "; write it with a decimal point in place of the comma"
            raise BadField(problem) from None
    return "".join(pieces)


def _formatted(value: Any, spec: str) -> str:
    """Format a value. Strings are parsed as numbers or ISO dates if the format requires it.

    Raises:
        TypeError, ValueError, OverflowError: the value does not fit the format.
    """
    if _is_date_format(spec):
        moment = datetime.fromisoformat(value.strip()) if isinstance(value, str) else value
        if not isinstance(moment, date | time):
            raise TypeError
        return moment.strftime(spec)
    if isinstance(value, bool | list | tuple | dict):
        raise TypeError
    if not _is_numeric(spec):
        return format(value, spec)
    if isinstance(value, str):
        written = value.strip()
        if _NUMBER.fullmatch(written) is None:
            raise ValueError
        value = int(written) if written.lstrip("+-").isdecimal() else float(written)
    if spec[-1] in _WHOLE_TYPES and not isinstance(value, int) and value == int(value):
        value = int(value)
    return format(value, spec)


def _is_numeric(spec: str) -> bool:
    """Whether a format has a numeric type, a sign, a thousands separator or leading zeros."""
    found = _SPEC.fullmatch(spec)
    if found is None or found["type"] == "s":
        return False
    return bool(found["type"] or found["sign"] or found["flags"] or found["group"] or found["align"] == "=")


def missing_fields(names: Iterable[str], fields: Mapping[str, Any]) -> list[str]:
    """Return the fields that are absent, null or blank in a row."""
    values = ((name, fields.get(name)) for name in names)
    return [
        name for name, value in values if is_missing(value) or (isinstance(value, str) and not value.strip())
    ]


def is_missing(value: Any) -> bool:
    """Whether a value is ``None``, NaN, NaT or the ``NA`` of pandas."""
    if value is None:
        return True
    if isinstance(value, str | int | list | tuple | dict):
        return False
    try:
        return bool(value != value)
    except TypeError:
        return True
    except ValueError:  # an array of several values
        return False


def listed(names: Iterable[object]) -> str:
    """Return the first few field names, quoted, for an error message."""
    names = list(names)
    more = ", …" if len(names) > _MAX_LISTED_NAMES else ""
    return ", ".join(repr(name) for name in names[:_MAX_LISTED_NAMES]) + more if names else "no fields"


def text_of(value: Any) -> str:
    """Convert a value to text: strings unchanged, times in ISO format, JSON values as JSON, and everything
    else, such as decimals, with ``str``.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, date | time):
        return value.isoformat()
    if value is None or isinstance(value, bool | int | float | list | tuple | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


ON_MISSING: Final[tuple[OnMissing, ...]] = get_args(OnMissing)

# beginning of a chat written as text
_CHAT_START: Final = re.compile(r"""\s*(\[\s*)?\{\s*(\\?["'])(role|messages|content)\2\s*:""")
_MAX_DEPTH: Final = 200  # nesting depth of a chat written as text


class MissingFields(BadField):
    names: Sequence[str] = ()

    @property
    def reason(self) -> str:
        """The missing fields without their content, so that it is the same for all rows that lack them."""
        return "blank " + ", ".join(f"`{name}`" for name in self.names)


@frozen
class SkippedRow:
    """Takes the place of the prompt of a skipped row."""

    reason: str


@frozen
class RowPrompts:
    fields: list[str]  # fields used in prompts; empty if each row decides
    on_missing: OnMissing = "error"
    _parts: tuple[Part, ...] | None = None

    @classmethod
    def of(cls, template: str | None, column: str | None, on_missing: OnMissing = "error") -> Self:
        """Create prompts with a template or, without one, from a column.

        Raises:
            TemplateError: the template is invalid.
        """
        if template is None:
            return cls([] if column is None else [column], on_missing)
        parts = parse_template(template)
        return cls(fields_of(parts), on_missing, parts)

    def prompt(self, row: Mapping[str, Any]) -> Any:
        """Return the unvalidated prompt of a row: a string, a list of messages, or an invalid value.

        Raises:
            MissingFields: the row lacks a field that must not be left empty.
            BadField: a value does not fit its format, or looks like a chat but cannot be read.
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
