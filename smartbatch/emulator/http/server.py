"""The server: on a thread of its own in the caller's process, or as a process of its own."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Unpack

from smartbatch.emulator.http.connection import ServerConnection
from smartbatch.emulator.ledger import Ledger
from smartbatch.emulator.request_handling import RequestHandler
from smartbatch.emulator.settings import EmulatorParams, EmulatorSettings, loopback
from smartbatch.errors import ConfigError

_BACKLOG = 1024  # connections that the kernel queues before they are accepted


class Emulator:
    """The APIs of OpenAI, Anthropic and Gemini on a loopback address, offline.

    ``with Emulator(latency=0.05) as emulator: …`` serves on a thread of its own until the block ends.
    The port is open as soon as the object exists.

    Args:
        host: a loopback address.
        port: 0 selects a free one.
        ledger_file: see :class:`~smartbatch.emulator.ledger.Ledger`.
        settings: see :class:`~smartbatch.emulator.settings.EmulatorSettings`.

    Attributes:
        ledger: every request, and every line of a batch that ran.
        handler: answers the requests; it may be replaced before the start.

    Raises:
        ConfigError: for a setting out of its range, a port in use, or an address that is not loopback.
    """

    ledger: Ledger
    handler: RequestHandler

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        ledger_file: str | Path | None = None,
        **settings: Unpack[EmulatorParams],
    ) -> None:
        checked = EmulatorSettings(**EmulatorSettings.check_names(settings))
        self._host = loopback(host)
        self._socket = _listen(self._host, port)
        self.port: int = self._socket.getsockname()[1]
        try:
            self.ledger = Ledger(ledger_file)
        except ConfigError:
            self._socket.close()
            raise
        self.handler = RequestHandler(checked, self.ledger)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False

    @property
    def url(self) -> str:
        """The server's address, for ``ANTHROPIC_BASE_URL`` and ``GOOGLE_GEMINI_BASE_URL``."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    @property
    def base_url(self) -> str:
        """The address for ``OPENAI_BASE_URL``."""
        return f"{self.url}/v1"

    @property
    def settings(self) -> EmulatorSettings:
        """The settings in force."""
        return self.handler.settings

    def configure(self, **changes: Unpack[EmulatorParams]) -> None:
        """Change settings while serving; requests in progress keep the old ones.

        Raises:
            ConfigError: for an unknown name or a value out of its range; then nothing changes.
        """
        self.handler.configure(**changes)

    def reset(self) -> None:
        """Delete the ledger, files and batches; limits, faults and indexes start from the beginning."""
        self.handler.reset()

    def __enter__(self) -> Emulator:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Emulator:
        """Serve on a thread of its own; a second call changes nothing.

        Raises:
            ConfigError: when it was stopped before.
        """
        if self._stopped:
            raise ConfigError("this emulator was stopped and cannot be started again; create a new one")
        if self._thread is None:
            self._loop = asyncio.new_event_loop()
            self._end = self._loop.create_future()
            self._thread = threading.Thread(
                target=self._run, args=(self._loop, self._end), name="smartbatch-emulator", daemon=True
            )
            self._thread.start()
        return self

    def stop(self) -> None:
        """Close every connection and the port; may be called twice."""
        if self._stopped:
            return
        self._stopped = True
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(_finish, self._end)
            self._thread.join()
        self._socket.close()
        self.ledger.end()

    def serve(self, ready: Callable[[], object] = lambda: None) -> None:
        """Serve on this (the main) thread until SIGINT or SIGTERM, then stop.

        Args:
            ready: called once the signal handlers are installed.
        """
        loop = asyncio.new_event_loop()
        end = loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, _finish, end)
        try:
            ready()
            self._run(loop, end)
        finally:
            self.stop()

    def _run(self, loop: asyncio.AbstractEventLoop, end: asyncio.Future[None]) -> None:
        try:
            loop.run_until_complete(self._serve_until(loop, end))
        finally:
            loop.close()

    async def _serve_until(self, loop: asyncio.AbstractEventLoop, end: asyncio.Future[None]) -> None:
        connections: set[ServerConnection] = set()
        server = await loop.create_server(
            lambda: ServerConnection(self.handler, loop, connections), sock=self._socket, backlog=_BACKLOG
        )
        await end
        server.close()
        for connection in tuple(connections):
            connection.abort()
        turn = loop.create_future()  # one more iteration, in which the connections are closed
        loop.call_soon(_finish, turn)
        await turn


def _finish(end: asyncio.Future[None]) -> None:
    if not end.done():
        end.set_result(None)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if not 0 <= port <= 65535:
        raise ConfigError(f"port {port} does not exist; use 1 to 65535, or 0 for a free one")
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"port {port} on {host}: {error.strerror}; name another port, or 0 for a free one"
        ) from error
