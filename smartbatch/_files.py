"""Private files and folders, atomic writes, file locks, and the user's state folder."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from smartbatch.errors import StoreError

try:
    import fcntl
except ImportError:  # Windows
    HAS_LOCKS = False
else:
    HAS_LOCKS = True


def state_folder() -> str:
    """Return the folder for program state defined by the XDG specification (``XDG_STATE_HOME``)."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):  # the specification requires relative paths to be ignored
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "smartbatch")


def require_locks() -> None:
    """Raise StoreError on systems without file locks and file owners, such as Windows."""
    if not HAS_LOCKS:
        raise StoreError(
            "this system has no file locks (the Python module fcntl), which stores, shared limits and "
            "output files need: use Linux, macOS or the Windows Subsystem for Linux; requests and lists "
            "without a key work on this system, with shared='off'"
        )


def lock_file(fd: int, *, shared: bool = False, wait: bool = False) -> None:
    """Lock an open file until its last descriptor is closed.

    Args:
        shared: allow other shared locks.
        wait: wait until others release it.

    Raises:
        StoreError: the system has no file locks.
        OSError: the file is locked (``BlockingIOError``), or its file system has no locks.
    """
    require_locks()
    fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


def new_file(path: str) -> int:
    """Create a file for its owner only, or open this user's existing file, and return its descriptor.

    Raises:
        StoreError: another user created a file or link of that name.
        OSError: the file cannot be created.
    """
    require_locks()
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _foreign(f"the file {path} is a symbolic link") from None
    try:
        check_own(path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_own(path: str) -> None:
    """Raise StoreError if the file belongs to another user."""
    if os.lstat(path).st_uid != os.geteuid():
        raise _foreign(f"the file {path} belongs to another user")


def check_logs(path: str) -> None:
    """Raise StoreError if another user owns a log of an SQLite file, which SQLite would apply to the file."""
    for ending in ("-wal", "-shm", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            owner = os.lstat(path + ending).st_uid
            if owner not in (os.geteuid(), os.stat(path).st_uid):
                raise _foreign(f"the file {path}{ending} belongs to another user")


def inode_of(path: str) -> tuple[int, int]:
    """Return the device and inode, which distinguish a file from another of the same name."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


def resolved_file(path: str) -> str:
    """Return the real path of a file that will be opened or created.

    Raises:
        StoreError: the file does not exist, and the path is a link created by another user.
    """
    path = os.path.expanduser(path)
    found = os.path.realpath(path)
    if not os.path.exists(found) and is_foreign_link(path):
        raise _foreign(f"the file {path} is a symbolic link owned by another user")
    return found


def is_foreign_link(path: str) -> bool:
    """Whether a path is a symbolic link created by neither this user nor root."""
    return os.path.islink(path) and os.lstat(path).st_uid not in (os.geteuid(), 0)


def own_folder(folder: str) -> None:
    """Create a folder for its owner only, or check that this user owns an existing one.

    Its files contain prompts and answers, and are sent, trusted or overwritten.

    Raises:
        StoreError: the folder belongs to another user, or is a link or a file.
        OSError: the folder cannot be created.
    """
    private_folder(folder)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise _foreign(f"the folder {folder} is a symbolic link")
    if found.st_uid != os.geteuid():
        raise _foreign(f"the folder {folder} belongs to another user")
    if found.st_mode & 0o077:
        with contextlib.suppress(OSError):  # some file systems have no permissions
            os.chmod(folder, 0o700)


def _foreign(what: str) -> StoreError:
    return StoreError(
        f"{what}: others could read prompts and answers, and change them; remove it, or name another store"
    )


def private_folder(folder: str) -> None:
    """Create a folder and its missing parents for their owner only, regardless of the umask.

    Raises:
        StoreError: the system has no file owners.
        OSError: the folder cannot be created.
    """
    require_locks()
    if os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    if above != folder:
        private_folder(above)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
        return
    with contextlib.suppress(PermissionError):  # the folder is writable but not readable
        sync_folder(above)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Flush the names in a folder to disk, so that they survive a power failure."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, partial: Path, pieces: Iterable[bytes]) -> None:
    """Write ``pieces`` to ``partial``, for its owner only, and rename it to ``path`` once it is on disk.

    After an error ``partial`` is deleted, because on a full disk the store needs the space.

    Raises:
        StoreError: the disk is full, or the folder is not writable.
        FileNotFoundError: another process took over the job, finished it and deleted ``partial``.
        Exception: any error raised by ``pieces``.
    """
    with _disk_errors(path):
        partial.unlink(missing_ok=True)  # left by a process that died; a planted link is not followed
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = open(os.open(partial, flags, 0o600), "wb")  # noqa: SIM115
    try:
        for piece in pieces:
            with _disk_errors(path):
                file.write(piece)
        with _disk_errors(path):
            file.flush()
            os.fsync(file.fileno())  # otherwise a power failure may leave a truncated file
            file.close()
            partial.replace(path)
            sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            file.close()  # writes buffered data, which may fail again
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(
            f"the folder {path.parent} cannot be written to ({error.strerror}); it contains the files of "
            "jobs: free some disk space; jobs that were stored then continue automatically"
        ) from None
