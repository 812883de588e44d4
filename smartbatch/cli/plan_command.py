"""``smartbatch plan``: what a run would take, by which route and why. Nothing is sent, nothing is changed."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from contextlib import ExitStack

from smartbatch._clock import RealClock
from smartbatch.cli.inputs import Source
from smartbatch.cli.messages import say
from smartbatch.cli.outputs import OutputFile
from smartbatch.cli.paths import missing_store
from smartbatch.cli.prompts import PromptMaker
from smartbatch.cli.requests import Questions
from smartbatch.cli.run import REFUSALS, client_of, params_of, refused
from smartbatch.cli.run_jobs import RunName
from smartbatch.cli.run_routes import Chooser
from smartbatch.client import BatchingClient
from smartbatch.errors import ConfigError
from smartbatch.plan import Plan

__all__ = ["run"]

_NO_KEY = "none-as-a-plan-sends-nothing"


def run(args: argparse.Namespace) -> int:
    """Print the plan and return the exit code: 0, or 2 when the run would be refused."""
    try:
        with ExitStack() as stack:
            plan = _plan(args, stack)
    except REFUSALS as error:
        refused(error)
        return 2
    print(json.dumps(plan.as_dict(), indent=2) if args.json else plan.explain())
    return 0


def _plan(args: argparse.Namespace, stack: ExitStack) -> Plan:
    maker = PromptMaker(template=args.template, prompt_field=args.prompt_field, id_field=args.id_field)
    client = _client(args, stack)
    source = stack.enter_context(Source(args.input, args.format))
    questions = Questions(source, maker, model=args.model, params=params_of(args), limit=args.limit)
    chooser = Chooser(client, questions, args, RealClock())
    keys = questions.check()
    output = None if args.output == "-" else args.output
    name = RunName(output, args.model, keys)
    jobs = name.standing(client)
    if output is None or not os.path.exists(output):
        needed = name.needed(jobs, lambda _: False)
    else:
        out = stack.enter_context(OutputFile(output, look_only=True))
        out.recover(keys)
        needed = name.needed(jobs, out.is_answered)
    for one in jobs:
        left = one.job.total - one.stored
        if not one.ended:
            say(f"job {one.job.id} goes on; the {left:,} rows it still asks are not planned")
    if not any(needed):
        say("every row is answered or under way: the run would ask nothing")
    plan = chooser.decide(needed)
    assert plan is not None, "nothing stopped it"
    return plan


def _client(args: argparse.Namespace, stack: ExitStack) -> BatchingClient:
    """Return a client that is never started.

    Without a key at hand it has none, as nothing is sent; and where there is no store yet, it has one that is
    thrown away, as none is made just to plan.
    """
    client = _keyless(args)
    if missing_store(client.config.store) is not None:
        client.stop(timeout=0)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="smartbatch-"))
        client = _keyless(argparse.Namespace(**{**vars(args), "store": os.path.join(folder, "jobs.db")}))
    stack.callback(client.stop, timeout=0)
    return client


def _keyless(args: argparse.Namespace) -> BatchingClient:
    try:
        return client_of(args)
    except ConfigError as error:
        try:
            return client_of(args, api_key=_NO_KEY)
        except (ConfigError, TypeError) as other:  # not for want of a key, or for more than that
            known = isinstance(other, TypeError) or "api_key" in str(other)
            raise (error if known else other) from None
