"""Text on a screen: durations, and streams that may break."""

from __future__ import annotations

import math
from typing import Any, TextIO


def duration(seconds: float) -> str:
    """Return seconds in short: ``0.42 s``, ``17 s``, ``3:05 min``, ``2:07 h``, ``for ever``."""
    if not math.isfinite(seconds):
        return "for ever"
    if seconds < 1:
        return f"{max(0.0, seconds):.2f} s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d} h"


class SafeStream:
    """A stream that others may close: once writing fails, nothing more is written.

    Characters the stream's encoding lacks are written as escapes.

    Args:
        stream: ``None`` where there is none, as the standard ones of a program that was started without.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream: Any = stream
        self._broken = stream is None

    def write(self, text: str) -> int:
        if not self._broken:
            encoding = getattr(self._stream, "encoding", None) or "utf-8"
            try:
                self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            except (OSError, ValueError):  # the reader ended, or the stream is closed
                self._broken = True
        return len(text)

    def flush(self) -> None:
        if not self._broken:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._broken = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
