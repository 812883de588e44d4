"""Chooses the route of a run for ``smartbatch run``, and prints it for ``smartbatch plan``."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any, Final

from attrs import frozen

from smartbatch._clock import Clock, RealClock
from smartbatch._words import escape
from smartbatch.cli.clients import (
    answers_each,
    client_of,
    embedding_of,
    missing_store,
    params_of,
    prompt_maker,
)
from smartbatch.cli.printing import print_out, say
from smartbatch.cli.summary import outcome_lines
from smartbatch.client import BatchingClient
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.explanation import OF_SAMPLE, ON_COMMAND_LINE, explain, plan_lines
from smartbatch.core.routing.outcome import ActualCost
from smartbatch.errors import ConfigError
from smartbatch.jobs.status import JobStatus
from smartbatch.plan import Plan
from smartbatch.routing.advisor import AnnouncedPlan
from smartbatch.runs.row_requests import InputRequests, RunInterrupted
from smartbatch.runs.run_identity import RunIdentity
from smartbatch.runs.table_output import check_output_name, look_at_output
from smartbatch.tables.row_source import RowSource
from smartbatch.types import Generation, Prompt, Result

_BATCH_STRATEGIES: Final = frozenset({"batch", "hybrid"})
_PASSED_DEADLINE_SECONDS: Final = 1e-9  # 0 would mean no deadline


@frozen
class RunOutcome:
    decision: Decision
    actual: ActualCost
    lines: tuple[str, ...]  # lines of the summary


class RouteChooser:
    """Chooses the route of one run. The deadline counts from the creation of this object."""

    def __init__(
        self, client: BatchingClient, input: InputRequests, args: argparse.Namespace, clock: Clock
    ) -> None:
        self._client = client
        self._input = input
        self._clock = clock
        self._quiet, self._verbose = args.quiet, getattr(args, "verbose", False)
        self._voice = ON_COMMAND_LINE if getattr(args, "sample", None) is None else OF_SAMPLE
        self._chosen: tuple[Plan, AnnouncedPlan, float] | None = None
        self._began = clock.now()
        self._constraints: dict[str, Any] = {
            "strategy": args.strategy,
            "deadline": args.deadline,
            "prefer": args.prefer,
            "time_value": args.time_value,
            "budget": client.config.budget,
            "embedding": input.embedding,
        }
        checked = client.forecast((), count=0, **self._constraints)
        self._deadline = checked.decision.constraints.deadline

    @property
    def batches_only(self) -> bool:
        if (self._constraints["strategy"] or self._client.config.strategy) not in _BATCH_STRATEGIES:
            return False
        return self._client.has_batches("generate" if self._input.embedding is None else "embed")

    def choose(self, needed: bytearray, stopped: Callable[[], bool]) -> Plan:
        """Plan as :meth:`plan` does, announce the plan to the client's observers, and print it."""
        plan = self.plan(needed, stopped)
        self._chosen = plan, self._client.announce_plan(plan), self._clock.now()
        if not self._quiet:
            now = datetime.fromtimestamp(self._clock.wall()).astimezone()
            if self._verbose:
                say(explain(plan.decision, details=True, voice=self._voice, now=now))
            else:
                say("\n".join(plan_lines(plan.decision, voice=self._voice, now=now)))
        return plan

    def add_result(self, result: Result) -> None:
        if self._chosen is not None:
            self._chosen[1].add_result(result)

    def score(self, ended: float, jobs: Sequence[JobStatus]) -> RunOutcome | None:
        """Compare the announced plan with the outcome. Return ``None`` without a plan or an answer."""
        if self._chosen is None:
            return None
        plan, announced, began = self._chosen
        if announced.score(ended - began) is None:
            return None
        rescue = next((job.rescue for job in jobs if job.rescue), None)
        lines = tuple(outcome_lines(plan.decision, ended - began, announced.actual, rescue))
        return RunOutcome(plan.decision, announced.actual, lines)

    def plan(self, needed: bytearray, stopped: Callable[[], bool] = lambda: False) -> Plan:
        """Plan for the answers marked in ``needed``, reading the rows once, in order."""

        def prompts() -> Iterator[Prompt]:
            for _, request in self._input.requests(lambda place: not needed[place], stopped):
                yield request
            if stopped():
                raise RunInterrupted

        constraints = dict(self._constraints)
        if self._deadline is not None:
            elapsed = self._clock.now() - self._began
            constraints["deadline"] = max(_PASSED_DEADLINE_SECONDS, self._deadline - elapsed)
        return self._client.forecast(prompts(), count=sum(needed), **constraints)


_NO_KEY = "none-as-a-plan-sends-nothing"


def run(args: argparse.Namespace) -> int:
    with ExitStack() as stack:
        plan, first = _plan(args, stack)
    if args.json:
        print_out(json.dumps({**plan.as_dict(), "first_prompt": first}, indent=2))
    else:
        words = explain(plan.decision, details=args.verbose, voice=ON_COMMAND_LINE)
        print_out(words + ("" if first is None else f"\nFirst prompt: {escape(first)}"))
    return 0


def _plan(args: argparse.Namespace, stack: ExitStack) -> tuple[Plan, str | None]:
    embedding = embedding_of(args)
    params = params_of(args)
    maker = prompt_maker(args, params)
    client = _client(args, params, stack)
    source = stack.enter_context(RowSource(args.input, args.format, args.delimiter, maker.file_columns))
    rows = InputRequests(
        source,
        maker,
        model=args.model,
        params=params,
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
            say(f"job {one.job.id} is in progress; its {left:,} remaining rows are left out of the plan")
    if not any(needed):
        say("every row is answered or in progress: the run would send nothing")
    if keys.skipped:
        say(f"{keys.skipped:,} rows are skipped because a field of their prompt is blank")
    first = rows.first_prompt()
    return chooser.plan(needed), None if first is None else first[1]


def _client(args: argparse.Namespace, params: Generation, stack: ExitStack) -> BatchingClient:
    """Return a client that is never started. It needs no key, and if there is no store yet, it uses a
    temporary one.
    """
    client = _client_without_key(args, params)
    if missing_store(client.config.store) is not None:
        client.stop(timeout=0)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="smartbatch-"))
        own = {**vars(args), "store": os.path.join(folder, "jobs.db")}
        client = _client_without_key(argparse.Namespace(**own), params)
    stack.callback(client.stop, timeout=0)
    return client


def _client_without_key(args: argparse.Namespace, params: Generation) -> BatchingClient:
    try:
        return client_of(args, params)
    except ConfigError as error:
        try:
            return client_of(args, params, api_key=_NO_KEY)
        except (ConfigError, TypeError) as other:  # not only the key is wrong
            known = isinstance(other, TypeError) or "api_key" in str(other)
            raise (error if known else other) from None
