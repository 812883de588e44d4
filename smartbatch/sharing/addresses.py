"""Opens the back end at an address."""

from __future__ import annotations

import os
from collections.abc import Callable

from smartbatch._database import require_psycopg
from smartbatch._files import resolved_file, state_folder
from smartbatch.errors import ConfigError
from smartbatch.setting import revealed
from smartbatch.sharing.back_end import RECORD_VERSION, BackEnd

_ADDRESS_FORMS = (
    "sqlite:///FILE, redis://HOST, unix:///SOCKET (of Redis), postgresql://HOST/DATABASE, auto or off"
)


def full_address(address: str) -> str:
    """Return the file that ``auto`` stands for; any other address unchanged.

    The file name contains the version, because a file with records of an earlier version would always be
    refused.
    """
    if address != "auto":
        return revealed(address)
    return f"sqlite:///{os.path.join(state_folder(), f'limits-{RECORD_VERSION}.db')}"


def check_address(address: str, now: Callable[[], float]) -> None:
    """Check the address of a back end and that its package is installed, without opening it.

    Raises:
        ConfigError: as in :func:`open_back_end`.
    """
    if address not in ("auto", "off"):
        try:
            open_back_end(full_address(address), now)
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"shared: the address cannot be used: {error}") from None


def open_back_end(address: str, now: Callable[[], float]) -> BackEnd:
    """Return the back end at an address; nothing is opened yet.

    Args:
        now: returns monotonic seconds, by a clock that the processes of a machine share; used for files.

    Raises:
        ConfigError: the address is invalid, or a package is missing.
    """
    if address.startswith("sqlite:///"):
        from smartbatch.sharing.sqlite_back_end import SqliteBackEnd

        path = resolved_file(address.removeprefix("sqlite:///"))
        return SqliteBackEnd(path, now=now)
    if address.startswith(("redis://", "rediss://", "unix://")):
        from smartbatch.sharing.redis_back_end import RedisBackEnd

        return RedisBackEnd(address)
    if address.startswith(("postgresql://", "postgres://")):
        require_psycopg()
        from smartbatch.sharing.postgres_back_end import PostgresBackEnd

        return PostgresBackEnd(address)
    raise ConfigError(f"shared: the address is invalid; use one of {_ADDRESS_FORMS}")
