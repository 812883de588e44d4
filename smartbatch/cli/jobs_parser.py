"""``smartbatch jobs``: its arguments; the work is imported when it is called."""

from __future__ import annotations

import argparse

__all__ = ["ACTIONS", "add_parser", "run"]

ACTIONS = {
    "list": "every job of the store, newest first; also without any action",
    "show": "how the named jobs stand, with their batches and what should not have happened",
    "watch": "follow the named jobs, or all that go on, to their ends; carry them on if nobody else does",
    "results": "the results of one job so far as JSON lines, in order",
    "cancel": "cancel the named jobs and wait for their ends; what is done by then is kept",
    "resume": "go on with the named jobs, or all that have not ended, held ones included; but with an\n"
    "           interrupted run in real time only when it is named",
    "forget": "delete the named jobs with their results; only finished ones",
}

_HELP = """\
Look at the jobs of a store and act on them, whatever process submitted them.

A job is what submit_batch and smartbatch run make: requests that are kept in a store until all of them have
their results. It is named by its id (job-…) or its key. Jobs of runs in real time are there while the run is
under way, or was interrupted.

"""
_EPILOG = (
    "exit codes: 0 fine, 1 no such job, or requests failed or are missing, 2 bad usage or store, "
    "130 interrupted"
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to those of ``smartbatch``."""
    width = max(map(len, ACTIONS))
    parser = subparsers.add_parser(
        "jobs",
        help="look at jobs of batches, and act on them",
        description=_HELP + "\n".join(f"  {name:<{width}}  {what}" for name, what in ACTIONS.items()),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("action", nargs="?", choices=tuple(ACTIONS), default="list", help="what to do")
    parser.add_argument("ids", nargs="*", metavar="ID_OR_KEY", help="jobs, by id or key")
    group = parser.add_argument_group("options")
    group.add_argument(
        "--store", metavar="PLACE", help="where jobs are kept: a file, or postgresql://… (default: your own)"
    )
    group.add_argument("--json", action="store_true", help="JSON lines instead of text for people")
    group.add_argument("-o", "--output", metavar="FILE", help="results: a new file for them")
    group.add_argument("--wait", action="store_true", help="results: wait for those that are still to come")
    group.add_argument("--poll-interval", type=float, metavar="S", help="seconds between looks at a batch")
    group.add_argument("--config", metavar="FILE", help="TOML file of settings; the options here win over it")
    group.add_argument("--quiet", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say and return the exit code."""
    from smartbatch.cli import job_commands

    return job_commands.run(args)
