"""``smartbatch plan``: what a run would take, by which route and why. Nothing is sent, nothing is started."""

from __future__ import annotations

import argparse
import json
import os
from contextlib import ExitStack

from smartbatch.cli.inputs import Source
from smartbatch.cli.notes import say
from smartbatch.cli.outputs import OutputFile
from smartbatch.cli.prompts import PromptMaker
from smartbatch.cli.questions import Questions
from smartbatch.cli.routes import decide, wished
from smartbatch.cli.run import client_of, params_of
from smartbatch.client import BatchingClient
from smartbatch.core.choosing import Decision
from smartbatch.errors import ConfigError, InputError, InvalidRequest, StoreError
from smartbatch.lists import ResultList
from smartbatch.plans import Plan

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    """Print the plan and return the exit code: 0, or 2 when the run would be refused."""
    try:
        with ExitStack() as stack:
            plan = _plan(args, stack)
    except (ConfigError, InputError, InvalidRequest, StoreError) as error:
        say(f"smartbatch: {error.message}")
        return 2
    print(json.dumps(plan.as_dict(), indent=2) if args.json else plan.explain())
    return 0


def _plan(args: argparse.Namespace, stack: ExitStack) -> Plan:
    maker = PromptMaker(template=args.template, prompt_field=args.prompt_field, id_field=args.id_field)
    client = _client(args)
    source = stack.enter_context(Source(args.input, args.format))
    questions = Questions(source, maker, model=args.model, params=params_of(args), limit=args.limit)
    keys = questions.check()
    wishes = client._wishes({**wished(args), "budget": client.config.budget})
    if args.output in (None, "-") or not os.path.exists(args.output):
        return Plan(decide(client, questions, lambda _: False, wishes), _never)
    with OutputFile(args.output) as out:
        out.recover(keys)
        return Plan(decide(client, questions, out.is_answered, wishes), _never)


def _client(args: argparse.Namespace) -> BatchingClient:
    """Return a client that is never started; without a key at hand it has none, as nothing is sent."""
    try:
        return client_of(args)
    except ConfigError as error:
        if "key" not in error.message:
            raise
        return client_of(args, api_key="none: a plan sends nothing")


def _never(_: Decision) -> ResultList:
    raise AssertionError("a printed plan is not carried out")
