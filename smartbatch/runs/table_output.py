"""Writes the output of a run as a CSV or Parquet table, and reads such tables.

A table does not survive a kill while it is written. During a run, the results are therefore kept in a file of
JSON lines next to the table, from which the table is made at the end. A later run converts the table back to
lines, and a run after a kill finds the lines.
"""

from __future__ import annotations

import argparse
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Any, Final

from smartbatch._words import escape
from smartbatch.errors import InputError
from smartbatch.runs.output_file import OutputFile, OutputLost, OutputRow, Recovered, replaced
from smartbatch.runs.row_keys import RowKeys
from smartbatch.tables.parquet_rows import parquet_rows
from smartbatch.tables.result_files import (
    FIRST_COLUMNS,
    FIXED_COLUMNS,
    LAST_COLUMNS,
    RESULT_PREFIX,
    CsvFormulas,
    Line,
    UnwritableTable,
    to_line,
    write_table,
)
from smartbatch.tables.row_formats import BadRow, csv_rows, missing
from smartbatch.types import Defect

PARTIAL_SUFFIX = ".partial.jsonl"  # appended to the table's name


class TableOutput:
    """An output that is a table, with the methods of :class:`OutputFile`.

    Args:
        path: a name with an ending known to :func:`table_format`. A symbolic link is followed.
        formulas: see :func:`write_table`.

    Raises:
        InputError: the file or its folder cannot be written, it is not a regular file, or another run has
            locked it.
    """

    def __init__(self, path: str, formulas: CsvFormulas = "keep") -> None:
        self.path = path
        self._formulas = formulas
        self._real = os.path.realpath(path)
        if os.path.exists(self._real) and not stat.S_ISREG(os.stat(self._real).st_mode):
            raise InputError(f"{escape(path)}: is not a regular file; omit -o to write to standard output")
        self._lines = OutputFile(self._real + PARTIAL_SUFFIX, shown=path)
        self._unsaved = not self._lines.is_empty  # the lines have answers that the table lacks

    def __enter__(self) -> TableOutput:
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lock. Remove the lines if the table is complete; otherwise the next run needs them."""
        if self._unsaved:
            self._lines.close()
        else:
            self._lines.remove()

    @property
    def record(self) -> str:
        """Path of the file that has the answers: the table, or the lines that it lacks."""
        return self._lines.record if self._unsaved else self._real

    @property
    def line_file(self) -> OutputFile:
        """The lines, once :meth:`recover` has read the table."""
        return self._lines

    def rewrite(self, lines: Iterable[bytes], purpose: str) -> None:
        self._unsaved = True
        self._lines.rewrite(lines, purpose)

    def is_answered(self, place: int) -> bool:
        return self._lines.is_answered(place)

    def recover(self, keys: RowKeys) -> Recovered:
        """Read the lines of a killed run or, without any, the table of an earlier run.

        Raises:
            InputError: the output belongs to another input or model, or is not the output of a run.
        """
        self._read()
        found = self._lines.recover(keys)
        self._lines.shown = escape(self.path + PARTIAL_SUFFIX)
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
            self._lines.shown = escape(self.path + PARTIAL_SUFFIX)
        elif not self._unsaved and os.path.exists(self._real):
            self._lines.rewrite(_lines_of_table(self.path), "reading")

    def append(self, rows: Sequence[OutputRow]) -> None:
        self._unsaved = True
        self._lines.append(rows)

    def finish(self, *, asked: bool) -> None:
        """Write the table from the lines, in input order, and flush it to disk.

        Raises:
            OutputChanged, OutputLost: see :meth:`OutputFile.finish`. The lines stay.
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
                f"{self._lines.shown}; to use that file as the output, run the same command with it as -o"
            ) from error
        self._unsaved = self._lines.has_resent  # the table does not show resent rows


def open_output(path: str, formulas: CsvFormulas = "keep") -> OutputFile | TableOutput:
    return OutputFile(path) if table_format(path) is None else TableOutput(path, formulas)


def look_at_output(path: str, stack: ExitStack) -> OutputFile | None:
    """Open an existing output read-only; ``None`` if there is none.

    Args:
        stack: closes the output and removes temporary files.
    """
    if table_format(path) is None:
        return stack.enter_context(OutputFile(path, look_only=True)) if os.path.exists(path) else None
    lines = os.path.realpath(path) + PARTIAL_SUFFIX
    if os.path.exists(lines) and os.path.getsize(lines):
        return stack.enter_context(OutputFile(lines, look_only=True, shown=path + PARTIAL_SUFFIX))
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


_PREFIXES: Final = re.compile(f"^(?:{RESULT_PREFIX})+")
_FORMATS: Final = {".csv": "csv", ".parquet": "parquet"}
_SUFFIXES: Final = (".jsonl", ".ndjson", *_FORMATS)


def table_format(path: str) -> str | None:
    """Return the table format of a file name; ``None`` if it is not a table."""
    return _FORMATS.get(os.path.splitext(path)[1].lower())


def check_output_name(path: str) -> None:
    """Check that the format of an output can be written. A name without an ending means JSON lines.

    Raises:
        InputError: names the known endings or the missing library.
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
    """Return the value of ``--csv-formulas``, which is only allowed for CSV outputs.

    Raises:
        InputError: the output is not CSV.
    """
    if args.csv_formulas is None:
        return "keep"
    if args.output is None or table_format(args.output) != "csv":
        raise InputError("--csv-formulas requires results in CSV: choose an output (-o) that ends in .csv")
    formulas: CsvFormulas = args.csv_formulas
    return formulas


# -- reading -------------------------------------------------------------------------------------------------


def read_table(
    format: str,
    file: IO[bytes],
    shown: str,
    *,
    keyed: bool = True,
    advice: str = "choose another -o, or repair or remove the file",
) -> Iterator[Line]:
    """Yield the lines from which a table was made.

    Args:
        shown: the file name in errors.
        keyed: whether the table is the output of a run, with row keys, rather than the results of a job.
        advice: appended to errors.

    Raises:
        InputError: smartbatch did not write the table, or it is damaged.
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
    """Return the positions at which the columns of :data:`FIRST_COLUMNS` and :data:`LAST_COLUMNS` begin;
    ``None`` if they are missing.
    """
    bases = [_base(name) for name in names]
    has_key = keyed or bases[-1:] == ["key"]
    after = [name for name in LAST_COLUMNS if has_key or name != "key"]
    last = len(names) - len(after)
    if bases[max(last, 0) :] == after:
        for first in range(last - len(FIRST_COLUMNS), -1, -1):
            if bases[first : first + len(FIRST_COLUMNS)] == list(FIRST_COLUMNS):
                return first, last
    return None


def _base(name: str) -> str:
    return _PREFIXES.sub("", name)


def _line(fields: Mapping[str, Any], first: int, last: int) -> Line:
    names = list(fields)
    own = {name: fields[name] for name in names[:first]}
    answers = dict(zip(FIRST_COLUMNS, map(fields.__getitem__, names[first:]), strict=False))
    for name in names[first + len(FIRST_COLUMNS) : last]:
        base = name.removeprefix(RESULT_PREFIX)
        answers[base if base in own and base not in FIXED_COLUMNS else name] = fields[name]
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
