"""What one process worked out and the next need not, in the user's state folder: small values in JSON files,
and many bytes in files of their own.

What is kept belongs to something, such as a version of a table; kept for anything else, it is gone. A file
that cannot be read or written, or is damaged, is as good as none: all of it can be worked out again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any

from smartbatch._files import check_own, own_folder, state_folder
from smartbatch.errors import StoreError

MOST = 256
"""Values in one file; the oldest go first."""
MOST_FILES = 8
"""Files of bytes of one kind; the oldest go first."""
_DIGEST = hashlib.sha256().digest_size


def read_kept(name: str, of: str) -> dict[str, Any]:
    """Return the values that the file ``name`` keeps for ``of``, by their keys."""
    path = os.path.join(state_folder(), name)
    try:
        check_own(path)
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return dict(found["values"]) if found["of"] == of else {}
    except (OSError, StoreError, ValueError, TypeError, KeyError):
        return {}


def keep(name: str, of: str, values: Mapping[str, Any]) -> None:
    """Add values to the file ``name``; they must be fit for JSON. Of two processes that write at the same
    moment one wins.
    """
    known = {**read_kept(name, of), **values}
    last = dict(list(known.items())[-MOST:])
    with suppress(OSError, StoreError), _replaced(os.path.join(state_folder(), name)) as file:
        file.write(json.dumps({"of": of, "values": last}).encode())


def read_kept_bytes(kind: str, of: str) -> bytearray | None:
    """Return the bytes of a kind that are kept for ``of``."""
    path = _path_of(kind, of)
    try:
        check_own(path)
        with open(path, "rb") as file:
            found = bytearray(os.fstat(file.fileno()).st_size)
            file.readinto(found)
    except (OSError, StoreError):
        return None
    digest = bytes(found[:_DIGEST])
    del found[:_DIGEST]
    return found if digest == _digest(of, found) else None


def keep_bytes(kind: str, of: str, *parts: bytes | bytearray) -> None:
    """Keep bytes of a kind for ``of``, in place of the oldest where there are many.

    Args:
        kind: the name of a folder that has nothing else in it.
        parts: the bytes.
    """
    path = _path_of(kind, of)
    with suppress(OSError, StoreError), _replaced(path) as file:
        file.write(_digest(of, *parts))
        file.writelines(parts)
    with suppress(OSError):
        there = sorted(os.scandir(os.path.dirname(path)), key=lambda entry: entry.stat().st_mtime_ns)
        for entry in there[:-MOST_FILES]:
            os.unlink(entry)


def forget_bytes(kind: str, of: str) -> None:
    """Delete what is kept of a kind for ``of``."""
    with suppress(OSError):
        os.unlink(_path_of(kind, of))


def _path_of(kind: str, of: str) -> str:
    return os.path.join(state_folder(), kind, hashlib.sha256(of.encode()).hexdigest())


def _digest(of: str, *parts: bytes | bytearray) -> bytes:
    digest = hashlib.sha256(f"{of}\n".encode())
    for part in parts:
        digest.update(part)
    return digest.digest()


@contextmanager
def _replaced(path: str) -> Iterator[IO[bytes]]:
    """Yield a new file, which takes its name once it is written."""
    part = f"{path}.{os.getpid()}"
    own_folder(os.path.dirname(path))
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            yield file
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
