"""``smartbatch run``: check every row, ask what is not answered yet, write what comes, put it in order."""

from __future__ import annotations

import argparse
import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final

from attrs import frozen

from smartbatch._clock import RealClock
from smartbatch.cli.choice_summary import verdict
from smartbatch.cli.console import StandardOutput
from smartbatch.cli.inputs import Source
from smartbatch.cli.lines import AskedRow, encode
from smartbatch.cli.messages import note, say, tell_event
from smartbatch.cli.outputs import OutputFile, OutputLost, Recovered
from smartbatch.cli.prompts import PromptMaker
from smartbatch.cli.requests import Questions
from smartbatch.cli.run_job import ByJob, Found, Manner
from smartbatch.cli.run_routes import Chooser, Chosen
from smartbatch.cli.summary import Tally, failure_line
from smartbatch.client import BatchingClient
from smartbatch.config import BatchingConfig
from smartbatch.errors import (
    ConfigError,
    InputError,
    InvalidRequest,
    JobConflict,
    JobNotFound,
    SmartbatchError,
    StoreError,
)
from smartbatch.jobs.status import JobStatus
from smartbatch.observe.progress import Progress
from smartbatch.plan import Plan
from smartbatch.types import Generation

__all__ = ["REFUSALS", "client_of", "params_of", "refused", "run"]

REFUSALS: Final = (ConfigError, InputError, InvalidRequest, JobConflict, JobNotFound, StoreError)
"""What ends a run with exit code 2."""

_OTHER_NAMES: Final = {
    "parallelism = ": "--concurrency",
    "call_timeout = ": "--timeout",
    "batch_poll_interval = ": "--poll-interval",
    "fallback=": "--fallback",
}
"""Settings whose option is called differently, so that an error names both."""

_OF_BATCHES: Final = ("poll_interval", "batch_timeout", "batch_max_requests", "fallback")
"""Options that mean nothing in real time."""


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say and return the exit code: 0 all answered, 1 some not, 2 refused."""
    try:
        with ExitStack() as stack:
            return _Run(args, stack).go()
    except OutputLost as error:
        say(f"smartbatch: {error.message}")
        return 1
    except REFUSALS as error:
        refused(error)
        return 2


def refused(error: SmartbatchError) -> None:
    """Say why a line is refused, and which option that is about."""
    flag = next((f" ({flag})" for key, flag in _OTHER_NAMES.items() if key in error.message), "")
    if isinstance(error, StoreError):
        flag = "; --store names another place for what a run keeps"
    say(f"smartbatch: {error.message}{flag}")


@frozen
class _Choice:
    """The plan of this run, the id it was announced under, and when."""

    plan: Plan
    number: str
    at: float


class _Run:
    """One run, from the arguments to the exit code.

    The client is built first of all: an unknown model or a missing key is known before a row is read. It
    starts with its first request, so a refused run starts nothing.
    """

    def __init__(self, args: argparse.Namespace, stack: ExitStack) -> None:
        self._args = args
        self._clock = RealClock()
        self._began = self._clock.now()
        self._tally = Tally()
        self._before = Recovered()
        maker = PromptMaker(template=args.template, prompt_field=args.prompt_field, id_field=args.id_field)
        self._client = client_of(args)
        source = stack.enter_context(Source(args.input, args.format))
        self._out: OutputFile | None = None
        if args.output not in (None, "-"):
            if source.same_file(args.output):
                raise InputError(f"{args.output}: is the input itself; choose another -o")
            self._out = stack.enter_context(OutputFile(args.output))
        stack.callback(self._client.stop, timeout=0)
        self._questions = Questions(source, maker, model=args.model, params=params_of(args), limit=args.limit)
        self._chooser = Chooser(self._client, self._questions, args, self._clock)
        self._choice: _Choice | None = None

    def go(self) -> int:
        """Ask, write, put in order, tell."""
        keys = self._questions.check()
        if self._out is not None:
            self._before = self._out.recover(keys)
            self._tell_resumed(self._out.path)
        answered = self._out.is_answered if self._out is not None else lambda _: False
        asking: ByJob | None = None
        caught, ended = 0, self._clock.now()
        if self._before.answered < len(keys):
            asking = self._asking(keys, answered)
            caught = asking.go(self._take)
            ended = self._clock.now()
        if self._out is not None:
            self._out.put_in_order()
        unanswered = len(keys) - self._before.answered - self._tally.answered - self._tally.failed
        told: list[tuple[str, str]] = []
        if asking is not None and not caught and not unanswered:
            if self._out is not None:
                self._out.sync()
            asking.forget(all_answered=not self._tally.failed)
            if asking.afresh:
                told = self._scored(ended)
        self._tell_end(caught, unanswered, [] if asking is None else asking.batches, told)
        if caught:
            return 128 + caught
        return 1 if self._tally.failed or unanswered else 0

    def _asking(self, keys: array[int], answered: Callable[[int], bool]) -> ByJob:
        args = self._args
        manner = Manner(
            choose=self._choose,
            batched=self._chooser.batched,
            model=args.model,
            output=None if self._out is None else self._out.path,
            fallback=args.fallback,
            quiet=args.quiet,
        )
        return ByJob(self._client, self._questions, keys, manner, answered=answered, clock=self._clock)

    def _choose(self, needed: bytearray, stopped: Callable[[], bool]) -> Chosen | None:
        """Choose the route of the rows that must be asked, and say which and why."""
        plan = self._chooser.decide(needed, stopped)
        if plan is None:
            return None
        self._choice = _Choice(plan, self._client.announce_plan(plan), self._clock.now())
        if not self._args.quiet and self._args.batching_strategy != plan.route.value:
            say(f"route: {plan.route.value}, {plan.reason}")
        return Chosen(plan)

    def _scored(self, ended: float) -> list[tuple[str, str]]:
        """Score the choice, and return what it came to."""
        choice = self._choice
        if choice is None:
            return []
        seconds = ended - choice.at
        cost = None if self._tally.unpriced else self._tally.cost
        self._client.score_plan(choice.number, choice.plan, seconds=seconds, cost=cost)
        rescued = self._client.metrics.snapshot().decisions.rescued
        return list(verdict(choice.plan.decision, seconds, cost, rescued))

    def _take(self, rows: Iterator[tuple[AskedRow, Found]], progress: Progress) -> None:
        """Write rows as their results come. A line that is lost with this process is written by the next."""
        sink: OutputFile | StandardOutput = self._out or StandardOutput()
        try:
            for row, found in rows:
                with progress.aside():
                    sink.append(row, encode(row, found.result, self._args.model), answered=found.result.ok)
                if found.earlier:
                    self._before.answered += 1
                    continue
                self._tally.add(row, found.result)
                if not found.result.ok and self._args.verbose:
                    note(failure_line(row, found.result))
        except BrokenPipeError:  # such as `| head`: nobody reads any more, which is no error
            if isinstance(sink, OutputFile):
                raise
            sink.abandon()

    def _tell_resumed(self, path: str) -> None:
        before = self._before
        if self._args.quiet or not (before.answered or before.failed or before.cut):
            return
        told = [f"{before.answered:,} rows answered already"]
        if before.failed:
            told.append(f"{before.failed:,} failed ones tried again")
        if before.cut:
            told.append(f"a torn last line of {before.cut:,} bytes cut off")
        say(f"{path}: " + ", ".join(told))

    def _tell_end(
        self, caught: int, unanswered: int, jobs: Sequence[JobStatus], told: Sequence[tuple[str, str]]
    ) -> None:
        if self._args.quiet:
            return
        wall = self._clock.now() - self._began
        failures = not self._args.verbose
        say(self._tally.render(wall=wall, before=self._before, jobs=jobs, failures=failures))
        for name, words in told:
            say(f"{name:<8} {words}")
        if unanswered:
            why = "interrupted: " if caught else ""
            say(f"{why}{unanswered:,} rows not answered; run the same line again to resume")


def params_of(args: argparse.Namespace) -> Generation:
    return Generation(
        system=args.system, max_tokens=args.max_tokens, temperature=args.temperature, seed=args.seed
    )


def client_of(args: argparse.Namespace, **options: str) -> BatchingClient:
    """Return the client of a run, not started.

    Args:
        options: of the provider, which those among the arguments win over.

    Raises:
        ConfigError: for what cannot be, such as an unknown model or a missing key.
    """
    for name in _OF_BATCHES if args.batching_strategy == "individual" else ():
        if getattr(args, name) is not None:
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} is about batches: leave --batching-strategy individual out")
    given: dict[str, Any] = {
        "parallelism": args.concurrency,
        "max_rpm": args.max_rpm,
        "max_tpm": args.max_tpm,
        "budget": args.budget,
        "call_timeout": args.timeout,
        "retries": args.retries,
        "batching_strategy": args.batching_strategy,
        "store": args.store,
        "batch_poll_interval": args.poll_interval,
        "batch_timeout": args.batch_timeout,
        "batch_max_requests": args.batch_max_requests,
    }
    return BatchingClient(
        args.model,
        config=BatchingConfig.load(file=args.config, **given),
        provider_options={**options, **_provider_options(args.provider_option)},
        system=args.system,
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        seed=args.seed,
        observers=[tell_event] if args.verbose else [],
    )


def _provider_options(pairs: list[str]) -> dict[str, Any]:
    """Read ``K=V`` pairs; a value that is JSON, such as ``true`` or ``30``, is that, anything else a text.

    Raises:
        ConfigError: for a pair without ``=``.
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"--provider-option {key!r:.40} needs the form K=V, such as api=responses")
        try:
            options[key] = json.loads(text)
        except ValueError:
            options[key] = text
    return options
