"""``smartbatch webhooks``: receives webhooks of providers and stores them for the jobs of a store."""

from __future__ import annotations

import argparse

from smartbatch._words import escape
from smartbatch.cli.clients import config_of, missing_store
from smartbatch.cli.dashboard_command import LocalServer
from smartbatch.cli.interrupts import Interrupts
from smartbatch.cli.printing import print_out, say
from smartbatch.errors import ConfigError
from smartbatch.jobs.store import default_place
from smartbatch.webhooks import app


def run(args: argparse.Namespace) -> int:
    config = config_of(args)
    place = config.store or default_place()
    receiver = app(place, url=config.webhook_url)
    missing = missing_store(place)
    if missing is not None and config.store is not None and not args.create:
        raise ConfigError(
            f"there is no store at {escape(missing)}: name the store of your jobs, or add --create if its "
            "first job comes later"
        )
    try:
        server = LocalServer(args.port, receiver, args.address)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a valid port"
        raise ConfigError(
            f"--address {args.address} --port {args.port}: {reason}; use another port, or 0 for a free one"
        ) from None
    with server, Interrupts(server.shutdown):
        print_out(f"http://{server.server_name}:{server.server_port}/")
        if missing is not None:
            say(f"there is no store at {escape(missing)} yet; the first event creates it")
        server.serve_forever()
    receiver.close()
    return 0
