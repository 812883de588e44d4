"""``smartbatch dashboard``: serves the dashboard on a loopback address to one person on this machine."""

from __future__ import annotations

import argparse
import socketserver
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, final
from urllib.parse import urlencode
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from smartbatch.errors import ConfigError

if TYPE_CHECKING:
    from smartbatch.dashboard.web_application import WebApplication

LOOPBACK_ADDRESS = "127.0.0.1"
IDLE_TIMEOUT_SECONDS = 30.0  # per connection


@final
class _Handler(WSGIRequestHandler):
    timeout = IDLE_TIMEOUT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the first address contains the token."""


@final
class LocalServer(socketserver.ThreadingMixIn, WSGIServer):
    """A server with a thread per request, on the loopback address by default. Port 0 selects a free one."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, application: Callable[..., Any], address: str = LOOPBACK_ADDRESS) -> None:
        super().__init__((address, port), _Handler)
        # the standard handler reports a single thread
        self.set_app(lambda environ, start: application({**environ, "wsgi.multithread": True}, start))

    def server_bind(self) -> None:
        """Bind without looking up the host name, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that disconnect: each closed page ends a stream."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


_MAX_STREAMS = 64  # one thread each; only the owner of the machine can open them


def run(args: argparse.Namespace) -> int:
    # imported late, because other commands need no server
    from smartbatch.cli.clients import config_of
    from smartbatch.dashboard import TokenAccess, app

    access = TokenAccess(granted="read" if args.read_only else "all")
    config = config_of(args)
    dashboard = app(config=config, access=access, show_content=args.show_content, streams=_MAX_STREAMS)
    serve(dashboard, {"token": access.token}, args)
    return 0


def serve(application: WebApplication, query: Mapping[str, str], args: argparse.Namespace) -> None:
    """Serve an application until Ctrl-C or SIGTERM.

    Args:
        query: the query string of the address that is printed, with the token; empty values are left out.
        args: with ``port``, and ``open`` to open the address in a browser.

    Raises:
        ConfigError: the port is taken or invalid.
    """
    # imported late, because other commands need no server
    import webbrowser

    from smartbatch.cli.interrupts import Interrupts
    from smartbatch.cli.printing import print_out

    try:
        server = LocalServer(args.port, application)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a valid port"
        raise ConfigError(f"--port {args.port}: {reason}; use another one, or 0 for a free one") from None
    given = {name: value for name, value in query.items() if value}
    address = f"http://{server.server_name}:{server.server_port}/?{urlencode(given)}"
    with server, Interrupts(server.shutdown):
        print_out(address)
        if args.open:
            webbrowser.open(address)
        server.serve_forever()
        application.stop()
