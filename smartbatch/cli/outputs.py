"""The output file of a run: JSON lines that survive a kill, resume, and end in the order of the input.

While the run lasts, a row is one ``write`` at the end of the file, in the order of completion: what was
answered is in the kernel's hands before the next answer is looked at. At the end the file is put into the
order of the input beside itself and swapped in. Per row of the input 16 bytes and one bit are held in memory.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import threading
from array import array
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import IO, Any

from attrs import define, frozen

from smartbatch.cli.lines import HEAD, AskedRow
from smartbatch.errors import InputError

__all__ = ["OutputFile", "OutputLost", "Recovered"]


class OutputLost(InputError):
    """Results cannot be written any more, for instance to a full disk; what was written is whole."""


@define
class Recovered:
    """What was found in an output file.

    Attributes:
        answered: rows that need not be asked again.
        failed: rows that failed and will be tried again.
        cut: bytes of a torn last line that were removed.
    """

    answered: int = 0
    failed: int = 0
    cut: int = 0


@frozen
class _Line:
    """A line of the file: where it begins, its one-based number, its bytes, and whether it has its end."""

    offset: int
    number: int
    data: bytes
    whole: bool


class OutputFile:
    """An output under an exclusive lock. Appending is safe from any thread; the rest is for one.

    Args:
        path: where the results go; made when missing. A symbolic link is followed.
        look_only: the file is there and is left as it is: not locked, not mended, never written to.

    Raises:
        InputError: the file or its folder cannot be written, is not a regular file, or another run holds it.
    """

    def __init__(self, path: str, *, look_only: bool = False) -> None:
        self.path = path
        self._look_only = look_only
        self._real = os.path.realpath(path)
        self._existed = os.path.lexists(self._real)
        self._writing = threading.Lock()
        self._fd = self._open()
        self._end = 0
        self._offsets = array("q")
        self._answered = bytearray()
        self._in_order = True
        self._highest = -1

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give up the lock; an output that was made for nothing is removed. May be called twice."""
        with self._writing:
            if self._fd < 0:
                return
            if not self._existed and os.fstat(self._fd).st_size == 0:
                with suppress(OSError):
                    os.unlink(self._real)
            os.close(self._fd)
            self._fd = -1

    def is_answered(self, index: int) -> bool:
        """True when the row need not be asked any more."""
        return bool(self._answered[index >> 3] & 1 << (index & 7))

    def recover(self, keys: array[int]) -> Recovered:
        """Read what an earlier run left, mend its torn end, and remember what is answered.

        Args:
            keys: the key of every row of the input, in order.

        Raises:
            InputError: the file belongs to another input or model, or is not an output of a run.
        """
        self._offsets = array("q", [-1]) * len(keys)
        self._answered = bytearray((len(keys) + 7) // 8)
        found = Recovered()
        try:
            with self._reader() as file:
                self._scan(file, keys, found)
            if os.fstat(self._fd).st_size > self._end and not self._look_only:
                os.ftruncate(self._fd, self._end)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        return found

    def append(self, row: AskedRow, line: bytes, *, answered: bool) -> None:
        """Write one line as a whole; it survives the process from here on.

        Raises:
            OutputLost: the disk takes no more, or the file is closed; what was written before is whole.
        """
        with self._writing:
            self._write(line)
            self._book(row.index, self._end, answered)
            self._end += len(line)

    def put_in_order(self) -> None:
        """Rewrite the file in the order of the input, one line a row, and swap it in.

        Raises:
            OutputLost: the ordered copy cannot be written; the file stays whole, in the order of completion.
        """
        if self._in_order:
            return
        folder, name = os.path.split(self._real)
        beside = os.path.join(folder, f".{name}.ordering")
        try:
            with self._reader() as source, open(beside, "wb") as target:
                os.fchmod(target.fileno(), stat.S_IMODE(os.fstat(self._fd).st_mode))
                for offset in self._offsets:
                    if offset >= 0:
                        source.seek(offset)
                        target.write(source.readline())
                target.flush()
                os.fsync(target.fileno())
            os.replace(beside, self._real)
            _sync_folder(folder)
        except OSError as error:
            raise OutputLost(
                f"{self.path}: cannot be put in order: {error.strerror or error}; every answered row is in "
                "it, in the order of completion. Free some space and run the same line again"
            ) from error
        finally:
            with suppress(OSError):
                os.unlink(beside)
        self._in_order = True

    def sync(self) -> None:
        """Have everything on the disk, so that it survives a loss of power.

        Raises:
            OutputLost: the disk does not take it.
        """
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise OutputLost(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def _open(self) -> int:
        if self._look_only:
            return self._open_to_look()
        try:
            while True:
                fd = os.open(self._real, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
                try:
                    self._check_and_lock(fd)
                    # A run that ended in between may have swapped the file under its name.
                    if os.path.samestat(os.fstat(fd), os.stat(self._real)):
                        return fd
                except BaseException:
                    os.close(fd)
                    raise
                os.close(fd)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def _open_to_look(self) -> int:
        try:
            fd = os.open(self._real, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for its writer
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise InputError(f"{self.path}: is not a regular file")
        return fd

    def _reader(self) -> IO[bytes]:
        """Read the locked file itself, whatever has become of its name."""
        file = open(os.dup(self._fd), "rb")  # noqa: SIM115 - the caller closes it
        file.seek(0)
        return file

    def _check_and_lock(self, fd: int) -> None:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise InputError(f"{self.path}: is not a regular file; leave -o away to write to standard output")
        if not os.access(os.path.dirname(self._real), os.W_OK):
            raise InputError(f"{self.path}: its folder cannot be written, which putting it in order needs")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{self.path}: another run is writing to it; wait for its end or choose another -o"
            ) from None

    def _scan(self, file: IO[bytes], keys: array[int], found: Recovered) -> None:
        for line in _lines(file):
            last = not line.whole or not file.peek(1)  # type: ignore[attr-defined]
            content = self._content(line, last)
            if content is None:
                found.cut = len(line.data)
                return
            answered = self._check(line, content, keys)
            if not line.whole and not self._look_only:
                self._write(b"\n")
            self._take(line, content, keys, answered, found)
            self._end = line.offset + len(line.data) + (not line.whole)

    def _take(
        self, line: _Line, content: dict[str, Any], keys: array[int], answered: bool, found: Recovered
    ) -> None:
        """Book a line, unless a better one is known or it failed under settings that are no longer meant."""
        index: int = content["index"]
        if self.is_answered(index) or (not answered and int(content["key"], 16) != keys[index]):
            self._in_order = False
            return
        found.answered += answered
        found.failed += (not answered) - (self._offsets[index] >= 0)
        self._book(index, line.offset, answered)

    def _content(self, line: _Line, last: bool) -> dict[str, Any] | None:
        """Return the line decoded, or None for a torn last line, which is cut off."""
        try:
            content = json.loads(line.data)
            if isinstance(content, dict) and _is_ours(content):
                return content
            reason = "was not written by smartbatch run"
        except (ValueError, RecursionError):
            # A file without a single good line is only ours when its torn line begins like ours.
            torn = line.number > 1 or line.data.startswith(HEAD) or HEAD.startswith(line.data)
            if last and torn:
                return None
            reason = "is not valid JSON" if torn else "was not written by smartbatch run"
        raise InputError(
            f"{self.path}: line {line.number} {reason}; choose another -o, or mend or remove the file"
        )

    def _check(self, line: _Line, content: dict[str, Any], keys: array[int]) -> bool:
        """Compare a line with the row it answers; return whether it is an answer."""
        index = content["index"]
        way_out = "choose another -o, or remove the file to start afresh"
        if index >= len(keys):
            raise InputError(
                f"{self.path} belongs to another input: its line {line.number} answers row {index + 1}, "
                f"but the input has {len(keys)} rows (is --limit smaller than before?); {way_out}"
            )
        key = int(content["key"], 16)
        if content["error"] is not None:
            return False
        if key >> 32 != keys[index] >> 32:
            raise InputError(
                f"{self.path} belongs to another model, system text or parameters: its line {line.number} "
                f"(row {index + 1}) was answered by {str(content.get('model'))[:100]!r} under other "
                f"settings; {way_out}"
            )
        if key != keys[index]:
            raise InputError(
                f"{self.path} belongs to another input: its line {line.number} answers another prompt than "
                f"row {index + 1} of this input and template asks; {way_out}"
            )
        return True

    def _book(self, index: int, offset: int, answered: bool) -> None:
        if index <= self._highest:
            self._in_order = False
        self._highest = max(self._highest, index)
        self._offsets[index] = offset
        if answered:
            self._answered[index >> 3] |= 1 << (index & 7)

    def _write(self, data: bytes) -> None:
        """Write all of ``data`` at the end, or nothing."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            if len(view) < len(data):
                with suppress(OSError):
                    os.ftruncate(self._fd, self._end)
            full = "; free some space and run the same line again" if error.errno == errno.ENOSPC else ""
            raise OutputLost(
                f"{self.path}: cannot be written: {error.strerror or error}; what was written is kept{full}"
            ) from error


def _lines(file: IO[bytes]) -> Iterator[_Line]:
    offset = 0
    for number, data in enumerate(file, 1):
        yield _Line(offset, number, data, data.endswith(b"\n"))
        offset += len(data)


def _is_ours(content: dict[str, Any]) -> bool:
    index, key = content.get("index"), content.get("key")
    if type(index) is not int or index < 0 or type(key) is not str or "error" not in content:
        return False
    try:
        return len(key) == 16 and int(key, 16) >= 0
    except ValueError:
        return False


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
