"""Tables of results, CSV or Parquet: which files are some, and their lines, read back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import IO, Any, Final

from smartbatch.cli.optional import missing
from smartbatch.cli.row_formats import READERS, BadRow
from smartbatch.errors import InputError
from smartbatch.tables.result_files import FIRST, FIXED, LAST, PREFIX, Line

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
    after = len(names) - len(LAST)
    if bases[max(after, 0) :] == list(LAST):
        for place in range(after - len(FIRST), -1, -1):
            if bases[place : place + len(FIRST)] == list(FIRST):
                return place
    raise _foreign(shown)


def _foreign(shown: str) -> InputError:
    return InputError(f"{shown}: was not written by smartbatch run; choose another -o, or remove the file")


def _base(name: str) -> str:
    while name.startswith(PREFIX):
        name = name.removeprefix(PREFIX)
    return name


def _line(fields: Mapping[str, Any], begin: int, number: int, shown: str) -> Line:
    names = list(fields)
    own = {name: fields[name] for name in names[:begin]}
    parsed = slice(begin + len(FIRST), len(names) - len(LAST))
    answers = dict(zip(FIRST, map(fields.__getitem__, names[begin:]), strict=False))
    for name in names[parsed]:
        base = name.removeprefix(PREFIX)
        answers[base if base in own and base not in FIXED else name] = fields[name]
    answers |= dict(zip(LAST, map(fields.__getitem__, names[parsed.stop :]), strict=True))
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
