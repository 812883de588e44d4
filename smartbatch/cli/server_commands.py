"""``smartbatch dashboard`` serves the dashboard to one person on this machine, and ``smartbatch webhooks``
receives webhooks of providers and stores them for the jobs of a store.
"""

from __future__ import annotations

import argparse
import socketserver
import sys
import webbrowser
from collections.abc import Callable, Mapping
from typing import Any, final
from urllib.parse import urlencode
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from smartbatch._words import escape
from smartbatch.cli.clients import config_of, missing_store
from smartbatch.cli.interrupts import Interrupts
from smartbatch.cli.printing import print_out, say
from smartbatch.dashboard import TokenAccess
from smartbatch.dashboard import app as dashboard_of
from smartbatch.dashboard.web_application import WebApplication
from smartbatch.errors import ConfigError
from smartbatch.jobs.store import default_place
from smartbatch.webhooks import app as receiver_of

LOOPBACK_ADDRESS = "127.0.0.1"
IDLE_TIMEOUT_SECONDS = 30.0  # per connection
_MAX_STREAMS = 64  # one thread each; only the owner of the machine can open them


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


def dashboard(args: argparse.Namespace) -> int:
    access = TokenAccess(granted="read" if args.read_only else "all")
    config, streams = config_of(args), _MAX_STREAMS
    served = dashboard_of(config=config, access=access, show_content=args.show_content, streams=streams)
    serve(served, {"token": access.token}, args)
    return 0


def serve(application: WebApplication, query: Mapping[str, str], args: argparse.Namespace) -> None:
    """Serve an application until Ctrl-C or SIGTERM.

    Args:
        query: the query string of the address that is printed, with the token; empty values are left out.
        args: with ``port``, and ``open`` to open the address in a browser.

    Raises:
        ConfigError: the port is taken or invalid.
    """
    server = _local_server(args.port, application)
    given = {name: value for name, value in query.items() if value}
    address = f"http://{server.server_name}:{server.server_port}/?{urlencode(given)}"
    with server, Interrupts(server.shutdown):
        print_out(address)
        if args.open:
            webbrowser.open(address)
        server.serve_forever()
        application.stop()


def webhooks(args: argparse.Namespace) -> int:
    config = config_of(args)
    place = config.store or default_place()
    receiver = receiver_of(place, url=config.webhook_url)
    missing = missing_store(place)
    if missing is not None and config.store is not None and not args.create:
        raise ConfigError(
            f"there is no store at {escape(missing)}: name the store of your jobs, or add --create if its "
            "first job comes later"
        )
    server = _local_server(args.port, receiver, args.address)
    with server, Interrupts(server.shutdown):
        print_out(f"http://{server.server_name}:{server.server_port}/")
        if missing is not None:
            say(f"there is no store at {escape(missing)} yet; the first event creates it")
        server.serve_forever()
    receiver.close()
    return 0


def _local_server(port: int, application: Callable[..., Any], address: str | None = None) -> LocalServer:
    """Return the server of a command, which has the option ``--address`` if one is given."""
    try:
        return LocalServer(port, application, address or LOOPBACK_ADDRESS)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a valid port"
        options = f"--port {port}" if address is None else f"--address {address} --port {port}"
        raise ConfigError(f"{options}: {reason}; use another port, or 0 for a free one") from None
