"""Standard output: what commands print, the rows of a run, and how it is left when it takes no more."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from smartbatch._words import escape
from smartbatch.errors import InputError, SmartbatchError
from smartbatch.views.terminal import fitted

if TYPE_CHECKING:  # most commands print a few lines, and need none of it
    from smartbatch.runs.output_file import OutputRow
    from smartbatch.runs.row_keys import KeyedRow
    from smartbatch.tables.result_files import Line

_PROMPT_SHOWN: Final = 40
"""Cells of the prompt that open a readable line."""
_USUAL_WIDTH: Final = 80


class ReaderLeft(Exception):
    """Who read standard output has ended, as ``| head`` does: a command has nobody to print for any more."""


class StandardOutputLost(SmartbatchError):
    """Standard output takes no more, as on a full disk."""


@contextmanager
def standard_output(advice: str = "") -> Iterator[None]:
    """Write to standard output in the block; where that fails, it is the null device from then on.

    Args:
        advice: what to do where it takes no more; ends the text of the error.

    Raises:
        ReaderLeft, StandardOutputLost: it takes no more.
    """
    try:
        yield
    except BrokenPipeError as error:
        discard_standard_output()
        raise ReaderLeft from error
    except OSError as error:
        discard_standard_output()
        raise StandardOutputLost(
            f"standard output cannot be written: {error.strerror or error}{advice}"
        ) from error


def print_out(text: str) -> None:
    """Print a text at once; raises as :func:`standard_output`."""
    with standard_output():
        print(text, flush=True)


def binary_output() -> BinaryIO:
    """Return standard output for results, which would be lost where it is closed, as by ``>&-``.

    Raises:
        InputError: it is closed.
    """
    if sys.stdout is None:
        raise InputError("standard output is closed; -o names a file for the results")
    return sys.stdout.buffer


class StandardOutput:
    """Writes each row as it comes, in the order of the calls: JSON lines, or readable ones on a terminal.

    Attributes:
        readable: lines such as ``1  prompt… → answer`` instead of JSON, for a terminal; each is truncated to
            its width.

    Raises:
        InputError: it is closed.
    """

    def __init__(self) -> None:
        self._stream = binary_output()
        self.readable = sys.stdout.isatty()

    def append(self, rows: Sequence[OutputRow]) -> None:
        """Write some rows; raises as :func:`standard_output`."""
        with standard_output("; the same line again goes on"):
            width = terminal_width() if self.readable else 0
            for row, line, _ in rows:
                if self.readable:
                    line = f"{_readable(row, json.loads(line), width)}\n".encode("utf-8", "backslashreplace")
                self._stream.write(line)
            self._stream.flush()


def discard_standard_output() -> None:
    """Point standard output at the null device, so that the interpreter's last flush raises nothing."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), sys.stdout.fileno())


def _readable(row: KeyedRow, line: Line, width: int) -> str:
    """Return a result as one line of at most ``width`` cells: number, prompt and answer."""
    from smartbatch.runs.output_lines import defects_of  # late: most commands print no result

    error, vector = line["error"], line.get("embedding")
    if error is not None:
        answer = f"[{error['kind']}] {error['message']}"
    elif vector is not None:
        answer = f"a vector of {len(vector):,}"
    else:
        answer = "".join(f"[{defect}] " for defect in defects_of(line)) + (line["text"] or "")
    number = f"{row.index}  " if row.sample is None else f"{row.index}.{row.sample}  "
    prompt = fitted(_one_line(_prompt_of(row.fields)), _PROMPT_SHOWN)
    return fitted(f"{number}{prompt} → {_one_line(answer)}", width)


def _prompt_of(fields: Mapping[str, Any]) -> str:
    """Return the first text among the fields of a row, or of a chat its last message."""
    for value in fields.values():
        if isinstance(value, str):
            return value
        if isinstance(value, list) and value and isinstance(value[-1], dict):
            content = value[-1].get("content")
            if isinstance(content, str):
                return content
    return ""


def _one_line(text: str) -> str:
    return escape(" ".join(text.split()))


def terminal_width() -> int:
    """Return the width of the terminal in cells; 80 if it is unknown."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or _USUAL_WIDTH
    except (OSError, ValueError):
        return _USUAL_WIDTH
