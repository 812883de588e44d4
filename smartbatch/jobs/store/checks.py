"""Checks whether an SQLite file can be a store, and explains its errors to people."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterable

from smartbatch._files import private_folder
from smartbatch.errors import StoreError, scrub

NETWORKED = re.compile(
    r"9p|afs|beegfs|ceph|cifs|gfs2|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|orangefs|panfs|smb3|smbfs|vboxsf"
    r"|fuse\.(ceph|cephfs|gcsfuse|glusterfs|juicefs|mount\.glusterfs|rclone|s3fs|sshfs)"
)
"""File systems whose locks and shared memory do not hold between machines, which the log of SQLite needs
(sqlite.org/wal.html: "all processes using a database must be on the same host computer")."""
GONE = (
    "the store's file {path} was deleted or replaced while it was in use: nothing was written and nothing is"
    " sent; bring the file back together with its -wal file, or start again with another store"
)
_MOUNTS = "/proc/self/mountinfo"
_ESCAPED = re.compile(r"\\([0-7]{3})")  # spaces and such in the list of mounts


def prepare_folder(path: str, mounts: Iterable[str] | None = None) -> None:
    """Make the folder of the file ``path`` if need be, for its owner only.

    Args:
        mounts: lines of ``/proc/self/mountinfo``.

    Raises:
        StoreError: the folder cannot be made, or is on a network file system.
    """
    folder = os.path.dirname(path)
    kind = file_system(folder, _mounts() if mounts is None else mounts)
    if kind is not None and NETWORKED.fullmatch(kind):
        raise StoreError(
            f"the store {path} would be on a network file system ({kind}), where the locks of SQLite do not"
            " hold and jobs could be lost or sent twice; name a path on a local disk (SMARTBATCH_STORE), or a"
            " PostgreSQL server to share jobs between machines"
        )
    try:
        private_folder(folder)
    except OSError as error:
        raise explained(error, path, 0.0) from None
    if os.path.isdir(path):
        raise StoreError(f"the store {path} is a folder; name a file in it, such as {path}/jobs.db")


def file_system(folder: str, mounts: Iterable[str]) -> str | None:
    """Return the kind of file system ``folder`` is or will be on; ``None`` where that is unknown.

    The lines are described in proc(5): the mount point is the fifth word, the kind the one after ``-``.
    """
    folder = os.path.realpath(folder)
    best, kind = "", None
    for line in mounts:
        words = line.split()
        if len(words) < 5 or "-" not in words:
            continue
        point = _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), words[4])
        inside = folder == point or folder.startswith(point.rstrip("/") + "/")
        # a later mount on the same point hides the earlier one
        if inside and len(point) >= len(best):
            best, kind = point, words[words.index("-") + 1]
    return kind


def _mounts() -> list[str]:
    try:
        with open(_MOUNTS, encoding="utf-8", errors="replace") as lines:
            return lines.readlines()
    except OSError:
        return []


def check_whole(connection: sqlite3.Connection, path: str) -> None:
    """Raise StoreError when SQLite finds the file damaged."""
    found = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found is None or found[0] != "ok":
        raise StoreError(_damaged(path, scrub(str(found[0] if found else "no answer"))))


def is_damage(error: Exception) -> bool:
    """True for an error after which nothing may be written to the file."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _damaged(path: str, reason: str) -> str:
    return (
        f"the store's file {path} is damaged ({reason}): it was left as it is; keep a copy of it with its"
        " -wal file, restore a backup or try `sqlite3 FILE .recover`, and name another store meanwhile"
    )


def explained(error: Exception, path: str, waited: float) -> StoreError:
    """Return an error of SQLite or of the system as what happened and what to do.

    Args:
        waited: seconds the busy time-out is.
    """
    reason = scrub(str(error))
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if isinstance(error, UnicodeEncodeError):
        return StoreError(f"the store {path} refuses a text with half a character (a lone surrogate) in it")
    if isinstance(error, OSError):
        return StoreError(f"the store {path} cannot be used ({error.strerror}): check folder and rights")
    if is_damage(error):
        return StoreError(_damaged(path, reason))
    told = {
        sqlite3.SQLITE_BUSY: f"is locked: another process has been writing for more than {waited:g} s; look"
        " for one that hangs (`fuser` names it), or try again",
        sqlite3.SQLITE_FULL: "cannot grow: the disk is full; make room, reading works meanwhile",
        sqlite3.SQLITE_READONLY: "is read-only: make file and folder writable, or name another store",
        sqlite3.SQLITE_CANTOPEN: "cannot be opened: check that folder and file exist and are writable",
        sqlite3.SQLITE_PERM: "cannot be opened: make file and folder writable, or name another store",
        sqlite3.SQLITE_IOERR: "cannot be written: the disk is full or failing, or a limit of file sizes is"
        " reached; nothing of this write counts",
    }.get(code, "refused a statement")
    return StoreError(f"the store {path} {told} ({reason})")
