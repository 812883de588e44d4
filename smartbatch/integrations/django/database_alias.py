"""Where jobs are kept by default: on a PostgreSQL server of ``DATABASES``, with connections of our own, or in
a file next to an SQLite.
"""

from __future__ import annotations

import os
from typing import Any, Final
from urllib.parse import quote, urlencode

from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from smartbatch.errors import ConfigError

_SETTINGS: Final = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
"""Keys of a database's settings, and the parameters of libpq that they are."""
_HERE: Final = ("", "localhost", "127.0.0.1", "::1")


def store_of(alias: str) -> str | None:
    """Return the setting ``store`` that a database stands for; ``None`` for the user's own store, where it is
    neither a PostgreSQL server nor the file of an SQLite.

    Raises:
        ConfigError: ``DATABASES`` has no such alias.
    """
    try:
        connection = connections[alias]
    except ConnectionDoesNotExist:
        raise ConfigError(f"settings.SMARTBATCH: DATABASES has no {alias!r}") from None
    if connection.vendor == "postgresql":
        return _address(connection.settings_dict)
    name = str(connection.settings_dict["NAME"] or "")
    if connection.vendor != "sqlite" or name in ("", ":memory:") or name.startswith("file:"):
        return None
    return f"{os.path.splitext(name)[0]}.smartbatch.db"


def remote_hosts() -> list[str]:
    """Return the machines that the project's databases are on, this one left out."""
    named = {str(connection.settings_dict.get("HOST") or "") for connection in connections.all()}
    return sorted(host for host in named - set(_HERE) if not host.startswith("/"))


def _address(database: dict[str, Any]) -> str:
    """Return the address of a server, with the options that libpq knows."""
    import psycopg

    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    given = {parameter: database.get(name) for name, parameter in _SETTINGS.items()}
    given |= {name: value for name, value in database.get("OPTIONS", {}).items() if name in known}
    return "postgresql:///?" + urlencode({name: v for name, v in given.items() if v}, quote_via=quote)
