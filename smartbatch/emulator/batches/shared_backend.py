"""A batch backend shared by several processes, which all replay a journal of changes.

The progress of a batch at any moment follows from its create and cancel calls, so nothing else is stored.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, overload

from attrs import evolve

from smartbatch.emulator.batches.backend import BatchBackend
from smartbatch.emulator.batches.batch_records import (
    BatchBackendError,
    BatchSnapshot,
    Entry,
    OutputLine,
    StoredFile,
)
from smartbatch.emulator.settings import EmulatorSettings

_ACCOUNT = ("sim", "")
_BLOCK_LINES = 1000  # lines of an input file in memory at the same time


class SharedBackend:
    """The files and batches of one folder. Thread-safe. Times are Unix seconds.

    Each change is a line of the journal, written immediately. All processes apply the lines in the same
    order, so they agree on the order of changes. A clock that is set back counts as stopped.

    Args:
        folder: contains the journal and the uploaded files; created if missing.
        settings: times of batches; a batch keeps those of the process that created it.
        read: parses a line of an input file.
    """

    def __init__(self, folder: Path, settings: EmulatorSettings, read: Callable[[bytes], Entry]) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._journal = folder / "journal"
        self._settings = settings
        self._read_entry = read
        self._lock = threading.RLock()
        self._forget()

    def upload(self, name: str, source: Path, now: float) -> StoredFile:
        file_id = f"file-{secrets.token_hex(12)}"
        shutil.copyfile(source, self._folder / file_id)
        found: StoredFile = self._change("put_file", now, name=name, identity=file_id)
        return found

    def files(self, now: float) -> list[StoredFile]:
        with self._lock:
            backend, now = self._current(now)
            return [file for file in backend.files(*_ACCOUNT, now) if file.batch is None]

    def size(self, file_id: str) -> int:
        return (self._folder / file_id).stat().st_size

    def delete_file(self, file_id: str, now: float) -> None:
        """Delete a file, if it exists. A batch created from it keeps its lines."""
        if self._change("delete_file", now, file_id=file_id):
            self._remove_unused(file_id, now)

    def create(self, file_id: str, mark: str, size: int, now: float) -> BatchSnapshot:
        """Create a batch from the ``size`` lines of a file.

        Raises:
            BatchBackendError: ``no_such_file``.
        """
        times = [self._settings.batch_validating, self._settings.batch_turnaround]
        found: BatchSnapshot = self._change(
            "create",
            now,
            file_id=file_id,
            label={"mark": mark},
            identity=f"batch_{secrets.token_hex(12)}",
            size=size,
            times=times,
        )
        return found

    def batch(self, batch_id: str, now: float) -> BatchSnapshot | None:
        with self._lock:
            backend, now = self._current(now)
            return backend.batch(*_ACCOUNT, batch_id, now)

    def batches(self, now: float) -> list[BatchSnapshot]:
        with self._lock:
            backend, now = self._current(now)
            return backend.batches(*_ACCOUNT, now)

    def cancel(self, batch_id: str, now: float) -> None:
        """Cancel a batch, if it exists and has not ended."""
        self._change("cancel", now, batch_id=batch_id)

    def delete(self, batch_id: str, now: float) -> None:
        batch = self.batch(batch_id, now)
        if self._change("delete", now, batch_id=batch_id) and batch is not None and batch.file_id is not None:
            self._remove_unused(batch.file_id, now)

    def outputs(self, batch_id: str, now: float) -> Iterable[OutputLine]:
        """Return the results of a batch that has ended, computed while they are read.

        Raises:
            BatchBackendError: ``not_found``, ``not_ended`` or ``gone``.
        """
        with self._lock:
            backend, now = self._current(now)
            return backend.outputs(*_ACCOUNT, batch_id, now)

    def _forget(self) -> None:
        self._backend = BatchBackend(self._settings, None)
        self._inode, self._offset, self._now = 0, 0, 0.0

    def _current(self, now: float) -> tuple[BatchBackend, float]:
        """Apply the changes of other processes, and return the backend and its time."""
        self._replay(now)
        self._now = max(self._now, now)
        return self._backend, self._now

    def _change(self, what: str, now: float, **details: Any) -> Any:
        token = secrets.token_hex(8)
        change = json.dumps({"what": what, "at": now, "token": token, **details})
        with self._lock:
            journal = os.open(self._journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                # a full disk may have truncated the previous line
                os.write(journal, f"\n{change}\n".encode())
            finally:
                os.close(journal)
            outcomes = self._replay(now)
        if token not in outcomes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if isinstance(outcome := outcomes[token], BatchBackendError):
            raise outcome
        return outcome

    def _replay(self, now: float) -> dict[str, Any]:
        """Apply the new lines of the journal and return their outcomes by token."""
        outcomes: dict[str, Any] = {}
        try:
            journal = open(self._journal, "rb")  # noqa: SIM115
        except FileNotFoundError:
            self._forget()
            return outcomes
        with journal:
            status = os.fstat(journal.fileno())
            # another process cleared the folder
            if status.st_ino != self._inode or status.st_size < self._offset:
                self._forget()
                self._inode = status.st_ino
            journal.seek(self._offset)
            for line in journal:
                if not line.endswith(b"\n"):
                    break  # another process is writing it
                self._offset += len(line)
                with suppress(ValueError):
                    change = json.loads(line)
                    token = change.pop("token")
                    outcomes[token] = self._apply(now, **change)
        return outcomes

    def _apply(self, now: float, what: str, at: float, **details: Any) -> Any:
        """Apply a change. If its results are no longer kept, skip it and its file."""
        if at < now - self._settings.batch_window - self._settings.batch_retention:
            if what == "put_file":
                (self._folder / details["identity"]).unlink(missing_ok=True)
            return None
        if what == "put_file":
            details["data"] = b""
        elif what == "create":
            validating, turnaround = details.pop("times")
            self._backend.configure(
                evolve(self._settings, batch_validating=validating, batch_turnaround=turnaround)
            )
            path = self._folder / details["file_id"]
            details["entries"] = InputFile(path, details.pop("size"), self._read_entry)
        self._now = max(self._now, at)
        try:
            return getattr(self._backend, what)(*_ACCOUNT, now=self._now, **details)
        except BatchBackendError as error:
            return error

    def _remove_unused(self, file_id: str, now: float) -> None:
        """Delete an uploaded file from disk unless it can still be used, or a batch was created from it."""
        named = [file.id for file in self.files(now)] + [batch.file_id for batch in self.batches(now)]
        if file_id not in named:
            (self._folder / file_id).unlink(missing_ok=True)


class InputFile(Sequence[Entry]):
    """The requests in an input file, read when needed.

    Args:
        size: number of lines.
        read: parses a line.
    """

    def __init__(self, path: Path, size: int, read: Callable[[bytes], Entry]) -> None:
        self._path = path
        self._size = size
        self._read = read
        self._lock = threading.Lock()
        self._starts = [0]
        self._block: tuple[int, list[bytes]] = -1, []

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, at: int) -> Entry: ...
    @overload
    def __getitem__(self, at: slice) -> list[Entry]: ...
    def __getitem__(self, at: int | slice) -> Entry | list[Entry]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(self._size))]
        block, place = divmod(at, _BLOCK_LINES)
        held = self._block
        if block != held[0]:
            held = self._block = block, self._lines(block)
        return self._read(held[1][place])

    def _lines(self, block: int) -> list[bytes]:
        with self._lock, open(self._path, "rb") as file:
            while True:
                file.seek(self._starts[min(block, len(self._starts) - 1)])
                lines = list(islice(file, _BLOCK_LINES))
                if block < len(self._starts):
                    return lines
                self._starts.append(file.tell())
