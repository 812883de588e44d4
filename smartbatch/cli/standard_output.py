"""The output of a run on standard output, and how it is left when its reader ends."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from smartbatch.cli.outputs import OutputRow
from smartbatch.cli.prompts import KeyedRow
from smartbatch.observe.text import escape

_PROMPT_SHOWN: Final = 40
"""Characters of the prompt that open a readable line."""


class StandardOutput:
    """Writes each row as it comes, in the order of the calls: JSON lines, or readable ones on a terminal.

    Attributes:
        readable: lines such as ``1  prompt… → answer`` instead of JSON, for a terminal.
    """

    def __init__(self) -> None:
        self.readable = sys.stdout.isatty()

    def append(self, rows: Sequence[OutputRow]) -> None:
        """Write some rows.

        Raises:
            BrokenPipeError: the reader ended.
        """
        for row, line, answered in rows:
            if self.readable:
                line = _readable(row, json.loads(line), answered).encode("utf-8", "backslashreplace")
            sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


def discard_standard_output() -> None:
    """Point standard output at the null device, so that the interpreter's last flush raises nothing.

    For commands whose reader ended early, as ``| head`` does.
    """
    with suppress(OSError, ValueError), open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), sys.stdout.fileno())


def _readable(row: KeyedRow, line: dict[str, Any], answered: bool) -> str:
    first = next((value for value in row.fields.values() if isinstance(value, str)), "")
    shown = first[:_PROMPT_SHOWN] + ("…" if len(first) > _PROMPT_SHOWN else "")
    answer = line["text"] or "" if answered else f"[{line['error']['kind']}] {line['error']['message']}"
    if "embedding" in line:
        answer = f"a vector of {len(line['embedding']):,}"
    return f"{row.index + 1}  {escape(shown)} → {escape(answer)}\n"
