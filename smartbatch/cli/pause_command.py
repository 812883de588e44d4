"""``smartbatch pause`` and ``smartbatch resume``: hold up a model in all processes that use a store."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress

from smartbatch.cli.option_tables import add_options

_PAUSE_HELP = """\
Have nothing new sent to a model, by any process that uses the store: batches that were sent are followed to
their end, and what waits goes on waiting. Processes hear of it within two seconds, and one that starts later
at once. Without a name: what is paused, by whom and why.

examples:
  smartbatch pause openai:gpt-5-mini --reason "the budget of this week is spent"
  smartbatch pause anthropic --store jobs.db
  smartbatch pause
"""
_RESUME_HELP = """\
End the pause of a model, or of all models of a provider that was paused as a whole.

examples:
  smartbatch resume openai:gpt-5-mini
  smartbatch resume anthropic --store jobs.db
"""
_OPTIONS = """
--store PLACE          where jobs are kept: a file, or postgresql://… (default: your own)
--config FILE          TOML or YAML file of settings; options win over it
"""
_NAMES = "PROVIDER:MODEL, or PROVIDER for all of its models"


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the subcommands to those of ``smartbatch``.

    Args:
        add: makes the parser of a subcommand.
    """
    parser = add("pause", help="send nothing new to a model", description=_PAUSE_HELP)
    parser.add_argument("names", nargs="*", metavar="NAME", help=_NAMES)
    parser.add_argument("--reason", metavar="TEXT", help="why, for those who wait")
    add_options(parser.add_argument, _OPTIONS)
    parser = add("resume", help="end the pause of a model", description=_RESUME_HELP)
    parser.add_argument("names", nargs="+", metavar="NAME", help=_NAMES)
    add_options(parser.add_argument, _OPTIONS)


def run(args: argparse.Namespace) -> int:
    """Pause or resume what is named.

    Returns:
        0; 1 where something that was to go on is not paused.
    """
    from smartbatch._words import escape
    from smartbatch.cli.clients import config_of, missing_store
    from smartbatch.cli.standard_output import ReaderLeft, print_out
    from smartbatch.stored_jobs import StoredJobs

    config = config_of(args)
    path = missing_store(config.store)
    if path is not None and not (args.command == "pause" and args.names):  # looking makes no file
        with suppress(ReaderLeft):
            print_out(f"nothing is paused: there is no store at {escape(path)} yet")
        return int(args.command == "resume")
    stored = StoredJobs(config)
    missing = 0
    try:
        for name in args.names:
            with suppress(ReaderLeft):  # the others are paused, or go on, all the same
                provider, _, model = name.partition(":")
                if args.command == "pause":
                    print_out(escape(str(stored.pause(provider, model or None, reason=args.reason))))
                elif stored.resume(provider, model or None):
                    print_out(f"{escape(name)} goes on")
                else:
                    missing += 1
                    print_out(f"{escape(name)} is not paused")
        if not args.names:
            found = [escape(str(pause)) for pause in stored.paused()]
            print_out("\n".join(found) or f"nothing is paused in {stored.place}")
    finally:
        stored.close(0)
    return int(missing > 0)
