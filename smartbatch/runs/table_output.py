"""The output of a run as a table, CSV or Parquet.

Neither can be written a row at a time and survive a kill. So while a run lasts its output is a file of JSON
lines next to the table, and the table is made of it at the end, as a whole, and takes its name. The lines go
when the table is there. A later run takes the lines out of the table again; one after a kill finds them.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress

from smartbatch._words import escape
from smartbatch.errors import InputError
from smartbatch.runs.output_file import OutputFile, OutputLost, OutputRow, Recovered, replaced
from smartbatch.runs.result_tables import read_table, table_format
from smartbatch.runs.row_keys import RowKeys
from smartbatch.tables.result_files import CsvFormulas, UnwritableTable, to_line, write_table
from smartbatch.types import Defect

PARTIAL = ".partial.jsonl"
"""What the name of the lines has behind the name of their table."""


class TableOutput:
    """An output that is a table; used as an :class:`OutputFile`, whose methods it has.

    Args:
        path: a name for which :func:`table_format` knows the format. A symbolic link is followed.
        formulas: as of :func:`write_table`.

    Raises:
        InputError: the file or its folder cannot be written, is not a regular file, or another run holds it.
    """

    def __init__(self, path: str, formulas: CsvFormulas = "keep") -> None:
        self.path = path
        self._formulas = formulas
        self._real = os.path.realpath(path)
        if os.path.exists(self._real) and not stat.S_ISREG(os.stat(self._real).st_mode):
            raise InputError(
                f"{escape(path)}: is not a regular file; leave -o away to write to standard output"
            )
        self._lines = OutputFile(self._real + PARTIAL, shown=path)
        self._unsaved = not self._lines.is_empty
        """Whether the lines have more than the table."""

    def __enter__(self) -> TableOutput:
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lock. Lines that the table has as well are removed, others stay for the next run."""
        if self._unsaved:
            self._lines.close()
        else:
            self._lines.remove()

    def is_answered(self, place: int) -> bool:
        """As :meth:`OutputFile.is_answered`."""
        return self._lines.is_answered(place)

    def recover(self, keys: RowKeys) -> Recovered:
        """Read what an earlier run left: the lines of one that was killed, else the table.

        Raises:
            InputError: the output belongs to another input or model, or is not an output of a run.
        """
        self._read()
        found = self._lines.recover(keys)
        self._lines.shown = escape(self.path + PARTIAL)
        return found

    def start_resend(self, keys: RowKeys, defect: Defect | None, check: Callable[[bool], object]) -> None:
        """As :meth:`OutputFile.start_resend`."""
        self._read()
        self._unsaved = True
        self._lines.start_resend(keys, defect, check)

    @property
    def resend(self) -> str | None:
        """As :attr:`OutputFile.resend`."""
        return self._lines.resend

    def _read(self) -> None:
        if not self._lines.is_empty:
            self._lines.shown = escape(self.path + PARTIAL)
        elif os.path.exists(self._real):
            self._lines.rewrite(_lines_of_table(self.path), "reading")

    def append(self, rows: Sequence[OutputRow]) -> None:
        """As :meth:`OutputFile.append`."""
        self._unsaved = True
        self._lines.append(rows)

    def finish(self, *, asked: bool) -> None:
        """Make the table of the lines, in the order of the input, and have it on the disk.

        Raises:
            OutputChanged, OutputLost: as :meth:`OutputFile.finish`; the lines stay.
        """
        self._lines.finish(asked=asked)
        if not self._unsaved:
            return
        try:
            with replaced(self._real, "writing") as target:
                with suppress(FileNotFoundError):
                    os.fchmod(target.fileno(), stat.S_IMODE(os.stat(self._real).st_mode))
                format = table_format(self.path) or ""
                write_table(format, self._lines.lines, target, formulas=self._formulas)
        except OSError as error:
            raise OutputLost(
                f"{escape(self.path)}: cannot be written: {error.strerror or error}; every answered row is "
                f"in {self._lines.shown}. Free some space and run the same line again"
            ) from error
        except UnwritableTable as error:
            raise OutputLost(
                f"{escape(self.path)}: cannot be written: {escape(error.message)}; every answered row is in "
                f"{self._lines.shown}, which the same line takes with -o as an output of its own"
            ) from error
        self._unsaved = self._lines.has_resent  # which the table does not say


def open_output(path: str, formulas: CsvFormulas = "keep") -> OutputFile | TableOutput:
    """Open the output of a run, for a name that :func:`check_output_name` has let pass."""
    return OutputFile(path) if table_format(path) is None else TableOutput(path, formulas)


def look_at_output(path: str, stack: ExitStack) -> OutputFile | None:
    """Open what is there of an output, to be read only; ``None`` where nothing is.

    Args:
        stack: closes it, and removes what was made to read it.
    """
    if table_format(path) is None:
        return stack.enter_context(OutputFile(path, look_only=True)) if os.path.exists(path) else None
    lines = os.path.realpath(path) + PARTIAL
    if os.path.exists(lines) and os.path.getsize(lines):
        return stack.enter_context(OutputFile(lines, look_only=True, shown=path + PARTIAL))
    if not os.path.exists(path):
        return None
    copy = stack.enter_context(tempfile.NamedTemporaryFile(prefix="smartbatch-"))  # noqa: SIM115
    copy.writelines(_lines_of_table(path))
    copy.flush()
    return stack.enter_context(OutputFile(copy.name, look_only=True, shown=path))


def _lines_of_table(path: str) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size:
                yield from map(to_line, read_table(table_format(path) or "", file, escape(path)))
    except OSError as error:
        raise InputError(f"{escape(path)}: cannot be read: {error.strerror or error}") from error
