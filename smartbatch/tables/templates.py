"""Fills the fields of a table row into a template: text with ``{field}`` placeholders, or a file."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any, Final, Protocol, TypeAlias

from attrs import frozen

from smartbatch.errors import SmartbatchError
from smartbatch.media import Media
from smartbatch.tables.cells import BadField, check_present, is_missing, listed, text_of
from smartbatch.tables.file_cells import FileColumns, check_is_text
from smartbatch.types import TemplateSource

_TEMPLATE_HINT = "write {field} or {field:.2f} for a field, {{ and }} for braces"
_MAX_WIDTH: Final = 1000  # maximum width and number of digits in a format
_SPEC: Final = re.compile(
    r"(?:(?P<fill>.)?(?P<align>[<>=^]))?(?P<sign>[-+ ])?(?P<flags>z?#?0?)(?P<width>\d+)?(?P<group>[_,])?"
    r"(?:\.(?P<digits>\d+))?(?P<type>[bcdeEfFgGnosxX%])?"
)
_NUMBER: Final = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?")
_DECIMAL_COMMA: Final = re.compile(r"[-+]?[\d.]*,\d+")
_WHOLE_TYPES: Final = frozenset("bcdoxX")

_JINJA_SUFFIX: Final = ".j2"

Part: TypeAlias = "tuple[str, str | None, str]"  # literal text, the following field, and the field's format

Filled: TypeAlias = "str | list[str | Media]"
"""The prompt of a row: text or, if the row has files, pieces of text and files in order."""


class TemplateError(SmartbatchError, ValueError):
    pass


class Template(Protocol):
    """Makes the prompt of a row."""

    @property
    def fields(self) -> list[str]:
        """The fields that the template names."""
        ...

    @property
    def reads_all_fields(self) -> bool:
        """Whether the template may read fields that it does not name."""
        ...

    def fill(self, row: Mapping[str, Any]) -> Filled:
        """Return the prompt of a row.

        Raises:
            MissingFields: the row lacks a field or a file.
            BadField: a value cannot be used.
        """
        ...


def template_of(source: TemplateSource, *, allows_blanks: bool, files: FileColumns | None = None) -> Template:
    """Return the template in a string, or in the file at a path without a line break at its end.

    Args:
        source: a file whose name ends in ``.j2`` is a Jinja template. Everything else has ``{field}``
            placeholders.
        allows_blanks: whether a missing field is left empty.
        files: columns with files. Only templates with placeholders can contain them.

    Raises:
        TemplateError: the file cannot be read, or the template is invalid; the error says where.
    """
    if isinstance(source, str):
        return FieldTemplate.of(source, allows_blanks, files)
    if not isinstance(source, os.PathLike):
        raise TemplateError(
            f"must be text with {{field}} placeholders or a path, not {type(source).__name__}; for other "
            "messages, set system= and examples=, or pass a list of chats without a template"
        )
    path = os.fsdecode(source)
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read().removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise TemplateError(f"{path}: cannot be read: {reason}") from error
    try:
        if not path.endswith(_JINJA_SUFFIX):
            return FieldTemplate.of(text, allows_blanks, files)
        if files is not None:
            raise ValueError(
                f"a Jinja template produces text only, not the files of {listed(files.kinds)}: use a file "
                f"whose name does not end in {_JINJA_SUFFIX}, and write {{field}} for a field"
            )
        # imported late, because few templates need it
        from smartbatch.tables.jinja_template import JinjaTemplate

        return JinjaTemplate(text, allows_blanks=allows_blanks)
    except ValueError as error:
        raise TemplateError(f"{path}: {error}") from error


@frozen
class FieldTemplate:
    """A template with ``str.format`` placeholders."""

    fields: list[str]
    _parts: tuple[Part, ...]
    _allows_blanks: bool
    _files: FileColumns | None = None
    reads_all_fields: bool = False

    @classmethod
    def of(cls, text: str, allows_blanks: bool, files: FileColumns | None = None) -> FieldTemplate:
        parts = parse_template(text)
        names = dict.fromkeys(name for _, name, _ in parts if name is not None)
        for kind in () if files is None else files.kinds:
            if kind not in names:
                raise TemplateError(
                    f"the files in {kind!r:.80} need a place in the prompt: write {{{kind}}}, with single "
                    "braces"
                )
        for _, name, spec in parts:
            if spec and name is not None and files is not None and name in files:
                raise TemplateError(f"{{{name}:{spec}}} has a format, but {name!r} contains files")
        return cls(list(names), parts, allows_blanks, files)

    def fill(self, row: Mapping[str, Any]) -> Filled:
        """Insert strings unchanged, other values as JSON, fields with a format in that format, and files in
        their place.
        """
        files = self._files
        if not self._allows_blanks:
            check_present(
                self.fields if files is None else [name for name in self.fields if name not in files], row
            )
        pieces: list[str | Media] = []
        for literal, name, spec in self._parts:
            pieces.append(literal)
            if name is not None and files is not None and name in files:
                pieces += files.read(name, row.get(name))
                continue
            if name is None or is_missing(value := row.get(name)) or value == "":
                continue
            check_is_text(name, value)
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
        return _joined(pieces)


def _joined(pieces: list[str | Media]) -> Filled:
    """Join the text between files. Blank text next to a file is left out, because no provider accepts it."""
    if not any(isinstance(piece, Media) for piece in pieces):
        return "".join(map(str, pieces))
    joined: list[str | Media] = []
    for piece in pieces:
        if joined and isinstance(piece, str) and isinstance(before := joined[-1], str):
            joined[-1] = before + piece
        else:
            joined.append(piece)
    return [piece for piece in joined if not isinstance(piece, str) or piece.strip()]


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
