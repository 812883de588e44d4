"""``smartbatch dashboard``: the dashboard on this machine's own address until it is stopped."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from smartbatch.cli.option_tables import add_options, whole
from smartbatch.errors import ConfigError

_HELP = """\
Show in a browser what runs, how fast, what it costs, what holds it up and when it will be done: the jobs of a
store, and all processes that share its limits. It answers on 127.0.0.1 only, to those who have the address
that is printed: its token is new with each start. Ctrl-C or SIGTERM ends it; jobs and processes go on.

examples:
  smartbatch dashboard --open
  smartbatch dashboard --store postgresql://db.example/jobs --port 8200
"""
_OPTIONS = """
--store PLACE          where jobs are kept: a file, or postgresql://… (default: your own)
--port N               0 takes a free one (default: 8137)
--open                 open it in the browser
--read-only            look, and do not act
--show-content         show prompts and answers, and let them be downloaded
"""

_STREAMS = 64
"""Each has a thread of its own, and the machine's owner alone opens them."""


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the subcommand by ``add``, which makes its parser."""
    parser = add(
        "dashboard",
        help="show in a browser what runs and what it costs",
        description=_HELP,
        epilog="exit codes: 0 stopped, 2 bad usage, or the port is taken",
    )
    parser.set_defaults(port=8137)
    add_options(parser.add_argument, _OPTIONS, {"N": {"type": whole}})


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    # late: other subcommands do not pay for a server
    import webbrowser

    from smartbatch.cli.interrupts import Interrupts
    from smartbatch.cli.standard_output import print_out
    from smartbatch.cli.wsgi_server import LocalServer
    from smartbatch.dashboard import TokenAccess, app

    access = TokenAccess(granted="read" if args.read_only else "all")
    dashboard = app(store=args.store, access=access, show_content=args.show_content, streams=_STREAMS)
    try:
        server = LocalServer(args.port, dashboard)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no port"
        raise ConfigError(f"--port {args.port}: {reason}; name another one, or 0 for a free one") from None
    address = f"http://{server.server_name}:{server.server_port}/?token={access.token}"
    with server, Interrupts(server.shutdown):
        print_out(address)
        if args.open:
            webbrowser.open(address)
        server.serve_forever()
        dashboard.stop()
    return 0
