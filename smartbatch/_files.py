"""Files and folders for this user only, and where programs keep what lasts."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from smartbatch.errors import StoreError


def state_folder() -> str:
    """Return this user's folder for what programs keep (XDG base directories, ``XDG_STATE_HOME``)."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):  # the specification: a relative path is to be ignored
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "smartbatch")


def new_file(path: str) -> int:
    """Make a file for its owner only, or open one that is this user's, and return its descriptor.

    Raises:
        StoreError: somebody else has planted what has the name; says what to do.
        OSError: it cannot be made.
    """
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


def own_folder(folder: str) -> None:
    """Make a folder for its owner only, and take one that is there only where nobody else can have made it.

    What lies in it is sent, believed or overwritten, and holds prompts and answers.

    Raises:
        StoreError: it is another user's, or no folder but a link or a file; says what to do.
        OSError: it cannot be made.
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
    """Make a folder, and those above it that are missing, for their owner only, whatever the umask says.

    Raises:
        OSError: it cannot be made.
    """
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
    with contextlib.suppress(PermissionError):  # a folder that may be changed and not be read
        sync_folder(above)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Have the names in a folder on the disk, so that they survive a loss of power.

    Raises:
        OSError: the disk does not take them.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
