"""Local files on their way to and from the provider: there as a whole, synced, or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from smartbatch.errors import StoreError

__all__ = ["write_whole"]


def write_whole(path: Path, partial: Path, pieces: Iterable[bytes]) -> None:
    """Write ``pieces`` into ``partial``, which becomes ``path`` when all of it is on the disk.

    Where the pieces or the disk fail, ``partial`` is deleted: on a full disk the store needs its room.

    Raises:
        StoreError: the disk is full, or the folder cannot be written.
        FileNotFoundError: ``partial`` was deleted meanwhile, by whoever took the job over and has ended it.
        Exception: whatever ``pieces`` raise.
    """
    file = _File(path, partial)
    try:
        for piece in pieces:
            file.write(piece)
        file.end()
    except BaseException:
        file.drop()
        raise


class _File:
    """The file of :func:`write_whole`; what its own system calls fail with is told as a StoreError."""

    def __init__(self, path: Path, partial: Path) -> None:
        self._path = path
        self._partial = partial
        try:
            self._file = open(partial, "wb")  # noqa: SIM115
        except OSError as error:
            raise self._told(error) from None

    def write(self, piece: bytes) -> None:
        try:
            self._file.write(piece)
        except OSError as error:
            raise self._told(error) from None

    def end(self) -> None:
        try:
            self._file.flush()
            os.fsync(self._file.fileno())  # else a loss of power may leave a name with half of its content
            self._file.close()
            self._partial.replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._told(error) from None

    def drop(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()  # writes what is buffered, which may fail again
        with contextlib.suppress(OSError):
            self._partial.unlink(missing_ok=True)

    def _told(self, error: OSError) -> Exception:
        if isinstance(error, FileNotFoundError):
            return error
        return StoreError(
            f"the folder {self._path.parent} cannot be written ({error.strerror}): files on their way to and "
            "from the provider lie there; make room for it, and the job goes on by itself"
        )
