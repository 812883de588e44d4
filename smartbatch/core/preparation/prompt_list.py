"""What is a list of prompts, and what is not: told before anything is read, so nothing is sent by mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, NoReturn, Self, cast

from attrs import frozen

from smartbatch._values import Value
from smartbatch.errors import InvalidRequest
from smartbatch.tables.kinds import TableKind, is_arrow_column, is_row_stream, kind_of_table
from smartbatch.tables.template import BadField, TemplateError, field, fields_of, fill, listed, parse_template
from smartbatch.types import Message, Prompt, Prompts, Request

_TABLE_MARKS = ("__dataframe__", "columns", "column_names")
"""What DataFrames, Arrow tables and datasets have and a single column has not."""


def prompt_list(
    prompts: Prompts, *, template: str | None = None, column: str | None = None
) -> Iterable[Prompt]:
    """Return prompts fit to be read: a sequence where their number is known, anything else as it is.

    A column of a table, an array and any other collection that has an order is read whole; an iterator, a
    generator and whatever has no length are left to be read lazily. Of a table that comes in parts, one is
    held at a time.

    Args:
        prompts: also a table or rows, that is mappings, if one of the following is given.
        template: text with ``{column}`` placeholders, filled from each row.
        column: whose values are the prompts.

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
        return _in_order(prompts)
    maker = _PromptMaker.of(template, column)
    if (kind := kind_of_table(prompts)) is not None:
        return list(maker.prompts(_rows_of(kind, prompts, maker)))
    if is_row_stream(prompts):
        return maker.prompts(cast("Iterable[Any]", prompts))
    rows = _in_order(prompts)
    made = maker.prompts(_unchunked(rows, maker))
    return list(made) if isinstance(rows, Sequence) else made


@frozen(eq=False, repr=False)
class _PromptMaker(Value):
    """Makes the prompt of a row.

    Attributes:
        fields: the names that it needs.
        argument: which was given, ``template`` or ``column``.
        make: the prompt of a row.
    """

    fields: list[str]
    argument: str
    make: Callable[[Mapping[str, Any]], Any]

    @classmethod
    def of(cls, template: str | None, column: str | None) -> Self:
        if template is None:
            name = column or ""
            return cls([name], "column", lambda row: field(row, name))
        if column is not None:
            raise InvalidRequest("template and column cannot both be given", field="template")
        try:
            parts = parse_template(template)
        except TemplateError as error:
            raise InvalidRequest(f"template: {error.message}", field="template") from error
        return cls(fields_of(parts), "template", lambda row: fill(parts, row))

    def prompts(self, rows: Iterable[Any]) -> Iterator[Any]:
        for number, row in enumerate(rows):
            if not isinstance(row, Mapping):
                _refuse(
                    f"must be a table, or mappings such as {{{self.fields[0]!r}: …}}, with a "
                    f"{self.argument}: row {number} is {type(row).__name__}"
                )
            try:
                yield self.make(row)
            except BadField as error:
                raise InvalidRequest(f"row {number}: {error.message}", field=self.argument) from error


def _rows_of(kind: TableKind, table: Any, maker: _PromptMaker) -> Iterator[dict[str, Any]]:
    """Return the rows of a table, with the columns that are needed."""
    names = kind.columns(table)
    for name in maker.fields:
        if (found := names.count(name)) != 1:
            raise InvalidRequest(
                f"{maker.argument} names {name!r}, of which the table has {found or 'none'}; its columns are "
                f"{listed(names)}",
                field=maker.argument,
            )
    columns = [kind.values(table, names.index(name)) for name in maker.fields]
    return (dict(zip(maker.fields, row, strict=True)) for row in zip(*columns, strict=True))


def _unchunked(rows: Iterable[Any], maker: _PromptMaker) -> Iterator[Any]:
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
