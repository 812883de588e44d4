"""Prints messages on standard error, and results on standard output, whose reader may close it."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from smartbatch._words import SafeStream, duration, escape
from smartbatch.errors import InputError, SmartbatchError
from smartbatch.events import (
    BreakerChanged,
    CooldownStarted,
    Event,
    FlexChanged,
    PackingChanged,
    PauseChanged,
    RetryScheduled,
)
from smartbatch.views.terminal import fitted

if TYPE_CHECKING:
    from smartbatch.runs.output_file import OutputRow
    from smartbatch.runs.row_keys import KeyedRow
    from smartbatch.tables.result_files import Line


_CLEAR_LINE: Final = "\r\x1b[K"


def say(text: str) -> None:
    """Print on standard error, with control characters escaped; a closed standard error is ignored."""
    _print("\n".join(escape(line) for line in text.split("\n")))


def note(text: str) -> None:
    _print((_CLEAR_LINE if sys.stderr is not None and sys.stderr.isatty() else "") + escape(text))


def _print(text: str) -> None:
    stream = SafeStream(sys.stderr)
    stream.write(text + "\n")
    stream.flush()


class NoteHandler(logging.Handler):
    """Prints log messages of the library on standard error, each text once per command."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(logging.ERROR if quiet else logging.WARNING)
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if text not in self._printed:
            self._printed.add(text)
            for line in f"smartbatch: {text}".split("\n"):
                note(line)


def print_event(event: Event) -> None:
    if text := _text_of(event):
        note(text)


def _text_of(event: Event) -> str | None:
    match event:
        case RetryScheduled():
            paid = ", may be billed twice" if event.maybe_billed else ""
            return f"retrying in {duration(event.delay)} after {event.kind} (call {event.attempt + 1}{paid})"
        case CooldownStarted():
            return f"rate limit of {event.model}: all its requests pause for {duration(event.seconds)}"
        case BreakerChanged():
            return f"{event.model}: breaker {event.before} -> {event.after}: {event.reason}"
        case PauseChanged(paused=True):
            return f"{event.model}: paused by {event.by}" + (f": {event.reason}" if event.reason else "")
        case PauseChanged():
            return f"{event.model}: resumed"
        case PackingChanged():
            return f"{event.model}: packing turned {'on' if event.enabled else 'off'}: {event.reason}"
        case FlexChanged():
            return f"{event.model}: flex tier turned {'on' if event.enabled else 'off'}: {event.reason}"
    return None


_PROMPT_WIDTH: Final = 40  # cells
_DEFAULT_WIDTH: Final = 80


class ReaderLeft(Exception):
    pass


class StandardOutputLost(SmartbatchError):
    """Standard output can no longer be written, for example because the disk is full."""


@contextmanager
def standard_output(advice: str = "") -> Iterator[None]:
    """Write to standard output in the block; after a failure, replace it with the null device.

    Args:
        advice: ends the error message.

    Raises:
        ReaderLeft: the reader has closed it.
        StandardOutputLost: it cannot be written.
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
    """Print a text immediately; it raises the same errors as :func:`standard_output`."""
    with standard_output():
        print(text, flush=True)


def binary_output() -> BinaryIO:
    """Return standard output; raise ``InputError`` if it is closed (``>&-``)."""
    if sys.stdout is None:
        raise InputError("standard output is closed; use -o to write the results to a file")
    return sys.stdout.buffer


class StandardOutput:
    """Writes rows as they arrive: as JSON lines, or on a terminal as ``1  prompt… → answer``."""

    def __init__(self) -> None:
        self._stream = binary_output()
        self.readable = sys.stdout.isatty()

    def append(self, rows: Sequence[OutputRow]) -> None:
        with standard_output("; run the same command again to continue"):
            width = terminal_width() if self.readable else 0
            for row, line, _ in rows:
                if self.readable:
                    line = f"{_readable(row, json.loads(line), width)}\n".encode("utf-8", "backslashreplace")
                self._stream.write(line)
            self._stream.flush()


def discard_standard_output() -> None:
    """Point standard output at the null device, so that the interpreter's final flush does not raise."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), sys.stdout.fileno())


def _readable(row: KeyedRow, line: Line, width: int) -> str:
    # imported late, because most commands print no result
    from smartbatch.runs.output_lines import defects_of

    error, vector = line["error"], line.get("embedding")
    if error is not None:
        answer = f"[{error['kind']}] {error['message']}"
    elif vector is not None:
        answer = f"a vector of length {len(vector):,}"
    else:
        answer = "".join(f"[{defect}] " for defect in defects_of(line)) + (line["text"] or "")
        answer = " ".join([answer, *line.get("files", ())]).strip()
    number = f"{row.index}  " if row.sample is None else f"{row.index}.{row.sample}  "
    prompt = fitted(one_line(_prompt_of(row.fields)), _PROMPT_WIDTH)
    return fitted(f"{number}{prompt} → {one_line(answer)}", width)


def _prompt_of(fields: Mapping[str, Any]) -> str:
    """Return the first string among the fields of a row, or the last message of a chat."""
    for value in fields.values():
        if isinstance(value, str):
            return value
        if isinstance(value, list) and value and isinstance(value[-1], dict):
            content = value[-1].get("content")
            if isinstance(content, str):
                return content
    return ""


def one_line(text: str) -> str:
    return escape(" ".join(text.split()))


def terminal_width() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or _DEFAULT_WIDTH
    except (OSError, ValueError):
        return _DEFAULT_WIDTH
