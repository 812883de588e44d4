"""The files that clients uploaded to the batch backend."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable

from smartbatch.emulator.batches.batch_records import BatchBackendError, StoredFile

Account = tuple[str, str]
"""An API's name and the key: the owner of files and batches."""


class Files:
    """All uploaded files. Callers hold the backend's lock.

    Args:
        name: makes a file id from the number of an upload.
    """

    def __init__(self, name: Callable[[int], str]) -> None:
        self._name = name
        self._files: dict[Account, dict[str, StoredFile]] = defaultdict(dict)
        self._uploads = 0

    def put(
        self,
        account: Account,
        name: str,
        data: bytes,
        now: float,
        *,
        identity: str | None,
        purpose: str,
        lifetime: float = math.inf,
    ) -> StoredFile:
        """Store a file; see :meth:`smartbatch.emulator.batches.backend.BatchBackend.put_file`."""
        files = self._files[account]
        if identity is None:
            identity = self._name(self._uploads)
            self._uploads += 1
        elif self.get(account, identity, now) is not None:
            raise BatchBackendError("exists", f"File {identity} already exists.")
        files.pop(identity, None)  # a file that replaces an expired one is the newest
        files[identity] = StoredFile(identity, name, purpose, data, now, now + lifetime)
        return files[identity]

    def get(self, account: Account, file_id: str, now: float) -> StoredFile | None:
        """Return a file; ``None`` for an unknown, deleted or expired one."""
        file = self._files[account].get(file_id)
        return file if file is not None and now < file.expires_at else None

    def all(self, account: Account, now: float) -> list[StoredFile]:
        """Return the files of an account, newest first."""
        return [file for file in reversed(self._files[account].values()) if now < file.expires_at]

    def delete(self, account: Account, file_id: str) -> None:
        """Delete an existing file."""
        del self._files[account][file_id]
