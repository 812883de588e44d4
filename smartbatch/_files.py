"""Files and folders for this user only, written atomically; file locks; and the user's state folder."""

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
    """Return this user's folder for program state (XDG base directories, ``XDG_STATE_HOME``)."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):  # the specification: a relative path is to be ignored
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "smartbatch")


def require_locks() -> None:
    """Check that the system has file locks and owners of files, as Linux and macOS do.

    Raises:
        StoreError: it does not; the message says what needs them, and where they exist.
    """
    if not HAS_LOCKS:
        raise StoreError(
            "this system has no file locks (the Python module fcntl), which stores, shared limits and "
            "output files need: use Linux, macOS or the Windows Subsystem for Linux; requests and lists "
            "without a key work here, with shared='off'"
        )


def lock_file(fd: int, *, shared: bool = False, wait: bool = False) -> None:
    """Lock an open file, until its last descriptor is closed.

    Args:
        shared: together with other shared locks.
        wait: until others release it.

    Raises:
        StoreError: as :func:`require_locks`.
        OSError: others hold it (``BlockingIOError``), or its file system has no locks.
    """
    require_locks()
    fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


def new_file(path: str) -> int:
    """Create a file for its owner only, or open this user's existing one, and return its descriptor.

    Raises:
        StoreError: another user planted a file or link of that name; the message says what to do.
        OSError: it cannot be created.
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
    """Raise StoreError for a file that belongs to another user."""
    if os.lstat(path).st_uid != os.geteuid():
        raise _foreign(f"the file {path} belongs to another user")


def check_logs(path: str) -> None:
    """Raise StoreError if another user put a log next to an SQLite file, which SQLite would apply to it."""
    for ending in ("-wal", "-shm", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            owner = os.lstat(path + ending).st_uid
            if owner not in (os.geteuid(), os.stat(path).st_uid):
                raise _foreign(f"the file {path}{ending} belongs to another user")


def inode_of(path: str) -> tuple[int, int]:
    """Return the device and inode of a file, which distinguish it from another of its name.

    Raises:
        OSError: it cannot be read; FileNotFoundError if it does not exist.
    """
    found = os.stat(path)
    return found.st_dev, found.st_ino


def resolved_file(path: str) -> str:
    """Return the real path of a file that is opened, or created if it does not exist.

    Raises:
        StoreError: it would be created where another user's link leads.
    """
    path = os.path.expanduser(path)
    found = os.path.realpath(path)
    if not os.path.exists(found) and is_foreign_link(path):
        raise _foreign(f"the file {path} is a symbolic link of another user")
    return found


def is_foreign_link(path: str) -> bool:
    """Whether a path is a symbolic link made by neither this user nor root."""
    return os.path.islink(path) and os.lstat(path).st_uid not in (os.geteuid(), 0)


def own_folder(folder: str) -> None:
    """Create a folder for its owner only; an existing one must be this user's.

    Its content is sent, trusted or overwritten, and contains prompts and answers.

    Raises:
        StoreError: it is another user's, or a link or a file; the message says what to do.
        OSError: it cannot be created.
    """
    private_folder(folder)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise _foreign(f"the folder {folder} is a symbolic link")
    if found.st_uid != os.geteuid():
        raise _foreign(f"the folder {folder} belongs to another user")
    if found.st_mode & 0o077:
        with contextlib.suppress(OSError):  # some file systems know no permissions
            os.chmod(folder, 0o700)


def _foreign(what: str) -> StoreError:
    return StoreError(
        f"{what}: others could read prompts and answers, and change them; remove it, or name another store"
    )


def private_folder(folder: str) -> None:
    """Create a folder and its missing parents for their owner only, whatever the umask is.

    Raises:
        StoreError: the system has no owners of files, see :func:`require_locks`.
        OSError: it cannot be created.
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
    with contextlib.suppress(PermissionError):  # a folder that is writable but not readable
        sync_folder(above)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Flush the names in a folder to the disk, so that they survive a power failure.

    Raises:
        OSError: the disk does not accept them.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, partial: Path, pieces: Iterable[bytes]) -> None:
    """Write ``pieces`` to ``partial``, for its owner only, and rename it to ``path`` once it is on the disk.

    If the pieces or the disk fail, ``partial`` is deleted: on a full disk the store needs the room.

    Raises:
        StoreError: the disk is full, or the folder cannot be written.
        FileNotFoundError: ``partial`` was deleted by a process that took over the job and finished it.
        Exception: any error of ``pieces``.
    """
    with _disk_errors(path):
        partial.unlink(missing_ok=True)  # left by a process that died; never written through a link
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = open(os.open(partial, flags, 0o600), "wb")  # noqa: SIM115
    try:
        for piece in pieces:
            with _disk_errors(path):
                file.write(piece)
        with _disk_errors(path):
            file.flush()
            os.fsync(file.fileno())  # else a power failure may leave a truncated file
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
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(
            f"the folder {path.parent} cannot be written ({error.strerror}); it contains files being "
            "uploaded or downloaded: free some disk space, and the job continues automatically"
        ) from None
