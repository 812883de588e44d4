"""A connection to a PostgreSQL server that can be cut at a given word."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
from typing import Any


class Relay:
    """Listens on a Unix socket of its own and passes everything on to the server.

    Args:
        parameters: of libpq, for the real server.

    Attributes:
        folder: what to give libpq as the host.
    """

    def __init__(self, parameters: dict[str, Any]) -> None:
        host = parameters.get("host") or "/tmp"
        port = int(parameters.get("port") or 5432)
        self._target: Any = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
        self.folder = tempfile.mkdtemp(prefix="sbrelay")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{self.folder}/.s.PGSQL.5432")
        self._listener.listen()
        self._links: list[socket.socket] = []
        self._word: bytes | None = None
        self._pass_on = False
        self.cuts = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def cut_at(self, word: bytes, *, pass_on: bool) -> None:
        """Cut the next connection whose client sends ``word``.

        Args:
            pass_on: the server still receives and executes it; only the answer is lost.
        """
        self._word, self._pass_on = word, pass_on

    def cut_all(self) -> None:
        links, self._links = self._links, []
        for link in links:
            _end(link)

    def close(self) -> None:
        _end(self._listener)
        self.cut_all()
        os.unlink(f"{self.folder}/.s.PGSQL.5432")
        os.rmdir(self.folder)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                kind = socket.AF_INET if isinstance(self._target, tuple) else socket.AF_UNIX
                server = socket.socket(kind)
                server.connect(self._target)
                self._links += [client, server]
                threading.Thread(target=self._up, args=(client, server), daemon=True).start()
                threading.Thread(target=self._down, args=(client, server), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while said := client.recv(65536):
                if self._word is not None and self._word in said:
                    self._word = None
                    self.cuts += 1
                    if self._pass_on:
                        _end(client)  # before the answer can come
                        server.sendall(said)
                        server.settimeout(10)
                    break
                server.sendall(said)
        _end(client)
        # the server reads what it was sent before it sees the end
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _down(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while said := server.recv(65536):
                client.sendall(said)
        _end(client)
        server.close()


def _end(link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
    link.close()
