"""From a row to its prompt and its id: the template, the named field, or what the row plainly means."""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeGuard

from attrs import asdict, frozen

from smartbatch.cli.inputs import Row
from smartbatch.errors import InputError, SmartbatchError
from smartbatch.types import Generation

__all__ = ["BadField", "Keys", "PromptMaker", "parse_template"]

_NAMED_AT_MOST: Final = 12
"""Field names listed in an error."""

Part: TypeAlias = "tuple[str, str | None]"
"""Literal text, then the field that follows it."""


class BadField(SmartbatchError, ValueError):
    """A row lacks what its prompt or id is made of; the text names the field, never its content."""


def parse_template(template: str) -> tuple[Part, ...]:
    """Cut a ``str.format``-like template into literals and plain field names.

    Attribute access, indexing, conversions and format specifications are refused: a template picks fields,
    it does not run code. ``{{`` and ``}}`` stand for braces.

    Raises:
        InputError: the template cannot be used; the text says where.
    """
    hint = "write {field} for a field, {{ and }} for braces"
    try:
        pieces = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InputError(f"--template: {error}; {hint}") from error
    for _, name, spec, conversion in pieces:
        if name is None:
            continue
        if not name or spec or conversion or any(c in name for c in ".[]{}"):
            written = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            raise InputError(f"--template: {{{written}}} is not a plain field name; {hint}")
    if all(name is None for _, name, _, _ in pieces):
        raise InputError(f"--template names no field, so every row would ask the same; {hint}")
    return tuple((literal, name) for literal, name, _, _ in pieces)


class PromptMaker:
    """Makes the prompt and the id of a row.

    Args:
        template: text with ``{field}`` placeholders.
        prompt_field: the field that is the prompt (a text or a list of chat messages). Without either, the
            field ``prompt``, else ``messages``, else the only text field.
        id_field: the field that is the row's id; else the field ``id`` where there is one, else the index.
    """

    def __init__(
        self, *, template: str | None = None, prompt_field: str | None = None, id_field: str | None = None
    ) -> None:
        self._id_field = id_field
        self._prompt_of: Callable[[Mapping[str, Any]], Any] = _plain_meaning
        if template is not None:
            parts = parse_template(template)
            self._prompt_of = lambda fields: _render(parts, fields)
        elif prompt_field is not None:
            name = prompt_field
            self._prompt_of = lambda fields: _field(fields, name)

    def prompt(self, row: Row) -> Any:
        """Return the prompt, not validated yet: a text, a list of messages, or something wrong.

        Raises:
            BadField: a field is missing or null.
        """
        return self._prompt_of(row.fields)

    def id(self, row: Row) -> str | int:
        """Return the row's id.

        Raises:
            BadField: the field named for it is missing or neither a text nor a whole number.
        """
        if self._id_field is None:
            value = row.fields.get("id")
            return value if _fit_for_id(value) else row.index
        value = _field(row.fields, self._id_field)
        if not _fit_for_id(value):
            raise BadField(f"field {self._id_field!r}: an id must be a text or a whole number")
        return value


def _fit_for_id(value: Any) -> TypeGuard[str | int]:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _field(fields: Mapping[str, Any], name: str) -> Any:
    try:
        value = fields[name]
    except KeyError:
        raise BadField(f"no field {name!r}; {_names(fields)}") from None
    if value is None:
        raise BadField(f"field {name!r} is null")
    return value


def _names(fields: Mapping[str, Any]) -> str:
    listed = ", ".join(repr(name) for name in list(fields)[:_NAMED_AT_MOST])
    more = ", …" if len(fields) > _NAMED_AT_MOST else ""
    return f"the row has {listed}{more}" if fields else "the row has no fields"


def _render(parts: tuple[Part, ...], fields: Mapping[str, Any]) -> str:
    pieces: list[str] = []
    for literal, name in parts:
        pieces.append(literal)
        if name is not None:
            value = _field(fields, name)
            pieces.append(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return "".join(pieces)


def _plain_meaning(fields: Mapping[str, Any]) -> Any:
    for name in ("prompt", "messages"):
        if name in fields:
            return _field(fields, name)
    texts = [name for name, value in fields.items() if isinstance(value, str) and name != "id"]
    if len(texts) == 1:
        return fields[texts[0]]
    raise BadField(
        f"cannot tell which field is the prompt; {_names(fields)}; say --prompt-field or --template"
    )


@frozen
class Keys:
    """Digests that tie a row of an output to what was asked: 8 hex digits for model and parameters, 8 for
    the prompt. Two halves, so that a mismatch can say which of the two is different.

    Attributes:
        settings: 32 bits over model, system and parameters.
    """

    settings: int

    @classmethod
    def of(cls, model: str, params: Generation) -> Keys:
        sent = {name: value for name, value in asdict(params).items() if value is not None}
        return cls(_digest(_canonical({"model": model, "params": sent})))

    def key(self, prompt: Any) -> int:
        """Return the 64 bits that identify ``prompt`` under these settings."""
        data = prompt.encode("utf-8", "surrogatepass") if isinstance(prompt, str) else _canonical(prompt)
        return self.settings << 32 | _digest(data)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=4).digest())
