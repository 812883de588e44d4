"""The files clients put into the house."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable

from smartbatch.emulator.batches.batch_records import BatchBackendError, RemoteFile

__all__ = ["Account", "Files"]

Account = tuple[str, str]
"""An API's name and the key: whose things they are."""


class Files:
    """All files that were put. Its owner holds the lock.

    Args:
        name: makes the id of the file of a number.
    """

    def __init__(self, name: Callable[[int], str]) -> None:
        self._name = name
        self._kept: dict[Account, dict[str, RemoteFile]] = defaultdict(dict)
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
    ) -> RemoteFile:
        """Keep a file; see :meth:`smartbatch.emulator.batches.backend.House.put_file`."""
        kept = self._kept[account]
        if identity is None:
            identity = self._name(self._uploads)
            self._uploads += 1
        elif self.get(account, identity, now) is not None:
            raise BatchBackendError("exists", f"File {identity} already exists.")
        kept.pop(identity, None)  # a new one is the newest, also under an old name
        kept[identity] = RemoteFile(identity, name, purpose, data, now, now + lifetime)
        return kept[identity]

    def get(self, account: Account, file_id: str, now: float) -> RemoteFile | None:
        """Return a file; ``None`` for one that never was or is no more."""
        file = self._kept[account].get(file_id)
        return file if file is not None and now < file.expires_at else None

    def all(self, account: Account, now: float) -> list[RemoteFile]:
        """Return the files of an account, the newest first."""
        return [file for file in reversed(self._kept[account].values()) if now < file.expires_at]

    def delete(self, account: Account, file_id: str) -> None:
        """Delete a file that is there."""
        del self._kept[account][file_id]
