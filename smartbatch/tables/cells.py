"""The fields of a table row: which of them are missing, and how they are written in a prompt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, time
from typing import Any, Final

from smartbatch.errors import SmartbatchError

_MAX_LISTED_NAMES: Final = 12  # field names in one error


class BadField(SmartbatchError, ValueError):
    """A field is unusable for a prompt or an id. The error names the field but not its content."""


class MissingFields(BadField):
    names: Sequence[str] = ()

    @property
    def reason(self) -> str:
        """The names of the missing fields: the same text for all rows that lack these fields."""
        return "blank " + ", ".join(f"`{name}`" for name in self.names)


def check_present(names: Iterable[str], row: Mapping[str, Any], consequence: str = "") -> None:
    """Reject a row that lacks a field.

    Args:
        consequence: appended to the error if the row has the field, but the field is blank.

    Raises:
        MissingFields: names all missing fields; the message describes the first.
    """
    missing = missing_fields(names, row)
    if not missing:
        return
    name = missing[0]
    if name not in row:
        message = f"no field {name!r}; the row has {listed(row)}"
    else:
        message = f"field {name!r} is {'blank' if isinstance(row[name], str) else 'null'}{consequence}"
    raise MissingFields(message, names=missing)


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
