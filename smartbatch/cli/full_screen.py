"""A terminal that shows frames: its second screen, keys without Enter, and all as it was at the end."""

from __future__ import annotations

import os
import signal
import sys
import termios
from collections.abc import Sequence
from types import FrameType
from typing import Any, TextIO

from smartbatch._clock import RealClock
from smartbatch.views.terminal import TextLine

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""The second screen, no cursor, and no wrapping: a window that is made narrow would scroll."""
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_CODES = {"title": "\x1b[1m", "head": "\x1b[7m", "bad": "\x1b[1;31m"}
_PLAIN = {"title": "", "head": "", "bad": ""}
_END = "\x1b[0m"


class FullScreen:
    """Shows frames on a terminal while the block runs; Ctrl-Z, SIGTERM and errors leave it in order.

    Args:
        stream: a terminal.
        every: seconds between two frames, in steps of a tenth; keys are waited for that long.
        colours: whether there may be any; bold and inverse text count as such.
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
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._give_back()
        if self._keys is not None and self._keys != sys.stdin.fileno():
            os.close(self._keys)

    def size(self) -> os.terminal_size:
        """Return columns and lines of the terminal at this moment."""
        return os.get_terminal_size(self._stream.fileno())

    def show(self, lines: Sequence[TextLine], size: os.terminal_size) -> None:
        """Draw a frame, made for a size, over the last one."""
        parts = ["\x1b[2J" if size != self._size else "", "\x1b[H"]
        self._size = size
        for at, line in enumerate(lines):
            code = self._codes.get(line.style, "")
            shown = f"{code}{line.text}{_END}" if code else line.text
            parts.append(f"{shown}\x1b[K" + ("\r\n" if at + 1 < len(lines) else ""))
        parts.append("\x1b[J")
        self._write("".join(parts))

    def key(self) -> str:
        """Return the keys that were pressed within the time between two frames, as text."""
        if self._keys is None:
            RealClock.sleep(self._every)
            return ""
        try:
            return os.read(self._keys, 64).decode("utf-8", "replace")
        except OSError:  # the terminal is gone
            return "q"

    def _take(self) -> None:
        """Have keys come at once and unseen, and show the second screen."""
        if self._keys is not None:
            self._before = termios.tcgetattr(self._keys)
            now = termios.tcgetattr(self._keys)
            now[3] &= ~(termios.ICANON | termios.ECHO)
            now[6][termios.VMIN], now[6][termios.VTIME] = 0, max(1, round(self._every * 10))
            termios.tcsetattr(self._keys, termios.TCSADRAIN, now)
        self._size = (0, 0)
        self._write(_ENTER)

    def _give_back(self) -> None:
        self._write(_LEAVE)
        if self._keys is not None and self._before is not None:
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before)

    def _suspend(self, _number: int, _frame: FrameType | None) -> None:
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)  # goes on here when the shell says so
        self._take()

    def _write(self, text: str) -> None:
        data = text.encode(self._stream.encoding or "utf-8", "replace")
        while data:  # to the descriptor: a buffer may not be written to by a signal handler, too
            data = data[os.write(self._stream.fileno(), data) :]


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)


def _keyboard() -> int | None:
    """Return the descriptor keys come from: standard input, or the terminal where that is something else."""
    try:
        if os.isatty(sys.stdin.fileno()):
            return sys.stdin.fileno()
        return os.open("/dev/tty", os.O_RDONLY)
    except (OSError, ValueError, AttributeError):
        return None
