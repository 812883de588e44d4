"""Local files on their way to and from a provider: whole, or not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from smartbatch._files import sync_folder
from smartbatch.errors import StoreError


def write_whole(path: Path, partial: Path, pieces: Iterable[bytes]) -> None:
    """Write ``pieces`` into ``partial``, for its owner only, and rename it to ``path`` when all of it is on
    the disk.

    Where the pieces or the disk fail, ``partial`` is deleted: on a full disk the store needs the room.

    Raises:
        StoreError: the disk is full, or the folder cannot be written.
        FileNotFoundError: ``partial`` was deleted by a process that took the job over and has finished it.
        Exception: whatever ``pieces`` raise.
    """
    with _disk_errors(path):
        partial.unlink(missing_ok=True)  # of a process that died: it is made anew, and never through a link
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = open(os.open(partial, flags, 0o600), "wb")  # noqa: SIM115
    try:
        for piece in pieces:
            with _disk_errors(path):
                file.write(piece)
        with _disk_errors(path):
            file.flush()
            os.fsync(file.fileno())  # else a loss of power may leave a name with half of its content
            file.close()
            partial.replace(path)
            sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            file.close()  # writes what is buffered, which may fail again
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Raise what a system call fails with as a StoreError; a file that is gone stays FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(
            f"the folder {path.parent} cannot be written ({error.strerror}); it holds files that are being "
            "uploaded or downloaded: free some disk space, and the job continues by itself"
        ) from None
