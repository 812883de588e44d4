"""Which route the rows of a run take that have no answer yet, as a run uses it and a plan prints it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from attrs import frozen

from smartbatch._clock import Clock
from smartbatch.cli.messages import say
from smartbatch.cli.summary import outcome_lines
from smartbatch.client import BatchingClient
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.explanation import ON_COMMAND_LINE, explain, plan_lines
from smartbatch.core.routing.outcome import ActualCost
from smartbatch.jobs.status import JobStatus
from smartbatch.plan import Plan
from smartbatch.routing.advisor import AnnouncedPlan
from smartbatch.runs.row_requests import InputRequests, RunInterrupted
from smartbatch.types import Prompt, Result

_BATCH_STRATEGIES: Final = frozenset({"batch", "hybrid"})
_PASSED: Final = 1e-9
"""Seconds given for a deadline that has passed, as 0 is none."""


@frozen
class RunOutcome:
    """What came of the decision of a run."""

    decision: Decision
    actual: ActualCost
    lines: tuple[str, ...]  # for the summary


class RouteChooser:
    """Chooses for one run. A deadline counts from when this is made, before the input is read.

    Raises:
        ConfigError: the constraints cannot be used, or the strategy needs a Batch API and there is none.
    """

    def __init__(
        self, client: BatchingClient, input: InputRequests, args: argparse.Namespace, clock: Clock
    ) -> None:
        self._client = client
        self._input = input
        self._clock = clock
        self._quiet, self._verbose = args.quiet, getattr(args, "verbose", False)
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
        """Whether the strategy is the Batch API, and there is one."""
        if self._client.config.strategy not in _BATCH_STRATEGIES:
            return False
        return self._client.has_batches("generate" if self._input.embedding is None else "embed")

    def choose(self, needed: bytearray, stopped: Callable[[], bool]) -> Plan:
        """Return the plan as :meth:`plan` does, announce it to the client's observers, and print it."""
        plan = self.plan(needed, stopped)
        self._chosen = plan, self._client.announce_plan(plan), self._clock.now()
        if not self._quiet:
            now = datetime.fromtimestamp(self._clock.wall()).astimezone()
            if self._verbose:
                say(explain(plan.decision, details=True, voice=ON_COMMAND_LINE, now=now))
            else:
                say("\n".join(plan_lines(plan.decision, voice=ON_COMMAND_LINE, now=now)))
        return plan

    def add(self, result: Result) -> None:
        """Add a result to what the plan that was chosen, if one was, has cost."""
        if self._chosen is not None:
            self._chosen[1].add(result)

    def score(self, ended: float, jobs: Sequence[JobStatus]) -> RunOutcome | None:
        """Score the announced plan; return how it compares with what happened.

        Args:
            ended: when the last answer arrived.
            jobs: the batch jobs of this run.

        Returns:
            ``None`` if no plan was made or there is no answer.
        """
        if self._chosen is None:
            return None
        plan, announced, began = self._chosen
        if announced.score(ended - began) is None:
            return None
        rescue = next((job.rescue for job in jobs if job.rescue), None)
        lines = tuple(outcome_lines(plan.decision, ended - began, announced.actual, rescue))
        return RunOutcome(plan.decision, announced.actual, lines)

    def plan(self, needed: bytearray, stopped: Callable[[], bool] = lambda: False) -> Plan:
        """Return the plan for the answers with a 1 in ``needed``; they are read once, one after the other.

        Raises:
            ConfigError: no route meets the constraints.
            InputError: the input changed.
            RunInterrupted: ``stopped`` returned true.
        """

        def prompts() -> Iterator[Prompt]:
            yield from self._input.prompts(skip=lambda place: not needed[place], stopped=stopped)
            if stopped():
                raise RunInterrupted

        constraints = dict(self._constraints)
        if self._deadline is not None:
            elapsed = self._clock.now() - self._began
            constraints["deadline"] = max(_PASSED, self._deadline - elapsed)
        return self._client.forecast(prompts(), count=sum(needed), **constraints)
