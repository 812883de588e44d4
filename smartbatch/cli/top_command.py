"""``smartbatch top``: the dashboard's Now page in the terminal, updated twice a second."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import termios
from collections.abc import Sequence
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Final, TextIO

from attrs import evolve

from smartbatch._clock import RealClock
from smartbatch.cli.clients import config_of
from smartbatch.cli.printing import print_out
from smartbatch.dashboard.now_page import page
from smartbatch.dashboard.page import Query
from smartbatch.dashboard.source import Source
from smartbatch.errors import SmartbatchError
from smartbatch.views.model import Bullets, Section, State, View
from smartbatch.views.terminal import TextLine, fitted, lines_of

FRAME_SECONDS: Final = 0.5
_PIPE_WIDTH: Final = 120  # cells per line if there is neither a terminal nor COLUMNS
_ENTER_SEQUENCE = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""Alternate screen without a cursor, and without wrapping, which would scroll a narrowed window."""
_LEAVE_SEQUENCE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_CODES = {"title": "\x1b[1m", "head": "\x1b[7m", "bad": "\x1b[1;31m"}
_PLAIN = {"title": "", "head": "", "bad": ""}
_END_STYLE = "\x1b[0m"


class FullScreen:
    """Shows frames on a terminal while the block runs; Ctrl-Z, SIGTERM and errors restore the terminal.

    Args:
        stream: a terminal.
        every: seconds between frames, in steps of 0.1.
        colours: also allow bold and inverse text.
    """

    def __init__(self, stream: TextIO, every: float, *, colours: bool) -> None:
        self._stream = stream
        self._every = every
        self._codes = _CODES if colours else _PLAIN
        self._keys = _keyboard()
        self._before: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._size = (0, 0)

    def __enter__(self) -> FullScreen:
        self._handlers = {
            number: signal.signal(number, handler)
            for number, handler in ((signal.SIGTERM, _terminate), (signal.SIGTSTP, self._suspend))
        }
        self._enter_screen()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._leave_screen()
        if self._keys is not None and self._keys != sys.stdin.fileno():
            os.close(self._keys)

    def size(self) -> os.terminal_size:
        return os.get_terminal_size(self._stream.fileno())

    def show(self, lines: Sequence[TextLine], size: os.terminal_size) -> None:
        parts = ["\x1b[2J" if size != self._size else "", "\x1b[H"]
        self._size = size
        for at, line in enumerate(lines):
            code = self._codes.get(line.style, "")
            shown = f"{code}{line.text}{_END_STYLE}" if code else line.text
            parts.append(f"{shown}\x1b[K" + ("\r\n" if at + 1 < len(lines) else ""))
        parts.append("\x1b[J")
        self._write("".join(parts))

    def key(self) -> str:
        if self._keys is None:
            RealClock.sleep(self._every)
            return ""
        try:
            return os.read(self._keys, 64).decode("utf-8", "replace")
        except OSError:  # the terminal is gone
            return "q"

    def _enter_screen(self) -> None:
        """Switch to unbuffered keys without echo, and to the alternate screen."""
        if self._keys is not None:
            self._before = termios.tcgetattr(self._keys)
            now = termios.tcgetattr(self._keys)
            now[3] &= ~(termios.ICANON | termios.ECHO)
            now[6][termios.VMIN], now[6][termios.VTIME] = 0, max(1, round(self._every * 10))
            termios.tcsetattr(self._keys, termios.TCSADRAIN, now)
        self._size = (0, 0)
        self._write(_ENTER_SEQUENCE)

    def _leave_screen(self) -> None:
        self._write(_LEAVE_SEQUENCE)
        if self._keys is not None and self._before is not None:
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before)

    def _suspend(self, _number: int, _frame: FrameType | None) -> None:
        self._leave_screen()
        os.kill(os.getpid(), signal.SIGSTOP)  # returns when the shell continues the process
        self._enter_screen()

    def _write(self, text: str) -> None:
        data = text.encode(self._stream.encoding or "utf-8", "replace")
        while data:  # unbuffered: signal handlers must not use the stream's buffer
            data = data[os.write(self._stream.fileno(), data) :]


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)


def _keyboard() -> int | None:
    """Return the descriptor of the keyboard: standard input or, if that is redirected, the terminal."""
    try:
        if os.isatty(sys.stdin.fileno()):
            return sys.stdin.fileno()
        return os.open("/dev/tty", os.O_RDONLY)
    except (OSError, ValueError, AttributeError):
        return None


def run(args: argparse.Namespace) -> int:
    config = config_of(args)
    source = Source(config)
    _ = source.store  # fails before the screen changes if the store cannot be used
    if sys.stdout is None or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        width = shutil.get_terminal_size((_PIPE_WIDTH, 0)).columns
        print_out("\n".join(line.text for line in frame(source, width, None)))
        return 0
    with FullScreen(sys.stdout, FRAME_SECONDS, colours=not os.environ.get("NO_COLOR")) as screen:
        try:
            while True:
                size = screen.size()
                screen.show(frame(source, size.columns, size.lines), size)
                if set(screen.key()) & {"q", "Q", "\x03", "\x04"}:
                    break
        except KeyboardInterrupt:
            pass
    return 0


def frame(source: Source, width: int, height: int | None) -> list[TextLine]:
    """Return the dashboard's *Now* page as at most ``height`` lines of ``width`` cells."""
    now = datetime.fromtimestamp(source.clock.wall(), UTC)
    try:
        view, place = page(source, Query()).view, source.place
    except SmartbatchError as error:
        problem = Bullets(((f"The store cannot be read: {error.message}",),), "bad")
        section = Section("attention", "Action required", (problem,))
        view, place = View("Now", (section,), State("action required", "bad")), str(source.config.store)
    lines = lines_of(evolve(view, title="smartbatch", subtitle=f"{now:%H:%M:%S} UTC, {place}"), width)
    if height is not None and len(lines) > height:
        hidden = f"… {len(lines) - height + 1} more lines: enlarge the window to see them"
        lines = [*lines[: max(0, height - 1)], TextLine(fitted(hidden, width))]
    return lines
