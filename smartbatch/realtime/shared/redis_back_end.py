"""Shared limits on a Redis server: any number of machines. One script for each exchange, by its clock."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from attrs import asdict

from smartbatch.core.limits.shared_record import LeaseAsk, LeaseGrant
from smartbatch.errors import ConfigError
from smartbatch.realtime.shared.back_end import TIMEOUT, VERSION, BackEnd, BackEndAway, Incompatible

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.connection import parse_url as _parse_url
    from redis.retry import Retry
except ImportError:
    raise ConfigError(
        "shared: a Redis server needs the package redis; install it with pip install 'smartbatch-llm[redis]'"
    ) from None

parse_url: Callable[[str], dict[str, Any]] = _parse_url

_PREFIX = "smartbatch:"


class RedisBackEnd(BackEnd):
    """The server. A record is one key, so it needs one slot of a cluster.

    Args:
        address: as of ``redis.Redis.from_url``.

    Raises:
        ConfigError: the address cannot be read; it is not shown, because it may contain a password.
    """

    def __init__(self, address: str) -> None:
        try:
            parts: dict[str, Any] = parse_url(address)
        except ValueError:
            raise ConfigError(
                "shared: the address of the Redis server cannot be read; it should look like"
                " redis://user:password@host:6379/0 or unix:///path/to/socket?db=0"
            ) from None
        where = parts.get("path") or f"{parts.get('host', 'localhost')}:{parts.get('port', 6379)}"
        self.place = f"redis {where}/{parts.get('db', 0)}"
        self._address = address
        self._process = -1
        self._server: Any = None
        self._script = files(__package__).joinpath("exchange.lua").read_text("utf-8")
        self._exchange: Any = None

    def _connected(self) -> Any:
        """Return the connection of this process: a forked child must not use its parent's."""
        if self._server is None or self._process != os.getpid():
            self._process = os.getpid()
            self._server = redis.Redis.from_url(
                self._address,
                socket_timeout=TIMEOUT,
                socket_connect_timeout=TIMEOUT,
                retry=Retry(NoBackoff(), 0),  # an exchange whose answer was lost may have been made
            )
            self._exchange = self._server.register_script(self._script)
        return self._server

    def prepare(self) -> bytes:
        try:
            server = self._connected()
            server.hsetnx(f"{_PREFIX}shared", "version", VERSION)
            server.hsetnx(f"{_PREFIX}shared", "salt", secrets.token_hex(16))
            version, salt = server.hmget(f"{_PREFIX}shared", "version", "salt")
        except redis.RedisError as error:
            raise self._away(error) from None
        if int(version) != VERSION:
            raise Incompatible(
                f"the limits on {self.place} are shared by processes of version {int(version)} of their form,"
                f" and this one knows version {VERSION}: use the same smartbatch in all, or another database"
            )
        return bytes.fromhex(salt.decode())

    def exchange(self, key: str, ask: LeaseAsk) -> LeaseGrant:
        self._connected()
        try:
            answer = self._exchange(keys=[f"{_PREFIX}{{{key}}}"], args=[json.dumps(asdict(ask))])
        except redis.RedisError as error:
            raise self._away(error) from None
        return LeaseGrant(**json.loads(answer))

    def _away(self, error: Exception) -> BackEndAway:
        return BackEndAway(f"the Redis server {self.place} cannot be used ({type(error).__name__})")

    def close(self) -> None:
        if self._server is not None and self._process == os.getpid():
            self._server.close()
        self._server = None
