"""Addresses of PostgreSQL servers, as settings name them."""

from __future__ import annotations

import hashlib
import re
from typing import Any
from urllib.parse import unquote

from attrs import field, frozen

from smartbatch.errors import ConfigError

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
except ImportError as missing:
    raise ConfigError(
        "a PostgreSQL server needs the package psycopg; install it with"
        f" pip install 'smartbatch-llm[postgres]' ({missing.name or 'its libpq'} is missing)"
    ) from None

DEFAULT_SCHEMA = "smartbatch"
"""A schema of our own, because tables of such plain names could meet the user's."""
SCHEMA_LOCK = 7_310_294_563_017_112
"""Number of the advisory lock under which a schema is made: jobs and shared limits may begin in one
at the same time."""
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_DEFAULTS: dict[str, Any] = {
    "application_name": "smartbatch",
    "connect_timeout": 10,
    # a server that vanished without a word is noticed within a minute
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 50_000,
}
"""Parameters of libpq where the DSN says nothing else: seconds, and the last in milliseconds."""
_SECRET = ("password", "sslpassword", "passfile", "sslkey")


@frozen
class Address:
    """Where something is kept on a server.

    Attributes:
        parameters: of libpq.
        schema: the schema of its tables.
        place: the address for people, without secrets.
        secrets: what must not be shown.
    """

    parameters: dict[str, Any] = field(repr=False)
    schema: str
    place: str
    secrets: tuple[str, ...] = field(repr=False)

    @classmethod
    def of(cls, dsn: str, setting: str = "store") -> Address:
        """Read a DSN, which a ``setting`` names.

        Raises:
            ConfigError: it cannot be read; it is not shown, because it may contain a password.
        """
        try:
            server, _, asked = dsn.partition("?")
            before, _, path = server.partition("://")[2].partition("/")
            if before.count("@") > 1 or "@" in path:  # a part of the password would be host or database
                raise ValueError
            words = asked.split("&") if asked else []
            schema = next((unquote(w[7:]) for w in words if w.startswith("schema=")), DEFAULT_SCHEMA)
            rest = "&".join(word for word in words if not word.startswith("schema="))
            given = conninfo_to_dict(f"{server}?{rest}" if rest else server)
        except (ValueError, psycopg.Error):
            raise ConfigError(
                f"{setting}: the address of the PostgreSQL server cannot be read; it should look like"
                " postgresql://user:password@host:5432/database?schema=smartbatch, with special characters"
                " written as %XX"
            ) from None
        if not _SCHEMA.fullmatch(schema):
            raise ConfigError(
                f"{setting}: the schema {schema!r} is not usable; a name has small letters, digits and _, and"
                " begins with no digit"
            )
        place = "postgresql://{user}{host}{port}/{dbname}?schema={schema}".format(
            user=f"{given['user']}@" if given.get("user") else "",
            host=given.get("host", ""),
            port=f":{given['port']}" if given.get("port") else "",
            dbname=given.get("dbname", ""),
            schema=schema,
        )
        secrets = tuple(str(given[name]) for name in _SECRET if given.get(name))
        return cls(parameters={**_DEFAULTS, **given}, schema=schema, place=place, secrets=secrets)

    @property
    def digest(self) -> str:
        """Twelve characters that tell this address from others."""
        return hashlib.blake2b(self.place.encode(), digest_size=6).hexdigest()
