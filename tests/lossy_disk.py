"""A disk that loses unsynced data in a power failure."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

__all__ = ["LossyDisk"]


class LossyDisk:
    """What of a folder, and of those in it, survives a loss of power at any moment.

    Bytes of a file survive as they were at its last sync, a name as it was at the last one of its folder. A
    name may also reach the disk by itself, before the bytes do. What is there at first is on the disk.

    Args:
        patch: has :func:`os.fsync` noted until the end of the test.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._held: list[int] = []
        for path in (folder, *folder.rglob("*")):
            fd = os.open(path, os.O_RDONLY)
            self._note(fd)
            os.close(fd)
        fsync: Callable[[int], None] = os.fsync

        def noted(fd: int) -> None:
            fsync(fd)
            self._note(fd)

        patch.setattr(os, "fsync", noted)

    def survivors(self, *, names_kept: bool) -> dict[str, bytes]:
        """Return the files that would survive a power failure now, by path within the folder.

        Args:
            names_kept: names reached the disk although their folders were not synced.
        """
        found: dict[str, bytes] = {}
        self._collect(self._folder, "", names_kept, found)
        return found

    def _collect(self, folder: Path, prefix: str, names_kept: bool, found: dict[str, bytes]) -> None:
        now = _names(folder)
        for name, inode in (now if names_kept else self._names.get(folder.stat().st_ino, {})).items():
            if now.get(name) == inode and (folder / name).is_dir():
                self._collect(folder / name, f"{prefix}{name}/", names_kept, found)
            else:
                found[prefix + name] = self._bytes.get(inode, b"")

    def _note(self, fd: int) -> None:
        """Record what is on disk now. Holding the inode keeps its number from being reused."""
        status = os.fstat(fd)
        path = Path(f"/proc/self/fd/{fd}")
        self._held.append(os.open(path, os.O_RDONLY))  # a copy of fd would share its lock
        if stat.S_ISDIR(status.st_mode):
            self._names[status.st_ino] = _names(path)
        else:
            self._bytes[status.st_ino] = path.read_bytes()

    def close(self) -> None:
        for fd in self._held:
            os.close(fd)


def _names(folder: Path) -> dict[str, int]:
    return {entry.name: entry.inode() for entry in os.scandir(folder)}
