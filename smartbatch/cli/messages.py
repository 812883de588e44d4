"""Messages on standard error: those of commands, and with ``-v`` retries, limits and outages."""

from __future__ import annotations

import logging
import sys
from typing import Final

from smartbatch._words import SafeStream, escape
from smartbatch.events import (
    BreakerChanged,
    CooldownStarted,
    Event,
    FlexChanged,
    PackingChanged,
    PauseChanged,
    RetryScheduled,
)

_CLEAR_LINE: Final = "\r\x1b[K"


def say(text: str) -> None:
    """Print on standard error, control characters as escapes; a reader that ended is no error."""
    _print("\n".join(escape(line) for line in text.split("\n")))


def note(text: str) -> None:
    """Print one line in place of a progress bar, which is drawn again below it."""
    _print((_CLEAR_LINE if sys.stderr is not None and sys.stderr.isatty() else "") + escape(text))


def _print(text: str) -> None:
    stream = SafeStream(sys.stderr)
    stream.write(text + "\n")
    stream.flush()


class NoteHandler(logging.Handler):
    """Prints what the library logs on standard error, each text once a command.

    Args:
        quiet: errors only.
    """

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
    """Observer of a client's events: a line for each retry, limit and outage."""
    if text := _text_of(event):
        note(text)


def _text_of(event: Event) -> str | None:
    match event:
        case RetryScheduled():
            paid = ", may be billed twice" if event.maybe_billed else ""
            return f"retry in {event.delay:.1f} s after {event.kind} (call {event.attempt + 1}{paid})"
        case CooldownStarted():
            return f"rate limit of {event.model}: all its requests pause for {event.seconds:.1f} s"
        case BreakerChanged():
            return f"{event.model}: breaker {event.before} -> {event.after}: {event.reason}"
        case PauseChanged(paused=True):
            return f"{event.model}: paused by {event.by}" + (f": {event.reason}" if event.reason else "")
        case PauseChanged():
            return f"{event.model}: goes on, its pause has ended"
        case PackingChanged():
            return f"{event.model}: packing turned {'on' if event.enabled else 'off'}: {event.reason}"
        case FlexChanged():
            return f"{event.model}: flex tier turned {'on' if event.enabled else 'off'}: {event.reason}"
    return None
