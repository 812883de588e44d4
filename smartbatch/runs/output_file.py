"""The output file of a run: one JSON line per row, written so that it survives a kill.

During the run, answered rows are appended in order of completion. At the end, a copy in input order replaces
the file. Each input row takes 24 bytes and one bit of memory.

Other programs may delete, move, truncate or save the file during the run. Its name and size are therefore
checked before each write. Its whole content is checked before it is put in order, and before the answers
may be deleted from the store.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import stat
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from typing import IO, Any, Final, TypeAlias

from attrs import define, field

from smartbatch._files import is_foreign_link, lock_file, require_locks, sync_folder
from smartbatch._words import escape
from smartbatch.errors import InputError
from smartbatch.providers.http.content import decode_json
from smartbatch.runs.output_lines import (
    LINE_START,
    Amounts,
    decoded_line,
    defects_of,
    figures_of,
    is_answer,
    is_of_prompt,
    is_output_line,
    line_of_row,
    mismatch,
    place_of,
    replaced_amounts,
    replacing,
    resend_id,
    sample_of,
    to_resend,
    with_key,
)
from smartbatch.runs.row_keys import KeyedRow, RowKeys
from smartbatch.tables.result_files import Line, to_line
from smartbatch.types import Defect

_READ_BYTES: Final = 1 << 16  # bytes per read


OutputRow: TypeAlias = tuple[KeyedRow, bytes, bool]
"""A row, its line, and whether the line is an answer."""


class OutputLost(InputError):
    """Results can no longer be written, for example because the disk is full. Every line written so far is
    complete.
    """


class OutputDiffers(InputError):
    """The output has answers to other prompts, or under other settings."""


class OutputChanged(OutputLost):
    """Another program changed the output during the run. The run writes nothing more to it."""


@define
class Recovered:
    answered: int = 0  # rows
    failed: int = 0
    skipped: int = 0
    cut: int = 0  # bytes of an incomplete last line that were removed
    resent: int = 0  # rows whose answer is to be replaced
    amounts: Amounts = field(factory=Amounts, eq=False)


class OutputFile:
    """An output under an exclusive lock. Any thread may append; everything else must be called from a
    single thread.

    Args:
        path: created if missing. A symbolic link of the same user is followed.
        look_only: open an existing file read-only, without locking or repairing it.
        shown: its name in messages, if different.

    Raises:
        InputError: the file or its folder cannot be written, it is not a regular file, or another run has
            locked it.
    """

    def __init__(self, path: str, *, look_only: bool = False, shown: str | None = None) -> None:
        self.path = path
        self.shown = escape(shown or path)
        self._look_only = look_only
        self._real = os.path.realpath(path)
        self._existed = os.path.lexists(self._real)
        self._writing = threading.Lock()
        self._fd = self._open()
        self._end = 0
        self._digest = hashlib.sha256()
        self._changed: OutputChanged | None = None
        self._offsets: array[int]
        self._answered: bytearray
        self._resent: set[int] = set()
        self.resend: str | None = None  # id of the resend that replaces answers
        self._in_order = True
        self._highest = -1

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock and remove the file if it is new and still empty. May be called twice."""
        with self._writing:
            if self._fd < 0:
                return
            with suppress(OSError):
                here = os.fstat(self._fd)
                if not self._existed and not here.st_size and os.path.samestat(here, os.lstat(self._real)):
                    os.unlink(self._real)
            os.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        """Delete the file while it is still locked, and release the lock."""
        with self._writing, suppress(OSError):
            if os.path.samestat(os.fstat(self._fd), os.lstat(self._real)):
                os.unlink(self._real)
        self.close()

    @property
    def record(self) -> str:
        """Path of the file that has the answers."""
        return self._real

    @property
    def is_empty(self) -> bool:
        return os.fstat(self._fd).st_size == 0

    def lines(self) -> Iterator[dict[str, Any]]:
        with self.reader() as file:
            yield from map(json.loads, file)

    def survey(self) -> Iterator[tuple[int, Line]]:
        """Yield the offset and the content of each line, for any input. Once all are read, the file may be
        rewritten.
        """
        self._end, self._digest = 0, hashlib.sha256()
        with self.reader() as file:
            for line in file:
                if (content := decoded_line(line)) is not None:
                    yield self._end, content
                self._digest.update(line)
                self._end += len(line)

    def is_answered(self, place: int) -> bool:
        return bool(self._answered[place >> 3] & 1 << (place & 7))

    @property
    def has_resent(self) -> bool:
        return bool(self._resent)

    def start_resend(self, keys: RowKeys, defect: Defect | None, check: Callable[[bool], object]) -> None:
        """Mark answers with a defect for replacement, and accept all others under the settings of ``keys``.

        If an earlier resend was interrupted, it is continued, and no new one begins.

        Args:
            defect: ``None`` to replace no answer.
            check: called before a new resend begins; its argument is true if the file has a line for every
                row.

        Raises:
            OutputLost: the file cannot be rewritten and stays unchanged.
        """
        places, resend = set[int | None](), None
        for _, content in self.survey():
            places.add(place_of(content, keys))
            resend = resend or resend_id(content)
        if not self._end:
            return
        begun = None
        if resend is None:
            check(len(places) >= len(keys) - keys.skipped * (keys.n - 1))
            begun = secrets.token_hex(4)

        def line_of(line: bytes) -> bytes:
            content = decoded_line(line)
            if content is None or (place := place_of(content, keys)) is None:
                return line
            if not is_of_prompt(content, keys[place]):
                return line
            content = with_key(content, keys[place].hex())
            if begun is not None and defect in defects_of(figures_of(content)):
                content = to_resend(content, begun)
            return to_line(content)

        with self.reader() as file:
            self.rewrite(map(line_of, file), "resending")

    def recover(self, keys: RowKeys) -> Recovered:
        """Read the output of an earlier run, remove an incomplete last line, and remember the answered rows.

        Raises:
            InputError: the file belongs to another input or model, or is not the output of a run.
        """
        self._end, self._digest = 0, hashlib.sha256()
        self._offsets = array("q", [-1]) * len(keys)
        self._answered = bytearray((len(keys) + 7) // 8)
        self._resent, self.resend = set(), None
        found = Recovered()
        try:
            with self.reader() as file:
                self._scan(file, keys, found)
            if os.fstat(self._fd).st_size > self._end and not self._look_only:
                os.ftruncate(self._fd, self._end)
        except OSError as error:
            raise InputError(f"{self.shown}: cannot be read: {error.strerror or error}") from error
        return found

    def append(self, rows: Sequence[OutputRow]) -> None:
        """Write the lines of some rows. Once written, they survive the process.

        Raises:
            OutputChanged: another program changed the file, so nothing was written. The rows count as
                answered.
            OutputLost: the disk is full, or the file is closed. Everything written earlier is complete.
        """
        with self._writing:
            try:
                self._check_name_and_size()
            except OutputChanged:
                for row, _, answered in rows:
                    self._mark(row.place, answered)
                raise
            if self._resent:
                rows = [self._replacing(row) for row in rows]
            written = b"".join([line for _, line, _ in rows])
            self._write(written)
            self._digest.update(written)
            for row, line, answered in rows:
                self._record(row.place, answered)
                self._end += len(line)

    def _replacing(self, row: OutputRow) -> OutputRow:
        keyed, line, _ = row
        if keyed.place not in self._resent:
            return row
        return keyed, *replacing(line, decode_json(self.line_at(self._offsets[keyed.place])))

    def line_at(self, offset: int) -> bytes:
        """Read a line without moving the write position."""
        found = b""
        while b"\n" not in found and (more := os.pread(self._fd, _READ_BYTES, offset + len(found))):
            found += more
        return found.partition(b"\n")[0]

    def put_in_order(self) -> None:
        """Rewrite the file with one line per row, in input order. Nothing can be written afterwards.

        Raises:
            OutputChanged: another program changed the file, which stays unchanged.
            OutputLost: the ordered copy cannot be written. The file stays complete, in order of completion.
        """
        if self._in_order:
            return
        with self.reader() as source:
            self.rewrite(self._ordered_lines(source), "ordering")

    def finish(self, *, asked: bool) -> None:
        """Put the output in order. If anything was sent, flush it to disk and verify it.

        Raises:
            OutputChanged, OutputLost: see :meth:`put_in_order`, :meth:`sync` and :meth:`check`.
        """
        self.put_in_order()
        if asked:
            self.sync()
            self.check()

    def _ordered_lines(self, source: IO[bytes]) -> Iterator[bytes]:
        for offset in self._offsets:
            if offset >= 0:
                source.seek(offset)
                yield source.readline()

    def rewrite(self, lines: Iterable[bytes], purpose: str) -> None:
        """Replace the file with one that has other lines; raises the errors of :meth:`put_in_order`.

        Args:
            purpose: suffix of the temporary file's name.
        """
        copy, digest, size = -1, hashlib.sha256(), 0
        try:
            with replaced(self._real, purpose, mode=0o600, check=self.check) as target:
                # Lock the copy before it is renamed, so that no other run uses it before this one has
                # finished.
                lock_file(target.fileno())
                os.fchmod(target.fileno(), stat.S_IMODE(os.fstat(self._fd).st_mode))
                copy = os.dup(target.fileno())
                for line in lines:
                    target.write(line)
                    digest.update(line)
                    size += len(line)
            self._fd, copy = copy, self._fd
        except OSError as error:
            raise OutputLost(
                f"{self.shown}: cannot be put in order: {error.strerror or error}; every answered row is in "
                "it, in the order of completion. Free some space and run the same command again"
            ) from error
        finally:
            if copy >= 0:
                os.close(copy)
        self._end, self._digest, self._in_order = size, digest, True

    def sync(self) -> None:
        """Flush the file and its directory entry to disk, so that they survive a power failure.

        Raises:
            OutputLost: writing to disk failed.
        """
        try:
            os.fsync(self._fd)
            sync_folder(os.path.dirname(self._real))
        except OSError as error:
            raise OutputLost(f"{self.shown}: cannot be written: {error.strerror or error}") from error

    def check(self) -> None:
        """Compare the file at the output's path with everything that was written, byte for byte.

        Raises:
            OutputChanged: it differs; the error says how.
            OutputLost: it cannot be read.
        """
        self._check_name_and_size()
        try:
            with self.reader() as file:
                found = hashlib.file_digest(file, "sha256")
        except OSError as error:
            raise OutputLost(f"{self.shown}: cannot be read: {error.strerror or error}") from error
        if found.digest() != self._digest.digest():
            self._changed = self._change("no longer contains what was written")
            raise self._changed

    def _check_name_and_size(self) -> None:
        """Raise if the output's path now leads to another file, or if the file's size differs from what was
        written.

        A detected change is permanent, because lines are missing from then on.
        """
        try:
            here = os.fstat(self._fd)
            there = os.stat(self.path)
        except FileNotFoundError:
            what = "is gone: it was deleted or moved away"
        except OSError as error:
            raise OutputLost(f"{self.shown}: cannot be written: {error.strerror or error}") from error
        else:
            if not os.path.samestat(here, there):
                what = "is another file now: it was rotated, or an editor saved it"
            elif here.st_size != self._end:
                what = f"has {here.st_size:,} bytes, but {self._end:,} were written"
            else:
                what = ""
        if what and self._changed is None:
            self._changed = self._change(what)
        if self._changed is not None:
            raise self._changed

    def _change(self, what: str) -> OutputChanged:
        return OutputChanged(
            f"{self.shown} {what}, while this run was writing to it. The file stays unchanged, and the store "
            "keeps every answer of this run: run the same command again to write the missing answers without "
            "paying for them twice"
        )

    def _open(self) -> int:
        require_locks()
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW  # links have already been resolved
        if self._look_only:
            flags = os.O_RDONLY | os.O_NONBLOCK  # opening a pipe would wait for its writer
        elif is_foreign_link(self.path):  # in a shared folder, such a link may point to any file of this user
            text = "is a symbolic link owned by another user; remove it, or choose another -o"
            raise InputError(f"{self.shown}: {text}")
        try:
            while True:
                fd = os.open(self._real, flags, 0o666)
                try:
                    self._check_and_lock(fd)
                    # A run that has just ended may have replaced or removed the file.
                    with suppress(FileNotFoundError):
                        if self._look_only or os.path.samestat(os.fstat(fd), os.stat(self._real)):
                            return fd
                except BaseException:
                    os.close(fd)
                    raise
                os.close(fd)
        except OSError as error:
            verb = "read" if self._look_only else "written"
            raise InputError(f"{self.shown}: cannot be {verb}: {error.strerror or error}") from error

    def reader(self) -> BufferedReader:
        """Open the locked file itself, even if its name has changed."""
        file = open(os.dup(self._fd), "rb")  # noqa: SIM115 - the caller closes it
        file.seek(0)
        return file

    def _check_and_lock(self, fd: int) -> None:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            instead = "" if self._look_only else "; omit -o to write to standard output"
            raise InputError(f"{self.shown}: is not a regular file{instead}")
        if self._look_only:
            return
        if not os.access(os.path.dirname(self._real), os.W_OK):
            raise InputError(f"{self.shown}: its folder is not writable, so the file cannot be put in order")
        try:
            lock_file(fd)
        except BlockingIOError:
            raise InputError(
                f"{self.shown}: another run is writing to it; wait until it finishes, or choose another -o"
            ) from None

    def _scan(self, file: BufferedReader, keys: RowKeys, found: Recovered) -> None:
        for number, line in enumerate(file, 1):
            content, place = line_of_row(line, keys)
            if content is None:
                content = self._content(number, line, file)
                if content is None:
                    found.cut = len(line)
                    return
                if (problem := mismatch(number, content, keys)) is not None:
                    kind = InputError if sample_of(content) >= keys.n else OutputDiffers
                    raise kind(f"{self.shown} {problem}")
            if not line.endswith(b"\n"):
                if not self._look_only:
                    self._write(b"\n")
                line += b"\n"
            if place is None or self.is_answered(place):
                self._in_order = False
            else:
                self._find(content, place, found, is_skipped=keys.is_skipped(place))
            self._digest.update(line)
            self._end += len(line)

    def _find(self, content: dict[str, Any], place: int, found: Recovered, *, is_skipped: bool) -> None:
        answered, figures = is_answer(content), figures_of(content)
        if is_skipped:
            found.skipped += 1
            self._record(place, answered=True)
            return
        replaced, resend = replaced_amounts(content), resend_id(content)
        if place in self._resent:
            found.resent -= 1
            if replaced is not None:
                found.amounts.add_line(replaced, (), sign=-1)
        elif self._offsets[place] >= 0:
            found.failed -= 1
        if answered:
            found.answered += 1
            found.amounts.add_line(figures, defects_of(figures))
        elif resend is not None and replaced is not None:
            found.resent += 1
            found.amounts.add_line(figures, ())
            self._resent.add(place)
            self.resend = resend
        else:
            found.failed += 1
        self._record(place, answered)

    def _content(self, number: int, line: bytes, rest: BufferedReader) -> dict[str, Any] | None:
        """Decode a line; return ``None`` for an incomplete last line, which is removed."""
        reason = "was not written by smartbatch run"
        try:
            content = decode_json(line)
            if is_output_line(content):
                own: dict[str, Any] = content
                return own
        except (ValueError, RecursionError):
            # If the file has a single incomplete line, accept it only if it begins like an output.
            if number > 1 or line.startswith(LINE_START) or LINE_START.startswith(line):
                if not (line.endswith(b"\n") and rest.peek()):
                    return None
                reason = "is not valid JSON"
        raise InputError(
            f"{self.shown}: line {number} {reason}; choose another -o to send every row again, or repair or "
            "move the file: then the same command writes the stored answers of this run without paying for "
            "them twice"
        )

    def _record(self, place: int, answered: bool) -> None:
        if place <= self._highest:
            self._in_order = False
        self._highest = max(self._highest, place)
        self._offsets[place] = self._end
        self._mark(place, answered)

    def _mark(self, place: int, answered: bool) -> None:
        if answered:
            self._resent.discard(place)
            self._answered[place >> 3] |= 1 << (place & 7)

    def _write(self, data: bytes) -> None:
        """Append all of ``data`` or nothing."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            if len(view) < len(data):
                with suppress(OSError):
                    os.ftruncate(self._fd, self._end)
            full = "; free some space and run the same command again" if error.errno == errno.ENOSPC else ""
            raise OutputLost(
                f"{self.shown}: cannot be written: {error.strerror or error}; what was written is kept{full}"
            ) from error


@contextmanager
def replaced(
    path: str, purpose: str, *, mode: int = 0o666, check: Callable[[], object] = lambda: None
) -> Iterator[IO[bytes]]:
    """Yield a temporary file next to ``path``, which replaces ``path`` once it is complete.

    Args:
        purpose: suffix of the temporary name.
        mode: permissions of the file, before the umask.
        check: called when the file is on disk. If it raises, ``path`` is not replaced.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{purpose}")
    with open(_new_file(temporary, mode), "w+b") as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            check()
            os.replace(temporary, path)
            sync_folder(os.path.dirname(path) or os.curdir)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise


def _new_file(path: str, mode: int) -> int:
    """Create a file and return its descriptor, removing one left by a killed process of this user.

    Raises:
        OutputLost: another file has the name. In a shared folder, it may be a link to any file.
    """
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        pass
    else:
        if not stat.S_ISREG(there.st_mode) or there.st_uid != os.geteuid():
            what = "belongs to another user" if stat.S_ISREG(there.st_mode) else "is not a regular file"
            raise OutputLost(
                f"{escape(path)} {what}, and blocks a temporary file; remove it, or choose another folder"
            )
        os.unlink(path)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
