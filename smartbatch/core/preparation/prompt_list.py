"""What is a list of prompts, and what is not: told before anything is read, so nothing is sent by mistake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, NoReturn, Self, cast

from attrs import frozen

from smartbatch.errors import InvalidRequest
from smartbatch.tables.kinds import TableKind, is_arrow_column, is_row_stream, kind_of_table
from smartbatch.tables.row_prompts import ON_MISSING, MissingFields, RowPrompts, SkippedRow
from smartbatch.tables.template import BadField, TemplateError, listed
from smartbatch.types import Message, OnMissing, Prompts, Request

_TABLE_MARKS = ("__dataframe__", "columns", "column_names")
"""What DataFrames, Arrow tables and datasets have and a single column has not."""

_SHOWN_ROWS = 10
"""Numbers of rows in one error."""
_WAY_OUT = "on_missing='skip' skips such rows, on_missing='empty' leaves the fields empty"


def prompt_list(
    prompts: Prompts,
    *,
    template: str | None = None,
    column: str | None = None,
    on_missing: OnMissing | None = None,
) -> Iterable[Any]:
    """Return prompts fit to be read: a sequence where their number is known, anything else as it is.

    A column of a table, an array and any other collection that has an order is read whole; an iterator, a
    generator and whatever has no length are left to be read lazily. Of a table that comes in parts, one is
    held at a time.

    Args:
        prompts: also a table or rows, that is mappings, if one of the following is given.
        template: text with ``{column}`` placeholders, filled from each row.
        column: whose values are the prompts.
        on_missing: what happens to a row in which a field of its prompt is absent, null or blank: ``"error"``
            (the default) refuses it, ``"skip"`` has a :class:`SkippedRow` in its place, ``"empty"`` leaves
            the field empty.

    Raises:
        InvalidRequest: for what can be iterated, but not prompt by prompt. The cases, in order:

            1. A single prompt (text, message, mapping or request): a text would be asked letter by letter;
               or a mapping of tables.
            2. A table without a template or column: iterating it gives the names of its columns, or chunks.
            3. Bytes: iterating them gives numbers.
            4. A set: it has no order, so nobody could tell which answer belongs to which prompt.
            5. What cannot be iterated.
            6. A template or column for what has no rows, or that names what the rows have not.
    """
    if template is None and column is None:
        if on_missing is not None:
            raise InvalidRequest("on_missing needs a template or a column", field="on_missing")
        return _in_order(prompts)
    maker = _TablePrompts.of(template, column, on_missing or "error")
    if (kind := kind_of_table(prompts)) is not None:
        return maker.all_prompts(_rows_of(kind, prompts, maker))
    if is_row_stream(prompts):
        return maker.prompts(cast("Iterable[Any]", prompts))
    rows = _in_order(prompts)
    unchunked = _unchunked(rows, maker)
    return maker.all_prompts(unchunked) if isinstance(rows, Sequence) else maker.prompts(unchunked)


@frozen
class _TablePrompts:
    """Makes the prompts of the rows of a table.

    Attributes:
        rows: makes the prompt of a row.
        argument: which was given, ``template`` or ``column``.
    """

    rows: RowPrompts
    argument: str

    @classmethod
    def of(cls, template: str | None, column: str | None, on_missing: OnMissing) -> Self:
        if template is not None and column is not None:
            raise InvalidRequest("template and column cannot both be given", field="template")
        argument = "column" if template is None else "template"
        if on_missing not in ON_MISSING:
            known = ", ".join(map(repr, ON_MISSING))
            raise InvalidRequest(f"on_missing must be one of {known}", field="on_missing")
        try:
            return cls(RowPrompts.of(template, column, on_missing), argument)
        except TemplateError as error:
            raise InvalidRequest(f"template: {error.message}", field=argument) from error

    def prompts(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Yield the prompts of rows; the first one that cannot be used is refused."""
        for number, row in enumerate(rows):
            try:
                yield self._prompt(number, row)
            except MissingFields as error:
                raise self._refusal(number, f"{error.message}; {_WAY_OUT}") from error

    def all_prompts(self, rows: Iterable[Any]) -> list[Any]:
        """Return the prompts of all rows; those that lack a field are counted before they are refused."""
        made: list[Any] = []
        lacking: dict[int, MissingFields] = {}
        absent = set(self.rows.fields)
        for number, row in enumerate(rows):
            try:
                made.append(self._prompt(number, row))
            except MissingFields as error:
                made.append(None)
                lacking[number] = error
            absent.difference_update(row)
        if made and absent:
            raise self._refusal(0, f"no field {min(absent)!r}, and no other row has it")
        if lacking:
            first, missing = next(iter(lacking.items()))
            rows = ", ".join(map(str, list(lacking)[:_SHOWN_ROWS]))
            rows += ", …" if len(lacking) > _SHOWN_ROWS else ""
            count = f"{len(lacking):,} of {len(made):,} rows lack a field of their prompts"
            raise self._refusal(first, f"{missing.message}; {count} (rows {rows}); {_WAY_OUT}")
        return made

    def _prompt(self, number: int, row: Any) -> Any:
        if not isinstance(row, Mapping):
            _refuse(
                f"must be a table, or mappings such as {{{self.rows.fields[0]!r}: …}}, with a "
                f"{self.argument}: row {number} is {type(row).__name__}"
            )
        try:
            return self.rows.prompt(row)
        except MissingFields as error:
            if self.rows.on_missing != "skip":
                raise
            return SkippedRow(error.reason)
        except BadField as error:
            raise self._refusal(number, error.message) from error

    def _refusal(self, number: int, message: str) -> InvalidRequest:
        return InvalidRequest(f"row {number} (counted from 0): {message}", field=self.argument, row=number)


def _rows_of(kind: TableKind, table: Any, maker: _TablePrompts) -> Iterator[dict[str, Any]]:
    """Return the rows of a table, with the columns that are needed."""
    names = kind.columns(table)
    for name in maker.rows.fields:
        if (found := names.count(name)) != 1:
            raise InvalidRequest(
                f"{maker.argument} names {name!r}, of which the table has {found or 'none'}; its columns are "
                f"{listed(names)}",
                field=maker.argument,
            )
    columns = [kind.values(table, names.index(name)) for name in maker.rows.fields]
    return (dict(zip(maker.rows.fields, row, strict=True)) for row in zip(*columns, strict=True))


def _unchunked(rows: Iterable[Any], maker: _TablePrompts) -> Iterator[Any]:
    """Return rows; those of a table in parts, such as the batches of a large file, part by part."""
    for row in rows:
        kind = None if isinstance(row, Mapping) else kind_of_table(row)
        yield from (row,) if kind is None else _rows_of(kind, row, maker)


def _in_order(prompts: Any) -> Iterable[Any]:
    """Return prompts, or rows, that can be read one by one; the cases 1 to 5."""
    if isinstance(prompts, Sequence) and not isinstance(prompts, str | bytes | bytearray):
        return prompts
    kind = type(prompts).__name__
    if isinstance(prompts, Mapping) and any(map(_is_table, prompts.values())):
        _refuse(f"is several tables ({kind}), {listed(prompts)}: give one of them")
    if isinstance(prompts, str | Mapping | Message | Request):
        _refuse(f"must be a list of prompts, not a single one ({kind}): put it into a list, or use submit()")
    if (table := kind_of_table(prompts)) is not None or is_row_stream(prompts):
        # A stream of rows may know its columns only when it is read.
        names = cast("Any", prompts).column_names or () if table is None else table.columns(prompts)
        _refuse(
            f"is a table ({kind}) with the columns {listed(names)}: say which one has the prompts, as "
            "column='text', or make them of several, as template='… {title} … {text} …'"
        )
    if any(_has(prompts, mark) for mark in _TABLE_MARKS):
        way = "collect it first" if _has(prompts, "collect") else "make it one of pandas, Polars or Arrow"
        _refuse(
            f"is a table ({kind}) of a kind that is not read: {way}, or give one column, such as "
            "table['text'], or a list with a text made of each row"
        )
    if isinstance(prompts, bytes | bytearray | memoryview):
        _refuse(f"must be a list of prompts, not {kind}: decode it, and split it into a list of texts")
    if isinstance(prompts, set | frozenset):
        _refuse(
            f"is a {kind}, which has no order to tell the results by: give a list, such as sorted(prompts)"
        )
    if not isinstance(prompts, Iterable):
        _refuse(f"must be a list of prompts, not {kind}")
    if is_arrow_column(prompts):
        values: list[Any] = cast("Any", prompts).to_pylist()
        return values
    return list(prompts) if isinstance(prompts, Sized) else prompts


def _is_table(value: object) -> bool:
    return is_row_stream(value) or kind_of_table(value) is not None


def _has(value: Any, name: str) -> bool:
    """Whether the class of a value has an attribute; a property of a lazy table is not run."""
    return hasattr(type(value), name) or name in getattr(value, "__dict__", ())


def _refuse(problem: str) -> NoReturn:
    raise InvalidRequest(f"prompts {problem}", field="prompts")
