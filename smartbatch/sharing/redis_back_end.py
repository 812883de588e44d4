"""Shared limits on a Redis server, for any number of machines; each change is a ``WATCH`` transaction."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from smartbatch._clock import RealClock
from smartbatch.errors import ConfigError
from smartbatch.observe.participants import RETENTION_SECONDS
from smartbatch.sharing.back_end import (
    RECORD_VERSION,
    TIMEOUT_SECONDS,
    BackEnd,
    BackEndBusy,
    BackEndUnavailable,
    Incompatible,
    Published,
    RecordUpdate,
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

_T = TypeVar("_T")
_Command: TypeAlias = "tuple[str | float, ...]"

UNUSED_SECONDS = 7 * 86_400
"""Seconds after which an unused rate record is removed. Budgets are never removed."""

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.001, 0.032
"""Maximum seconds before a transaction is repeated because another process changed its keys. The maximum
doubles up to the second value; each pause is a random fraction of it."""

_OPTIONS: dict[str, Any] = {
    "socket_timeout": TIMEOUT_SECONDS,
    "socket_connect_timeout": TIMEOUT_SECONDS,
    "retry": Retry(NoBackoff(), 0),  # an exchange whose answer was lost may have taken effect
}

_KEY_PREFIX = "smartbatch:"
_FACTS_KEY = f"{_KEY_PREFIX}shared"
"""Version and salt, joined by a colon."""
_PUBLISHED = f"{_KEY_PREFIX}{{published}}:"
_SEEN_KEY, _SUMS_KEY = f"{_PUBLISHED}seen", f"{_PUBLISHED}sums"
"""When each process last published, and the totals. Each record has its own key."""


class RedisBackEnd(BackEnd):
    """Limits on one server. A record is a single key.

    Args:
        address: as for ``redis.Redis.from_url``.

    Raises:
        ConfigError: the address is invalid; it is not shown, because it may contain a password.
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
        self._connection: Any = None
        self._facts = b""

    def _connected(self) -> Any:
        """Return the connection of this process: a forked child must not use its parent's."""
        if self._connection is None or self._process != os.getpid():
            self._process = os.getpid()
            self._connection = redis.ConnectionPool.from_url(self._address, **_OPTIONS).make_connection()
        return self._connection

    def _replies(self, *commands: _Command) -> list[Any]:
        """Send commands together and return their replies, in one round trip.

        The transactions of the ``redis`` package need a round trip per read. They also report a lost
        connection as a conflict with another process, so the same exchange would be made twice.
        """
        connection = self._connected()
        connection.send_packed_command(connection.pack_commands(commands))
        return [connection.read_response() for _ in commands]

    def prepare(self) -> bytes:
        facts = f"{RECORD_VERSION}:{secrets.token_hex(16)}"
        try:
            _, self._facts = self._replies(("SET", _FACTS_KEY, facts, "NX"), ("GET", _FACTS_KEY))
        except redis.RedisError as error:
            raise self._unavailable(error) from None
        version, _, salt = self._facts.decode().partition(":")
        check_version(version, self.place, "database")
        return bytes.fromhex(salt)

    def update(self, key: str, decide: RecordUpdate[_T], *, is_durable: bool) -> _T:
        record = f"{_KEY_PREFIX}{{{key}}}"

        def step(found: Any, now: float) -> tuple[list[_Command], _T]:
            facts, stored = found
            if facts != self._facts:  # a new salt changes the names of all records
                raise self._lost("it has lost its data")
            text, decided = decide(None if stored is None else stored.decode(), now)
            return [("SET", record, text, *(() if is_durable else ("EX", UNUSED_SECONDS)))], decided

        keys = (_FACTS_KEY, record)
        return self._transact(keys, ("MGET", *keys), step)

    def publish(self, member: str, record: str, before: Mapping[str, float]) -> None:
        own = f"{_PUBLISHED}of:{member}"

        def step(last: Any, now: float) -> tuple[list[_Command], None]:
            more = self._gains(record, None if last is None else last.decode(), before)
            return [
                *(("HINCRBYFLOAT", _SUMS_KEY, name, gain) for name, gain in more.items()),
                ("SET", own, record),
                ("EXPIRE", own, int(RETENTION_SECONDS)),
                ("ZADD", _SEEN_KEY, now, member),
                ("ZREMRANGEBYSCORE", _SEEN_KEY, "-inf", now - RETENTION_SECONDS),
            ], None

        self._transact((own,), ("GET", own), step)

    def _transact(
        self, keys: tuple[str, ...], read: _Command, step: Callable[[Any, float], tuple[list[_Command], _T]]
    ) -> _T:
        """Read, let ``step`` decide on writes and a result, and write; repeat if another process changed
        ``keys``."""
        until, pause = RealClock.now() + TIMEOUT_SECONDS, FIRST_PAUSE_SECONDS
        try:
            while True:
                _, found, (seconds, microseconds) = self._replies(("WATCH", *keys), read, ("TIME",))
                writes, result = step(found, float(seconds) + float(microseconds) / 1e6)
                *_, executed = self._replies(("MULTI",), *writes, ("EXEC",))
                if executed is not None:
                    return result
                if RealClock.now() >= until:
                    raise BackEndBusy(f"other processes keep changing {keys[-1]} at {self.place}")
                RealClock.sleep(random.uniform(0.0, pause))
                pause = min(2.0 * pause, MAX_PAUSE_SECONDS)
        except redis.RedisError as error:
            raise self._unavailable(error) from None
        except BaseException:
            self.close()  # the connection still watches the keys
            raise

    def published(self) -> Published:
        try:
            with redis.Redis.from_url(self._address, **_OPTIONS) as server:
                seconds, microseconds = server.time()
                seen = server.zrevrange(_SEEN_KEY, 0, -1, withscores=True)
                texts = (
                    server.mget([f"{_PUBLISHED}of:{member.decode()}" for member, _ in seen]) if seen else []
                )
                sums = server.hgetall(_SUMS_KEY)
        except redis.RedisError as error:
            raise self._unavailable(error) from None
        now = seconds + microseconds / 1e6
        return Published(
            [
                (now - at, text.decode())
                for (_, at), text in zip(seen, texts, strict=True)
                if text is not None
            ],
            {name.decode(): float(value) for name, value in sums.items()},
        )

    def _unavailable(self, error: Exception) -> BackEndUnavailable | Incompatible:
        self.close()
        if isinstance(error, redis.exceptions.MovedError):
            return Incompatible(
                f"{self.place} is a node of a cluster, which keeps only some of the keys: name a single Redis"
                " server, or a PostgreSQL server"
            )
        return self._lost(type(error).__name__)

    def _lost(self, reason: str) -> BackEndUnavailable:
        return BackEndUnavailable(f"the Redis server {self.place} cannot be used ({reason})")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._process == os.getpid():
            connection.disconnect()
