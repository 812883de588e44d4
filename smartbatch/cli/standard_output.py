"""Standard output: what commands print, the rows of a run, and how it is left when it takes no more."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from smartbatch.errors import InputError, SmartbatchError
from smartbatch.observe.text import escape

if TYPE_CHECKING:  # most commands print a few lines, and need none of it
    from smartbatch.cli.outputs import OutputRow
    from smartbatch.cli.prompts import KeyedRow

_PROMPT_SHOWN: Final = 40
"""Characters of the prompt that open a readable line."""


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
        readable: lines such as ``1  prompt… → answer`` instead of JSON, for a terminal.

    Raises:
        InputError: it is closed.
    """

    def __init__(self) -> None:
        self._stream = binary_output()
        self.readable = sys.stdout.isatty()

    def append(self, rows: Sequence[OutputRow]) -> None:
        """Write some rows; raises as :func:`standard_output`."""
        with standard_output("; the same line again goes on"):
            for row, line, answered in rows:
                if self.readable:
                    line = _readable(row, json.loads(line), answered).encode("utf-8", "backslashreplace")
                self._stream.write(line)
            self._stream.flush()


def discard_standard_output() -> None:
    """Point standard output at the null device, so that the interpreter's last flush raises nothing."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), sys.stdout.fileno())


def _readable(row: KeyedRow, line: dict[str, Any], answered: bool) -> str:
    first = next((value for value in row.fields.values() if isinstance(value, str)), "")
    shown = first[:_PROMPT_SHOWN] + ("…" if len(first) > _PROMPT_SHOWN else "")
    answer = line["text"] or "" if answered else f"[{line['error']['kind']}] {line['error']['message']}"
    if "embedding" in line:
        answer = f"a vector of {len(line['embedding']):,}"
    return f"{row.index + 1}  {escape(shown)} → {escape(answer)}\n"
