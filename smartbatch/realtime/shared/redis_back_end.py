"""Shared limits on a Redis server: any number of machines. One script for each exchange, by its clock."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from attrs import asdict

from smartbatch.core.limits.shared_record import LeaseAsk, LeaseGrant
from smartbatch.errors import ConfigError
from smartbatch.observe.participants import KEPT
from smartbatch.realtime.shared.back_end import (
    DAMAGES,
    TIMEOUT,
    VERSION,
    BackEnd,
    BackEndUnavailable,
    Incompatible,
    Published,
    check_version,
)

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

_PARTICIPANTS = tuple(f"{_PREFIX}{{participants}}:{name}" for name in ("records", "seen", "sums"))
"""Three hashes in one slot: records and when each was made, by member; and the sums."""


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
        folder = files(__package__)
        self._scripts = [
            folder.joinpath(f"{name}.lua").read_text("utf-8") for name in ("exchange", "publish")
        ]
        self._exchange = self._publish = self._salt = ""

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
        return self._server

    def prepare(self) -> bytes:
        try:
            server = self._connected()
            # known until the server is started again: then it is to be prepared anew, its keys may be gone
            self._exchange, self._publish = map(server.script_load, self._scripts)
            server.hsetnx(f"{_PREFIX}shared", "version", VERSION)
            server.hsetnx(f"{_PREFIX}shared", "salt", secrets.token_hex(16))
            version, salt = server.hmget(f"{_PREFIX}shared", "version", "salt")
        except redis.RedisError as error:
            raise self._unavailable(error) from None
        check_version(version.decode(), self.place, "database")
        self._salt = salt.decode()
        return bytes.fromhex(self._salt)

    def exchange(self, key: str, ask: LeaseAsk) -> LeaseGrant:
        record = f"{_PREFIX}{{{key}}}"
        try:
            asked = json.dumps(asdict(ask))
            # an emptied server still knows its scripts: without the salt they would go on by names that
            # processes which come later do not use
            answer = self._connected().evalsha(self._exchange, 1, record, asked, self._salt)
        except redis.RedisError as error:
            raise self._unavailable(error) from None
        try:
            return LeaseGrant(**json.loads(answer))
        except DAMAGES as error:
            raise self._unavailable(error) from None

    def publish(self, member: str, record: str, before: Mapping[str, float]) -> None:
        told = (member, record, json.dumps(before), KEPT)
        try:
            self._connected().evalsha(self._publish, len(_PARTICIPANTS), *_PARTICIPANTS, *told)
        except redis.RedisError as error:
            raise self._unavailable(error) from None

    def published(self) -> Published:
        try:
            with self._connected().pipeline(transaction=True) as asked:
                asked.time()
                for key in _PARTICIPANTS:
                    asked.hgetall(key)
                (seconds, micros), records, seen, sums = asked.execute()
        except redis.RedisError as error:
            raise self._unavailable(error) from None
        now = seconds + micros / 1e6
        ages = {member: now - float(at) for member, at in seen.items()}
        heard = sorted((ages[member], text.decode()) for member, text in records.items())
        return Published(
            [(age, text) for age, text in heard if age <= KEPT],
            {name.decode(): float(value) for name, value in sums.items()},
        )

    def _unavailable(self, error: Exception) -> BackEndUnavailable | Incompatible:
        if isinstance(error, redis.exceptions.MovedError):
            return Incompatible(
                f"{self.place} is a node of a cluster, which keeps only some of the keys: name a single Redis"
                " server, or a PostgreSQL server"
            )
        return BackEndUnavailable(f"the Redis server {self.place} cannot be used ({type(error).__name__})")

    def close(self) -> None:
        if self._server is not None and self._process == os.getpid():
            self._server.close()
        self._server = None
