"""Tables of results, CSV or Parquet: which files are some, and their lines, read back."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Mapping
from typing import IO, Any, Final

from smartbatch.errors import InputError
from smartbatch.tables.csv_rows import csv_rows
from smartbatch.tables.parquet_rows import parquet_rows
from smartbatch.tables.parsed_rows import BadRow, missing
from smartbatch.tables.result_files import FIRST, FIXED, LAST, PREFIX, CsvFormulas, Line

_PREFIXES: Final = re.compile(f"^(?:{PREFIX})+")
FORMATS: Final = {".csv": "csv", ".parquet": "parquet"}
"""The formats of tables by the endings of their names."""


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


def formulas_of(args: argparse.Namespace) -> CsvFormulas:
    """Return what ``--csv-formulas`` says, which only concerns an output in CSV.

    Raises:
        InputError: it is given for another one.
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
    """Yield the lines of results that a table was written from.

    Args:
        shown: the name of the file, for errors.
        keyed: it is the output of a run, whose rows have keys; else it may also be the results of a job,
            which have none.
        advice: what to do, as errors end with it.

    Raises:
        InputError: it was not written by one of these, which write at least one row, or is damaged.
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
    """Return where the columns of :data:`FIRST` begin, and those of :data:`LAST`; ``None`` where they are not
    there."""
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
        ValueError: its index or its sample is no number.
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
    if answers.get("sample") not in (None, ""):  # none has it where each row has one answer
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
