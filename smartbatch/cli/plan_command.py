"""``smartbatch plan``: what a run would take, by which route and why. Nothing is sent or changed."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from contextlib import ExitStack

from smartbatch._clock import RealClock
from smartbatch._words import escape
from smartbatch.cli.clients import (
    answers_each,
    client_of,
    embedding_of,
    missing_store,
    params_of,
    prompt_maker,
)
from smartbatch.cli.messages import say
from smartbatch.cli.route_chooser import RouteChooser
from smartbatch.cli.standard_output import print_out
from smartbatch.client import BatchingClient
from smartbatch.core.routing.explanation import ON_COMMAND_LINE, explain
from smartbatch.errors import ConfigError
from smartbatch.plan import Plan
from smartbatch.runs.row_requests import InputRequests
from smartbatch.runs.run_identity import RunIdentity
from smartbatch.runs.table_output import check_output_name, look_at_output
from smartbatch.tables.row_source import RowSource

_NO_KEY = "none-as-a-plan-sends-nothing"


def run(args: argparse.Namespace) -> int:
    """Print the plan and return the exit code: 0, or 2 when the run would be refused."""
    with ExitStack() as stack:
        plan, first = _plan(args, stack)
    if args.json:
        print_out(json.dumps({**plan.as_dict(), "first_prompt": first}, indent=2))
    else:
        words = explain(plan.decision, details=args.verbose, voice=ON_COMMAND_LINE)
        print_out(words + ("" if first is None else f"\nFirst prompt: {escape(first)}"))
    return 0


def _plan(args: argparse.Namespace, stack: ExitStack) -> tuple[Plan, str | None]:
    """Return the plan, and the first prompt as text."""
    maker = prompt_maker(args)
    embedding = embedding_of(args)
    client = _client(args, stack)
    source = stack.enter_context(RowSource(args.input, args.format, args.delimiter))
    rows = InputRequests(
        source,
        maker,
        model=args.model,
        params=params_of(args),
        embedding=embedding,
        limit=args.limit,
        n=answers_each(args),
    )
    chooser = RouteChooser(client, rows, args, RealClock())
    keys = rows.check()
    if args.output is not None:
        check_output_name(args.output)
    out = None if args.output is None else look_at_output(args.output, stack)
    if out is not None:
        out.recover(keys)
    identity = RunIdentity(args.output, args.model, keys, None if out is None else out.resend)
    jobs = identity.look_up(client)
    written = (lambda _: False) if out is None else out.is_answered
    needed = identity.needed(jobs, lambda place: written(place) or keys.is_skipped(place))
    for one in jobs:
        left = one.job.total - one.stored
        if not one.ended:
            say(f"job {one.job.id} goes on; the {left:,} rows it still asks are not planned")
    if not any(needed):
        say("every row is answered or under way: the run would ask nothing")
    if keys.skipped:
        say(f"{keys.skipped:,} rows are skipped, as a field of their prompts is blank")
    first = rows.first_prompt()
    return chooser.plan(needed), None if first is None else first[1]


def _client(args: argparse.Namespace, stack: ExitStack) -> BatchingClient:
    """Return a client that is never started.

    It needs no key, as nothing is sent. Where there is no store yet it gets a temporary one, as a plan makes
    none.
    """
    client = _client_without_key(args)
    if missing_store(client.config.store) is not None:
        client.stop(timeout=0)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="smartbatch-"))
        client = _client_without_key(
            argparse.Namespace(**{**vars(args), "store": os.path.join(folder, "jobs.db")})
        )
    stack.callback(client.stop, timeout=0)
    return client


def _client_without_key(args: argparse.Namespace) -> BatchingClient:
    try:
        return client_of(args)
    except ConfigError as error:
        try:
            return client_of(args, api_key=_NO_KEY)
        except (ConfigError, TypeError) as other:  # the key was not, or not alone, what was missing
            known = isinstance(other, TypeError) or "api_key" in str(other)
            raise (error if known else other) from None
