"""Results on standard output: JSON lines for the next program, readable lines for a person."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from typing import Any, Final

from smartbatch.cli.lines import AskedRow
from smartbatch.observe.text import escape

__all__ = ["StandardOutput"]

_PROMPT_SHOWN: Final = 40
"""Characters of the prompt that open a readable line."""


class StandardOutput:
    """Writes each row as it comes; the caller sees to the order.

    Attributes:
        readable: True on a terminal: ``1  prompt… → answer`` instead of JSON.
    """

    def __init__(self) -> None:
        self.readable = sys.stdout.isatty()

    def append(self, row: AskedRow, line: bytes, *, answered: bool) -> None:
        """Write one row.

        Raises:
            BrokenPipeError: nobody reads any more.
        """
        if self.readable:
            line = _readable(row, json.loads(line), answered).encode("utf-8", "backslashreplace")
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()

    def abandon(self) -> None:
        """Point standard output nowhere, so that the interpreter's last flush stays quiet."""
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)


def _readable(row: AskedRow, line: dict[str, Any], answered: bool) -> str:
    first = next((value for value in row.fields.values() if isinstance(value, str)), "")
    shown = first[:_PROMPT_SHOWN] + ("…" if len(first) > _PROMPT_SHOWN else "")
    told = line["text"] or "" if answered else f"[{line['error']['kind']}] {line['error']['message']}"
    return f"{row.index + 1}  {escape(shown)} → {escape(told)}\n"
