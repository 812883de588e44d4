"""Writes results as JSON lines, CSV or Parquet.

A table has the fields of the input under their own names, followed by the answers. An answer
column with the same name as an input field is called ``result_…``. Lines are read twice, in constant memory;
the first pass finds the columns.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import IO, Any, Final, Literal, Protocol, TypeAlias

from attrs import define, field, fields_dict

from smartbatch.chats import PART_FORMS
from smartbatch.errors import SmartbatchError, kind_name
from smartbatch.media import Media
from smartbatch.tables.answer_columns import parsed_columns, renamed
from smartbatch.tables.cells import text_of
from smartbatch.tables.columns import (
    NONE,
    VECTOR,
    Columns,
    Shape,
    arrow_type,
    column_name,
    joined,
    shape_of_value,
    to_arrow,
)
from smartbatch.types import Result, Usage

Line: TypeAlias = "dict[str, Any]"
"""A line of results. If it was read from a table, ``answers`` contains the answer columns."""

_TEXT, _WHOLE, _NUMBER = Shape("text"), Shape("int"), Shape("float")
FIRST_COLUMNS: Final = {"id": NONE, "model": _TEXT, "text": _TEXT}
"""The first answer columns, before the fields of parsed objects. The type of ``id`` depends on the ids."""
LAST_COLUMNS: Final = {
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
FIXED_COLUMNS: Final = frozenset(FIRST_COLUMNS) | frozenset(LAST_COLUMNS)
RESULT_PREFIX: Final = "result_"
_PLACE: Final = ("row", "sample")
OTHER_COLUMNS: Final = (*_PLACE, "embedding", *PART_FORMS, "files", "context")  # only if a line has them

_TOKENS: Final = tuple(name for name in fields_dict(Usage) if name in LAST_COLUMNS)
_ONLY_IF_USED: Final = tuple(name for name in fields_dict(Usage) if name not in LAST_COLUMNS)
_tokens_of: Final = attrgetter(*_TOKENS)
_encode: Final = json.JSONEncoder(allow_nan=False).encode
CsvFormulas: TypeAlias = Literal["escape", "keep"]
"""Whether CSV cells that begin like a formula get a leading quote."""
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")
_NUMBER_CELL: Final = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_GROUP_ROWS: Final = 10_000  # rows per Parquet row group; a group is in memory while it is written


# -- lines ---------------------------------------------------------------------------------------------------


class StoredPages(Protocol):
    """The methods of a job that are needed to read its results."""

    model: str

    def stored(self, *, after: int | None = None) -> Sequence[Any]:
        """Return a page of results, each with its ``index``."""
        ...


WriteFiles: TypeAlias = Callable[[str, Sequence[Media]], list[str]]
"""Writes the files of the answer with a name, and returns their paths."""


def paths_in_store(_: str, files: Sequence[Media]) -> list[str]:
    """Return the paths at which a job keeps the files of an answer."""
    return [file.source for file in files if isinstance(file.source, str)]


def stored_lines(job: StoredPages, write_files: WriteFiles = paths_in_store) -> Iterator[bytes]:
    """Yield the lines of a job's stored results, in order and in constant memory."""
    last = -1
    while page := job.stored(after=last):
        for stored in page:
            last = stored.index
            yield encode_result(stored.index, stored.result, job.model, write_files)


def encode_result(index: int, result: Result, model: str, write_files: WriteFiles = paths_in_store) -> bytes:
    """Return the line of a job's result; ``index`` is the zero-based position of its request. With several
    answers per prompt, the line also has the prompt's ``row`` and the ``sample`` number.
    """
    place = {name: value for name in _PLACE if (value := getattr(result, name)) is not None}
    line: dict[str, Any] = {
        "index": index,
        "id": result.request_id,
        **place,
        **outcome_fields(result, model),
    }
    if result.files:
        line["files"] = write_files(str(result.request_id), result.files)
    if result.context is not None:
        line["context"] = result.context
    return to_line(line)


def outcome_fields(result: Result, model: str) -> dict[str, Any]:
    line: dict[str, Any] = {"model": result.model or model, "text": result.text}
    if result.parsed is not None:
        line["parsed"] = result.parsed
    line["finish_reason"] = result.finish_reason
    line["usage"] = _usage_fields(result.usage)
    line["cost"] = result.cost
    line["latency"] = round(result.latency, 6)
    line["attempts"] = result.attempts
    line["dropped"] = dict(result.dropped)
    line["error"] = None
    if result.error is not None:
        line["error"] = {"kind": kind_name(result.error), "message": result.error.message}
    if result.embedding is not None:
        line["embedding"] = list(result.embedding)
    for name, (write, _) in PART_FORMS.items():
        if value := getattr(result, name):
            line[name] = write(value)
    return line


def _usage_fields(usage: Usage) -> dict[str, Any]:
    """Return a line's token counts, ``null`` if none is known, those of audio and images, and marks for
    estimated and unknown ones.
    """
    tokens: dict[str, Any] = dict(zip(_TOKENS, _tokens_of(usage), strict=True))
    if usage.unknown and not usage.total_tokens:
        tokens = dict.fromkeys(_TOKENS)
    return tokens | {name: value for name in _ONLY_IF_USED if (value := getattr(usage, name))}


def to_line(line: dict[str, Any]) -> bytes:
    try:
        return _encode(line).encode("ascii") + b"\n"
    except (TypeError, ValueError, RecursionError):
        # Only values from a provider can fail here, and the line contains the text of the answer anyway.
        for name in ("parsed", "extra"):
            line.pop(name, None)
        return _encode(line).encode("ascii") + b"\n"


def write_stored(
    format: str,
    job: StoredPages,
    target: IO[bytes],
    *,
    formulas: CsvFormulas = "keep",
    write_files: WriteFiles = paths_in_store,
) -> None:
    """Write the stored results of a job as a table, using a temporary file for their lines.

    Args:
        format: ``csv`` or ``parquet``.
        formulas: see :func:`write_table`.

    Raises:
        OSError, UnwritableTable: see :func:`write_table`.
    """
    with tempfile.TemporaryFile(prefix="smartbatch-") as kept:
        kept.writelines(stored_lines(job, write_files))

        def read() -> Iterator[Line]:
            kept.seek(0)
            return map(json.loads, kept)

        write_table(format, read, target, formulas=formulas)


# -- tables --------------------------------------------------------------------------------------------------


class UnwritableTable(SmartbatchError):
    """The format cannot represent the values of the lines."""


@define
class _Columns:
    input: dict[str, Shape] = field(factory=dict)
    parsed: dict[str, Shape] = field(factory=dict)
    ids: Shape = NONE
    keyed: bool = False

    @classmethod
    def of(cls, lines: Iterable[Line]) -> _Columns:
        found = cls()
        for line in lines:
            answers = answers_of(line)
            if isinstance(vector := answers.get("embedding"), list):
                answers["embedding"] = _vector(vector, certain="embedding" in line)
            found.ids = joined(found.ids, shape_of_value(answers.get("id")))
            found.keyed = found.keyed or "key" in line
            _join(found.input, _input_of(line))
            _join(found.parsed, {name: answers[name] for name in answers if name not in FIXED_COLUMNS})
        return found

    def shapes(self) -> dict[str, Shape]:
        last = (
            LAST_COLUMNS
            if self.keyed
            else {name: shape for name, shape in LAST_COLUMNS.items() if name != "key"}
        )
        return {**FIRST_COLUMNS, "id": self.ids, **self.parsed, **last}


def _vector(numbers: list[Any], *, certain: bool) -> Any:
    """Convert a list back to the 32-bit vector that it was before it was written as JSON.

    Args:
        certain: whether the list is known to have been a vector; if not, it is converted only if its
            numbers fit into 32 bits.
    """
    if certain:
        return array("f")
    if not all(type(number) is float for number in numbers):
        return numbers
    vector = array("f", numbers)
    return vector if vector.tolist() == numbers else numbers


def _join(shapes: dict[str, Shape], fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        shapes[name] = joined(shapes.get(name, NONE), shape_of_value(value))


def _input_of(line: Line) -> dict[str, Any]:
    return {column_name(name): value for name, value in (line.get("input") or {}).items()}


def answers_of(line: Line) -> dict[str, Any]:
    error = line["error"] or {}
    own = {"error_kind": error.get("kind"), "error": error.get("message"), "index": line["index"]}
    if "key" in line:
        own["key"] = line["key"]
    if "answers" in line:
        return {**line["answers"], **own}
    plain = ("id", "model", "text", "finish_reason", "cost", "latency", "attempts")
    answers = {name: line.get(name) for name in plain}
    answers |= {name: line["usage"].get(name) for name in _TOKENS}
    answers["dropped"] = text_of(line["dropped"]) if line["dropped"] else None
    more: Columns = {name: [line[name]] for name in OTHER_COLUMNS if name in line}
    more |= renamed(parsed_columns([line.get("parsed")]), "parsed_", _PLACE)
    answers |= {name: values[0] for name, values in renamed(more, "parsed_", FIXED_COLUMNS).items()}
    return answers | own


def write_table(
    format: str,
    lines: Callable[[], Iterator[Line]],
    target: IO[bytes],
    *,
    formulas: CsvFormulas = "keep",
) -> None:
    """Write lines as a table.

    Args:
        format: ``csv`` or ``parquet``.
        lines: yields all lines; called twice.
        formulas: whether to escape CSV cells that a spreadsheet would read as formulas.

    Raises:
        OSError: the disk is full.
        UnwritableTable: the format does not accept the values.
    """
    columns = _Columns.of(lines())
    shapes = columns.shapes()
    names = list(renamed({name: [] for name in shapes}, RESULT_PREFIX, columns.input))
    whole = {**columns.input, **dict(zip(names, shapes.values(), strict=True))}

    def cells(line: Line) -> list[Any]:
        fields, answers = _input_of(line), answers_of(line)
        return [fields.get(name) for name in columns.input] + [answers.get(name) for name in shapes]

    rows = map(cells, lines())
    if format == "csv":
        _write_csv(list(whole), rows, target, _escaped if formulas == "escape" else str)
    else:
        _write_parquet(whole, rows, target)


def _escaped(cell: str) -> str:
    """Return a cell that no spreadsheet reads as a formula. Numbers stay unchanged."""
    if not cell.startswith(_FORMULA_STARTS) or _NUMBER_CELL.fullmatch(cell) is not None:
        return cell
    return f"'{cell}"


def _write_csv(
    names: Sequence[str], rows: Iterable[list[Any]], target: IO[bytes], shown: Callable[[str], str]
) -> None:
    # A JSON input may contain lone surrogates, which UTF-8 cannot represent.
    text = io.TextIOWrapper(target, encoding="utf-8", errors="replace", newline="", write_through=True)
    try:
        plain = csv.writer(text, lineterminator="\n")
        quoted = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
        for row in itertools.chain([names], rows):
            cells = ["" if cell is None else shown(text_of(cell)) for cell in row]
            # A carriage return also ends a line, but the writer does not quote it.
            (quoted if any("\r" in cell for cell in cells) else plain).writerow(cells)
    finally:
        text.detach()


def _write_parquet(shapes: Mapping[str, Shape], rows: Iterator[list[Any]], target: IO[bytes]) -> None:
    import pyarrow
    import pyarrow.parquet

    vectors = [at for at, shape in enumerate(shapes.values()) if shape == VECTOR]

    def packed(row: list[Any]) -> list[Any]:
        """Pack vectors into 4 bytes per number instead of 32, because many rows are in memory."""
        for at in vectors:
            row[at] = None if row[at] is None else array("f", row[at])
        return row

    try:
        schema = pyarrow.schema([(name, arrow_type(shape)) for name, shape in shapes.items()])
        with pyarrow.parquet.ParquetWriter(target, schema) as writer:
            while group := list(map(packed, itertools.islice(rows, _GROUP_ROWS))):
                columns = {name: [row[at] for row in group] for at, name in enumerate(shapes)}
                writer.write_table(to_arrow(columns, shapes))
    except (pyarrow.ArrowException, UnicodeEncodeError) as error:
        raise UnwritableTable(str(error)) from error
