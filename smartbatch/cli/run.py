"""``smartbatch run``: checks every row, sends the unanswered ones, and writes their results in order."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from attrs import define, field

from smartbatch._clock import Clock, RealClock
from smartbatch._words import escape, plural
from smartbatch.cli.clients import (
    answers_each,
    check_label_field,
    client_of,
    config_of,
    embedding_of,
    label_scores,
    options_of,
    params_of,
    prompt_maker,
)
from smartbatch.cli.earlier_output import EarlierOutput
from smartbatch.cli.interrupts import Interrupts
from smartbatch.cli.plan_command import RouteChooser, RunOutcome
from smartbatch.cli.printing import ReaderLeft, StandardOutput, note, say, terminal_width
from smartbatch.cli.sampled_run import (
    AnsweredSample,
    KeptLines,
    SampledRun,
    asks_for_rest,
    check_sample,
    in_real_time,
    runs_of_models,
    show_models,
    without_options,
    without_sample,
)
from smartbatch.cli.summary import RunSummary, amounts_of, failure_line
from smartbatch.client import BatchingClient
from smartbatch.errors import ClientClosed, ConfigError, InputError
from smartbatch.jobs.status import JobStatus
from smartbatch.observe.progress import Mode, Progress
from smartbatch.quality.labels import LabelScores, label_view
from smartbatch.quality.projected_routes import projection_lines
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.runs.answer_files import AnswerFolder
from smartbatch.runs.followed_jobs import GRACE_SECONDS
from smartbatch.runs.output_file import OutputChanged, OutputFile, Recovered
from smartbatch.runs.output_lines import encode
from smartbatch.runs.output_reader import read_rows
from smartbatch.runs.row_keys import KeyedRow
from smartbatch.runs.row_requests import InputRequests, RunInterrupted
from smartbatch.runs.run_identity import RowSelection, RunIdentity
from smartbatch.runs.stored_rows import RowResult, Rows, StoredRows, skipped_row
from smartbatch.runs.table_output import TableOutput, check_output_name, formulas_of, open_output
from smartbatch.tables.result_files import WriteFiles, paths_in_store
from smartbatch.tables.row_source import RowSource
from smartbatch.types import Usage, evolve
from smartbatch.views.terminal import lines_of

if TYPE_CHECKING:
    from smartbatch.cluster import Cluster


Write = Callable[[Rows, Progress], None]


@define(eq=False, repr=False)
class JobRun:
    _client: BatchingClient
    _input: InputRequests
    _chooser: RouteChooser
    _args: argparse.Namespace
    _written: Callable[[int], bool]  # whether the output has the answer to a row
    _clock: Clock
    _cluster: Cluster | None  # sends the real-time requests, if given
    _resend: str | None  # id of this attempt to replace answers
    _selection: RowSelection | None  # the answers to send, if not all
    rows: StoredRows = field(init=False)
    _interrupts: Interrupts = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._interrupts = Interrupts(self._end_early)
        self.rows = StoredRows(
            self._client,
            self._input,
            RunIdentity(self._args.output, self._args.model, self._input.keys, self._resend, self._selection),
            self._written,
            self._clock,
            to_file=self._args.output is not None,
            stopped=self._stopped,
            say=lambda text: None if self._args.quiet else say(text),
        )

    def go(self, write: Write) -> int:
        """Send the remaining rows and pass each result to ``write``; return the number of the interrupting
        signal, or 0.
        """
        with self._interrupts:
            try:
                self._follow(write)
            except (RunInterrupted, ClientClosed):
                if not self._stopped():
                    raise
            except Exception:
                self._client.stop(GRACE_SECONDS)
                raise
            self._client.stop(GRACE_SECONDS)
        return self._interrupts.caught

    def _follow(self, write: Write) -> None:
        rows, units = self.rows, None
        rows.take_up(batches_only=self._chooser.batches_only)
        if self._cluster is not None:
            from smartbatch.cluster import ClusterUnits

            config, options = config_of(self._args), options_of(self._args)
            units = partial(
                ClusterUnits.of, self._cluster, self._args.model, config, options, stopped=self._stopped
            )
        rows.submit_missing(lambda needed: self._chooser.choose(needed, self._stopped), units)
        with self._progress() as progress:
            followed = rows.follow(progress.advance_to if rows.in_real_time else progress.show)
            followed.refresh()
            write(rows.row_results(progress.advance), progress)
            followed.refresh()
        for line in followed.held("; then run the same command again"):
            say(line)

    def _progress(self) -> Progress:
        rows = self.rows
        total = sum(one.job.total for one in rows.live)
        mode: Mode = "quiet" if self._args.quiet or not rows.live else "auto"
        if not rows.in_real_time:
            return Progress(total, mode, sys.stderr, self._clock.now)
        needed = rows.identity.needed_rows
        before = needed - total + sum(one.stored for one in rows.live)
        progress = Progress(needed, mode, sys.stderr, self._clock.now, initial=before)
        self._client.observe(progress)
        return progress

    def _stopped(self) -> bool:
        return bool(self._interrupts.caught)

    def _end_early(self) -> None:
        """Start no more calls, and print what happens to the rest. Called on the signal thread."""
        self._client.stop_jobs()
        if self._args.quiet:
            return
        if self.rows.on_cluster:
            note("interrupted: unsent rows are cancelled; run the same command again to send them")
            return
        if any(one.realtime for one in self.rows.live):
            note(
                f"interrupted: calls in progress have {GRACE_SECONDS:.0f} s to complete; interrupt again "
                "to stop now"
            )
        else:
            note("interrupted: nothing is lost; submitted batches continue at the provider")
        for one in list(self.rows.live):
            job = one.job.id
            if one.realtime:
                note(
                    f"job {job}: unsent requests stay in the store; run the same command or smartbatch jobs "
                    f"resume {job} to continue, or smartbatch jobs cancel {job} to discard them"
                )
            else:
                note(
                    f"job {job}: run the same command or smartbatch jobs resume {job} to continue, or "
                    f"smartbatch jobs cancel {job} to cancel it"
                )


def run(args: argparse.Namespace) -> int:
    if args.models is not None:
        return _run_models(args)
    with ExitStack() as stack:
        only = _Run(args, stack)
        code = only.go()
    if only.continues:  # as a separate run, which finds the answers to the sample
        return run(without_sample(args, only.spent))
    return code


def _run_models(args: argparse.Namespace) -> int:
    """Send a sample to several models, one after the other, and compare their answers."""
    code = 0
    with ExitStack() as stack:
        # all are made first, so that a wrong model is reported before anything is sent
        runs = [_Run(each, stack) for each in runs_of_models(args)]
        for each in runs:
            code = max(code, each.go())
            if code > 1:  # interrupted
                return code
        show_models([each.answered_sample() for each in runs])
    return code


class _Run:
    """One run, from the arguments to the exit code.

    The client is made first, so that an unknown model or a missing key is reported before a row is read. It
    starts with its first request, so a refused run starts nothing.
    """

    def __init__(self, args: argparse.Namespace, stack: ExitStack) -> None:
        self._args = args
        self._stack = stack
        self._clock = RealClock()
        self._summary = RunSummary()
        self._before = Recovered()
        self._changed: OutputChanged | None = None
        self._reader_left = False
        self._last_written = -1
        self._completed = 0  # needed answers that are written, or have failed
        self.continues = False  # whether the rows that a sample left out are to be sent
        check_sample(args)
        if args.resend is not None and args.output is None:
            raise ConfigError("--resend replaces answers in an output file: give it with -o")
        self._labels = label_scores(args)
        if self._labels is not None and args.output is None and args.sample is None:
            raise ConfigError("labels are compared with the answers in an output file: add -o, or --sample")
        embedding = embedding_of(args)
        n = answers_each(args)
        formulas = formulas_of(args)
        params = params_of(args)
        if args.label_field is not None:
            check_label_field(args.label_field, params.schema)
        maker = prompt_maker(args, params)
        self._client = client_of(args, params)
        source = stack.enter_context(RowSource(args.input, args.format, args.delimiter, maker.file_columns))
        self._out: OutputFile | TableOutput | None = None
        self._write_files: WriteFiles = paths_in_store
        if args.output is not None:
            if source.same_file(args.output):
                raise InputError(f"{escape(args.output)}: is the input file; choose another -o")
            check_output_name(args.output)
            self._out = open_output(args.output, formulas)
            self._write_files = AnswerFolder(args.output).write
            stack.enter_context(self._out)
        self._sink = self._out or (StandardOutput() if args.sample is None else KeptLines())
        stack.callback(self._client.stop, timeout=0)
        self._input = InputRequests(
            source, maker, model=args.model, params=params, embedding=embedding, limit=args.limit, n=n
        )
        sent = args if args.sample is None else in_real_time(args)
        self._chooser = RouteChooser(self._client, self._input, sent, self._clock)
        self._params = params
        self._selection: RowSelection | None = None
        self._sample: SampledRun | None = None

    def go(self) -> int:
        self._began = self._clock.now()
        keys = self._input.check()
        if self._args.label_column is not None:
            self._input.check_column(self._args.label_column)
        if self._args.models is not None and not self._args.quiet:
            say(f"{escape(without_options(self._args.model))}: answers in {escape(self._args.output)}")
        if self._args.verbose and (first := self._input.first_prompt()) is not None:
            note(f"first prompt, {first[0]}: {first[1]}")
        if self._out is not None:
            earlier = EarlierOutput(self._out, self._input, self._client, self._args)
            self._before, self._selection = earlier.take_up()
        if self._args.sample is not None:
            self._sample = SampledRun.draw(self._input, self._args, self._params)
            self._selection = self._sample.selection
        written = self._out.is_answered if self._out is not None else lambda _: False
        needed = len(keys) - keys.skipped * keys.n
        self._completed = self._before.answered
        if self._selection is not None:
            needed = self._selection.count
            self._completed = sum(map(written, self._selection))
        job_run: JobRun | None = None
        caught, ended = 0, self._clock.now()
        if self._completed < needed:
            job_run = self._job_run(written)
            caught = job_run.go(self._write)
            ended = self._clock.now()
        if keys.skipped and self._selection is None and not self._reader_left:
            last = -1 if self._out is not None else self._last_written  # rows already on standard output
            self._write_skipped(lambda place: written(place) or place <= last)
        if self._out is not None:
            self._finish(self._out, asked=job_run is not None)
        unanswered = needed - self._completed
        outcome: RunOutcome | None = None
        if job_run is not None and not caught and not unanswered and self._changed is None:
            job_run.rows.forget(all_answered=not self._summary.failed and self._selection is None)
            if job_run.rows.submitted_all:
                outcome = self._chooser.score(ended, job_run.rows.batches)
        if job_run is not None and self._reader_left:  # unprinted answers are paid for, too
            for result in job_run.rows.stored_after(self._last_written):
                self._summary.count(result)
        is_shown = self._args.models is None and not (caught or self._changed or self._args.quiet)
        if self._sample is not None and is_shown:
            self._sample.show(self._answers())
        self._print_summary(caught, unanswered, [] if job_run is None else job_run.rows.batches, outcome)
        if self._labels is not None and not (caught or self._changed or self._args.quiet):
            self._print_labels(self._labels)
        if self._changed is not None:
            say(f"smartbatch: {self._changed.message}")
        if caught:
            return 128 + caught
        if self._sample is not None and self._args.models is None:
            self.continues = self._offer_rest(self._sample, written)
        return 1 if self._summary.failed or unanswered or self._changed is not None else 0

    def _offer_rest(self, sample: SampledRun, written: Callable[[int], bool]) -> bool:
        """Print time and cost of the other rows on each route; return whether to send them."""
        keys = self._input.keys
        if self._out is None:
            kept = {row.index * keys.n + (row.sample or 0) for row in self._answers() if row.ok}
            written = kept.__contains__
        needed = bytearray(not keys.is_skipped(place) and not written(place) for place in range(len(keys)))
        rest = sum(any(needed[first : first + keys.n]) for first in range(0, len(keys), keys.n))
        if rest and not (self._changed or self._args.quiet):
            plan = RouteChooser(self._client, self._input, self._args, self._clock).plan(needed)
            projection = sample.projection(self._answers())
            say("\n".join(projection_lines(projection, plan, terminal_width())))
        return asks_for_rest(self._args, rest)

    @property
    def spent(self) -> float:
        """USD that this run has spent or may have spent."""
        return self._client.spent + self._client.unconfirmed_cost

    def answered_sample(self) -> AnsweredSample:
        """Return the answers to the sample that was sent."""
        assert self._sample is not None
        answers = [row for row, _ in self._sample.read(self._answers())]
        name = without_options(self._args.model)
        return AnsweredSample(name, self._args.output, answers, self._sample.projection(answers))

    def _answers(self) -> Iterable[RecordedRow]:
        return self._sink.rows() if isinstance(self._sink, KeptLines) else read_rows(self._args.output)

    def _job_run(self, written: Callable[[int], bool]) -> JobRun:
        return JobRun(
            self._client,
            self._input,
            self._chooser,
            self._args,
            written,
            self._clock,
            None if self._args.dask is None else self._stack.enter_context(self._cluster()),
            None if self._out is None else self._out.resend,
            self._selection,
        )

    def _cluster(self) -> Cluster:
        args = self._args
        if args.output is None:
            raise ConfigError("--dask writes rows in the order they finish: give -o as well")
        try:
            from smartbatch.cluster import Cluster, shared_config
        except ImportError:
            raise ConfigError("--dask needs the extra dask: pip install 'smartbatch-llm[dask]'") from None
        shared_config(config_of(args))
        try:
            return Cluster(args.dask)
        except (OSError, ValueError) as error:
            raise ConfigError(f"--dask {args.dask}: the scheduler does not respond ({error})") from None

    def _finish(self, out: OutputFile | TableOutput, *, asked: bool) -> None:
        """Call this before the store deletes anything: it flushes the output to disk."""
        try:
            out.finish(asked=asked)
        except OutputChanged as error:
            self._changed = error

    def _write(self, groups: Rows, progress: Progress) -> None:
        """Write rows as their results arrive. If this process is killed, the next run writes the missing
        lines.
        """
        try:
            for rows in groups:
                with progress.aside():
                    self._append(rows)
                for row, outcome in rows:
                    self._count(row, outcome)
        except ReaderLeft:
            self._reader_left = True

    def _write_skipped(self, written: Callable[[int], bool]) -> None:
        try:
            for row in self._input.skipped_rows(written):
                outcome = skipped_row(row)
                self._append([(row, outcome)])
                self._count(row, outcome)
        except ReaderLeft:
            self._reader_left = True

    def _count(self, row: KeyedRow, outcome: RowResult) -> None:
        self._last_written = row.place
        if row.skipped is not None:
            self._summary.skipped[row.skipped] += 1
            return
        result = outcome.result
        if outcome.earlier:
            self._before.amounts.add_amounts(amounts_of(result))
            if result.ok:
                self._before.answered += 1
                self._completed += self._selection is None or row.place in self._selection
                return
            result = evolve(result, cost=0.0, usage=Usage())
        self._completed += self._selection is None or row.place in self._selection
        self._summary.count_row(row, result)
        self._chooser.add_result(result)
        if not result.ok and self._args.verbose:
            note(failure_line(row, result))

    def _append(self, rows: Sequence[tuple[KeyedRow, RowResult]]) -> None:
        """Write rows. If someone changed the output, the run continues, because the store has the answers."""
        model = self._args.model
        lines = []
        for row, outcome in rows:
            is_final = outcome.result.ok or row.skipped is not None
            lines.append((row, encode(row, outcome.result, model, self._write_files), is_final))
        try:
            self._sink.append(lines)
        except OutputChanged as error:
            if self._changed is None and not self._args.quiet:
                note(error.message)
            self._changed = error

    def _print_summary(
        self, caught: int, unanswered: int, jobs: Sequence[JobStatus], outcome: RunOutcome | None
    ) -> None:
        if self._args.quiet:
            return
        say(
            self._summary.render(
                wall=self._clock.now() - self._began,
                before=self._before,
                jobs=jobs,
                failures=not self._args.verbose,
                output=self._out is not None,
                decision=None if outcome is None else outcome.decision,
                actual=None if outcome is None else outcome.actual,
            )
        )
        for line in () if outcome is None else outcome.lines:
            say(line)
        if self._summary.failed and self._out is not None:
            say(f"Advice on the failed rows: smartbatch failures {escape(shlex.quote(self._out.path))}")
        asked_texts = self._summary.failed and not (self._summary.answered or self._args.embed)
        if asked_texts and "embed" in self._args.model:  # part of the name of every embedding model
            say("This looks like an embedding model: use --embed to get vectors.")
        if unanswered:
            why = "Interrupted: " if caught else ""
            missing = "printed, as the reader closed the pipe" if self._reader_left else "answered"
            say(f"{why}{plural(unanswered, 'row')} not {missing}. Run the same command again to resume.")

    def _print_labels(self, labels: LabelScores) -> None:
        """Print the scores of the sample, or of all answers in the output."""
        n, sample = self._input.keys.n, self._sample
        for row in self._answers():
            if sample is None or row.index * n + (row.sample or 0) in sample.selection:
                labels.count(row)
        say("\n".join(line.text for line in lines_of(label_view(labels), terminal_width())))
