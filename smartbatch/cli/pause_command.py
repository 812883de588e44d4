"""``smartbatch pause`` and ``smartbatch resume``: pause a model in all processes that use a store."""

from __future__ import annotations

import argparse
from contextlib import suppress


def run(args: argparse.Namespace) -> int:
    """Pause, resume or list models; return 1 if a model to be resumed is not paused."""
    from smartbatch._words import escape
    from smartbatch.cli.clients import config_of, missing_store
    from smartbatch.cli.printing import ReaderLeft, print_out
    from smartbatch.stored_jobs import StoredJobs

    config = config_of(args)
    path = missing_store(config.store)
    if path is not None and not (
        args.command == "pause" and args.names
    ):  # listing and resuming create no file
        with suppress(ReaderLeft):
            print_out(f"nothing is paused: there is no store at {escape(path)} yet")
        return int(args.command == "resume")
    stored = StoredJobs(config)
    missing = 0
    try:
        for name in args.names:
            with suppress(ReaderLeft):  # continue with the other names
                provider, _, model = name.partition(":")
                if args.command == "pause":
                    print_out(escape(str(stored.pause(provider, model or None, reason=args.reason))))
                elif stored.resume(provider, model or None):
                    print_out(f"{escape(name)} is resumed")
                else:
                    missing += 1
                    print_out(f"{escape(name)} is not paused")
        if not args.names:
            found = [escape(str(pause)) for pause in stored.paused()]
            print_out("\n".join(found) or f"nothing is paused in {stored.place}")
    finally:
        stored.close(0)
    return int(missing > 0)
