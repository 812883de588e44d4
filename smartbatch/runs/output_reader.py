"""Reads the rows of an output of ``smartbatch run``, or of the results of a job, in little memory."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import IO, Any, Final

from smartbatch._words import escape
from smartbatch.core.preparation.validation import MAX_SAMPLES
from smartbatch.errors import InputError
from smartbatch.quality.recorded_row import RecordedRow, fields_of_answer
from smartbatch.runs.output_lines import decoded_cell, defects_of, figures_of, is_answer, number_of, sample_of
from smartbatch.runs.table_output import read_table, table_format
from smartbatch.tables.result_files import FIXED_COLUMNS, OTHER_COLUMNS, Line

_VALID_SUBJECTS: Final = "pass a job, or an output of smartbatch run or jobs results"
_TOKENS: Final = ("input_tokens", "output_tokens")
_ANSWERED, _FAILED = 2, 1
_MAX_ROWS: Final = 200_000_000  # larger indexes only occur in damaged lines


def read_rows(path: str) -> Iterator[RecordedRow]:
    """Yield the rows of an output, in the order of the file. If a row has several lines, one counts; see
    :func:`read_lines`.

    Raises:
        InputError: the file cannot be read, or is not an output.
    """
    return map(row_of, read_lines(path))


def read_lines(path: str) -> Iterator[Line]:
    """Yield one line per answer that an output contains, in the order of the file.

    During a run, a row that failed or whose answer is replaced has several lines. Its first answer counts, or
    else its last failure. A last line that was cut off by a kill is left out.

    Raises:
        InputError: the file cannot be read, or is not an output.
    """
    try:
        with open(path, "rb") as file:
            counts = which_counts(_lines(path, file))
            file.seek(0)
            for line, is_counted in zip(_lines(path, file), counts, strict=False):
                if is_counted:
                    yield line
    except OSError as error:
        raise InputError(f"{escape(path)}: cannot be read: {error.strerror or error}") from error


def row_of(line: Line) -> RecordedRow:
    """Return the row of a line yielded by :func:`read_lines`."""
    usage, error = line.get("usage") or {}, line["error"]
    kind = None if error is None else str(error["kind"])
    tokens = {name: None if usage.get(name) is None else int(usage[name]) for name in _TOKENS}
    return RecordedRow(
        index=line["index"],
        id=line["index"] if line.get("id") is None else line["id"],
        sample=line.get("sample"),
        input=line.get("input") or {},
        model=_text(line.get("model")),
        text=_text(line.get("text")),
        fields=line["fields"] if "fields" in line else fields_of_answer(line.get("parsed")),
        finish_reason=_text(line.get("finish_reason")),
        defects=defects_of(line),
        error_kind=kind,
        error=None if error is None else str(error["message"]),
        cost=line.get("cost"),
        latency=line.get("latency"),
        attempts=int(line.get("attempts") or 0),
        files=_file_names(line.get("files")),
        **tokens,
    )


def _file_names(value: Any) -> tuple[str, ...]:
    """A CSV contains the list as JSON."""
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    return tuple(name for name in value if isinstance(name, str)) if isinstance(value, list) else ()


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def which_counts(lines: Iterator[Line]) -> bytearray:
    """Return one byte per line: 1 if the line counts."""
    counts = bytearray()
    samples: dict[int, tuple[array[int], bytearray]] = {}
    for number, line in enumerate(lines):
        line_of, state = samples.setdefault(sample_of(line), (array("q"), bytearray()))
        index, found = line["index"], _ANSWERED if is_answer(line) else _FAILED
        if index >= len(state):
            more = index + 1 - len(state)
            state.extend(bytes(more))
            line_of.extend([0] * more)
        known = state[index]
        counts.append(known != _ANSWERED)
        if known == _FAILED and counts[number]:
            counts[line_of[index]] = 0
        if counts[number]:
            state[index], line_of[index] = found, number
    return counts


def _lines(path: str, file: IO[bytes]) -> Iterator[Line]:
    """Yield the results in an output, except a last line that was cut off by a kill."""
    format, shown = table_format(path), escape(path)
    unit = "line" if format is None else "row"
    read = _decoded if format is None else partial(read_table, format, keyed=False, advice=_VALID_SUBJECTS)
    for number, line in enumerate(read(file, shown), 1):
        yield _checked(line, unit, number, shown)


def results_in(lines: Iterable[bytes], shown: str) -> Iterator[Line]:
    """Yield the results in lines of JSON, except a last one that was cut off; ``shown`` is the file's name in
    errors.
    """
    for number, line in enumerate(_decoded(lines, shown), 1):
        yield _checked(line, "line", number, shown)


def _checked(line: Any, unit: str, number: int, shown: str) -> Line:
    if (result := result_of(line)) is None:
        raise _foreign(shown, f"{unit} {number} is not a result")
    return result


def result_of(line: Any) -> Line | None:
    """Return a decoded line with the names and types of an output of JSON lines; ``None`` if it is not a
    result.
    """
    found = _plain(line) if isinstance(line, dict) and isinstance(line.get("answers"), dict) else line
    return found if _is_result(found) else None


def _decoded(file: Iterable[bytes], shown: str) -> Iterator[Any]:
    for number, text in enumerate(file, 1):
        try:
            yield json.loads(text)
        except (ValueError, RecursionError):
            if number > 1 and not text.endswith(b"\n"):
                return
            raise _foreign(shown, f"line {number} is not JSON") from None


def _plain(line: Line) -> Line:
    answers = line["answers"]
    own = [name for name in answers if name not in FIXED_COLUMNS and name not in OTHER_COLUMNS]
    fields = {name: value for name in own if (value := decoded_cell(answers[name])) is not None}
    return {**figures_of(line), "model": answers.get("model"), "fields": fields}


def _is_result(line: Any) -> bool:
    if not isinstance(line, dict) or "error" not in line:
        return False
    index, error, usage, dropped = (line.get(name) for name in ("index", "error", "usage", "dropped"))
    if type(index) is not int or not 0 <= index < _MAX_ROWS:
        return False
    if type(sample := line.get("sample", 0)) is not int or not 0 <= sample < MAX_SAMPLES:
        return False
    if not all(one is None or isinstance(one, dict) for one in (usage, dropped, line.get("input"))):
        return False
    numbers = [line.get(name) for name in ("cost", "latency", "attempts")]
    numbers += [(usage or {}).get(name) for name in _TOKENS]
    figures = map(number_of, numbers)
    if any(
        one is not None and (figure is None or figure < 0)
        for one, figure in zip(numbers, figures, strict=True)
    ):
        return False
    return error is None or (isinstance(error, dict) and {"kind", "message"} <= error.keys())


def _foreign(shown: str, what: str) -> InputError:
    return InputError(f"{shown}: {what}; {_VALID_SUBJECTS}")
