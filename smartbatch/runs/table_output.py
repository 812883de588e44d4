"""The output of a run as a table, in CSV or Parquet, and the reader of such tables.

A table that is written row by row does not survive a kill. So during a run, the output is a file of JSON
lines next to the table; at the end, the whole table is made from the lines, and they are removed. A later run
makes the lines from the table again; a run after a kill finds them.
"""

from __future__ import annotations

import argparse
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Any, Final

from smartbatch._words import escape
from smartbatch.errors import InputError
from smartbatch.runs.output_file import OutputFile, OutputLost, OutputRow, Recovered, replaced
from smartbatch.runs.row_keys import RowKeys
from smartbatch.tables.parquet_rows import parquet_rows
from smartbatch.tables.result_files import (
    FIRST,
    FIXED,
    LAST,
    PREFIX,
    CsvFormulas,
    Line,
    UnwritableTable,
    to_line,
    write_table,
)
from smartbatch.tables.row_formats import BadRow, csv_rows, missing
from smartbatch.types import Defect

PARTIAL = ".partial.jsonl"
"""Ending of the file name of the lines, after the name of the table."""


class TableOutput:
    """An output that is a table; has the methods of :class:`OutputFile`.

    Args:
        path: a name with a format known to :func:`table_format`. A symbolic link is followed.
        formulas: as for :func:`write_table`.

    Raises:
        InputError: the file or its folder cannot be written, it is not a regular file, or another run has
            locked it.
    """

    def __init__(self, path: str, formulas: CsvFormulas = "keep") -> None:
        self.path = path
        self._formulas = formulas
        self._real = os.path.realpath(path)
        if os.path.exists(self._real) and not stat.S_ISREG(os.stat(self._real).st_mode):
            raise InputError(
                f"{escape(path)}: is not a regular file; leave -o away to write to standard output"
            )
        self._lines = OutputFile(self._real + PARTIAL, shown=path)
        self._unsaved = not self._lines.is_empty
        """Whether the lines have answers that the table lacks."""

    def __enter__(self) -> TableOutput:
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lock. Remove the lines if the table has them all; else keep them for the next run."""
        if self._unsaved:
            self._lines.close()
        else:
            self._lines.remove()

    def is_answered(self, place: int) -> bool:
        return self._lines.is_answered(place)

    def recover(self, keys: RowKeys) -> Recovered:
        """Read what an earlier run left: the lines of a killed run, otherwise the table.

        Raises:
            InputError: the output belongs to another input or model, or is not an output of a run.
        """
        self._read()
        found = self._lines.recover(keys)
        self._lines.shown = escape(self.path + PARTIAL)
        return found

    def start_resend(self, keys: RowKeys, defect: Defect | None, check: Callable[[bool], object]) -> None:
        self._read()
        self._unsaved = True
        self._lines.start_resend(keys, defect, check)

    @property
    def resend(self) -> str | None:
        return self._lines.resend

    def _read(self) -> None:
        if not self._lines.is_empty:
            self._lines.shown = escape(self.path + PARTIAL)
        elif os.path.exists(self._real):
            self._lines.rewrite(_lines_of_table(self.path), "reading")

    def append(self, rows: Sequence[OutputRow]) -> None:
        self._unsaved = True
        self._lines.append(rows)

    def finish(self, *, asked: bool) -> None:
        """Write the table from the lines, in input order, to disk.

        Raises:
            OutputChanged, OutputLost: like :meth:`OutputFile.finish`; the lines stay.
        """
        self._lines.finish(asked=asked)
        if not self._unsaved:
            return
        try:
            with replaced(self._real, "writing") as target:
                with suppress(FileNotFoundError):
                    os.fchmod(target.fileno(), stat.S_IMODE(os.stat(self._real).st_mode))
                format = table_format(self.path) or ""
                write_table(format, self._lines.lines, target, formulas=self._formulas)
        except OSError as error:
            raise OutputLost(
                f"{escape(self.path)}: cannot be written: {error.strerror or error}; every answered row is "
                f"in {self._lines.shown}. Free some space and run the same command again"
            ) from error
        except UnwritableTable as error:
            raise OutputLost(
                f"{escape(self.path)}: cannot be written: {escape(error.message)}; every answered row is in "
                f"{self._lines.shown}; to use that file as the output, give it to the same command with -o"
            ) from error
        self._unsaved = self._lines.has_resent  # which the table does not show


def open_output(path: str, formulas: CsvFormulas = "keep") -> OutputFile | TableOutput:
    """Open the output of a run, whose name :func:`check_output_name` accepted."""
    return OutputFile(path) if table_format(path) is None else TableOutput(path, formulas)


def look_at_output(path: str, stack: ExitStack) -> OutputFile | None:
    """Open an existing output read-only; ``None`` if there is none.

    Args:
        stack: closes it, and removes temporary files.
    """
    if table_format(path) is None:
        return stack.enter_context(OutputFile(path, look_only=True)) if os.path.exists(path) else None
    lines = os.path.realpath(path) + PARTIAL
    if os.path.exists(lines) and os.path.getsize(lines):
        return stack.enter_context(OutputFile(lines, look_only=True, shown=path + PARTIAL))
    if not os.path.exists(path):
        return None
    copy = stack.enter_context(tempfile.NamedTemporaryFile(prefix="smartbatch-"))  # noqa: SIM115
    copy.writelines(_lines_of_table(path))
    copy.flush()
    return stack.enter_context(OutputFile(copy.name, look_only=True, shown=path))


def _lines_of_table(path: str) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size:
                yield from map(to_line, read_table(table_format(path) or "", file, escape(path)))
    except OSError as error:
        raise InputError(f"{escape(path)}: cannot be read: {error.strerror or error}") from error


_PREFIXES: Final = re.compile(f"^(?:{PREFIX})+")
_FORMATS: Final = {".csv": "csv", ".parquet": "parquet"}  # of tables
_SUFFIXES: Final = (".jsonl", ".ndjson", *_FORMATS)


def table_format(path: str) -> str | None:
    """Return the table format of a file name; ``None`` if it is not a table."""
    return _FORMATS.get(os.path.splitext(path)[1].lower())


def check_output_name(path: str) -> None:
    """Check that an output's format can be written; a name without an ending means JSON lines.

    Raises:
        InputError: names the known endings, or the missing library.
    """
    suffix = os.path.splitext(path)[1]
    if suffix and suffix.lower() not in _SUFFIXES:
        *others, last = _SUFFIXES
        raise InputError(
            f"{escape(path)}: results cannot be written as {escape(suffix)}: name the output "
            f"{', '.join(others)} or {last} (-o)"
        )
    if table_format(path) == "parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise missing("pyarrow", "arrow", "writing Parquet") from error


def formulas_of(args: argparse.Namespace) -> CsvFormulas:
    """Return the value of ``--csv-formulas``, which applies to CSV outputs only.

    Raises:
        InputError: the output is not CSV.
    """
    if args.csv_formulas is None:
        return "keep"
    if args.output is None or table_format(args.output) != "csv":
        raise InputError("--csv-formulas is for results in CSV: name the output .csv (-o)")
    formulas: CsvFormulas = args.csv_formulas
    return formulas


# -- reading -------------------------------------------------------------------------------------------------


def read_table(
    format: str,
    file: IO[bytes],
    shown: str,
    *,
    keyed: bool = True,
    advice: str = "choose another -o, or mend or remove the file",
) -> Iterator[Line]:
    """Yield the lines of results that a table was made from.

    Args:
        shown: the file name in errors.
        keyed: it is the output of a run, whose rows have keys; otherwise it may be the results of a job,
            without keys.
        advice: what to do, at the end of errors.

    Raises:
        InputError: smartbatch did not write it, or it is damaged.
    """

    def refusal(what: str) -> InputError:
        return InputError(f"{shown}: {what}; {advice}")

    writers = "by smartbatch run" if keyed else "by smartbatch run or jobs results"
    known: tuple[str, ...] = ()
    first = last = 0
    for row in csv_rows(file, delimiter=",") if format == "csv" else parquet_rows(file):
        if isinstance(row, BadRow):
            raise refusal(f"line {row.line}: {row.message}")
        number, fields = row
        if known != (known := tuple(fields)):
            if (places := _answer_places(known, keyed)) is None:
                raise refusal(f"was not written {writers}")
            first, last = places
        try:
            line = _line(fields, first, last)
        except ValueError as error:
            raise refusal(f"line {number} {error}") from None
        yield line
    if not known:
        raise refusal(f"was not written {writers}")


def _answer_places(names: tuple[str, ...], keyed: bool) -> tuple[int, int] | None:
    """Return where the columns of :data:`FIRST` and :data:`LAST` begin; ``None`` if they are missing."""
    bases = [_base(name) for name in names]
    has_key = keyed or bases[-1:] == ["key"]
    after = [name for name in LAST if has_key or name != "key"]
    last = len(names) - len(after)
    if bases[max(last, 0) :] == after:
        for first in range(last - len(FIRST), -1, -1):
            if bases[first : first + len(FIRST)] == list(FIRST):
                return first, last
    return None


def _base(name: str) -> str:
    return _PREFIXES.sub("", name)


def _line(fields: Mapping[str, Any], first: int, last: int) -> Line:
    """Return the line of a row.

    Raises:
        ValueError: its index or its sample is not a number.
    """
    names = list(fields)
    own = {name: fields[name] for name in names[:first]}
    answers = dict(zip(FIRST, map(fields.__getitem__, names[first:]), strict=False))
    for name in names[first + len(FIRST) : last]:
        base = name.removeprefix(PREFIX)
        answers[base if base in own and base not in FIXED else name] = fields[name]
    answers |= {_base(name): fields[name] for name in names[last:]}
    index = _number(answers, "index")
    del answers["index"]
    error = {"kind": answers.pop("error_kind"), "message": answers.pop("error")}
    keys = {"key": answers.pop("key")} if "key" in answers else {}
    if answers.get("sample") not in (None, ""):  # missing if each row has one answer
        keys["sample"] = _number(answers, "sample")
    return {
        "index": index,
        "input": own,
        "model": answers["model"],
        "answers": answers,
        "error": error if error["kind"] else None,
        **keys,
    }


def _number(answers: Mapping[str, Any], name: str) -> int:
    try:
        return int(answers[name])
    except (TypeError, ValueError):
        raise ValueError(f"has no {name}") from None
