"""Which owners are alive: each store object that owns jobs holds a lock that is free when its process dies.

On one machine the lock is a ``flock`` on a file: the kernel frees it on any death, and neither clocks nor
suspends matter. The descriptor is closed on exec, and in a forked child: a copy there would keep the lock of
a dead parent.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Collection
from random import Random

from smartbatch.errors import StoreError
from smartbatch.jobs.store.checks import private_folder

__all__ = ["FileOwners", "Owners"]


class Owners(ABC):
    """The locks of a store's owners, its own among them.

    Args:
        rng: random numbers for ids.

    Attributes:
        own: this store object's id as an owner; ``None`` before :meth:`become`.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.own: str | None = None

    def new_id(self) -> str:
        """Return an id nobody has by any likely chance; the table of owners settles the unlikely one."""
        return f"{socket.gethostname()[:40]}-{os.getpid()}-{self._rng.getrandbits(64):016x}"

    @abstractmethod
    def become(self, owner: str) -> bool:
        """Lock ``owner`` as one's own; False when somebody has it.

        Raises:
            StoreError: the lock cannot be had.
        """

    def keep(self) -> None:
        """Make sure that the own lock is still held."""

    @abstractmethod
    def alive(self, owner: str) -> bool:
        """Return False only when the system knows that the owner is dead."""

    @abstractmethod
    def leave(self) -> None:
        """Release the own lock, and delete what stands for it."""

    @abstractmethod
    def abandon(self) -> None:
        """Drop the own lock without telling anybody: a forked child closes its copy of it only."""

    def sweep(self, known: Collection[str]) -> None:
        """Delete what dead owners left, but for the ``known``."""


class FileOwners(Owners):
    """Owners on one machine, each with a locked file in ``folder``."""

    def __init__(self, folder: str, rng: Random) -> None:
        super().__init__(rng)
        self._folder = folder
        self._lock = -1

    def become(self, owner: str) -> bool:
        path = self._path(owner)
        try:
            private_folder(self._folder)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"the folder {self._folder} cannot be written ({error.strerror}): the store keeps its locks"
                " there; make it writable, or name another store"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = os.fstat(lock).st_ino == os.stat(path).st_ino  # else another process deleted it meanwhile
        except OSError:
            ours = False
        if not ours:
            os.close(lock)
            return False
        self._lock, self.own = lock, owner
        return True

    def alive(self, owner: str) -> bool:
        """Look whether the lock is free. A file that is missing proves nothing: then the lease decides."""
        try:
            lock = os.open(self._path(owner), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return True
        try:
            # shared: two who look at the same time must not take each other for the owner
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except OSError:
            return True
        finally:
            os.close(lock)

    def leave(self) -> None:
        if self._lock < 0 or self.own is None:
            return
        with contextlib.suppress(OSError):
            os.unlink(self._path(self.own))
        self.abandon()

    def abandon(self) -> None:
        lock, self._lock, self.own = self._lock, -1, None
        if lock >= 0:
            os.close(lock)  # never LOCK_UN: that would free the parent's lock as well

    def sweep(self, known: Collection[str]) -> None:
        """Delete the files of dead owners."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self._folder):
                owner = name.removesuffix(".lock")
                if name.endswith(".lock") and owner not in known and owner != self.own:
                    self._delete_dead(self._path(owner))

    def _delete_dead(self, path: str) -> None:
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            finally:
                os.close(lock)

    def _path(self, owner: str) -> str:
        return os.path.join(self._folder, f"{owner}.lock")
