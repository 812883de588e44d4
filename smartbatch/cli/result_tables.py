"""Results as CSV or Parquet: written from lines of results, and read back into such lines.

A table has the fields of the input first, under their own names, then the answers. An answer whose name the
input has already is called ``result_…``. Lines are read twice, once to find the columns, in constant memory.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, Final, TypeAlias

from attrs import define, field

from smartbatch.cli.optional import missing
from smartbatch.cli.row_formats import READERS, BadRow
from smartbatch.errors import InputError
from smartbatch.tables.answers import parsed_columns, renamed
from smartbatch.tables.columns import NONE, Columns, Shape, arrow_type, joined, shape_of_value, to_arrow
from smartbatch.tables.template import text_of

Line: TypeAlias = "dict[str, Any]"
"""A line of results, decoded. One that was read out of a table has ``answers`` in place of their fields."""

FORMATS: Final = {".csv": "csv", ".parquet": "parquet"}
"""The formats of tables by the endings of their names."""

_TEXT, _WHOLE, _NUMBER = Shape("text"), Shape("int"), Shape("float")
_FIRST: Final = {"id": NONE, "model": _TEXT, "text": _TEXT}
"""The first columns of the answers; where there are parsed objects, their fields come next. The shape of an
id is that of the ids."""
_LAST: Final = {
    "finish_reason": _TEXT,
    "input_tokens": _WHOLE,
    "output_tokens": _WHOLE,
    "cached_tokens": _WHOLE,
    "reasoning_tokens": _WHOLE,
    "cache_write_tokens": _WHOLE,
    "cache_write_1h_tokens": _WHOLE,
    "cost": _NUMBER,
    "latency": _NUMBER,
    "attempts": _WHOLE,
    "dropped": _TEXT,
    "error_kind": _TEXT,
    "error": _TEXT,
    "index": _WHOLE,
    "key": _TEXT,
}
_FIXED: Final = frozenset(_FIRST) | frozenset(_LAST)
_PREFIX: Final = "result_"
_GROUP: Final = 10_000
"""Rows that are held, and make a group, as a Parquet file is written."""


def table_format(path: str) -> str | None:
    """Return the format that a file's name asks for; ``None`` where it is no table."""
    return FORMATS.get(os.path.splitext(path)[1].lower())


def check_format(path: str) -> None:
    """Refuse what cannot be written here.

    Raises:
        InputError: a library is missing.
    """
    if table_format(path) == "parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise missing("pyarrow", "arrow", "writing Parquet") from error


# -- writing -------------------------------------------------------------------------------------------------


@define
class _Columns:
    """The columns of lines with their shapes: those of the input, and those of the answers."""

    input: dict[str, Shape] = field(factory=dict)
    parsed: dict[str, Shape] = field(factory=dict)
    ids: Shape = NONE
    keyed: bool = False

    @classmethod
    def of(cls, lines: Iterable[Line]) -> _Columns:
        found = cls()
        for line in lines:
            answers = answers_of(line)
            found.ids = joined(found.ids, shape_of_value(answers.get("id")))
            found.keyed = found.keyed or "key" in line
            _join(found.input, line.get("input") or {})
            _join(found.parsed, {name: answers[name] for name in answers if name not in _FIXED})
        return found

    def shapes(self) -> dict[str, Shape]:
        """Return the shapes of the answers' columns, in order."""
        last = _LAST if self.keyed else {name: shape for name, shape in _LAST.items() if name != "key"}
        return {**_FIRST, "id": self.ids, **self.parsed, **last}


def _join(shapes: dict[str, Shape], fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        shapes[name] = joined(shapes.get(name, NONE), shape_of_value(value))


def answers_of(line: Line) -> dict[str, Any]:
    """Return the columns of a line's answer by their own names."""
    error = line["error"] or {}
    own = {"error_kind": error.get("kind"), "error": error.get("message"), "index": line["index"]}
    if "key" in line:
        own["key"] = line["key"]
    if "answers" in line:
        return {**line["answers"], **own}
    plain = ("id", "model", "text", "finish_reason", "cost", "latency", "attempts")
    answers = {name: line.get(name) for name in plain}
    answers |= line["usage"]
    answers["dropped"] = text_of(line["dropped"]) if line["dropped"] else None
    more: Columns = {name: [line[name]] for name in ("embedding", "context") if name in line}
    more |= parsed_columns([line.get("parsed")])
    answers |= {name: values[0] for name, values in renamed(more, "parsed_", _FIXED).items()}
    return answers | own


def write_table(format: str, lines: Callable[[], Iterator[Line]], target: IO[bytes]) -> None:
    """Write lines as a table.

    Args:
        format: ``csv`` or ``parquet``.
        lines: yields them from the first on; called twice.

    Raises:
        OSError: the disk takes no more.
    """
    columns = _Columns.of(lines())
    shapes = columns.shapes()
    names = list(renamed({name: [] for name in shapes}, _PREFIX, columns.input))
    whole = {**columns.input, **dict(zip(names, shapes.values(), strict=True))}

    def cells(line: Line) -> list[Any]:
        fields, answers = line.get("input") or {}, answers_of(line)
        return [fields.get(name) for name in columns.input] + [answers.get(name) for name in shapes]

    rows = map(cells, lines())
    if format == "csv":
        _write_csv(list(whole), rows, target)
    else:
        _write_parquet(whole, rows, target)


def _write_csv(names: Sequence[str], rows: Iterable[list[Any]], target: IO[bytes]) -> None:
    # A lone surrogate, which a JSON input may have, has no place in UTF-8.
    text = io.TextIOWrapper(target, encoding="utf-8", errors="replace", newline="", write_through=True)
    try:
        plain = csv.writer(text, lineterminator="\n")
        quoted = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
        for row in itertools.chain([names], rows):
            cells = ["" if cell is None else text_of(cell) for cell in row]
            # A carriage return ends a line too, and the writer does not see it.
            (quoted if any("\r" in cell for cell in cells) else plain).writerow(cells)
    finally:
        text.detach()


def _write_parquet(shapes: Mapping[str, Shape], rows: Iterator[list[Any]], target: IO[bytes]) -> None:
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema([(name, arrow_type(shape)) for name, shape in shapes.items()])
    with pyarrow.parquet.ParquetWriter(target, schema) as writer:
        while group := list(itertools.islice(rows, _GROUP)):
            columns = {name: [row[at] for row in group] for at, name in enumerate(shapes)}
            writer.write_table(to_arrow(columns, shapes))


# -- reading -------------------------------------------------------------------------------------------------


def read_table(format: str, file: IO[bytes], shown: str) -> Iterator[Line]:
    """Yield the lines of results that a table was written from.

    Args:
        shown: the name of the file, for errors.

    Raises:
        InputError: it was not written by a run, which writes at least one row, or is damaged.
    """
    known: tuple[str, ...] = ()
    begin = 0
    for row in READERS[format](file):
        if isinstance(row, BadRow):
            raise InputError(f"{shown}: line {row.line}: {row.message}; mend or remove the file")
        number, fields = row
        if known != (known := tuple(fields)):
            begin = _first_answer(known, shown)
        yield _line(fields, begin, number, shown)
    if not known:
        raise _foreign(shown)


def _first_answer(names: tuple[str, ...], shown: str) -> int:
    """Return the place of the first column that is no input."""
    bases = [_base(name) for name in names]
    after = len(names) - len(_LAST)
    if bases[max(after, 0) :] == list(_LAST):
        for place in range(after - len(_FIRST), -1, -1):
            if bases[place : place + len(_FIRST)] == list(_FIRST):
                return place
    raise _foreign(shown)


def _foreign(shown: str) -> InputError:
    return InputError(f"{shown}: was not written by smartbatch run; choose another -o, or remove the file")


def _base(name: str) -> str:
    while name.startswith(_PREFIX):
        name = name.removeprefix(_PREFIX)
    return name


def _line(fields: Mapping[str, Any], begin: int, number: int, shown: str) -> Line:
    names = list(fields)
    own = {name: fields[name] for name in names[:begin]}
    parsed = slice(begin + len(_FIRST), len(names) - len(_LAST))
    answers = dict(zip(_FIRST, map(fields.__getitem__, names[begin:]), strict=False))
    for name in names[parsed]:
        base = name.removeprefix(_PREFIX)
        answers[base if base in own and base not in _FIXED else name] = fields[name]
    answers |= dict(zip(_LAST, map(fields.__getitem__, names[parsed.stop :]), strict=True))
    try:
        index = int(answers.pop("index"))
    except (TypeError, ValueError):
        raise InputError(f"{shown}: line {number} has no index; mend or remove the file") from None
    error = {"kind": answers.pop("error_kind"), "message": answers.pop("error")}
    key = answers.pop("key")
    return {
        "index": index,
        "input": own,
        "model": answers["model"],
        "answers": answers,
        "error": error if error["kind"] else None,
        "key": key,
    }
