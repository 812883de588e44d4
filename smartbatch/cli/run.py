"""``smartbatch run``: check every row, ask what is not answered yet, write what comes, put it in order."""

from __future__ import annotations

import argparse
import json
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, Final, Protocol

from smartbatch.cli.by_batch import ByBatch, Found
from smartbatch.cli.console import StandardOutput
from smartbatch.cli.inputs import Source
from smartbatch.cli.interrupts import Interrupts
from smartbatch.cli.lines import AskedRow, encode
from smartbatch.cli.notes import note, say, tell_event
from smartbatch.cli.outputs import OutputFile, OutputLost, Recovered
from smartbatch.cli.prompts import PromptMaker
from smartbatch.cli.questions import Questions
from smartbatch.cli.summary import Tally, failure_line
from smartbatch.client import BatchingClient
from smartbatch.clock import RealClock
from smartbatch.config import BatchingConfig
from smartbatch.errors import (
    ClientClosed,
    ConfigError,
    InputError,
    InvalidRequest,
    JobConflict,
    StoreError,
)
from smartbatch.jobs.status import JobStatus
from smartbatch.lists import Stream
from smartbatch.models import Generation, Request, Result
from smartbatch.observe.progress import Progress
from smartbatch.runtime.ticket import ResultFuture

__all__ = ["run"]

GRACE: Final = 10.0
"""Seconds that calls under way get to end after the first Ctrl-C; a second one does not wait."""

_OTHER_NAMES: Final = {
    "parallelism": "--concurrency",
    "call_timeout": "--timeout",
    "batch_poll_interval": "--poll-interval",
    "fallback=": "--fallback",
}
"""Settings whose option is called differently, so that an error names both."""

_OF_BATCHES: Final = ("poll_interval", "batch_timeout", "batch_max_requests", "fallback")
"""Options that mean nothing in real time."""


class _Sink(Protocol):
    def append(self, row: AskedRow, line: bytes, *, answered: bool) -> None: ...


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say and return the exit code: 0 all answered, 1 some not, 2 refused."""
    try:
        with ExitStack() as stack:
            return _Run(args, stack).go()
    except OutputLost as error:
        say(f"smartbatch: {error.message}")
        return 1
    except (ConfigError, InputError, InvalidRequest, JobConflict, StoreError) as error:
        flag = next((f" ({flag})" for key, flag in _OTHER_NAMES.items() if key in error.message), "")
        say(f"smartbatch: {error.message}{flag}")
        return 2


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
        self._jobs: Sequence[JobStatus] = []
        maker = PromptMaker(template=args.template, prompt_field=args.prompt_field, id_field=args.id_field)
        self._client = _client(args)
        source = stack.enter_context(Source(args.input, args.format))
        self._out: OutputFile | None = None
        if args.output not in (None, "-"):
            if source.same_file(args.output):
                raise InputError(f"{args.output}: is the input itself; choose another -o")
            self._out = stack.enter_context(OutputFile(args.output))
        stack.callback(self._client.stop, timeout=0)
        self._lost: OutputLost | None = None
        self._questions = Questions(source, maker, model=args.model, params=_params(args), limit=args.limit)

    def go(self) -> int:
        """Ask, write, put in order, tell."""
        keys = self._questions.check()
        if self._out is not None:
            self._before = self._out.recover(keys)
            self._tell_resumed(self._out.path)
        remaining = len(keys) - self._before.answered
        caught = 0
        if remaining:
            by_batch = self._args.batching_strategy == "batch"
            caught = self._ask_by_batch(keys) if by_batch else self._ask(remaining)
        if self._out is not None:
            self._out.put_in_order()
        unanswered = len(keys) - self._before.answered - self._tally.answered - self._tally.failed
        self._tell_end(caught, unanswered)
        if caught:
            return 128 + caught
        return 1 if self._tally.failed or unanswered else 0

    def _ask(self, remaining: int) -> int:
        """Ask every row that is left; return the number of the signal that ended it early, or 0."""
        out, client = self._out, self._client
        interrupts = Interrupts(
            self._clock, on_first=self._end_early, on_late=lambda: client.stop(timeout=0), grace=GRACE
        )
        requests = self._questions.requests(
            skip=out.is_answered if out is not None else lambda _: False,
            stopped=lambda: bool(interrupts.caught) or self._lost is not None,
        )
        results = Stream(
            requests,
            self._submit,
            self._clock,
            ahead=client.config.queue_capacity,
            ordered=out is None,
            raising=False,
        )
        with interrupts, self._progress(remaining) as progress:
            client.observe(progress)
            if out is not None:
                self._drain(results, progress)
            else:
                self._print(results, progress)
        return interrupts.caught

    def _ask_by_batch(self, keys: array[int]) -> int:
        """Ask every row that is left as a job; return as :meth:`_ask` does."""
        out = self._out
        batch = ByBatch(
            self._client,
            self._questions,
            keys,
            model=self._args.model,
            output=None if out is None else out.path,
            answered=out.is_answered if out is not None else lambda _: False,
            fallback=self._args.fallback,
            quiet=self._args.quiet,
            clock=self._clock,
        )
        caught = batch.go(self._take)
        self._jobs = batch.statuses
        return caught

    def _take(self, rows: Iterator[tuple[AskedRow, Found]], progress: Progress) -> None:
        """Write the rows of jobs. A line that is lost with this process is written by the next one."""
        sink: OutputFile | StandardOutput = self._out or StandardOutput()
        try:
            for row, found in rows:
                with progress.aside():
                    self._write(sink, found.result, row)
                if found.earlier:
                    self._before.answered += 1
                    continue
                self._tally.add(row, found.result)
                if not found.result.ok and self._args.verbose:
                    note(failure_line(row, found.result))
        except BrokenPipeError:
            if isinstance(sink, OutputFile):
                raise
            sink.abandon()

    def _end_early(self) -> None:
        self._client.cancel_pending()
        if not self._args.quiet:
            note(f"interrupted: calls under way get {GRACE:.0f} s to end; once more ends at once")

    def _submit(self, request: Request, sink: Callable[[Result], None]) -> ResultFuture:
        """Submit so that an answer is on disk before anything else is done with it, and a cancelled request
        comes back as a result, too."""
        future = self._client.submit(request)

        def ended(_: Future[Result]) -> None:
            dropped = ClientClosed("cancelled before it was sent")
            result = future.outcome or Result("", error=dropped, context=request.context)
            if self._out is not None and not isinstance(result.error, ClientClosed):
                try:
                    self._write(self._out, result)
                except OutputLost as error:
                    self._lost = self._lost or error
            sink(result)

        future.add_done_callback(ended)
        return future

    def _write(self, sink: _Sink, result: Result, row: AskedRow | None = None) -> None:
        row = result.context if row is None else row
        sink.append(row, encode(row, result, self._args.model), answered=result.ok)

    def _drain(self, results: Stream, progress: Progress, printer: _Sink | None = None) -> None:
        for result in results:
            if self._lost is not None:
                raise self._lost
            if isinstance(result.error, ClientClosed):
                continue  # never sent, or dropped at the end of the grace: the next run asks it
            if printer is not None:
                with progress.aside():
                    self._write(printer, result)
            row: AskedRow = result.context
            self._tally.add(row, result)
            progress.advance(result)
            if not result.ok and self._args.verbose:
                note(failure_line(row, result))

    def _print(self, results: Stream, progress: Progress) -> None:
        printer = StandardOutput()
        try:
            self._drain(results, progress, printer)
        except BrokenPipeError:  # such as `| head`: nobody reads any more, which is no error
            results.close()
            printer.abandon()

    def _progress(self, remaining: int) -> Progress:
        done = self._before.answered
        return Progress(
            remaining + done,
            "quiet" if self._args.quiet else "auto",
            sys.stderr,
            self._clock.now,
            initial=done,
        )

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

    def _tell_end(self, caught: int, unanswered: int) -> None:
        if self._args.quiet:
            return
        wall = self._clock.now() - self._began
        failures = not self._args.verbose
        say(self._tally.render(wall=wall, before=self._before, jobs=self._jobs, failures=failures))
        if unanswered:
            resumes = self._out is not None or self._args.batching_strategy == "batch"
            again = "; run the same line again to resume" if resumes else ""
            say(f"{'interrupted: ' if caught else ''}{unanswered:,} rows not answered{again}")


def _params(args: argparse.Namespace) -> Generation:
    return Generation(
        system=args.system, max_tokens=args.max_tokens, temperature=args.temperature, seed=args.seed
    )


def _client(args: argparse.Namespace) -> BatchingClient:
    by_batch = args.batching_strategy == "batch"
    for name in () if by_batch else _OF_BATCHES:
        if getattr(args, name) is not None:
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} is about batches: say --batching-strategy batch as well")
    given: dict[str, Any] = {
        "parallelism": args.concurrency,
        "max_rpm": args.max_rpm,
        "max_tpm": args.max_tpm,
        "budget": args.budget,
        "call_timeout": args.timeout,
        "retries": args.retries,
        "batching_strategy": None if by_batch else args.batching_strategy,
        "store": args.store,
        "batch_poll_interval": args.poll_interval,
        "batch_timeout": args.batch_timeout,
        "batch_max_requests": args.batch_max_requests,
    }
    return BatchingClient(
        args.model,
        config=BatchingConfig.load(file=args.config, **given),
        provider_options=_provider_options(args.provider_option),
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
