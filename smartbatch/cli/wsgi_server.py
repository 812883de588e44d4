"""A WSGI server for one person on this machine: the standard library's, with a thread for each request."""

from __future__ import annotations

import socketserver
import sys
from collections.abc import Callable
from typing import Any, final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

HOST = "127.0.0.1"
SLOW = 30.0
"""Seconds after which a connection that neither asks nor reads is given up."""


@final
class _Handler(WSGIRequestHandler):
    timeout = SLOW

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the first address has the token."""


@final
class LocalServer(socketserver.ThreadingMixIn, WSGIServer):
    """Listens on the loopback address.

    Args:
        port: 0 takes a free one; ``server_port`` says which.
        application: what answers.

    Raises:
        OSError: the port is taken.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, application: Callable[..., Any]) -> None:
        super().__init__((HOST, port), _Handler)
        # its handler says that there is one thread, whatever the server is
        self.set_app(lambda environ, start: application({**environ, "wsgi.multithread": True}, start))

    def server_bind(self) -> None:
        """Bind; without the look-up of the host's name, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing where a browser went away: each closed page ends a stream."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)
